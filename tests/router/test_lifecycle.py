"""A router process from its first line to its exit code: readiness, drain, signals, what stands in its way."""

from __future__ import annotations

import asyncio
import re
import signal
import socket
from pathlib import Path

import pytest

from .live import on_loop
from .process import engine, launch, leaf_file, running
from .scripted import Connection, answering, chunk, serving, sized
from .wire import Client, chat, get

STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
EVENT = b"data: {}\n\n"


class Streaming:
    """Streams to the first request until told to end; answers others at once."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.first = True

    async def serve(self, connection: Connection) -> None:
        await connection.hear()
        if not self.first:
            await connection.send(sized(b"{}"))
            return
        self.first = False
        await connection.send(STREAM_HEAD + chunk(EVENT))
        await self.gate.wait()
        await connection.send(chunk(EVENT) + b"0\r\n\r\n")


async def streaming_client(port: int) -> Client:
    """A client whose answer has begun."""
    client = await Client.connect(port)
    await client.send(chat())
    await client.reader.readuntil(EVENT + b"\r\n")
    return client


def names_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


@on_loop
async def test_sigterm_lets_streams_finish(tmp_path: Path) -> None:
    """Case 42: unready at once, still serving for the grace; then closed to newcomers; then out, code 0."""
    streaming = Streaming()
    async with serving(engine(streaming.serve)) as made:
        config = leaf_file(tmp_path, made.url, readiness_grace_s=0.7)
        async with running("leaf", config, 2) as leaf:
            await leaf.ready()
            client = await streaming_client(leaf.ports["listening"])
            idle = await Client.connect(leaf.ports["listening"])
            leaf.signal(signal.SIGTERM)
            assert (await leaf.ready(503)).body == b"draining\n"
            assert (await leaf.ask(get("/livez"))).status == 200
            assert (await leaf.ask(chat())).status == 200
            await leaf.refuses()
            assert await idle.closed()
            streaming.gate.set()
            assert await client.rest() == chunk(EVENT) + b"0\r\n\r\n"
            code, errors = await leaf.ended()
            assert (code, "Traceback" in errors) == (0, False), errors
            client.abort()
            idle.abort()


@on_loop
async def test_what_is_left_at_the_drain_deadline_is_cut(tmp_path: Path) -> None:
    async with serving(engine(Streaming().serve)) as made:
        config = leaf_file(tmp_path, made.url, readiness_grace_s=0.0, drain_s=0.3)
        async with running("leaf", config, 2) as leaf:
            await leaf.ready()
            client = await streaming_client(leaf.ports["listening"])
            leaf.signal(signal.SIGTERM)
            with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
                await client.reader.readuntil(b"0\r\n\r\n")
            code, errors = await leaf.ended()
            assert (code, "1 connections cut" in errors) == (0, True), errors
            client.abort()


@pytest.mark.parametrize("numbers", [(signal.SIGTERM, signal.SIGTERM), (signal.SIGTERM, signal.SIGINT)])
@on_loop
async def test_a_second_signal_means_now(tmp_path: Path, numbers: tuple[signal.Signals, ...]) -> None:
    """In the grace as in the drain: neither is waited for any longer."""
    async with serving(engine(Streaming().serve)) as made:
        config = leaf_file(tmp_path, made.url, readiness_grace_s=60.0, drain_s=60.0)
        async with running("leaf", config, 2) as leaf:
            await leaf.ready()
            client = await streaming_client(leaf.ports["listening"])
            leaf.signal(numbers[0])
            await leaf.ready(503)
            leaf.signal(numbers[1])
            async with asyncio.timeout(5):
                code, errors = await leaf.ended()
            assert (code, "Traceback" in errors) == (0, False), errors
            waited = re.search(r"1 connections cut after (\S+) s", errors)
            assert waited is not None
            assert float(waited[1]) < 5, "not the 60 s that it could have had"
            client.abort()


@on_loop
async def test_sigint_does_not_wait_for_balancers_in_front(tmp_path: Path) -> None:
    async with serving(engine(answering(sized(b"{}")))) as made:
        config = leaf_file(tmp_path, made.url, readiness_grace_s=60.0, drain_s=60.0)
        async with running("leaf", config, 2) as leaf:
            await leaf.ready()
            idle = await Client.connect(leaf.ports["listening"])
            leaf.signal(signal.SIGINT)
            async with asyncio.timeout(5):
                code, errors = await leaf.ended()
            assert (code, errors) == (0, "")
            assert await idle.closed()
            idle.abort()


@pytest.mark.parametrize("key", ["listen", "peer_listen", "admin"])
@on_loop
async def test_a_port_in_use_is_one_clear_line_that_names_file_and_key(tmp_path: Path, key: str) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        taken = f"127.0.0.1:{held.getsockname()[1]}"
        process = await launch("leaf", leaf_file(tmp_path, "http://127.0.0.1:1", **{key: taken}))
        out, errors = await process.communicate()
    assert process.returncode == 1
    assert out == b""
    first, hint = errors.decode().splitlines()
    assert first.startswith(f"dlbctl: error: {tmp_path}/leaf.toml: leaf.{key}: cannot listen on {taken}: ")
    assert "in use" in first
    assert hint.strip()
    assert names_in(tmp_path) == ["leaf.toml"], "no socket is left behind"


@on_loop
async def test_two_listeners_on_one_address_are_noticed(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    process = await launch("leaf", leaf_file(tmp_path, "http://127.0.0.1:1", listen=address, peer_listen=address))
    out, errors = await process.communicate()
    assert (process.returncode, out) == (1, b"")
    assert f"leaf.peer_listen: cannot listen on {address}" in errors.decode().splitlines()[0]


@on_loop
async def test_a_bad_configuration_is_code_3_with_its_place_and_the_nearest_key(tmp_path: Path) -> None:
    path = leaf_file(tmp_path, "http://127.0.0.1:1", readyness_grace_s=1.0)
    process = await launch("leaf", path)
    out, errors = await process.communicate()
    assert (process.returncode, out) == (3, b"")
    assert f"{path}: unknown key leaf.readyness_grace_s" in errors.decode()
    assert "did you mean readiness_grace_s?" in errors.decode()


@on_loop
async def test_no_configuration_says_where_it_was_looked_for(tmp_path: Path) -> None:
    process = await launch("root", tmp_path / "none.toml")
    _, errors = await process.communicate()
    assert process.returncode == 3
    assert f"{tmp_path}/none.toml: cannot be read" in errors.decode()
