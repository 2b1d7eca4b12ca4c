"""Run one variant with real workers, and say what the API saw."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import redis

from fleetlimit.demo.api import Call, Observer
from fleetlimit.demo.processes import (
    environment,
    free_port,
    listening,
    redis_server,
    scratch,
    spawn,
    stop,
    until,
)

VARIANTS = {
    "fleetlimit": "fleetlimit.demo.app.charge",
    "celery rate_limit": "fleetlimit.demo.app.charge_celery",
    "retry(countdown)": "fleetlimit.demo.app.charge_retry",
}
#: Where Celery keeps its default queue in Redis, and what workers hold of it.
QUEUE, UNACKED = "celery", "unacked"


@dataclass(frozen=True)
class Result:
    """What one variant did. `worst_window`: most calls in any window of `per` seconds."""

    limit: int
    per: float
    tasks: int
    completed: int
    worst_window: int
    api_rejections: int
    deliveries_per_task: float
    drain_s: float
    drain_over_ideal: float

    @property
    def promise_kept(self) -> bool:
        return (
            self.worst_window <= self.limit
            and self.api_rejections == 0
            and self.completed == self.tasks
        )

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def worst_window(times: Sequence[float], per: float) -> int:
    """The most of `times` (sorted) in any half-open window of `per`, checked over every start."""
    return max((bisect_right(times, t + per - 1e-9) - i for i, t in enumerate(times)), default=0)


class FleetError(RuntimeError):
    """A process of the fleet did not start."""


@dataclass(frozen=True)
class Worker:
    """A Celery worker, the leader of its own process group."""

    process: subprocess.Popen[bytes]
    log: Path

    def ready(self) -> bool:
        """Whether it takes tasks. :raises FleetError: when it has ended instead."""
        said = self.log.read_text(errors="replace")
        if self.process.poll() is not None:
            raise FleetError(f"a worker ended while starting:\n{said[-2000:]}")
        return " ready." in said

    def kill(self) -> None:
        """End it and its pool now, whatever they are doing, if it has not ended yet."""
        if self.process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


class Fleet:
    """A broker, an API and workers, each a process or server of its own, on loopback."""

    def __init__(self, folder: Path, url: str, api: Observer, env: dict[str, str]) -> None:
        self.folder, self.url, self.api, self.env = folder, url, api, env
        self.redis = redis.Redis.from_url(url)

    @contextmanager
    def workers(self, count: int, concurrency: int) -> Iterator[None]:
        """Celery workers, ready. They end gently, or at once when the body raises.

        :raises FleetError: with the end of its log, for a worker that does not start.
        """
        workers: list[Worker] = []
        try:
            for n in range(count):
                workers.append(self.worker(n, concurrency))
            for worker in workers:
                until(worker.ready, f"the start of a worker ({worker.log})", 60)
            yield
            for worker in workers:
                worker.process.terminate()  # all together: a worker takes a second to end
            for worker in workers:
                stop(worker.process)
        finally:
            for worker in workers:
                worker.kill()

    def worker(self, n: int, concurrency: int, **env: str) -> Worker:
        """Start one; it is not ready yet."""
        log = self.folder / f"worker{n}-{time.monotonic_ns()}.log"
        # In real life the API is elsewhere; here it must not be slowed by those who call it.
        command = [
            "nice", "-n", "5", sys.executable, "-m", "celery", "-A", "fleetlimit.demo.app", "worker",
            "-n", f"demo{n}@%h", "-c", str(concurrency), "-l", "INFO",
            "--without-gossip", "--without-mingle", "--without-heartbeat",
        ]  # fmt: skip
        # A session of its own: Ctrl-C in the terminal reaches us alone, and we end the workers.
        return Worker(spawn(command, log, env={**self.env, **env}, start_new_session=True), log)

    def send(self, task: str, tasks: int) -> None:
        """Send the backlog: numbers 0, 1, 2, ..., in order."""
        from celery import Celery

        with Celery(broker=self.url) as sender:
            sender.conf.update(json.loads(self.env.get("FLEETLIMIT_DEMO_CONF", "{}")))
            with sender.producer_pool.acquire(block=True) as producer:
                for number in range(tasks):
                    sender.send_task(task, (number,), producer=producer)

    def run(
        self, task: str, tasks: int, *, patience: float, tick: Callable[[list[Call], int], None]
    ) -> tuple[list[Call], int]:
        """Drain a backlog; the calls the API saw, and the deliveries the workers saw."""
        self.redis.flushall()
        self.api.forget()
        self.send(task, tasks)
        give_up = time.monotonic() + patience
        while len(self.api.calls()) < tasks and time.monotonic() < give_up:
            time.sleep(0.1)
            tick(*self.seen())
        return self.seen()

    def seen(self) -> tuple[list[Call], int]:
        """The calls the API saw since the last run began, and the deliveries the workers saw."""
        from fleetlimit.demo.app import DELIVERIES

        return self.api.calls(), int(self.redis.get(DELIVERIES) or 0)

    def settle(self, patience: float) -> None:
        """Wait until no worker holds a message and no call comes in, so that stragglers are seen."""
        give_up, quiet, before = time.monotonic() + patience, 0, -1
        while quiet < 3 and time.monotonic() < give_up:
            held = int(self.redis.llen(QUEUE)) + int(self.redis.hlen(UNACKED))
            calls = len(self.api.calls())
            quiet = quiet + 1 if held == 0 and calls == before else 0
            before = calls
            time.sleep(0.1)


@contextmanager
def fleet(limit: int, per: float, **env: str) -> Iterator[Fleet]:
    with (
        scratch() as folder,
        redis_server(folder) as broker,
        fragile_api(folder, limit, per) as url,
    ):
        settings = {
            "FLEETLIMIT_DEMO_LIMIT": str(limit),
            "FLEETLIMIT_DEMO_PER": str(per),
            "FLEETLIMIT_DEMO_API": url,
            "FLEETLIMIT_DEMO_URL": broker.url,
            **env,
        }
        yield Fleet(folder, broker.url, Observer(url), environment(**settings))


@contextmanager
def fragile_api(folder: Path, limit: int, per: float) -> Iterator[str]:
    """The API; its URL."""
    port = free_port()
    command = [sys.executable, "-m", "fleetlimit.demo.api", str(port), str(limit), str(per)]
    process = spawn(command, folder / "api.log")
    try:
        until(lambda: listening(port), "the API")
        yield f"http://127.0.0.1:{port}"
    finally:
        stop(process)


def result(calls: Sequence[Call], deliveries: int, tasks: int, limit: int, per: float) -> Result:
    times = [at for at, _, _ in calls]
    accepted = [number for _, number, ok in calls if ok]
    ideal = max(tasks - 1, 1) * per / limit
    drain = times[-1] - times[0] if times else 0.0
    return Result(
        limit=limit,
        per=per,
        tasks=tasks,
        completed=len(set(accepted)),
        worst_window=worst_window(times, per),
        api_rejections=len(calls) - len(accepted),
        deliveries_per_task=round(deliveries / tasks, 3),
        drain_s=round(drain, 3),
        drain_over_ideal=round(drain / ideal, 4),
    )
