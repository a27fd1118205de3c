"""Every process of a site restarted in turn under load, as an operator would: no request fails.

One cell, two leaves, two engines, a root whose sockets the test holds as a supervisor does. Clients of three kinds
never pause: streams, JSON on connections that are kept, JSON on connections of their own.
"""

from __future__ import annotations

import asyncio
import json
import signal
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import uvloop

from tests.router.process import Named
from tests.router.process import Running as Router
from tests.router.process import running as router
from tests.router.wire import Answer, Client, post

from .commands import Running as Engine
from .commands import dlbctl
from .commands import running as engine

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

MODEL = "m"
CLIENTS_OF_A_KIND = 3
BETWEEN = 15  # requests of each kind that go well after every restart
LEAF = """
[leaf]
cell = "eu"
peer_listen = "127.0.0.1:{port}"
admin = "unix:{folder}/{name}.sock"
readiness_grace_s = 0.0
[health]
interval_s = 0.5
slow_start_s = 1.0
"""
ROOT = """
[root]
listen = "127.0.0.1:0"
admin = "unix:{folder}/root.sock"
readiness_grace_s = 2.0
[[cell]]
name = "eu"
leaves = {leaves}
"""


@dataclass
class Failed:
    """A request that did not go well. server: that had it, as far as the client was told. began_s: when it was sent."""

    kind: str
    why: str
    server: str
    began_s: float


@dataclass
class Load:
    """Clients that ask a root until they are told to stop. well: requests that went well, by kind."""

    port: int
    well: dict[str, int] = field(default_factory=lambda: {"stream": 0, "kept": 0, "fresh": 0})
    failed: list[Failed] = field(default_factory=list)
    over: bool = False

    async def stream(self) -> None:
        while not self.over:
            await self._with_a_client("stream", self._one_stream)

    async def fresh(self) -> None:
        while not self.over:
            await self._with_a_client("fresh", lambda client: self._one("fresh", client))

    async def kept(self) -> None:
        while not self.over:
            await self._with_a_client("kept", self._while_it_is_kept)

    async def _while_it_is_kept(self, client: Client) -> None:
        while not self.over:
            answer = await self._one("kept", client)
            if answer is None or answer.get(b"connection") == b"close":
                return

    async def _with_a_client(self, kind: str, act: Callable[[Client], Any]) -> None:
        began_s = now_s()
        try:
            client = await Client.connect(self.port)
        except OSError as error:
            self.failed.append(Failed(kind, f"not connected: {error}", "", began_s))
            return
        await act(client)
        client.abort()

    async def _one(self, kind: str, client: Client) -> Answer | None:
        began_s = now_s()
        try:
            answer = await client.ask(request(stream=False))
        except (asyncio.IncompleteReadError, OSError) as error:
            self.failed.append(Failed(kind, repr(error), "", began_s))
            return None
        self._note(kind, began_s, answer)
        return answer

    async def _one_stream(self, client: Client) -> None:
        began_s = now_s()
        server = ""
        try:
            await client.send(request(stream=True))
            answer = await client.head()
            server = (answer.get(b"x-dlb-server") or b"").decode()
            if answer.status == 200:
                answer.body, answer.whole = await client.chunks()
                answer.whole &= answer.body.endswith(b"data: [DONE]\n\n")
        except (asyncio.IncompleteReadError, OSError) as error:
            self.failed.append(Failed("stream", repr(error), server, began_s))
            return
        self._note("stream", began_s, answer)

    def _note(self, kind: str, began_s: float, answer: Answer) -> None:
        if answer.status == 200 and answer.whole:
            self.well[kind] += 1
        else:
            why = f"{answer.status} {answer.body[-200:]!r} {'whole' if answer.whole else 'cut'}"
            self.failed.append(Failed(kind, why, (answer.get(b"x-dlb-server") or b"").decode(), began_s))

    async def more(self) -> None:
        """Wait until many more have gone well."""
        before = dict(self.well)
        while any(self.well[kind] < before[kind] + BETWEEN for kind in before):
            await asyncio.sleep(0.02)


def now_s() -> float:
    return asyncio.get_running_loop().time()


def request(*, stream: bool) -> bytes:
    said = [{"role": "user", "content": "Tell"}]
    length = 60 if stream else 4
    body = {"model": MODEL, "messages": said, "stream": stream, "max_tokens": length, "ignore_eos": True}
    return post(json.dumps(body).encode())


@asynccontextmanager
async def load(port: int) -> AsyncIterator[Load]:
    made = Load(port)
    kinds = (made.stream, made.kept, made.fresh)
    tasks = [asyncio.ensure_future(kind()) for kind in kinds for _ in range(CLIENTS_OF_A_KIND)]
    try:
        yield made
    finally:
        made.over = True
        await asyncio.gather(*tasks)


