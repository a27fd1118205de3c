"""What a client must not send, and what it is told: each is answered once, in the shape clients parse."""

from __future__ import annotations

import asyncio
import json

import pytest

from dlbctl.router.limits import HttpLimits

from .live import chain, client_of, leaf, on_loop, server
from .scripted import answering, sized
from .wire import Answer, chat, get, post

OK = answering(sized(b"{}"))
LIMITS = HttpLimits(header_bytes=2048, header_fields=20, body_bytes=10_000)
POST = b"POST /v1/completions HTTP/1.1\r\nHost: t\r\n"


def code_of(answer: Answer) -> tuple[int, str]:
    error = json.loads(answer.body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    return answer.status, error["code"]


@pytest.mark.parametrize(
    ("request_bytes", "status", "code"),
    [
        (POST + b"Transfer-Encoding: chunked, gzip\r\n\r\n", 400, "bad_request"),
        (POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 400, "bad_transfer_encoding"),
        (POST + b"Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n", 400, "bad_transfer_encoding"),
        (POST + b"Transfer-Encoding: chunked, gzip\r\nContent-Length: 5\r\n\r\nhello", 400, "bad_request"),
        (POST + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n", 400, "bad_request"),
        (POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400, "bad_request"),
        (POST + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello", 400, "bad_request"),
        (POST + b"Content-Length: 5, 5\r\n\r\nhello", 400, "bad_request"),
        (POST + b"Content-Length: +5\r\n\r\nhello", 400, "bad_request"),
        (POST + b"Content-Length: -1\r\n\r\n", 400, "bad_request"),
        (POST + b"Content-Length: 99999999999999999999\r\n\r\n", 400, "bad_request"),
        (POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400, "bad_request"),
        (POST + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n", 400, "bad_request"),
        (POST + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n0\r\n\r\n", 400, "bad_request"),
        (POST + b"X-A: 1\r\n folded\r\n\r\n", 400, "bad_request"),
        (POST + b"X-A : 1\r\n\r\n", 400, "bad_request"),
        (POST + b"X-A: a\0b\r\n\r\n", 400, "bad_request"),
        (POST + b"Host: u\r\n\r\n", 400, "bad_host"),
        (b"GET /v1/models HTTP/1.1\r\n\r\n", 400, "bad_host"),
        (b"GET /v1/models HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n", 400, "bad_host"),
        (b"CONNECT example.org:443 HTTP/1.1\r\nHost: example.org\r\n\r\n", 405, "method_not_allowed"),
        (b"BREW /v1/models HTTP/1.1\r\nHost: t\r\n\r\n", 400, "bad_request"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, "bad_request"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400, "bad_request"),
        (b"\r\n\r\nnonsense\r\n\r\n", 400, "bad_request"),
        (get("/v1/models", b"X-A: %b\r\n" % (b"a" * 2048)), 431, "headers_too_large"),
        (get("/v1/models?" + "a" * 2048), 431, "headers_too_large"),
        (b"GET /v1/models HTTP/1.1\r\nHost: t\r\nX-A: " + b"a" * 2048, 431, "headers_too_large"),
        (get("/v1/models", b"X-A: 1\r\n" * 20), 431, "headers_too_large"),
        (POST + b"Content-Length: 10001\r\n\r\n", 413, "body_too_large"),
        (
            POST + b"Transfer-Encoding: chunked\r\n\r\n2711\r\n" + b"a" * 10_001 + b"\r\n0\r\n\r\n",
            413,
            "body_too_large",
        ),
    ],
)
@on_loop
async def test_a_bad_request_is_answered_and_the_connection_closed(
    request_bytes: bytes, status: int, code: str
) -> None:
    async with chain(OK, limits=LIMITS) as (engine, live, client):
        answer = await client.ask(request_bytes)
        assert code_of(answer) == (status, code)
        assert answer.get(b"connection") == b"close"
        assert await client.closed()
        assert engine.heard == []
        await live.settled()


def faults(said: bytes) -> list[bytes]:
    """Requests that each get an answer of our own, with this header line in each."""
    return [
        get("/livez", said),
        get("/v1/models", said),
        get("/nowhere", said),
        get("/v1/./files", said),
        chat("nobody").replace(b"Host: t\r\n", b"Host: t\r\n" + said),
        post(b"{", extra=said),
        POST + said + b"Host: u\r\n\r\n",
        POST + said + b"Content-Length: 10001\r\n\r\n",
        POST + said + b"Content-Length: 5, 5\r\n\r\n",
        POST + said + b"X-A: " + b"a" * 2048,
        POST + said + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        POST + said + b"Content-Length: 5\r\n\r\nlate",
        POST + said + b"X-Late: 1",
    ]


@pytest.mark.parametrize(("said", "usable"), [(b"", False), (b"X-Request-Id: mine\r\n", True)])
@on_loop
async def test_every_answer_of_ours_has_the_id_of_its_request(said: bytes, usable: bool) -> None:
    limits = HttpLimits(header_bytes=2048, body_bytes=10_000, header_timeout_s=0.2, body_timeout_s=0.2)
    seen = []
    async with leaf([server("s", 1, "m", "n")], limits=limits) as live:
        for request in faults(said):
            async with client_of(live) as client:
                (identity,) = (await client.ask(request)).all(b"x-request-id")
                seen.append(identity)
    assert set(seen) == {b"mine"} if usable else len(set(seen)) == len(seen)


@on_loop
async def test_limits_are_limits_and_not_less() -> None:
    limits = HttpLimits(header_fields=4, body_bytes=100)
    async with chain(OK, limits=limits) as (engine, _, client):
        body = b'{"model":"m"}'.ljust(100)
        assert (await client.ask(post(body, extra=b"X-A: 1\r\n"))).status == 200
        assert engine.heard[0].body == body


NO_HOSTS = (
    "a b,a/b,user@a,user:word@a,a:,a:b,a:1:2,a:123456,:80,http://a,a?b,[::1,::1,a\\b,[a b],[::1]x,caf\xe9,'a\",a#b,a\tb"
)


@pytest.mark.parametrize("host", NO_HOSTS.split(","))
@on_loop
async def test_a_host_that_is_none_is_refused(host: str) -> None:
    async with chain(OK) as (engine, _, client):
        request = chat().replace(b"Host: t\r\n", b"Host: %b\r\n" % host.encode("latin-1"))
        assert code_of(await client.ask(request)) == (400, "bad_host")
        assert engine.heard == []


@pytest.mark.parametrize("host", ["", "a", "A-b.example.", "a_b:8080", "127.0.0.1:1", "[::1]", "[fe80::1.2.3.4]:65535"])
@on_loop
async def test_a_host_is_a_name_or_an_address_with_or_without_a_port(host: str) -> None:
    async with chain(OK) as (_, _, client):
        answer = await client.ask(chat().replace(b"Host: t\r\n", b"Host: %b\r\n" % host.encode()))
        assert answer.status == 200


@on_loop
async def test_a_client_that_is_still_sending_sees_that_its_body_is_too_large() -> None:
    """413 has to be read before the reset that unread bytes would cause (here: 4 MB that nobody takes)."""
    async with chain(OK, limits=LIMITS) as (_, _, client):
        sending = asyncio.ensure_future(client.send(POST + b"Content-Length: 4000000\r\n\r\n" + b"a" * 4_000_000))
        assert code_of(await client.answer()) == (413, "body_too_large")
        await sending


@on_loop
async def test_an_error_waits_for_the_answers_before_it() -> None:
    async with chain(OK) as (_, live, client):
        await client.send(chat() + chat("none") + get("/livez") + b"nonsense\r\n\r\n" + chat())
        assert (await client.answer()).body == b"{}"
        assert code_of(await client.answer()) == (404, "unknown_model")
        assert (await client.answer()).body == b"ok\n"
        assert code_of(await client.answer()) == (400, "bad_request")
        assert await client.closed()
        await live.settled()


@pytest.mark.parametrize(
    ("body", "content_type", "status", "code"),
    [
        (b'{"model":"nobody"}', b"application/json", 404, "unknown_model"),
        (b'{"model":"m"', b"application/json", 400, "invalid_body"),
        (b'{"model":"m"} x', b"application/json", 400, "invalid_body"),
        (b'{"model":"\xff"}', b"application/json", 400, "invalid_body"),
        (b'{"model":"\\ud800"}', b"application/json", 400, "invalid_body"),
        (b'{"model":7}', b"application/json", 400, "invalid_body"),
        (b'{"model":null}', b"application/json", 400, "invalid_body"),
        (b'["m"]', b"application/json", 400, "invalid_body"),
        (b"[" * 200_000, b"application/json", 400, "invalid_body"),
        (b'{"model":' + b'{"a":' * 100_000, b"application/json", 400, "invalid_body"),
        (b'{"messages":[]}', b"application/json", 400, "invalid_body"),
        (b"", b"application/json", 400, "invalid_body"),
        (b"plain text", b"text/plain", 400, "invalid_body"),
        (b'--x\r\ncontent-disposition: form-data; name="file"\r\n\r\nm\r\n--x--', b"multipart/form-data", 400, ""),
    ],
)
@on_loop
async def test_a_request_for_no_known_model_is_refused_in_the_openai_shape(
    body: bytes, content_type: bytes, status: int, code: str
) -> None:
    async with leaf([server("s", 1, "m", "n")]) as live, client_of(live) as client:
        head = POST + b"Content-Type: %b\r\nContent-Length: %d\r\n\r\n" % (content_type, len(body))
        assert code_of(await client.ask(head + body)) == (status, code or "invalid_body")
        assert (await client.ask(get("/livez"))).status == 200  # the connection goes on
        await live.settled()


@on_loop
async def test_what_is_not_there_is_repeated_to_the_client_in_short() -> None:
    async with leaf([server("s", 1)]) as live, client_of(live) as client:
        name = "a" * 20_000
        for request in (chat(name), get(f"/v1/models/{name}"), get(f"/{name}")):
            answer = await client.ask(request)
            assert answer.status == 404
            assert b"aaaa..." in answer.body
            assert len(answer.body) < 300


@on_loop
async def test_a_request_without_a_model_goes_to_the_only_endpoint() -> None:
    async with chain(OK) as (engine, _, client):
        assert (await client.ask(post(b'{"prompt":"x"}', "/completion"))).status == 200
        assert (await client.ask(get("/v1/files"))).status == 200
        assert len(engine.heard) == 2


@on_loop
async def test_the_model_of_a_multipart_form_is_found() -> None:
    form = (
        b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\nContent-Type: audio/wav\r\n\r\n'
        b"\0\xff\r\nname=\r\n--b\r\n"
        b'Content-Disposition: form-data; name="model"\r\nContent-Type: text/plain\r\n\r\nwhisper\r\n--b--\r\n'
    )
    kind = b"Content-Type: multipart/form-data; boundary=b\r\n"
    head = b"POST /v1/audio/transcriptions HTTP/1.1\r\nHost: t\r\n%bContent-Length: %d\r\n\r\n" % (kind, len(form))
    async with chain(OK) as (engine, live, client):
        live.tier.models_learned(0.0, "s", ("m", "whisper"))
        answer = await client.ask(head + form)
        assert code_of(answer) == (404, "unknown_model")
        assert b"whisper" in answer.body
    async with chain(OK) as (engine, _, client):
        form = form.replace(b"whisper", b"m")
        head = b"POST /v1/audio/transcriptions HTTP/1.1\r\nHost: t\r\n%bContent-Length: %d\r\n\r\n" % (kind, len(form))
        assert (await client.ask(head + form)).status == 200
        assert engine.heard[0].body == form
