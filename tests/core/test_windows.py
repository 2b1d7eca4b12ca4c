"""The window algorithms: a test for each invariant they state, and the texts' own forms as oracles."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetlimit.algorithms.base import Algorithm
from fleetlimit.algorithms.fixed_window import FixedWindow, grid_of
from fleetlimit.algorithms.registry import from_wire
from fleetlimit.algorithms.sliding_counter import SlidingCounter
from fleetlimit.algorithms.window import LONGEST_SLEEP_US
from fleetlimit.limit import RateLimit

START = 1_767_225_600_000_000
WINDOWS = ("fixed_window", "sliding_log", "sliding_counter")

limits = st.builds(
    lambda algorithm, limit, per, margin: RateLimit(
        "x", limit, per, algorithm=algorithm, margin=margin
    ),
    st.sampled_from(WINDOWS),
    st.integers(1, 12),
    st.sampled_from([0.5, 1, 3]),
    st.sampled_from([0, 0.01, 0.2]),
)
#: (microseconds later, cost, how far ahead it may be booked)
asks = st.lists(
    st.tuples(
        st.integers(0, 800_000) | st.sampled_from([0, 1, 500_000, 3_000_000]),
        st.integers(1, 12),
        st.sampled_from([0, 250_000]),
    ),
    max_size=60,
)


def played(limit: RateLimit, history: list[tuple[int, int, int]]) -> list[int]:
    """When each admitted unit starts."""
    state, now, starts = None, START, []
    for gap, cost, sleep in history:
        now += gap
        cost = min(cost, limit.limit)
        verdict = limit.rule.decide(state, now, cost, max_sleep_us=sleep)
        state = verdict.state
        starts += [now + verdict.sleep_us] * cost * verdict.admitted
    return starts


def most(starts: list[int], width: int) -> int:
    """The most units in any half-open window."""
    return max((sum(at <= other < at + width for other in starts) for at in starts), default=0)


@given(limits, asks)
def test_no_window_above_the_stated_bound(
    limit: RateLimit, history: list[tuple[int, int, int]]
) -> None:
    assert most(played(limit, history), limit.per_us) <= limit.bound


@given(st.integers(1, 12), asks)
def test_fixed_window_bound(limit: int, history: list[tuple[int, int, int]]) -> None:
    fixed = RateLimit("x", limit, 1, algorithm="fixed_window", margin=0.1)
    starts = played(fixed, history)
    for window in {at // 10**6 for at in starts}:
        inside = [at for at in starts if at // 10**6 == window]
        assert len(inside) <= limit
        assert all(at % 10**6 < 900_000 for at in inside)  # the guard stays empty


@given(st.integers(1, 12), asks)
def test_sliding_counter_bound(limit: int, history: list[tuple[int, int, int]]) -> None:
    starts = played(RateLimit("x", limit, 1, algorithm="sliding_counter", margin=0), history)
    assert all(sum(one // 10**6 == at // 10**6 for one in starts) <= limit for at in starts)


@given(st.integers(1, 12), asks)
def test_sliding_log_bound(limit: int, history: list[tuple[int, int, int]]) -> None:
    starts = played(RateLimit("x", limit, 1, algorithm="sliding_log", margin=0), history)
    assert most(starts, 10**6) <= limit


@given(limits, asks, st.integers(0, 2_000_000), st.integers(1, 12))
def test_wait_is_enough_and_no_more(
    limit: RateLimit, history: list[tuple[int, int, int]], gap: int, cost: int
) -> None:
    state, now, rule = _state(limit, history)
    now, cost = now + gap, min(cost, limit.limit)
    verdict = rule.decide(state, now, cost)
    assert (verdict.wait_us > 0) == (not verdict.admitted)
    if not verdict.admitted:
        # A coarse tick of the sliding counter is the least that it can say.
        tick = rule.tick_us if isinstance(rule, SlidingCounter) else 1
        assert not rule.decide(state, now + verdict.wait_us - tick, cost).admitted
        assert rule.decide(state, now + verdict.wait_us, cost).admitted


def _state(limit: RateLimit, history: list[tuple[int, int, int]]) -> tuple[Any, int, Algorithm]:
    rule, state, now = limit.rule, None, START
    for gap, cost, sleep in history:
        now += gap
        state = rule.decide(state, now, min(cost, limit.limit), max_sleep_us=sleep).state
    return state, now, rule


@given(limits, asks)
def test_denial_changes_nothing(limit: RateLimit, history: list[tuple[int, int, int]]) -> None:
    state, now, rule = _state(limit, history)
    verdict = rule.decide(state, now)
    if not verdict.admitted:
        assert verdict.state == rule.clamped(state, now)
        assert rule.decide(verdict.state, now).wait_us == verdict.wait_us


@given(limits, asks, st.integers(-(10**10), 10**10))
def test_wait_is_bounded_whatever_is_stored(
    limit: RateLimit, history: list[tuple[int, int, int]], step: int
) -> None:  # N9
    """The clock steps: nobody waits beyond what an honest history could ask for."""
    state, now, rule = _state(limit, history)
    verdict = rule.decide(state, now + step)
    worst = {"sliding_log": 1.2, "fixed_window": 2, "sliding_counter": 3}[limit.algorithm]
    booked = 250_000 if limit.algorithm == "sliding_log" else LONGEST_SLEEP_US
    assert verdict.wait_us <= worst * limit.per_us + booked
    if not verdict.admitted:  # and what was cured stays cured
        later = now + step + verdict.wait_us
        assert rule.decide(verdict.state, later).admitted


@given(limits, asks, st.integers(0, 40), st.integers(1, 4))
def test_a_turn_is_as_those_ahead_take_theirs(
    limit: RateLimit, history: list[tuple[int, int, int]], ahead: int, cost: int
) -> None:
    """The wait of a rank, against the line played out. Exact for the log and the fixed window, where costs
    fit; the sliding counter estimates its later windows."""
    cost = min(cost, limit.limit)
    state, began, rule = _state(limit, history)
    state, now = rule.clamped(state, began), began
    said = max(0, rule.wait_us(state, now, cost, ahead * cost))
    for _ in range(ahead + 1):
        verdict = rule.decide(state, now, cost, max_sleep_us=10**12)
        state, now = verdict.state, now + verdict.sleep_us
    if limit.algorithm != "sliding_counter" and limit.limit % cost == 0:
        assert said == now - began
    elif cost == 1:
        assert abs(said - (now - began)) <= 2 * limit.per_us + 0.1 * (now - began)


@given(st.integers(1, 10), st.lists(st.tuples(st.integers(0, 300_000), st.integers(0, 50_000))))
def test_late_starts_in_a_log(limit: int, history: list[tuple[int, int]]) -> None:
    rule = RateLimit("x", limit, 1, algorithm="sliding_log", margin=0).rule
    state, now, starts = None, START, []
    for gap, late in history:
        now += gap
        verdict = rule.decide(state, now)
        state = verdict.state
        if verdict.admitted:
            now += late
            starts.append(now)
            state = rule.delay(state, now, late, 1)
    assert most(starts, 10**6) <= limit


@pytest.mark.parametrize("algorithm", ["fixed_window", "sliding_counter"])
def test_a_start_late_into_the_next_window_counts_there(algorithm: str) -> None:
    rule = RateLimit("x", 2, 1, algorithm=algorithm, margin=0).rule
    state = rule.decide(None, START + 999_000).state
    state = rule.delay(state, START + 1_001_000, 2_000, 1)
    assert rule.remaining(rule.clamped(state, START + 1_999_000), START + 1_999_000) <= 1


@pytest.mark.parametrize("algorithm", WINDOWS)
def test_give_back(algorithm: str) -> None:  # N14
    rule = RateLimit("x", 2, 1, algorithm=algorithm, margin=0).rule
    first = rule.decide(None, START)
    second = rule.decide(first.state, START + 1000)
    assert not rule.decide(second.state, START + 2000).admitted
    done, state = rule.give_back(second.state, second.state, first.state, START + 2000, 1)
    assert done
    assert rule.decide(state, START + 2000).admitted


def test_a_log_forgets_in_few_looks() -> None:
    """At a limit of 100,000 a decision after a long rest looks at as many entries as its search needs."""
    rule = RateLimit("x", 100_000, 1, algorithm="sliding_log", margin=0).rule
    state = None
    for n in range(100_000):
        state = rule.decide(state, START + 10 * n).state
    looks = 0
    entry = type(state).entry

    def counted(self: Any, n: int) -> int:
        nonlocal looks
        looks += 1
        return entry(self, n)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(state), "entry", counted)
        verdict = rule.decide(state, START + 1_500_000)
    assert (verdict.admitted, verdict.remaining) == (True, 50_000)
    assert looks <= 40


class TestZones:
    DAY = RateLimit("x", 5, 86_400, algorithm="fixed_window", tz="America/New_York", margin=0)

    def rule_on(self, year: int, month: int, day: int) -> FixedWindow:
        today = int(datetime(year, month, day, tzinfo=ZoneInfo("UTC")).timestamp()) // 86_400
        return FixedWindow(5, 0, grid_of(86_400_000_000, 0, "America/New_York", today))

    @pytest.mark.parametrize(
        ("day", "hours"), [((2026, 3, 8), 23), ((2026, 11, 1), 25), ((2026, 6, 1), 24)]
    )
    def test_a_day_is_as_long_as_its_clocks_say(
        self, day: tuple[int, int, int], hours: int
    ) -> None:
        zone = ZoneInfo("America/New_York")
        for looked_on in (day, (day[0], day[1] - 1, 20), (day[0], day[1], day[2] + 1)):
            rule = self.rule_on(*looked_on)
            midnight = round(datetime(*day, tzinfo=zone).timestamp() * 1e6)
            number = rule.grid.number(midnight)
            assert rule.grid.number(midnight - 1) == number - 1
            assert rule.grid.start(number) == midnight
            assert rule.grid.start(number + 1) - midnight == hours * 3_600_000_000

    def test_waits_for_midnight_there(self) -> None:
        now = round(
            datetime(2026, 7, 1, 23, 0, tzinfo=ZoneInfo("America/New_York")).timestamp() * 1e6
        )
        rule, state = self.rule_on(2026, 7, 1), None
        for _ in range(5):
            state = rule.decide(state, now).state
        assert rule.decide(state, now).wait_us == 3_600_000_000


def test_a_week_that_begins_on_monday() -> None:
    week = RateLimit("x", 1, 7 * 86_400, algorithm="fixed_window", offset=4 * 86_400, margin=0)
    monday = round(datetime(2026, 1, 5, tzinfo=ZoneInfo("UTC")).timestamp() * 1e6)
    state = week.rule.decide(None, monday - 1).state
    assert week.rule.decide(state, monday - 1).wait_us == 1


@given(limits)
def test_a_rule_comes_back_from_its_wire(limit: RateLimit) -> None:
    assert from_wire(limit.rule.wire) == limit.rule


@pytest.mark.parametrize("text", ["", "g", "g,1,2", "x,1,2,3", "f,1,2,3", "l,a,b", "c,1"])
def test_what_is_no_rule(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        from_wire(text)
