"""What the verbs of `dlbctl simulate` that take their time have in common."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, TextIO

from dlbctl.core.errors import DlbctlError, UsageError

if TYPE_CHECKING:
    from dlbctl.sim.network import Network


class InterruptedSimulationError(DlbctlError):
    """The user ended it; 130 is what a shell reports for SIGINT."""

    exit_code: ClassVar[int] = 130


@contextlib.contextmanager
def whole_or_nothing() -> Iterator[None]:
    """Ctrl-C ends what has no part that could be reported."""
    try:
        yield
    except KeyboardInterrupt:
        raise InterruptedSimulationError("interrupted: nothing is complete, and nothing is reported") from None


def numbers(option: str, texts: list[str] | None) -> list[float]:
    """The numbers of an option that takes several, separated by commas or given again."""
    found: list[float] = []
    for text in [part.strip() for words in texts or () for part in words.split(",")]:
        try:
            number = float(text)
        except ValueError:
            raise UsageError(f"{option} {text!r}: not a number", hint=f"for instance {option} 0.5,0.8") from None
        if number in found:
            raise UsageError(f"{option} {text}: given twice")
        found.append(number)
    return found


def check_positive(option: str, *values: float | None) -> None:
    """Refuse what is no finite number above 0; None was not given."""
    for value in values:
        if value is not None and not 0.0 < value < float("inf"):
            raise UsageError(f"{option}: {value:g} is not a number above 0")


def network_of(file: Path | None, utilisation: float | None) -> Network:
    """The network of a file, or the example, with all demand scaled to a part of what the cells serve together."""
    from dlbctl.sim.network_file import example_network, load_network

    network = load_network(file) if file else example_network()
    if utilisation is None:
        return network
    if not 0.0 < utilisation < 1.0:
        raise UsageError(f"--utilisation: {utilisation:g} is not between 0 and 1")
    capacity = float(network.capacity_rps.sum())
    if capacity == float("inf"):
        raise UsageError("--utilisation: this network has a link without a bound")
    return network.scaled(utilisation * capacity / float(network.demand.sum()))


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
