"""`dlbctl replay` as a process: exit codes, files, signals."""

from __future__ import annotations

import json
import math
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from dlbctl.commands.replay import replay
from dlbctl.core.errors import ConfigError, UsageError
from tests.package import FOLDER

from .server import Exchange, FakeServer, well

COMMAND = (sys.executable, "-c", "from dlbctl.cli import main; main()", "replay")


def start(*arguments: object, max_file_bytes: int | None = None, **environment: str) -> subprocess.Popen[str]:
    def limit_files() -> None:
        if max_file_bytes is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (max_file_bytes, max_file_bytes))

    clean = {name: value for name, value in os.environ.items() if not name.startswith("DLBCTL_")}
    return subprocess.Popen(
        [*COMMAND, *map(str, arguments)],
        env=clean | {"PYTHONPATH": str(FOLDER)} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=limit_files,
    )


def run(*arguments: object, max_file_bytes: int | None = None, **environment: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr."""
    process = start(*arguments, max_file_bytes=max_file_bytes, **environment)
    out, err = process.communicate(timeout=60)
    assert "Traceback" not in err
    return process.returncode, out, err


def row(timestamp_ms: int, *ids: int, **more: object) -> dict[str, object]:
    tokens = 512 * len(ids)
    return {"timestamp": timestamp_ms, "input_length": tokens, "output_length": 9, "hash_ids": ids} | more


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Twelve rows over 1.1 s, and a bad one."""
    path = tmp_path / "trace.jsonl"
    lines = [json.dumps(row(100 * number, 0, number + 1)) for number in range(12)]
    path.write_text("\n".join([*lines[:5], "{oops", *lines[5:], ""]))
    return path


def requests(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "requests.jsonl").read_text().splitlines()]


async def busy(exchange: Exchange) -> None:
    await exchange.document("503 Service Unavailable", {"error": {"message": "queue full"}})


async def never(exchange: Exchange) -> None:
    await exchange.released.wait()


def closed_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


