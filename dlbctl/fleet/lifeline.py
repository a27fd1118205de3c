"""The lifeline: no process of a fleet outlives the `dlbctl up` that started it, whatever killed that.

`dlbctl up` holds the write end of a named pipe open for as long as it lives; every descendant blocks
reading it. The kernel closes the write end on any death, SIGKILL included, and each reader then ends itself.

A named pipe rather than an inherited descriptor: what a child starts finds it through the environment alone,
although `subprocess` and `multiprocessing` close descriptors they were not told to keep; and a process that
comes up after the supervisor died finds no writer and ends at once.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Self

LIFELINE_VARIABLE = "DLBCTL_LIFELINE"
GRACE_S = 5.0


class Lifeline:
    """The supervisor's end. Open while the fleet may live; `close` tells every descendant to end."""

    def __init__(self, path: Path) -> None:
        """Make the pipe at `path`, in place of what a killed supervisor left there."""
        path.unlink(missing_ok=True)
        os.mkfifo(path, 0o600)
        self.path = path
        # Read-write, because opening a FIFO for writing alone would wait for its first reader.
        self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)

    def __repr__(self) -> str:
        return f"Lifeline({str(self.path)!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def environment(self) -> dict[str, str]:
        """Return what a child's environment needs so that `watch_lifeline` finds the pipe."""
        return {LIFELINE_VARIABLE: str(self.path)}

    def close(self) -> None:
        """Let go: every descendant that still lives ends."""
        os.close(self._fd)
        self.path.unlink(missing_ok=True)


def watch_lifeline(grace_s: float = GRACE_S) -> None:
    """End this process when the supervisor that started it has died; without one, do nothing.

    At the supervisor's death this process gets SIGTERM, its own orderly way to end, and `grace_s` seconds
    for it; then it exits with status 1.
    """
    path = os.environ.get(LIFELINE_VARIABLE)
    if path:
        threading.Thread(target=_end_with, args=(path, grace_s), name="lifeline", daemon=True).start()


def _end_with(path: str, grace_s: float) -> None:
    _wait_for_end_of(path)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(grace_s)
    os._exit(1)


def _wait_for_end_of(path: str) -> None:
    """Return when no process holds the pipe's write end, which may be at once."""
    try:
        # Without O_NONBLOCK the open itself would wait for a writer that died.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return
    os.set_blocking(fd, True)
    while os.read(fd, 64):
        pass
    os.close(fd)
