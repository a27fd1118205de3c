"""Going on in the background: a forked supervisor that tells its parent how the start went."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import msgspec

from dlbctl.core.errors import DlbctlError

_READY = b"ready"


def run_detached(serve: Callable[[Callable[[], None]], None], log: Path) -> None:
    """Run `serve` in a background process; return when it calls its argument, which says that it is ready.

    What it prints goes to `log`. A DlbctlError before it is ready is raised here. Must be called before this
    process has threads or an event loop.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    readable, writable = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(readable)
        _run_in_background(serve, log, writable)
    os.close(writable)
    news = _listen(readable, pid)
    if news != _READY:
        os.waitpid(pid, 0)
        raise _failure(news, log)


def _listen(readable: int, pid: int) -> bytes:
    with os.fdopen(readable, "rb") as pipe:
        try:
            return pipe.read()
        except KeyboardInterrupt:
            os.kill(pid, signal.SIGTERM)
            os.waitpid(pid, 0)
            raise


def _failure(news: bytes, log: Path) -> DlbctlError:
    if not news:
        return DlbctlError("the background process ended before the fleet was ready", hint=f"See {log}.")
    message, hint = msgspec.json.decode(news, type=tuple[str, str])
    return DlbctlError(message, hint=hint)


def _run_in_background(serve: Callable[[Callable[[], None]], None], log: Path, writable: int) -> NoReturn:
    exit_code = 1
    try:
        _leave_terminal(log)
        serve(lambda: _tell(writable, _READY))
        exit_code = 0
    except DlbctlError as error:
        sys.stderr.write(f"{error}\n")
        _tell(writable, msgspec.json.encode((error.message, error.hint)))
    except BaseException:  # nothing above this frame belongs to this process
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(exit_code)


def _leave_terminal(log: Path) -> None:
    os.setsid()
    log.parent.mkdir(parents=True, exist_ok=True)
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    null = os.open(os.devnull, os.O_RDONLY)
    for ours, standard in ((null, 0), (out, 1), (out, 2)):
        os.dup2(ours, standard)


def _tell(writable: int, news: bytes) -> None:
    """Tell the parent once; later news has nobody to hear it."""
    try:
        os.write(writable, news)
        os.close(writable)
    except OSError:
        pass
