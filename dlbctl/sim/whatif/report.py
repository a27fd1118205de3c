"""A comparison as a whole: what was simulated, what was assumed, what to beware of, and every case's figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec import Struct

from dlbctl.core.errors import UsageError
from dlbctl.core.names import counted
from dlbctl.sim.whatif.changes import WhatIf
from dlbctl.sim.whatif.compare import Case, Row, Step, cases_of, compare, peak_load_of, steps_of_case
from dlbctl.sim.whatif.fleet import Fleet
from dlbctl.sim.whatif.traffic import Traffic
from dlbctl.sim.work import refuse_endless


class Report(Struct, frozen=True):
    """left_out: rows of the trace that were not sent, by reason. cases: how many there were to be."""

    trace: str
    requests: int
    span_s: float
    warm_up_s: float
    prompt_tokens: float
    output_tokens: float
    left_out: dict[str, int]
    assumed: list[str]
    warnings: list[str]
    cases: int
    rows: list[Row]

    @property
    def complete(self) -> bool:
        """Nothing was cut short."""
        return len(self.rows) == self.cases


def simulate(
    fleet: Fleet,
    traffic: Traffic,
    trace: Path,
    policies: Sequence[str],
    what_if: WhatIf,
    *,
    warm_up_s: float,
    watch: Callable[[Step], None],
    warn: Callable[[str], None],
) -> Report:
    """Run every case. Ctrl-C ends it with those that are complete. UsageError for what cannot be simulated.

    `warn` hears, before anything is simulated, what to beware of.
    """
    cases = cases_of(fleet, policies, what_if)
    _check_times(cases, traffic, warm_up_s)
    profiles = [profile for case in cases for profile in case.fleet.profiles]
    fitting = traffic.fitting(profiles)
    refuse_endless(
        sum(steps_of_case(case, fitting) for case in cases),
        hint="a larger --demand or --speedup, --end or --limit for less of the trace, or fewer --servers or --policy",
    )
    warnings = _warnings(cases, traffic, fitting)
    for text in warnings:
        warn(text)
    rows: list[Row] = []
    try:
        for row in compare(cases, fitting, warm_up_s=warm_up_s, watch=watch):
            rows.append(row)  # noqa: PERF402 - what is there counts when it is interrupted
    except KeyboardInterrupt:
        pass  # the report is not complete, and says so
    return Report(
        trace=str(trace),
        requests=len(fitting.rows),
        span_s=fitting.span_s,
        warm_up_s=warm_up_s,
        prompt_tokens=fitting.prompt_tokens,
        output_tokens=fitting.output_tokens,
        left_out=traffic.left_out.counts,
        assumed=list(dict.fromkeys(text for case in cases for text in case.fleet.assumed)),
        warnings=warnings,
        cases=len(cases),
        rows=rows,
    )


def _check_times(cases: Sequence[Case], traffic: Traffic, warm_up_s: float) -> None:
    """Refuse what comes too late to be seen."""
    for case in cases:
        ends_s = traffic.span_s / case.what_if.demand
        if warm_up_s > ends_s:
            raise UsageError(f"--warm-up {warm_up_s:g}: the last request comes at {ends_s:.4g} s")
        for change in case.what_if.later:
            assert change.at_s is not None
            if change.at_s > ends_s:
                raise UsageError(f"{change}: that is after the last request, which comes at {ends_s:.4g} s")


def _warnings(cases: Sequence[Case], traffic: Traffic, fitting: Traffic) -> list[str]:
    found = []
    if too_long := len(traffic.rows) - len(fitting.rows):
        found.append(f"longer than an engine takes, and left out: {counted(too_long, 'request')}")
    if len({profile.block_tokens for case in cases for profile in case.fleet.profiles}) > 1:
        found.append("engines have prefix caches of different block sizes: none is simulated")
    loads = {case.name: peak_load_of(case, fitting) for case in cases}
    found += [
        f"{name}: demand is {load:.2f} times what the cells serve: queues grow as long as it lasts"
        for name, load in loads.items()
        if load > 1.0
    ]
    return found
