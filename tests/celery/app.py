"""The Celery app of the worker tests. Every task records its starts under the run it belongs to."""

from __future__ import annotations

import json
import logging
import os
import time
from functools import cache
from typing import Any

import redis
from celery import Celery, Task, chain, shared_task, signals

from fleetlimit import RateLimit, RateLimitedTask, rate_limited, task_throttled
from fleetlimit.celery import presence
from fleetlimit.limit import ALGORITHMS

presence.EVERY_S = 1.0  # workers know of each other sooner than in life: see `heard` in the harness

BROKER = os.environ["TEST_BROKER"]
REDIS = os.environ["TEST_REDIS"]
app = Celery("tests", broker=BROKER, backend=os.environ.get("TEST_BACKEND", REDIS) or None)
app.conf.update(
    {
        "broker_connection_retry_on_startup": True,
        "fleetlimit_url": REDIS,
        "result_extended": True,
        "task_send_sent_event": True,
        "worker_send_task_events": True,
        **json.loads(os.environ.get("TEST_CONF", "{}")),
    }
)
if os.environ.get("TEST_QUEUE_TYPE"):
    from kombu import Exchange, Queue

    kind = os.environ["TEST_QUEUE_TYPE"]
    exchange = Exchange(f"work-{kind}", os.environ.get("TEST_EXCHANGE_TYPE", "topic"))
    arguments = {"x-queue-type": kind}
    work = Queue(f"work-{kind}", exchange, routing_key="work", queue_arguments=arguments)
    app.conf.update(task_queues=[work], task_default_queue=work.name)


@cache
def store() -> redis.Redis:
    return redis.Redis.from_url(REDIS, decode_responses=True)


def now() -> float:
    """Redis's clock where this worker's is wrong on purpose."""
    if "FAKETIME" not in os.environ:
        return time.time()
    seconds, micros = store().time()  # type: ignore[misc]
    return float(seconds + micros / 1e6)


def record(run: str, **what: Any) -> None:
    entry = json.dumps({"at": now(), **what}, default=str)
    store().rpush(f"starts:{run}", entry)


def count(run: str, what: str) -> None:
    store().hincrby(f"counts:{run}", what, 1)


def limited(limit: int, per: float = 1, **options: Any) -> Any:
    """A limit of its own for every run. The margin is wide: a busy machine's jitter is not the
    subject here (the benchmark and the demo keep the default)."""
    options = {"margin": 0.1, **options}
    name = f"api-{limit}-{per}-{options.get('burst', 1)}{options.get('algorithm', '')}"
    return rate_limited(name, limit, per, key="{run}", **options)


@app.task
@limited(10)
def ten(run: str, n: int = 0) -> int:
    record(run, n=n)
    return n


@app.task
@limited(1, per=30)
def slow(run: str, n: int = 0) -> int:
    record(run, n=n)
    return n


@app.task
@limited(1)
def single(run: str, n: int = 0) -> int:
    record(run, n=n)
    return n


@app.task
@limited(1, per=2)
def half(run: str, n: int = 0) -> int:
    record(run, n=n)
    return n


@app.task
@limited(50)
def fifty(run: str, n: int = 0) -> int:
    record(run, n=n)
    return n


def _by(algorithm: str) -> None:
    @app.task(name=f"tests.celery.app.by_{algorithm}")
    @limited(20, algorithm=algorithm)
    def by(run: str, n: int = 0) -> int:
        record(run, n=n)
        return n


for _algorithm in ALGORITHMS:
    _by(_algorithm)


@app.task
def free(run: str, n: int = 0) -> int:
    record(run, n=n)
    return n


