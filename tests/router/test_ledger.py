"""Every request is open once and ends once, on whatever path: with its code, how far it had come and where it was."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from dlbctl.core.settings import TargetSettings, TierSettings, Timeouts
from dlbctl.router.access_log import AccessLog
from dlbctl.router.limits import HttpLimits
from dlbctl.router.open_requests import RequestRow, open_requests
from dlbctl.router.reasons import REASONS

from .live import Live, chain, client_of, leaf, on_loop, root, server, until
from .scripted import Connection, Script, answering, chunk, chunked, full_backlog, once, refusing_port, serving, sized
from .test_admin import admin_of
from .test_retries import pair
from .test_time_limits import silent
from .test_upstream_faults import EVENT, STREAM_HEAD, close_at_once, closing_when_used_again, code_of, dying
from .test_waiting import ask, gated
from .wire import chat, get, post

PATIENT = Timeouts(connect_s=60.0)  # a machine with much to do must not end what is watched
QUICK = Timeouts(connect_s=0.2, first_byte_s=0.1, idle_s=0.1)
USAGE = b'{"usage":{"prompt_tokens":12,"completion_tokens":7,"prompt_tokens_details":{"cached_tokens":4}}}'
BEGUN = STREAM_HEAD + chunk(EVENT)


def endings(live: Live) -> dict[tuple[str, int, str], int]:
    """What was counted: endpoint, class of status, code."""
    tallies = live.router.ledger.tally.endpoints
    return {(name, *ending): n for name, tally in tallies.items() for ending, n in tally.endings.items()}


def rows(live: Live) -> list[RequestRow]:
    return open_requests(live.router.ledger, live.router.clock())


def named(identity: str, model: str = "m") -> bytes:
    return post(b'{"model":"%b"}' % model.encode(), extra=b"X-Request-Id: %b\r\n" % identity.encode("latin-1"))


async def holding(connection: Connection) -> None:
    """A server that begins to answer and goes on as long as the router does."""
    await connection.hear()
    await connection.send(BEGUN)
    await connection.left()


ENDINGS: list[tuple[Script, Timeouts, str, str, int]] = [
    (answering(sized(b"{}")), Timeouts(), "ok", "complete", 200),
    (answering(chunked(EVENT)), Timeouts(), "ok", "complete", 200),
    (once(b"HTTP/1.1 200 OK\r\n\r\n" + EVENT), Timeouts(), "ok", "complete", 200),
    (answering(sized(b"{}", status=b"404 Not Found")), Timeouts(), "upstream_4xx", "complete", 404),
    (answering(sized(b"{}", status=b"500 Oh")), Timeouts(), "upstream_5xx", "complete", 500),
    (close_at_once, Timeouts(), "upstream_closed", "waiting", 502),
    (dying(BEGUN), Timeouts(), "upstream_closed", "streaming", 200),
    (dying(STREAM_HEAD), Timeouts(), "upstream_closed", "waiting", 200),
    (once(b"nonsense\r\n\r\n"), Timeouts(), "upstream_protocol_error", "waiting", 502),
    (silent, QUICK, "upstream_first_byte_timeout", "waiting", 504),
    (holding, QUICK, "upstream_idle_timeout", "streaming", 200),
    (holding, Timeouts(total_s=0.1), "total_timeout", "streaming", 200),
    (silent, Timeouts(total_s=0.1), "total_timeout", "waiting", 504),
]


@pytest.mark.parametrize(("script", "timeouts", "code", "phase", "status"), ENDINGS)
@on_loop
async def test_each_way_of_ending_is_counted_and_written_once(
    script: Script, timeouts: Timeouts, code: str, phase: str, status: int, tmp_path: Path
) -> None:
    async with chain(script, timeouts=timeouts) as (_, live, client):
        live.router.ledger.access_log = AccessLog(str(tmp_path / "log"))
        await client.send(chat())
        with contextlib.suppress(ConnectionResetError):
            answer = await client.answer()
            assert answer.status == status
        await live.settled()
        assert endings(live) == {("m", status // 100, code): 1}
    (line,) = lines(tmp_path / "log")
    assert (line["code"], line["phase"], line["status"]) == (code, phase, status)
    assert (line["by"], phase in REASONS[code].phases) == (REASONS[code].by, True)
    assert (line["server"], line["cell"], line["endpoint"], line["attempts"]) == ("s", "c1", "m", 1)


@on_loop
async def test_a_client_that_leaves_is_counted_as_leaving_wherever_it_does(tmp_path: Path) -> None:
    async with chain(holding) as (_, live, client):
        live.router.ledger.access_log = AccessLog(str(tmp_path / "log"))
        await client.send(chat())
        await client.reader.readuntil(EVENT)
        client.abort()
        await live.settled()
        async with full_backlog() as port, leaf([server("s", port)], timeouts=PATIENT) as slow:
            slow.router.ledger.access_log = AccessLog(str(tmp_path / "slow"))
            async with client_of(slow) as early:
                await early.send(chat())
                await until(lambda: bool(rows(slow)))
                early.abort()
                await slow.settled()
            assert endings(slow) == {("m", 0, "client_gone"): 1}
        assert endings(live) == {("m", 2, "client_gone"): 1}
    assert [(line["phase"], line["status"]) for line in lines(tmp_path / "log")] == [("streaming", 200)]
    assert [(line["phase"], line["status"]) for line in lines(tmp_path / "slow")] == [("connecting", None)]


@on_loop
async def test_a_client_that_stops_reading_is_not_counted_as_leaving() -> None:
    async def flood(connection: Connection) -> None:
        await connection.hear()
        await connection.send(STREAM_HEAD)
        while True:
            await connection.send(chunk(b"x" * 65536))

    async with chain(flood, timeouts=Timeouts(idle_s=0.2)) as (_, live, client):
        await client.send(chat())
        await client.head()
        await live.settled()
        assert endings(live) == {("m", 2, "client_stalled"): 1}


@pytest.mark.parametrize(
    ("asked", "status", "code"),
    [
        (b"nonsense\r\n\r\n", 400, "bad_request"),
        (get("/nowhere"), 404, "unknown_path"),
        (get("/v1/../x"), 400, "dot_segments"),
        (post(b"{broken"), 400, "invalid_body"),
        (post(b"x" * 2000), 413, "body_too_large"),
        (get("/livez", b"Host: u\r\n"), 400, "bad_host"),
    ],
)
@on_loop
async def test_a_request_that_is_refused_is_counted_under_no_endpoint(
    asked: bytes, status: int, code: str, tmp_path: Path
) -> None:
    async with chain(answering(b""), limits=HttpLimits(body_bytes=1000)) as (_, live, client):
        live.router.ledger.access_log = AccessLog(str(tmp_path / "log"))
        answer = await client.ask(asked)
        assert code_of(answer) == (status, code)
        assert endings(live) == {("", 4, code): 1}
    (line,) = lines(tmp_path / "log")
    assert (line["code"], line["phase"], line["by"], line["attempts"]) == (code, "reading", "client", 0)
    assert line["bytes_out"] > len(answer.body)


@on_loop
async def test_what_is_asked_of_the_router_itself_is_no_request_of_a_model() -> None:
    async with chain(answering(b"")) as (_, live, client):
        for path in ("/livez", "/readyz", "/v1/models"):
            assert (await client.ask(get(path))).status == 200
        assert endings(live) == {}


@on_loop
async def test_attempts_are_counted_and_the_last_server_is_the_one_that_is_named(tmp_path: Path) -> None:
    """A refused connection, and a pooled one that was closed meanwhile: each is an attempt more."""
    script = closing_when_used_again(answering(sized(b"{}")))
    with refusing_port() as dead:
        async with serving(script) as engine, leaf([server("s", engine.port), server("dead", dead)]) as live:
            live.router.ledger.access_log = AccessLog(str(tmp_path / "log"))
            async with client_of(live) as client:
                for _ in range(2):
                    assert (await client.ask(chat())).status == 200
            await live.settled()
            retried = live.tier.endpoints["m"].retried
    written = lines(tmp_path / "log")
    assert [line["server"] for line in written] == ["s", "s"]
    assert sum(line["attempts"] - 1 for line in written) == retried + 1
    assert [line["overhead_s"] is None for line in written] == [line["attempts"] > 1 for line in written]


@on_loop
async def test_the_last_real_answer_is_what_is_counted_when_nobody_did_better(tmp_path: Path) -> None:
    no = answering(sized(b"no", status=b"503 Busy"))
    async with pair(no, no) as (_, _, live, client):
        live.router.ledger.access_log = AccessLog(str(tmp_path / "log"))
        await client.send(chat().replace(b"Host: t", b"Host: t\r\nConnection: close"))
        sent = await client.rest()
        assert sent.endswith(b"no")
        await live.settled()
        assert endings(live) == {("m", 5, "upstream_5xx"): 1}
    (line,) = lines(tmp_path / "log")
    assert (line["status"], line["phase"], line["attempts"], line["bytes_out"]) == (503, "complete", 2, len(sent))


@on_loop
async def test_a_request_that_waits_for_room_is_open_and_can_be_killed(tmp_path: Path) -> None:
    async with gated() as (gate, engine, live), killing(live) as kill:
        live.router.ledger.access_log = AccessLog(str(tmp_path / "log"))
        served, killed, later = [await ask(live, f"r{n}", waiting=n) for n in range(3)]
        assert [(row.phase, row.server) for row in rows(live)][1:] == [("queued", "")] * 2
        assert (await kill("r1"))[0] == 200
        assert await killed == (503, "killed")
        gate.let(2)
        assert await served == await later == (200, "")
        await live.settled()
        assert [heard.get(b"x-request-id") for heard in engine.heard] == [b"r0", b"r2"]
    written = {line["id"]: line for line in lines(tmp_path / "log")}
    assert (written["r1"]["phase"], written["r1"]["queue_s"] > 0, written["r1"]["server"]) == ("queued", True, "")
    assert (written["r0"]["queue_s"], written["r2"]["queue_s"] > 0) == (0.0, True)
    assert 0 < written["r2"]["overhead_s"] < written["r2"]["e2e_s"] - written["r2"]["queue_s"]


@on_loop
async def test_a_request_that_waits_too_long_for_room_ended_in_the_queue(tmp_path: Path) -> None:
    async with gated(max_wait_s=0.1) as (gate, _, live):
        live.router.ledger.access_log = AccessLog(str(tmp_path / "log"))
        served, late = [await ask(live, f"r{n}", waiting=n) for n in range(2)]
        assert await late == (503, "queue_timeout")
        gate.let()
        await served
        await live.settled()
    first, _ = lines(tmp_path / "log")
    assert (first["code"], first["phase"]) == ("queue_timeout", "queued")


def declining_once() -> Script:
    """For two servers: whichever is asked first says no; after that they say nothing."""
    declined = asyncio.Event()

    async def script(connection: Connection) -> None:
        await connection.hear()
        if not declined.is_set():
            declined.set()
            await connection.send(sized(b"no", status=b"503 Busy"))
        await connection.left()

    return script


@on_loop
async def test_a_kill_between_two_attempts_is_not_answered_with_the_first_ones_no() -> None:
    script = declining_once()
    async with pair(script, script) as (one, two, live, client), killing(live) as kill:
        await client.send(named("r1"))
        await until(lambda: len(one.heard) == len(two.heard) == 1)
        assert (await kill("r1"))[0] == 200
        assert code_of(await client.answer()) == (503, "killed")
        await live.settled()


@on_loop
async def test_a_client_that_leaves_between_two_attempts_was_sent_nothing() -> None:
    """The first server's no was kept back for it, and is no answer."""
    script = declining_once()
    async with pair(script, script) as (one, two, live, client):
        await client.send(chat())
        await until(lambda: len(one.heard) == len(two.heard) == 1)
        client.abort()
        await live.settled()
        assert endings(live) == {("m", 0, "client_gone"): 1}


