"""A long mixed run through a root, a leaf and embedded engines as processes: nothing leaks, nothing is miscounted.

Clients ask for JSON and streams, leave at every moment of a request, and meet engines that answer 500, never answer,
reset their connections or are killed. 20,000 requests take about a minute; DLBCTL_SOAK_REQUESTS=200000 asks for more.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
import uvloop

from tests.router.wire import Answer, Client, post

from .commands import Running, running, until_ready

REQUESTS = int(os.environ.get("DLBCTL_SOAK_REQUESTS", "20000"))
WORKERS = 48
# What the faults below make of a request that nobody gave up.
FAULTS = {
    "truncated",
    "500 500",
    "502 upstream_closed",
    "502 upstream_unreachable",
    "504 upstream_first_byte_timeout",
}
MEMORY_GROWTH = 1.10
SETTLING_S = 15.0

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(120 + REQUESTS // 100),
    pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="reads memory and open files in /proc"),
]

LEAF = """
[leaf]
cell = "eu"
listen = ""
peer_listen = "127.0.0.1:0"
admin = "unix:{folder}/leaf.sock"
readiness_grace_s = 0.0
[timeouts]
first_byte_s = 1.0
idle_s = 1.0
[health]  # faults are looked for here, not avoided
interval_s = 0.5
eject_s = 0.5
eject_max_s = 0.5
slow_start_s = 0.0
[[server]]
url = "{urls[0]}"
[[server]]
url = "{urls[1]}"
[[server]]
url = "{urls[2]}"
"""
ROOT = """
[root]
listen = "127.0.0.1:0"
admin = "unix:{folder}/root.sock"
readiness_grace_s = 0.0
[[cell]]
name = "eu"
leaves = ["{leaf}"]
"""


class Engines:
    """Two engines with a share of faults, and a third that is taken away and comes back. urls: of all three."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        steady = stack.enter_context(
            running(*engine_words(0), "--count", 2, "--error-rate", 0.01, "--hang-rate", 0.003)
        )
        self.urls = [f"http://{steady.line('http://')}" for _ in range(2)]
        self._fickle = stack.enter_context(running(*engine_words(0)))
        self.fickle_url = f"http://{self._fickle.line('http://')}"
        self.urls.append(self.fickle_url)

    async def disturb(self, done: Callable[[], float]) -> None:
        """Reset the third one's connections again and again, and kill it half way; done: the share of the run."""
        killed = False
        async with httpx.AsyncClient(base_url=self.fickle_url, trust_env=False) as client:
            while done() < 0.95:
                for down, pause_s in ((True, 0.1), (False, 0.5)):
                    await client.post("/debug/faults", json={"down": down})
                    await asyncio.sleep(pause_s)
                if done() > 0.5 and not killed:
                    killed = True
                    await asyncio.to_thread(self._kill_and_restart)

    def _kill_and_restart(self) -> None:
        self._fickle.end(signal.SIGKILL)
        port = int(self.fickle_url.rpartition(":")[2])
        self._fickle = self._stack.enter_context(running(*engine_words(port)))
        self._fickle.line("http://")


def engine_words(port: int) -> tuple[object, ...]:
    return ("engine", "--model", "m", "--time-factor", 100, "--stream-interval", 4, "--port", port)


class Wish(NamedTuple):
    """One request: tokens asked for, as a stream or not; leaves: seconds until the client gives up."""

    tokens: int
    stream: bool
    leaves_s: float | None

    @classmethod
    def draw(cls, rng: random.Random) -> Wish:
        leaves_s = rng.uniform(0.0, 0.02) if rng.random() < 0.1 else None
        return cls(rng.choice((1, 8, 24, 200)), rng.random() < 0.4, leaves_s)

    def request(self) -> bytes:
        body = {"model": "m", "prompt": "Tell me", "max_tokens": self.tokens, "ignore_eos": True, "stream": self.stream}
        if self.stream:
            body["stream_options"] = {"include_usage": True}
        return post(json.dumps(body).encode(), "/v1/completions")


class Load:
    """The clients. outcomes: what became of the requests, counted."""

    def __init__(self, port: int, requests: int) -> None:
        self.outcomes: Counter[str] = Counter()
        self._port = port
        self._requests = requests
        self._begun = 0

    def done(self) -> float:
        """The share of the requests that is over."""
        return self.outcomes.total() / self._requests

    async def run(self) -> None:
        """All of them, each client one after another."""
        await asyncio.gather(*(self._client(random.Random(number)) for number in range(WORKERS)))

    async def _client(self, rng: random.Random) -> None:
        client: Client | None = None
        while self._begun < self._requests:
            self._begun += 1
            client = client or await Client.connect(self._port)
            outcome = await self._ask(client, Wish.draw(rng))
            self.outcomes[outcome] += 1
            if outcome in {"left", "truncated"}:
                client.abort()
                client = None
        if client is not None:
            client.abort()

    async def _ask(self, client: Client, wish: Wish) -> str:
        try:
            async with asyncio.timeout(wish.leaves_s):
                answer = await client.ask(wish.request())
        except TimeoutError:
            return "left"
        if answer.status != 200:
            return f"{answer.status} {json.loads(answer.body)['error']['code']}"
        if not answer.whole:
            return "truncated"
        assert tokens_of(answer, wish) == wish.tokens, "an answer to somebody else's request"
        return "ok"


