"""The benchmark notices wrong answers and missed bars, and runs as a program."""

from __future__ import annotations

import json
import socketserver
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hopbench import report, traffic
from hopbench.load import WrongAnswerError, drive
from hopbench.measure import Figures
from hopbench.traffic import Kind

_HOP = Path(__file__).with_name("hop.py")
Respond = Callable[[bytes], bytes]  # from the tag of a request to a response, head and all


@contextmanager
def _server(respond: Respond) -> Iterator[int]:
    """A server that answers one request a connection and closes it; its port."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            for line in self.rfile:
                if line == b"\r\n":
                    self.wfile.write(respond(traffic.tag_in(self.rfile.read(traffic.BODY_BYTES))))
                    return

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


def _whole(body: bytes, status: bytes = b"200 OK", headers: bytes = b"") -> bytes:
    return b"HTTP/1.1 %b\r\n%bcontent-length: %d\r\n\r\n%b" % (status, headers, len(body), body)


def _chunked(events: list[bytes]) -> bytes:
    frames = [b"%x\r\n%b\r\n" % (len(event), event) for event in events]
    return b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + b"".join(frames) + b"0\r\n\r\n"


def test_right_answers_pass_and_are_timed() -> None:
    with _server(lambda tag: _whole(traffic.completion(tag))) as port:
        assert len(drive(port, Kind.JSON, 1, 1)) == 1
    with _server(lambda tag: _chunked(traffic.events(tag))) as port:
        assert len(drive(port, Kind.FAST, 1, 1)) == 1


@pytest.mark.parametrize(
    ("kind", "respond", "complaint"),
    [
        (Kind.JSON, lambda tag: _whole(b"{}", status=b"503 Busy"), "status 503"),
        (Kind.JSON, lambda tag: _whole(traffic.completion(b"j0000009")), "differ from the expected"),
        (Kind.JSON, lambda tag: _whole(traffic.completion(tag))[:-1], "ended before the answer"),
        (Kind.JSON, lambda tag: _whole(traffic.completion(tag) + b" "), "differ from the expected"),
        (
            Kind.JSON,
            lambda tag: _whole(traffic.completion(tag), headers=b"connection: close\r\n"),
            "not kept alive",
        ),
        (Kind.JSON, lambda tag: b"what?\r\n\r\n", "not HTTP"),
        (Kind.FAST, lambda tag: _chunked(traffic.events(tag)[:-1]), r"lacks its \[DONE\]"),
        (
            Kind.FAST,
            lambda tag: _chunked(traffic.events(tag)[:50] + traffic.events(tag)[51:]),
            "differ from the expected",
        ),
        (Kind.FAST, lambda tag: _chunked(traffic.events(tag))[:-5], "ended before the answer"),
    ],
    ids=["status", "another's", "cut", "longer", "closes", "not-http", "no-done", "chunk-lost", "no-end"],
)
def test_wrong_answer_fails_the_run(kind: Kind, respond: Respond, complaint: str) -> None:
    with _server(respond) as port, pytest.raises(WrongAnswerError, match=complaint):
        drive(port, kind, 1, 1)


@pytest.mark.parametrize("kind", list(Kind))
def test_request_names_its_answer_and_has_the_stated_size(kind: Kind) -> None:
    head, body = traffic.request(kind, 123).split(b"\r\n\r\n", 1)
    assert b"content-length: %d" % len(body) in head
    assert len(body) == traffic.BODY_BYTES
    assert json.loads(body)["stream"] is kind.streams
    assert traffic.tag_in(body) == traffic.tag(kind, 123)


def _figures(**changed: float) -> Figures:
    figures = {
        "p50_ms": 1.0,
        "request_us": 100.0,
        "chunk_us": 10.0,
        "fast_chunk_us": 5.0,
        "idle_percent": 1.0,
        "rss_mb": 50.0,
    }
    return Figures(**(figures | changed))


def _missed(rounds: report.Rounds) -> list[bool]:
    return [bar.missed for bar in report.bars(rounds)]


def test_bars_judge_the_median_of_ratios_taken_inside_rounds() -> None:
    """The second round was disturbed: everything took ten times as long, and the ratios hold."""
    disturbed = {"p50_ms": 10.0, "request_us": 1000.0, "chunk_us": 100.0}
    rounds = {
        "direct": [_figures(p50_ms=0.5), _figures(p50_ms=5.0)],
        "nginx": [_figures(), _figures(**disturbed)],
        "sglang-router": [_figures(), _figures(**disturbed)],
        "dlbctl-root": [_figures(request_us=50.0), _figures(**(disturbed | {"request_us": 500.0}))],
        "dlbctl-root-leaf": [_figures(p50_ms=0.9), _figures(**(disturbed | {"p50_ms": 9.0}))],
    }
    assert [bar.value for bar in report.bars(rounds)] == [0.5, 1.0, pytest.approx(0.8), 50.0]
    assert _missed(rounds) == [False] * 4


def test_each_bar_is_missed_by_a_figure_above_it() -> None:
    rounds = {
        "direct": [_figures(p50_ms=0.5)],
        "nginx": [_figures()],
        "sglang-router": [_figures()],
        "dlbctl-root": [_figures(request_us=61.0, chunk_us=15.1, rss_mb=80.1)],
        "dlbctl-root-leaf": [_figures(p50_ms=1.01)],
    }
    assert _missed(rounds) == [True] * 4


def test_bar_without_its_systems_is_reported_and_not_missed() -> None:
    rounds = {"direct": [_figures()], "nginx": [_figures()]}
    assert _missed(rounds) == [False] * 4
    assert all("not measured" in str(bar) for bar in report.bars(rounds))
    assert "nginx" in report.table(rounds)


@pytest.mark.slow
def test_program_measures_the_upstream_itself(tmp_path: Path) -> None:
    result = tmp_path / "hop.json"
    command = [
        sys.executable,
        str(_HOP),
        "--rounds",
        "1",
        "--requests",
        "100",
        "--only",
        "direct",
    ]
    done = subprocess.run([*command, "--json", str(result)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "direct" in done.stdout
    assert json.loads(result.read_text())["rounds"]["direct"][0]["p50_ms"] > 0
