"""A limited task that something else calls: limited, refused, or said; never unlimited in silence."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fleetlimit.demo.processes import Server, until

from .harness import Fleet, fleet, window

TASKS = "-I", "tests.celery.itself"
NAME = "tests.celery.itself."


def send(one: Fleet, task: str, *args: Any, **options: Any) -> Any:
    return one.sender.send_task(NAME + task, args, **options)


@pytest.fixture(scope="module")
def warned(valkey: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    conf = json.dumps({"task_default_queue": "warned"})  # beside the workers of other tests
    with fleet(tmp_path_factory.mktemp("warned"), valkey.url, valkey.url, TEST_CONF=conf) as one:
        one.start("prefork", 1, *TASKS)
        yield one


def mapped(one: Fleet, how: str, run: str) -> Any:
    """`celery.map` or `celery.starmap`, as `ten.map(...)` sends them."""
    task = one.sender.signature("tests.celery.app.ten", app=one.sender)
    items = [run] * 12 if how == "map" else [(run, n) for n in range(12)]
    return one.sender.send_task(f"celery.{how}", kwargs={"task": task, "it": items})


@pytest.mark.parametrize("how", ["map", "starmap"])
def test_a_map_is_refused(warned: Fleet, how: str) -> None:
    run = warned.run()
    with pytest.raises(Exception, match=r"celery.(star)?map calls the limited task .*use a group"):
        mapped(warned, how, run).get(timeout=20)
    assert warned.starts(run) == []


@pytest.mark.parametrize(
    ("task", "how"),
    [("calls", "call"), ("calls", "run"), ("calls", "apply"), ("calls_above", "call")],
)
def test_a_direct_call_runs_and_is_said_once(warned: Fleet, task: str, how: str) -> None:
    for _ in range(2):
        run = warned.run()
        args = (run, how) if task == "calls" else (run,)
        assert send(warned, task, *args).get(timeout=20) == [0, 1, 2]
        assert len(warned.starts(run)) == 3
    called = "tests.celery.app.half" if task == "calls" else f"{NAME}above_half"
    said = [
        line
        for line in warned.log().splitlines()
        if "WARNING" in line and f"{NAME}{task} calls the limited task '{called}'" in line
    ]
    assert len(said) == 1  # also where it was called in another way before
    assert "fleetlimit_direct_calls" in said[0]


def test_a_call_in_a_thread_of_a_task_is_said(warned: Fleet) -> None:
    run = warned.run()
    assert send(warned, "calls_in_a_thread", run).get(timeout=20) == 0
    until(lambda: "a thread of this worker calls the limited task" in warned.log(), "a warning")


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_direct_calls_that_wait(server: Server, tmp_path: Path, pool: str) -> None:
    conf = json.dumps({"fleetlimit_direct_calls": "wait"})
    with fleet(tmp_path, server.url, server.url, TEST_CONF=conf) as one:
        one.start(pool, 2, *TASKS)
        run = one.run()
        assert send(one, "calls_ten", run).get(timeout=20) == [0, 1, 2]
        mapped(one, "starmap", run).get(timeout=20)
        starts = one.starts(run)
        assert len(starts) == 15
        assert window(starts) <= 10
        assert starts[-1]["at"] - starts[0]["at"] >= 1.35  # 14 intervals of 110 ms, less jitter
        assert "as a function" not in one.log()
        assert one.redis.zcard("fleetlimit:{api-10-1-1:" + run + "}:line") == 0


@pytest.mark.parametrize("policy", ["error", "ignore"])
def test_direct_calls_refused_or_ignored(server: Server, tmp_path: Path, policy: str) -> None:
    conf = json.dumps({"fleetlimit_direct_calls": policy})
    with fleet(tmp_path, server.url, server.url, TEST_CONF=conf) as one:
        one.start("solo", 1, *TASKS)
        run = one.run()
        if policy == "error":
            with pytest.raises(Exception, match="calls the limited task"):
                send(one, "calls", run).get(timeout=20)
            assert one.starts(run) == []
        else:
            assert send(one, "calls", run).get(timeout=20) == [0, 1, 2]
            assert len(mapped(one, "map", run).get(timeout=20)) == 12
            assert "calls the limited task" not in one.log()


def test_a_worker_in_a_thread_of_a_program_leaves_its_calls_alone(server: Server) -> None:
    """As in tests: the program's own calls are plain, with whatever setting."""
    from celery import Celery
    from celery.contrib.testing.worker import start_worker

    from fleetlimit import rate_limited

    app = Celery("embedded", broker=server.url, set_as_current=False)
    app.conf.fleetlimit_url, app.conf.fleetlimit_direct_calls = server.url, "error"

    ran: list[int] = []

    @app.task(name="embedded.one", shared=False)
    @rate_limited("embedded", 1, per=3600)
    def one() -> int:
        ran.append(1)
        return 1

    with start_worker(app, perform_ping_check=False, pool="solo"):
        assert [one(), one.run(), one()] == [1, 1, 1]
        one.delay()
        until(lambda: len(ran) == 4, "its own task")
