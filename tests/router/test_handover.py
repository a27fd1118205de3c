"""Sockets that a supervisor holds: a new process takes the place of the old one and nobody is refused."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from .live import on_loop, until
from .process import Named, engine, launch, leaf_file, running
from .scripted import answering, chunk, serving, sized
from .test_admin import api
from .test_lifecycle import EVENT, Streaming, streaming_client
from .wire import Client, chat, get


@contextlib.contextmanager
def held(folder: Path, *, admin: bool = True) -> Iterator[Named]:
    """A leaf's listening sockets, as a supervisor holds them."""
    with contextlib.ExitStack() as stack:
        made = []
        for name in ("listen", "peer_listen"):
            sock = stack.enter_context(socket.socket())
            sock.bind(("127.0.0.1", 0))
            made.append((name, sock))
        if admin:
            sock = stack.enter_context(socket.socket(socket.AF_UNIX))
            sock.bind(str(folder / "leaf.sock"))
            made.append(("admin", sock))
        for _, sock in made:
            sock.listen(128)
        yield made


def boot_of(request_id: bytes | None) -> bytes:
    """Which run of a router made an id."""
    assert request_id is not None
    return request_id.rpartition(b"-")[0]


class Visitors:
    """Clients that connect, ask and leave, one after the other without a pause. boots: who answered them."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.boots: Counter[bytes] = Counter()
        self._over = False
        self._tasks = [asyncio.ensure_future(self._visit()) for _ in range(4)]

    async def _visit(self) -> None:
        while not self._over:
            client = await Client.connect(self.port)
            answer = await client.ask(chat())
            assert (answer.status, answer.whole) == (200, True)
            self.boots[boot_of(answer.get(b"x-request-id"))] += 1
            client.abort()

    async def more(self, count: int) -> set[bytes]:
        """Wait for some more answers; who gave them."""
        before = self.boots.copy()
        await until(lambda: self.failed() or (self.boots - before).total() >= count)
        return set(self.boots - before)

    def failed(self) -> bool:
        return any(task.done() for task in self._tasks)

    async def stop(self) -> None:
        """End with the answers that are due; an error that one of them met is raised."""
        self._over = True
        await asyncio.gather(*self._tasks)


async def unready(idle: Client) -> None:
    """Wait on a connection from before until /readyz says no; that is the last answer on it."""
    while (answer := await idle.ask(get("/readyz"))).status != 503:
        assert answer.get(b"connection") is None
    assert answer.get(b"connection") == b"close"


@on_loop
async def test_a_successor_takes_over_and_no_connection_is_refused(tmp_path: Path) -> None:
    """The grace is a minute and not waited for: nothing is refused while somebody holds the socket."""
    streaming = Streaming()
    async with serving(engine(streaming.serve)) as made:
        config = leaf_file(tmp_path, made.url, readiness_grace_s=60.0)
        with held(tmp_path) as sockets:
            async with running("leaf", config, 2, sockets=sockets) as old:
                await old.ready()
                port = old.ports["listening"]
                stream = await streaming_client(port)
                idle = await Client.connect(port)
                before = boot_of((await idle.ask(chat())).get(b"x-request-id"))
                visitors = Visitors(port)
                assert await visitors.more(20) == {before}
                async with running("leaf", config, 2, sockets=sockets) as new:
                    await until(lambda: len(visitors.boots) == 2 or visitors.failed())
                    (after,) = visitors.boots.keys() - {before}
                    old.signal(signal.SIGTERM)
                    await unready(idle)
                    await visitors.more(8)  # those that the old one had accepted by then
                    assert await visitors.more(200) == {after}
                    streaming.gate.set()
                    assert await stream.reader.readuntil(b"0\r\n\r\n") == chunk(EVENT) + b"0\r\n\r\n"
                    stream.abort()
                    idle.abort()
                    assert (await old.ended())[0] == 0
                    assert await visitors.more(50) == {after}
                    await visitors.stop()
                    async with api(tmp_path / "leaf.sock") as asked:
                        assert (await asked.get("info"))["boot"].encode() == after
                    new.signal(signal.SIGTERM)
                    assert (await new.ended())[0] == 0
                assert (tmp_path / "leaf.sock").exists(), "it is the supervisor's"


@on_loop
async def test_what_is_left_on_a_held_socket_is_cut_by_a_second_signal(tmp_path: Path) -> None:
    async with serving(engine(Streaming().serve)) as made:
        config = leaf_file(tmp_path, made.url, readiness_grace_s=60.0, drain_s=60.0)
        with held(tmp_path) as sockets:
            async with running("leaf", config, 2, sockets=sockets) as leaf:
                await leaf.ready()
                stream = await streaming_client(leaf.ports["listening"])
                idle = await Client.connect(leaf.ports["listening"])
                leaf.signal(signal.SIGTERM)
                await unready(idle)
                leaf.signal(signal.SIGTERM)
                code, errors = await leaf.ended()
                assert (code, "Traceback" in errors) == (0, False), errors
                stream.abort()
                idle.abort()


@on_loop
async def test_the_admin_socket_of_a_successor_outlives_the_one_before(tmp_path: Path) -> None:
    streaming = Streaming()
    async with serving(engine(streaming.serve)) as made:
        config = leaf_file(tmp_path, made.url, readiness_grace_s=0.0)
        with held(tmp_path, admin=False) as sockets:
            async with running("leaf", config, 2, sockets=sockets) as old:
                await old.ready()
                stream = await streaming_client(old.ports["listening"])
                old.signal(signal.SIGTERM)
                await until(lambda: not (tmp_path / "leaf.sock").exists())
                async with running("leaf", config, 2, sockets=sockets) as new:
                    await new.ready()
                    streaming.gate.set()
                    assert (await old.ended())[0] == 0
                    async with api(tmp_path / "leaf.sock") as asked:
                        assert (await asked.get("info"))["ready"]
                    new.signal(signal.SIGTERM)
                    assert (await new.ended())[0] == 0
                    assert not (tmp_path / "leaf.sock").exists()
                stream.abort()


@on_loop
async def test_a_socket_without_one_of_our_names_goes_by_its_address(tmp_path: Path) -> None:
    async with serving(engine(answering(sized(b"{}")))) as made:
        with held(tmp_path) as sockets:
            listen, peers, admin = (sock for _, sock in sockets)
            at = {"listen": f"127.0.0.1:{listen.getsockname()[1]}"}
            config = leaf_file(tmp_path, made.url, readiness_grace_s=0.0, **at)
            mixed = [("dlbctl-leaf.socket", admin), ("unknown", listen), ("peer_listen", peers)]
            async with running("leaf", config, 2, sockets=mixed) as leaf:
                assert leaf.ports == {"listening": listen.getsockname()[1], "peers": peers.getsockname()[1]}
                await leaf.ready()
                async with api(tmp_path / "leaf.sock") as asked:
                    assert (await asked.get("info"))["ready"]


@on_loop
async def test_sockets_meant_for_another_process_are_left_alone(tmp_path: Path) -> None:
    async with serving(engine(answering(sized(b"{}")))) as made:
        meant = {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "2", "LISTEN_FDNAMES": "listen:admin"}
        async with running("leaf", leaf_file(tmp_path, made.url), 2, environment=meant) as leaf:
            await leaf.ready()


async def refused(folder: Path, sockets: Named, **section: object) -> str:
    """What a leaf says that does not start with these sockets."""
    process = await launch("leaf", leaf_file(folder, "http://127.0.0.1:1", **section), sockets=sockets)
    out, errors = await process.communicate()
    assert (process.returncode, out) == (3, b"")
    assert "Traceback" not in errors.decode()
    return errors.decode()


@on_loop
async def test_a_socket_that_nobody_would_answer_is_an_error(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack, held(tmp_path, admin=False) as sockets:
        (_, first), (_, second) = sockets
        datagrams = stack.enter_context(socket.socket(type=socket.SOCK_DGRAM))
        bound = stack.enter_context(socket.socket())
        bound.bind(("127.0.0.1", 0))
        plain = stack.enter_context((tmp_path / "file").open("w"))

        said = await refused(tmp_path, [("metrics", first)])
        assert f"the inherited socket metrics at 127.0.0.1:{first.getsockname()[1]} fits no listener" in said
        assert "listen, peer_listen, metrics_listen, admin" in said
        said = await refused(tmp_path, [("listen", first), ("listen", second)])
        assert "2 inherited sockets are for listen" in said
        for other in (datagrams, bound, plain):
            said = await refused(tmp_path, [("listen", cast("socket.socket", other))])
            assert "descriptor 3 (listen) is not a listening stream socket" in said


@on_loop
async def test_a_socket_is_no_way_round_what_protects_a_listener(tmp_path: Path) -> None:
    with socket.socket() as everywhere:
        everywhere.bind(("0.0.0.0", 0))
        everywhere.listen()
        for name in ("peer_listen", "admin"):
            said = await refused(tmp_path, [(name, everywhere)])
            assert f"{name}: '0.0.0.0:{everywhere.getsockname()[1]}' is open to other machines" in said


# -- the service manager -------------------------------------------------------------------------------------


class Manager:
    """The other end of NOTIFY_SOCKET."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    async def told(self) -> dict[str, str]:
        """The next message, by variable."""
        said = await asyncio.get_running_loop().sock_recv(self._sock, 4096)
        return dict(line.split("=", 1) for line in said.decode().splitlines())


