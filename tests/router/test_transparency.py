"""What goes in comes out: bodies to the byte, headers in order, and only the hop's own headers changed."""

from __future__ import annotations

import json

import pytest

from .live import chain, client_of, leaf, on_loop, server
from .scripted import Connection, answering, chunk, chunked, once, serving, sized
from .wire import chat, get, post

BODY = b'{"model":"m","messages":[{"role":"user","content":"h\xc3\xa9 \\u00e9 \\n"}],  "stream" : false }'
ANSWER = b'{ "choices" : [ {"message":{"content":"\xf0\x9f\x98\x80 data: [DONE]"}} ],"usage":{"prompt_tokens":7} }\n'
EVENTS = (
    b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n',
    b": a comment\r\n\r\ndata: x\n",
    b"\ndata: [DONE]\n\n",
)


@on_loop
async def test_json_travels_unchanged_both_ways() -> None:
    async with serving(answering(sized(ANSWER))) as engine, leaf([server("s", engine.port)]) as live:
        async with client_of(live) as client:
            answer = await client.ask(post(BODY))
        assert engine.heard[0].body == BODY
        assert (answer.status, answer.body, answer.whole) == (200, ANSWER, True)
        assert answer.get(b"content-length") == b"%d" % len(ANSWER)
        await live.settled()


@on_loop
async def test_a_stream_of_events_travels_unchanged() -> None:
    async with serving(answering(chunked(*EVENTS))) as engine, leaf([server("s", engine.port)]) as live:
        async with client_of(live) as client:
            answer = await client.ask(post(BODY))
        assert (answer.body, answer.whole) == (b"".join(EVENTS), True)
        assert answer.get(b"content-type") == b"text/event-stream"
        await live.settled()


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/a/b%20c?q=%2F&r", "/generate", "/completion?x=1"])
@on_loop
async def test_path_and_query_travel_unchanged(path: str) -> None:
    async with serving(answering(sized(b"{}"))) as engine, leaf([server("s", engine.port)]) as live:
        async with client_of(live) as client:
            assert (await client.ask(post(BODY, path))).status == 200
        assert engine.heard[0].url == path.encode()


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
@on_loop
async def test_every_method_under_v1_is_relayed(method: str) -> None:
    async with serving(answering(sized(b"{}"))) as engine, leaf([server("s", engine.port)]) as live:
        async with client_of(live) as client:
            answer = await client.ask(b"%b /v1/files/7 HTTP/1.1\r\nHost: t\r\n\r\n" % method.encode())
        assert answer.status == 200
        assert engine.heard[0].method == method.encode()
        length = b"0" if method in {"POST", "PUT", "PATCH"} else None
        assert engine.heard[0].get(b"content-length") == length


@on_loop
async def test_an_absolute_url_is_taken_as_its_path() -> None:
    async with chain(answering(sized(b"{}"))) as (engine, _, client):
        answer = await client.ask(b"GET http://t/v1/files?a=b HTTP/1.1\r\nHost: t\r\n\r\n")
        assert answer.status == 200
        assert engine.heard[0].url == b"/v1/files?a=b"
        assert (await client.ask(b"GET http://t/livez HTTP/1.1\r\nHost: t\r\n\r\n")).body == b"ok\n"


HOPS = (
    b"Connection: keep-alive, X-Forwarded-For, x-mine\r\nKeep-Alive: timeout=9\r\nProxy-Connection: a\r\n"
    b"TE: trailers\r\nTrailer: x\r\nUpgrade: websocket\r\nHTTP2-Settings: a\r\n"
)


