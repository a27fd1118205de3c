"""A `dlbctl root` process with the leaf of its only cell inside, in front of one server."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Self

import httpx

from .processes import Spawned, eventually

_CONFIG = """
[root]
cell = "here"
listen = "127.0.0.1:0"
admin = "unix:{folder}/root.sock"
readiness_grace_s = 0

[[cell]]
name = "here"
[[cell.server]]
url = "{server}"

[[endpoint]]
name = "{model}"
"""


class Root:
    """The process as a context manager; entering it waits until it is ready, leaving it ends it."""

    def __init__(self, folder: Path, *, server: str, model: str) -> None:
        self._config = folder / "root.toml"
        self._config.write_text(_CONFIG.format(folder=folder, server=server, model=model))
        self.url = ""

    def __repr__(self) -> str:
        return f"<Root {self.url}>"

    def __enter__(self) -> Self:
        self._process = Spawned([sys.executable, "-m", "dlbctl", "root", "--config", str(self._config)])
        try:
            self.url = self._process.word_after("listening")
            eventually(self.is_ready, within_s=30)
        except BaseException:
            self._process.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._process.stop()

    def is_ready(self) -> bool:
        return httpx.get(f"{self.url}/readyz").status_code == 200
