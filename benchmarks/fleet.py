"""The promise, with three real workers: window, rejections, deliveries, drain and order.

    python benchmarks/fleet.py [RUNS [LIMIT [TASKS]]]

The baseline of the drain is the ideal one, (tasks - 1) / (limit / per), of the same run.
"""

from __future__ import annotations

import sys
import time

from fleetlimit.demo.api import Call
from fleetlimit.demo.measure import QUEUE, VARIANTS, Fleet, fleet, result


def run(one: Fleet, tasks: int, patience: float) -> tuple[list[Call], int, float]:
    """Drain a backlog: calls, deliveries, and how long the first wave was read."""
    read: list[float] = []

    def look(*_: object) -> None:
        if not read and int(one.redis.llen(QUEUE)) < 10:
            read.append(time.monotonic())

    calls, deliveries = one.run(VARIANTS["fleetlimit"], tasks, patience=patience, tick=look)
    # Who was fetched last may still sleep in place for its cell.
    return calls, deliveries, read[0] - calls[0][0] + 0.25


def places(calls: list[Call], limit: int, wave: float) -> str:
    """How many start within a second's worth of their place, those aside that took a cell which
    stood idle while the first wave was read: they started then, ahead of others that waited."""
    order = [n for _, n, _ in calls]
    during = {n for at, n, _ in calls if at - calls[0][0] < wave}
    rest = [n for n in order if n not in during]
    place = {n: i for i, n in enumerate(sorted(rest))}
    near = sum(abs(place[n] - i) <= limit for i, n in enumerate(rest))
    return (
        f"{near / max(len(rest), 1):.1%} of {len(rest)} within a second's worth of their place "
        f"(first wave read in {wave:.1f} s)"
    )


def main(runs: int, limit: int, tasks: int) -> None:
    print(f"3 workers of 2 processes, {tasks} tasks, {limit} per 1 s, burst 1:")
    for number in range(runs):
        with fleet(limit, 1.0) as one, one.workers(3, 2):
            calls, deliveries, wave = run(one, tasks, patience=3 * tasks / limit + 30)
        said = result(calls, deliveries, tasks, limit, 1.0)
        print(
            f"  run {number + 1}: worst window {said.worst_window}, rejections {said.api_rejections}, "
            f"deliveries per task {said.deliveries_per_task:.3f}, "
            f"drain / ideal {said.drain_over_ideal:.4f}, " + places(calls, limit, wave),
            flush=True,
        )


if __name__ == "__main__":
    numbers = [int(text) for text in sys.argv[1:]]
    main(*(numbers + [5, 20, 600][len(numbers) :]))
