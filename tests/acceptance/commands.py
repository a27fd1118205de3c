"""`dlbctl` commands as the processes that users start."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import httpx

from tests.package import FOLDER

REPOSITORY = Path(__file__).resolve().parents[2]
EXAMPLES = REPOSITORY / "examples"
_DLBCTL = (sys.executable, "-m", "dlbctl")


class Ended(NamedTuple):
    """What became of a command."""

    code: int
    out: str
    err: str


class Running:
    """A command that runs until it is told to end."""

    def __init__(self, words: tuple[object, ...], environment: Mapping[str, str]) -> None:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - it lives as long as the process
        self._process = subprocess.Popen(
            (*_DLBCTL, *map(str, words)),
            env=_environment(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self._lines: list[str] = []

    def __repr__(self) -> str:
        return f"<Running {self.pid} {self._process.args!r}>"

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def line(self, beginning: str) -> str:
        """The next line on its stdout that begins so, waited for, without that beginning."""
        assert self._process.stdout is not None
        for text in iter(self._process.stdout.readline, ""):
            self._lines.append(text)
            if text.startswith(beginning):
                return text.removeprefix(beginning).strip()
        raise AssertionError(f"{self!r} ended without a line {beginning!r}:\n{''.join(self._lines)}{self._said()}")

    def end(self, signum: signal.Signals = signal.SIGTERM, *, within_s: float = 20.0) -> Ended:
        """Send a signal and wait for the end."""
        self._process.send_signal(signum)
        return self.wait(within_s=within_s)

    def wait(self, *, within_s: float) -> Ended:
        """Wait for its end."""
        out, _ = self._process.communicate(timeout=within_s)
        return Ended(self._process.returncode, "".join(self._lines) + out, self._said())

    def kill(self) -> None:
        """End it whatever it does; no effect on one that has ended."""
        self._process.kill()
        self._process.communicate()
        self._errors.close()

    def _said(self) -> str:
        self._errors.seek(0)
        return self._errors.read()


@contextmanager
def running(*words: object, environment: Mapping[str, str] | None = None) -> Iterator[Running]:
    """A command in the background, gone at the end of the block."""
    command = Running(words, environment or {})
    try:
        yield command
    finally:
        command.kill()


def dlbctl(*words: object, environment: Mapping[str, str] | None = None, within_s: float = 60.0) -> Ended:
    """Run a command to its end; it never shows a traceback."""
    done = subprocess.run(
        (*_DLBCTL, *map(str, words)),
        env=_environment(environment or {}),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=within_s,
    )
    assert "Traceback" not in done.stdout + done.stderr, done.stderr
    return Ended(done.returncode, done.stdout, done.stderr)


def _environment(extra: Mapping[str, str]) -> dict[str, str]:
    """This process's environment without what would configure dlbctl."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("DLBCTL_")}
    return {**clean, "PYTHONPATH": str(FOLDER), **extra}


def until_ready(url: str, *, within_s: float = 30.0) -> None:
    """Wait until a router says that it can route: servers are asked what they serve, leaves how they are."""
    deadline_s = time.monotonic() + within_s
    with httpx.Client(base_url=url, timeout=within_s, trust_env=False) as client:
        while (answer := client.get("/readyz")).status_code != 200:
            assert time.monotonic() < deadline_s, answer.text
            time.sleep(0.02)
