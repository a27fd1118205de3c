"""The balancers that the papers compare with, each against what its source says of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from math import exp, sqrt
from random import Random

import pytest

from dlbctl.core.events import Arrival, EndpointState, Forward, State
from dlbctl.core.mechanism import Mechanism
from dlbctl.core.mechanisms.c3 import WEIGHT, score
from dlbctl.core.mechanisms.maglev import REMADE_S, SIZE, table_of
from dlbctl.core.mechanisms.maglev import Mechanism as Maglev
from dlbctl.core.mechanisms.peak_ewma import TIME_CONSTANT_S
from dlbctl.core.policy import Cost, Policy
from dlbctl.core.settings import EndpointSettings, TargetSettings, TierSettings
from dlbctl.core.tier import Tier
from tests.core.views import ANY, CURVE, Asked, Seen, views


def start(policy: str, given: Sequence[Seen] = ()) -> Mechanism:
    mechanism = Policy.parse(policy).start()
    mechanism.configure(EndpointSettings("m", policy))
    if given:
        mechanism.among(given)
    return mechanism


def picks(mechanism: Mechanism, given: Sequence[Seen], count: int, *, seed: int = 1) -> list[int]:
    rng = Random(seed)
    return [mechanism.choose(0.0, given, ANY, rng)[0] for _ in range(count)]


def assert_shared(counts: Counter[int], shares: Sequence[float]) -> None:
    """Within five standard deviations: 1 chance in a million each."""
    total = counts.total()
    for index, share in enumerate(shares):
        assert abs(counts[index] - total * share) <= 5.0 * sqrt(total * share * (1.0 - share)), counts


# -- round robin ---------------------------------------------------------------------------------------------


def test_round_robin_is_smooth_as_nginx_is() -> None:
    """The sequence of nginx' own commit: weights 5, 1, 1 come as a a b a c a a, and so on."""
    given = views("round-robin", Seen(weight=5.0), Seen(), Seen())
    assert picks(start("round-robin", given), given, 14) == [0, 0, 1, 0, 2, 0, 0] * 2


def test_round_robin_skips_what_is_not_there_and_takes_it_up_again() -> None:
    given = views("round-robin", Seen(), Seen(), Seen())
    mechanism = start("round-robin", given)
    assert picks(mechanism, given[:2], 4) == [0, 1, 0, 1]
    assert Counter(picks(mechanism, given, 9)) == {0: 3, 1: 3, 2: 3}


def test_round_robin_forgets_what_is_gone() -> None:
    """After two of four turns the others are owed one each; the one that was gone meanwhile has no claim any more."""
    given = views("round-robin", *[Seen()] * 4)
    mechanism = start("round-robin", given)
    assert picks(mechanism, given, 2) == [0, 1]
    mechanism.among([given[0], given[1], given[3]])
    mechanism.among(given)
    assert picks(mechanism, given, 1) == [3]


# -- by loads ------------------------------------------------------------------------------------------------


def test_jsq_counts_requests_and_wlc_requests_per_server() -> None:
    given = views("wlc", Seen(load=2.0, weight=10.0), Seen(load=3.0))
    assert picks(start("jsq", given), given, 5) == [1] * 5
    assert picks(start("wlc", given), given, 5) == [0] * 5


def test_jsq_takes_equal_counts_for_equal_whatever_the_division_left_of_them() -> None:
    given = views("jsq", *(Seen(load=3.0 / weight, weight=weight) for weight in (0.7, 1.0, 1.3, 49.0)))
    assert len({one.load * one.weight for one in given}) > 1
    assert set(picks(start("jsq", given), given, 200)) == {0, 1, 2, 3}


def test_jiq_draws_an_idle_server_while_there_is_one() -> None:
    """Three cells, of 4, 2 and 8 servers: three idle ones in the first, one in the second, none in the last."""
    given = views("jiq", Seen(load=0.25, weight=4.0), Seen(load=0.5, weight=2.0), Seen(load=1.0, weight=8.0))
    mechanism = start("jiq", given)
    assert mechanism.choose(0.0, given, ANY, Random(1))[1] == "idle"
    assert_shared(Counter(picks(mechanism, given, 2000)), (0.75, 0.25, 0.0))


