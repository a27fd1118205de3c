"""`dlbctl engine` as a process."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

# The command alone, as dlbctl.cli mounts it.
PROGRAM = """
import sys, typer
from dlbctl.commands import engine
from dlbctl.commands.output import complain
from dlbctl.core.errors import DlbctlError
app = typer.Typer()
app.command()(engine.engine)
try:
    app()
except DlbctlError as error:
    complain(error)
    sys.exit(error.exit_code)
"""
BODY = {"prompt": "a b c", "max_tokens": 3, "ignore_eos": True}


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-c", PROGRAM, *arguments]


@contextlib.contextmanager
def started(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(command(*arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_engines_print_their_addresses_serve_and_end_with_a_summary() -> None:
    with started("--count", "2", "--model", "m", "--time-factor", "100") as process:
        urls = [line(process), line(process)]
        assert len(set(urls)) == 2
        for url in urls:
            answer = httpx.post(url + "/v1/completions", json={**BODY, "model": "m"})
            assert answer.json()["usage"]["completion_tokens"] == 3
        process.send_signal(signal.SIGTERM)
        rest, errors = process.communicate(timeout=10)
        assert (process.returncode, rest) == (0, "")
        assert "2 requests, 2 finished, 0 aborted, 6 tokens; event loop lag p99" in errors


def test_an_interrupt_ends_it_in_the_middle_of_a_stream() -> None:
    with started("--json") as process:
        assert process.stdout is not None
        text = process.stdout.readline()
        while not text.rstrip().endswith("}"):
            text += process.stdout.readline()
        (url,) = json.loads(text)["engines"]
        body = {**BODY, "max_tokens": 9999, "stream": True}
        with httpx.stream("POST", url + "/v1/completions", json=body) as answer:
            assert answer.status_code == 200
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=10) == 0


def test_consecutive_ports_are_used_and_a_taken_one_is_an_error() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = subprocess.run(command("--port", str(port)), capture_output=True, text=True, timeout=20, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"dlbctl: error: cannot listen on 127.0.0.1:{port}" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_unknown_profile_is_a_configuration_error() -> None:
    done = subprocess.run(command("--profile", "l40"), capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 3
    assert "no engine profile 'l40'" in done.stderr


def test_a_profile_file_and_a_smaller_batch_are_used(tmp_path: Path) -> None:
    file = tmp_path / "p.toml"
    file.write_text(
        'name = "p"\nmax_model_tokens = 100\nkv_blocks = 50\nstep_base_s = 0.001\nprefill_token_s = 0\n'
        "decode_seq_s = 0\ncontext_token_s = 0\nmean_output_tokens = 5\n"
    )
    with started("--profile", str(file), "--max-num-seqs", "2", "--flavor", "sglang") as process:
        url = line(process)
        (card,) = httpx.get(url + "/v1/models").json()["data"]
        assert card["max_model_len"] == 100
        assert "sglang:num_running_reqs" in httpx.get(url + "/metrics").text


def test_a_crash_ends_the_process_with_1() -> None:
    with started("--crash-after", "1", "--time-factor", "100") as process:
        url = line(process)
        assert httpx.post(url + "/v1/completions", json=BODY).status_code == 200
        with pytest.raises(httpx.TransportError):
            httpx.post(url + "/v1/completions", json=BODY)
        assert process.wait(timeout=10) == 1
