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
    Outcome,
    Override,
    Reading,
    Spend,
    Ticket,
    Verdict,
    hop_us,
    read,
)
from fleetlimit.store.shared import (
    FREE_US,
    HEARD_US,
    IDLE_US,
    LATE_US,
    LOOK,
    NEWCOMER_SHARE,
    PASS_US,
    PURGE,
    SILENT,
    SILENT_US,
    TOGETHER_US,
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
    costs: dict[str, int] = field(default_factory=dict)
    deadlines: dict[str, int] = field(default_factory=dict)
    #: When one of those who wait last came; None: nobody ever waited.
    heard_at: int | None = None
    #: Places below this do not count: nobody comes for them.
    gone: int = 0

    def counted(self, rule: Algorithm) -> Any:
        """The state; what was counted in another way says nothing."""
        return self.state if self.kind is type(rule) else None

    def keep(self, rule: Algorithm, state: Any) -> None:
        self.state, self.kind = state, type(rule)

    def join(self, id: str, seen: int, deadline: int, cost: int, now: int) -> None:
        if id not in self.seen:
            self.seen[id] = seen
            insort(self.order, (seen, id))
        self.units += cost - self.costs.get(id, 0)
        self.costs[id], self.deadlines[id] = cost, deadline
        if self.heard_at is None:
            self.heard_at = now

    def leave(self, id: str) -> None:
        seen = self.seen.pop(id, None)
        if seen is not None:
            del self.order[bisect_left(self.order, (seen, id))]
            self.units -= self.costs.pop(id)
            del self.deadlines[id]

    def hear(self, now: int, place: int) -> None:
        """Somebody who waits has come. One of those who were gone brings them all back; one that joined later
        says nothing of them. Kept to the tenth of a second, as the scripts do."""
        known = self.heard_at
        if not self.gone and known is not None and known <= now < known + HEARD_US:
            return
        self.heard_at = now
        if place < self.gone:
            self.gone = 0

    def overdue(self, now: int, grace: int, *, write: bool) -> list[tuple[int, str]]:
        """Those who are late: when each was promised its turn, and its ticket. The dead leave (where it may
        write)."""
        by = now + max(grace - LATE_US, 0)
        found = sorted((at, id) for id, at in self.deadlines.items() if at <= by)[:PURGE]
        if write:
            for at, id in found:
                if at <= now:
                    self.leave(id)
            found = [one for one in found if one[0] > now]
        return [(at - grace, id) for at, id in found]

    def saves(self, rule: Algorithm, promise: int, id: str, now: int) -> bool:
        """Whether the cells of this late one are kept: it costs more than most, and they are kept for as long as it
        would take to save them up again."""
        dear = self.deadlines[id] > now and self.costs[id] * len(self.order) > self.units
        return dear and now - promise < LATE_US + rule.pace_us(self.costs[id])

    def gone_at(self, late: list[tuple[int, str]], now: int) -> int:
        """`gone`, by what is known now: several are late, or one is very late, and nobody was heard since."""
        missed = [
            promise
            for promise, id in late
            if (self.heard_at or 0) < promise < now - LATE_US and self.gone <= self.seen[id]
        ]
        silent = len(missed) >= SILENT or (missed and now - min(missed) >= SILENT_US)
        return now if silent else self.gone


def _ahead(
    line: _Line, late: set[str], gone: int, place: int, id: str | None
) -> tuple[int, int, int]:
    """Of those who count as ahead of a place (0: of somebody new): their number, their units (exact as far as
    `LOOK` reaches, then by the mean), and the most that one of them costs."""
    there = line.order[bisect_left(line.order, (gone, "")) :]
    end = bisect_left(there, (place, id or "")) if place else len(there)
    rank = sum(id not in late for _, id in there[:end])
    if not rank:
        return 0, 0, 0
    if line.units == len(line.order):
        return rank, rank, 1
    costs = [line.costs[id] for _, id in there[: min(end, LOOK)] if id not in late]
    rest = (rank - len(costs)) * line.units // len(line.order)
    return rank, sum(costs) + rest, max(costs, default=0)


@dataclass
class _Look:
    """One limit's part of a decision on its way."""

    spend: Spend
    line: _Line
    seen: int
    woken: bool
    at: Standing
    rank: int
    before: int
    saving: bool
    pause_us: int
    rule: Algorithm
    former: Any
    wait_us: int = 0

    def judge(self, now: int, max_sleep: int, together: int) -> None:
        """How long it must wait for this limit, if it must; `together`: the latest that all limits asked
        could start it."""
        if not self.woken:
            max_sleep //= NEWCOMER_SHARE
        cost, turn = self.spend.cost, self.rule.pace_us(self.before)
        wait = self.rule.wait_us(self.former, now, cost, self.before)
        free = -min(FREE_US, max_sleep) if max_sleep else IDLE_US
        idle = self.at.idle_us is None or self.at.idle_us >= free
        # What somebody ahead saves up for a larger cost goes to nobody else.
        idle = idle and (not self.saving or wait <= max_sleep)
        # Places of a second's worth, or any number if there are units for all of those ahead too.
        passes = self.woken and ((turn <= PASS_US and not self.saving) or wait <= max_sleep)
        blocked = self.at.lag_us > min(max_sleep, together)
        if blocked or (self.rank > 0 and not idle and not passes):
            self.wait_us = max(wait, 1, self.pause_us + turn if self.pause_us > 0 else 0)


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
            looks = _judged(
                [self._look(one, now, ticket, write=True) for one in spends], now, ticket
            )
            return self._answer(looks, now, ticket)

    def peek(self, spends: Sequence[Spend]) -> Outcome:
        with self._lock:
            now = self._clock()
            looks = _judged([self._look(one, now, None, write=False) for one in spends], now, None)
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
                line, rule = self._line(one.limit, one.key), self._rule(one.limit, now)
                if line.state is not None and line.counted(rule) is None:
                    continue  # counted in another way
                state = rule.delay(line.state, now, late_us, one.cost)
                if state is not None:
                    line.keep(rule, state)

    def withdraw(self, name: str, key: str, id: str, *, how: str = "") -> bool:
        with self._lock:
            line = self._lines.get((name, key), _Line())
            before = len(line.order)
            line.leave(id)
            return len(line.order) < before

    def reset(self, name: str, key: str = "") -> None:
        with self._lock:
            self._lines.setdefault((name, key), _Line()).state = None

    def override(self, name: str) -> Override:
        return self._overrides.get(name, Override())

    def change_override(
        self,
        name: str,
        *,
        rules: Sequence[Algorithm] | None = None,
        pause_us: int | None = None,
        forced: bool = False,
        margin: int = 0,
        briefly: bool = False,
    ) -> tuple[Override, int]:
        with self._lock:
            now = self._clock()
            found = self.override(name).changed(now, rules, pause_us, forced, margin, briefly)
            self._overrides[name] = found
            return found, now

    def now_us(self) -> int:
        return self._clock()

    def close(self) -> None:
        """Nothing to give back."""

    def _line(self, limit: RateLimit, key: str) -> _Line:
        return self._lines.setdefault((limit.name, key), _Line())

    def _rule(self, limit: RateLimit, now: int) -> Algorithm:
        return self.override(limit.name).rule(limit.rule, now)

    def _sweep(self, now: int) -> None:
        if len(self._lines) < self._sweep_at:
            return
        for key, line in list(self._lines.items()):
            if not line.order and (line.state is None or line.full_at <= now):
                del self._lines[key]
        self._sweep_at = max(1024, 2 * len(self._lines))

    def _look(self, one: Spend, now: int, ticket: Ticket | None, *, write: bool) -> _Look:
        line, override = self._line(one.limit, one.key), self.override(one.limit.name)
        rule = override.rule(one.limit.rule, now)
        seen = ticket.first_seen_us if ticket else 0
        woken, rank, before, most = seen > 0, 0, 0, 0
        if line.units or seen:
            late = line.overdue(now, ticket.grace_us if ticket else 0, write=write)
            id = ticket.name if ticket else ""
            gone = line.gone_at(late, now) if line.order else line.gone
            if write:
                line.gone = gone
            if id in line.seen:
                # Whose place was taken after its message was written gave itself back: its turn did not wake it.
                woken, seen = not 0 < seen < line.seen[id], line.seen[id]
            held = id if id in line.seen else None
            passed = {id for at, id in late if not line.saves(rule, at, id, now)}
            rank, before, most = _ahead(line, passed, gone, seen, held)
        found = line.counted(rule)
        state = rule.clamped(found, now)
        if write and (line.state is not found or rule.beyond(found, now)):
            line.keep(rule, state)
        pause = override.pause_until_us - now
        at = _paused(rule.look(state, now, one.cost), pause)
        saving = most > one.cost or (not seen and line.units > len(line.order))
        return _Look(one, line, seen, woken, at, rank, before, saving, pause, rule, state)

    def _answer(
        self, looks: list[_Look], now: int, ticket: Ticket | None, *, write: bool = True
    ) -> Outcome:
        wait = max(one.wait_us for one in looks)
        sleep = 0 if wait else max(max(0, one.at.lag_us) for one in looks)
        expires = bool(
            ticket and ticket.expires_in_us is not None and wait > max(ticket.expires_in_us, 0)
        )
        first_seen = _first_seen(looks, now, wait, ticket) if ticket else 0
        if write:
            binding = next(one for one in looks if one.wait_us == wait)
            for one in looks:
                places = one is binding and bool(wait) and not expires
                self._write(one, now, ticket, wait, sleep, places=places)
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
        if ticket and one.seen and line.order:
            line.hear(now, one.seen)
        if ticket and places:  # in the line that binds
            deadline = now + hop_us(wait, ticket.horizon_us, ticket.hop_us) + ticket.grace_us
            line.join(ticket.name, one.seen or now, deadline, one.spend.cost, now)
        elif ticket:
            line.leave(ticket.name)


def _first_seen(looks: list[_Look], now: int, wait: int, ticket: Ticket) -> int:
    """The place for the task's message: that in the line that binds."""
    if not wait:
        return ticket.first_seen_us
    binding = next(one for one in looks if one.wait_us == wait)
    if ticket.name in binding.line.seen:
        return binding.line.seen[ticket.name]
    return ticket.first_seen_us or min((one.seen for one in looks if one.seen), default=now)


def _judged(looks: list[_Look], now: int, ticket: Ticket | None) -> list[_Look]:
    lags = [max(one.at.lag_us, 0) for one in looks]
    together = min(lags) + TOGETHER_US if len(looks) > 1 else max(lags)
    for one in looks:
        one.judge(now, ticket.max_sleep_us if ticket else 0, together)
    return looks


def _paused(at: Standing, pause_us: int) -> Standing:
    if pause_us <= 0:
        return at
    lag = max(at.lag_us, pause_us)
    return Standing(lag, -lag if at.idle_us is None else min(at.idle_us, -lag))
