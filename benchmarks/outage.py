"""Redis is black-holed for 20 s under three workers of four processes, 50 per 1 s: what the shares let through.

    PYTHONPATH=. python benchmarks/outage.py [RUNS]

Baselines of the same run: the limit itself, and the decision's time while Redis is there. The broker is
another server: it stays.
"""

from __future__ import annotations

import json
import statistics
import sys
import time

from fleetlimit import RateLimit, RateLimiter
from fleetlimit.demo.measure import VARIANTS, fleet, worst_window
from fleetlimit.demo.processes import redis_server, scratch, until
from tests.proxy import Proxy, proxy

LIMIT, WORKERS, PROCESSES, OUTAGE_S = 50, 3, 4, 20.0
TASKS = round(LIMIT * (OUTAGE_S + 20))


def run() -> None:
    with scratch() as folder, redis_server(folder) as limits, proxy(limits.port) as between:
        conf = {
            "fleetlimit_url": f"redis://127.0.0.1:{between.port}/0",
            "fleetlimit_waiting_room": False,
        }
        with (
            fleet(LIMIT, 1.0, FLEETLIMIT_DEMO_CONF=json.dumps(conf)) as one,
            one.workers(WORKERS, PROCESSES),
        ):
            time.sleep(6)  # each has heard of the others
            one.redis.flushall()
            one.api.forget()
            one.send(VARIANTS["fleetlimit"], TASKS)
            until(lambda: len(one.api.calls()) > 5 * LIMIT, "the drain is under way", 60)
            took = decisions(between)
            down = time.monotonic()
            between.black_hole = True
            time.sleep(1.0)
            took_alone = decisions(between)
            until(lambda: time.monotonic() > down + OUTAGE_S, "the outage", 60)
            between.black_hole = False
            up = time.monotonic()
            until(lambda: len({n for _, n, _ in one.api.calls()}) >= TASKS, "all of them", 120)
            calls = one.api.calls()
    times = [at for at, _, _ in calls]
    alone = sum(down + 1 <= at < up for at in times) / (up - down - 1) / LIMIT
    normal = next(t for t in times if t > up and rate(times, t) >= 0.95 * LIMIT)
    print(
        f"black hole for {OUTAGE_S:.0f} s: {alone:.0%} of the limit meanwhile, worst window "
        f"{worst_window(times, 1.0)} (bound {LIMIT} + {WORKERS * PROCESSES}), back at 95 % of the limit "
        f"{normal - up:.1f} s after its return, lost {TASKS - len({n for _, n, _ in calls})}, "
        f"started twice {len(calls) - len({n for _, n, _ in calls})}; "
        f"decision p99 / with Redis {took_alone / took:.3f} ({took_alone * 1e3:.2f} ms)",
        flush=True,
    )


def rate(times: list[float], since: float) -> int:
    return sum(since <= at < since + 1 for at in times)


def decisions(between: Proxy, number: int = 500) -> float:
    """The 99th percentile of one process's decisions, seconds; the first is not counted."""
    limiter = RateLimiter(
        f"redis://127.0.0.1:{between.port}/0", on_outage="share", processes=WORKERS * PROCESSES
    )
    limit, took = RateLimit("bench", 10**6, 1, burst=10**6), []
    limiter.acquire(limit)
    for _ in range(number):
        began = time.perf_counter()
        limiter.acquire(limit)
        took.append(time.perf_counter() - began)
    limiter.close()
    return statistics.quantiles(took, n=100)[98]


if __name__ == "__main__":
    for _ in range(int(sys.argv[1]) if len(sys.argv) > 1 else 1):
        run()
