"""Two apps with workers in one process: what belongs to one is no concern of the other."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis
from celery import Celery
from celery.exceptions import WorkerShutdown
from celery.utils.nodenames import anon_nodename

from fleetlimit import RateLimit, RateLimiter, rate_limited
from fleetlimit.celery import limiter_of, presence
from fleetlimit.celery.presence import local_time
from fleetlimit.celery.runtime import runtime_of
from fleetlimit.demo.measure import worst_window
from fleetlimit.demo.processes import Server, until
from fleetlimit.store.redis import RedisStore


@pytest.fixture(autouse=True)
def beats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presence, "EVERY_S", 0.2)


_numbers = itertools.count()


class Shop:
    """An app with one limited task, and when its body began. (Its names are its own: kombu remembers in each process
    which queues were bound, also in another database.)"""

    def __init__(self, url: str, limit: int = 10) -> None:
        name = f"side{next(_numbers)}"
        self.app = Celery(name, broker=url, set_as_current=False)
        self.app.conf.update(
            fleetlimit_url=f"{url}?socket_timeout=5",
            task_default_queue=name,
            task_ignore_result=True,
        )
        self.name, self.url = name, url
        self.starts: list[tuple[float, int]] = []

        @self.app.task(name=f"{name}.call", shared=False)
        @rate_limited(self.name, limit, per=1, margin=0.1)
        def call(n: int) -> None:
            self.starts.append((time.time(), n))

        self.call = call

    def status(self) -> Any:
        return RateLimiter(redis.Redis.from_url(self.url, socket_timeout=5)).status(self.name)

    def send(self, number: int) -> None:
        for n in range(number):
            self.call.delay(n)

    def ran(self, number: int) -> list[int]:
        until(lambda: len(self.starts) >= number, f"{number} starts of {self.name}", 60)
        return sorted(n for _, n in self.starts)


def shut_down() -> None:
    raise WorkerShutdown(0)


@contextmanager
def working(app: Celery, **options: Any) -> Iterator[Any]:
    """A worker in a thread. It does without kombu's event loop, of which a process has only one."""
    quiet = {"without_gossip": True, "without_mingle": True, "without_heartbeat": True}
    least = {"pool": "solo", "concurrency": 1, "use_eventloop": False, "hostname": anon_nodename()}
    ready = threading.Event()
    worker = app.WorkController(
        ready_callback=lambda _: ready.set(), **{**quiet, **least, **options}
    )

    def work() -> None:
        app.set_current()  # of this thread: Celery looks for tasks there
        worker.start()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        assert ready.wait(30)
        yield worker
    finally:
        worker.consumer.call_soon(shut_down)
        thread.join(20)
        assert not thread.is_alive()


@pytest.fixture
def other(redis7: Server) -> Server:
    redis.Redis.from_url(redis7.url).flushall()
    return redis7


def test_each_keeps_its_own_limit(server: Server, other: Server) -> None:
    a, b = Shop(server.url), Shop(other.url)
    with working(a.app), working(b.app):
        a.send(40)
        b.send(40)
        assert a.ran(40) == b.ran(40) == list(range(40))
    for one in (a, b):
        at = sorted(at for at, _ in one.starts)
        assert worst_window(at, 1.0) <= 10
        assert at[-1] - at[0] < 1.25 * 39 * 0.11


def test_one_goes_on_parking_when_the_other_has_stopped(server: Server, other: Server) -> None:
    a, b = Shop(server.url, 2), Shop(other.url, 2)
    with working(a.app):
        with working(b.app):
            pass
        a.send(8)
        until(lambda: a.status().parked >= 4, "they are parked")


def test_two_workers_of_one_app(server: Server) -> None:
    """What the second one ends with is not the end of the first one's room."""
    one = Shop(server.url, 2)
    with working(one.app):
        with working(one.app):
            pass
        one.send(8)
        until(lambda: one.status().parked >= 4, "they are parked")
        assert one.ran(8) == list(range(8))


def test_a_second_worker_after_the_first(server: Server) -> None:
    one = Shop(server.url, 5)
    with working(one.app):
        one.send(4)
        one.ran(4)
    with working(one.app):
        one.send(12)
        until(lambda: one.status().parked >= 4, "they are parked")
        assert one.ran(16) == sorted([*range(4), *range(12)])


def test_a_worker_that_sends_as_well(server: Server) -> None:
    """A program sends, asks and works in one process, and its limiter is the worker's."""
    one = Shop(server.url, 5)
    with working(one.app):
        one.send(10)
        assert limiter_of(one.app) is limiter_of(one.app)
        until(lambda: one.status().waiting >= 4, "they wait")
        assert one.ran(10) == list(range(10))


def test_each_counts_its_own_fleet(server: Server, other: Server) -> None:
    """Of the other's seven processes it takes no part of its own share for them while Redis is away."""
    a, b = Shop(server.url), Shop(other.url)
    RedisStore(redis.Redis.from_url(other.url)).beat("theirs:7", 60)
    with working(a.app), working(b.app):
        until(lambda: processes(b) == 8, "b has heard of all")
        assert processes(a) == 1


def processes(one: Shop) -> int | None:
    return limiter_of(one.app).store._processes()  # type: ignore[attr-defined, no-any-return]


def test_each_sends_the_events_that_it_was_told_to(server: Server, other: Server) -> None:
    a, b = Shop(server.url, 2), Shop(other.url, 2)
    with listening(a) as of_a, listening(b) as of_b:
        with working(a.app, task_events=True), working(b.app):
            a.send(4)
            b.send(4)
            assert a.ran(4) == b.ran(4) == list(range(4))
            assert "task.throttled" in kinds(of_a)
        assert "task.throttled" not in kinds(of_b)


@contextmanager
def listening(one: Shop) -> Iterator[Any]:
    """To the events on the broker, as they are. (kombu takes two brokers in one process for one.)"""
    with redis.Redis.from_url(one.url, decode_responses=True) as client, client.pubsub() as events:
        events.psubscribe("*celeryev*")
        assert events.get_message(timeout=5)["type"] == "psubscribe"
        yield events


def kinds(events: Any) -> set[str]:
    """Of the events that came by now."""
    found = set()
    while event := events.get_message(timeout=0.2):
        found.add(event["channel"].rpartition("/")[2])
    return found


def test_each_knows_the_clock_of_its_own_redis(server: Server, other: Server) -> None:
    a, b = Shop(server.url), Shop(other.url)
    with working(a.app):
        assert local_time(a.app, time.time_ns() // 1000) is not None
        assert local_time(b.app, time.time_ns() // 1000) is None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes do not fork here")
def test_a_forked_child_has_what_it_needs_of_its_own(server: Server) -> None:
    """The lock may be held while another thread forks, and the connections are the parent's."""
    one, limit = Shop(server.url), RateLimit("forked", 5, per=1)
    limiter, runtime = limiter_of(one.app), runtime_of(one.app)
    clock = runtime.clock
    assert limiter.acquire(limit)
    with runtime.lock:
        child = os.fork()
        if not child:  # what it raises must not reach the test's own process
            signal.alarm(20)
            with contextlib.suppress(BaseException):
                theirs = limiter_of(one.app)
                fresh = theirs is not limiter and runtime_of(one.app).clock is not clock
                os._exit(0 if fresh and theirs.acquire(limit).waiting == 0 else 1)
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert limiter_of(one.app) is limiter
