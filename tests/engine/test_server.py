"""The engine's HTTP interface over real sockets."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
import uvloop

if TYPE_CHECKING:
    from tests.engine.conftest import Live, Running

CHAT = {"messages": [{"role": "user", "content": "one two three"}]}


def chat(**fields: Any) -> dict[str, Any]:
    return {**CHAT, **fields}


async def events(live: Live, path: str, body: dict[str, Any]) -> list[Any]:
    """The events of a streamed answer, decoded; the end is the string [DONE]."""
    async with live.client.stream("POST", path, json={**body, "stream": True}) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = [line async for line in answer.aiter_lines() if line]
    data = [line.removeprefix("data: ") for line in lines]
    return [one if one == "[DONE]" else json.loads(one) for one in data]


def test_a_whole_chat_answer(running: Running) -> None:
    async def scenario() -> None:
        async with running(model="m") as live:
            answer = await live.client.post("/v1/chat/completions", json=chat(max_tokens=7, ignore_eos=True))
            assert answer.status_code == 200
            body = answer.json()
            assert (body["object"], body["model"]) == ("chat.completion", "m")
            (choice,) = body["choices"]
            assert choice["finish_reason"] == "length"
            assert choice["message"]["role"] == "assistant"
            assert len(choice["message"]["content"].split()) == 7
            assert body["usage"] == {
                "prompt_tokens": 8,
                "completion_tokens": 7,
                "total_tokens": 15,
                "prompt_tokens_details": {"cached_tokens": 0},
            }

    uvloop.run(scenario())


@pytest.mark.parametrize("interval", [1, 3, 100])
def test_a_streamed_chat_has_all_tokens_in_events_of_the_interval(running: Running, interval: int) -> None:
    async def scenario() -> None:
        async with running(stream_interval=interval) as live:
            body = chat(max_tokens=10, ignore_eos=True, stream_options={"include_usage": True})
            role, *texts, end, usage, done = await events(live, "/v1/chat/completions", body)
            assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
            counts = [len(text["choices"][0]["delta"]["content"].split()) for text in texts]
            assert counts[0] == 1
            assert sum(counts) == 10
            assert all(count == interval for count in counts[1:-1])
            assert end["choices"][0] == {
                "index": 0,
                "delta": {},
                "logprobs": None,
                "finish_reason": "length",
            }
            assert (usage["choices"], usage["usage"]["completion_tokens"]) == ([], 10)
            assert done == "[DONE]"
            assert len({event["id"] for event in [role, *texts, end, usage]}) == 1

    uvloop.run(scenario())


def test_streamed_and_whole_completions_of_text_and_of_ids(running: Running) -> None:
    async def scenario() -> None:
        async with running() as live:
            *texts, end, done = await events(
                live, "/v1/completions", {"prompt": "a b c", "max_tokens": 4, "ignore_eos": True}
            )
            assert "".join(text["choices"][0]["text"] for text in texts).count(" ") == 3
            assert (end["choices"][0]["finish_reason"], done) == ("length", "[DONE]")
            body = {"prompt": [5, 6, 7, 8], "max_tokens": 1, "ignore_eos": True}
            answer = (await live.client.post("/v1/completions", json=body)).json()
            assert answer["object"] == "text_completion"
            assert answer["usage"]["prompt_tokens"] == 4
            assert len(answer["choices"][0]["text"].split()) == 1

    uvloop.run(scenario())


def test_a_limit_caps_a_drawn_length_and_the_seed_fixes_it(running: Running) -> None:
    async def lengths(seed: int) -> list[tuple[int, str]]:
        async with running(seed=seed) as live:
            answers = [
                (await live.client.post("/v1/chat/completions", json=chat(max_tokens=20))).json() for _ in range(20)
            ]
        return [(a["usage"]["completion_tokens"], a["choices"][0]["finish_reason"]) for a in answers]

    first = uvloop.run(lengths(1))
    assert {reason for _, reason in first} == {"stop", "length"}
    assert all((tokens == 20) == (reason == "length") for tokens, reason in first)
    assert uvloop.run(lengths(1)) == first
    assert uvloop.run(lengths(2)) != first


def test_a_prompt_seen_before_is_reported_as_cached(running: Running) -> None:
    async def scenario() -> None:
        async with running() as live:
            body = {"prompt": " ".join(f"w{n}" for n in range(1000)), "max_tokens": 1}
            await live.client.post("/v1/completions", json=body)
            again = (await live.client.post("/v1/completions", json=body)).json()
            assert again["usage"]["prompt_tokens_details"] == {"cached_tokens": 992}
            assert await live.metric("vllm:prefix_cache_hits_total") == 992
            assert await live.metric("vllm:prefix_cache_queries_total") == 2000

    uvloop.run(scenario())


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "complaint"),
    [
        ("POST", "/v1/chat/completions", b"{", 400, "not JSON"),
        ("POST", "/v1/chat/completions", b"\xff\xfe", 400, "not JSON"),
        ("POST", "/v1/chat/completions", b'{"messages": []}', 400, "messages"),
        ("POST", "/v1/chat/completions", b'{"messages": [{"role": 3}]}', 400, "$.messages[0].role"),
        ("POST", "/v1/completions", b'{"prompt": ["a", "b"]}', 400, "not several"),
        ("POST", "/v1/completions", b'{"prompt": [[1], [2]]}', 400, "not several"),
        ("POST", "/v1/completions", b'{"prompt": [1, -2]}', 400, "not several"),
        ("POST", "/v1/completions", b'{"prompt": []}', 400, "not several"),
        ("POST", "/v1/completions", b'{"prompt": [99999999999999999999]}', 400, "token ids"),
        ("POST", "/v1/completions", b'{"prompt": "a", "n": 2}', 400, "n other than 1"),
        ("POST", "/v1/completions", b'{"prompt": "a", "max_tokens": 0}', 400, "max_tokens"),
        ("POST", "/v1/completions", b'{"prompt": "a", "max_tokens": 65536}', 400, "65536 tokens"),
        ("POST", "/v1/completions", b'{"prompt": "a", "model": "b"}', 404, "`b` does not exist"),
        ("GET", "/v1/completions", b"", 405, "takes POST"),
        ("POST", "/health", b"", 405, "takes GET"),
        ("GET", "/v2/nothing", b"", 404, "/v2/nothing"),
        ("POST", "/debug/faults", b'{"slowdwn": 3}', 400, "slowdwn"),
        ("POST", "/debug/faults", b'{"error_rate": 3}', 400, "error_rate"),
    ],
)
def test_bad_requests_get_an_openai_error(
    running: Running, method: str, path: str, body: bytes, status: int, complaint: str
) -> None:
    async def scenario() -> None:
        async with running() as live:
            answer = await live.client.request(method, path, content=body)
            assert answer.status_code == status
            error = answer.json()["error"]
            assert complaint in error["message"]
            assert error["code"] == status
            assert (await live.client.get("/health")).status_code == 200

    uvloop.run(scenario())


def test_a_full_queue_answers_503_with_retry_after_and_the_others_are_served(running: Running) -> None:
    async def scenario() -> None:
        async with running(queue_limit=2) as live:
            body = chat(max_tokens=50, ignore_eos=True)
            answers = await asyncio.gather(*(live.client.post("/v1/chat/completions", json=body) for _ in range(10)))
            refused = [answer for answer in answers if answer.status_code == 503]
            assert len(refused) == 10 - 4 - 2
            assert all(answer.headers["retry-after"] == "1" for answer in refused)
            assert await live.metric("dlb_engine_rejected_total") == 4
            assert await live.metric("vllm:request_success_total") == 6

    uvloop.run(scenario())


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_place_at_once(running: Running, stream: bool) -> None:
    async def scenario() -> None:
        async with running() as live:
            _, writer = await asyncio.open_connection("127.0.0.1", live.port)
            body = json.dumps(chat(max_tokens=60000, ignore_eos=True, stream=stream)).encode()
            writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n")
            writer.write(b"content-length: %d\r\n\r\n%b" % (len(body), body))
            await live.until("vllm:num_requests_running", 1)
            writer.close()
            await live.until("vllm:num_requests_running", 0)
            assert await live.metric("vllm:kv_cache_usage_perc") == 0
            assert live.server.metrics.aborted == 1

    uvloop.run(scenario())


def test_vllm_metrics(running: Running) -> None:
    async def scenario() -> None:
        async with running(model="m") as live:
            await live.client.post("/v1/chat/completions", json=chat(max_tokens=9, ignore_eos=True))
            text = (await live.client.get("/metrics")).text
            assert 'vllm:generation_tokens_total{model_name="m"} 9.0' in text
            assert 'vllm:prompt_tokens_total{model_name="m"} 8.0' in text
            assert 'vllm:time_to_first_token_seconds_bucket{le="+Inf",model_name="m"} 1.0' in text
            assert 'vllm:num_requests_waiting{model_name="m"} 0.0' in text
            assert "dlb_engine_loop_lag_p99_seconds" in text
            assert "sglang" not in text

    uvloop.run(scenario())


def test_sglang_metrics(running: Running) -> None:
    async def scenario() -> None:
        async with running(flavor="sglang") as live:
            body = {"prompt": "a " * 100, "max_tokens": 2}
            for _ in range(2):
                await live.client.post("/v1/completions", json=body)
            assert await live.metric("sglang:num_running_reqs") == 0
            assert await live.metric("sglang:num_queue_reqs") == 0
            assert await live.metric("sglang:token_usage") == 0
            assert await live.metric("sglang:cache_hit_rate") == pytest.approx(0.48)
            assert await live.metric("sglang:max_total_num_tokens") == 8192 * 16

    uvloop.run(scenario())


def test_the_model_is_listed(running: Running) -> None:
    async def scenario() -> None:
        async with running(model="m") as live:
            (card,) = (await live.client.get("/v1/models")).json()["data"]
            assert (card["id"], card["max_model_len"]) == ("m", 65536)

    uvloop.run(scenario())


def test_the_openai_sdk_streams_and_waits(running: Running) -> None:
    import openai

    async def scenario() -> None:
        async with (
            running(model="m") as live,
            openai.AsyncOpenAI(base_url=live.url + "/v1", api_key="x") as sdk,
        ):
            whole = await sdk.chat.completions.create(
                model="m",
                messages=[{"role": "user", "content": "hi"}],
                max_tokens=5,
                extra_body={"ignore_eos": True},
            )
            assert whole.usage is not None
            assert whole.usage.completion_tokens == 5
            stream = await sdk.chat.completions.create(
                model="m",
                messages=[{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
                max_completion_tokens=5,
                stream=True,
                stream_options={"include_usage": True},
                extra_body={"ignore_eos": True},
            )
            chunks = [chunk async for chunk in stream]
            text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
            assert len(text.split()) == 5
            assert chunks[-1].usage is not None
            with pytest.raises(openai.NotFoundError, match="does not exist"):
                await sdk.completions.create(model="other", prompt="x")

    uvloop.run(scenario())


def test_a_slow_reader_costs_no_memory_and_still_gets_every_token(running: Running) -> None:
    tokens = 60_000

    async def scenario() -> None:
        async with running(time_factor=1000) as live:
            reader, writer = await asyncio.open_connection("127.0.0.1", live.port, limit=1024)
            body = json.dumps(chat(max_tokens=tokens, ignore_eos=True, stream=True)).encode()
            writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n")
            writer.write(b"content-length: %d\r\n\r\n%b" % (len(body), body))
            while not live.server.metrics.finished:
                await asyncio.sleep(0)
            (held,) = [one for one in live.server._connections if one._current is not None]
            assert held._transport.get_write_buffer_size() < 200_000
            answer = await reader.read(-1)
            writer.close()
            assert answer.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
            texts = answer.split(b'"content":"')[2:]
            assert sum(len(text.split(b'"', 1)[0].split()) for text in texts) == tokens
            assert len(texts) < tokens  # what piled up came in one event

    uvloop.run(scenario())