@on_loop
async def test_request_headers_keep_their_order_and_lose_only_those_of_the_hop() -> None:
    sent = b"B-First: 1\r\nauthorization: Bearer k\r\nX-Mine: kept\r\n" + HOPS + b"a-last: 2\r\nb-first: again\r\n"
    async with serving(answering(sized(b"{}"))) as engine, leaf([server("s", engine.port)]) as live:
        async with client_of(live) as client:
            await client.ask(post(BODY, extra=sent))
        fields = engine.heard[0].fields
    own = {b"host", b"x-request-id", b"x-forwarded-for", b"content-length"}
    assert [(name, value) for name, value in fields if name not in own] == [
        (b"content-type", b"application/json"),
        (b"b-first", b"1"),
        (b"authorization", b"Bearer k"),
        (b"x-mine", b"kept"),
        (b"a-last", b"2"),
        (b"b-first", b"again"),
    ]
    assert engine.heard[0].all(b"host") == [b"127.0.0.1:%d" % engine.port]
    assert engine.heard[0].all(b"content-length") == [b"%d" % len(BODY)]


@on_loop
async def test_answer_headers_keep_their_order_and_lose_only_those_of_the_hop() -> None:
    extra = (
        b"X-B: 1\r\nConnection: keep-alive\r\nKeep-Alive: timeout=5\r\nset-cookie: a=1\r\nSet-Cookie: b=2\r\n"
        b"dlb-secret: 1\r\nDLB-Cell: forged\r\nX-DLB-Cell: forged\r\nretry-after: 3\r\n"
    )
    async with chain(answering(sized(b"{}", extra=extra))) as (_, _, client):
        answer = await client.ask(post(BODY))
    assert [name for name, _ in answer.fields] == [
        b"content-type",
        b"x-b",
        b"set-cookie",
        b"set-cookie",
        b"retry-after",
        b"content-length",
        b"x-request-id",
        b"x-dlb-cell",
        b"x-dlb-server",
    ]
    assert answer.all(b"set-cookie") == [b"a=1", b"b=2"]
    assert (answer.get(b"x-dlb-cell"), answer.get(b"x-dlb-server")) == (b"c1", b"s")


@pytest.mark.parametrize(
    ("sent", "received"),
    [
        (b"", b"127.0.0.1"),
        (b"X-Forwarded-For: 1.2.3.4\r\n", b"1.2.3.4, 127.0.0.1"),
        (b"X-Forwarded-For: 1.2.3.4\r\nX-Forwarded-For: 5.6.7.8\r\n", b"1.2.3.4, 5.6.7.8, 127.0.0.1"),
        (b"X-Forwarded-For: 1.2.3.4\r\nConnection: X-Forwarded-For\r\n", b"1.2.3.4, 127.0.0.1"),
    ],
)
@on_loop
async def test_x_forwarded_for_gains_the_client(sent: bytes, received: bytes) -> None:
    async with serving(answering(sized(b"{}"))) as engine, leaf([server("s", engine.port)]) as live:
        async with client_of(live) as client:
            await client.ask(post(BODY, extra=sent))
        assert engine.heard[0].all(b"x-forwarded-for") == [received]


@pytest.mark.parametrize("given", [b"abc-1", b"caf\xe9", b"\xc3\xa9"])
@on_loop
async def test_a_request_id_is_kept(given: bytes) -> None:
    async with serving(answering(sized(b"{}"))) as engine, leaf([server("s", engine.port)]) as live:
        async with client_of(live) as client:
            answer = await client.ask(post(BODY, extra=b"X-Request-ID: %b\r\n" % given))
        assert engine.heard[0].all(b"x-request-id") == [given]
        assert answer.all(b"x-request-id") == [given]


@pytest.mark.parametrize("given", [b"", b"X-Request-Id:\r\n", b"x-request-id: " + b"a" * 200 + b"\r\n"])
@on_loop
async def test_a_request_id_is_made_where_there_is_none_that_can_be_used(given: bytes) -> None:
    async with serving(answering(sized(b"{}"))) as engine, leaf([server("s", engine.port)]) as live:
        async with client_of(live) as client:
            answers = [await client.ask(post(BODY, extra=given)) for _ in range(2)]
        ids = [answer.get(b"x-request-id") for answer in answers]
        assert ids == [heard.get(b"x-request-id") for heard in engine.heard]
        assert len(set(ids)) == 2
        assert all(ids)


