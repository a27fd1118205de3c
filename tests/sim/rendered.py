"""What a terminal would show, as plain text."""

from __future__ import annotations

import io

from rich.console import Console, RenderableType


def rendered(*parts: RenderableType) -> str:
    console = Console(file=io.StringIO(), width=300, color_system=None)
    for part in parts:
        console.print(part)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()
