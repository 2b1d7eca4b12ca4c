"""A small Celery app of which the environment says what a deploy would change: tasks, limits and queues.

`TEST_SHOP` holds JSON: `tasks` is a mapping of a task's name to the name and the number per second of its limit
(null: it has none), `queues` a list of queues: name, exchange, type of the exchange, routing key, arguments, and
whether the worker declares it. Without `queues` each task is sent to any queue by name, as Celery does it.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

import redis
from celery import Celery
from kombu import Exchange, Queue

from fleetlimit import rate_limited
from fleetlimit.celery import host, presence, releaser

presence.EVERY_S = 1.0
releaser._CHECK_S = float(os.environ.get("TEST_CHECK_S", releaser._CHECK_S))
# As a saturated host says it: one that is saturated in truth would be that for all other tests too.
if idle := os.environ.get("TEST_IDLE"):
    host.processor_times = lambda: (round(float(idle) * time.monotonic_ns()), time.monotonic_ns())

REDIS = os.environ["TEST_REDIS"]
SHOP = json.loads(os.environ["TEST_SHOP"])
app = Celery("tests", broker=os.environ["TEST_BROKER"], backend=REDIS)
app.conf.update(
    {
        "broker_connection_retry_on_startup": True,
        "fleetlimit_url": f"{REDIS}?socket_timeout=5",  # a busy machine is no outage
        **json.loads(os.environ.get("TEST_CONF", "{}")),
    }
)


def _queue(name: str, at: str, kind: str, key: str, arguments: Any, declares: bool) -> Queue:
    silent = not declares
    exchange = Exchange(at, kind, no_declare=silent)
    return Queue(name, exchange, routing_key=key, queue_arguments=arguments, no_declare=silent)


if SHOP.get("queues"):
    app.conf.task_queues = [_queue(*one) for one in SHOP["queues"]]


def _task(name: str, limit: tuple[str, int] | None) -> None:
    def run(run: str, n: int = 0, seconds: float = 0) -> int:
        at = time.time()
        redis.Redis.from_url(REDIS).rpush(
            f"starts:{run}", json.dumps({"at": at, "n": n, "task": name})
        )
        time.sleep(seconds)
        return n

    # A wide margin, and a burst that makes good for short stalls: a busy machine's jitter is not the subject here.
    decorated = run
    if limit:
        burst = min(5, limit[1])
        margin = json.loads(os.environ.get("TEST_MARGIN", "0.1"))
        decorated = rate_limited(limit[0], limit[1], 1, burst=burst, margin=margin)(run)
    app.task(name=f"tests.celery.shop.{name}")(decorated)


for _name, _limit in SHOP["tasks"].items():
    _task(_name, _limit)
