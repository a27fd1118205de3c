"""The OpenAI SDK, as users run it, against a real engine: straight and through a root."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from .llama import INSTALL, MODEL, Llama
from .processes import eventually
from .root import Root

pytest.importorskip("openai", reason=f"needs openai: {INSTALL}")

from openai import APIConnectionError, AsyncOpenAI, NotFoundError, OpenAI
from openai.types.chat import ChatCompletionMessageParam

pytestmark = [pytest.mark.real, pytest.mark.slow]

MESSAGES: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Where do the bytes go?"}]
PROMPT = "Once upon a time"
LONG = 20_000  # tokens: ten seconds of work or more


@pytest.fixture
def client(front: str) -> Iterator[OpenAI]:
    with _client(front) as client:
        yield client


def _client(url: str) -> OpenAI:
    return OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=30)


def _async_client(url: str) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=30)


def _is_idle(llama: Llama) -> bool:
    return llama.requests_processing() == 0


def test_chat_answers_with_text_and_usage(client: OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=12)
    assert answer.choices[0].finish_reason == "length"
    assert len(answer.choices[0].message.content or "") >= 12
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 12
    assert answer.usage.prompt_tokens > len("Where do the bytes go?") / 2


def test_chat_stream_brings_a_chunk_for_each_token_and_usage_last(client: OpenAI) -> None:
    with client.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_tokens=50, stream=True, stream_options={"include_usage": True}
    ) as stream:
        chunks = list(stream)
    pieces = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices and chunk.choices[0].delta.content]
    assert len(pieces) == 50
    assert [chunk.usage is not None for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 50


def test_completion_answers_with_text_and_usage(client: OpenAI) -> None:
    answer = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=12)
    assert len(answer.choices[0].text) >= 12
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 12


def test_streamed_completion_is_the_same_text_as_the_whole_one(client: OpenAI) -> None:
    whole = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=50, temperature=0, seed=7)
    with client.completions.create(
        model=MODEL, prompt=PROMPT, max_tokens=50, temperature=0, seed=7, stream=True
    ) as stream:
        pieces = [chunk.choices[0].text for chunk in stream if chunk.choices]
    assert "".join(pieces) == whole.choices[0].text


def test_async_client_runs_whole_and_streamed_answers_side_by_side(front: str) -> None:
    async def whole(client: AsyncOpenAI) -> int:
        answer = await client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=40)
        assert answer.usage is not None
        return answer.usage.completion_tokens

    async def streamed(client: AsyncOpenAI) -> int:
        stream = await client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=40, stream=True)
        return len([chunk async for chunk in stream if chunk.choices and chunk.choices[0].text])

    async def run() -> list[int]:
        async with _async_client(front) as client:
            return await asyncio.gather(*(work(client) for work in [whole, streamed] * 4))

    assert asyncio.run(run()) == [40] * 8


def test_leaving_a_stream_frees_the_slot_within_a_second(client: OpenAI, llama: Llama) -> None:
    with client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=LONG, stream=True) as stream:
        next(iter(stream))
        assert llama.requests_processing() == 1
    eventually(lambda: _is_idle(llama), within_s=1)


def test_cancelling_an_async_stream_frees_the_slot_within_a_second(front: str, llama: Llama) -> None:
    async def read(started: asyncio.Event) -> None:
        async with _async_client(front) as client:
            async for _ in await client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=LONG, stream=True):
                started.set()

    async def run() -> None:
        started = asyncio.Event()
        reader = asyncio.create_task(read(started))
        await started.wait()
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader

    asyncio.run(run())
    eventually(lambda: _is_idle(llama), within_s=1)


def test_same_seed_gives_the_same_bytes_through_a_root(llama: Llama, root: Root) -> None:
    request = {"model": MODEL, "messages": MESSAGES, "max_tokens": 200, "temperature": 0, "seed": 7}
    texts = [
        httpx.post(f"{url}/v1/chat/completions", json=request).raise_for_status().json()["choices"]
        for url in (llama.url, root.url)
    ]
    assert texts[0] == texts[1]


def test_model_that_nobody_serves_is_404_in_the_openai_shape(root: Root) -> None:
    with _client(root.url) as client, pytest.raises(NotFoundError) as refused:
        client.chat.completions.create(model="no-such-model", messages=MESSAGES)
    error = json.loads(refused.value.response.content)["error"]
    assert isinstance(error["message"], str)
    assert "no-such-model" in error["message"]
    assert isinstance(error["type"], str)
    assert {"param", "code"} <= set(error)


class TestEngineThatDies:
    """An engine of the test's own, since it is killed."""

    @pytest.fixture
    def mortal(self, tiny_model: Path) -> Iterator[Llama]:
        with Llama(tiny_model) as server:
            yield server

    @pytest.fixture
    def front_of_mortal(self, request: pytest.FixtureRequest, mortal: Llama, tmp_path: Path) -> Iterator[Root]:
        with Root(tmp_path, server=mortal.url, model=MODEL) as process:
            yield process

    def test_killed_in_mid_stream_raises_in_the_client(self, mortal: Llama, front_of_mortal: Root) -> None:
        # openai 2 lets its HTTP library's error through
        broken = pytest.raises((APIConnectionError, httpx.TransportError))
        with _client(front_of_mortal.url) as client, broken:
            _read_while_killed(client, mortal)

    def test_started_again_on_its_port_serves_again(self, mortal: Llama, front_of_mortal: Root) -> None:
        with _client(front_of_mortal.url) as client:
            _ask(client)
            mortal.kill()
            mortal.start()
            eventually(front_of_mortal.is_ready, within_s=30)
            _ask(client)


def _ask(client: OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=5)
    assert answer.usage is not None


def _read_while_killed(client: OpenAI, mortal: Llama) -> None:
    with client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=LONG, stream=True) as stream:
        next(iter(stream))
        mortal.kill()
        for _ in stream:
            pass
