"""Real workers in their own processes, and what they did."""

from __future__ import annotations

import json
import os
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import redis
from celery import Celery

from fleetlimit.demo.measure import worst_window
from fleetlimit.demo.processes import spawn, stop, until

ROOT = Path(__file__).parents[2]


class Fleet:
    """Workers on one broker, with one Redis to limit and record."""

    def __init__(self, folder: Path, broker: str, redis_url: str, env: dict[str, str]) -> None:
        self.folder, self.broker, self.redis_url = folder, broker, redis_url
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
        **env: str,
    ) -> Any:
        """Start a worker, behind the words of `prefix`, and wait until it is ready; its process."""
        self._number += 1
        log = self.folder / f"worker{self._number}-{uuid.uuid4().hex[:6]}.log"
        command = [
            *prefix, sys.executable, "-m", "celery", "-A", "tests.celery.app", "worker",
            "-P", pool, "-c", str(concurrency), "-n", f"w{self._number}@%h", "-l", "INFO",
            "--without-gossip", "--without-mingle", *options,
        ]  # fmt: skip
        process = spawn(command, log, env={**self.env, **env}, cwd=ROOT)
        process.log = log  # type: ignore[attr-defined]
        self._stack.callback(stop, process)
        until(lambda: " ready." in log.read_text() or process.poll() is not None, f"{log}", 60)
        assert process.poll() is None, log.read_text()
        return process

    def run(self) -> str:
        """A new run: its own lines and its own records."""
        return uuid.uuid4().hex[:12]

    def send(self, task: str, *args: Any, **options: Any) -> Any:
        kwargs = options.pop("kwargs", None)
        return self.sender.send_task(f"tests.celery.app.{task}", args, kwargs, **options)

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


def window(starts: list[dict[str, Any]], per: float = 1.0) -> int:
    return worst_window(sorted(one["at"] for one in starts), per)


@contextmanager
def fleet(folder: Path, broker: str, redis_url: str, **env: str) -> Iterator[Fleet]:
    one = Fleet(folder, broker, redis_url, env)
    try:
        yield one
    finally:
        one.close()