def test_jiq_draws_any_server_when_none_is_idle() -> None:
    given = views("jiq", Seen(load=1.0, weight=6.0), Seen(load=9.0, weight=2.0))
    mechanism = start("jiq", given)
    assert mechanism.choose(0.0, given, ANY, Random(1))[1] == "none-idle"
    assert_shared(Counter(picks(mechanism, given, 2000)), (0.75, 0.25))


def test_gmsr_and_sed_are_their_closed_forms() -> None:
    one = Seen(load=7.0, weight=4.0, tau_s=0.05)
    assert Cost.load("gmsr").of(one) == pytest.approx(CURVE.gradient_s(7.0))
    # 28 requests and this one, before four servers that end 1/b a second each.
    assert Cost.load("sed").of(one) == pytest.approx(29.0 / (4.0 / CURVE.b) + 0.1)


def test_gmsr_does_not_see_distance_and_sed_does() -> None:
    given = [Seen(load=3.0, tau_s=0.5), Seen(load=4.0)]
    assert picks(start("gmsr"), views("gmsr", *given), 5) == [0] * 5
    assert picks(start("sed"), views("sed", *given), 5) == [1] * 5


@pytest.mark.parametrize("policy", ["gmsr", "sed"])
def test_without_a_curve_of_every_cell_gmsr_and_sed_go_by_requests_per_server(policy: str) -> None:
    tier = Tier(
        TierSettings(
            "root",
            "here",
            tuple(TargetSettings(name, (f"http://{name}:1",)) for name in "ab"),
            (EndpointSettings("m", policy),),
        ),
        "b00t",
    )
    for name, rif in (("a", 2), ("b", 3)):
        state = State(endpoints={"m": EndpointState(k=1.0, rif=rif)})
        tier.state_reported(0.0, name, f"http://{name}:1", state, 0.2 if name == "a" else 0.0)
    assert tier.endpoints["m"].cost.name == "rif"
    action = tier.arrived(0.0, Arrival("id", "m"))
    assert isinstance(action, Forward)
    assert (action.address, action.rule) == ("http://a:1", "least-cost")


def test_p2c_takes_the_less_loaded_of_any_two() -> None:
    """Of six pairs of four the least is in three, the next decides two, the third one."""
    given = views("p2c", *(Seen(load=float(load)) for load in range(4)))
    assert_shared(Counter(picks(start("p2c", given), given, 3000)), (1 / 2, 1 / 3, 1 / 6, 0.0))


def test_least_request_goes_by_what_this_router_has_there_itself() -> None:
    """Equal weights: Envoy's two even draws. Loads, which others make too, do not count."""
    given = [Seen(load=float(9 - own), in_flight=own) for own in range(4)]
    assert_shared(Counter(picks(start("least-request"), given, 3000)), (1 / 2, 1 / 3, 1 / 6, 0.0))


def test_least_request_fills_unequal_cells_alike() -> None:
    """400 requests that stay, on 30 and 10 servers: 300 and 100. The last of each pair decides, to a few requests."""
    given, rng = [Seen(weight=30.0), Seen(weight=10.0)], Random(1)
    mechanism = start("least-request", given)
    for _ in range(400):
        given[mechanism.choose(0.0, given, ANY, rng)[0]].in_flight += 1
    assert [one.in_flight for one in given] == [pytest.approx(300, abs=3), pytest.approx(100, abs=3)]


def test_drill_looks_again_at_the_best_of_the_last_time() -> None:
    """Of fifty two are drawn, so it seldom finds the best; once found it stays while it is the best."""
    given = [Seen(load=5.0, name=f"t{number}") for number in range(50)]
    mechanism, rng = start("drill", given), Random(1)
    given[17].load = 1.0
    while mechanism.choose(0.0, given, ANY, rng)[0] != 17:
        pass
    assert {mechanism.choose(0.0, given, ANY, rng)[0] for _ in range(30)} == {17}
    assert mechanism.choose(0.0, given, ANY, Random(3)) == (17, "remembered")
    given[17].load = 6.0
    assert mechanism.choose(0.0, given, ANY, rng)[1] == "best-of-2"
    assert mechanism.choose(0.0, given[:17] + given[18:], ANY, rng)[1] == "best-of-2"


