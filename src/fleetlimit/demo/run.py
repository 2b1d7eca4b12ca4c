"""The demo's one run: the same backlog for each variant, one after the other, on the same workers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from fleetlimit.demo.api import Call
from fleetlimit.demo.measure import VARIANTS, Fleet, Result, fleet, result

__all__ = ["CELERY", "OURS", "RETRY", "Outcome", "Plan", "Watcher", "document", "play"]

OURS, CELERY, RETRY = VARIANTS
#: How long a variant may take, as (times the ideal, and seconds more).
_PATIENCE = {OURS: (1.0, 10.0), CELERY: (1.0, 5.0), RETRY: (1.5, 5.0)}


@dataclass(frozen=True)
class Plan:
    """What to run. `concurrency`: processes in each worker's pool.

    The period is 3 s and not 1 because the way of a call from its task to the API may vary by the
    limit's margin, 1 % of the period: a busy laptop does not keep to 10 ms, but to 30.
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
        """How many tasks a variant gets: all; but Celery's `rate_limit` a window's worth and a bit.

        That is enough to see what it does. Behind a longer backlog each worker falls to about one
        task a second, which is another story (compare celery/celery#5927).
        """
        if variant == CELERY:
            return min(self.tasks, max(2, self.limit * self.workers * 6 // 5))
        return self.tasks

    def patience(self, variant: str) -> float:
        """Seconds after which a variant is ended, done or not."""
        times, more = _PATIENCE[variant]
        return times * self.size(variant) * self.per / self.limit + more


@dataclass(frozen=True)
class Outcome:
    """One variant's calls, and what follows from them."""

    variant: str
    calls: Sequence[Call]
    result: Result


class Watcher(Protocol):
    """Who looks on: a live view, or lines of text."""

    def starting(self) -> None:
        """The servers and workers are about to start."""

    def began(self, variant: str) -> None: ...

    def tick(self, variant: str, calls: Sequence[Call], deliveries: int) -> None:
        """What was seen so far, ten times a second."""

    def ended(self, outcome: Outcome) -> None: ...


def play(plan: Plan, watcher: Watcher) -> list[Outcome]:
    """Run all variants of `plan`; fleetlimit's own is the first."""
    watcher.starting()
    outcomes = []
    with fleet(plan.limit, plan.per) as ours:
        for variant in plan.variants:
            watcher.began(variant)
            # Workers of its own: what one variant left in a worker's memory (tasks held back by
            # `rate_limit`, say) would run into the next one's measurement.
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
        ours.settle(5)  # what comes after the last task's call, a duplicate say, counts as well
    calls, deliveries = ours.seen()
    return Outcome(variant, calls, result(calls, deliveries, size, plan.limit, plan.per))


def document(plan: Plan, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """The run as one JSON object: fleetlimit's numbers, the baselines' under `baselines`."""
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
