"""The client against a real server that misbehaves in a chosen way."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
import uvloop

from dlbctl.replay.answer import Answer
from dlbctl.replay.client import Client, Pool
from dlbctl.replay.prompts import PromptBuilder
from dlbctl.replay.targets import Target, parse_target
from dlbctl.replay.trace import Row
from dlbctl.replay.wire import RequestWriter

from .server import Behaviour, Exchange, FakeServer, event, well

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ROW = Row(7, 0.0, 700, 40, (3, 4), "feedc0de")


def send(
    *targets: Target,
    times: int = 1,
    stream: bool = True,
    timeout_s: float = 20.0,
    connect_timeout_s: float = 5.0,
    tls: ssl.SSLContext | None = None,
    writer: RequestWriter | None = None,
) -> list[Answer]:
    """Send one after the other; the answers."""
    writer = writer or RequestWriter(PromptBuilder(), "run", default_model="m", stream=stream)

    async def main() -> list[Answer]:
        client = Client(targets, connect_timeout_s=connect_timeout_s, timeout_s=timeout_s, tls=tls)
        answers = []
        for _ in range(times):
            answer = Answer(stream=writer.stream)
            await client.send(writer.write(ROW), targets, answer)
            answers.append(answer)
        client.close()
        return answers

    return uvloop.run(main())


@contextlib.contextmanager
def refusing() -> Iterator[Target]:
    """A port that is nobody's for as long as it is held: bound, and not listened on."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield parse_target(f"refusing=http://127.0.0.1:{held.getsockname()[1]}")


async def cut_mid_chunk(exchange: Exchange) -> None:
    await exchange.stream_head()
    await exchange.text("one")
    await exchange.send(b"40\r\ndata: {")
    exchange.writer.close()


async def no_done(exchange: Exchange) -> None:
    await exchange.stream_head()
    await exchange.text("data: [DONE]\n\n")
    await exchange.send(b"0\r\n\r\n")


async def stall(exchange: Exchange) -> None:
    await exchange.stream_head()
    await exchange.text("one")
    await exchange.released.wait()


async def hang_up(exchange: Exchange) -> None:
    exchange.writer.close()


async def reset_after_head(exchange: Exchange) -> None:
    await exchange.stream_head()
    exchange.writer.transport.abort()


async def busy(exchange: Exchange) -> None:
    await exchange.document("503 Service Unavailable", {"error": {"message": "queue full"}})


async def too_long_a_length(exchange: Exchange) -> None:
    await exchange.head(content_type="application/json", content_length="100")
    await exchange.send(b'{"choices": []}')
    exchange.writer.close()


async def too_short_a_length(exchange: Exchange) -> None:
    await exchange.head(content_type="application/json", content_length="5")
    await exchange.send(b'{"choices": []}')


async def garbage(exchange: Exchange) -> None:
    await exchange.send(b"SSH-2.0-OpenSSH_9.2\r\n")


async def stream_error(exchange: Exchange) -> None:
    await exchange.stream_head()
    await exchange.text("one")
    await exchange.chunk(event({"error": {"message": "out of memory"}}))
    await exchange.chunk(b"data: [DONE]\n\n")
    await exchange.send(b"0\r\n\r\n")


@dataclass
class Collecting(Exchange):
    """An exchange whose bytes go elsewhere."""

    collect: Callable[[bytes], Awaitable[None]]

    async def send(self, data: bytes) -> None:
        await self.collect(data)


async def whole(exchange: Exchange) -> bytes:
    """The bytes of a good answer."""
    parts: list[bytes] = []

    async def collect(data: bytes) -> None:
        parts.append(data)

    await well(Collecting(**vars(exchange), collect=collect))
    return b"".join(parts)


async def byte_by_byte(exchange: Exchange) -> None:
    answer = await whole(exchange)
    for place in range(len(answer)):
        await exchange.send(answer[place : place + 1])


