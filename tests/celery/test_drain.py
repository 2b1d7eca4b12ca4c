"""`fleetlimit drain`: the rooms of an app are emptied without a worker that lets go."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from fleetlimit import RateLimiter
from fleetlimit.demo.processes import Server, redis_server, until

from .harness import ROOT, Fleet, fleet, shut_down, window

TEN, HALF = "api-10-1-1", "api-1-2-1"


@pytest.fixture
def one(server: Server, tmp_path: Path) -> Iterator[Fleet]:
    with fleet(tmp_path, server.url, server.url) as made:
        yield made


def drain(fleet: Fleet, *options: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fleetlimit.cli", "drain", "-A", "tests.celery.app", *options]
    return subprocess.run(
        command, env={**fleet.env, **env}, cwd=ROOT, capture_output=True, text=True, timeout=90
    )


def parked(fleet: Fleet, run: str, url: str | None = None, limit: str = TEN) -> int:
    return RateLimiter(url or fleet.redis_url).status(limit, run).parked


def backlog(fleet: Fleet, number: int, **env: str) -> str:
    """So many tasks; what has not started is parked, all of it, and the worker that parked it is gone."""
    worker = fleet.start("prefork", 2, **env)
    run = fleet.run()
    url = json.loads(env.get("TEST_CONF", "{}")).get("fleetlimit_url")
    limiter = RateLimiter(url or fleet.redis_url)
    for n in range(number):
        fleet.send("ten", run, n)
    until(lambda: parked(fleet, run, url) > number // 3, "parked")
    limiter.pause(TEN, 60)
    until(lambda: parked(fleet, run, url) + len(fleet.starts(run)) == number, "all parked")
    shut_down(worker)
    limiter.resume(TEN)
    return run


def numbers(starts: list[dict[str, Any]]) -> list[int]:
    return sorted(item["n"] for item in starts)


def test_at_once(one: Fleet) -> None:
    run = backlog(one, 60)
    before = parked(one, run)
    done = drain(one, "--now")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "nothing is parked"), done
    assert parked(one, run) == 0
    assert one.redis.llen("celery") == before > 20
    assert drain(one).returncode == 0  # nothing left to do
    one.start("prefork", 2)
    assert numbers(one.wait(run, 60)) == list(range(60))
    assert window(one.starts(run)) <= 10


def test_a_message_that_cannot_be_let_go_is_told_of(one: Fleet) -> None:
    run = backlog(one, 40)
    line = f"fleetlimit:{{{TEN}:{run}}}"
    ticket = one.redis.hkeys(f"{line}:room")[0]  # type: ignore[index]
    one.redis.hset(f"{line}:room", ticket, "nonsense")
    done = drain(one, "--now")
    assert done.returncode == 0, done
    assert "1 message in quarantine" in done.stderr
    assert RateLimiter(one.redis_url).quarantined(TEN, run)[0].id in ticket


def test_at_the_limits_pace(one: Fleet) -> None:
    """The worker that runs them let nothing go itself: it started when nothing was parked, with its room off."""
    off = json.dumps({"fleetlimit_waiting_room": False})
    running = one.start("prefork", 2, "-Q", "other", TEST_CONF=off)
    run = backlog(one, 60)
    one.sender.control.add_consumer("celery", reply=True)
    done = drain(one, "--timeout", "60", TEST_CONF=off)
    assert done.returncode == 0, done
    assert parked(one, run) == 0
    starts = one.wait(run, 60)
    assert numbers(starts) == list(range(60))
    assert window(starts) <= 10
    assert running.poll() is None


def test_nobody_takes_the_tasks(one: Fleet) -> None:
    """At the limits' pace somebody must count: the command says that nobody does, and ends in time."""
    run = backlog(one, 120)
    done = drain(one, "--timeout", "12")
    assert done.returncode == 1, done
    assert "no worker with limits takes tasks from celery: start one, or use --now" in done.stdout
    assert "parked after 12 s" in done.stdout.splitlines()[-1]
    assert 0 < parked(one, run) < 120


def test_while_workers_run_they_park_again(one: Fleet) -> None:
    one.start("prefork", 2)
    run = one.run()
    for n in range(40):
        one.send("half", run, n)
    until(lambda: parked(one, run, limit=HALF) > 30, "parked")
    done = drain(one, "--now", "--timeout", "2")
    assert done.returncode == 1, done
    assert "Workers with limits that run: 1." in done.stderr
    assert "is parked again unless fleetlimit_waiting_room is False" in done.stderr
    until(lambda: parked(one, run, limit=HALF) > 15, "parked again")


def test_former_places_are_drained_too(one: Fleet, tmp_path: Path) -> None:
    """The limits were in another Redis; there nobody counts any more."""
    (tmp_path / "former").mkdir()
    with redis_server(tmp_path / "former") as former:
        before = json.dumps({"fleetlimit_url": former.url, "fleetlimit_waiting_room": True})
        run = backlog(one, 40, TEST_CONF=before)
        now = json.dumps({"fleetlimit_former_url": former.url})
        assert drain(one, TEST_CONF=now).returncode == 0
        assert parked(one, run, former.url) == 0
        assert one.redis.llen("celery") > 10
    done = drain(one, TEST_CONF=now)
    assert done.returncode == 2
    assert "a former place of the limits gave no answer" in done.stderr


def test_what_cannot_be_drained(one: Fleet) -> None:
    secret = "hunter2hunter2"
    limits = json.dumps({"fleetlimit_url": f"redis://:{secret}@127.0.0.1:1/0"})
    for env, said in (
        ({"TEST_BROKER": f"redis://:{secret}@127.0.0.1:1/0"}, "the app's broker does not answer"),
        ({"TEST_BROKER": f"amqp://guest:{secret}@127.0.0.1:1//"}, "the app's broker does not answer"),
        ({"TEST_CONF": limits}, "no answer from Redis"),
        ({"TEST_CONF": json.dumps({"fleetlimit_max_sleep": 9})}, "fleetlimit_max_sleep=9"),
        ({"TEST_BROKER": "memory://", "TEST_BACKEND": "rpc://", "TEST_CONF": '{"fleetlimit_url": null}'},
         "no Redis for the rate limits"),
    ):  # fmt: skip
        done = drain(one, **env)
        assert done.returncode == 2, done
        assert said in done.stderr
        assert secret[:7] not in done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        assert done.stderr.strip().count("\n") == 0, done.stderr


def test_rabbitmq(rabbit: Any, server: Server, tmp_path: Path) -> None:
    settings = json.dumps({"fleetlimit_waiting_room": True})
    with fleet(tmp_path, rabbit.url, server.url, TEST_CONF=settings) as one:
        run = backlog(one, 40)
        done = drain(one, "--now")
        assert done.returncode == 0, done
        assert parked(one, run) == 0
        one.start("prefork", 2)
        assert numbers(one.wait(run, 40)) == list(range(40))


def test_adopt_by_an_app(one: Fleet) -> None:
    """Its broker is asked who it is; the tasks run on its workers."""
    run = backlog(one, 40, TEST_CONF=json.dumps({"fleetlimit_broker": "former"}))
    client = redis.Redis.from_url(one.redis_url)
    client.zadd("fleetlimit:brokers", {"former": 1})  # its workers ended a while ago
    command = [sys.executable, "-m", "fleetlimit.cli", "adopt", "former", "-A", "tests.celery.app"]
    done = subprocess.run(
        command, env={**os.environ, **one.env}, cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert "of the broker former: now parked for the broker " in done.stdout, done
    one.start("prefork", 2)
    assert numbers(one.wait(run, 40)) == list(range(40))
