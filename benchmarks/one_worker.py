"""One prefork worker of two processes on a Redis of its own, for the benchmarks that bring an app."""

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
    with scratch() as folder, redis_server(folder) as server:
        app.conf.broker_url = server.url
        env = environment(
            BENCH_URL=server.url, PYTHONPATH=os.path.dirname(os.path.abspath(__file__))
        )
        command = [
            sys.executable, "-m", "celery", "-A", module, "worker", "-P", "prefork", "-c", "2",
            "--without-gossip", "--without-mingle", "-l", "WARNING",
        ]  # fmt: skip
        worker = spawn(command, folder / "worker.log", env=env)
        try:
            until(lambda: app.control.ping(timeout=0.5), "the worker", 60)
            yield redis.Redis.from_url(server.url)
        finally:
            stop(worker)
