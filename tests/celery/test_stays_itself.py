"""What a body sees of its own task is what it would see without a limit."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from fleetlimit.demo.processes import Server, until
from tests.brokers import Rabbit

from .harness import Fleet, fleet

TASKS = "-I", "tests.celery.itself"
NAME = "tests.celery.itself."


def send(one: Fleet, task: str, *args: Any, **options: Any) -> Any:
    return one.sender.send_task(NAME + task, args, **options)


@pytest.fixture(scope="module", params=["redis", "classic", "quorum"])
def mirrors(
    request: pytest.FixtureRequest, valkey: Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Fleet]:
    broker, env = valkey.url, {}
    conf = {"accept_content": ["json", "pickle"]}
    if request.param != "redis":
        broker = request.getfixturevalue("rabbit").url
        conf |= {"fleetlimit_waiting_room": request.param == "classic"}
        env = {"TEST_QUEUE_TYPE": request.param}
    env["TEST_CONF"] = json.dumps(conf)
    with fleet(tmp_path_factory.mktemp("mirrors"), broker, valkey.url, **env) as one:
        one.start("prefork", 2, *TASKS)
        one.route = (
            {} if request.param == "redis"
            else {"exchange": f"work-{request.param}", "routing_key": "work"}
        )  # fmt: skip
        yield one


@pytest.mark.parametrize(
    "options",
    [
        {"headers": {"headers": {"a": 1}, "x": 1}},
        {"headers": {"x": 1, "chain": "mine", "time_limit": 7}},
        {"headers": {}},
        {"task_protocol": 1, "serializer": "pickle"},
        {"task_protocol": 1, "headers": {"headers": {"a": 1}, "x": 1}},
        {"serializer": "pickle", "compression": "gzip"},
    ],
    ids=["headers", "taken", "none", "protocol-1", "protocol-1-headers", "pickle"],
)
def test_a_body_cannot_tell_that_it_waited(mirrors: Fleet, options: dict[str, Any]) -> None:
    """Of seven at 2 per second the first started at once; the others waited for seconds."""
    run, options = mirrors.run(), dict(options)
    protocol = options.pop("task_protocol", 2)
    value = {1: ("a", 2)} if options.get("serializer") == "pickle" else {"1": ["a", 2]}
    with Celery(broker=mirrors.broker, set_as_current=False) as sender:
        sender.conf.task_protocol = protocol
        for _ in range(7):
            sender.send_task(NAME + "mirror", (run, value), **options, **mirrors.route)
    first, *others = mirrors.wait(run, 7)
    assert first["args"] == repr((value,))
    for other in others:
        if protocol == 1:  # it comes back as protocol 2, which says in headers what the body said
            other["properties"].pop("application_headers", None)
            first["properties"].pop("application_headers", None)
        for part in ("seen", "properties", "args"):
            assert other[part] == first[part], part
    assert "fleetlimit" not in json.dumps(first)


@pytest.mark.parametrize("room", [True, False], ids=["room", "countdown"])
def test_redelivered_is_kept_until_the_body_runs(
    server: Server, rabbit: Rabbit, tmp_path: Path, room: bool
) -> None:
    """The broker delivered it again; that delivery was denied, and the next one is a message of its own."""
    conf = json.dumps({"fleetlimit_waiting_room": room})
    env = {"TEST_QUEUE_TYPE": "classic", "TEST_CONF": conf}
    with fleet(tmp_path, rabbit.url, server.url, **env) as one:
        one.start("prefork", 2, *TASKS, "-n", "again@%h")
        run = one.run()
        route = {"exchange": "work-classic", "routing_key": "work"}
        results = [send(one, "rejects_once", run, n, **route) for n in range(3)]
        for result in results:
            result.get(timeout=40)
        starts = one.starts(run)
        for n in range(3):
            assert [s["redelivered"] for s in starts if s["n"] == n] == [False, True]


@pytest.mark.parametrize("room", [True, False], ids=["room", "countdown"])
def test_who_gives_itself_back_goes_to_the_end(server: Server, tmp_path: Path, room: bool) -> None:
    """Each start is one of its own: among twenty others at five per second it may not be every second one."""
    conf = json.dumps({"fleetlimit_waiting_room": room, "worker_prefetch_multiplier": 1})
    with fleet(tmp_path, server.url, server.url, TEST_CONF=conf) as one:
        one.start("prefork", 2, *TASKS)
        run = one.run()
        send(one, "rejects", run, 1)
        one.wait(run, 1)
        send(one, "rejects", run, 0, 12)
        for n in range(2, 21):
            send(one, "rejects", run, n)
        until(lambda: {start["n"] for start in one.starts(run)} == set(range(21)), "all", 60)
        order = [start["n"] for start in one.starts(run)]
        assert order.count(0) <= 4, order
