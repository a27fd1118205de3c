"""The network latency balancer in real processes: a root, two leaves, and the process that solves for the root."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import uvloop

from dlbctl.core.events import Arrived, PolicySet, Solved
from dlbctl.core.offline import Entry, Forwarded, Header, replay
from dlbctl.core.settings import TierSettings
from dlbctl.core.sources import TOLD_AFTER_S

from .live import client_of, leaf, on_loop, root, server, until
from .process import Running, leaf_file, running
from .scripted import ScriptedServer, answering, serving, sized
from .test_admin import api
from .test_peers import cell, probing
from .wire import Client, post

ASK = b'{"model":"m"}'
LINE = msgspec.json.Decoder(Header | Entry)
# Its own first plan comes after some seconds of requests.
LIMIT_S = 60.0

needs_proc = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks for processes in /proc")


# -- what a root and its leaves tell each other ------------------------------------------------------------


@on_loop
async def test_a_leaf_learns_where_its_roots_are_and_what_comes_from_there() -> None:
    async with (
        serving(answering(sized(b"{}"))) as engine,
        leaf([server("s", engine.port)]) as behind,
        probing([cell("c1", behind.peer_port)]) as live,
        client_of(live) as client,
    ):
        await until(live.tier.routable)
        assert (await client.ask(post(ASK))).status == 200
        clock = behind.router.clock
        await until(lambda: "here" in behind.tier.report(clock()).sources, "a ping told it")
        assert 0.0 < behind.tier.report(clock()).sources["here"] < 0.1
        assert list(behind.tier.report(clock() + TOLD_AFTER_S).endpoints["m"].arrivals) == ["here"]
        candidate = live.tier.endpoints["m"].candidates["c1"]
        await until(lambda: "here" in candidate.sources, "the root hears of it")


@on_loop
async def test_a_cell_in_the_roots_own_process_counts_what_comes_from_it() -> None:
    async with serving(answering(sized(b"{}"))) as engine:
        inside = TierSettings("leaf", "c1", (server("s", engine.port),), seed=1)
        async with root([], local=[inside]) as live, client_of(live) as client:
            assert (await client.ask(post(ASK))).status == 200
            (tier,) = live.router.local.values()
            assert list(tier.report(live.router.clock() + TOLD_AFTER_S).endpoints["m"].arrivals) == ["here"]


@on_loop
async def test_pings_that_tell_nothing_sensible_are_answered_all_the_same() -> None:
    async with leaf([]) as live:
        client = await Client.connect(live.peer_port)
        for lines in (b"", b"dlb-rtt-us: 5\r\n", b"dlb-source: x\r\ndlb-rtt-us: %b\r\n" % (b"9" * 5000)):
            ping = b"GET /dlb/v1/ping HTTP/1.1\r\nhost: leaf\r\n%b\r\n" % lines
            assert (await client.ask(ping)).status == 200
        client.abort()
        assert live.tier.report(live.router.clock()).sources == {"x": 0.0}


# -- the whole of it ---------------------------------------------------------------------------------------


def root_file(folder: Path, policy: str, **leaves: int) -> Path:
    cells = "".join(
        f'[[cell]]\nname = "{name}"\nleaves = ["http://127.0.0.1:{port}"]\ncapacity_rps = {capacity}\n'
        for (name, port), capacity in zip(leaves.items(), (10.0, 1000.0), strict=True)
    )
    path = folder / "root.toml"
    path.write_text(
        f'[root]\ncell = "here"\nlisten = "127.0.0.1:0"\nadmin = "unix:{folder}/root.sock"\nseed = 1\n'
        f'event_log = "{folder}/events"\n[[endpoint]]\nname = "m"\npolicy = "{policy}"\n{cells}'
    )
    return path


@contextlib.asynccontextmanager
async def fleet(folder: Path, policy: str) -> AsyncIterator[Running]:
    """A root and the leaves of a small and a large cell, as processes; the servers are this process's."""
    async with contextlib.AsyncExitStack() as stack:
        ports = {}
        for name in ("small", "large"):
            engine: ScriptedServer = await stack.enter_async_context(serving(answering(sized(b"{}"))))
            (folder / name).mkdir()
            config = leaf_file(folder / name, engine.url, cell=name)
            ports[name] = (await stack.enter_async_context(running("leaf", config, 2))).ports["peers"]
        process = await stack.enter_async_context(running("root", root_file(folder, policy, **ports), 1))
        await process.ready()
        yield process