def tokens_of(answer: Answer, wish: Wish) -> int:
    """The completion tokens that the engine says it made."""
    text = answer.body
    if wish.stream:
        *_, last, done, rest = text.split(b"\n\n")
        assert (done, rest) == (b"data: [DONE]", b"")
        text = last.removeprefix(b"data: ")
    tokens: int = json.loads(text)["usage"]["completion_tokens"]
    return tokens


class Footprint(NamedTuple):
    """What a process holds."""

    resident_bytes: int
    files: int

    @classmethod
    def of(cls, process: Running) -> Footprint:
        proc = Path(f"/proc/{process.pid}")
        pages = int((proc / "statm").read_text().split()[1])
        return cls(pages * os.sysconf("SC_PAGE_SIZE"), len(list((proc / "fd").iterdir())))


def shown(folder: Path, role: str, what: str) -> Any:
    """One answer of a router's admin listener."""
    transport = httpx.HTTPTransport(uds=f"{folder}/{role}.sock")
    with httpx.Client(transport=transport, base_url="http://router", trust_env=False) as client:
        return client.get(f"/v1/{what}").raise_for_status().json()


def until_nothing_is_counted(folder: Path, role: str) -> None:
    """Wait for the last request to end; then every count there is must be zero."""
    deadline_s = time.monotonic() + SETTLING_S
    while (in_flight := shown(folder, role, "info")["in_flight"]) != 0:
        assert time.monotonic() < deadline_s, f"{in_flight} still in flight in the {role}"
        time.sleep(0.05)
    time.sleep(0.3)  # a report of the leaf's rest
    for what in ("endpoints", "servers", "cells"):
        for row in shown(folder, role, what):
            assert {row.get(count, 0) for count in ("in_flight", "rif", "work_s", "load")} == {0}, row


def unexplained(log: str, fickle_url: str) -> list[str]:
    """Lines of a log that tell of more than the server that was taken away."""
    loud = [line for line in log.splitlines() if not re.search(r" (INFO|DEBUG) ", line)]
    return [line for line in loud if f"WARNING dlbctl.router.discovery: server {fickle_url} " not in line]


async def soak(url: str, engines: Engines, routers: list[Running]) -> tuple[Load, list[Footprint]]:
    """The run, and what the routers held after its first tenth."""
    load = Load(int(url.rpartition(":")[2]), REQUESTS)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(load.run())
        tasks.create_task(engines.disturb(load.done))
        while load.done() < 0.1:
            await asyncio.sleep(0.01)
        early = [Footprint.of(router) for router in routers]
    return load, early


def test_a_long_mixed_run_leaves_nothing_behind(tmp_path: Path) -> None:
    with ExitStack() as stack:
        engines = Engines(stack)
        (tmp_path / "leaf.toml").write_text(LEAF.format(folder=tmp_path, urls=engines.urls))
        leaf = stack.enter_context(running("leaf", "--config", tmp_path / "leaf.toml"))
        (tmp_path / "root.toml").write_text(ROOT.format(folder=tmp_path, leaf=leaf.line("peers ")))
        root = stack.enter_context(running("root", "--config", tmp_path / "root.toml"))
        url = root.line("listening ")
        until_ready(url)
        load, early = uvloop.run(soak(url, engines, [root, leaf]))

        for role in ("root", "leaf"):
            until_nothing_is_counted(tmp_path, role)
        late = [Footprint.of(router) for router in (root, leaf)]
        ended = [router.end() for router in (root, leaf)]
    print(dict(load.outcomes), early, late)
    assert load.outcomes.total() == REQUESTS
    assert load.outcomes.keys() <= {"ok", "left", *FAULTS}
    assert [unexplained(err, engines.fickle_url) for _, _, err in ended] == [[], []]
    assert [code for code, _, _ in ended] == [0, 0]
    assert load.outcomes["ok"] > 0.8 * REQUESTS
    for before, after in zip(early, late, strict=True):
        assert after.resident_bytes < MEMORY_GROWTH * before.resident_bytes
        # At most what was busy at once: with clients or the root, and with each server; and what a process has.
        assert after.files < (1 + len(engines.urls)) * WORKERS + 40, "connections are left open"
