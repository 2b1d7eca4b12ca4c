"""Brokers, pools and acknowledgement: the same behaviour everywhere."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import redis

from fleetlimit.demo.processes import Server, redis_server, until
from tests.brokers import rabbitmq

from .harness import fleet, shut_down, window


def conf(**settings: Any) -> str:
    return json.dumps(settings)


LATE = {"task_acks_late": True, "task_reject_on_worker_lost": True}
PICKLE = {"task_serializer": "pickle", "accept_content": ["pickle"], "result_serializer": "pickle"}
SHANGHAI = {"timezone": "Asia/Shanghai", "enable_utc": False}
#: Every value of a column meets every value of each other column.
BROKERS, POOLS = ("redis", "classic", "quorum"), ("prefork", "threads", "gevent", "solo")
ACKS, SERIALIZERS = ("early", "late"), ("json", "pickle")
BACKENDS, ROOMS = ("redis", "rpc", "none"), (True, False)
COLUMNS = (BROKERS, POOLS, ACKS, SERIALIZERS, BACKENDS, ROOMS)
MATRIX = [
    ("redis", "threads", "late", "pickle", "none", True),
    ("quorum", "solo", "early", "json", "rpc", False),
    ("classic", "prefork", "early", "pickle", "redis", True),
    ("quorum", "gevent", "late", "json", "redis", True),
    ("classic", "solo", "late", "json", "none", False),
    ("redis", "gevent", "early", "pickle", "none", False),
    ("redis", "prefork", "late", "json", "rpc", False),
    ("classic", "threads", "early", "json", "redis", False),
    ("redis", "solo", "late", "pickle", "redis", True),
    ("classic", "gevent", "early", "pickle", "rpc", False),
    ("quorum", "threads", "late", "pickle", "rpc", True),
    ("quorum", "prefork", "late", "pickle", "none", False),
]


def test_the_matrix_has_every_pair() -> None:
    for one, other in itertools.combinations(range(len(COLUMNS)), 2):
        wanted = set(itertools.product(COLUMNS[one], COLUMNS[other]))
        assert {(row[one], row[other]) for row in MATRIX} == wanted


@pytest.mark.parametrize(
    ("broker", "pool", "acks", "serializer", "backend", "room"),
    MATRIX,
    ids=["-".join(map(str, row)) for row in MATRIX],
)
def test_same_behaviour(  # C1, C15
    request: pytest.FixtureRequest,
    server: Server,
    tmp_path: Path,
    broker: str,
    pool: str,
    acks: str,
    serializer: str,
    backend: str,
    room: bool,
) -> None:
    settings = {"fleetlimit_waiting_room": room}
    settings |= LATE if acks == "late" else {}
    settings |= {**PICKLE, **SHANGHAI} if serializer == "pickle" else {}
    env = {"TEST_CONF": conf(**settings)}
    if backend != "redis":
        env["TEST_BACKEND"] = "rpc://" if backend == "rpc" else ""
    url, route = server.url, {}
    if broker != "redis":
        url = request.getfixturevalue("rabbit").url
        env["TEST_QUEUE_TYPE"] = broker
        route = {"exchange": f"work-{broker}", "routing_key": "work"}
    with fleet(tmp_path, url, server.url, **env) as one:
        one.start(pool, 4)
        run = one.run()
        results = [one.send("ten", run, n, **route) for n in range(25)]
        starts = one.wait(run, 25)
        assert sorted(item["n"] for item in starts) == list(range(25))
        if backend != "none":
            assert [result.get(timeout=20) for result in results] == list(range(25))
        assert window(starts) <= 10
        assert one.redis.lrange("loud", 0, -1) == []


@pytest.mark.parametrize("settings", [{}, LATE], ids=["acks_early", "acks_late"])
def test_broker_away_while_tasks_are_put_back(  # C2
    server: Server, tmp_path: Path, settings: dict[str, Any]
) -> None:
    """The broker stops answering for 5 s just when tasks want to go back into their queue."""
    broker_folder = tmp_path / "broker"
    broker_folder.mkdir()
    with (
        redis_server(broker_folder) as broker,
        fleet(tmp_path, broker.url, server.url, TEST_CONF=conf(**settings)) as one,
    ):
        one.start("threads", 4)
        run = one.run()
        for n in range(40):
            one.send("ten", run, n)
        one.wait(run, 3)
        client = redis.Redis.from_url(broker.url)
        client.execute_command("CLIENT", "PAUSE", "5000", "ALL")
        starts = one.wait(run, 40, 60)
        assert {item["n"] for item in starts} == set(range(40))
        assert window(starts) <= 10


@pytest.mark.parametrize("room", [True, False], ids=["room", "countdown"])
def test_a_wait_beyond_rabbitmqs_consumer_timeout_runs_once(  # C9
    server: Server, tmp_path: Path, room: bool
) -> None:
    """A broker that closes the channel of who does not acknowledge within 6 s: the worker would end."""
    folder = tmp_path / "rabbit"
    folder.mkdir()
    strict = "-rabbit consumer_timeout 6000 -rabbit channel_tick_interval 1000"
    settings = {"fleetlimit_waiting_room": room, "fleetlimit_horizon": 3}
    with (
        rabbitmq(folder, strict) as broker,
        fleet(tmp_path, broker.url, server.url, TEST_CONF=conf(**settings)) as one,
    ):
        worker = one.start("prefork", 2)
        run = one.run()
        for n in range(8):
            one.send("half", run, n)
        starts = one.wait(run, 8, 40)
        assert worker.poll() is None
        assert sorted(item["n"] for item in starts) == list(range(8))
        assert "PreconditionFailed" not in one.log()


def test_warm_shutdown_loses_nothing(server: Server, tmp_path: Path) -> None:  # C10
    with fleet(tmp_path, server.url, server.url) as one:
        first = one.start("prefork", 2)
        run = one.run()
        for n in range(60):
            one.send("ten", run, n)
        one.wait(run, 5)
        shut_down(first)
        before = len(one.starts(run))
        assert before < 60
        one.start("prefork", 2)
        until(lambda: {it["n"] for it in one.starts(run)} == set(range(60)), "all", 60)
        starts = one.starts(run)
        assert len(starts) <= 62  # Celery's own: see `shut_down`
        assert window(starts) <= 10


def test_revoked_task_gives_its_place_to_the_next(server: Server, tmp_path: Path) -> None:  # C8
    with fleet(tmp_path, server.url, server.url) as one:
        one.start("prefork", 2)
        run = one.run()
        results = [one.send("ten", run, n) for n in range(30)]
        until(lambda: len(one.starts(run)) >= 2, "the first starts")
        results[25].revoke()
        starts = one.wait(run, 29)
        until(lambda: results[25].state == "REVOKED", "revoked")
        assert sorted(item["n"] for item in starts) == [n for n in range(30) if n != 25]


@pytest.mark.parametrize("room", [True, False], ids=["room", "countdown"])
def test_free_tasks_do_not_wait_for_limited_ones(  # C11
    server: Server, tmp_path: Path, room: bool
) -> None:
    """Two slots, 200 and 200 tasks: the free ones are done when the limited ones have hardly begun."""
    with fleet(
        tmp_path, server.url, server.url, TEST_CONF=conf(fleetlimit_waiting_room=room)
    ) as one:
        one.start("prefork", 2)
        limited, free = one.run(), one.run()
        for n in range(200):
            one.send("ten", limited, n)
            one.send("free", free, n)
        one.wait(free, 200, 30)
        assert len(one.starts(limited)) < 100
        one.sender.control.purge()