# -- by latencies seen ---------------------------------------------------------------------------------------


def test_c3_has_the_cube_of_the_queue() -> None:
    assert score(queue=3.0, latency_s=0.5, service_s=0.1) == pytest.approx(0.5 - 0.1 + 27 * 0.1)
    # Twice as slow a server, with the other terms alike, bears a queue shorter by the cube root of two.
    assert score(2.0, 0.0, 0.2) + 0.2 == pytest.approx(score(2.0 * 2.0 ** (1 / 3), 0.0, 0.1) + 0.1)


def c3_after(latencies_s: dict[str, float]) -> Mechanism:
    """It has sent one request to each of these while it was idle, and has its answer."""
    mechanism, rng = start("c3"), Random(1)
    for name, latency_s in latencies_s.items():
        one = Seen(name=name)
        assert mechanism.choose(0.0, [one, Seen(name="full", load=1e3)], ANY, rng)[0] == 0
        mechanism.observed(0.0, one, latency_s)
    return mechanism


@pytest.mark.parametrize(
    ("loads", "best"),
    [
        ((0.0, 0.0, 50.0), "fast"),
        # Its q^3 0.2 is 1, the score of the slow one while that is idle, at q = 5^(1/3) = 1.71.
        ((0.0, 0.70, 50.0), "fast"),
        ((0.0, 0.72, 50.0), "slow"),
        # The unknown one counts as 0.6 s, the mean: equal at q = 3^(1/3) = 1.44.
        ((9.0, 0.43, 0.0), "fast"),
        ((9.0, 0.45, 0.0), "new"),
    ],
)
def test_c3_goes_by_what_it_has_seen_and_takes_the_unknown_for_average(
    loads: tuple[float, float, float], best: str
) -> None:
    """By hand. Answers after 1 s and 0.2 s, of queues of 1: R = 1/mu, so the scores are q^3 R."""
    mechanism = c3_after({"slow": 1.0, "fast": 0.2})
    given = [Seen(name=name, load=load) for name, load in zip(("slow", "fast", "new"), loads, strict=True)]
    index, why = mechanism.choose(0.0, given, ANY, Random(1))
    assert (given[index].name, why) == (best, "least-score")


def test_c3_takes_what_was_waited_for_in_a_queue_for_no_fault_of_the_server() -> None:
    """Both answered after 1 s, one in a queue of 4: its 1/mu is a quarter. With q = 2: 0 + 8 against 0.75 + 2."""
    mechanism, rng = c3_after({"idle": 1.0}), Random(1)
    busy = Seen(name="busy", load=3.0)
    assert mechanism.choose(0.0, [busy, Seen(name="full", load=1e3)], ANY, rng)[0] == 0
    mechanism.observed(0.0, busy, 1.0)
    assert mechanism.choose(0.0, [Seen(name="idle", load=1.0), replace(busy, load=1.0)], ANY, rng)[0] == 1


def test_c3_moves_a_tenth_of_the_way_to_each_new_latency() -> None:
    """The better of two that were equal: its mean has to sink from 1 s under 0.7 s, which takes four samples of 0.1."""
    given = views("c3", Seen(), Seen())
    mechanism, rng = start("c3", given), Random(1)
    while len({mechanism.choose(0.0, given, ANY, rng)[0] for _ in range(8)}) < 2:
        pass
    mechanism.observed(0.0, given[0], 0.7)
    mechanism.observed(0.0, given[1], 1.0)
    needed = 0
    mean_s = 1.0
    while mean_s > 0.7:
        assert mechanism.choose(0.0, given, ANY, rng)[0] == 0
        mechanism.observed(0.0, given[1], 0.1)
        mean_s += WEIGHT * (0.1 - mean_s)
        needed += 1
    assert needed == 4
    assert mechanism.choose(0.0, given, ANY, rng)[0] == 1


