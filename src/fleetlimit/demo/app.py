"""The demo's Celery app: one task with fleetlimit and one for each baseline. All of them call the same API."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import threading
from typing import Any
from urllib.parse import urlsplit

import redis
from celery import Celery, signals

from fleetlimit import RateLimit, RateLimiter, rate_limited

LIMIT = int(os.environ.get("FLEETLIMIT_DEMO_LIMIT", "20"))
PER = float(os.environ.get("FLEETLIMIT_DEMO_PER", "1"))
_MARGIN = os.environ.get("FLEETLIMIT_DEMO_MARGIN", "auto")
MARGIN = _MARGIN if _MARGIN == "auto" else float(_MARGIN)
API = os.environ.get("FLEETLIMIT_DEMO_API", "http://127.0.0.1:8429")
URL = os.environ.get("FLEETLIMIT_DEMO_URL", "redis://127.0.0.1:6379/0")
DELIVERIES = "fleetlimit-demo:deliveries"

app = Celery("fleetlimit-demo", broker=URL)
app.conf.update(
    {
        "task_ignore_result": True,
        "broker_connection_retry_on_startup": True,
        "worker_prefetch_multiplier": 1,
        "fleetlimit_url": URL,
        **json.loads(os.environ.get("FLEETLIMIT_DEMO_CONF", "{}")),  # the benchmarks' own settings
    }
)
_local = threading.local()


def _connection() -> http.client.HTTPConnection:
    """This thread's connection, which is kept open between calls."""
    found: http.client.HTTPConnection | None = getattr(_local, "connection", None)
    if found is None:
        address = urlsplit(API)
        found = http.client.HTTPConnection(str(address.hostname), address.port, timeout=10)
        _local.connection = found
    return found


@signals.worker_process_init.connect  # type: ignore[untyped-decorator]  # Celery has no type hints
def _warm(**_: Any) -> None:
    """Connect and make a first request, so that the first call is not delayed: the API counts calls when they
    arrive."""
    with contextlib.suppress(OSError, http.client.HTTPException):  # the first call will say so
        for _again in range(2):
            _connection().request("GET", "/calls/0")
            _connection().getresponse().read()


def call_api(number: int) -> int:
    """Make one call and return its HTTP status."""
    connection = _connection()
    try:
        connection.request("GET", f"/charge/{number}")
        response = connection.getresponse()
        response.read()
        return int(response.status)
    except (OSError, http.client.HTTPException):
        connection.close()
        raise


@app.task  # type: ignore[untyped-decorator]  # Celery has no type hints
@rate_limited("fragile-api", LIMIT, per=PER, margin=MARGIN)
def charge(number: int) -> int:
    """With fleetlimit, which takes two lines."""
    return call_api(number)


@app.task(rate_limit=f"{LIMIT / PER:g}/s")  # type: ignore[untyped-decorator]  # Celery has no type hints
def charge_celery(number: int) -> int:
    """With Celery's own `rate_limit`, under which each worker counts for itself."""
    return call_api(number)


@app.task(bind=True, max_retries=None)  # type: ignore[untyped-decorator]  # Celery has no type hints
def charge_retry(self: Any, number: int) -> int:
    """With a shared limiter and plain retries, under which all waiting tasks are told the same time."""
    decision = _limiter().acquire(RateLimit("fragile-api-retry", LIMIT, PER))
    if not decision:
        raise self.retry(countdown=decision.retry_after)
    return call_api(number)


def _limiter() -> RateLimiter:
    return RateLimiter.from_app(app)


@signals.task_prerun.connect  # type: ignore[untyped-decorator]  # Celery has no type hints
def _count(**_: Any) -> None:
    if getattr(_local, "redis", None) is None or _local.pid != os.getpid():
        _local.redis, _local.pid = redis.Redis.from_url(URL), os.getpid()
    _local.redis.incr(DELIVERIES)
