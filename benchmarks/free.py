"""What tasks without a limit feel of those that wait: one worker, prefork, two processes; 200 free tasks
alone, and 200 free among 200 limited ones (20 per 1 s), sent at the same pace.

    python benchmarks/free.py [ROUNDS]
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

TASKS, EVERY_S = 200, 0.01
URL = os.environ.get("BENCH_URL", "")

app = Celery("free", broker=URL)
app.conf.update(task_ignore_result=True, worker_prefetch_multiplier=4)


@app.task
def free(sent: float) -> None:
    """Says how long it took from being sent to its start."""
    late = time.time() - sent
    redis.Redis.from_url(URL).rpush("latencies", late)


@app.task
@rate_limited("bench", 20, per=1)
def limited() -> None:
    """Waits for its turn."""


def measure(client: redis.Redis, among_limited: bool) -> float:
    """The median latency of the free tasks, seconds."""
    client.flushall()
    with app.producer_pool.acquire() as producer:
        for _ in range(TASKS):
            if among_limited:
                limited.apply_async(producer=producer)
            time.sleep(EVERY_S / 2)
            free.apply_async((time.time(),), producer=producer)
            time.sleep(EVERY_S / 2)
    until(lambda: client.llen("latencies") >= TASKS, "all free tasks ran", 120)
    found = [float(one) for one in client.lrange("latencies", 0, -1)]  # type: ignore[union-attr]
    time.sleep(0.5)
    return statistics.median(found)


def main(rounds: int) -> None:
    with one_worker(app, "free") as client:
        measure(client, False)  # warm
        pairs = []
        for n in range(rounds):
            order = (False, True) if n % 2 else (True, False)
            took = {among: measure(client, among) for among in order}
            pairs.append((took[True], took[False]))
    ratios = [among / alone for among, alone in pairs]
    print(f"median latency of {TASKS} free tasks, among limited ones / alone, {rounds} rounds:")
    print(f"  median {statistics.median(ratios):.2f}, {min(ratios):.2f} to {max(ratios):.2f}")
    print("  milliseconds: " + ", ".join(f"{a * 1e3:.1f} / {b * 1e3:.1f}" for a, b in pairs))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
