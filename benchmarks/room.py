"""The waiting room, with three real workers on a Redis broker; every scenario or those named.

python benchmarks/room.py [drain kill down raise skew visibility memory]
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import redis
from fleet import places, run

from fleetlimit import RateLimit, RateLimiter
from fleetlimit.demo.api import Call
from fleetlimit.demo.measure import VARIANTS, Fleet, Worker, fleet, result, worst_window
from fleetlimit.demo.processes import stop, until
from fleetlimit.store.base import Spend, Ticket
from fleetlimit.store.redis import RedisStore

TASK, NAME = VARIANTS["fleetlimit"], "fragile-api"


@contextmanager
def workers(one: Fleet, envs: tuple[dict[str, str], ...] = ({}, {}, {})) -> Iterator[list[Worker]]:
    made = [one.worker(n, 2, **env) for n, env in enumerate(envs)]
    try:
        for worker in made:
            until(worker.ready, f"the start of a worker ({worker.log})", 60)
        yield made
    finally:
        for worker in made:
            worker.kill()


def wait(one: Fleet, calls: int, patience: float) -> list[Call]:
    until(lambda: len(one.api.calls()) >= calls, f"{calls} calls", patience)
    return one.api.calls()


def rate(calls: list[Call], since: float, to: float) -> float:
    return sum(since <= at < to for at, _, _ in calls) / (to - since)


def drain(tasks: int = 2000, limit: int = 50) -> None:
    for room in (True, False):
        conf = json.dumps({"fleetlimit_waiting_room": room})
        with fleet(limit, 1.0, FLEETLIMIT_DEMO_CONF=conf) as one, workers(one):
            calls, deliveries, wave = run(one, tasks, patience=3 * tasks / limit)
        said = result(calls, deliveries, tasks, limit, 1.0)
        print(
            f"drain, {'room' if room else 'countdown only'}: {tasks} at {limit} per 1 s: "
            f"deliveries {said.deliveries_per_task:.3f}, drain / ideal {said.drain_over_ideal:.4f}, "
            f"worst window {said.worst_window}, rejections {said.api_rejections}, "
            + places(calls, limit, wave),
            flush=True,
        )


def kill(tasks: int = 500, limit: int = 20) -> None:
    with fleet(limit, 1.0) as one, workers(one) as made:
        one.redis.flushall()
        one.send(TASK, tasks)
        first = wait(one, 1, 30)[0][0]
        until(lambda: time.monotonic() > first + 5, "five seconds")
        at = time.monotonic()
        os.killpg(made[0].process.pid, signal.SIGKILL)
        until(lambda: len(one.api.calls()) >= tasks - 12, "nearly all", 90)
        time.sleep(3)
        calls = one.api.calls()
    times = [at for at, _, _ in calls]
    numbers = [n for _, n, _ in calls]
    gap = max(b - a for a, b in pairwise(t for t in times if t > at - 1))
    print(
        f"kill one of three at 5 s: {limit} per 1 s, rate from 5 to 15 s after "
        f"{rate(calls, at + 5, at + 15) / limit:.1%} of the limit, from 0 to 5 s after "
        f"{rate(calls, at, at + 5) / limit:.1%}, longest gap {gap:.2f} s, "
        f"{len(set(numbers))} of {tasks} done without waiting for the broker's redelivery, "
        f"double starts {len(numbers) - len(set(numbers))}, worst window {worst_window(times, 1.0)}",
        flush=True,
    )


def down(tasks: int = 500, limit: int = 20, seconds: float = 60) -> None:
    with fleet(limit, 1.0) as one:
        one.redis.flushall()
        with workers(one) as made:
            one.send(TASK, tasks)
            wait(one, 8 * limit, 60)
            for worker in made:
                worker.process.terminate()
            for worker in made:
                stop(worker.process)
        time.sleep(seconds)
        with workers(one):
            calls = wait(one, tasks, 120)
    times = [at for at, _, _ in calls]
    outage = max(b - a for a, b in pairwise(times))
    ideal = (tasks - 1) / limit
    print(
        f"all down for {seconds:.0f} s: {len({n for _, n, _ in calls})} of {tasks}, no start for "
        f"{outage:.1f} s, (drain - outage) / ideal {(times[-1] - times[0] - outage) / ideal:.4f}, "
        f"worst window {worst_window(times, 1.0)}",
        flush=True,
    )


def raise_(tasks: int = 1200) -> None:
    with fleet(100, 1.0, FLEETLIMIT_DEMO_LIMIT="10") as one, workers(one):
        one.redis.flushall()
        one.send(TASK, tasks)
        wait(one, 50, 60)
        at = time.monotonic()
        RateLimiter(one.url).configure(NAME, 100, 1.0)
        calls = wait(one, tasks, 60)
    times = [t for t, _, _ in calls]
    reached = next(t for t in times if rate(calls, t, t + 1) >= 95)
    print(
        f"10 per 1 s raised to 100: the new pace after {reached - at:.2f} s, worst window "
        f"{worst_window(times, 1.0)}, {len({n for _, n, _ in calls})} of {tasks}",
        flush=True,
    )


def skew(tasks: int = 300, limit: int = 20) -> None:
    library = next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))
    clocks = ("+300s", "+0s", "-300s")
    envs = tuple({"LD_PRELOAD": str(library), "FAKETIME": clock} for clock in clocks)
    for room in (True, False):
        conf = json.dumps({"fleetlimit_waiting_room": room})
        with fleet(limit, 1.0, FLEETLIMIT_DEMO_CONF=conf) as one, workers(one, envs):
            calls, deliveries = one.run(TASK, tasks, patience=60, tick=lambda *_: None)
        said = result(calls, deliveries, tasks, limit, 1.0)
        print(
            f"clocks {', '.join(clocks)}, {'room' if room else 'countdown only'}: {said.completed} of "
            f"{tasks}, drain / ideal {said.drain_over_ideal:.4f}, deliveries "
            f"{said.deliveries_per_task:.3f}, worst window {said.worst_window}",
            flush=True,
        )


def visibility(tasks: int = 100) -> None:
    options = {"visibility_timeout": 10, "unacked_restore_interval": 1}
    conf = json.dumps({"broker_transport_options": options, "task_acks_late": True})
    with fleet(1, 3.0, FLEETLIMIT_DEMO_CONF=conf) as one, workers(one):
        calls, deliveries = one.run(TASK, tasks, patience=400, tick=lambda *_: None)
        time.sleep(15)
        numbers = [n for _, n, _ in one.api.calls()]
    print(
        f"visibility timeout 10 s, waits up to {calls[-1][0] - calls[0][0]:.0f} s: "
        f"{len(set(numbers))} of {tasks}, started more than once: {len(numbers) - len(set(numbers))}, "
        f"deliveries per task {deliveries / tasks:.3f}",
        flush=True,
    )


def memory(tasks: int = 100_000) -> None:
    with fleet(1, 1.0) as one, workers(one) as made:
        one.redis.flushall()
        store = RedisStore(one.url)
        limit = RateLimit(NAME, 1, 1.0)
        few = cost(one.redis, store, RateLimit("few", 1, 1.0), 10)
        rss = [resident(worker) for worker in made]
        used = int(one.redis.info("memory")["used_memory"])  # type: ignore[index]
        one.send(TASK, tasks)
        status: Callable[[], Any] = lambda: RateLimiter(one.url).status(NAME)  # noqa: E731
        until(lambda: status().parked + len(one.api.calls()) >= tasks - 20, "parked", 900)
        until(lambda: int(one.redis.llen("celery")) < 5, "read", 60)  # type: ignore[arg-type]
        parked = status().parked
        grown = [resident(worker) - before for worker, before in zip(made, rss, strict=True)]
        per_task = (int(one.redis.info("memory")["used_memory"]) - used) / parked  # type: ignore[index]
        many = cost(one.redis, store, limit, 0)
    print(
        f"{parked} parked: main processes grew by {', '.join(f'{g / 1024:.1f}' for g in grown)} MB, "
        f"{per_task:.0f} bytes per task in Redis, decision {many / few:.2f} times its cost with 10 waiting",
        flush=True,
    )


def resident(worker: Worker) -> int:
    """KiB of the main process."""
    text = Path(f"/proc/{worker.process.pid}/status").read_text()
    return int(text.split("VmRSS:")[1].split()[0])


def cost(client: redis.Redis, store: RedisStore, limit: RateLimit, join: int) -> float:
    """Server time of a decision for one in the middle of the line, microseconds."""
    for n in range(join):
        store.acquire([Spend(limit)], Ticket(f"few{n}", max_sleep_us=0))
    oldest = store.now_us()
    client.config_resetstat()
    for n in range(2000):
        store.acquire([Spend(limit)], Ticket(f"x{n % 5}", oldest, max_sleep_us=0, horizon_us=0))
    stats = client.info("commandstats")["cmdstat_evalsha"]  # type: ignore[index]
    return float(stats["usec"]) / float(stats["calls"])


SCENARIOS = {
    "drain": drain, "kill": kill, "down": down, "raise": raise_, "skew": skew,
    "visibility": visibility, "memory": memory,
}  # fmt: skip

if __name__ == "__main__":
    for name in sys.argv[1:] or list(SCENARIOS):
        SCENARIOS[name]()