# -- the requests that are open ----------------------------------------------------------------------------


@on_loop
async def test_open_requests_tell_how_far_they_are() -> None:
    go = asyncio.Event()

    async def script(connection: Connection) -> None:
        await connection.hear()
        await go.wait()
        await connection.send(BEGUN)
        await connection.left()

    async with chain(script) as (engine, live, client):
        await client.send(named("first"))
        await until(lambda: len(engine.heard) == 1)
        (row,) = rows(live)
        assert (row.id, row.endpoint, row.phase, row.attempts, row.bytes_out) == ("first", "m", "waiting", 1, 0)
        assert (row.cell, row.server, row.client) == ("c1", "s", "127.0.0.1")
        go.set()
        head = await client.reader.readuntil(EVENT + b"\r\n")
        (row,) = rows(live)
        assert (row.phase, row.bytes_out) == ("streaming", len(head))
        assert row.age_s > 0
    assert rows(live) == []


@on_loop
async def test_a_request_that_waits_for_a_connection_is_open() -> None:
    async with full_backlog() as port, leaf([server("s", port)], timeouts=PATIENT) as live, client_of(live) as client:
        await client.send(chat())
        await until(lambda: [row.phase for row in rows(live)] == ["connecting"])
        client.abort()
        await live.settled()
        assert rows(live) == []


