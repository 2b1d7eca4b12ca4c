"""Prefork workers of two processes each on a Redis of their own, for the benchmarks that bring an app."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import redis
from celery import Celery

from fleetlimit.demo.processes import environment, redis_server, scratch, spawn, stop, until


@contextmanager
def one_worker(app: Celery, module: str) -> Iterator[redis.Redis]:
    """A worker of `app`, which stands in `module` beside this one; a client of its broker."""
    with workers_of(module, 1) as url:
        app.conf.broker_url = url
        yield redis.Redis.from_url(url)


@contextmanager
def workers_of(module: str, number: int) -> Iterator[str]:
    """Several workers of the app in `module`; the URL of their Redis."""
    with scratch() as folder, redis_server(folder) as server, Celery(broker=server.url) as app:
        env = environment(
            BENCH_URL=server.url, PYTHONPATH=os.path.dirname(os.path.abspath(__file__))
        )
        command = [
            sys.executable, "-m", "celery", "-A", module, "worker", "-P", "prefork", "-c", "2",
            "--without-gossip", "--without-mingle", "-l", "WARNING",
        ]  # fmt: skip
        workers = [
            spawn([*command, "-n", f"w{n}@%h"], folder / f"worker{n}.log", env=env)
            for n in range(number)
        ]
        try:
            until(lambda: len(app.control.ping(timeout=0.5)) == number, "the workers", 60)
            yield server.url
        finally:
            for worker in workers:
                worker.terminate()
            for worker in workers:
                stop(worker)
