"""Many denials: of one task, and in one worker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fleetlimit import RateLimiter
from fleetlimit.demo.processes import Server, until

from .harness import Fleet, fleet, memory, sent_with

TASKS = "-I", "tests.celery.itself"


def test_a_thousand_denials_leave_nothing_behind(server: Server, tmp_path: Path) -> None:  # C18
    """No word above INFO, no exception that is kept, no memory that grows, in the pool's process and in the main one."""
    with fleet(tmp_path, server.url, server.url) as one:
        worker, run, limiter = one.start("prefork", 1, *TASKS), one.run(), RateLimiter(server.url)

        def denied(number: int) -> dict[str, int]:
            """What the worker holds after so many more denials."""
            waiting = limiter.status("api-1-30-1", run).waiting
            for n in range(number):
                one.send("slow", run, n)
            until(lambda: limiter.status("api-1-30-1", run).parked >= waiting + number, "parked")
            held: dict[str, int] = one.sender.send_task("tests.celery.itself.kept").get(timeout=30)
            return {**held, "main": memory(worker.pid)}

        one.send("slow", run)
        one.wait(run, 1)
        denied(
            1200
        )  # what Celery keeps of an `Ignore` until it is collected takes 75 MiB by then, and no more
        before, after = denied(100), denied(1000)
        assert len(one.starts(run)) <= 3
        assert after["exceptions"] <= before["exceptions"] + 2
        assert after["objects"] <= before["objects"] + 300
        assert after["memory"] <= before["memory"] + 4096
        assert after["main"] <= before["main"] + 4096
        assert one.redis.lrange("loud", 0, -1) == []


@pytest.fixture
def hops(server: Server, tmp_path: Path) -> Any:
    conf = json.dumps({"fleetlimit_waiting_room": False, "fleetlimit_horizon": 1})
    with fleet(tmp_path, server.url, server.url, TEST_CONF=conf) as one:
        one.start("prefork", 2)
        yield one


def test_five_denials_change_nothing_and_let_the_message_not_grow(hops: Fleet) -> None:  # C5
    """The second task is denied once a second, for seven seconds."""
    run, limiter = hops.run(), RateLimiter(hops.redis_url)
    options = {
        **sent_with(),
        "link": hops.sender.signature("tests.celery.app.free", args=(run,), immutable=True),
    }
    limiter.configure("api-2-1-1", 1, 7, margin=0, force=True)
    hops.send("snapshot", run, "a", **options)
    hops.wait(run, 2)  # it, and what it is linked to
    second = hops.send("snapshot", run, "a", **options)
    messages: dict[str, str] = {}

    def look() -> bool:
        for text in hops.redis.hvals("unacked"):  # type: ignore[union-attr]
            message = json.loads(text)[0]
            if message["headers"]["id"] == second.id and "fleetlimit" in message["headers"]:
                messages[message["headers"]["eta"]] = json.dumps(message)
        return len(hops.starts(run)) >= 4

    until(look, "the second ran")
    assert hops.redis.llen(f"throttled:{run}") >= 5
    sizes = [len(text) for _, text in sorted(messages.items())]
    assert len(sizes) >= 5
    assert max(sizes) <= sizes[0] + 8  # digits of the countdown
    first, other = (one["request"] for one in hops.starts(run) if "request" in one)
    for request in (first, other):
        for name in ("id", "root_id", "correlation_id", "hostname"):
            request.pop(name, None)
        for name in ("correlation_id", "expiration"):  # the latter is what is left of `expires`
            request["properties"].pop(name, None)
        for signature in request["callbacks"]:
            signature["options"].pop("task_id", None)
    assert other == first
    assert first["properties"]["priority"] == 9
