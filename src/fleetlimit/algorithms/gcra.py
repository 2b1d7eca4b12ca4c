"""The generic cell rate algorithm (GCRA) in whole numbers: no clock, no store, no I/O.

GCRA (ITU-T I.371, the "virtual scheduling" form) stores one number, the theoretical arrival time
(TAT): the instant at which the bucket is full again. `lua/gcra.lua` is the same arithmetic, and
`tests/store/test_twins.py` compares every answer of the two.

Times are microseconds; inside one decision they are *ticks*, `Rule.ticks_per_us` to the
microsecond, so that a fast limit does not lose rate to rounding.

Invariants (each with the test that proves it, in `tests/core/test_gcra.py`):

1. In any window of `w` ticks at most `w / emission + burst` units are admitted.
   `test_no_window_above_the_bound`
2. `wait_us > 0` if and only if denied; waiting exactly that long, and no less, admits.
   `test_wait_is_enough_and_no_more`
3. A denial changes nothing that an honest history could have stored.
   `test_denial_changes_nothing`
4. Whatever is stored, nobody waits longer than one burst's worth (plus what a bounded sleep
   spent ahead): such a state is clamped, and the clamp is kept.
   `test_wait_is_bounded_whatever_is_stored`
5. A give-back never lets the next one in too early. `test_give_back`
6. With late starts reported (`delay`), invariant 1 holds for starts as for admissions, as long as
   less than a window was handed out ahead. `test_late_starts`
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import ClassVar

from fleetlimit.algorithms.base import Algorithm, Name, Standing, grown
from fleetlimit.algorithms.whole import EXACT, Limit, inexact, stretched_us

__all__ = [
    "Look",
    "Rule",
    "State",
    "clamped",
    "delay",
    "give_back",
    "look",
    "spend",
    "to_us",
]

# One emission rounded up to whole ticks may cost at most this share of the rate.
_ROUNDING = Fraction(1, 1000)


@dataclass(frozen=True)
class State:
    """What is stored: the TAT, its ticks beyond the microsecond, and by how much an honest TAT may
    exceed the capacity: as far ahead as the last admission was spent for a sleep in place."""

    tat_us: int
    tat_ticks: int = 0
    ahead_us: int = 0


@dataclass(frozen=True)
class Look:
    """Where one request stands, in ticks from now, before anything is decided.

    `lag`: when its units exist (0 or less: they exist now). `idle`: for how long they have stood
    ready and unused; None when the bucket has been full for an unknown time.
    """

    ahead: int
    lag: int
    idle: int | None


@dataclass(frozen=True)
class Rule(Algorithm):
    """A limit in ticks. `capacity` is `burst * emission`.

    With a burst of a whole period's units this is the token bucket, whose tokens are `(capacity - (tat -
    now)) / emission`; with a burst of 1 the leaky bucket, whose water is `tat - now`. The texts' own forms
    of both are kept as oracles in `tests/core/test_buckets.py`.
    """

    names: ClassVar[Mapping[str, Name]] = {
        "gcra": Name("GCRA", frozenset({"burst"})),
        "token_bucket": Name("token bucket", frozenset({"burst"}), full_burst=True),
        "leaky_bucket": Name("leaky bucket"),
    }
    letter = "g"
    size = 3

    emission: int
    ticks_per_us: int
    capacity: int

    @classmethod
    def from_limit(cls, limit: Limit) -> Rule:
        """Choose the tick: a microsecond, or as fine as keeps rounding below 0.1 % of the rate."""
        exact = stretched_us(limit) / limit.limit
        for ticks_per_us in (1, 10**3, 10**6, 10**9):
            emission = math.ceil(exact * ticks_per_us)
            if emission <= exact * ticks_per_us * (1 + _ROUNDING):
                break
        if emission * limit.burst + 10**6 * ticks_per_us >= EXACT:
            raise inexact(limit)
        return cls(emission, ticks_per_us, emission * limit.burst)

    @classmethod
    def bound(cls, limit: Limit) -> int:
        return limit.limit + limit.burst - 1

    @property
    def numbers(self) -> str:
        return f"{self.emission},{self.ticks_per_us},{self.capacity}"

    def _widened(self, margin: int) -> Rule:
        # The capacity stays: it would let that much more start at once, beyond the bound.
        return replace(self, emission=grown(self.emission, margin, 1010), margin=margin)

    def clamped(self, state: State | None, now_us: int) -> State | None:
        return clamped(state, now_us, self)

    def beyond(self, state: State | None, now_us: int) -> bool:
        return clamped(state, now_us, self) != state

    def look(self, state: State | None, now_us: int, cost: int) -> Standing:
        seen = look(state, now_us, self, cost)
        idle = None if seen.idle is None else seen.idle // self.ticks_per_us
        return Standing(to_us(seen.lag, self), idle)

    def wait_us(self, state: State | None, now_us: int, cost: int, before: int) -> int:
        return to_us(look(state, now_us, self, cost).lag + before * self.emission, self)

    def pace_us(self, units: int) -> int:
        return to_us(units * self.emission, self)

    def spend(self, state: State | None, now_us: int, cost: int, sleep_us: int) -> State:
        return spend(now_us, look(state, now_us, self, cost).ahead, self, cost, sleep_us)

    def delay(self, state: State | None, now_us: int, late_us: int, cost: int) -> State | None:
        return delay(state, now_us, self, late_us)

    def give_back(
        self,
        stored: State | None,
        spent: State | None,
        former: State | None,
        now_us: int,
        cost: int,
    ) -> tuple[bool, State | None]:
        return give_back(stored, spent, former, now_us)

    def remaining(self, state: State | None, now_us: int) -> int:
        ahead = look(state, now_us, self, 1).ahead
        # A full bucket starts one in any case, also where a unit is longer than it (see `look`).
        return max(max(0, self.capacity - ahead) // self.emission, int(ahead == 0))

    def reset_us(self, state: State | None, now_us: int) -> int:
        return to_us(look(state, now_us, self, 1).ahead, self)

    def part(self, number: int, slack: float) -> Rule:
        emission = round(self.emission * number * slack)
        burst = max(1, self.capacity // self.emission // number)
        return Rule(emission, self.ticks_per_us, emission * burst)

    def read_state(self, text: str) -> State | None:
        return State(*map(int, text.split(":"))) if text else None

    def write_state(self, state: State | None) -> str:
        return f"{state.tat_us}:{state.tat_ticks}:{state.ahead_us}" if state else ""

    def short(self, cost: int) -> tuple[bytes, ...] | None:
        if self.ticks_per_us != 1 or cost * self.emission > self.capacity:
            return None
        return _encoded(self)

    def short_state(self, number: int, now_us: int) -> State | None:
        return clamped(State(number), now_us, self) if number else None


@lru_cache(maxsize=1024)
def _encoded(rule: Rule) -> tuple[bytes, ...]:
    return b"%d" % rule.emission, b"%d" % rule.capacity


def to_us(ticks: int, rule: Rule) -> int:
    """Whole microseconds, rounded up: a wait must never be too short."""
    return -(-ticks // rule.ticks_per_us)


def clamped(state: State | None, now_us: int, rule: Rule) -> State | None:
    """The state, or the farthest that an honest one can be: that alone cures a clock that stepped
    back, a stale far-future value and a raised limit."""
    if state is None:
        return None
    most = rule.capacity + state.ahead_us * rule.ticks_per_us
    if _raw(state, now_us, rule) <= most:
        return state
    ticks = rule.ticks_per_us
    return State(now_us + most // ticks, most % ticks, state.ahead_us)


def _raw(state: State, now_us: int, rule: Rule) -> int:
    return (state.tat_us - now_us) * rule.ticks_per_us + state.tat_ticks


def look(state: State | None, now_us: int, rule: Rule, cost: int) -> Look:
    """Where a request of `cost` stands before a (clamped) state. A cost above the capacity (a burst
    that was lowered under way) starts when the bucket is full, and is paid in whole."""
    need = min(cost * rule.emission, rule.capacity) - rule.capacity
    if state is None:
        return Look(0, need, None)
    raw = _raw(state, now_us, rule)
    ahead = max(raw, 0)
    return Look(ahead, ahead + need, -(raw + need))


def spend(now_us: int, ahead: int, rule: Rule, cost: int, sleep_us: int) -> State:
    """The state after `cost` units start at `now_us + sleep_us`."""
    per_us = rule.ticks_per_us
    ticks = max(ahead, sleep_us * per_us) + cost * rule.emission
    beyond = to_us(ticks - rule.capacity, rule)
    return State(now_us + ticks // per_us, ticks % per_us, max(sleep_us, beyond))


def give_back(
    stored: State | None, spent: State | None, former: State | None, now_us: int
) -> tuple[bool, State | None]:
    """Undo an admission that did not start. Only while nothing else was admitted since: a unit
    admitted in between was spaced from this one, and `tat - cost * emission` would let the next
    one in on top of it. Otherwise the unit is forfeit.

    :returns: whether it was given back, and the state to store.
    """
    if stored is None or stored != spent:
        return False, stored
    return True, former if former and former.tat_us > now_us else None


def delay(state: State | None, now_us: int, rule: Rule, late_us: int) -> State | None:
    """The state after a start that came `late_us` after its cell: what is not yet handed out moves
    by as much, so that a window beginning with the late start is as long as the others."""
    tat = (now_us if state is None else state.tat_us) + late_us
    if tat <= now_us:
        return state
    old = state or State(now_us)
    ahead = max(old.ahead_us, tat - now_us - rule.capacity // rule.ticks_per_us)
    return State(tat, old.tat_ticks, ahead)
