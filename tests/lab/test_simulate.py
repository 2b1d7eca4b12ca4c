"""What the lab shows is what the library does: exact numbers for each claim of the page."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetlimit.lab.measure import ideal, trailing, worst_window
from fleetlimit.lab.report import report
from fleetlimit.lab.scenario import CHOICES, RANGES, Scenario
from fleetlimit.lab.simulate import ASKS, PERIODS, simulate
from fleetlimit.lab.traffic import REQUESTS, arrivals, planned
from fleetlimit.lab.words import clock, excess

ALGORITHMS = CHOICES["algorithm"]
WHOLE = [name for name in ALGORITHMS if name not in ("gcra", "leaky_bucket")]  # let go at once

times = st.lists(st.integers(0, 60), max_size=30).map(sorted)


def numbers(**changes: Any) -> dict[str, Any]:
    return dict(report(simulate(Scenario(**changes)))["numbers"])


@pytest.mark.parametrize("instances", [1, 3, 30])
def test_private_state_admits_the_limit_of_each_instance(instances: int) -> None:
    same: dict[str, Any] = {
        "algorithm": "fixed_window", "traffic": "overload", "instances": instances, "denied": "leave",
    }  # fmt: skip
    assert numbers(**same, state="private")["admitted"] == 2 * instances * 10  # two windows
    assert numbers(**same, state="atomic")["admitted"] == 2 * 10


@pytest.mark.parametrize("algorithm", WHOLE)
def test_atomic_state_admits_exactly_the_limit(algorithm: str) -> None:
    seen = numbers(algorithm=algorithm, denied="leave")
    assert (seen["admitted"], seen["denied"], seen["worst"]) == (10, 5, 10)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_naive_state_admits_more(algorithm: str) -> None:
    """All of the burst read what the first one read, for it writes 20 ms later."""
    seen = numbers(algorithm=algorithm, state="naive", denied="leave", instances=30)
    assert (seen["admitted"], seen["worst"]) == (15, 15)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_naive_state_without_latency_is_atomic(algorithm: str) -> None:
    seen = numbers(algorithm=algorithm, state="naive", denied="leave", latency=0)
    assert seen["admitted"] == numbers(algorithm=algorithm, denied="leave")["admitted"]


@pytest.mark.parametrize("instances", [1, 3, 30])
@pytest.mark.parametrize("limit", [1, 10, 100, 1000])
def test_the_boundary_exploit_doubles_a_fixed_window(limit: int, instances: int) -> None:
    same: dict[str, Any] = {
        "traffic": "boundary", "instances": instances, "limit": limit, "denied": "leave",
    }  # fmt: skip
    assert numbers(**same, algorithm="fixed_window")["worst"] == 2 * limit
    assert numbers(**same, algorithm="sliding_log")["worst"] == limit
    assert numbers(**same, algorithm="gcra")["worst"] <= limit


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_place_in_the_line_needs_two_asks_where_a_countdown_needs_many(algorithm: str) -> None:
    same: dict[str, Any] = {"algorithm": algorithm, "traffic": "overload"}
    own, herd = numbers(**same, denied="place"), numbers(**same, denied="countdown")
    assert own["admitted"] == herd["admitted"] == own["requests"]
    assert own["asks_per_request"] <= 2.1
    assert herd["asks_per_request"] > 2 * own["asks_per_request"]


@pytest.mark.parametrize("denied", ["place", "countdown"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_line_drains_as_fast_as_its_limit_allows(algorithm: str, denied: str) -> None:
    seen = numbers(algorithm=algorithm, denied=denied)
    assert seen["ideal_us"] <= seen["drain_us"] + 1
    assert seen["drain_us"] < 1.02 * seen["ideal_us"] + 200_000


def test_the_ideal_drain_of_gcra_is_one_cell_for_each() -> None:
    limit = Scenario().rate_limit()
    assert ideal(limit, [5_000_000] * 15) == 5_000_000 + 14 * limit.rule.emission


def test_the_same_seed_gives_the_same_run() -> None:
    one = Scenario(traffic="overload", denied="countdown", limit=3)
    assert simulate(one) == simulate(one)
    other = Scenario(traffic="overload", denied="countdown", limit=3, seed=2)
    assert simulate(one).arrivals != simulate(other).arrivals
    late = Scenario(denied="countdown"), Scenario(denied="countdown", seed=2)  # wakes differ, too
    assert simulate(late[0]).starts != simulate(late[1]).starts


def test_who_waits_in_line_comes_just_before_its_turn() -> None:
    """Like a worker's task: 0.15 s early, and up to 10 ms late. It sleeps the rest in place."""
    run = simulate(Scenario(traffic="overload", instances=30))
    again = [ask for ask in run.asks if ask.number > 1]
    assert len(again) > 100
    assert {(ask.number, ask.admitted) for ask in again} == {(2, True)}
    assert all(140_000 <= ask.at_us - ask.asked_us <= 150_000 for ask in again)


