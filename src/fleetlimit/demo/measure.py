"""Run one variant with real workers, and say what the API saw."""

from __future__ import annotations

import sys
import time
import urllib.request
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Thread
from typing import Any

import redis

from fleetlimit.demo import api
from fleetlimit.demo.processes import (
    environment,
    free_port,
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
Call = tuple[float, int, bool]


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


class Fleet:
    """A broker, an API and workers, each a process or server of its own, on loopback."""

    def __init__(self, folder: Path, url: str, server: api.Server, env: dict[str, str]) -> None:
        self.folder, self.url, self.server, self.env = folder, url, server, env
        self.redis = redis.Redis.from_url(url)

    @property
    def window(self) -> api.Window:
        return self.server.RequestHandlerClass.window  # type: ignore[attr-defined,no-any-return]

    @contextmanager
    def workers(self, count: int, concurrency: int) -> Iterator[None]:
        with ExitStack() as stack:
            logs = [self.folder / f"worker{n}-{time.monotonic_ns()}.log" for n in range(count)]
            for n, log in enumerate(logs):
                command = [
                    sys.executable, "-m", "celery", "-A", "fleetlimit.demo.app", "worker",
                    "-n", f"demo{n}@%h", "-c", str(concurrency), "-l", "INFO",
                    "--without-gossip", "--without-mingle", "--without-heartbeat",
                ]  # fmt: skip
                process = spawn(command, log, env=self.env)
                stack.callback(stop, process)
            for log in logs:
                until(lambda log=log: " ready." in log.read_text(), f"worker of {log}", 60)  # type: ignore[misc]
            yield

    def send(self, task: str, tasks: int) -> None:
        """Send the backlog: numbers 0, 1, 2, ..., in order."""
        from celery import Celery

        with (
            Celery(broker=self.url) as sender,
            sender.producer_pool.acquire(block=True) as producer,
        ):
            for number in range(tasks):
                sender.send_task(task, (number,), producer=producer)

    def run(
        self, task: str, tasks: int, *, patience: float, tick: Callable[[list[Call], int], None]
    ) -> tuple[list[Call], int]:
        """Drain a backlog; the calls the API saw, and the deliveries the workers saw."""
        from fleetlimit.demo.app import DELIVERIES

        self.redis.flushall()
        self.window.forget()
        self.send(task, tasks)
        give_up = time.monotonic() + patience
        while len(self.window.calls) < tasks and time.monotonic() < give_up:
            time.sleep(0.1)
            tick(list(self.window.calls), int(self.redis.get(DELIVERIES) or 0))  # type: ignore[arg-type]
        return list(self.window.calls), int(self.redis.get(DELIVERIES) or 0)  # type: ignore[arg-type]


@contextmanager
def fleet(limit: int, per: float, **env: str) -> Iterator[Fleet]:
    with scratch() as folder, redis_server(folder) as broker:
        port = free_port()
        server = api.serve(port, limit, per)
        Thread(target=server.serve_forever, daemon=True).start()
        settings = environment(
            FLEETLIMIT_DEMO_LIMIT=str(limit),
            FLEETLIMIT_DEMO_PER=str(per),
            FLEETLIMIT_DEMO_API=f"http://127.0.0.1:{port}",
            FLEETLIMIT_DEMO_URL=broker.url,
            **env,
        )
        try:
            yield Fleet(folder, broker.url, server, settings)
        finally:
            server.shutdown()
            server.server_close()


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


def post(url: str) -> None:
    urllib.request.urlopen(urllib.request.Request(url, method="POST")).close()
