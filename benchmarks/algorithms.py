"""Every algorithm under eight processes: is the stated bound kept, and is what it allows used?

    python benchmarks/algorithms.py [RUNS] [SECONDS]

Paced: the eight ask at twice the limit, for the bound. Saturated: as fast as they can, for the use: what was
admitted over what the limit allows in that time. Starts are timed by Redis's own clock. Ends with the price of a
log of 100,000 against one of 10, in one run.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import chain
from multiprocessing import get_context

from fleetlimit import RateLimit
from fleetlimit.demo.measure import worst_window
from fleetlimit.demo.processes import redis_server, scratch
from fleetlimit.limit import ALGORITHMS
from fleetlimit.store.base import Spend
from fleetlimit.store.redis import RedisStore

PROCESSES, LIMIT = 8, 50


def asks(url: str, limit: RateLimit, seconds: float, paced: bool, number: int) -> list[float]:
    """One process's share; when what was admitted starts, seconds of Redis's clock."""
    store, starts = RedisStore(url), []
    began = time.monotonic()
    interval = PROCESSES / (2 * LIMIT)
    at = began + number * interval / PROCESSES
    while at < began + seconds:
        if paced:
            time.sleep(max(0, at - time.monotonic()))
        outcome = store.acquire([Spend(limit)])
        if outcome.admitted:
            starts.append((outcome.now_us + outcome.sleep_us) / 1e6)
        at = at + interval if paced else time.monotonic()
    store.close()
    return starts


def main(runs: int, seconds: float) -> None:
    with (
        scratch() as folder,
        redis_server(folder) as server,
        ProcessPoolExecutor(PROCESSES, mp_context=get_context("spawn")) as pool,
    ):
        pool.submit(int).result()
        print(
            f"{PROCESSES} processes, {LIMIT} per 1 s, {runs} runs of {seconds:g} s at twice the limit:"
        )
        for algorithm in ALGORITHMS:
            worst = []
            for run in range(runs):
                limit = RateLimit(f"{algorithm}-{run}", LIMIT, 1, algorithm=algorithm)
                asked = partial(asks, server.url, limit, seconds, True)
                starts = sorted(chain.from_iterable(pool.map(asked, range(PROCESSES))))
                worst.append(worst_window(starts, 1.0))
            limit = RateLimit(f"{algorithm}-full", LIMIT, 1, algorithm=algorithm)
            asked = partial(asks, server.url, limit, 2 * seconds, False)
            starts = sorted(chain.from_iterable(pool.map(asked, range(PROCESSES))))
            print(
                f"  {algorithm:16} worst window {max(worst)} (bound {limit.bound}); saturated: {used(starts):.3f} "
                "of the limit",
                flush=True,
            )
        print(f"  a decision of a log of 100,000 over one of 10: {by_size(server.url):.2f}")


def used(starts: list[float]) -> float:
    """What was admitted over what the limit allows: from the first second's end on, so that a bucket that
    begins full does not flatter, and in whole periods."""
    periods = int(starts[-1] - starts[0])
    until = starts[0] + periods
    return sum(until - periods + 1 <= at < until for at in starts) / (LIMIT * (periods - 1))


def by_size(url: str, calls: int = 2000, rounds: int = 9) -> float:
    """Both logs full, their oldest entries running out as new ones come."""
    store = RedisStore(url)
    logs = [
        RateLimit(f"log-{n}", n, per, algorithm="sliding_log")
        for n, per in ((10, 0.01), (100_000, 60))
    ]
    for _ in range(100):
        store.acquire([Spend(logs[1], cost=1000)])

    def took(limit: RateLimit) -> float:
        began = time.perf_counter()
        for _ in range(calls):
            store.acquire([Spend(limit)])
        return time.perf_counter() - began

    order: list[Callable[[], float]] = [partial(took, one) for one in logs]
    return statistics.median(big() / small() for small, big in [order] * rounds)


if __name__ == "__main__":
    main(
        int(sys.argv[1]) if len(sys.argv) > 1 else 10,
        float(sys.argv[2]) if len(sys.argv) > 2 else 5,
    )