class Load:
    """A client that asks without pause, one request after the other. answers: how many, by status."""

    def __init__(self, port: int) -> None:
        self.answers: Counter[int] = Counter()
        self._port = port

    @contextlib.asynccontextmanager
    async def runs(self) -> AsyncIterator[Load]:
        task = asyncio.create_task(self._run())
        try:
            yield self
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _run(self) -> None:
        client = await Client.connect(self._port)
        try:
            while True:
                self.answers[(await client.ask(post(ASK))).status] += 1
                await asyncio.sleep(0.01)
        finally:
            client.abort()


def entries(folder: Path) -> list[Entry]:
    lines = (folder / "events").read_bytes().splitlines(keepends=True)
    decoded = [LINE.decode(line) for line in lines if line.endswith(b"\n")]
    return [line for line in decoded if isinstance(line, Entry)]


async def plans(folder: Path, count: int) -> list[Solved]:
    """Wait until the root has had so many."""
    while len(found := [e.event for e in entries(folder) if isinstance(e.event, Solved)]) < count:
        await asyncio.sleep(0.2)
    return found


async def planned_anew(folder: Path) -> None:
    """Have the root plan again, at once: its policy begins anew, and it knows by now what it is asked for."""
    async with api(folder / "root.sock") as asked:
        for policy in ("weighted-random", "mnlb"):
            assert (await asked.switch("m", policy=policy))[0] == 200
    await plans(folder, 2)


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def lives(pid: int) -> bool:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def has_scipy(pid: int) -> bool:
    return "/scipy/optimize/" in Path(f"/proc/{pid}/maps").read_text()


@needs_proc
def test_a_root_has_plans_goes_by_them_and_survives_its_solver_which_does_not_survive_it(tmp_path: Path) -> None:
    async def run() -> None:
        async with fleet(tmp_path, "mnlb") as process, Load(process.ports["listening"]).runs() as load:
            (plan,) = await plans(tmp_path, 1)
            (solver,) = children(process.process.pid)
            os.kill(solver, signal.SIGKILL)
            before = load.answers[200]
            await until(lambda: load.answers[200] > before + 100, "requests are served without a solver")
            await planned_anew(tmp_path)
            (second,) = children(process.process.pid)
            assert second != solver
            assert not has_scipy(process.process.pid)
            assert has_scipy(second)
            process.signal(signal.SIGKILL)
            await until(lambda: not lives(second), "the solver has ended with its root")
            assert set(load.answers) == {200}
        assert plan.solution.cells == ("large", "small")
        assert plan.solution.sources == ("here",)
        assert_followed(entries(tmp_path))

    async def limited() -> None:
        async with asyncio.timeout(LIMIT_S):
            await run()

    uvloop.run(limited())
    lines = (tmp_path / "events").read_bytes().splitlines(keepends=True)
    assert replay(lines).same


def assert_followed(log: list[Entry]) -> None:
    """Between the first plan and the switch, requests went by the plan: to five standard deviations."""
    after = itertools.dropwhile(lambda entry: not isinstance(entry.event, Solved), log)
    first = next(after).event
    assert isinstance(first, Solved)
    (row,) = first.solution.shares
    until_next = itertools.takewhile(lambda entry: not isinstance(entry.event, PolicySet), after)
    sent = [entry.action for entry in until_next if isinstance(entry.event, Arrived)]
    assert all(isinstance(action, Forwarded) and action.rule == "planned" for action in sent)
    counts = Counter(action.address for action in sent if isinstance(action, Forwarded))
    shares = sorted(count / len(sent) for count in counts.values())
    wanted = sorted(share for share in row if share > 1e-9)
    assert len(sent) > 100
    assert shares == pytest.approx(wanted, abs=5 * 0.5 / len(sent) ** 0.5)


@needs_proc
def test_a_router_whose_policies_need_no_solver_has_none(tmp_path: Path) -> None:
    """Neither the process nor scipy in its own."""

    async def run() -> None:
        async with fleet(tmp_path, "discrete/latency") as process, Load(process.ports["listening"]).runs() as load:
            await until(lambda: load.answers[200] > 100)
            assert children(process.process.pid) == []
            assert not has_scipy(process.process.pid)

    on_loop(run)()
