"""A fleet of `dlbctl up` in the background of a test, and the commands that are pointed at it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from dlbctl.fleet.run_folder import FleetRecord, read_record
from dlbctl.replay.outcome import Outcome

from .commands import Ended, Running, dlbctl, running


@dataclass(frozen=True, slots=True)
class Fleet:
    """What runs, and the two variables that `dlbctl up` says to export."""

    record: FleetRecord
    environment: dict[str, str]

    @property
    def one_way_s(self) -> dict[tuple[str, str], float]:
        """Network delays between its regions, by source and destination."""
        return {(link.source, link.destination): link.delay_ms / 1e3 for link in self.record.links}

    def run(self, *words: object, within_s: float = 60.0) -> Ended:
        """Run a command to its end."""
        return dlbctl(*words, environment=self.environment, within_s=within_s)

    def start(self, *words: object) -> Running:
        """Start a command; the caller ends it."""
        return Running(words, self.environment)

    def inspect(self, what: str, admin: str) -> list[dict[str, Any]]:
        """Return the rows of `dlbctl inspect` of one router."""
        code, out, err = self.run("inspect", what, "--json", "--admin", admin)
        assert code == 0, err
        rows: list[dict[str, Any]] = json.loads(out)
        return rows


@contextmanager
def fleet(text: str, folder: Path) -> Iterator[Fleet]:
    """A fleet that is up, from the text of its FLEET.toml, with its files in `folder`."""
    (folder / "fleet.toml").write_text(text)
    with running("up", folder / "fleet.toml", "--dir", folder / "run") as up:
        exports = [up.line("export ").partition("=") for _ in range(2)]
        up.line("stop:")
        yield Fleet(read_record(folder / "run"), {name: value for name, _, value in exports})
        assert up.end().code == 0


def outcomes(out: Path) -> list[Outcome]:
    """What a replay has written down so far of its requests; a line that is being written is left for later."""
    path = out / "requests.jsonl"
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return [msgspec.json.decode(line, type=Outcome) for line in lines]
