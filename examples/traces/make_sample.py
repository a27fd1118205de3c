"""Writes sample.jsonl and short.jsonl beside itself: the same bytes every time.

A minute that ramps from near idle to more than a small fleet can take, so that latency curves can be
identified, and sessions of several turns whose prompts grow: each shares the whole blocks of the one before.
Several system prompts, none on every row: an affinity key of the first block would otherwise see one session.

    python examples/traces/make_sample.py
"""

from __future__ import annotations

import json
import math
import random
from dataclasses import dataclass, field
from pathlib import Path

BLOCK_TOKENS = 512
SYSTEM_PROMPTS = 12
NEW_SESSION_SHARE = 0.4
MAX_INPUT_TOKENS = 6000


@dataclass
class Session:
    """A conversation so far. free_at_ms: not before this does its user ask again."""

    block_ids: list[int]
    input_tokens: int
    free_at_ms: int = 0


@dataclass
class Writer:
    """Makes rows; block ids are numbered in order of first appearance, as in the Mooncake traces."""

    rng: random.Random
    sessions: list[Session] = field(default_factory=list)
    system_prompts: dict[int, int] = field(default_factory=dict)
    next_block: int = 0

    def row(self, at_ms: int) -> dict[str, object]:
        """One request at an instant."""
        session = self._session(at_ms)
        output_tokens = max(8, min(160, round(self.rng.gammavariate(4.0, 14.0))))
        row = {
            "timestamp": at_ms,
            "input_length": session.input_tokens,
            "output_length": output_tokens,
            "hash_ids": list(session.block_ids),
        }
        session.free_at_ms = at_ms + round(self.rng.uniform(3000, 12000))
        return row

    def _session(self, at_ms: int) -> Session:
        waiting = [s for s in self.sessions if s.free_at_ms <= at_ms and s.input_tokens < MAX_INPUT_TOKENS - 400]
        if not waiting or self.rng.random() < NEW_SESSION_SHARE:
            session = self._new_session()
            self.sessions.append(session)
        else:
            session = self.rng.choice(waiting)
            self._grow(session, round(self.rng.uniform(80, 700)))
        return session

    def _new_session(self) -> Session:
        prompt = min(int(self.rng.expovariate(0.35)), SYSTEM_PROMPTS - 1)
        if prompt not in self.system_prompts:
            self.system_prompts[prompt] = self._new_block()
        session = Session([self.system_prompts[prompt]], BLOCK_TOKENS)
        # A whole second block, so that the first two blocks name the session for all its turns.
        self._grow(session, BLOCK_TOKENS + round(self.rng.gammavariate(1.2, 180.0)))
        return session

    def _grow(self, session: Session, tokens: int) -> None:
        # A partial last block becomes another block when text is added to it, as a cache would see it.
        if session.input_tokens % BLOCK_TOKENS:
            session.block_ids.pop()
        session.input_tokens = min(MAX_INPUT_TOKENS, session.input_tokens + tokens)
        while len(session.block_ids) < math.ceil(session.input_tokens / BLOCK_TOKENS):
            session.block_ids.append(self._new_block())

    def _new_block(self) -> int:
        self.next_block += 1
        return self.next_block - 1


def arrivals_ms(rng: random.Random, duration_s: float, first_per_s: float, last_per_s: float) -> list[int]:
    """Poisson arrivals whose rate climbs evenly from first_per_s to last_per_s."""
    instants, at_s = [0], 0.0
    while True:
        at_s += rng.expovariate(last_per_s)
        if at_s >= duration_s:
            return instants
        if rng.random() * last_per_s < first_per_s + (last_per_s - first_per_s) * at_s / duration_s:
            instants.append(round(at_s * 1000))


def write(path: Path, *, seed: float, duration_s: float, first_per_s: float, last_per_s: float) -> None:
    """Write one trace."""
    rng = random.Random(seed)  # noqa: S311 - a trace, no secret
    writer = Writer(rng)
    rows = [writer.row(at_ms) for at_ms in arrivals_ms(rng, duration_s, first_per_s, last_per_s)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


TRACES = {
    "sample.jsonl": {"seed": 20, "duration_s": 60.0, "first_per_s": 1.0, "last_per_s": 24.0},
    "short.jsonl": {"seed": 4, "duration_s": 10.0, "first_per_s": 4.0, "last_per_s": 8.0},
}

if __name__ == "__main__":
    for name, options in TRACES.items():
        write(Path(__file__).resolve().parent / name, **options)
