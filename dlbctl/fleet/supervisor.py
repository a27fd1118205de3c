"""Brings a fleet up in order, watches it, and brings it down: engines, leaves, the delay relay, roots."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dlbctl
from dlbctl.fleet.child import Child, describe
from dlbctl.fleet.generated import leaf_tables, relay_tables, root_tables, write_toml
from dlbctl.fleet.run_folder import FleetRecord, LinkRecord, RegionRecord, RunFolder
from dlbctl.fleet.settings import FleetSettings, Region

# The dlbctl that runs this: not (-P) what a folder named so holds where the user stands, unless this one is from there.
_STANDS_IN_IT = Path.cwd() == Path(dlbctl.__file__).parents[1]
_MODULE = (sys.executable, "-m") if _STANDS_IN_IT else (sys.executable, "-P", "-m")
_DLBCTL = (*_MODULE, "dlbctl")
# A cold start of a dozen interpreters on two busy cores takes a while; a hung one has to be told apart from that.
START_TIMEOUT_S = 60.0
# Roots go first, while what they stream from still lives; both together leave Ctrl-C under ten seconds.
_ROOTS_END_S = 4.5
_OTHERS_END_S = 3.5


@dataclass(frozen=True, slots=True)
class Programs:
    """What to run for each role; arguments follow."""

    engine: tuple[str, ...] = (*_DLBCTL, "engine")
    leaf: tuple[str, ...] = (*_DLBCTL, "leaf")
    root: tuple[str, ...] = (*_DLBCTL, "root")
    relay: tuple[str, ...] = (*_MODULE, "dlbctl.fleet.delay_relay")


class Supervisor:
    """The processes of one fleet."""

    def __init__(
        self,
        settings: FleetSettings,
        folder: RunFolder,
        *,
        environment: dict[str, str],
        programs: Programs,
        start_timeout_s: float = START_TIMEOUT_S,
    ) -> None:
        """environment: what every process gets besides this one's. start_timeout_s: for each process."""
        self._settings = settings
        self._folder = folder
        self._environment = environment
        self._programs = programs
        self._start_timeout_s = start_timeout_s
        self._engines: dict[str, list[str]] = {}
        self._leaves: dict[str, str] = {}
        self._links: dict[tuple[str, str], str] = {}
        self._roots: dict[str, str] = {}
        self.children: list[Child] = []

    def __repr__(self) -> str:
        return f"Supervisor({len(self.children)} processes in {self._folder.path})"

    async def start(self) -> FleetRecord:
        """Start everything and wait until every root routes; StartError says which process did not come up."""
        regions = self._settings.region
        await _all(self._start_cell(region) for region in regions)
        if len(regions) > 1:
            await self._start_relay()
        await _all(self._start_root(region) for region in regions)
        record = self._record()
        self._folder.write_record(record)
        return record

    async def end(self, hurry: asyncio.Event) -> None:
        """End every process: politely, and by force when that takes too long or `hurry` is set."""
        roots = [child for child in self.children if child.name.endswith("-root")]
        for some, patience_s in ((roots, _ROOTS_END_S), (self.children, _OTHERS_END_S)):
            for child in some:
                child.terminate()
            await _ended(some, patience_s, hurry)
        for child in self.children:
            child.kill()
        await asyncio.gather(*(child.wait() for child in self.children))

    async def _start_cell(self, region: Region) -> None:
        self._engines[region.name] = await self._start_engines(region)
        name = f"{region.name}-leaf"
        tables = leaf_tables(self._settings, region, self._engines[region.name], self._admin(name))
        self._leaves[region.name] = (await self._start_router(name, self._programs.leaf, tables, "peers"))[1]

    async def _start_engines(self, region: Region) -> list[str]:
        options: dict[str, Any] = {
            "--profile": region.profile,
            "--count": region.engines,
            "--port": 0,
            "--model": self._settings.model,
            "--time-factor": self._settings.time_factor_of(region),
            "--stream-interval": self._settings.stream_interval,
        }
        if region.slowdown is not None:
            options["--slowdown"] = region.slowdown
        words = [str(word) for option in options.items() for word in option]
        child = await self._spawn(f"{region.name}-engine", (*self._programs.engine, *words))
        lines = await child.announced(lambda lines: len(_urls(lines)) == region.engines, self._start_timeout_s)
        return _urls(lines)

    async def _start_relay(self) -> None:
        config = self._folder.config("relay")
        write_toml(config, relay_tables(self._settings, self._leaves))
        control = self._folder.socket("relay")
        words = ("--config", str(config), "--control", str(control))
        child = await self._spawn("relay", (*self._programs.relay, *words))
        lines = await child.announced(lambda lines: _has(lines, "control"), self._start_timeout_s)
        links = [line.split() for line in lines if line.startswith("link ")]
        self._links = {(source, destination): url for _, source, destination, url in links}

    async def _start_root(self, region: Region) -> None:
        name = f"{region.name}-root"
        tables = root_tables(self._settings, region, self._leaves_from(region.name), self._admin(name))
        child, url = await self._start_router(name, self._programs.root, tables, "listening")
        self._roots[region.name] = url
        await self._routable(child, url)

    async def _start_router(
        self, name: str, program: tuple[str, ...], tables: dict[str, Any], listener: str
    ) -> tuple[Child, str]:
        """Start a leaf or root; return it and the URL of one of its listeners."""
        config = self._folder.config(name)
        write_toml(config, tables)
        child = await self._spawn(name, (*program, "--config", str(config)))
        lines = await child.announced(lambda lines: _has(lines, listener), self._start_timeout_s)
        return child, next(line.split()[1] for line in lines if line.startswith(f"{listener} "))

    async def _spawn(self, name: str, command: tuple[str, ...]) -> Child:
        child = await Child.start(name, command, self._folder.log(name), self._environment)
        self.children.append(child)
        return child

    async def _routable(self, child: Child, url: str) -> None:
        """Wait until a root says that it can route."""
        import httpx

        last = "no answer"
        try:
            async with asyncio.timeout(self._start_timeout_s), httpx.AsyncClient(trust_env=False) as client:
                while True:
                    try:
                        answer = await client.get(f"{url}/readyz")
                    except httpx.HTTPError as error:
                        last = f"{type(error).__name__} {error}"
                    else:
                        if answer.status_code == 200:
                            return
                        last = f"{answer.status_code} {answer.text[:200].strip()}"
                    if child.exit_code is not None:
                        raise child.failure(f"ended with {describe(child.exit_code)} before it could route")
                    await asyncio.sleep(0.05)
        except TimeoutError:
            what = f"could not route within {self._start_timeout_s:g} s; /readyz says: {last}"
            raise child.failure(what) from None

    def _leaves_from(self, source: str) -> dict[str, str]:
        """Return each cell's leaf URL as a root in `source` reaches it: its own directly, others over the WAN."""
        return {cell: self._links.get((source, cell), leaf) for cell, leaf in self._leaves.items()}

    def _admin(self, name: str) -> str:
        return f"unix:{self._folder.socket(name)}"

    def _record(self) -> FleetRecord:
        return FleetRecord(
            pid=os.getpid(),
            directory=str(self._folder.path),
            model=self._settings.model,
            relay_control=str(self._folder.socket("relay")) if self._links else "",
            regions=tuple(self._region_record(region) for region in self._settings.region),
            links=tuple(self._link_record(*pair) for pair in self._links),
            pids={child.name: child.pid for child in self.children},
        )

    def _region_record(self, region: Region) -> RegionRecord:
        return RegionRecord(
            name=region.name,
            url=self._roots[region.name],
            demand=region.demand,
            root_admin=self._admin(f"{region.name}-root"),
            leaf=self._leaves[region.name],
            leaf_admin=self._admin(f"{region.name}-leaf"),
            engines=tuple(self._engines[region.name]),
        )

    def _link_record(self, source: str, destination: str) -> LinkRecord:
        return LinkRecord(
            source=source,
            destination=destination,
            url=self._links[source, destination],
            delay_ms=self._settings.one_way_ms(source, destination) or 0.0,
        )


async def _all(steps: Iterable[Any]) -> None:
    """Take all steps at once; the first failure stops the others and is raised as it is."""
    try:
        async with asyncio.TaskGroup() as group:
            for step in steps:
                group.create_task(step)
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None


async def _ended(children: list[Child], patience_s: float, hurry: asyncio.Event) -> None:
    """Wait until all have ended, or for as long as patience lasts."""

    async def all_ends() -> None:
        await asyncio.gather(*(child.wait() for child in children))

    async def in_a_hurry() -> None:
        await hurry.wait()

    waits = {asyncio.create_task(all_ends()), asyncio.create_task(in_a_hurry())}
    await asyncio.wait(waits, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()
    await asyncio.gather(*waits, return_exceptions=True)


def _urls(lines: list[str]) -> list[str]:
    return [line for line in lines if line.startswith("http://")]


def _has(lines: list[str], word: str) -> bool:
    return any(line.startswith(f"{word} ") for line in lines)
