"""Runs one variant with real workers, and reports the calls that the API saw."""

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
#: The keys in Redis of Celery's default queue, and of the messages that workers hold.
QUEUE, UNACKED = "celery", "unacked"


@dataclass(frozen=True)
class Result:
    """The result of one variant. `worst_window`: the most calls in any window of `per` seconds."""

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
    """The largest number of `times` (sorted) in any half-open window of `per` seconds."""
    return max((bisect_right(times, t + per - 1e-9) - i for i, t in enumerate(times)), default=0)


class FleetError(RuntimeError):
    """A process of the fleet did not start."""


@dataclass(frozen=True)
class Worker:
    """A Celery worker, which leads a process group of its own."""

    process: subprocess.Popen[bytes]
    log: Path

    def ready(self) -> bool:
        """Whether the worker takes tasks.

        :raises FleetError: if it has ended instead.
        """
        said = self.log.read_text(errors="replace")
        if self.process.poll() is not None:
            raise FleetError(f"a worker ended while starting:\n{said[-2000:]}")
        return " ready." in said

    def kill(self) -> None:
        """Kill the worker and its pool, unless it has ended."""
        if self.process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


class Fleet:
    """A broker, an API and workers, each in a process of its own, on loopback."""

    def __init__(self, folder: Path, url: str, api: Observer, env: dict[str, str]) -> None:
        self.folder, self.url, self.api, self.env = folder, url, api, env
        self.redis = redis.Redis.from_url(url)

    @contextmanager
    def workers(self, count: int, concurrency: int) -> Iterator[None]:
        """Start Celery workers and wait until they are ready. At the end they stop gently, or are killed if the body
        raises.

        :raises FleetError: for a worker that does not start, with the end of its log.
        """
        workers: list[Worker] = []
        try:
            for n in range(count):
                workers.append(self.worker(n, concurrency))
            for worker in workers:
                until(worker.ready, f"the start of a worker ({worker.log})", 60)
            yield
            for worker in workers:
                worker.process.terminate()  # all together, because each worker takes a second to end
            for worker in workers:
                stop(worker.process)
        finally:
            for worker in workers:
                worker.kill()

    def worker(self, n: int, concurrency: int, **env: str) -> Worker:
        """Start one worker without waiting until it is ready."""
        log = self.folder / f"worker{n}-{time.monotonic_ns()}.log"
        # In real life the API is on another host. Here its callers must not slow it down.
        command = [
            "nice", "-n", "5", sys.executable, "-m", "celery", "-A", "fleetlimit.demo.app", "worker",
            "-n", f"demo{n}@%h", "-c", str(concurrency), "-l", "INFO",
            "--without-gossip", "--without-mingle", "--without-heartbeat",
        ]  # fmt: skip
        # The worker gets a session of its own, so that Ctrl-C in the terminal reaches only this process, which then
        # ends the workers.
        return Worker(spawn(command, log, env={**self.env, **env}, start_new_session=True), log)

    def send(self, task: str, tasks: int) -> None:
        """Send the backlog: the numbers 0, 1, 2, ..., in order."""
        from celery import Celery

        with Celery(broker=self.url) as sender:
            sender.conf.update(json.loads(self.env.get("FLEETLIMIT_DEMO_CONF", "{}")))
            with sender.producer_pool.acquire(block=True) as producer:
                for number in range(tasks):
                    sender.send_task(task, (number,), producer=producer)

    def run(
        self, task: str, tasks: int, *, patience: float, tick: Callable[[list[Call], int], None]
    ) -> tuple[list[Call], int]:
        """Send a backlog and wait until it has drained.

        :return: the calls that the API saw, and the number of deliveries that the workers saw.
        """
        self.redis.flushall()
        self.api.forget()
        self.send(task, tasks)
        give_up = time.monotonic() + patience
        while len(self.api.calls()) < tasks and time.monotonic() < give_up:
            time.sleep(0.1)
            tick(*self.seen())
        return self.seen()

    def seen(self) -> tuple[list[Call], int]:
        """The calls that the API has seen since the last run began, and the number of deliveries that the workers
        saw."""
        from fleetlimit.demo.app import DELIVERIES

        return self.api.calls(), int(self.redis.get(DELIVERIES) or 0)

    def settle(self, patience: float) -> None:
        """Wait until no worker holds a message and no more calls come in, so that late calls are seen."""
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
    """Run the API, and yield its URL."""
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