@on_loop
async def test_a_request_through_root_and_leaf_is_open_in_both_and_its_client_known() -> None:
    async with (
        serving(holding) as engine,
        leaf([server("s", engine.port)], token=b"k") as eu,
        root([TargetSettings("europe", (f"http://127.0.0.1:{eu.peer_port}",))], token=b"k") as live,
        client_of(live) as client,
    ):
        report = eu.tier.report(0.0)
        live.tier.state_reported(live.router.clock(), "europe", f"http://127.0.0.1:{eu.peer_port}", report, 0.0)
        await client.send(named("r1"))
        await client.reader.readuntil(EVENT)
        (above,), (below,) = rows(live), rows(eu)
        assert (above.id, above.cell, above.server) == ("r1", "europe", "s"), "the leaf says which server"
        assert (below.id, below.cell, below.server, below.client) == ("r1", "c1", "s", "127.0.0.1")
        client.abort()
        await live.settled()
        await eu.settled()


# -- kill --------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def killing(live: Live) -> AsyncIterator[Callable[[str], Awaitable[tuple[int, Any]]]]:
    async with admin_of(live) as asked:

        async def kill(what: str) -> tuple[int, Any]:
            answer = await asked.client.delete(f"/v1/requests/{what}")
            return answer.status_code, answer.json()

        yield kill


