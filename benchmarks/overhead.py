"""Tasks per second with a limit that never binds, over those without: one worker, prefork, two
processes; the two kinds alternate in one run.

    python benchmarks/overhead.py [ROUNDS]
"""

from __future__ import annotations

import os
import statistics
import sys
import time

import redis
from celery import Celery
from one_worker import one_worker

from fleetlimit import rate_limited
from fleetlimit.demo.processes import until

TASKS = 3000
URL = os.environ.get("BENCH_URL", "")

app = Celery("overhead", broker=URL)
app.conf.update(task_ignore_result=True, worker_prefetch_multiplier=64)


@app.task
def plain() -> None:
    """Does nothing."""


@app.task
@rate_limited("never-binds", 100_000, per=10, burst=100_000)
def limited() -> None:
    """Does nothing, after asking."""


@app.task
def last() -> None:
    """Runs behind all others, and says when."""
    redis.Redis.from_url(URL).set("done", 1)


def measure(client: redis.Redis, task: str) -> float:
    """Seconds to work off a queue that was filled while the worker looked away."""
    client.delete("done")
    app.control.cancel_consumer("celery", reply=True)
    with app.producer_pool.acquire() as producer:
        for _ in range(TASKS):
            app.send_task(f"overhead.{task}", producer=producer)
        app.send_task("overhead.last", producer=producer)
    start = time.perf_counter()
    app.control.add_consumer("celery")
    until(lambda: client.get("done"), "all ran", 120)
    return time.perf_counter() - start


def main(rounds: int) -> None:
    with one_worker(app, "overhead") as client:
        measure(client, "plain")  # warm
        ratios = []
        for n in range(rounds):
            order = ("plain", "limited") if n % 2 else ("limited", "plain")
            took = {task: measure(client, task) for task in order}
            ratios.append(took["plain"] / took["limited"])
    print(f"tasks per second, limited / plain, {rounds} rounds of {TASKS} no-op tasks each:")
    print(f"  median {statistics.median(ratios):.3f}, {min(ratios):.3f} to {max(ratios):.3f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 7)
