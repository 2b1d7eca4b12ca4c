"""Tasks that look at themselves, or are called in ways of their own; a worker loads them with `-I`."""

from __future__ import annotations

import gc
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from celery.exceptions import Reject

from fleetlimit import rate_limited

from .app import app, half, limited, record, ten
from .harness import memory


@app.task(bind=True)
@limited(2)
def mirror(self: Any, run: str, *args: Any, **kwargs: Any) -> None:
    """Records what its own request says, without what differs from task to task."""
    request = dict(vars(self.request))
    properties = dict(request.pop("properties"))
    for name in ("id", "root_id", "correlation_id", "hostname"):
        request.pop(name, None)
    for name in ("delivery_tag", "consumer_tag", "correlation_id", "expiration", "delivery_info"):
        properties.pop(name, None)
    sent = properties.get("application_headers") or {}
    for name in ("id", "root_id"):
        sent.pop(name, None)
    seen = {name: it for name, it in request.items() if not name.startswith("_fleetlimit")}
    record(run, seen=seen, properties=properties, args=repr(args))


@app.task(bind=True, acks_late=True)
@limited(1, per=1)
def rejects_once(self: Any, run: str, n: int = 0) -> None:
    """Gives itself back, unless it was delivered again."""
    redelivered = bool(self.request.delivery_info["redelivered"])
    record(run, n=n, redelivered=redelivered)
    if not redelivered:
        raise Reject("once", requeue=True)


@app.task(bind=True, acks_late=True)
@limited(5)
def rejects(self: Any, run: str, n: int = 0, times: int = 0) -> None:
    """Number 0 gives itself back until it has started so many times."""
    from .app import store

    record(run, n=n)
    if n == 0 and store().hincrby(f"counts:{run}", "starts", 1) < times:
        raise Reject("again", requeue=True)


@app.task
def kept() -> dict[str, int]:
    """What this process holds: objects, exceptions among them, and its memory in KiB."""
    gc.collect()
    objects = gc.get_objects()
    exceptions = sum(isinstance(one, BaseException) for one in objects)
    return {"exceptions": exceptions, "objects": len(objects), "memory": memory(os.getpid())}


@app.task
def calls(run: str, how: str = "call") -> Any:
    """Calls a limited task as a plain function."""
    return [_call(how, run, n) for n in range(3)]


def _call(how: str, run: str, n: int) -> Any:
    if how == "run":
        return half.run(run, n)
    if how == "apply":
        return half.apply((run, n)).result
    return half(run, n)


@rate_limited("above-1-2", 1, per=2, margin=0.1, key="{run}")
@app.task
def above_half(run: str, n: int = 0) -> int:
    record(run, n=n)
    return n


@app.task
def calls_above(run: str) -> Any:
    return [above_half(run, n) for n in range(3)]


@app.task
def calls_ten(run: str) -> Any:
    return [ten(run, n) for n in range(3)]


@app.task
def calls_in_a_thread(run: str) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(half, run).result()
