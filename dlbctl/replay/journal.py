"""The files of a run: requests.jsonl as it goes, summary.json and summary.csv at its end."""

from __future__ import annotations

import contextlib
import csv
from typing import TYPE_CHECKING, Self

import msgspec

from dlbctl.core.errors import DlbctlError, UsageError
from dlbctl.replay.report import flatten

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from dlbctl.replay.outcome import Outcome
    from dlbctl.replay.report import Summary

FILES = ("requests.jsonl", "summary.json", "summary.csv")


class Journal:
    """Writes one run into a directory of its own; a killed run keeps every request that had ended.

    A directory that holds a former run is refused; with force that run's files are removed first, so that
    what lies there is never of two runs. Raises UsageError for that, DlbctlError where it cannot write.
    """

    def __init__(self, directory: Path, *, force: bool = False) -> None:
        self._directory = directory
        with self._translated():
            directory.mkdir(parents=True, exist_ok=True)
            self._clear(force)
            self._requests = (directory / FILES[0]).open("xb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # What a full disk refused is still in the buffer, and was reported when it was refused.
        with contextlib.suppress(OSError):
            self._requests.close()

    def __repr__(self) -> str:
        return f"<Journal in {self._directory}>"

    def record(self, outcome: Outcome) -> None:
        """Append a request that has ended; it is the kernel's when this returns, some microseconds later."""
        with self._translated():
            self._requests.write(msgspec.json.encode(outcome) + b"\n")
            self._requests.flush()

    def finish(self, summary: Summary) -> None:
        """Write the summaries."""
        with self._translated():
            text = msgspec.json.format(msgspec.json.encode(summary), indent=2)
            (self._directory / FILES[1]).write_bytes(text + b"\n")
            with (self._directory / FILES[2]).open("w", newline="") as file:
                flat = flatten(summary)
                csv.writer(file).writerows([flat.keys(), flat.values()])

    def _clear(self, force: bool) -> None:
        former = [path for name in FILES if (path := self._directory / name).exists()]
        if former and not force:
            raise UsageError(
                f"--out {self._directory}: holds a former run ({former[0].name})",
                hint="name another directory, or replace that run with --force",
            )
        for path in former:
            path.unlink()

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            where = error.filename or self._directory
            raise DlbctlError(f"--out: cannot write {where}: {error.strerror}", hint="is the disk full?") from error
