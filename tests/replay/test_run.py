"""A run in this process: who counts when it is cut short."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import uvloop

from dlbctl.replay.prompts import PromptBuilder
from dlbctl.replay.run import Plan, Run
from dlbctl.replay.tally import Tally
from dlbctl.replay.targets import parse_target
from dlbctl.replay.trace import Row
from dlbctl.replay.wire import RequestWriter

from .server import Exchange, FakeServer

if TYPE_CHECKING:
    from dlbctl.replay.outcome import Outcome


async def never(exchange: Exchange) -> None:
    await exchange.released.wait()


def test_a_request_cut_before_it_was_written_is_counted_too() -> None:
    rows = tuple(Row(number, 0.0, 100, 5, (number,), "s") for number in range(1, 5))
    records: list[Outcome] = []
    tally = Tally()

    async def main(url: str) -> None:
        writer = RequestWriter(PromptBuilder(), "run", default_model="m")
        plan = Plan(rows, (parse_target(url),), writer)
        run = Run(plan, tally, record=records.append, watch=lambda _: None)
        running = asyncio.ensure_future(run.run())
        while len(run.unsent) == len(rows):
            await asyncio.sleep(0)
        # This turn of the loop released the rows; their tasks have not had a step.
        run.stop()
        await running
        assert run.unsent == ()

    with FakeServer([never]) as server:
        uvloop.run(main(server.url))
    assert tally.results == {"interrupted": 4}
    assert sorted(record.line for record in records) == [1, 2, 3, 4]
