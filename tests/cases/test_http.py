"""Cases 39, 40 and 43 to 46: what a client may do on its connection, what reaches a server, and what is told of it."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from pathlib import Path

import httpx
import pytest

from dlbctl.router.limits import HttpLimits
from tests.cases.scene import OK, code_of
from tests.router.live import chain, client_of, on_loop, until
from tests.router.process import engine, running
from tests.router.scripted import Connection, Held, answering, chunk, refusing_port, serving, sized
from tests.router.site import both, site
from tests.router.wire import Client, chat, get, post


@on_loop
async def test_case_39_a_half_close_is_a_client_that_left() -> None:
    """A client sends its request and shuts its side down: by default it counts as gone. aiohttp#3659."""
    held = Held(b"", OK)
    async with chain(held.script) as (engine, live, client):
        await client.send(chat())
        await until(lambda: len(engine.heard) == 1)
        client.half_close()
        assert await client.closed()
        await until(lambda: held.left == 1)
        await live.settled()


@on_loop
async def test_case_39_a_half_closed_client_is_answered_where_that_is_allowed() -> None:
    """The same with `half_close = "allow"`: it gets its whole answer. aiohttp#3659."""
    held = Held(b"", OK)
    async with chain(held.script, half_close=True) as (engine, live, client):
        await client.send(chat())
        client.half_close()
        await until(lambda: len(engine.heard) == 1)
        held.go.set()
        answer = await client.answer()
        assert (answer.status, answer.whole) == (200, True)
        assert await client.closed()
        await live.settled()


@on_loop
async def test_case_40_headers_that_drip_are_closed_at_their_deadline() -> None:
    """One byte now and then buys no time, and other clients do not notice. No public report."""
    limits = HttpLimits(header_timeout_s=0.4)
    async with chain(answering(OK), limits=limits) as (_, live, slow):
        began_s = time.monotonic()
        dripping = asyncio.ensure_future(drip(slow))
        answer = asyncio.ensure_future(slow.answer())
        async with client_of(live) as other:
            while not answer.done():
                assert (await other.ask(chat())).status == 200
        assert (await answer).status == 408
        assert 0.3 < time.monotonic() - began_s < 2.0
        assert await slow.closed()
        dripping.cancel()


async def drip(client: Client) -> None:
    for byte in chat():
        await client.send(bytes([byte]))
        await asyncio.sleep(0.05)


@both
@on_loop
async def test_case_43_a_client_cannot_have_headers_dropped(shape: str) -> None:
    """`Connection: X-Forwarded-For` drops nothing; the headers of the hop go all the same. traefik#8319."""
    sent = (
        b"Connection: keep-alive, X-Forwarded-For, Authorization\r\nX-Forwarded-For: 9.9.9.9\r\n"
        b"Authorization: Bearer k\r\nKeep-Alive: timeout=5\r\nTE: trailers\r\nProxy-Connection: keep-alive\r\n"
    )
    async with site(shape, answering(OK)) as made:
        assert (await made.ask(post(b'{"model":"m"}', extra=sent))).status == 200
        (heard,) = made.engine.heard
        assert (heard.get(b"x-forwarded-for") or b"").startswith(b"9.9.9.9, 127.0.0.1")
        assert heard.get(b"authorization") == b"Bearer k"
        for name in (b"connection", b"keep-alive", b"te", b"proxy-connection"):
            assert heard.get(name) is None


@on_loop
async def test_case_44_a_client_that_waits_to_be_asked_is_asked() -> None:
    """`Expect: 100-continue`: the client is told to send its body, and both go on. No public report."""
    async with chain(answering(OK)) as (engine, _, client):
        head, _, body = post(b'{"model":"m"}', extra=b"Expect: 100-continue\r\n").partition(b"\r\n\r\n")
        assert (await client.ask(head + b"\r\n\r\n")).status == 100
        assert (await client.ask(body)).status == 200
        assert engine.heard[0].body == body
        assert engine.heard[0].get(b"expect") is None


@pytest.mark.parametrize("codings", [b"chunked, gzip", b"gzip, chunked", b"chunked, chunked", b"identity"])
@pytest.mark.parametrize("length", [b"", b"Content-Length: 5\r\n"])
@on_loop
async def test_case_44_a_transfer_coding_that_hides_an_end_is_refused(codings: bytes, length: bytes) -> None:
    """What two parsers could frame differently is a 400 and reaches no server. No public report."""
    head = b"POST /v1/completions HTTP/1.1\r\nHost: t\r\n%bTransfer-Encoding: %b\r\n\r\n" % (length, codings)
    async with chain(answering(OK)) as (engine, live, client):
        assert (await client.ask(head + chunk(b"hello") + b"0\r\n\r\n")).status == 400
        assert await client.closed()
        assert engine.heard == []
        await live.settled()


