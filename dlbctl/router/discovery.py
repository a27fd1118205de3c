"""Asks a leaf's servers what they serve, and notices that way which of them answer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

import httpx

from dlbctl.core.events import Probe
from dlbctl.core.settings import HealthSettings, TargetSettings

if TYPE_CHECKING:
    from dlbctl.core.tier import Tier

_LOG = logging.getLogger(__name__)

MODELS_PATH = "/v1/models"
# A server that is down, or has just missed a probe, is asked more often.
HURRY_S = 0.5
LOADING_STATUS = 503
# A probe shows that a connection can be made, and leaves none at a server that is removed.
EACH_ON_ITS_OWN = {"connection": "close"}


WORDS = {
    Probe.OK: "answers",
    Probe.FAILED: "does not answer, or does not say what it serves; asking on",
    Probe.LOADING: "is loading its model",
    Probe.REFUSED: "refuses connections; asking on",
}


class Discovery:
    """One poll loop per server of a leaf tier. changed: told after each answer and each lack of one."""

    def __init__(self, tier: Tier, clock: Callable[[], float], changed: Callable[[], None] = lambda: None) -> None:
        self._tier = tier
        self._clock = clock
        self._changed = changed
        self._client: httpx.AsyncClient | None = None
        self._loops: dict[TargetSettings, asyncio.Task[None]] = {}

    def __repr__(self) -> str:
        return f"<Discovery of {len(self._loops)} servers>"

    async def run(self) -> None:
        """Poll until cancelled."""
        async with httpx.AsyncClient(trust_env=False, headers=EACH_ON_ITS_OWN) as self._client:
            self.follow()
            try:
                await asyncio.Event().wait()
            finally:
                for loop in self._loops.values():
                    loop.cancel()
                await asyncio.gather(*self._loops.values(), return_exceptions=True)

    def follow(self) -> None:
        """One loop for each server there is now, none for those that are gone. The others are not touched."""
        if self._client is None:
            return  # `run` begins with it
        wanted = {target.settings for target in self._tier.targets.values()}
        for settings in self._loops.keys() - wanted:
            self._loops.pop(settings).cancel()
        for settings in wanted - self._loops.keys():
            self._loops[settings] = asyncio.create_task(self._poll(self._client, settings))

    async def _poll(self, client: httpx.AsyncClient, settings: TargetSettings) -> None:
        address = settings.addresses[0]
        was: Probe | None = None
        while True:
            health = self._tier.settings.health
            result = await self._ask(client, settings, health)
            self._tier.probed(self._clock(), settings.name, address, result)
            if result is not was and not (was is None and result is Probe.OK):
                _LOG.log(
                    logging.INFO if result is Probe.OK else logging.WARNING, "server %s %s", address, WORDS[result]
                )
            was = result
            self._changed()
            await asyncio.sleep(health.interval_s if result is Probe.OK else min(HURRY_S, health.interval_s))

    async def _ask(self, client: httpx.AsyncClient, settings: TargetSettings, health: HealthSettings) -> Probe:
        """Ask whether it is well and, unless that is configured, what it serves."""
        try:
            response = await client.get(settings.addresses[0] + health.path, timeout=health.timeout_s)
            found = _judge(response, of_health=health.path != MODELS_PATH)
            if found is not Probe.OK or settings.endpoints:
                return found
            if health.path != MODELS_PATH:
                response = await client.get(settings.addresses[0] + MODELS_PATH, timeout=health.timeout_s)
        except httpx.ConnectError:
            return Probe.REFUSED
        except httpx.HTTPError:
            return Probe.FAILED
        models = _model_names(response)
        if models:
            self._tier.models_learned(self._clock(), settings.name, models)
        return Probe.OK if models else Probe.FAILED


def _judge(response: httpx.Response, *, of_health: bool) -> Probe:
    """What an answer says of its server. Asked for its models, any sign of life will do; for its health, only a 2xx."""
    if response.status_code == LOADING_STATUS and "loading" in response.text[:1000].lower():
        return Probe.LOADING  # llama.cpp, until it can work
    well = response.is_success if of_health else response.status_code < 500
    return Probe.OK if well else Probe.FAILED


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
