"""Measures a run: the worst window, the count over time, the ideal drain."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

from fleetlimit.limit import RateLimit

__all__ = ["ideal", "trailing", "worst_window"]


def worst_window(starts: Sequence[int], per_us: int) -> tuple[int, int]:
    """The largest number of `starts` (sorted) in any window `[t, t + per)`, and the first such t."""
    counts = [bisect_left(starts, t + per_us) - n for n, t in enumerate(starts)]
    if not counts:
        return 0, 0
    most = max(counts)
    return most, starts[counts.index(most)]


def trailing(starts: Sequence[int], per_us: int) -> list[tuple[int, int]]:
    """The number of `starts` (sorted) within the last period, as steps: (from when, how many)."""
    changes: dict[int, int] = {0: 0}
    for t in starts:
        changes[t] = changes.get(t, 0) + 1
        changes[t + per_us] = changes.get(t + per_us, 0) - 1
    steps, count = [], 0
    for t in sorted(changes):
        count += changes[t]
        steps.append((t, count))
    return steps


def ideal(limit: RateLimit, arrivals: Sequence[int]) -> int:
    """When the last of `arrivals` starts if all start in order, each as soon as the limit admits it."""
    state: Any = None
    now = 0
    for at in arrivals:
        now = max(now, at)
        while True:
            verdict = limit.rule.decide(state, now)
            state = verdict.state
            if verdict.admitted:
                break
            now += verdict.wait_us
    return now
