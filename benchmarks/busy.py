"""The promise on a busy host: processes that do nothing but compute run beside the workers all the time.

    python benchmarks/busy.py [--loops 2] [--runs 20] [--limit 20] [--tasks 300] [--margins auto 0.01]

`--loops 0` is a host without other work. Runs of the margins alternate. Each run says the load average at its end: with other
work beside it, it is another test. The baseline of the drain is the ideal one,
(tasks - 1) / (limit / per), of the same run. In front of them all, `nice` must be the same for loops and servers.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from fleetlimit import RateLimiter
from fleetlimit.demo.api import Call
from fleetlimit.demo.measure import VARIANTS, Result, fleet, result
from fleetlimit.errors import StoreUnavailable


@contextmanager
def busy(loops: int) -> Iterator[None]:
    """So many processes that compute without a pause."""
    started = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(loops)]
    try:
        yield
    finally:
        for one in started:
            one.kill()
            one.wait()


def run(margin: str, limit: int, tasks: int) -> tuple[Result, list[float]]:
    """Drain one backlog: what the API saw, and the margins that were in force, seen once a second."""
    seen: list[tuple[float, float]] = []
    with fleet(limit, 1.0, FLEETLIMIT_DEMO_MARGIN=margin) as one, one.workers(3, 2):
        limiter = RateLimiter(one.url)

        def look(calls: list[Call], deliveries: int) -> None:
            if calls and (not seen or time.monotonic() > seen[-1][0] + 1):
                with suppress(StoreUnavailable):
                    seen.append((time.monotonic(), limiter.status("fragile-api").margin))

        calls, deliveries = one.run(
            VARIANTS["fleetlimit"], tasks, patience=3 * tasks / limit + 30, tick=look
        )
        limiter.close()
    return result(calls, deliveries, tasks, limit, 1.0), [one for _, one in seen]


def say(margin: str, runs: Sequence[tuple[Result, list[float]]], limit: int) -> None:
    kept = sum(said.worst_window <= limit for said, _ in runs)
    drains = [said.drain_over_ideal for said, _ in runs]
    print(
        f"margin {margin}: worst window <= {limit} in {kept} of {len(runs)} runs, drain / ideal "
        f"{statistics.median(drains):.4f} (median), {max(drains):.4f} (most)"
    )


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--loops", type=int, default=2)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--limit", type=int, default=20)
    parser.add_argument("--tasks", type=int, default=300)
    parser.add_argument("--margins", nargs="+", default=["auto", "0.01"])
    args = parser.parse_args(argv)
    print(
        f"3 workers of 2 processes, {args.tasks} tasks, {args.limit} per 1 s, {args.loops} busy loops"
    )
    done: dict[str, list[tuple[Result, list[float]]]] = {one: [] for one in args.margins}
    for number in range(args.runs):
        for margin, runs in done.items():
            with busy(args.loops):
                runs.append(run(margin, args.limit, args.tasks))
            said, seen = runs[-1]
            print(
                f"  run {number + 1}, margin {margin}: worst window {said.worst_window}, rejections "
                f"{said.api_rejections}, drain / ideal {said.drain_over_ideal:.4f}, in force "
                + " ".join(f"{one:.1%}" for one in seen)
                + f", load {os.getloadavg()[0]:.1f}",
                flush=True,
            )
    for margin, runs in done.items():
        say(margin, runs, args.limit)


if __name__ == "__main__":
    main(sys.argv[1:])
