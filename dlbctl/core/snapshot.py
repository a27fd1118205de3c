"""What a tier shows of itself: rows for people and machines, read without changing anything that decides.

Times are seconds, shares and rates 0..1. A field that cannot be told is None, never a made-up zero.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from dlbctl.core.bins import Bin
from dlbctl.core.curve import Curve
from dlbctl.core.policy import Cost

if TYPE_CHECKING:
    from dlbctl.core.endpoint import Endpoint
    from dlbctl.core.target import Candidate, Target
    from dlbctl.core.tier import Tier


class CellRow(Struct, kw_only=True):
    """One endpoint in one cell, as this root sees it.

    rif: requests in flight there, all roots'. in_flight: this root's own. share: of this root's recent requests.
    k: servers, and load: requests in flight per server. queued_s: waiting work per server, as the fullest leaf
    reports it. cost: in `unit`, that of the endpoint's cost in use. latency_s: what the cell's curve says for its
    load. error_rate: of all roots' recent requests. age_s: since the cell last reported. drained: addresses of its
    leaves that an operator took out. why: says what keeps leaves of it from being used, empty when nothing does. A
    cell that serves no endpoint, as far as is known, has one row, with an empty one.
    """

    cell: str
    endpoint: str
    up: bool
    routable: bool
    k: float
    rif: float
    load: float
    in_flight: int
    queued_s: float | None = None
    share: float | None = None
    rtt_s: float | None = None
    cost: float | None = None
    unit: str = ""
    latency_s: float | None = None
    error_rate: float | None = None
    age_s: float | None = None
    why: str = ""
    drained: tuple[str, ...] = ()


class EndpointRow(Struct, kw_only=True):
    """One endpoint: the policy that was configured, the one in force, and the cost actually in use.

    why: says what keeps the policy's own cost from being used, empty when nothing does. overridden: an operator
    switched the policy in the running router. routable: how many of the candidates (cells of a root, servers of a
    leaf) can be chosen. waiting: requests in the admission queue. panic: all that answer are ejected, and are used
    nevertheless. tokens_per_byte, output_tokens: what was learned of its prompts and answers. cost, unit: empty with a
    policy that takes none. shares: of the requests, that the mechanism means each candidate to get, and stepsize: how
    fast they follow costs, of those that set them. alarms: what is wrong with how the mechanism works, by name.
    standing: which of several ways it goes at present, and why.
    """

    endpoint: str
    policy: str
    configured_policy: str
    overridden: bool
    cost: str
    unit: str
    why: str
    routable: int
    candidates: int
    in_flight: int
    waiting: int
    panic: bool
    tokens_per_byte: float
    output_tokens: float
    shares: dict[str, float] | None = None
    stepsize: float | None = None
    alarms: tuple[str, ...] = ()
    standing: str = ""


class ServerRow(Struct, kw_only=True):
    """One server as one leaf sees it.

    leaf: where a root has asked for it, empty in the leaf's own process. state: `up`, `down`, `loading`, `drained`,
    `ejected`, `trial` (one request at a time, to see whether it is well), `slow start` or `removed`. slots: most
    requests in flight, 0 for no limit. work_s: of standard servers, waiting. requests: recent ones, decayed, and
    error_rate: of these. live: how it differs from the configuration by an operator's will. A leaf that shows a root
    nothing has one row, with an empty server, and why says what keeps it from that.
    """

    cell: str
    leaf: str = ""
    server: str = ""
    address: str = ""
    up: bool = False
    state: str = ""
    models: tuple[str, ...] = ()
    in_flight: int = 0
    slots: int = 0
    weight: float = 0.0
    work_s: float = 0.0
    requests: float = 0.0
    error_rate: float | None = None
    live: Literal["", "added", "removed"] = ""
    why: str = ""


class DrainRow(Struct):
    """A cell, leaf or server that an operator asked about, and how much is in flight there from this router."""

    place: str
    drained: bool
    in_flight: int


class CurveRow(Struct, kw_only=True):
    """The latency curve of one endpoint in one cell, and where on it the cell works.

    load: requests in flight per server. latency_s, gradient_s (1/mu'): what the curve says for it. bins: the
    samples behind the curve, where they can be had. why: says why there is no curve. prefill_s_per_token: what was
    learned of how long a prompt token takes to be read; 0 where that is not known.
    """

    cell: str
    endpoint: str
    curve: Curve | None
    load: float
    latency_s: float | None
    gradient_s: float | None
    why: str
    bins: list[Bin] = []
    prefill_s_per_token: float = 0.0


def cells(tier: Tier, now_s: float) -> list[CellRow]:
    """Every endpoint in every cell of a root tier."""
    rows = [_silent(target) for target in tier.targets.values() if not target.candidates]
    for endpoint in tier.endpoints.values():
        endpoint.refresh()
        total = sum(candidate.requests.read(now_s) for candidate in endpoint.candidates.values())
        rows += [_cell(endpoint, candidate, total, now_s) for candidate in endpoint.candidates.values()]
    return sorted(rows, key=lambda row: (row.endpoint, row.cell))


def endpoints(tier: Tier) -> list[EndpointRow]:
    """Every endpoint of a tier."""
    return [_endpoint(endpoint) for _, endpoint in sorted(tier.endpoints.items())]


def servers(tier: Tier, now_s: float) -> list[ServerRow]:
    """Every server of a leaf tier."""
    rows = []
    for target in tier.targets.values():
        requests = sum(candidate.requests.read(now_s) for candidate in target.candidates)
        errors = sum(candidate.errors.read(now_s) for candidate in target.candidates)
        rows.append(
            ServerRow(
                cell=tier.settings.cell,
                server=target.name,
                address=target.addresses[0],
                up=target.up,
                state=target.state,
                models=target.models,
                in_flight=target.in_flight,
                slots=target.settings.slots,
                weight=target.settings.weight,
                work_s=sum(candidate.work_s for candidate in target.candidates),
                requests=requests,
                error_rate=_ratio(errors, requests),
            )
        )
    return rows


def curves(tier: Tier, now_s: float) -> list[CurveRow]:
    """Every curve a tier knows: a leaf's own, with their samples, or those reported to a root."""
    if tier.role == "leaf":
        return [_own_curve(tier, endpoint, now_s) for _, endpoint in sorted(tier.endpoints.items())]
    rows = []
    for name, endpoint in sorted(tier.endpoints.items()):
        endpoint.refresh()
        for cell, candidate in sorted(endpoint.candidates.items()):
            why = "" if candidate.learned else "the cell has reported no curve yet"
            per_token = candidate.prefill_s_per_token
            rows.append(_curve(cell, name, candidate.learned, candidate.load, why, [], per_token))
    return rows


def _silent(target: Target) -> CellRow:
    return CellRow(
        cell=target.name,
        endpoint="",
        up=target.up,
        routable=False,
        k=0.0,
        rif=0.0,
        load=0.0,
        in_flight=target.in_flight,
        rtt_s=min(target.rtt_s.values(), default=None),
        drained=tuple(sorted(target.drained)),
    )


def _cell(endpoint: Endpoint, candidate: Candidate, total: float, now_s: float) -> CellRow:
    target, curve = candidate.target, candidate.learned
    reports = list(candidate.reports.values())
    requests = sum(report.requests for report in reports)
    routable = candidate in endpoint.routable
    return CellRow(
        cell=target.name,
        endpoint=endpoint.name,
        up=target.up,
        routable=routable,
        k=candidate.k,
        rif=candidate.rif,
        load=candidate.load,
        in_flight=candidate.in_flight,
        queued_s=max((report.queued_s for report in reports), default=None),
        share=_ratio(candidate.requests.read(now_s), total),
        rtt_s=min(target.rtt_s.values(), default=None),
        cost=candidate.cost if routable and endpoint.cost.name else None,
        unit=endpoint.cost.unit,
        latency_s=curve.latency_s(candidate.load) if curve else None,
        error_rate=_ratio(sum(report.errors for report in reports), requests),
        age_s=now_s - candidate.reported_s if candidate.reported_s else None,
        drained=tuple(sorted(target.drained)),
    )


def _endpoint(endpoint: Endpoint) -> EndpointRow:
    mechanism = endpoint.mechanism
    shares = mechanism.shares(endpoint.routable)
    return EndpointRow(
        endpoint=endpoint.name,
        policy=str(endpoint.policy),
        configured_policy=str(endpoint.configured_policy),
        overridden=endpoint.override is not None,
        cost=endpoint.cost.name,
        unit=endpoint.cost.unit,
        why=_why(endpoint),
        routable=len(endpoint.routable),
        candidates=len(endpoint.candidates),
        in_flight=endpoint.in_flight,
        waiting=len(endpoint.queue),
        panic=endpoint.panic,
        tokens_per_byte=endpoint.tokens_per_byte.value,
        output_tokens=endpoint.output_tokens.value,
        shares=dict(zip((c.name for c in endpoint.routable), shares, strict=True)) if shares else None,
        stepsize=mechanism.stepsize(endpoint.routable),
        alarms=mechanism.alarms(),
        standing=mechanism.standing(endpoint.routable),
    )


def _why(endpoint: Endpoint) -> str:
    """What keeps the next better cost from being used than the one in use."""
    better = endpoint.wanted_cost
    while better.fallback and better.fallback != endpoint.cost.name and better.name != endpoint.cost.name:
        better = Cost.load(better.fallback)
    lacking = sorted(c.target.name for c in endpoint.routable if not better.ready(c))
    return f"{better.name} once {', '.join(lacking)} {_has(lacking)} {better.needs}" if lacking else ""


def _has(names: list[str]) -> str:
    return "has" if len(names) == 1 else "have"


def _own_curve(tier: Tier, endpoint: Endpoint, now_s: float) -> CurveRow:
    estimator = tier.estimators[endpoint.name]
    load = endpoint.rif / endpoint.k if endpoint.k > 0 else 0.0
    bins, per_token = estimator.bins(now_s, tier.in_flight(now_s, endpoint)), endpoint.prefill.s_per_token
    return _curve(tier.settings.cell, endpoint.name, estimator.curve, load, estimator.reason, bins, per_token)


def _curve(
    cell: str, endpoint: str, curve: Curve | None, load: float, why: str, bins: list[Bin], prefill_s_per_token: float
) -> CurveRow:
    return CurveRow(
        cell=cell,
        endpoint=endpoint,
        curve=curve,
        load=load,
        latency_s=curve.latency_s(load) if curve else None,
        gradient_s=curve.gradient_s(load) if curve else None,
        why=why,
        bins=bins,
        prefill_s_per_token=prefill_s_per_token,
    )


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole > 1e-6 else None
