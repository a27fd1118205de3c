"""Child processes of a test, and waiting for what they do."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable

_POLL_S = 0.01


def eventually(holds: Callable[[], bool], *, within_s: float) -> None:
    """Poll until `holds()`; fail the test when it does not within the time."""
    deadline_s = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline_s, f"not within {within_s} s: {holds}"
        time.sleep(_POLL_S)


class Spawned:
    """A started process; its output, both streams, is collected as it comes."""

    def __init__(self, command: list[str]) -> None:
        self._lines: list[str] = []
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self._reader = threading.Thread(target=self._collect)
        self._reader.start()

    def __repr__(self) -> str:
        return f"<Spawned {self._process.pid} {self._process.args!r}>"

    def word_after(self, word: str) -> str:
        """The word after `word` on the first line that begins with it, waited for."""
        eventually(lambda: bool(self._found(word)) or self._process.poll() is not None, within_s=30)
        found = self._found(word)
        assert found, f"no line `{word} ...` from {self!r}:\n{''.join(self._lines)}"
        return found[0]

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._finish()

    def stop(self) -> int:
        """SIGTERM, then SIGKILL when that is not heard within 10 s; the exit status."""
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
        status = self._process.wait()
        self._finish()
        return status

    def _collect(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.append(line)

    def _found(self, word: str) -> list[str]:
        return [line.split()[1] for line in list(self._lines) if line.startswith(word + " ")]

    def _finish(self) -> None:
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()
