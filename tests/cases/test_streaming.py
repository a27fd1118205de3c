"""Cases 33 to 38, 41 and 42: streams arrive as they were sent, end as they ended, and never run for nobody."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dlbctl.core.settings import Timeouts
from tests.cases.scene import DONE, END, EVENT, OK, STREAM_HEAD, clients_of, held_stream
from tests.router.live import chain, client_of, leaf, on_loop, server, until
from tests.router.process import engine, leaf_file, running
from tests.router.scripted import Connection, Held, answering, chunk, chunked, serving, sized
from tests.router.site import both, site
from tests.router.wire import Client, chat, post


def said(text: str) -> bytes:
    """An event of a chat whose model wrote this."""
    return b"data: %b\n\n" % json.dumps({"choices": [{"delta": {"content": text}}]}).encode()


@both
@pytest.mark.parametrize("slice_bytes", [1, 7, 0])
@on_loop
async def test_case_33_events_survive_any_split_and_text_ends_nothing(shape: str, slice_bytes: int) -> None:
    """An event comes in pieces, and the model writes `data: [DONE]`: the bytes stay, the usage is found.

    aibrix#2266, smg!1878.
    """
    usage = b'data: {"choices":[],"usage":{"prompt_tokens":12,"completion_tokens":7}}\n\n'
    events = (said("data: [DONE]\n\n"), said("at the end"), usage, DONE)
    async with site(shape, answering(chunked(*events))) as made:
        made.relay.down.slice_bytes = slice_bytes
        learned = made.front.tier.endpoints["m"].output_tokens
        before = learned.value
        answer = await made.ask()
        assert (answer.body, answer.whole) == (b"".join(events), True)
        await made.settled()
        assert learned.value < before, "seven tokens were counted, where more are expected to begin with"


TOO_LONG = b'{"object":"error","message":"too long","code":400}'


@both
@pytest.mark.parametrize(
    ("answer", "length"),
    [
        (sized(TOO_LONG, status=b"422 Unprocessable Entity"), b"%d" % len(TOO_LONG)),
        (chunked(TOO_LONG, status=b"422 Unprocessable Entity"), None),
    ],
)
@on_loop
async def test_case_34_an_error_to_a_stream_keeps_status_body_and_framing(
    shape: str, answer: bytes, length: bytes | None
) -> None:
    """A server answers 4xx to `stream: true`: no event stream is made of it. sglang!27523."""
    async with site(shape, answering(answer)) as made:
        seen = await made.ask(post(b'{"model":"m","stream":true,"messages":[]}'))
        assert (seen.status, seen.body, seen.whole) == (422, TOO_LONG, True)
        assert seen.get(b"content-length") == length
        await made.settled()


@both
@on_loop
async def test_case_35_a_client_of_a_call_without_stream_cancels_it_by_leaving(shape: str) -> None:
    """Nobody waits for the JSON any more: the server is told at once and works on no longer. litellm#37140."""
    held = Held(b"", OK)
    async with site(shape, held.script) as made, client_of(made.front) as client:
        await client.send(post(b'{"model":"m","stream":false}'))
        await until(lambda: len(made.engine.heard) == 1)
        client.writer.close()
        await until(lambda: held.left == 1)
        await made.left()


@both
@pytest.mark.parametrize("how", ["close", "reset"])
@on_loop
async def test_case_36_a_target_that_dies_leaves_a_truncated_stream(shape: str, how: str) -> None:
    """A connection ends in mid-stream: the client sees no clean end. dynamo!12442, envoy#17186."""

    async def script(connection: Connection) -> None:
        await connection.hear()
        await connection.send(STREAM_HEAD + chunk(EVENT))
        await go.wait()
        if how == "reset":
            connection.reset()

    go = asyncio.Event()
    async with site(shape, script) as made, client_of(made.front) as client:
        await client.send(chat())
        await client.reader.readuntil(EVENT)
        go.set()
        assert not (await client.rest()).endswith(END)
        await made.left()