@on_loop
async def test_peer_headers_of_a_client_are_dropped() -> None:
    forged = b"dlb-endpoint: other\r\nDLB-Tokens: 9\r\ndlb-token: x\r\ndlb-anything: 1\r\n"
    async with serving(answering(sized(b"{}"))) as engine, leaf([server("s", engine.port)]) as live:
        async with client_of(live) as client:
            assert (await client.ask(post(BODY, extra=forged))).status == 200
        assert [name for name, _ in engine.heard[0].fields if name.startswith(b"dlb-")] == []


@on_loop
async def test_status_and_reason_are_kept() -> None:
    async with (
        serving(answering(sized(b"{}", status=b"418 Short And Stout"))) as engine,
        leaf([server("s", engine.port)]) as live,
        client_of(live) as client,
    ):
        answer = await client.ask(post(BODY))
        assert (answer.status, answer.reason) == (418, b"Short And Stout")


@on_loop
async def test_a_chunked_request_is_framed_anew_with_its_length() -> None:
    pieces = BODY[:5], BODY[5:6], BODY[6:]
    body = b"".join(chunk(piece) for piece in pieces) + b"0\r\nx-trailer: 1\r\n\r\n"
    head = b"POST /v1/completions HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with serving(answering(sized(b"{}"))) as engine, leaf([server("s", engine.port)]) as live:
        async with client_of(live) as client:
            assert (await client.ask(head + body)).status == 200
            assert (await client.ask(chat())).status == 200  # and the connection is in step
        heard = engine.heard[0]
        assert heard.body == BODY
        assert heard.all(b"content-length") == [b"%d" % len(BODY)]
        assert heard.get(b"transfer-encoding") is None
        assert heard.get(b"x-trailer") is None


@on_loop
async def test_interim_answers_of_the_server_are_not_passed_on() -> None:
    interim = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n"
    async with (
        serving(answering(interim + sized(ANSWER))) as engine,
        leaf([server("s", engine.port)]) as live,
        client_of(live) as client,
    ):
        for _ in range(2):
            answer = await client.ask(post(BODY))
            assert (answer.status, answer.body, answer.get(b"link")) == (200, ANSWER, None)
        assert len(engine.connections) == 1
        await live.settled()


@pytest.mark.parametrize(
    "upstream",
    [
        b"HTTP/1.1 204 No Content\r\n\r\n",
        b"HTTP/1.1 304 Not Modified\r\netag: x\r\n\r\n",
        b"HTTP/1.1 304 Not Modified\r\ncontent-length: 100\r\n\r\n",
    ],
)
@on_loop
async def test_answers_without_a_body_stay_without_one(upstream: bytes) -> None:
    async with (
        serving(answering(upstream)) as engine,
        leaf([server("s", engine.port)]) as live,
        client_of(live) as client,
    ):
        for _ in range(2):
            answer = await client.ask(get("/v1/files/1"))
            assert answer.status == int(upstream[9:12])
            assert answer.get(b"transfer-encoding") is None
        assert len(engine.connections) == 1
        await live.settled()


@pytest.mark.parametrize("framing", [b"content-length: 1234", b"transfer-encoding: chunked", b"x-none: 1"])
@on_loop
async def test_head_gets_a_head(framing: bytes) -> None:
    async with (
        serving(answering(b"HTTP/1.1 200 OK\r\n%b\r\n\r\n" % framing)) as engine,
        leaf([server("s", engine.port)]) as live,
        client_of(live) as client,
    ):
        for _ in range(2):
            answer = await client.ask(b"HEAD /v1/files HTTP/1.1\r\nHost: t\r\n\r\n", head_request=True)
            assert answer.status == 200
            assert answer.get(b"content-length") == (b"1234" if b"1234" in framing else None)
        own = await client.ask(b"HEAD /livez HTTP/1.1\r\nHost: t\r\n\r\n", head_request=True)
        assert own.get(b"content-length") == b"3"
        assert (await client.ask(get("/livez"))).body == b"ok\n"
        await live.settled()


