"""An app for a pool that runs coroutines. Every task records its starts, and what it saw of its request."""

from __future__ import annotations

import asyncio
import json
import os
import time
from typing import Any

import redis
from celery import Celery

from fleetlimit import rate_limited

REDIS = os.environ["TEST_REDIS"]
app = Celery("aio", broker=os.environ["TEST_BROKER"], backend=REDIS)
app.conf.update(
    {
        "broker_connection_retry_on_startup": True,
        "fleetlimit_url": f"{REDIS}?socket_timeout=5",
        **json.loads(os.environ.get("TEST_CONF", "{}")),
    }
)


def record(run: str, n: int, **more: Any) -> int:
    entry = json.dumps({"at": time.time(), "n": n, **more})
    redis.Redis.from_url(REDIS).rpush(f"starts:{run}", entry)
    return n


@rate_limited("aio", 5, per=1, margin=0.1)
@app.task(bind=True)
async def call(self: Any, run: str, n: int = 0) -> int:
    record(run, n, id=self.request.id, ours="fleetlimit" in vars(self.request))
    await asyncio.sleep(0.01)
    return n


@app.task(bind=True)
@rate_limited("plain", 5, per=1, margin=0.1)
def plain(self: Any, run: str, n: int = 0) -> int:
    return record(run, n, id=self.request.id, ours="fleetlimit" in vars(self.request))


@app.task
async def free(run: str, n: int = 0) -> int:
    return record(run, n)
