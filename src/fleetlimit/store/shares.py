"""One process's share of the limits while Redis is away: GCRA in this process's memory."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence

from fleetlimit.gcra import Look, Rule, State, clamped, look, spend, to_us
from fleetlimit.store.base import Outcome, Spend, Verdict

__all__ = ["Shares"]

#: At most so many keys are kept. Keys whose bucket is full are dropped first.
_KEYS = 100_000


class Shares:
    """The units that this process has spent since Redis went away. The caller must hold a lock."""

    def __init__(self) -> None:
        self._states: dict[tuple[str, str], State] = {}
        self._sweep_at = 1024

    def take(
        self,
        parts: Sequence[tuple[Spend, Rule]],
        max_sleep_us: int,
        back_us: int,
        *,
        look_only: bool = False,
    ) -> Outcome | None:
        """Decide under this process's share of each limit. The result is None if there are too many keys.

        :param parts: the units that are asked for, each with the rule of this process's share.
        :param max_sleep_us: how far ahead of time a unit may be taken.
        :param back_us: when all processes ask Redis again (in microseconds of the monotonic clock); 0 if it is not
            known.
        """
        now = time.monotonic_ns() // 1000
        self._sweep(now)
        if len(self._states) >= _KEYS:
            return None
        found = [(one, rule, self._look(one, rule, now)) for one, rule in parts]
        lag = max((to_us(max(0, at.lag), rule) for _, rule, at in found), default=0)
        if back_us and back_us <= now + lag <= now + max_sleep_us:
            # From then on the store hands out the whole limit, so no share may be taken on top of it.
            wait = max(back_us - now, 1) + round(random.uniform(0, 0.2) * 1e6)
            return Outcome(Verdict.DENIED, wait, 0, 0, now, alone=True)
        if lag <= max_sleep_us:
            for one, rule, at in [] if look_only else found:
                state = spend(now, at.ahead, rule, one.cost, lag)
                self._states[one.limit.name, one.key] = state
            return Outcome(Verdict.ADMITTED, 0, lag, 0, now, alone=True)
        wait = lag if not max_sleep_us else max(lag, round(random.uniform(1, 3) * 1e6))
        return Outcome(Verdict.DENIED, wait, 0, 0, now, alone=True)

    def _look(self, one: Spend, rule: Rule, now: int) -> Look:
        """The state of a key. A new state begins at a random point of its first interval, because all processes begin
        at about the same time."""
        where = one.limit.name, one.key
        if where not in self._states:
            interval = one.cost * rule.emission // rule.ticks_per_us
            spare = max(0, rule.capacity // rule.ticks_per_us - interval)
            ahead = spare + round(random.random() * interval)
            self._states[where] = State(now + ahead, ahead_us=ahead)
        return look(clamped(self._states[where], now, rule), now, rule, one.cost)

    def _sweep(self, now: int) -> None:
        if len(self._states) >= self._sweep_at:
            self._states = {at: s for at, s in self._states.items() if s.tat_us > now}
            self._sweep_at = max(1024, 2 * len(self._states))