@pytest.mark.parametrize("version", [b"HTTP/1.1", b"HTTP/1.0"])
@on_loop
async def test_an_answer_that_ends_with_its_connection_is_chunked_for_the_client(version: bytes) -> None:
    async with (
        serving(once(version + b" 200 OK\r\ncontent-type: text/plain\r\n\r\n" + ANSWER)) as engine,
        leaf([server("s", engine.port)]) as live,
        client_of(live) as client,
    ):
        for _ in range(2):
            answer = await client.ask(post(BODY))
            assert (answer.body, answer.whole) == (ANSWER, True)
            assert answer.get(b"transfer-encoding") == b"chunked"
        await live.settled()


OLD = b"POST /v1/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n%b" % (len(BODY), BODY)


@pytest.mark.parametrize("upstream", [sized(ANSWER), chunked(ANSWER[:9], ANSWER[9:])])
@on_loop
async def test_a_client_of_http_1_0_gets_an_unchunked_answer_and_its_end(upstream: bytes) -> None:
    async with (
        serving(answering(upstream)) as engine,
        leaf([server("s", engine.port)]) as live,
        client_of(live) as client,
    ):
        answer = await client.ask(OLD)
        assert (answer.body, answer.whole) == (ANSWER, True)
        assert answer.get(b"transfer-encoding") is None
        assert answer.get(b"connection") == b"close"
        assert await client.closed()
        await live.settled()


@on_loop
async def test_connection_close_of_a_client_is_honoured() -> None:
    async with (
        serving(answering(sized(b"{}"))) as engine,
        leaf([server("s", engine.port)]) as live,
        client_of(live) as client,
    ):
        answer = await client.ask(post(BODY, extra=b"Connection: close\r\n"))
        assert answer.get(b"connection") == b"close"
        assert await client.closed()


@on_loop
async def test_connection_close_of_the_server_does_not_reach_the_client() -> None:
    async def script(connection: Connection) -> None:
        await connection.hear()
        await connection.send(sized(b"{}", extra=b"Connection: close\r\n"))
        await connection.left()

    async with serving(script) as engine, leaf([server("s", engine.port)]) as live, client_of(live) as client:
        for _ in range(2):
            answer = await client.ask(post(BODY))
            assert answer.get(b"connection") is None
        assert len(engine.connections) == 2


@on_loop
async def test_health_and_models_have_the_shapes_clients_expect() -> None:
    async with leaf([server("s", 1, "m", "n")]) as live, client_of(live) as client:
        assert (await client.ask(get("/livez"))).status == 200
        assert (await client.ask(get("/readyz"))).status == 200
        listed = json.loads((await client.ask(get("/v1/models"))).body)
        assert listed["object"] == "list"
        assert [model["id"] for model in listed["data"]] == ["m", "n"]
        assert all(model["object"] == "model" for model in listed["data"])
        assert json.loads((await client.ask(get("/v1/models/n"))).body)["id"] == "n"
        missing = await client.ask(get("/v1/models/none"))
        assert (missing.status, json.loads(missing.body)["error"]["code"]) == (404, "unknown_model")
        assert (await client.ask(get("/metrics"))).status == 404


@pytest.mark.parametrize("path", ["/v1/../debug/faults", "/v1/%2e%2e/debug", "/v1/x/%2E/y"])
@on_loop
async def test_a_path_that_a_server_could_resolve_to_elsewhere_is_refused(path: str) -> None:
    async with leaf([server("s", 1)]) as live, client_of(live) as client:
        answer = await client.ask(get(path))
        assert (answer.status, json.loads(answer.body)["error"]["code"]) == (400, "dot_segments")


@on_loop
async def test_a_model_is_found_by_its_encoded_name() -> None:
    async with leaf([server("s", 1, "org/\u043c")]) as live, client_of(live) as client:
        answer = await client.ask(get("/v1/models/org%2F%D0%BC"))
        assert (answer.status, json.loads(answer.body)["id"]) == (200, "org/\u043c")
