"""What people see of a task that waits: events, signal, state, `celery inspect`."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from celery.events.state import State

from fleetlimit import ConfigurationError, RateLimiter, UnknownLimitError
from fleetlimit.demo.processes import Server, until
from tests.brokers import Rabbit

from .harness import ROOT, Fleet, fleet


def signalled(one: Fleet, run: str) -> list[dict[str, Any]]:
    """What the receiver of `task_throttled` in the tests' app was told."""
    return [json.loads(text) for text in one.redis.lrange(f"throttled:{run}", 0, -1)]  # type: ignore[union-attr]


@contextmanager
def monitored(one: Fleet) -> Iterator[tuple[State, list[dict[str, Any]]]]:
    """What a monitor such as Flower makes of the events, and the events themselves."""
    state, events, done = State(), [], threading.Event()

    def listen() -> None:
        with one.sender.connection() as connection:

            def on_event(event: dict[str, Any]) -> None:
                state.event(event)
                events.append(event)

            receiver = one.sender.events.Receiver(connection, handlers={"*": on_event})
            ready.set()
            while not done.is_set():
                try:
                    receiver.capture(limit=None, timeout=0.2, wakeup=False)
                except TimeoutError:
                    continue

    ready = threading.Event()
    thread = threading.Thread(target=listen)
    thread.start()
    ready.wait(10)
    try:
        yield state, events
    finally:
        done.set()
        thread.join(10)


@pytest.mark.parametrize("room", [True, False], ids=["room", "countdown"])
def test_events_and_signal_of_a_waiting_task(server: Server, tmp_path: Path, room: bool) -> None:
    conf = {
        "fleetlimit_waiting_room": room,
        "task_track_started": True,
        "fleetlimit_horizon": 1,
    }
    with (
        fleet(tmp_path, server.url, server.url, TEST_CONF=json.dumps(conf)) as one,
        monitored(one) as (state, events),
    ):
        one.start("prefork", 2)
        run = one.run()
        until(lambda: any(e["type"] == "worker-online" for e in events), "the monitor hears")
        limiter = RateLimiter(server.url)
        limiter.pause("api-10-1-1", 300)  # however slow this machine is, all of them have to wait
        results = [one.send("ten", run, n) for n in range(25)]
        last = results[-1]

        def waits() -> bool:
            seen = state.tasks.get(last.id)
            return bool(seen and seen.state == "THROTTLED")

        until(waits, "the monitor shows it as throttled")
        # And not STARTED, which Celery says for a moment at each delivery.
        until(lambda: last.state == "PENDING", "no result says that it started")
        limiter.resume("api-10-1-1")
        one.wait(run, 25)
        assert [result.get(timeout=20) for result in results] == list(range(25))
        until(lambda: state.tasks[last.id].state == "SUCCESS", "it ends as any task")
        told = signalled(one, run)
    facts = [event for event in events if event["type"] == "task-throttled"]
    assert {e["type"] for e in events if e.get("uuid")} <= {
        f"task-{what}" for what in ("sent", "received", "started", "succeeded", "throttled")
    }
    assert len(facts) == len(told) >= 20
    by_id = {fact["uuid"]: fact for fact in facts}
    for said in (*told, *by_id.values()):
        assert (said["limit"], said["key"]) == ("api-10-1-1", run)
        assert said["wait"] > 0
        assert 0 <= said["rank"] < 25
    assert len({fact["rank"] for fact in facts}) > 10


@pytest.mark.parametrize(
    "order", list(permutations(["received", "started", "throttled"])), ids=" ".join
)
def test_a_monitor_shows_the_same_in_whatever_order_events_come(order: tuple[str, ...]) -> None:
    """`task-throttled` comes from the pool's process, the others from the worker's main process."""
    state = State()
    for number, what in enumerate(order):
        state.event(
            {
                "type": f"task-{what}",
                "uuid": "1",
                "hostname": "w1",
                "timestamp": 1000.0 + number,
                "local_received": 1000.0 + number,
                "clock": number,
            }
        )
    assert state.tasks["1"].state == "THROTTLED"


def test_signal_of_a_task_that_two_limits_hold(server: Server, tmp_path: Path) -> None:
    with fleet(tmp_path, server.url, server.url) as one:
        one.start("threads", 2)
        run = one.run()
        for n in range(10):
            one.send("stacked", run, n)
        one.wait(run, 10)
        told = signalled(one, run)
        assert {said["limit"] for said in told} == {"api-5-1-1"}  # the one that binds


def test_state_of_a_waiting_task_with_the_rpc_backend(
    rabbit: Rabbit, server: Server, tmp_path: Path
) -> None:
    conf = {"task_track_started": True, "fleetlimit_waiting_room": True}
    env = {"TEST_CONF": json.dumps(conf), "TEST_BACKEND": "rpc://"}
    with fleet(tmp_path, rabbit.url, server.url, **env) as one:
        one.start("threads", 2)
        run = one.run()
        results = [one.send("ten", run, n) for n in range(15)]
        assert [result.get(timeout=30) for result in results] == list(range(15))


def test_inspect_tells_who_waits(server: Server, tmp_path: Path) -> None:
    with fleet(tmp_path, server.url, server.url) as one:
        one.start("threads", 2)
        run = one.run()
        for n in range(4):
            one.send("slow", run, n)
        one.wait(run, 1)
        command = [sys.executable, "-m", "celery", "-A", "tests.celery.app", "inspect", "-j"]

        def asked(*args: str) -> Any:
            done = subprocess.run(
                [*command, "throttled", *args],
                env=one.env, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True,
            )  # fmt: skip
            return next(iter(json.loads(done.stdout).values()))

        def parked() -> bool:
            return bool(asked("api-1-30-1", run)["api-1-30-1"]["parked"] == 3)

        until(parked, "three are parked", 60)
        said = asked("api-1-30-1", run)["api-1-30-1"]
        assert (said["waiting"], said["paused"]) == (3, 0)
        assert 0 < said["next_due"] <= 34
        everything = asked()
        assert everything.keys() >= {"api-1-30-1", "api-10-1-1"}
        assert everything[f"api-1-30-1:{run}"]["parked"] == 3
        assert asked("unheard-of")["unheard-of"]["waiting"] == 0


def test_a_workers_limits_are_known_before_any_task_ran(server: Server, tmp_path: Path) -> None:
    with fleet(tmp_path, server.url, server.url) as one:
        one.start("solo", 1)
        limiter = RateLimiter(server.url)
        limiter.pause("api-10-1-1", 1)
        with pytest.raises(UnknownLimitError, match=r"Did you mean api-10-1-1\?"):
            limiter.pause("api-10-1-11", 1)
        with pytest.raises(ConfigurationError, match="burst=3"):
            limiter.configure("api-20-1-1fixed_window", 5, 1, burst=3)
        one.redis.flushall()  # a Redis that lost its memory hears of them again
        until(lambda: one.redis.exists("fleetlimit:limits"), "the next beat", 10)