@on_loop
async def test_a_request_that_is_killed_before_its_answer_gets_an_error_and_the_next_is_served(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with chain(silent) as (engine, live, client), killing(live) as kill:
        await client.send(named("slow/1"))
        await until(lambda: len(engine.heard) == 1)
        status, row = await kill("slow%2F1")
        assert (status, row["id"], row["phase"]) == (200, "slow/1", "waiting")
        answer = await client.answer()
        assert (code_of(answer), answer.get(b"x-should-retry")) == ((503, "killed"), b"false")
        assert answer.get(b"connection") is None, "the connection stays"
        await until(lambda: engine.connections[0].gone, "the server is left")
        await live.settled()
        candidate = live.tier.endpoints["m"].candidates["s"]
        assert candidate.errors.read(live.router.clock()) == 0, "the server did nothing wrong"
        assert endings(live) == {("m", 5, "killed"): 1}
        assert "killed by 127.0.0.1:" in caplog.text
        assert (await kill("slow%2F1"))[0] == 404
        assert (await client.ask(get("/livez"))).status == 200


@on_loop
async def test_a_request_that_is_killed_within_its_answer_is_cut_as_a_dying_server_would_cut_it() -> None:
    async with chain(holding) as (engine, live, client), killing(live) as kill:
        await client.send(named("s1"))
        await client.reader.readuntil(EVENT + b"\r\n")
        assert (await kill("s1"))[0] == 200
        assert await client.rest() == b"", "no last chunk"
        await until(lambda: engine.connections[0].gone)
        await live.settled()
        assert endings(live) == {("m", 2, "killed"): 1}


@on_loop
async def test_a_killed_answer_whose_framing_does_not_show_it_is_reset() -> None:
    async with chain(holding) as (_, live, client), killing(live) as kill:
        await client.send(named("s1").replace(b"HTTP/1.1", b"HTTP/1.0"))
        await client.reader.readuntil(EVENT)
        assert (await kill("s1"))[0] == 200
        with pytest.raises(ConnectionResetError):
            await client.rest()


@on_loop
async def test_of_several_requests_with_one_id_none_is_killed_until_one_is_singled_out() -> None:
    async with chain(holding) as (_, live, client), client_of(live) as other, killing(live) as kill:
        for one in (client, other):
            await one.send(named("same"))
            await one.reader.readuntil(EVENT)
        first, second = (row.number for row in rows(live))
        status, said = await kill("same")
        assert (status, f"{first}, {second}" in said["error"]) == (409, True)
        assert len(rows(live)) == 2
        assert (await kill("same?number=99"))[0] == 404
        assert (await kill(f"same?number={second}"))[0] == 200
        assert [row.number for row in rows(live)] == [first]
        assert await other.rest() == b"\r\n"


@on_loop
async def test_a_kill_ends_both_tiers_of_one_process() -> None:
    async with serving(silent) as engine:
        cell = TierSettings("leaf", "eu", (server("s", engine.port),), seed=1)
        async with root([], local=[cell]) as live, client_of(live) as client, killing(live) as kill:
            await client.send(named("r1"))
            await until(lambda: len(engine.heard) == 1)
            assert [(row.cell, row.server) for row in rows(live)] == [("eu", "s")]
            assert (await kill("r1"))[0] == 200
            assert code_of(await client.answer()) == (503, "killed")
            await live.settled()


def lines(path: Path) -> list[dict[str, Any]]:
    """The access log, strictly a document a line."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
