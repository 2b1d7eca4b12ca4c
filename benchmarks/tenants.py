"""The app of `lines.py`: one limit for each tenant."""

from __future__ import annotations

import json
import os
import time

import redis
from celery import Celery

from fleetlimit import rate_limited

URL = os.environ.get("BENCH_URL", "")

app = Celery("tenants", broker=URL)
app.conf.update(task_ignore_result=True, worker_prefetch_multiplier=4)
_client = redis.Redis.from_url(URL) if URL else None


@app.task
@rate_limited("tenant", 1, per=1, key="{tenant}")
def call(tenant: int, number: int) -> None:
    """Says when it started."""
    assert _client
    _client.rpush("starts", json.dumps([time.time(), tenant, number]))