async def after_an_interim_answer(exchange: Exchange) -> None:
    await exchange.send(b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n")
    await well(exchange)


async def until_close(exchange: Exchange) -> None:
    await exchange.head(content_type="application/json")
    await exchange.send(b'{"usage": {"prompt_tokens": 5, "completion_tokens": 1}}')
    exchange.writer.close()


async def more_than_asked(exchange: Exchange) -> None:
    await exchange.send(await whole(exchange) + b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")


def test_a_whole_stream_is_timed_counted_and_its_connection_used_again() -> None:
    with FakeServer() as server:
        first, second = send(parse_target(server.url), times=2)
    assert first.ok
    assert second.ok
    assert (second.prompt_tokens, second.completion_tokens, second.cached_tokens) == (1100, 3, 512)
    assert (second.headers[b"x-dlb-cell"], second.headers[b"x-request-id"]) == (b"us", b"r1")
    assert len(second.gaps_s) == 2
    instants = (second.sent_s, second.first_byte_s, second.first_token_s, second.last_token_s, second.end_s)
    known = [instant for instant in instants if instant is not None]
    assert len(known) == 5
    assert known == sorted(known)
    assert server.connections == 1


def test_the_request_says_what_the_row_says() -> None:
    writer = RequestWriter(
        PromptBuilder(), "run", default_model='say "m"', max_output_tokens=30, api_key="k", stream=True
    )
    with FakeServer() as server:
        target = parse_target(f"{server.url}/llm")
        send(target, writer=writer)
    (received,) = server.requests
    assert received.path == "/llm/v1/chat/completions"
    names = ("host", "x-session-id", "x-request-id", "authorization", "content-type")
    assert [received.headers[name] for name in names] == [
        target.host_header, "feedc0de", "run-7", "Bearer k", "application/json",
    ]  # fmt: skip
    message = {"role": "user", "content": PromptBuilder().build(ROW).decode()}
    assert received.body == {
        "model": 'say "m"',
        "messages": [message],
        "max_tokens": 30,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
        "temperature": 0,
    }


def test_the_completions_endpoint_gets_the_bare_prompt() -> None:
    writer = RequestWriter(PromptBuilder(), "run", forced_model="m", endpoint="completions", stream=False)
    with FakeServer() as server:
        (answer,) = send(parse_target(server.url), writer=writer)
    assert answer.ok
    assert server.requests[0].path == "/v1/completions"
    assert server.requests[0].body["prompt"] == PromptBuilder().build(ROW).decode()
    assert server.requests[0].body["max_tokens"] == ROW.output_tokens
    assert "stream_options" not in server.requests[0].body


@pytest.mark.parametrize(
    ("answer_with", "stream", "reason"),
    [
        (cut_mid_chunk, True, "truncated"),
        (no_done, True, "truncated"),
        (reset_after_head, True, "truncated"),
        (too_long_a_length, False, "truncated"),
        (too_short_a_length, False, "bad-json"),
        (too_long_a_length, True, "truncated"),
        (hang_up, True, "disconnected"),
        (busy, True, "http-503"),
        (garbage, True, "bad-http"),
        (stream_error, True, "stream-error"),
    ],
)
def test_a_bad_answer_is_a_failed_request_sent_once(answer_with: Behaviour, stream: bool, reason: str) -> None:
    with FakeServer([answer_with]) as server:
        (answer,) = send(parse_target(server.url), stream=stream)
    assert (answer.failure, answer.ok, answer.reconnected, answer.moved) == (reason, False, False, 0)
    assert len(server.requests) == 1


@pytest.mark.parametrize("answer_with", [byte_by_byte, after_an_interim_answer])
def test_however_a_whole_answer_comes_it_is_whole(answer_with: Behaviour) -> None:
    with FakeServer([answer_with]) as server:
        answers = send(parse_target(server.url), times=2)
    assert [(answer.failure, answer.completion_tokens) for answer in answers] == [(None, 3)] * 2
    assert server.connections == 1


def test_a_document_without_a_length_ends_with_its_connection() -> None:
    with FakeServer([until_close]) as server:
        (answer,) = send(parse_target(server.url), stream=False)
    assert (answer.failure, answer.prompt_tokens) == (None, 5)


def test_a_connection_with_an_answer_too_many_is_not_used_again() -> None:
    with FakeServer([more_than_asked]) as server:
        answers = send(parse_target(server.url), times=3)
    assert [answer.failure for answer in answers] == [None] * 3
    assert server.connections == 3


def test_after_a_refusal_by_status_the_connection_is_used_again() -> None:
    with FakeServer([busy, well]) as server:
        failed, fine = send(parse_target(server.url), times=2)
    assert (failed.failure, failed.detail, fine.ok) == ("http-503", "queue full", True)
    assert server.connections == 1


def test_a_stalled_stream_ends_at_the_time_limit() -> None:
    with FakeServer([stall]) as server:
        (answer,) = send(parse_target(server.url), timeout_s=0.15)
    assert answer.failure == "timeout"
    assert answer.first_token_s is not None


def test_a_pooled_connection_that_died_gets_one_fresh_one_and_keeps_the_first_timer() -> None:
    with FakeServer([well, hang_up, well]) as server:
        _, again = send(parse_target(server.url), times=2)
    assert (again.ok, again.reconnected) == (True, True)
    assert (len(server.requests), server.connections) == (3, 2)


def test_a_fresh_connection_that_dies_too_is_the_request_s_failure() -> None:
    with FakeServer([well, hang_up]) as server:
        _, again = send(parse_target(server.url), times=2)
    assert (again.failure, again.reconnected) == ("disconnected", True)
    assert len(server.requests) == 3


def test_a_pooled_connection_that_dies_after_the_first_byte_is_not_tried_again() -> None:
    with FakeServer([well, cut_mid_chunk]) as server:
        _, cut = send(parse_target(server.url), times=2)
    assert (cut.failure, cut.reconnected) == ("truncated", False)
    assert len(server.requests) == 2


def test_a_connection_closed_while_idle_is_not_used_again() -> None:
    async def main(target: Target) -> None:
        pool = Pool(target, connect_timeout_s=5.0, tls=None)
        request = RequestWriter(PromptBuilder(), "run", default_model="m").write(ROW).to(target)
        connection = await pool.take()
        await connection.exchange(request, Answer(stream=True))
        while repr(connection) != "<Connection closed, 1 exchanges>":
            await asyncio.sleep(0.001)
        another = await pool.take()
        assert another is not connection
        another.drop()

    async def well_and_gone(exchange: Exchange) -> None:
        await well(exchange)
        exchange.writer.close()

    with FakeServer([well_and_gone]) as server:
        uvloop.run(asyncio.wait_for(main(parse_target(f"t={server.url}")), 20))


def test_a_request_given_up_is_given_up_on_its_connection_too() -> None:
    left = threading.Event()

    async def until_left(exchange: Exchange) -> None:
        with contextlib.suppress(ConnectionError):
            await exchange.reader.read()
        left.set()

    async def main(target: Target) -> None:
        client = Client([target], connect_timeout_s=5.0, timeout_s=60.0, tls=None)
        request = RequestWriter(PromptBuilder(), "run", default_model="m").write(ROW)
        sending = asyncio.ensure_future(client.send(request, [target], Answer(stream=True)))
        assert await asyncio.to_thread(server.seen.wait, 20)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        assert await asyncio.to_thread(left.wait, 20)

    with FakeServer([until_left]) as server:
        uvloop.run(main(parse_target(server.url)))


def test_a_refused_connection_moves_the_request_to_the_next_target() -> None:
    with FakeServer() as server, refusing() as gone:
        (answer,) = send(gone, parse_target(f"up={server.url}"))
    assert (answer.ok, answer.moved, answer.target) == (True, 1, "up")


def test_when_all_refuse_the_request_has_failed() -> None:
    with refusing() as gone:
        (answer,) = send(gone)
    assert (answer.failure, answer.sent_s) == ("refused", None)


def test_a_failure_after_bytes_were_sent_moves_nowhere() -> None:
    with FakeServer([hang_up]) as bad, FakeServer() as good:
        (answer,) = send(parse_target(bad.url), parse_target(good.url))
    assert (answer.failure, len(good.requests)) == ("disconnected", 0)


@pytest.mark.parametrize("host", ["no-such-host.invalid", "no..host", "x" * 70])
def test_a_host_that_does_not_exist_is_a_failure_to_connect(host: str) -> None:
    (answer,) = send(parse_target(f"http://{host}:1"))
    assert answer.failure == "connect-failed"
    assert answer.detail


def test_connecting_has_its_own_time_limit() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=1) as listener, contextlib.ExitStack() as waiting:
        # A full backlog that nobody accepts from: further connections are left unanswered.
        for _ in range(3):
            client = waiting.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(listener.getsockname())
        (answer,) = send(parse_target(f"http://127.0.0.1:{listener.getsockname()[1]}"), connect_timeout_s=0.15)
    assert answer.failure == "connect-timeout"


def test_tls_is_spoken_and_an_unknown_certificate_is_refused(tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not here to make a certificate")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    make = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
    name = "-subj /CN=localhost -addext subjectAltName=IP:127.0.0.1"
    command = [*make.split(), *name.split(), "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    served = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    served.load_cert_chain(certificate, key)
    with FakeServer(tls=served) as server:
        target = parse_target(server.url)
        trusting = send(target, times=2, tls=ssl.create_default_context(cafile=str(certificate)))
        (wary,) = send(target, tls=ssl.create_default_context())
    assert [answer.failure for answer in trusting] == [None, None]
    assert wary.failure == "connect-failed"
    assert "certificate" in wary.detail.lower()
