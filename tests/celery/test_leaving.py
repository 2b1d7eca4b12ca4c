"""Who leaves the line without a run gives the place back; what cannot be put back stays."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from celery import Celery
from kombu import Exchange

from fleetlimit import RateLimiter
from fleetlimit.demo.processes import Server, until
from tests.proxy import Proxy, proxy

from .harness import Fleet, fleet, window

LATE = {"task_acks_late": True, "task_reject_on_worker_lost": True}


def line(one: Fleet, run: str, limit: str) -> int:
    return int(one.redis.zcard("fleetlimit:{" + f"{limit}:{run}" + "}:line"))  # type: ignore[arg-type]


@pytest.mark.parametrize("room", [True, False], ids=["room", "countdown"])
@pytest.mark.parametrize("how", ["revoked", "expired"])
def test_the_place_of_a_revoked_or_expired_task_is_free(  # C7, C8
    server: Server, tmp_path: Path, how: str, room: bool
) -> None:
    conf = json.dumps({"fleetlimit_waiting_room": room, "fleetlimit_horizon": 1})
    with fleet(tmp_path, server.url, server.url, TEST_CONF=conf) as one:
        one.start("prefork", 2)
        run = one.run()
        options: dict[str, Any] = {"expires": 4} if how == "expired" else {}
        results = [one.send("slow", run)]
        one.wait(run, 1)
        results += [one.send("slow", run, 1, **options), one.send("slow", run, 2)]
        waiting = 1 if how == "expired" else 2  # who would expire before its turn takes no place
        until(lambda: line(one, run, "api-1-30-1") == waiting, "the others stand in line")
        if how == "revoked":
            results[1].revoke()
        if room and how == "revoked":
            RateLimiter(server.url).configure("api-1-30-1", 1, 5)  # its turn comes sooner
        until(lambda: results[1].state == "REVOKED", how, 20)
        until(lambda: line(one, run, "api-1-30-1") <= 1, "its place is free", 10)


@contextmanager
def through_proxy(
    kind: str, request: pytest.FixtureRequest, server: Server, tmp_path: Path, conf: dict[str, Any]
) -> Iterator[tuple[Fleet, Proxy]]:
    """A fleet whose broker stands behind a proxy; the limits' Redis does not. With a Redis broker only what
    is published goes that way: a connection that breaks under its consumers loses what is on its way, and may
    end the worker, with or without a limit."""
    url = server.url if kind == "redis" else request.getfixturevalue("rabbit").url
    with proxy(urlsplit(url).port or 0) as between:
        broker = url.replace(f":{urlsplit(url).port}", f":{between.port}")
        if kind == "redis":
            conf, broker = {**conf, "broker_write_url": broker}, url
        env = {"TEST_CONF": json.dumps(conf)}
        if kind == "quorum":
            env["TEST_QUEUE_TYPE"] = "quorum"
        with fleet(tmp_path, broker, server.url, **env) as one:
            yield one, between


@pytest.mark.parametrize("kind", ["redis", "classic", "quorum"])
@pytest.mark.parametrize("settings", [{}, LATE], ids=["acks_early", "acks_late"])
def test_the_broker_refuses_for_five_seconds(  # C2
    request: pytest.FixtureRequest,
    server: Server,
    tmp_path: Path,
    kind: str,
    settings: dict[str, Any],
) -> None:
    """Just when tasks want to go back into their queue; without the room, so that all must."""
    conf = {**settings, "fleetlimit_waiting_room": False, "broker_pool_limit": 4}
    with through_proxy(kind, request, server, tmp_path, conf) as (one, between):
        # Not threads: with RabbitMQ, Celery's own acknowledgements from several of them garble the
        # connection just after it was made anew, and the worker may stop consuming.
        one.start("prefork", 4)
        run = one.run()
        route = {"exchange": "work-quorum", "routing_key": "work"} if kind == "quorum" else {}
        for n in range(40):
            one.send("ten", run, n, **route)
        one.wait(run, 3)
        between.refuse()
        down_since = one.wait(run, 1)[-1]["at"]
        until(lambda: time.time() > down_since + 5, "five seconds of outage")
        between.accept()
        until(lambda: len({item["n"] for item in one.starts(run)}) == 40, "all of them ran", 90)
        starts = one.starts(run)
        # A connection that broke is a redelivery of what was not acknowledged: Celery's own
        # duplicates (acks_late, and what was prefetched), each of which asks as any other.
        assert window(starts) <= 10


def test_a_task_that_cannot_be_put_back_is_said_once(
    request: pytest.FixtureRequest, server: Server, tmp_path: Path
) -> None:
    conf = {"fleetlimit_waiting_room": False}
    with through_proxy("redis", request, server, tmp_path, conf) as (one, between):
        one.start("prefork", 1)
        run = one.run()
        one.send("half", run)
        one.wait(run, 1)
        between.refuse()
        with Celery(broker=server.url, set_as_current=False) as sender:
            sender.send_task("tests.celery.app.half", (run, 1))
        one.wait(run, 2)  # where it is; until then it was tried every second
        said = [text for text in one.log().splitlines() if "cannot be put back" in text]
        assert len(said) == 1, one.log()
        assert "WARNING" in said[0]
        assert "queue celery" in said[0]
        between.accept()


def test_soft_time_limit_while_it_waits_in_place(server: Server, tmp_path: Path) -> None:
    """A broadcast copy cannot go back into a queue: it waits where it is, until its time is over."""
    env = {"TEST_QUEUE_TYPE": "classic", "TEST_EXCHANGE_TYPE": "fanout"}
    with fleet(tmp_path, server.url, server.url, **env) as one:
        one.start("prefork", 2)
        run = one.run()
        fanout = Exchange("work-classic", "fanout")
        route = {"exchange": fanout, "declare": [fanout], "routing_key": "work"}
        one.send("slow", run, **route)
        one.wait(run, 1)
        late = one.send("slow", run, 1, **route, soft_time_limit=2)
        until(lambda: line(one, run, "api-1-30-1") == 1, "it stands in line")
        with pytest.raises(Exception, match="SoftTimeLimitExceeded"):
            late.get(timeout=20)
        assert line(one, run, "api-1-30-1") == 0
        assert len(one.starts(run)) == 1


def test_soft_time_limit_while_it_sleeps_before_its_start(server: Server, tmp_path: Path) -> None:
    conf = json.dumps({"fleetlimit_max_sleep": 1, "fleetlimit_waiting_room": False})
    with fleet(tmp_path, server.url, server.url, TEST_CONF=conf) as one:
        worker = one.start("prefork", 1)
        run = one.run()
        first = one.send("half", run)
        one.wait(run, 1)
        late = one.send("half", run, 1)
        until(lambda: line(one, run, "api-1-2-1") == 1, "it stands in line")
        until(lambda: line(one, run, "api-1-2-1") == 0, "it is admitted, and sleeps for 0.6 s")
        # A soft time limit is this signal; a shorter one than the sleep cannot be set.
        os.kill(child_of(worker.pid), signal.SIGUSR1)
        with pytest.raises(Exception, match="SoftTimeLimitExceeded"):
            late.get(timeout=20)
        one.send("half", run, 2)
        times = [item["at"] for item in one.wait(run, 2)]
        assert first.get(timeout=10) == 0
        assert times[1] - times[0] < 2 * 2.2  # its unit went to the next


def child_of(pid: int) -> int:
    """The only process of a worker's pool."""
    (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(child)
