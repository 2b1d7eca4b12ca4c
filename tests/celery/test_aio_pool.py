"""Limited tasks in a pool that runs coroutines: each start is counted, and a task that waited sees nothing of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fleetlimit.demo.processes import Server

from .harness import Fleet, fleet, numbers, window

pytest.importorskip("celery_aio_pool", reason="no pool that runs coroutines is installed")


@pytest.fixture(params=[True, False], ids=["room", "countdown"])
def one(request: pytest.FixtureRequest, server: Server, tmp_path: Path) -> Iterator[Fleet]:
    room = "true" if request.param else "false"
    env = {
        "TEST_APP": "tests.celery.aio",
        "TEST_CONF": f'{{"fleetlimit_waiting_room": {room}}}',
        "CELERY_CUSTOM_WORKER_POOL": "celery_aio_pool.pool:AsyncIOPool",
    }
    with fleet(tmp_path, server.url, server.url, **env) as made:
        made.start("custom", 1)
        yield made


@pytest.mark.parametrize("task", ["call", "plain"])
def test_each_start_is_counted(one: Fleet, task: str) -> None:
    run, free = one.run(), one.run()
    for n in range(20):
        sent = one.send(task, run, n)
        one.send("free", free, n)
    starts = one.wait(run, 20)
    assert sent.get(timeout=20) == 19
    assert numbers(starts) == list(range(20))
    assert window(starts) <= 5
    assert len({it["id"] for it in starts}) == 20
    assert not any(it["ours"] for it in starts)
    assert numbers(one.wait(free, 20)) == list(range(20))
    assert "as a function" not in one.log()
