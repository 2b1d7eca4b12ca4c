"""A store in this process's memory: for tests, single processes and as the scripts' twin.

It holds one process to the limit, not a fleet: three processes with a store of their own send
three times the limit (see `tests/test_exhibits.py`).
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from fleetlimit.algorithms.base import Algorithm, Standing
from fleetlimit.limit import RateLimit
from fleetlimit.store.base import (
    FREE_US,
    IDLE_US,
    NEWCOMER_SHARE,
    PASS_US,
    PURGE,
    Outcome,
    Override,
    Reading,
    Spend,
    Ticket,
    Verdict,
    read,
)

__all__ = ["MemoryStore"]


@dataclass
class _Line:
    """One key: its state and, in order of first sight, those who wait."""

    state: Any = None
    kind: type | None = None
    full_at: int = 0
    units: int = 0
    order: list[tuple[int, str]] = field(default_factory=list)
    seen: dict[str, int] = field(default_factory=dict)
    deadlines: dict[str, int] = field(default_factory=dict)

    def counted(self, rule: Algorithm) -> Any:
        """The state; what was counted in another way says nothing."""
        return self.state if self.kind is type(rule) else None

    def keep(self, rule: Algorithm, state: Any) -> None:
        self.state, self.kind = state, type(rule)

    def join(self, id: str, seen: int, deadline: int, cost: int) -> None:
        if id not in self.seen:
            self.seen[id] = seen
            insort(self.order, (seen, id))
            self.units += cost
        self.deadlines[id] = deadline

    def leave(self, id: str, cost: int) -> None:
        if self._drop(id):
            self.units = max(self.units - cost, len(self.order)) if self.order else 0

    def purge(self, now: int) -> None:
        count = len(self.order)
        dead = sorted((at, id) for id, at in self.deadlines.items() if at <= now)[:PURGE]
        for _, id in dead:
            self._drop(id)
        left = len(self.order)
        self.units = max(self.units * left // count, left) if count else 0

    def rank(self, id: str, seen: int) -> int:
        if id in self.seen:
            return bisect_left(self.order, (self.seen[id], id))
        return bisect_left(self.order, (seen, "")) if seen else len(self.order)

    def _drop(self, id: str) -> bool:
        self.deadlines.pop(id, None)
        seen = self.seen.pop(id, None)
        if seen is None:
            return False
        del self.order[bisect_left(self.order, (seen, id))]
        return True


@dataclass
class _Look:
    """One limit's part of a decision on its way."""

    spend: Spend
    line: _Line
    seen: int
    at: Standing
    rank: int
    rule: Algorithm
    blocked: bool
    wait_us: int
    former: Any