@app.task(bind=True)
@limited(2)
def snapshot(self: Any, run: str, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """Everything a run can see of itself."""
    request = dict(vars(self.request))
    for name in ("delivery_info", "properties"):
        value = dict(request.pop(name))
        for volatile in ("delivery_tag", "consumer_tag", "redelivered"):
            value.pop(volatile, None)
        request[name] = value
    shown = {name: value for name, value in request.items() if not name.startswith("_fleetlimit")}
    record(run, request=shown, args=args, kwargs=kwargs)
    return {"run": run}


@app.task(bind=True, max_retries=0)
@limited(5)
def fails_once_allowed(self: Any, run: str) -> None:
    record(run, retries=self.request.retries)
    raise ValueError("real failure")


@app.task(autoretry_for=(ValueError,), max_retries=2, retry_backoff=0.05, retry_jitter=False)
@limited(5)
def autoretries(run: str) -> None:
    record(run)
    raise ValueError("real failure")


@app.task(bind=True, max_retries=3)
@limited(5)
def neighbour(self: Any, run: str) -> int | None:
    record(run, max_retries=self.max_retries, override=getattr(self, "override_max_retries", None))
    return self.max_retries  # type: ignore[no-any-return]


@app.task
@limited(5)
def add(run: str, x: int, y: int) -> int:
    record(run, n=x)
    return x + y


@app.task
@limited(5)
def total(values: list[int], run: str) -> int:
    record(run, total=sum(values))
    return sum(values)


@app.task
def on_failure_link(request: Any, exc: Any, traceback: Any, run: str) -> None:
    record(run, errback=str(exc))


@app.task(bind=True)
@limited(5)
def replaced(self: Any, run: str) -> Any:
    raise self.replace(chain(add.s(run, 1, 2), add_to.s(run)))


@app.task
@limited(5)
def add_to(value: int, run: str) -> int:
    record(run, n=value)
    return value + 1


# --- every way to put the decorator on ----------------------------------------------------------


@limited(5)
@app.task
def above(run: str, *, keyword: int = 1) -> int:
    record(run, n=keyword)
    return keyword


@shared_task
@limited(5)
def shared_below(run: str, n: int = 0) -> int:
    record(run, n=n)
    return n


@limited(5)
@shared_task
def shared_above(run: str, n: int = 0) -> int:
    record(run, n=n)
    return n


@limited(5)
@app.task(bind=True)
def bound_above(self: Any, run: str, n: int = 0) -> int:
    record(run, n=n, name=self.name)
    return n


@app.task
@limited(5)
def varied(run: str, *args: int, flag: bool = False, **rest: int) -> int:
    record(run, n=args[0] if args else 0, flag=flag, rest=rest)
    return len(args)


@app.task(base=RateLimitedTask, limits=[limited(5)])
def based(run: str, n: int = 0) -> int:
    record(run, n=n)
    return n


@app.task
@limited(5)
@rate_limited(RateLimit("stacked", 100, 1, burst=100), key="{run}")
def stacked(run: str, n: int = 0) -> int:
    record(run, n=n)
    return n


@limited(5)
class Classy(Task):  # type: ignore[misc]
    name = "tests.celery.app.classy"

    def run(self, run: str, n: int = 0) -> int:
        record(run, n=n)
        return n


classy = app.register_task(Classy())


class Shouting(Task):  # type: ignore[misc]
    """A base class of the user's, with hooks of its own."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        count(args[0], "call")
        return super().__call__(*args, **kwargs)

    def before_start(self, task_id: str, args: Any, kwargs: Any) -> None:
        count(args[0], "before_start")

    def on_retry(self, exc: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        count(args[0], "on_retry")

    def on_failure(self, exc: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
        count(args[0], "on_failure")

    def on_success(self, retval: Any, task_id: str, args: Any, kwargs: Any) -> None:
        count(args[0], "on_success")

    def apply_async(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        count(args[0], "apply_async")
        return super().apply_async(args, kwargs, **options)


@app.task(base=Shouting)
@limited(5)
def shouting(run: str, n: int = 0) -> int:
    record(run, n=n)
    return n


class Hiding(RateLimitedTask):
    """Overrides the very hook the check sits in, without `super()`."""

    def before_start(self, task_id: str, args: Any, kwargs: Any) -> None:
        count(args[0], "before_start")


@app.task(base=Hiding, limits=[limited(5)])
def hiding(run: str, n: int = 0) -> int:
    record(run, n=n)
    return n


@app.task(bind=True)
@limited(5)
def nested(self: Any, run: str, depth: int = 3) -> int:
    record(run, n=depth)
    return self(run, depth - 1) + 1 if depth else 0  # type: ignore[no-any-return]


@app.task
@limited(5)
def calls_another(run: str) -> int:
    record(run)
    return ten(run) + ten.run(run, 1)  # type: ignore[no-any-return]


@limited(5)
def helper(run: str) -> None:
    """Limited, but no task."""
    record(run)


@app.task
def calls_a_helper(run: str) -> None:
    helper(run)


@app.task(bind=True, max_retries=5)
@limited(5)
def retries_itself(self: Any, run: str) -> dict[str, Any]:
    record(run, headers=self.request.headers, retries=self.request.retries)
    if self.request.retries == 0:
        raise self.retry(countdown=0)
    return self.request.headers or {}


for _signal in ("task_retry", "task_failure", "task_postrun", "task_success"):

    def _counted(sender: Any = None, _name: str = _signal, **kwargs: Any) -> None:
        request = kwargs.get("request") or sender.request
        args = kwargs.get("args") or (request.args if request else None)
        if args and isinstance(args[0], str):
            count(args[0], _name)

    getattr(signals, _signal).connect(_counted, weak=False)


@task_throttled.connect
def _throttled(sender: Any, task_id: str, **facts: Any) -> None:
    facts = {name: facts[name] for name in ("limit", "key", "rank", "wait")}
    store().rpush(f"throttled:{sender.request.args[0]}", json.dumps({"id": task_id, **facts}))


class _Loud(logging.Handler):
    def emit(self, log: logging.LogRecord) -> None:
        store().rpush("loud", f"{log.levelname} {log.name} {log.getMessage()}")


if os.environ.get("TEST_RECORD_LOGS"):
    logging.getLogger().addHandler(_Loud(logging.WARNING))