class Site:
    """The processes, and the ways to restart each. urls: of engines; leaves: of leaves, for their root."""

    def __init__(self, folder: Path, stack: ExitStack, routers: AsyncExitStack) -> None:
        self._folder = folder
        self._stack = stack
        self._routers = routers
        self._engines = [self._engine(0) for _ in range(2)]
        self.urls = ["http:" + made.line("http:") for made in self._engines]
        self._leaves: list[Router] = []
        self.leaves: list[str] = []
        self._sockets: Named = [("listen", self._listening())]
        self._root: Router | None = None

    @property
    def port(self) -> int:
        """Of the root's clients."""
        port: int = self._sockets[0][1].getsockname()[1]
        return port

    @property
    def leaf_admins(self) -> str:
        return f"unix:{self._folder}/leaf0.sock,unix:{self._folder}/leaf1.sock"

    @property
    def root_admin(self) -> str:
        return f"unix:{self._folder}/root.sock"

    async def start(self) -> None:
        """Start leaves and root."""
        for number in range(2):
            self._leaves.append(await self._leaf(number, 0))
            self.leaves.append(f"http://127.0.0.1:{self._leaves[number].ports['peers']}")
        (self._folder / "root.toml").write_text(ROOT.format(folder=self._folder, leaves=self.leaves))
        self._root = await self._new_root()
        await self._root.ready()
        await self._until_up()

    async def restart_engine(self, number: int) -> None:
        """Drain it at every leaf, end it, start another on its port, and put it back once it answers."""
        url = self.urls[number]
        await run("drain", url, "--wait", "--admin", self.leaf_admins)
        self._engines[number].end()
        self._engines[number] = self._engine(port_of(url))
        self._engines[number].line("http:")
        await run("undrain", url, "--admin", self.leaf_admins)
        await self._until_up()

    async def restart_leaf(self, number: int) -> None:
        """Drain it at the root, end it, start another on its port, and put it back."""
        url = self.leaves[number]
        await run("drain", url, "--wait", "--admin", self.root_admin)
        self._leaves[number].signal(signal.SIGTERM)
        code, errors = await self._leaves[number].ended()
        assert code == 0, errors
        self._leaves[number] = await self._leaf(number, port_of(url))
        await run("undrain", url, "--admin", self.root_admin)
        await self._until_up()

    async def replace_root(self) -> None:
        """Start its successor on the sockets that are held for both, and then end it."""
        old = self._root
        assert old is not None
        # The admin socket is not among those held, so there is one beside it for as long as both run.
        self._root = await self._new_root(admin=f"unix:{self._folder}/next.sock")
        old.signal(signal.SIGTERM)
        code, errors = await old.ended()
        assert code == 0, errors

    def kill_engine(self, number: int) -> str:
        """Its name, as clients are told it."""
        self._engines[number].end(signal.SIGKILL)
        return self.urls[number].removeprefix("http://")

    async def _until_up(self) -> None:
        """Every leaf sends to both engines, and the root to both leaves."""
        while True:
            rows = json.loads((await run("inspect", "servers", "--json", "--admin", self.root_admin)).strip())
            if [row["state"] in {"up", "slow start"} for row in rows] == [True] * 4:
                return
            await asyncio.sleep(0.1)

    def _engine(self, port: int) -> Engine:
        words = ("engine", "--profile", "laptop", "--time-factor", 10, "--model", MODEL, "--port", port)
        return self._stack.enter_context(engine(*words))

    async def _leaf(self, number: int, port: int) -> Router:
        text = LEAF.format(folder=self._folder, name=f"leaf{number}", port=port)
        path = self._folder / f"leaf{number}.toml"
        path.write_text(text + "".join(f'[[server]]\nurl = "{url}"\n' for url in self.urls))
        return await self._routers.enter_async_context(router("leaf", path, 1))

    async def _new_root(self, admin: str = "") -> Router:
        environment = {"DLBCTL_ROOT__ADMIN": admin} if admin else {}
        made = router("root", self._folder / "root.toml", 1, sockets=self._sockets, environment=environment)
        return await self._routers.enter_async_context(made)

    def _listening(self) -> socket.socket:
        sock = self._stack.enter_context(socket.socket())
        sock.bind(("127.0.0.1", 0))
        sock.listen(128)
        return sock


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


async def run(*words: object) -> str:
    """A command that has to go well; its output."""
    code, out, err = await asyncio.to_thread(dlbctl, *words)
    assert code == 0, err
    return out


@asynccontextmanager
async def site(folder: Path) -> AsyncIterator[Site]:
    with ExitStack() as stack:
        async with AsyncExitStack() as routers:
            made = Site(folder, stack, routers)
            await made.start()
            yield made


async def restarted_in_turn(folder: Path) -> None:
    async with site(folder) as made, load(made.port) as running:
        await running.more()
        for restart in (made.restart_engine, made.restart_leaf):
            for number in range(2):
                await restart(number)
                await running.more()
                assert running.failed == [], (restart, number)
        await made.replace_root()
        await running.more()
        assert running.failed == []
    print(running.well)
    assert running.failed == []


def test_each_process_restarted_in_turn_costs_no_request(tmp_path: Path) -> None:
    uvloop.run(restarted_in_turn(tmp_path))


async def killed(folder: Path) -> None:
    async with site(folder) as made, load(made.port) as running:
        await running.more()
        assert running.failed == []
        name = made.kill_engine(0)
        killed_s = now_s()
        await running.more()
        await running.more()
    print(running.well, running.failed)
    assert running.well["stream"] > BETWEEN
    # What it had begun is lost, and not one request more: those that come later are sent elsewhere.
    assert len(running.failed) <= 3 * CLIENTS_OF_A_KIND
    for failed in running.failed:
        assert failed.began_s <= killed_s, failed
        assert failed.server in {name, ""}, failed


def test_an_engine_that_is_killed_takes_only_its_own_requests_with_it(tmp_path: Path) -> None:
    uvloop.run(killed(tmp_path))
