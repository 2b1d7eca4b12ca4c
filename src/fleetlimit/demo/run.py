"""Runs the demo: the same backlog for each variant, one after the other."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from fleetlimit.demo.api import Call
from fleetlimit.demo.measure import VARIANTS, Fleet, Result, fleet, result

__all__ = ["CELERY", "OURS", "RETRY", "Outcome", "Plan", "Watcher", "document", "play"]

OURS, CELERY, RETRY = VARIANTS
#: How long a variant may take: (a multiple of the ideal time, and seconds on top of it).
_PATIENCE = {OURS: (1.0, 10.0), CELERY: (1.0, 5.0), RETRY: (1.5, 5.0)}


@dataclass(frozen=True)
class Plan:
    """The numbers of a run. `concurrency`: the processes in each worker's pool.

    The period is 3 s and not 1 s, because the time of a call from its task to the API may vary by the limit's margin,
    1 % of the period. On a busy laptop it varies by more than 10 ms, but not by more than 30 ms.
    """

    limit: int = 30
    per: float = 3.0
    tasks: int = 150
    workers: int = 3
    concurrency: int = 2
    baselines: bool = True

    @property
    def variants(self) -> list[str]:
        return list(VARIANTS) if self.baselines else [OURS]

    def size(self, variant: str) -> int:
        """How many tasks a variant gets: all of them, but with Celery's `rate_limit` a little more than a window's
        worth.

        These are enough to see the effect. With a longer backlog each worker slows down to about one task a second,
        which is another problem (compare celery/celery#5927).
        """
        if variant == CELERY:
            return min(self.tasks, max(2, self.limit * self.workers * 6 // 5))
        return self.tasks

    def patience(self, variant: str) -> float:
        """The seconds after which a variant is ended, even if tasks are left."""
        times, more = _PATIENCE[variant]
        return times * self.size(variant) * self.per / self.limit + more


@dataclass(frozen=True)
class Outcome:
    """The calls of one variant, and its result."""

    variant: str
    calls: Sequence[Call]
    result: Result


class Watcher(Protocol):
    """Shows the progress: a live view, or lines of text."""

    def starting(self) -> None:
        """The servers and workers are about to start."""

    def began(self, variant: str) -> None: ...

    def tick(self, variant: str, calls: Sequence[Call], deliveries: int) -> None:
        """Called ten times a second with the calls and deliveries so far."""

    def ended(self, outcome: Outcome) -> None: ...


def play(plan: Plan, watcher: Watcher) -> list[Outcome]:
    """Run all variants of `plan`. The first one is fleetlimit."""
    watcher.starting()
    outcomes = []
    with fleet(plan.limit, plan.per) as ours:
        for variant in plan.variants:
            watcher.began(variant)
            # Each variant has its own workers. Tasks that one variant left in a worker's memory (for instance tasks
            # that `rate_limit` holds back) would disturb the measurement of the next variant.
            with ours.workers(plan.workers, plan.concurrency):
                outcomes.append(_one(plan, ours, variant, watcher))
            watcher.ended(outcomes[-1])
    return outcomes


def _one(plan: Plan, ours: Fleet, variant: str, watcher: Watcher) -> Outcome:
    size = plan.size(variant)
    calls, _ = ours.run(
        VARIANTS[variant],
        size,
        patience=plan.patience(variant),
        tick=lambda calls, deliveries: watcher.tick(variant, calls, deliveries),
    )
    if len(calls) >= size:
        ours.settle(5)  # calls after that of the last task (for instance duplicates) count as well
    calls, deliveries = ours.seen()
    return Outcome(variant, calls, result(calls, deliveries, size, plan.limit, plan.per))


def document(plan: Plan, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """The run as one JSON object: the numbers of fleetlimit, and those of the baselines under `baselines`."""
    ours, *baselines = outcomes
    return {
        **_numbers(ours),
        "promise_kept": ours.result.promise_kept,
        "workers": plan.workers,
        "baselines": {_key(one.variant): _numbers(one) for one in baselines},
    }


def _numbers(outcome: Outcome) -> Mapping[str, Any]:
    return outcome.result.as_dict()


def _key(variant: str) -> str:
    return re.sub(r"\W+", "_", variant).strip("_")