def test_a_run_accounts_for_every_row_on_screen_and_in_its_files(trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with FakeServer(models=["only-one"]) as server:
        code, shown, err = run(
            trace, "--target", server.url, "--speedup", 10, "--limit", 10, "--out", out, "--slo", "ttft=60s"
        )
    assert (code, "INVALID" in err or err == "") == (0, True)
    for line in (
        "rows",
        "left out: not-json",
        "left out: over-limit",
        "first token",
        "goodput",
        "cell us",
    ):
        assert line in shown
    summary = json.loads((out / "summary.json").read_text())
    counts = summary["counts"]
    assert (counts["rows"], counts["sent"], counts["ok"], counts["left_out"]) == (13, 10, 10, 3)
    assert summary["left_out"]["not-json"]["lines"][0].startswith("line 6: ")
    assert summary["slo"]["share"] == 1.0
    sent = sorted(requests(out), key=lambda line: line["line"])
    assert [line["line"] for line in sent] == [1, 2, 3, 4, 5, 7, 8, 9, 10, 11]
    assert [line["scheduled_s"] for line in sent] == [round(0.01 * number, 6) for number in range(10)]
    assert all(line["sent_s"] >= line["scheduled_s"] for line in sent)
    assert {line["model"] for line in sent} == {"only-one"}
    header, numbers = (out / "summary.csv").read_text().splitlines()
    assert dict(zip(header.split(","), numbers.split(","), strict=True))["ok"] == "10"


def test_failed_requests_are_failures_and_exit_1(trace: Path) -> None:
    with FakeServer([well, busy, busy, well]) as server:
        code, shown, err = run(trace, "--target", server.url, "--time-scale", 0.1, "--json")
    assert code == 1
    assert "2 of 12 requests failed: http-503 2" in err
    summary = json.loads(shown)
    assert (summary["counts"]["ok"], summary["failed"]) == (10, {"http-503": 2})
    assert len(server.requests) == 12


def test_a_missed_goodput_exits_5(trace: Path) -> None:
    with FakeServer() as server:
        code, _, err = run(trace, "--target", server.url, "--speedup", 50, "--slo", "e2e=0.001ms,goodput=0.5")
    assert code == 5
    assert "goodput 0.0000 is below 0.5" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"speedup": 2.0, "time_scale": 2.0}, "give one"),
        ({"speedup": 0.0}, "--speedup 0: must be a number above 0"),
        ({"speedup": 1e-320}, "must be a number above 0"),
        ({"time_scale": math.nan}, "must be a number above 0"),
        ({"start": math.inf}, "--start inf"),
        ({"end": math.nan}, "--end nan"),
        ({"target": ["localhost"]}, "not understood"),
        ({"slo": "p99=1s"}, "--slo"),
        ({"slo": "ttft=1s", "stream": False}, "needs streams"),
        ({"start": 99.0}, "none of its 13 rows is left"),
    ],
)
def test_words_that_do_not_fit_are_usage_errors(trace: Path, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        replay(trace, **arguments)
    assert message in caught.value.message


@pytest.mark.parametrize("arguments", [["--speedup", 2, "--time-scale", 2], ["--timeout", "nan"], ["--limit", 0]])
def test_usage_errors_exit_2_and_print_no_result(trace: Path, arguments: list[object]) -> None:
    code, shown, err = run(trace, *arguments)
    assert (code, shown) == (2, "")
    assert str(arguments[0]) in err


def test_a_file_that_is_no_trace_exits_3(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.touch()
    code, _, err = run(path)
    assert code == 3
    assert f"{path}:1: the trace is empty" in err


@pytest.mark.parametrize("text", ["", "two words", "ключ", "a\nb"])
def test_a_file_without_one_key_in_it_is_refused(trace: Path, tmp_path: Path, text: str) -> None:
    key = tmp_path / "key"
    key.write_text(text)
    with pytest.raises(ConfigError, match="not one key"):
        replay(trace, api_key_file=key)


def test_no_target_at_all_exits_4_and_says_which(trace: Path) -> None:
    port = closed_port()
    code, _, err = run(trace, DLBCTL_TARGET=f"http://127.0.0.1:{port}")
    assert code == 4
    assert f"http://127.0.0.1:{port}: Connection refused" in err


def test_a_name_that_no_host_can_have_is_a_target_not_reachable(trace: Path) -> None:
    code, _, err = run(trace, "--target", "http://no..host:1")
    assert code == 4
    assert "http://no..host:1: no name that DNS can hold" in err


def test_a_target_that_is_down_is_warned_of_and_its_requests_move(trace: Path, tmp_path: Path) -> None:
    down = f"down=http://127.0.0.1:{closed_port()}"
    with FakeServer() as server:
        up = f"up={server.url}"
        code, shown, err = run(trace, "--target", down, "--target", up, "--speedup", 10, "--json")
    assert code == 0
    assert "not reachable" in err
    summary = json.loads(shown)
    assert 0 < summary["counts"]["moved"] < 12
    assert summary["shares"]["target"] == {"up": {"requests": 12, "share": 1.0}}


def test_which_model_is_asked_for_when_a_target_has_several(trace: Path) -> None:
    with FakeServer(models=["a", "b"]) as server:
        code, _, err = run(trace, "--target", server.url)
        assert code == 1
        assert "2 models (a, b)" in err
        assert "--model" in err
        code, _, _ = run(trace, "--target", server.url, "--model", "b", "--speedup", 50, "--no-stream")
    assert code == 0
    assert {request.body["model"] for request in server.requests} == {"b"}


def test_requests_beyond_the_concurrency_wait_and_their_wait_is_lag(trace: Path, tmp_path: Path) -> None:
    with FakeServer() as server:
        code, shown, _ = run(trace, "--target", server.url, "--speedup", 1e6, "--max-concurrency", 1, "--json")
    assert (code, server.most_in_flight, server.connections) == (0, 1, 3)
    summary = json.loads(shown)
    assert summary["schedule_lag_s"]["max"] > 0
    assert summary["e2e_s"]["max"] >= summary["schedule_lag_s"]["max"]


def test_a_former_run_is_kept_and_the_way_to_replace_it_named(trace: Path, tmp_path: Path) -> None:
    (tmp_path / "requests.jsonl").write_text("{}\n")
    with FakeServer() as server:
        code, _, err = run(trace, "--target", server.url, "--out", tmp_path)
    assert code == 2
    assert "--force" in err
    assert (tmp_path / "requests.jsonl").read_text() == "{}\n"
    assert not server.requests


def test_what_is_not_answered_in_time_to_drain_has_failed(trace: Path) -> None:
    with FakeServer([well, never]) as server:
        code, shown, _ = run(trace, "--target", server.url, "--speedup", 20, "--drain-timeout", 0.1, "--json")
    assert code == 1
    assert json.loads(shown)["failed"] == {"drain-timeout": 11}


def test_an_api_key_is_sent_and_never_shown(trace: Path, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("sk-secret-1\n")
    with FakeServer() as server:
        code, shown, err = run(
            trace,
            "--target",
            server.url,
            "--speedup",
            50,
            "--api-key-file",
            key,
            "--json",
            "--out",
            tmp_path / "o",
        )
    assert code == 0
    assert {request.headers["authorization"] for request in server.requests} == {"Bearer sk-secret-1"}
    written = "".join(path.read_text() for path in (tmp_path / "o").iterdir())
    assert "sk-secret-1" not in shown + err + written


def test_a_full_disk_ends_the_run_with_one_clear_message(trace: Path, tmp_path: Path) -> None:
    with FakeServer() as server:
        code, _, err = run(trace, "--target", server.url, "--speedup", 50, "--out", tmp_path / "o", max_file_bytes=1000)
    assert code == 1
    assert f"--out: cannot write {tmp_path / 'o'}" in err


def test_a_row_of_the_far_future_is_waited_for_and_not_sent(tmp_path: Path) -> None:
    trace = tmp_path / "t.jsonl"
    trace.write_text("".join(json.dumps(row(0, 1) | {"timestamp": at}) + "\n" for at in (0, 1e300)))
    with FakeServer() as server:
        process = start(trace, "--target", server.url, "--time-scale", 1e100)
        assert server.seen.wait(30)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "1 of 2 rows were sent" in err


def test_control_c_stops_sending_reports_and_exits_130(tmp_path: Path) -> None:
    trace, out = tmp_path / "t.jsonl", tmp_path / "out"
    trace.write_text("".join(json.dumps(row(at, 1)) + "\n" for at in (0, 0, 0, 60_000)))
    with FakeServer([never]) as server:
        process = start(trace, "--target", server.url, "--out", out, "--json")
        assert server.seen.wait(30)
        process.send_signal(signal.SIGINT)
        shown, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "interrupted: 3 of 4 rows were sent" in err
    summary = json.loads(shown)
    assert (summary["counts"]["interrupted"], summary["counts"]["failed"]) == (3, 0)
    assert summary["left_out"]["interrupted"]["rows"] == 1
    assert [line["result"] for line in requests(out)] == ["interrupted"] * 3
    assert summary == json.loads((out / "summary.json").read_text())


def test_a_killed_run_keeps_the_requests_that_had_ended(trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with FakeServer([well, well, never]) as server:
        process = start(trace, "--target", server.url, "--speedup", 10, "--out", out)
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and not (out.exists() and len(requests(out)) == 2):
            time.sleep(0.02)
        process.kill()
        process.communicate(timeout=30)
    assert [line["result"] for line in requests(out)] == ["ok", "ok"]