@pytest.mark.parametrize("abstract", [False, True])
@on_loop
async def test_the_service_manager_is_told_of_start_reload_and_stop(abstract: bool, tmp_path: Path) -> None:
    name = f"dlbctl-test-{os.getpid()}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(f"\0{name}" if abstract else name)
        sock.setblocking(False)
        manager = Manager(sock)
        config = leaf_file(tmp_path, "http://127.0.0.1:1", readiness_grace_s=0.0)
        where = {"NOTIFY_SOCKET": f"@{name}" if abstract else name}
        async with running("leaf", config, 2, environment=where) as leaf:
            assert await manager.told() == {"READY": "1", "STATUS": ""}
            for refused in (False, True):
                if refused:
                    config.write_text("nonsense")
                since_us = time.monotonic_ns() // 1000
                leaf.signal(signal.SIGHUP)
                began = await manager.told()
                assert began["RELOADING"] == "1"
                assert since_us <= int(began["MONOTONIC_USEC"]) <= time.monotonic_ns() // 1000
                ended = await manager.told()
                assert (ended["READY"], "refused" in ended["STATUS"]) == ("1", refused)
            leaf.signal(signal.SIGTERM)
            assert await manager.told() == {"STOPPING": "1"}
            assert (await leaf.ended())[0] == 0


@on_loop
async def test_a_service_manager_that_is_gone_is_no_reason_to_stop(tmp_path: Path) -> None:
    config = leaf_file(tmp_path, "http://127.0.0.1:1", readiness_grace_s=0.0)
    async with running("leaf", config, 2, environment={"NOTIFY_SOCKET": str(tmp_path / "gone")}) as leaf:
        assert (await leaf.ask(get("/livez"))).status == 200
        leaf.signal(signal.SIGTERM)
        code, errors = await leaf.ended()
        assert (code, "cannot be told READY=1" in errors) == (0, True)