def test_peak_ewma_jumps_up_sinks_with_time_and_counts_what_is_pending() -> None:
    """By hand, between two: 0.4 s with nothing pending against 0.1 s with (pending + 1) of them."""
    given = views("peak-ewma", Seen(), Seen())
    mechanism, rng = start("peak-ewma", given), Random(1)

    def best(now_s: float, pending: int) -> int:
        given[1].in_flight = pending
        return mechanism.choose(now_s, given, ANY, rng)[0]

    mechanism.observed(0.0, given[0], 0.4)
    mechanism.observed(0.0, given[1], 0.05)
    mechanism.observed(0.0, given[1], 0.1)  # slower: at once
    mechanism.observed(0.0, given[1], 0.0)  # in no time: no weight
    assert [best(0.0, pending) for pending in (0, 2, 4)] == [1, 1, 0]
    # Both sink alike, until one answers as slowly as it did: then it alone is where it was.
    assert [best(5.0, pending) for pending in (2, 4)] == [1, 0]
    mechanism.observed(5.0, given[1], 0.1)
    sunk_s = 0.4 * exp(-5.0 / TIME_CONSTANT_S)
    assert [best(5.0, pending) for pending in (1, 2)] == [1, 0]
    assert 0.2 < sunk_s < 0.3


def test_peak_ewma_sends_the_unknown_one_request_and_waits_for_its_answer() -> None:
    given = views("peak-ewma", Seen(), Seen())
    mechanism, rng = start("peak-ewma", given), Random(1)
    mechanism.observed(0.0, given[0], 0.001)
    assert mechanism.choose(0.0, given, ANY, rng)[0] == 1
    given[1].in_flight, given[0].in_flight = 1, 1000
    assert mechanism.choose(0.0, given, ANY, rng)[0] == 0


def test_peak_ewma_does_not_take_a_cell_for_slow_because_it_is_large() -> None:
    given = views("peak-ewma", Seen(weight=10.0, in_flight=10), Seen(in_flight=2))
    mechanism = start("peak-ewma", given)
    for one in given:
        mechanism.observed(0.0, one, 0.5)
    assert picks(mechanism, given, 5) == [0] * 5


@pytest.mark.parametrize("policy", ["c3", "peak-ewma"])
def test_latencies_that_a_tier_observes_are_what_is_gone_by(policy: str) -> None:
    """Two servers alike, of which one takes five times as long: it gets fewer once that has been seen."""
    targets = tuple(TargetSettings(name, (f"http://{name}:1",), ("m",)) for name in "ab")
    tier = Tier(TierSettings("leaf", "here", targets, (EndpointSettings("m", policy),), seed=5), "b00t")
    for target in targets:
        tier.address_changed(0.0, target.name, target.addresses[0], True)
    counts: Counter[str] = Counter()
    now_s = 0.0
    for _ in range(100):
        action = tier.arrived(now_s, Arrival("id", "m"))
        assert isinstance(action, Forward)
        counts[action.address] += 1
        now_s += 0.5 if "a" in action.address else 0.1
        tier.attempt_started(now_s, action.exchange)
        tier.first_byte(now_s, action.exchange, 200)
        tier.ended(now_s, action.exchange, 200, None, 0.0)
    assert counts["http://b:1"] > 80


# -- consistent hashing --------------------------------------------------------------------------------------

TEN = [f"server-{number}" for number in range(10)]


def test_a_maglev_table_is_shared_out_by_weight_to_an_entry_or_two() -> None:
    weights = [float(weight) for weight in (1, 1, 1, 2, 2, 4, 8, 8, 0, 16)]
    counts = Counter(table_of(TEN, weights))
    for number, weight in enumerate(weights):
        assert counts[number] == pytest.approx(SIZE * weight / sum(weights), abs=2.0)


