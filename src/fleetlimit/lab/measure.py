"""What a run is measured by: the worst window, the count over time, the ideal drain."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

from fleetlimit.limit import RateLimit

__all__ = ["ideal", "trailing", "worst_window"]


def worst_window(starts: Sequence[int], per_us: int) -> tuple[int, int]:
    """The most of `starts` (sorted) in any window `[t, t + per)`, and the first t that holds them."""
    counts = [bisect_left(starts, t + per_us) - n for n, t in enumerate(starts)]
    if not counts:
        return 0, 0
    most = max(counts)
    return most, starts[counts.index(most)]


def trailing(starts: Sequence[int], per_us: int) -> list[tuple[int, int]]:
    """Steps of the count of `starts` (sorted) within the last `per`: (from when, how many)."""
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
    """When the last of `arrivals` starts if each starts, in order, the instant the limit lets it."""
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
