"""The one module that prints. Results go to stdout, everything else to stderr."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from dlbctl.core.errors import DlbctlError

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult

# Wider than any line: a figure that was cut to fit a window is a wrong figure. A terminal wraps what is too long.
_UNCUT = 100_000


def show(*parts: RenderableType) -> None:
    """Print results for people: plain text under NO_COLOR and in pipes, lines never cut, strings as they are."""
    screen = _console(width=_UNCUT, soft_wrap=True)
    with _to_stdout():
        for part in parts:
            screen.print(_literal(part))


@contextmanager
def _to_stdout() -> Iterator[None]:
    """A disk that is full is an error in one line; whoever reads a pipe may leave, and typer knows what that means."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise DlbctlError(f"standard output: {error.strerror or error}") from error


@contextmanager
def refreshing() -> Iterator[Callable[..., None]]:
    """A `show` whose every call replaces what the last one showed; the last picture stays when the block ends.

    Where nothing can be replaced, in a pipe, the pictures follow each other.
    """
    from rich.live import Live

    screen = _console()
    if not screen.is_terminal or screen.is_dumb_terminal:
        yield show
        return
    last: tuple[RenderableType, ...] = ()
    # A screen of its own is written over in place: no flicker, and no debris when the window changes its size.
    with Live(console=screen, screen=True, auto_refresh=False) as live:

        def draw(*parts: RenderableType) -> None:
            nonlocal last
            last = parts
            live.update(_Cropped(parts), refresh=True)

        try:
            yield draw
        finally:
            live.stop()
            show(*last)


class _Cropped:
    """Parts at their natural size: a window that is too small shows less of it, and says what of its height."""

    def __init__(self, parts: tuple[RenderableType, ...]) -> None:
        self._parts = parts

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.segment import Segment, Segments

        natural = options.update(width=_UNCUT, height=None, no_wrap=True)
        lines = [line for part in self._parts for line in console.render_lines(_literal(part), natural, pad=False)]
        room = options.size.height
        if len(lines) > room:
            lines[room - 1 :] = [[Segment(f"({len(lines) - room + 1} more lines, for a taller window)")]]
        for line in lines:
            yield Segments([*line, Segment.line()])


def _console(**options: Any) -> Console:
    from rich.console import Console

    # rich itself would leave bold on; without a colour system there are no escapes at all.
    if os.environ.get("NO_COLOR"):
        options["color_system"] = None
    return Console(highlight=False, emoji=False, **options)


def _literal(part: RenderableType) -> RenderableType:
    """Names and addresses may have brackets, which rich would take for styles."""
    from rich.text import Text

    return Text(part) if isinstance(part, str) else part


def show_line(text: str) -> None:
    """Print a line that is to be copied: never wrapped, cut or coloured."""
    with _to_stdout():
        sys.stdout.write(text + "\n")
        sys.stdout.flush()


def show_json(value: Any, *, on_one_line: bool = False) -> None:
    """Print one JSON document for machines; of several, each is on a line of its own."""
    import msgspec

    text = msgspec.json.encode(value)
    show_line((text if on_one_line else msgspec.json.format(text, indent=2)).decode())


def note(text: str) -> None:
    """Print progress or advice to stderr."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def complain(error: DlbctlError) -> None:
    """Print an error the way every command does."""
    note(f"dlbctl: error: {error}")


def announce(name: str, url: str) -> None:
    """Say where a process listens: one line on stdout, for people and for scripts that wait for it."""
    sys.stdout.write(f"{name} {url}\n")
    sys.stdout.flush()