def test_a_maglev_table_changes_little_beside_what_must_change() -> None:
    """One of ten goes: a tenth has to move, and the paper finds few others that do. Twice that is the limit."""
    before = table_of(TEN, [1.0] * 10)
    after = table_of(TEN[:-1], [1.0] * 9)
    changed = sum(one != other for one, other in zip(before, after, strict=True))
    assert 0.1 * SIZE - 1 <= changed <= 0.2 * SIZE


def test_a_maglev_table_is_the_same_everywhere() -> None:
    """Pinned, and whatever order the targets are listed in."""
    table = table_of(TEN, [1.0] * 10)
    assert table[:8] == [6, 9, 8, 7, 2, 1, 5, 8]
    turned = table_of(TEN[::-1], [1.0] * 10)
    assert [TEN[owner] for owner in table] == [TEN[::-1][owner] for owner in turned]


SESSIONS = [Random(seed).getrandbits(64) for seed in range(300)]


def maglev(count: int = 5) -> tuple[Mechanism, list[Seen]]:
    given = views("maglev", *[Seen()] * count)
    return start("maglev", given), given


def homes(mechanism: Mechanism, given: Sequence[Seen], now_s: float = 0.0) -> list[str]:
    rng = Random(1)
    return [given[mechanism.choose(now_s, given, Asked(session), rng)[0]].name for session in SESSIONS]


def test_maglev_keeps_a_session_where_it_is() -> None:
    mechanism, given = maglev()
    assert homes(mechanism, given) == homes(mechanism, given)
    assert len(set(homes(mechanism, given))) == 5
    assert mechanism.choose(0.0, given, Asked(5), Random(1))[1] == "session"


def test_maglev_spreads_requests_without_a_session_by_weight() -> None:
    """Case 50: not all of them into one bucket."""
    given = views("maglev", Seen(weight=3.0), Seen())
    assert_shared(Counter(picks(start("maglev", given), given, 2000)), (0.75, 0.25))


def test_maglev_moves_the_sessions_of_what_is_full_and_no_others() -> None:
    """They go to various others, and back when there is room again."""
    mechanism, given = maglev()
    at_home, away = homes(mechanism, given), homes(mechanism, given[:4])
    moved = [there for here, there in zip(at_home, away, strict=True) if here == "t4"]
    assert all(here == there for here, there in zip(at_home, away, strict=True) if here != "t4")
    assert set(moved) == {"t0", "t1", "t2", "t3"}
    assert homes(mechanism, given) == at_home
    session = SESSIONS[at_home.index("t4")]
    assert mechanism.choose(0.0, given[:4], Asked(session), Random(1))[1] == "session-moved"


def test_maglev_draws_where_none_of_the_few_that_are_left_is_near() -> None:
    given = views("maglev", Seen(weight=1e9), Seen())
    mechanism = start("maglev", given)
    few = [given[1], Seen(name="unheard of")]
    assert mechanism.choose(0.0, few, Asked(9), Random(1))[1] == "drawn"


def test_maglev_makes_its_table_anew_for_another_set_at_once_and_for_other_weights_within_a_second() -> None:
    mechanism, given = maglev()
    before = homes(mechanism, given)
    given[0].weight = 9.0
    mechanism.changed(given[:1])
    assert homes(mechanism, given, 0.5 * REMADE_S) == before
    heavier = homes(mechanism, given, REMADE_S)
    assert heavier.count("t0") > 2 * before.count("t0")
    others = [*given[1:], Seen(name="new")]
    mechanism.among(others)
    assert homes(mechanism, others, REMADE_S) == homes(start("maglev", others), others)


def test_maglev_makes_no_table_anew_for_costs_that_change() -> None:
    given = views("maglev", *[Seen()] * 5)
    mechanism = Maglev()
    mechanism.among(given)
    homes(mechanism, given)
    table = mechanism._table
    given[2].cost = 5.0
    mechanism.changed(given)
    mechanism.among(given)
    homes(mechanism, given, 10.0 * REMADE_S)
    assert mechanism._table is table
