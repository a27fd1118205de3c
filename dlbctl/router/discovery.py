"""Asks a leaf's servers what they serve, and notices that way which of them answer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

import httpx

from dlbctl.core.settings import TargetSettings

if TYPE_CHECKING:
    from dlbctl.core.tier import Tier

_LOG = logging.getLogger(__name__)

POLL_DOWN_S = 0.5
POLL_UP_S = 5.0  # a dead server is noticed by the requests it refuses
TIMEOUT_S = 5.0
# One missed answer of a busy server is no death; a refused connection is.
MISSES_TO_EJECT = 2


class Discovery:
    """One poll loop per server of a leaf tier; follows the tier's targets as they change."""

    def __init__(self, tier: Tier, clock: Callable[[], float]) -> None:
        self._tier = tier
        self._clock = clock
        self._loops: dict[TargetSettings, asyncio.Task[None]] = {}

    def __repr__(self) -> str:
        return f"<Discovery of {len(self._loops)} servers>"

    async def run(self) -> None:
        """Poll until cancelled."""
        async with httpx.AsyncClient(timeout=TIMEOUT_S, trust_env=False) as client:
            try:
                while True:
                    self._follow(client)
                    await asyncio.sleep(POLL_DOWN_S)
            finally:
                for loop in self._loops.values():
                    loop.cancel()
                await asyncio.gather(*self._loops.values(), return_exceptions=True)

    def _follow(self, client: httpx.AsyncClient) -> None:
        """One loop for each target there is, none for those that are gone."""
        wanted = {target.settings for target in self._tier.targets.values()}
        for settings in wanted - self._loops.keys():
            self._loops[settings] = asyncio.create_task(self._poll(client, settings))
        for settings in self._loops.keys() - wanted:
            self._loops.pop(settings).cancel()

    async def _poll(self, client: httpx.AsyncClient, settings: TargetSettings) -> None:
        misses = 0
        was_up: bool | None = None
        while True:
            up, refused = await self._ask(client, settings)
            if up != was_up and not (up and was_up is None):
                state = "answers" if up else "does not answer, or does not say what it serves; asking on"
                _LOG.log(logging.INFO if up else logging.WARNING, "server %s %s", settings.addresses[0], state)
            was_up = up
            misses = 0 if up else misses + 1
            if up or refused or misses >= MISSES_TO_EJECT:
                self._tier.address_changed(self._clock(), settings.name, settings.addresses[0], up)
            await asyncio.sleep(POLL_UP_S if up else POLL_DOWN_S)

    async def _ask(self, client: httpx.AsyncClient, settings: TargetSettings) -> tuple[bool, bool]:
        """Whether the server answers, and whether it refused the connection."""
        try:
            response = await client.get(f"{settings.addresses[0]}/v1/models")
        except httpx.ConnectError:
            return False, True
        except httpx.HTTPError:
            return False, False
        if settings.endpoints:
            # What it serves is configured, so any sign of life will do; a loading engine answers 503.
            return response.status_code < 500, False
        models = _model_names(response)
        if models:
            self._tier.models_learned(self._clock(), settings.name, models)
        return bool(models), False


def _model_names(response: httpx.Response) -> tuple[str, ...]:
    """The names in an OpenAI-style list of models; none when it is something else."""
    if response.status_code != 200:
        return ()
    try:
        entries = response.json()["data"]
        names = {str(entry["id"]) for entry in entries}
    except (ValueError, KeyError, TypeError, RecursionError):
        return ()
    # A name travels in a header between root and leaf.
    return tuple(sorted(name for name in names if name and name.isprintable()))
