"""Real workers in their own processes, and what they did."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import redis
from celery import Celery

from fleetlimit import RateLimiter
from fleetlimit.demo.measure import worst_window
from fleetlimit.demo.processes import spawn, stop, until

ROOT = Path(__file__).parents[2]


class Fleet:
    """Workers on one broker, with one Redis to limit and record."""

    def __init__(self, folder: Path, broker: str, redis_url: str, env: dict[str, str]) -> None:
        self.folder, self.broker, self.redis_url = folder, broker, redis_url
        self.app = env.get("TEST_APP", "tests.celery.app")
        self.env = {
            **os.environ,
            "TEST_BROKER": broker,
            "TEST_REDIS": redis_url,
            "TEST_RECORD_LOGS": "1",
            "C_FORCE_ROOT": "1",  # for pickle, where the tests run as root
            "PYTHONPATH": str(ROOT),
            **env,
        }
        self.redis = redis.Redis.from_url(redis_url, decode_responses=True)
        backend = env.get("TEST_BACKEND", redis_url) or None
        self.sender = Celery("tests", broker=broker, backend=backend)
        self.sender.conf.update(json.loads(env.get("TEST_CONF", "{}")))
        self._stack = ExitStack()
        self._number = 0

    def start(
        self,
        pool: str = "prefork",
        concurrency: int = 4,
        *options: str,
        prefix: Sequence[str] = (),
        ready: bool = True,
        **env: str,
    ) -> Any:
        """Start a worker, behind the words of `prefix`, and wait until it is ready (unless told not to); its
        process."""
        self._number += 1
        log = self.folder / f"worker{self._number}-{uuid.uuid4().hex[:6]}.log"
        command = [
            *prefix, sys.executable, "-m", "celery", "-A", self.app, "worker",
            "-P", pool, "-c", str(concurrency), "-n", f"w{self._number}@%h", "-l", "INFO",
            "--without-gossip", "--without-mingle", *options,
        ]  # fmt: skip
        process = spawn(command, log, env={**self.env, **env}, cwd=ROOT)
        process.log = log  # type: ignore[attr-defined]
        self._stack.callback(stop, process)
        if not ready:
            return process
        until(lambda: " ready." in log.read_text() or process.poll() is not None, f"{log}", 60)
        assert process.poll() is None, log.read_text()
        return process

    def run(self) -> str:
        """A new run: its own lines and its own records."""
        return uuid.uuid4().hex[:12]

    def send(self, task: str, *args: Any, **options: Any) -> Any:
        kwargs = options.pop("kwargs", None)
        return self.sender.send_task(f"{self.app}.{task}", args, kwargs, **options)

    def starts(self, run: str) -> list[dict[str, Any]]:
        return [json.loads(text) for text in self.redis.lrange(f"starts:{run}", 0, -1)]  # type: ignore[union-attr]

    def counts(self, run: str) -> dict[str, int]:
        return {name: int(n) for name, n in self.redis.hgetall(f"counts:{run}").items()}  # type: ignore[union-attr]

    def wait(self, run: str, number: int, timeout: float = 60) -> list[dict[str, Any]]:
        """All starts of a run, once there are `number`."""
        until(lambda: len(self.starts(run)) >= number, f"{number} starts of {run}", timeout)
        return self.starts(run)

    def log(self) -> str:
        return "\n".join(path.read_text() for path in sorted(self.folder.glob("worker*.log")))

    def close(self) -> None:
        self._stack.close()
        self.sender.close()
        self.redis.close()


def heard() -> None:
    """Wait until each worker has heard how many processes there are."""
    time.sleep(1.5)  # a beat (see tests/celery/app.py), and a little


def pace(starts: list[dict[str, Any]], since: float, seconds: float) -> float:
    """Starts per second in the `seconds` from `since` on (as `time.time()` says it)."""
    return sum(since <= one["at"] < since + seconds for one in starts) / seconds


def runs_at_full_pace(one: Fleet, run: str, limit: int, since: float, seconds: float = 6) -> None:
    """97 % of what a limit of so many per second, with the margin of the test apps, lets start."""
    until(lambda: time.time() > since + seconds, "the window", seconds + 60)
    starts = one.starts(run)
    seen = [pace(starts, since + n, 1) for n in range(-5, round(seconds))]
    assert pace(starts, since, seconds) >= 0.97 * limit / 1.1, f"starts in each second: {seen}"


def patient(one: Fleet) -> RateLimiter:
    """A limiter for tests to look with, which a busy machine does not make an outage of."""
    return RateLimiter(redis.Redis.from_url(one.redis_url, socket_timeout=5))


def parked(one: Fleet, limit: str = "partner") -> int:
    return patient(one).status(limit).parked


def backlog(
    one: Fleet, run: str, number: int, limit: str = "partner", queue: str = "celery", **options: Any
) -> None:
    """Send tasks (`options` lead them to `queue`), and wait until all have come once; most of them are parked then."""
    limiter = patient(one)
    before = limiter.status(limit).waiting
    to = options if "exchange" in options else {**options, "queue": queue}
    for n in range(number):
        one.send("call", run, n, **to)
    few = 4  # neither waiting nor started: they sleep in place, in the pool
    until(
        lambda: limiter.status(limit).waiting - before + len(one.starts(run)) >= number - few,
        "most came",
    )
    until(lambda: queued(one, queue) == 0, "all came")
    assert limiter.status(limit).parked > number / 3


def sent_with() -> dict[str, Any]:
    """Options of a task that its run can see, and that must come back as they were sent."""
    return {
        "priority": 9,
        "headers": {"tenant": "x", "list": [1, 2]},
        "expires": datetime.now(timezone.utc) + timedelta(minutes=5),
        "time_limit": 100,
        "soft_time_limit": 90,
        "shadow": "another-name",
        "kwargs": {"card": "4242"},
    }


def queued(one: Fleet, queue: str = "celery") -> int:
    """Messages in a queue; 0 if there is no such queue (an empty one of Redis is none)."""
    with one.sender.connection_for_read() as connection:
        try:
            found = connection.channel().queue_declare(queue, passive=True)
        except connection.channel_errors:
            return 0
        return int(found.message_count)


def shut_down(worker: Any) -> None:
    """Ask a worker to end, and let it. Celery's warm shutdown may take half a minute, with or without limits, for a process
    of the pool is waited for so long; then one or two tasks that have run go back into the queue as well. A worker that
    is killed meanwhile keeps what it has fetched from the queue, until the visibility timeout."""
    worker.terminate()
    worker.wait(60)


def put_down(
    one: Fleet, worker: Any, run: str, number: int, limit: str = "partner", key: str | None = None
) -> None:
    """Stop a worker while all that has not started is parked, so that its end changes nothing."""
    limiter = patient(one)
    limiter.pause(limit, 3600)
    until(
        lambda: limiter.status(limit, key).parked + len(one.starts(run)) == number, "all are parked"
    )
    shut_down(worker)
    limiter.resume(limit)


def drained(one: Fleet, run: str, timeout: float = 60) -> list[int]:
    """What has run when nobody waits any more, and who was admitted last has started."""
    until(lambda: patient(one).status("partner").waiting == 0, "an empty line", timeout)
    empty = time.time()
    until(lambda: time.time() > empty + 1, "a second")  # the longest sleep before a start is 0.25 s
    return numbers(one.starts(run))


def numbers(starts: list[dict[str, Any]]) -> list[int]:
    return sorted(one["n"] for one in starts)


def kill(worker: Any) -> None:
    """The worker and its pool, at once."""
    os.kill(worker.pid, signal.SIGKILL)
    worker.wait()


def shop(
    tasks: dict[str, tuple[str, int] | None], *queues: Sequence[Any], **settings: Any
) -> dict[str, str]:
    """The environment of a worker of `tests.celery.shop`: its tasks and their limits, its queues, its settings."""
    return {
        "TEST_APP": "tests.celery.shop",
        "TEST_SHOP": json.dumps({"tasks": tasks, "queues": queues}),
        "TEST_CONF": json.dumps(settings),
    }


def memory(pid: int) -> int:
    """Of a process, in KiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))


def window(starts: list[dict[str, Any]], per: float = 1.0) -> int:
    return worst_window(sorted(one["at"] for one in starts), per)


@contextmanager
def fleet(folder: Path, broker: str, redis_url: str, **env: str) -> Iterator[Fleet]:
    one = Fleet(folder, broker, redis_url, env)
    try:
        yield one
    finally:
        one.close()
