"""What the verbs of `dlbctl simulate` that take their time have in common."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar, TextIO

from dlbctl.core.errors import DlbctlError


class InterruptedSimulationError(DlbctlError):
    """The user ended it; 130 is what a shell reports for SIGINT."""

    exit_code: ClassVar[int] = 130


@contextlib.contextmanager
def writable(path: Path) -> Iterator[TextIO]:
    """The file of `--csv`, opened before what may take hours: a path that cannot be written is told first."""
    try:
        with path.open("w", newline="", encoding="utf-8") as file:
            yield file
    except OSError as error:
        raise DlbctlError(f"--csv {path}: {error.strerror or error}") from error


@contextlib.contextmanager
def bar() -> Iterator[Callable[[float, float, str], None]]:
    """A bar on stderr with the time that is left: tell it how much is done, of how much, and a few words."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), TextColumn("left:"))
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=None)

        def tell(done: float, asked: float, words: str) -> None:
            progress.update(task, completed=done, total=asked, description=words)

        yield tell
