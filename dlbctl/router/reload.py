"""Reading the configuration again while the router runs: the whole of it takes effect, or nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Generic

from dlbctl.core.errors import ConfigError
from dlbctl.router.config import File, load, read_token
from dlbctl.router.differences import differences

if TYPE_CHECKING:
    from dlbctl.router.notify import Notifier


@dataclass(frozen=True, slots=True)
class Source(Generic[File]):
    """Where a router's configuration comes from."""

    path: Path
    kind: type[File]
    environment: Mapping[str, str]

    def read(self) -> tuple[File, bytes]:
        """The file and its peer token, checked whole. ConfigError says where and what to do."""
        file = load(self.path, self.kind, self.environment)
        return file, read_token(file.section)


class Reload(Generic[File]):
    """Brings a running router up to date with its file. apply: takes a file and a token over, at once and whole."""

    def __init__(
        self,
        source: Source[File],
        current: tuple[File, bytes],
        apply: Callable[[File, bytes], None],
        notifier: Notifier,
    ) -> None:
        self._source: Source[File] = source
        self._current: tuple[File, bytes] = current
        self._apply: Callable[[File, bytes], None] = apply
        self._notifier = notifier
        self._one_at_a_time = asyncio.Lock()

    def __repr__(self) -> str:
        return f"<Reload {self._source.path}>"

    async def __call__(self) -> dict[str, str]:
        """Read the file and take it over; what has changed, by key. ConfigError says why nothing has."""
        async with self._one_at_a_time:
            self._notifier.reloading()
            status = "the file was refused when it was last read again; the configuration before it serves on"
            try:
                changed = await self._take_over()
                status = ""
                return changed
            finally:
                self._notifier.ready(status)

    async def _take_over(self) -> dict[str, str]:
        file, token = await asyncio.to_thread(self._source.read)  # a long file must not hold up streams
        current, current_token = self._current
        changed = differences(current, file)
        if token != current_token:
            changed.setdefault(f"{file.role}.peer_token_file", "holds another token")
        fixed = {f"{file.role}.{key}" for key in file.section.FIXED} | {"access_log.path"}
        if lasting := sorted(changed.keys() & fixed):
            raise ConfigError(
                f"{self._source.path}: {', '.join(lasting)}: cannot change in a running process; nothing was changed",
                hint="restart it to change that, or put back what the file said",
            )
        self._apply(file, token)
        self._current = (file, token)
        return changed