class MemoryStore:
    """Thread-safe; memory of keys whose bucket is full and whose line is empty is freed.

    :param clock: microseconds since the epoch; the default begins at this host's clock and does not step.
    """

    def __init__(self, clock: Callable[[], int] | None = None) -> None:
        began = time.time_ns() - time.monotonic_ns()
        self._clock = clock or (lambda: (began + time.monotonic_ns()) // 1000)
        self._lines: dict[tuple[str, str], _Line] = {}
        self._overrides: dict[str, Override] = {}
        self._lock = threading.Lock()
        self._sweep_at = 1024

    def acquire(self, spends: Sequence[Spend], ticket: Ticket | None = None) -> Outcome:
        with self._lock:
            now = self._clock()
            self._sweep(now)
            looks = [self._look(one, now, ticket, write=True) for one in spends]
            return self._answer(looks, now, ticket)

    def peek(self, spends: Sequence[Spend]) -> Outcome:
        with self._lock:
            now = self._clock()
            looks = [self._look(one, now, None, write=False) for one in spends]
            return self._answer(looks, now, None, write=False)

    def give_back(self, spend: Spend, reading: Reading) -> bool:
        with self._lock:
            line, rule = self._line(spend.limit, spend.key), reading.rule
            done, state = rule.give_back(
                line.counted(rule), reading.spent, reading.former, self._clock(), spend.cost
            )
            if done:
                line.keep(rule, state)
            return done

    def delay(self, spends: Sequence[Spend], late_us: int) -> None:
        with self._lock:
            now = self._clock()
            for one in spends:
                line, rule = self._line(one.limit, one.key), self._rule(one.limit)
                if line.state is not None and line.counted(rule) is None:
                    continue  # counted in another way
                state = rule.delay(line.state, now, late_us, one.cost)
                if state is not None:
                    line.keep(rule, state)

    def withdraw(self, name: str, key: str, id: str) -> bool:
        with self._lock:
            line = self._lines.get((name, key), _Line())
            before = len(line.order)
            line.leave(id, line.units // before if before else 0)
            return len(line.order) < before

    def reset(self, limit: RateLimit, key: str = "") -> None:
        with self._lock:
            self._line(limit, key).state = None

    def override(self, name: str) -> Override:
        return self._overrides.get(name, Override())

    def change_override(
        self,
        name: str,
        *,
        rules: Sequence[Algorithm] | None = None,
        pause_us: int | None = None,
        forced: bool = False,
    ) -> tuple[Override, int]:
        with self._lock:
            now = self._clock()
            found = self.override(name).changed(now, rules, pause_us, forced)
            self._overrides[name] = found
            return found, now

    def now_us(self) -> int:
        return self._clock()

    def close(self) -> None:
        """Nothing to give back."""

    def _line(self, limit: RateLimit, key: str) -> _Line:
        return self._lines.setdefault((limit.name, key), _Line())

    def _rule(self, limit: RateLimit) -> Algorithm:
        return self.override(limit.name).rule(limit.rule)

    def _sweep(self, now: int) -> None:
        if len(self._lines) < self._sweep_at:
            return
        for key, line in list(self._lines.items()):
            if not line.order and (line.state is None or line.full_at <= now):
                del self._lines[key]
        self._sweep_at = max(1024, 2 * len(self._lines))

    def _look(self, one: Spend, now: int, ticket: Ticket | None, *, write: bool) -> _Look:
        line, override = self._line(one.limit, one.key), self.override(one.limit.name)
        rule = override.rule(one.limit.rule)
        seen = ticket.first_seen_us if ticket else 0
        max_sleep = ticket.max_sleep_us if ticket else 0
        rank = before = 0
        if line.units or seen:
            if write:
                line.purge(now)
            id = ticket.id if ticket else ""
            seen = line.seen.get(id, seen)
            rank = line.rank(id, seen)
            before = line.units * rank // len(line.order) if line.order else 0
        found = line.counted(rule)
        state = rule.clamped(found, now)
        if write and (line.state is not found or rule.beyond(found, now)):
            line.keep(rule, state)
        pause = override.pause_until_us - now
        at = _paused(rule.look(state, now, one.cost), pause)
        if not seen:
            max_sleep //= NEWCOMER_SHARE
        turn = rule.pace_us(before)
        # Places of a second's worth, or any number if there are units for all of those ahead too.
        passes = seen and (
            turn <= PASS_US or rule.wait_us(state, now, one.cost, before) <= max_sleep
        )
        free = -min(FREE_US, max_sleep) if max_sleep else IDLE_US
        idle = at.idle_us is None or at.idle_us >= free
        if idle and not seen and line.units > len(line.order):
            # Some who wait cost more than one: none of what they save up for goes to newcomers.
            idle = rule.wait_us(state, now, one.cost, line.units) <= max_sleep
        blocked = at.lag_us > max_sleep or (rank > 0 and not idle and not passes)
        wait = 0
        if blocked:
            wait = max(rule.wait_us(state, now, one.cost, before), 1)
            wait = max(wait, pause + turn) if pause > 0 else wait
        return _Look(one, line, seen, at, rank, rule, blocked, wait, state)

    def _answer(
        self, looks: list[_Look], now: int, ticket: Ticket | None, *, write: bool = True
    ) -> Outcome:
        wait = max(one.wait_us for one in looks)
        sleep = 0 if wait else max(max(0, one.at.lag_us) for one in looks)
        expires = bool(
            ticket and ticket.expires_in_us is not None and wait > max(ticket.expires_in_us, 0)
        )
        if write:
            binding = next(one for one in looks if one.wait_us == wait)
            for one in looks:
                places = one is binding and bool(wait) and not expires
                self._write(one, now, ticket, wait, sleep, places=places)
        known = min((one.seen for one in looks if one.seen), default=now)
        first_seen = (ticket.first_seen_us or (known if wait else 0)) if ticket else 0
        readings = tuple(
            read(
                one.rule,
                now,
                one.former,
                one.line.state if write and not wait else one.former,
                wait_us=one.wait_us,
                rank=one.rank,
                waiting=len(one.line.order),
            )
            for one in looks
        )
        verdict = Verdict.EXPIRES if expires else Verdict.DENIED if wait else Verdict.ADMITTED
        return Outcome(verdict, wait, sleep, first_seen, now, lambda: readings)

    def _write(
        self, one: _Look, now: int, ticket: Ticket | None, wait: int, sleep: int, *, places: bool
    ) -> None:
        line = one.line
        if not wait:
            line.keep(one.rule, one.rule.spend(one.former, now, one.spend.cost, sleep))
            line.full_at = now + one.rule.reset_us(line.state, now)
        if ticket and places:  # in the line that binds
            deadline = now + min(wait, ticket.horizon_us) + ticket.grace_us
            line.join(ticket.id, one.seen or now, deadline, one.spend.cost)
        elif ticket:
            line.leave(ticket.id, one.spend.cost)


def _paused(at: Standing, pause_us: int) -> Standing:
    if pause_us <= 0:
        return at
    lag = max(at.lag_us, pause_us)
    return Standing(lag, -lag if at.idle_us is None else min(at.idle_us, -lag))