@both
@on_loop
async def test_case_45_an_unknown_model_is_told_so_and_sent_nowhere(shape: str) -> None:
    """A model nobody serves is a 4xx in the shape OpenAI's clients know. smg#1419."""
    async with site(shape, answering(OK)) as made:
        answer = await made.ask(chat("gpt-5"))
        assert code_of(answer) == (404, "unknown_model")
        error = json.loads(answer.body)["error"]
        assert {"message", "type", "code"} <= error.keys()
        assert "gpt-5" in error["message"]
        assert answer.get(b"content-type") == b"application/json"
        assert made.engine.heard == []
        await made.settled()


SECRETS = (
    b"Authorization: Bearer sk-secret-1\r\nCookie: session=sk-secret-2\r\nX-Api-Key: sk-secret-3\r\n"
    b"Proxy-Authorization: Basic sk-secret-4\r\n"
)
BODY = b'{"model":"m","user":"sk-secret-5","messages":[{"role":"user","content":"sk-secret-6"}]}'


@on_loop
async def test_case_46_no_dump_log_or_admin_answer_holds_a_secret(tmp_path: Path) -> None:
    """Credentials of clients, of peers and in URLs: in no log of any kind and no admin answer. caddy#7566."""
    (tmp_path / "token").write_text("sk-secret-7\n")

    async def failing(connection: Connection) -> None:
        heard = await connection.hear()
        if b"sk-secret-10" in heard.url:
            await connection.left()
        elif b"sk-secret-8" in heard.url:
            connection.reset()
        else:
            await connection.send(sized(b"{}", extra=b"Set-Cookie: sk-secret-9\r\n"))

    with refusing_port() as nobody:
        async with serving(engine(failing)) as made:
            config = root_file(tmp_path, made.url, f"http://127.0.0.1:{nobody}")
            async with running("root", config, 1) as process:
                await process.ready()
                path = "/v1/chat/completions?api_key=sk-secret-8"
                assert (await process.ask(post(BODY, extra=SECRETS))).status == 200
                assert (await process.ask(post(BODY, path, SECRETS))).status == 502
                assert (await process.ask(post(b'{"model":"sk"', extra=SECRETS))).status == 400
                assert (await process.ask(get("/sk?key=sk-secret-8", SECRETS))).status == 404
                assert (await process.ask(b"POST /v1/x HTTP/1.1\r\n" + SECRETS + b"\r\n")).status == 400
                stuck = await Client.connect(process.ports["listening"])
                await stuck.send(post(BODY, "/v1/completions?api_key=sk-secret-10", SECRETS))
                shown = await admin_answers(tmp_path / "root.sock")
                stuck.abort()
                process.signal(signal.SIGTERM)
                code, errors = await process.ended()
    assert code == 0
    events, access = everything_in(tmp_path, "events*"), everything_in(tmp_path, "access.log")
    assert all('"m"' in told for told in (shown, events, access))
    for told in (shown, errors, events, access):
        assert "sk-secret" not in told


def everything_in(folder: Path, pattern: str) -> str:
    return "".join(path.read_bytes().decode(errors="replace") for path in folder.glob(pattern))


def root_file(folder: Path, served: str, dead: str) -> Path:
    path = folder / "root.toml"
    path.write_text(f"""
[root]
listen = "127.0.0.1:0"
admin = "unix:{folder}/root.sock"
peer_token_file = "{folder}/token"
event_log = "{folder}/events"
readiness_grace_s = 0.0
[access_log]
path = "{folder}/access.log"
[[cell]]
name = "eu"
[[cell.server]]
url = "{served}"
endpoints = ["m"]
[[cell]]
name = "us"
leaves = ["{dead}"]
""")
    return path


async def admin_answers(path: Path) -> str:
    """Everything that the admin listener shows, and what it says to what it does not understand."""
    transport = httpx.AsyncHTTPTransport(uds=str(path))
    async with httpx.AsyncClient(transport=transport, base_url="http://router", trust_env=False) as client:
        known = ("info", "cells", "endpoints", "servers", "curves", "requests")
        answers = [await client.get(path) for path in ("/metrics", *(f"/v1/{what}" for what in known))]
        assert {answer.status_code for answer in answers} == {200}
        answers.append(await client.put("/v1/policy/m", content=b'{"cost":"nope"}'))
        answers.append(await client.get("/nope"))
    return "".join(f"{answer.headers} {answer.text}" for answer in answers)