def test_a_run_is_cut() -> None:
    herd = simulate(Scenario(traffic="overload", instances=30, denied="countdown"))
    assert len(herd.asks) == ASKS
    assert herd.cut == "cut at 10,000 asks"
    line = simulate(Scenario(traffic="overload", instances=30))
    assert line.cut == f"cut {PERIODS} periods after the last request came"
    assert max(ask.at_us for ask in line.asks) <= line.arrivals[-1] + PERIODS * 60_000_000 + 250_000
    assert 0 < line.waiting == len(line.arrivals) - len(line.starts)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_whatever_is_asked_the_figures_add_up(algorithm: str) -> None:
    choices = (CHOICES[name] for name in ("traffic", "instances", "state", "denied"))
    for traffic, instances, state, denied in product(*choices):
        if (state, denied) == ("naive", "place"):
            continue
        one = Scenario(algorithm, traffic, int(instances), state, denied, limit=3, per=1)
        run = simulate(one)
        seen = report(run)
        n = seen["numbers"]
        assert len(seen["marks"]) == n["asks"] == n["admitted"] + n["denied"] <= ASKS, one
        started = [ask.request for ask in run.asks if ask.admitted]
        assert len(set(started)) == len(started), one  # nobody starts twice
        assert all((ask.wait_us > 0) is not ask.admitted for ask in run.asks), one
        assert all(0 <= ask.asked_us <= ask.at_us for ask in run.asks), one
        assert n["worst"] == max(count for _, count in seen["curve"]), one
        if state == "atomic":
            assert n["worst"] <= n["bound"], one


EXTREMES = list(product(RANGES["limit"], (0.1, 60, 86_400)))


@pytest.mark.parametrize(("limit", "per"), EXTREMES)
def test_no_run_has_too_many_requests(limit: int, per: float) -> None:
    for traffic, instances in product(CHOICES["traffic"], (1, 30)):
        scenario = Scenario(traffic=traffic, instances=instances, limit=limit, per=per)
        coming = arrivals(scenario)
        assert coming == sorted(coming)
        assert len(coming) == min(planned(scenario), REQUESTS)
        assert len(coming) > limit or traffic == "steady"  # something is denied, or could be
        assert 0 <= coming[0] <= coming[-1] < 3 * scenario.rate_limit().per_us


@pytest.mark.parametrize(("limit", "per"), EXTREMES)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_limits_of_every_size_are_played(algorithm: str, limit: int, per: float) -> None:
    seen = numbers(algorithm=algorithm, limit=limit, per=per, traffic="overload")
    assert seen["asks"] <= ASKS
    assert limit <= seen["admitted"] + 1  # the counter of a limit of 1 leaves one window empty
    assert seen["worst"] <= seen["bound"]


def test_a_shortened_overload_comes_at_the_full_rate() -> None:
    scenario = Scenario(traffic="overload", instances=30, limit=1000)
    coming = arrivals(scenario)
    assert planned(scenario) == 90_000
    assert coming[-1] == pytest.approx(120_000_000 * REQUESTS / 90_000, rel=0.01)
    assert "90,000" in report(simulate(scenario))["summary"]


@pytest.mark.parametrize(
    ("changes", "tone", "note"),
    [
        ({"algorithm": "sliding_log"}, "good", "Within the limit of 10."),
        ({"algorithm": "fixed_window"}, "warn", "Twice the limit. This algorithm allows it."),
        ({"algorithm": "token_bucket", "traffic": "overload"}, "warn", "1.9 times the limit. This algorithm allows it."),
        ({"burst": 3}, "good", "Within the limit of 10."),
        ({"algorithm": "fixed_window", "state": "private"}, "bad",
         "6 times the limit. This algorithm allows 20."),
        ({"algorithm": "sliding_log", "state": "private"}, "bad",
         "3 times the limit. This algorithm allows 10."),
    ],
)  # fmt: skip
def test_the_fullest_window_is_judged(changes: dict[str, Any], tone: str, note: str) -> None:
    """Good is what keeps the limit: what only keeps the algorithm's bound deserves a warning."""
    shown = report(simulate(Scenario(**{"traffic": "boundary", "denied": "leave", **changes})))
    assert (shown["figures"][0]["tone"], shown["figures"][0]["note"]) == (tone, note)
    assert shown["worst"]["tone"] == tone
    assert shown["summary"].lower().endswith(note.lower())


@pytest.mark.parametrize(
    ("worst", "says"),
    [(10, ""), (20, "twice the limit"), (19, "1.9 times the limit"), (30, "3 times the limit")],
)
def test_excess(worst: int, says: str) -> None:
    assert excess(Scenario(), {"worst": worst}) == says


def test_an_excess_that_is_rounded_says_so() -> None:
    scenario = Scenario(limit=100)
    assert excess(scenario, {"worst": 199}) == "about twice the limit"
    assert excess(scenario, {"worst": 104}) == "4 above the limit"


@given(times, st.integers(1, 20))
def test_worst_window(starts: list[int], per: int) -> None:
    most, begins = worst_window(starts, per)
    assert most == max((sum(s <= t < s + per for t in starts) for s in starts), default=0)
    assert most == sum(begins <= t < begins + per for t in starts)


@given(times, st.integers(1, 20))
def test_trailing(starts: list[int], per: int) -> None:
    steps = trailing(starts, per)
    assert all(count == sum(t - per < s <= t for s in starts) for t, count in steps)
    assert steps == sorted(set(steps))
    assert steps[-1][1] == 0


def test_clock() -> None:
    assert clock(59_300_999) == "0:59.300"
    assert clock(3_661_000_000) == "1:01:01.000"
