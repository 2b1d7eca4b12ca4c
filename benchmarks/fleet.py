"""The promise, with three real workers: window, rejections, deliveries, drain and order.

    python benchmarks/fleet.py [RUNS [LIMIT [TASKS]]]

The baseline of the drain is the ideal one, (tasks - 1) / (limit / per), of the same run.
"""

from __future__ import annotations

import sys

from fleetlimit.demo.measure import VARIANTS, fleet, result


def main(runs: int, limit: int, tasks: int) -> None:
    print(f"3 workers, {tasks} tasks, {limit} per 1 s, burst 1:")
    for run in range(runs):
        with fleet(limit, 1.0) as one, one.workers(3, 4):
            calls, deliveries = one.run(
                VARIANTS["fleetlimit"], tasks, patience=3 * tasks / limit + 30, tick=lambda *_: None
            )
        said = result(calls, deliveries, tasks, limit, 1.0)
        moved = sorted(abs(place - number) for place, (_, number, _) in enumerate(calls))
        print(
            f"  run {run + 1}: worst window {said.worst_window}, rejections {said.api_rejections}, "
            f"deliveries per task {said.deliveries_per_task:.3f}, "
            f"drain / ideal {said.drain_over_ideal:.4f}, "
            f"99 % start within {moved[int(len(moved) * 0.99) - 1]} places of their own"
        )


if __name__ == "__main__":
    numbers = [int(text) for text in sys.argv[1:]]
    main(*(numbers + [5, 20, 600][len(numbers) :]))
