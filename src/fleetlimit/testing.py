"""For a program's own tests, without Redis: limits are off, recorded, or real with a clock of the test's own.

Each of the three is a context manager, and also a pytest fixture of the installed plugin (`limits_off`,
`limits_recorded`, `limits_in_memory`). While it is active, every `RateLimiter` and every limited task of this process
uses it, eager tasks (`task.apply()`, `task_always_eager`) included. Direct calls `task()` are never limited.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from fleetlimit import standin
from fleetlimit.store.base import Outcome, Spend, Ticket, Verdict, read
from fleetlimit.store.memory import MemoryStore

__all__ = ["Asked", "FakeClock", "Limits", "in_memory", "off", "recorded"]


@dataclass(frozen=True)
class Asked:
    """One limit's part of one question. `key` is encoded as in Redis; '' if the limit has no key."""

    name: str
    key: str
    cost: int
    allowed: bool


@dataclass
class FakeClock:
    """A clock that moves only when a test moves it, or when a task would sleep. It begins at 0 s."""

    seconds: float = 0.0

    def advance(self, seconds: float) -> None:
        self.seconds += seconds


@dataclass
class Limits:
    """The questions in order, and the clock."""

    clock: FakeClock = field(default_factory=FakeClock)
    asked: list[Asked] = field(default_factory=list)

    @property
    def admitted(self) -> list[Asked]:
        return [one for one in self.asked if one.allowed]


class _Recording(MemoryStore):
    def __init__(self, limits: Limits) -> None:
        super().__init__(lambda: round(limits.clock.seconds * 1e6))
        self._asked = limits.asked

    def acquire(self, spends: Sequence[Spend], ticket: Ticket | None = None) -> Outcome:
        outcome = self._decide(spends, ticket)
        for one in spends:
            self._asked.append(Asked(one.limit.name, one.key, one.cost, outcome.admitted))
        return outcome

    def _decide(self, spends: Sequence[Spend], ticket: Ticket | None) -> Outcome:
        return super().acquire(spends, ticket)


class _Open(_Recording):
    """Admits every request."""

    def _decide(self, spends: Sequence[Spend], ticket: Ticket | None) -> Outcome:
        now = self.now_us()
        readings = tuple(read(one.limit.rule, now, None, None) for one in spends)
        return Outcome(Verdict.ADMITTED, 0, 0, 0, now, lambda: readings)

    def peek(self, spends: Sequence[Spend]) -> Outcome:
        return self._decide(spends, None)


@contextmanager
def off() -> Iterator[None]:
    """Every limit admits every request."""
    with recorded():
        yield


@contextmanager
def recorded() -> Iterator[Limits]:
    """Every limit admits every request, and `Limits.asked` lists the questions."""
    limits = Limits()
    with _in_place(_Open(limits), limits):
        yield limits


@contextmanager
def in_memory() -> Iterator[Limits]:
    """The real algorithm runs in memory. An eager task that must wait moves the clock instead."""
    limits = Limits()
    with _in_place(_Recording(limits), limits):
        yield limits


@contextmanager
def _in_place(store: MemoryStore, limits: Limits) -> Iterator[None]:
    former, standin.current = standin.current, standin.StandIn(store, limits.clock.advance)
    try:
        yield
    finally:
        standin.current = former
