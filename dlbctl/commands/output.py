"""The one module that prints. Results go to stdout, everything else to stderr."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from dlbctl.core.errors import DlbctlError


def console() -> Console:
    """Stdout as a rich console: plain text under NO_COLOR and in pipes, where lines are never cut."""
    from rich.console import Console

    terminal = sys.stdout.isatty()
    return Console(width=None if terminal else 200, soft_wrap=not terminal, highlight=False)


def show(*parts: RenderableType) -> None:
    """Print results for people."""
    screen = console()
    for part in parts:
        screen.print(part)


def show_line(text: str) -> None:
    """Print a line that is to be copied: never wrapped, cut or coloured."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def show_json(value: Any) -> None:
    """Print one JSON document for machines."""
    import msgspec

    text = msgspec.json.format(msgspec.json.encode(value), indent=2)
    sys.stdout.write(text.decode() + "\n")
    sys.stdout.flush()


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
