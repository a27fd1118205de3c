"""What a tier knows of its surroundings: its targets, its endpoints, which go together, and who can be chosen.

The events here are those about targets and endpoints; `Tier` adds those of requests.
"""

from __future__ import annotations

import random
from collections.abc import Iterable

from msgspec.structs import replace

from dlbctl.core.endpoint import Endpoint
from dlbctl.core.errors import ConfigError
from dlbctl.core.estimator import Estimator
from dlbctl.core.events import AdminState, EndpointState, Probe, State
from dlbctl.core.exploration import Exploration
from dlbctl.core.health import Standing
from dlbctl.core.news import Heard, News
from dlbctl.core.policy import Policy
from dlbctl.core.settings import DEFAULT_POLICY, EndpointSettings, HealthSettings, TargetSettings, TierSettings
from dlbctl.core.sources import Distances
from dlbctl.core.target import Candidate, Target


class Surroundings:
    """Targets, endpoints and the candidates between them.

    boot: identifies this run of the router to its peers.
    """

    def __init__(self, settings: TierSettings, boot: str) -> None:
        self.settings = settings
        self.boot = boot
        self.role = settings.role
        self.targets: dict[str, Target] = {}
        self.endpoints: dict[str, Endpoint] = {}
        self.estimators: dict[str, Estimator] = {}
        self.explorations: dict[str, Exploration] = {}
        self.distances = Distances()
        self.heard = Heard()
        self._health = _health_settings(settings)
        self._drained: set[tuple[str, str]] = set()  # target and address, or an empty address for all of it
        self.endpoints_changed(settings.endpoints)
        self.targets_changed(settings.targets)

    # -- what the tier hears -------------------------------------------------------------------------------

    def state_reported(self, now_s: float, target: str, address: str, state: State, rtt_s: float) -> None:
        """A leaf of a cell reported; endpoints nobody configured are routed with the default policy."""
        known = self.targets.get(target)
        if known is None or address not in known.addresses:
            return  # it was removed while the line was on its way
        known.measured(address, rtt_s)
        known.sources[address] = state.sources
        self._change_address(now_s, target, address, up=True)
        for name, endpoint_state in state.endpoints.items():
            self._endpoint_reported(now_s, known, address, name, endpoint_state)

    def pinged(self, now_s: float, source: str, rtt_s: float, news: News) -> None:
        """A root says where it stands and how far that is from here, which every root is told with the next report.

        And it has news, which this leaf keeps to itself.
        """
        self.distances.tell(now_s, source, 0.5 * rtt_s)
        self.heard.tell(now_s, news)

    def address_changed(self, now_s: float, target: str, address: str, up: bool) -> None:
        """An address began or ceased to answer."""
        self._change_address(now_s, target, address, up=up)

    def probed(self, now_s: float, target: str, address: str, result: Probe) -> None:
        """A server was asked whether it is well; thresholds decide what follows from that."""
        known = self.targets.get(target)
        if known is None or address not in known.addresses:
            return  # it was removed while the answer was on its way
        up = known.health.probed(result, down=address in known.down)
        if up is not None:
            self._change_address(now_s, target, address, up=up)

    def models_learned(self, now_s: float, target: str, models: tuple[str, ...]) -> None:  # noqa: ARG002
        """A server said what it serves; a configured list is not overruled."""
        known = self.targets.get(target)
        if known is None or known.settings.endpoints or known.models == models:
            return
        known.models = models
        self._match(known)

    def targets_changed(self, targets: Iterable[TargetSettings]) -> None:
        """Replace the set of targets. Open exchanges keep the target they were sent to until they end.

        A target that keeps an address keeps what is known of it: a cell does not go out of service for one more
        leaf, nor a server for another weight. Under the old name at new addresses it is another target.
        """
        wanted = {settings.name: settings for settings in targets}
        for name, target in list(self.targets.items()):
            settings = wanted.get(name)
            if settings is None or not set(settings.addresses) & set(target.addresses):
                self._remove(target)
        for name, settings in wanted.items():
            known = self.targets.get(name)
            if known is None:
                self.targets[name] = Target(settings, self._health)
                self._drain(self.targets[name])
                self._match(self.targets[name])
            elif known.settings != settings:
                self._change(known, settings)
        for endpoint in self.endpoints.values():
            endpoint.settle()

    def endpoints_changed(self, endpoints: Iterable[EndpointSettings]) -> None:
        """Replace the configured endpoints; live policy overrides stay."""
        wanted = {settings.name: settings for settings in endpoints}
        for name, endpoint in self.endpoints.items():
            if name in wanted or endpoint.configured:
                endpoint.configure(wanted.get(name) or EndpointSettings(name=name), configured=name in wanted)
        for name in [name for name in wanted if name not in self.endpoints]:
            self._add_endpoint(wanted[name], configured=True)

    def settings_changed(self, settings: TierSettings) -> None:
        """Replace what is neither a target nor an endpoint: time limits, retries, the queue, health. The seed stays."""
        self.settings = replace(settings, seed=self.settings.seed)
        self._health = _health_settings(settings)
        for target in self.targets.values():
            target.health.settings = self._health

    def policy_set(self, now_s: float, endpoint: str, policy: str) -> None:  # noqa: ARG002
        """Switch an endpoint's policy, or revert it with an empty one. ConfigError for what there is not."""
        known = self.endpoints.get(endpoint)
        if known is None:
            raise ConfigError(f"there is no endpoint {endpoint!r}", hint=f"one of: {', '.join(self.endpoints)}")
        known.set_policy(Policy.parse(policy) if policy else None)

    def admin_set(self, now_s: float, target: str, address: str, state: AdminState) -> None:  # noqa: ARG002
        """Take an address out, or put it back; "" for a whole target. ConfigError for what there is not.

        It holds whatever the health of the address, and for a target of that name that comes later.
        """
        known = self.targets.get(target)
        if known is None:
            raise ConfigError(f"there is no target {target!r}", hint=f"one of: {', '.join(self.targets)}")
        if address and address not in known.addresses:
            raise ConfigError(f"{target} has no address {address!r}", hint=f"one of: {', '.join(known.addresses)}")
        if state is AdminState.DRAIN:
            self._drained.add((target, address))
        elif address:
            self._drained.discard((target, address))
        else:
            self._drained = {key for key in self._drained if key[0] != target}
        self._drain(known)
        self._settle(known)

    # -- inside ------------------------------------------------------------------------------------------

    def _add_endpoint(self, settings: EndpointSettings, *, configured: bool) -> Endpoint:
        endpoint = Endpoint(settings, DEFAULT_POLICY[self.role], configured=configured)
        self.endpoints[settings.name] = endpoint
        if self.role == "leaf":
            self.estimators[settings.name] = Estimator(random.Random(self.settings.seed))  # noqa: S311
            self.explorations[settings.name] = Exploration()
        return endpoint

    def _endpoint_reported(self, now_s: float, target: Target, address: str, name: str, state: EndpointState) -> None:
        endpoint = self.endpoints.get(name) or self._add_endpoint(EndpointSettings(name=name), configured=False)
        candidate = endpoint.candidates.get(target.name)
        if candidate is None:
            candidate = self._add_candidate(endpoint, target)
        if candidate.report(now_s, address, state, self.boot):
            endpoint.settle()
        else:
            endpoint.touch(candidate)

    def _add_candidate(self, endpoint: Endpoint, target: Target) -> Candidate:
        candidate = Candidate(endpoint, target)
        if self.role == "root":
            candidate.k = candidate.weight = 0.0  # until its leaves have told how many servers it has
        endpoint.candidates[target.name] = candidate
        target.candidates.append(candidate)
        return candidate

    def _match(self, target: Target) -> None:
        """Make a server's candidates those of the models it serves (a cell's come with its reports)."""
        if self.role == "root":
            return
        served = set(target.models)
        for candidate in list(target.candidates):
            if candidate.endpoint.name not in served:
                target.candidates.remove(candidate)
                del candidate.endpoint.candidates[target.name]
                candidate.endpoint.settle()
        for name in sorted(served):
            endpoint = self.endpoints.get(name) or self._add_endpoint(EndpointSettings(name=name), configured=False)
            if target.name not in endpoint.candidates:
                self._add_candidate(endpoint, target)
            endpoint.settle()

    def _change_address(self, now_s: float, target: str, address: str, *, up: bool) -> None:
        known = self.targets.get(target)
        if known is None or address not in known.addresses or (address not in known.down) == up:
            return
        if up:
            known.mark(address, up=True)
            known.health.came_up(now_s)
            known.reweigh(now_s)
        else:
            known.mark(address, up=False)
            known.health.went_down()
            known.lost(address)
            known.sources.pop(address, None)
            for candidate in known.candidates:
                candidate.forget(address)
        self._settle(known)

    def _drain(self, target: Target) -> None:
        whole = (target.name, "") in self._drained
        target.drain(frozenset(a for a in target.addresses if whole or (target.name, a) in self._drained))

    def _change(self, target: Target, settings: TargetSettings) -> None:
        gone = [address for address in target.addresses if address not in settings.addresses]
        target.change(settings)
        self._drain(target)
        for candidate in target.candidates:
            if self.role == "leaf":  # a cell's are what its leaves report
                candidate.weight = settings.weight * target.share
                candidate.k = settings.weight
            for address in gone:
                candidate.forget(address)
        self._match(target)

    def _remove(self, target: Target) -> None:
        del self.targets[target.name]
        for address in target.addresses:
            target.mark(address, up=False)
        for candidate in target.candidates:
            del candidate.endpoint.candidates[target.name]
            candidate.endpoint.settle()

    def _eject(self, now_s: float, target: Target) -> None:
        """Give a server a rest, unless too many have one already."""
        ejected = sum(t.health.standing is not Standing.IN for t in self.targets.values() if t is not target)
        allowed = max(1, int(self._health.max_ejected * len(self.targets))) if len(self.targets) > 1 else 0
        if ejected < allowed:
            target.health.eject(now_s)
            target.ejections += 1
            self._settle(target)

    def _tend(self, now_s: float) -> None:
        """What time does to the servers' health: ejections end, slow starts go on."""
        for target in self.targets.values():
            if target.health.tend(now_s):
                self._settle(target)
            target.reweigh(now_s)

    def _settle(self, target: Target) -> None:
        for candidate in target.candidates:
            candidate.endpoint.settle()


def _health_settings(settings: TierSettings) -> HealthSettings:
    """A root's cells are judged by what their leaves report, not one by one like servers."""
    return settings.health if settings.role == "leaf" else HealthSettings(failures=0, slow_start_s=0.0)
