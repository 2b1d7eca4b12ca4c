"""Simulates a fleet on a simulated clock, without a wall clock, a sleep or I/O.

The library itself decides: a `MemoryStore` with the simulated clock, or, for the naive GET and SET, the limit's own
rule on a copy of its state.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from random import Random
from typing import Any

from fleetlimit.lab.scenario import Scenario
from fleetlimit.lab.traffic import arrivals
from fleetlimit.store.base import Spend, Ticket
from fleetlimit.store.memory import MemoryStore

__all__ = ["ASKS", "PERIODS", "Ask", "Run", "simulate"]

#: A run ends after so many asks, because requests that all wake together ask very often.
ASKS = 10_000
#: A run also ends so many periods after the last arrival.
PERIODS = 20
#: A request that waits wakes up at most so many microseconds late.
LATE_US = 10_000
#: A run begins at noon, so windows that are aligned to the epoch are aligned to the start of a run, and no time is 0.
_NOON_US = 12 * 3600 * 1_000_000


@dataclass(frozen=True)
class Ask:
    """One question of a request, for the first time or again. Times are microseconds since the start of the run.

    :param asked_us: when the request asked.
    :param at_us: when the request started (after a sleep in place, or a naive SET), or when it was denied.
    :param wait_us: how long the request was told to wait; 0 if it was admitted.
    :param number: the number of this ask among those of the request, from 1.
    """

    asked_us: int
    at_us: int
    instance: int
    request: int
    number: int
    admitted: bool
    wait_us: int


@dataclass
class Run:
    """The events of a run. `cut` says how the run was ended early (by `ASKS` or by `PERIODS`); else it is empty."""

    scenario: Scenario
    arrivals: list[int]
    #: The start of the run on the store's clock.
    base_us: int
    asks: list[Ask] = field(default_factory=list)
    cut: str = ""

    @property
    def starts(self) -> list[int]:
        """When requests started, in order."""
        return sorted(ask.at_us for ask in self.asks if ask.admitted)

    @property
    def waiting(self) -> int:
        """The number of requests that have neither started nor left."""
        if self.scenario.denied == "leave":
            return 0
        return len(self.arrivals) - len(self.starts)


@dataclass
class _Request:
    number: int
    asks: int = 0
    first_seen_us: int = 0


class _Fleet:
    """The instances, and the events that are still to come."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario, self.limit = scenario, scenario.rate_limit()
        per = self.limit.per_us
        self.now = self.base = -(-_NOON_US // per) * per
        self.run = Run(scenario, arrivals(scenario), self.base)
        self._random = Random(scenario.seed)
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0
        count = scenario.instances if scenario.state == "private" else 1
        self._stores = [MemoryStore(lambda: self.now) for _ in range(count)]
        self._state: Any = None  # of the naive limiter

    def play(self) -> Run:
        for number, at in enumerate(self.run.arrivals):
            self._at(self.base + at, partial(self._ask, _Request(number)))
        last = self.run.arrivals[-1] + PERIODS * self.limit.per_us
        while self._events:
            if self._events[0][0] > self.base + last:
                self.run.cut = f"cut {PERIODS} periods after the last request came"
                break
            if len(self.run.asks) >= ASKS:
                self.run.cut = f"cut at {ASKS:,} asks"
                break
            self.now, _, event = heappop(self._events)
            event()
        return self.run

    def _at(self, when: int, event: Callable[[], None]) -> None:
        self._count += 1  # events at the same time happen in the order in which they were planned
        heappush(self._events, (when, self._count, event))

    def _ask(self, request: _Request) -> None:
        request.asks += 1
        if self.scenario.state == "naive":
            self._get(request)
        else:
            self._acquire(request)

    def _acquire(self, request: _Request) -> None:
        """Ask in one atomic step, in the store of the request's instance or in the shared store."""
        store = self._stores[request.number % len(self._stores)]
        ticket = None
        if self.scenario.denied == "place":
            # As in the waiting room, a request asks again only at its turn: the horizon is beyond the end of the run.
            horizon_us = 2 * PERIODS * self.limit.per_us
            ticket = Ticket(
                str(request.number),
                request.first_seen_us,
                horizon_us=horizon_us,
                hop_us=horizon_us,
            )
        outcome = store.acquire([Spend(self.limit)], ticket)
        request.first_seen_us = outcome.first_seen_us
        # Like a task in a worker, the request asks shortly before its turn and sleeps until then.
        early_us = ticket.lead_us if ticket else 0
        told = (outcome.admitted, outcome.wait_us)
        self._answer(request, self.now, *told, sleep_us=outcome.sleep_us, early_us=early_us)

    def _get(self, request: _Request) -> None:
        """Ask in two steps. The write replaces everything that other requests have written in between."""
        asked, former = self.now, deepcopy(self._state)
        verdict = self.limit.rule.decide(former, asked)

        def put() -> None:
            if verdict.admitted:
                self._state = verdict.state
            self._answer(request, asked, verdict.admitted, verdict.wait_us)

        self._at(asked + self.scenario.latency * 1_000, put)

    def _answer(
        self, request: _Request, asked: int, admitted: bool, wait_us: int, *,
        sleep_us: int = 0, early_us: int = 0,
    ) -> None:  # fmt: skip
        self.run.asks.append(
            Ask(
                asked_us=asked - self.base,
                at_us=self.now + sleep_us - self.base,
                instance=request.number % self.scenario.instances,
                request=request.number,
                number=request.asks,
                admitted=admitted,
                wait_us=wait_us,
            )
        )
        if not admitted and self.scenario.denied != "leave":
            late = self._random.randrange(LATE_US)
            self._at(self.now + max(0, wait_us - early_us) + late, partial(self._ask, request))


def simulate(scenario: Scenario) -> Run:
    """Play a scenario to its end."""
    return _Fleet(scenario).play()
