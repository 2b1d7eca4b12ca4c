"""Brokers, pools and acknowledgement: the same behaviour everywhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import redis

from fleetlimit.demo.processes import Server, redis_server, stop, until

from .harness import fleet, window


def conf(**settings: Any) -> str:
    return json.dumps(settings)


LATE = {"task_acks_late": True, "task_reject_on_worker_lost": True}
PICKLE = {"task_serializer": "pickle", "accept_content": ["pickle"], "result_serializer": "pickle"}
SHANGHAI = {"timezone": "Asia/Shanghai", "enable_utc": False}
PAIRS = [
    ("redis", "threads", LATE),
    ("redis", "gevent", PICKLE),
    ("redis", "solo", {}),
    ("redis", "prefork", {**LATE, **PICKLE, **SHANGHAI}),
    ("classic", "prefork", LATE),
    ("classic", "threads", {**PICKLE, **SHANGHAI}),
    ("quorum", "prefork", {}),
    ("quorum", "threads", LATE),
]


@pytest.mark.parametrize(("kind", "pool", "settings"), PAIRS)
def test_same_behaviour(  # C1, C15
    request: pytest.FixtureRequest,
    server: Server,
    tmp_path: Path,
    kind: str,
    pool: str,
    settings: dict[str, Any],
) -> None:
    broker = server.url if kind == "redis" else request.getfixturevalue("rabbit").url
    env = {"TEST_CONF": conf(**settings)}
    if kind != "redis":
        env["TEST_QUEUE_TYPE"] = kind
    with fleet(tmp_path, broker, server.url, **env) as one:
        one.start(pool, 4)
        run = one.run()
        route = {} if kind == "redis" else {"exchange": f"work-{kind}", "routing_key": "work"}
        results = [one.send("ten", run, n, **route) for n in range(25)]
        starts = one.wait(run, 25)
        assert sorted(item["n"] for item in starts) == list(range(25))
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


def test_warm_shutdown_loses_nothing(server: Server, tmp_path: Path) -> None:  # C10
    with fleet(tmp_path, server.url, server.url) as one:
        first = one.start("prefork", 2)
        run = one.run()
        for n in range(60):
            one.send("ten", run, n)
        one.wait(run, 5)
        stop(first, 30)
        before = len(one.starts(run))
        assert before < 60
        one.start("prefork", 2)
        starts = one.wait(run, 60)
        assert sorted(item["n"] for item in starts) == list(range(60))
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