@on_loop
async def test_case_36_a_server_process_that_is_killed_leaves_a_truncated_stream() -> None:
    """The same with a process and SIGKILL: nothing is said in parting. dynamo!12442, envoy#17186."""
    words = (sys.executable, "-m", "dlbctl", "engine", "--model", "m", "--stream-interval", "8")
    process = await asyncio.create_subprocess_exec(*words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    try:
        port = int((await process.stdout.readline()).decode().strip().rpartition(":")[2])
        async with leaf([server("s", port)]) as live, client_of(live) as client:
            long = b'{"model":"m","prompt":"Tell","max_tokens":4000,"ignore_eos":true,"stream":true}'
            await client.send(post(long, "/v1/completions"))
            await client.reader.readuntil(b"data: {")
            os.kill(process.pid, signal.SIGKILL)
            rest = await client.rest()
            assert not rest.endswith(END)
            assert DONE not in rest
            await live.settled()
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


@on_loop
async def test_case_37_a_flowing_stream_has_no_total_limit_and_a_silent_one_ends() -> None:
    """Tokens flow for longer than every limit on silence: not cut; then they stop: reaped. envoy#30753."""
    idle_s = 0.25

    async def script(connection: Connection) -> None:
        await connection.hear()
        await connection.send(STREAM_HEAD)
        for _ in range(12):
            await connection.send(chunk(EVENT))
            await asyncio.sleep(idle_s / 5)
        await connection.left()

    limits = Timeouts(connect_s=idle_s, first_byte_s=idle_s, idle_s=idle_s)
    async with chain(script, timeouts=limits) as (engine, live, client):
        answer = await client.ask(chat())
        assert (answer.body, answer.whole) == (12 * EVENT, False)
        await until(lambda: engine.connections[0].gone)
        await live.settled()


MIB = 1024 * 1024


@on_loop
async def test_case_38_a_slow_reader_bounds_what_the_router_holds() -> None:
    """A client reads nothing of 64 MiB: the router takes little from the server and holds less. smg!2097."""
    size, taken = 64 * MIB, 0

    async def script(connection: Connection) -> None:
        nonlocal taken
        await connection.hear()
        await connection.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size)
        while taken < size:
            await connection.send(b"x" * 65536)
            taken += 65536

    async with chain(script) as (_, live, client):
        await client.send(chat())
        await client.head()
        (downstream,) = live.connections
        await until(lambda: downstream.paused)
        seen = -1
        while seen != taken:
            seen = taken
            await asyncio.sleep(0.1)
        assert taken < 24 * MIB, "the kernel's buffers on both sides, and no more"
        assert downstream.transport.get_write_buffer_size() < MIB
        assert len(await client.reader.readexactly(size)) == size
        await live.settled()


@on_loop
async def test_case_41_cancellations_leave_the_pool_usable() -> None:
    """Ten connections, twenty clients that leave at every moment for a while: the next succeeds. httpcore#1093."""

    async def script(connection: Connection) -> None:
        while True:
            await connection.hear()
            await asyncio.sleep(0.002)
            await connection.send(STREAM_HEAD + chunk(EVENT))
            await asyncio.sleep(0.002)
            await connection.send(chunk(DONE) + END)

    async def impatient(port: int, number: int) -> None:
        for turn in range(40):
            client = await Client.connect(port)
            await client.send(chat())
            await asyncio.sleep(0.001 * ((number + 3 * turn) % 11))
            client.abort()

    async with serving(script) as made, leaf([server("s", made.port, slots=10)]) as live:
        await asyncio.gather(*(impatient(live.port, number) for number in range(20)))
        await live.settled()
        async with clients_of(live, 10) as clients:
            answers = await asyncio.gather(*(client.ask(chat()) for client in clients))
        assert [(answer.status, answer.whole) for answer in answers] == [(200, True)] * 10
        await live.settled()
        assert len(live.router.pool(made.url).idle) >= 10


@on_loop
async def test_case_42_streams_outlive_sigterm_until_the_deadline(tmp_path: Path) -> None:
    """Of two streams one ends within the time to drain, the other is cut at its end. uvicorn#451."""
    held = held_stream()

    async def serve(connection: Connection) -> None:
        if connection.peeked is not None and b'"stuck"' in connection.peeked.body:
            await connection.hear()
            await connection.send(STREAM_HEAD + chunk(EVENT))
            await connection.left()
        else:
            await held.script(connection)

    async with serving(engine(serve)) as made:
        config = leaf_file(tmp_path, made.url, readiness_grace_s=0.0, drain_s=1.0)
        async with running("leaf", config, 2) as process:
            await process.ready()
            ends, stuck = [await Client.connect(process.ports["listening"]) for _ in range(2)]
            await ends.send(chat())
            await stuck.send(post(b'{"model":"m","user":"stuck"}'))
            for client in (ends, stuck):
                await client.reader.readuntil(EVENT)
            process.signal(signal.SIGTERM)
            await process.refuses()
            held.go.set()
            assert (await ends.rest()).endswith(chunk(DONE) + END)
            with contextlib.suppress(ConnectionResetError):
                assert not (await stuck.rest()).endswith(END)
            code, errors = await process.ended()
            assert code == 0
            assert "1 connections cut" in errors
            ends.abort()
            stuck.abort()
