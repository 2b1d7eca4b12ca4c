"""The decision for one delivery: start, sleep a moment and start, or go back into the queue."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from celery import _state
from celery.utils.log import get_logger

from fleetlimit.celery.binding import Binding
from fleetlimit.celery.config import Settings, limiter_of, settings_of
from fleetlimit.celery.punctual import Punctuality
from fleetlimit.celery.requeue import Message, cannot_wait_in_queue, put_back, quit_delivery
from fleetlimit.errors import ConfigurationError, StoreUnavailable
from fleetlimit.limit import RateLimit
from fleetlimit.limiter import merged
from fleetlimit.store.base import Outcome, Spend, Store, Ticket

__all__ = ["MARK", "Mark", "enter", "enter_function", "limits_of", "mark_of"]

logger = get_logger(__name__)

#: A start is late when it lags by a tenth of what the margin allows, and this.
_LATE_US = 1_000

MARK = "__fleetlimit__"
#: On the request while its body runs. A task that calls itself inside its own body gets a request
#: that inherits it, and so does not ask (or go back into the queue) a second time.
_ENTERED = "_fleetlimit_entered"


@dataclass
class Mark:
    """On a limited function: its limits, and whether a task is known that has the hook for them."""

    bindings: list[Binding]
    owned: bool = False


def mark_of(function: Any) -> Any:
    return getattr(function, MARK, None)


def limits_of(task: Any) -> tuple[Binding, ...]:
    """All limits of a task (or task class): its `limits`, and those its function is marked with."""
    mark = mark_of(getattr(task, "run", None))
    listed = getattr(task, "limits", None) or ()
    return (*map(_as_binding, listed), *(mark.bindings if mark else ()))


def _as_binding(one: Any) -> Binding:
    if isinstance(one, Binding):
        return one
    if isinstance(one, RateLimit):
        return Binding(one, None, 1, "limits")
    raise ConfigurationError(f"limits: {one!r:.80} must be rate_limited(...) or a RateLimit")


def enter_function(mark: Mark) -> None:
    """The safety net inside a limited function, for a task without the hook."""
    task = _state.get_current_task()
    if task is None:
        return  # a plain call
    own = mark_of(task.run)
    if own is mark or (own is None and not mark.owned):
        enter(task, mark)


def enter(task: Any, mark: Mark | None = None) -> None:
    """Return when the body may start; raise to end this delivery, the task being back in its queue."""
    request = task.request
    if request.called_directly or vars(request).get(_ENTERED):
        return
    settings = settings_of(task.app)
    bindings = limits_of(task) or (tuple(mark.bindings) if mark else ())
    if bindings and settings.enabled and not (request.is_eager and settings.eager == "ignore"):
        _pass(task, bindings, settings)
    vars(request)[_ENTERED] = True


def _pass(task: Any, bindings: Sequence[Binding], settings: Settings) -> None:
    request = task.request
    signature = inspect.signature(task.run)
    spends = merged(
        [b.spend(signature, request.args or (), request.kwargs or {}) for b in bindings]
    )
    store = limiter_of(task.app).store
    message = Message.of(task)
    try:
        outcome = store.acquire(spends, _ticket(message, settings))
    except StoreUnavailable as error:
        logger.debug("%s[%s] waits: %s", task.name, request.id, error)
        outcome = Outcome(
            False, round(random.uniform(5, 15) * 1e6), 0, message.seen_us, False, 0, ()
        )
    if not outcome.admitted:
        _wait(task, message, spends, outcome, settings, store)
    else:
        _start(store, spends, outcome)
    message.restore(request)


def _ticket(message: Message, settings: Settings) -> Ticket:
    return Ticket(
        id=message.id,
        first_seen_us=message.seen_us,
        max_sleep_us=settings.max_sleep_us,
        horizon_us=settings.horizon_us,
        expires_in_us=message.expires_in_us(),
    )


def _wait(
    task: Any, message: Message, spends: Sequence[Spend], outcome: Outcome, settings: Settings,
    store: Store,
) -> None:  # fmt: skip
    """Put the task back and end the delivery; where that is impossible, wait here until admitted."""
    while not outcome.admitted:
        message.seen_us = outcome.first_seen_us
        if not (task.request.is_eager or cannot_wait_in_queue(task.app, message)):
            _put_back(task, message, outcome, settings)
        time.sleep(min(outcome.wait_us / 1e6, 1.0))
        try:
            outcome = store.acquire(spends, _ticket(message, settings))
        except StoreUnavailable:
            continue
    _start(store, spends, outcome)


def _start(store: Store, spends: Sequence[Spend], outcome: Outcome) -> None:
    """Sleep until the admitted cell, and report a start that comes late all the same."""
    clock = _punctuality(os.getpid(), id(store))
    due = clock.due_us(outcome.now_us, outcome.sleep_us)
    if (early := due - clock.clock()) > 0:
        time.sleep(early / 1e6)
    late = clock.late_us(due)
    if late > min(one.limit.per_us * one.limit.margin for one in spends) / 10 + _LATE_US:
        with contextlib.suppress(StoreUnavailable):
            store.delay(spends, late)


@functools.lru_cache(maxsize=8)
def _punctuality(pid: int, store_id: int) -> Punctuality:
    return Punctuality()


def _put_back(task: Any, message: Message, outcome: Outcome, settings: Settings) -> None:
    wait_us = min(outcome.wait_us - settings.lead_us, settings.horizon_us)
    if outcome.expires:
        # It will not get its turn in time: Celery itself revokes it, when its time is over.
        wait_us = (message.expires_in_us() or 0) + 50_000
    try:
        put_back(task.app, message, max(0, wait_us) / 1e6)
    except Exception as error:
        logger.debug("%s[%s] could not be re-queued, waits here: %r", task.name, message.id, error)
        return
    rank = max((one.rank for one in outcome.readings), default=0)
    logger.debug("%s[%s] waits %.3f s, rank %d", task.name, message.id, outcome.wait_us / 1e6, rank)
    quit_delivery(task, settings.waiting_state, outcome.wait_us / 1e6)
