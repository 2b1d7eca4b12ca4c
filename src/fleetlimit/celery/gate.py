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
from fleetlimit.celery.requeue import (
    Message,
    cannot_wait_in_queue,
    expires_in_us,
    put_back,
    quit_delivery,
    restore,
    seen_us,
)
from fleetlimit.errors import ConfigurationError, StoreUnavailable
from fleetlimit.limit import RateLimit
from fleetlimit.limiter import merged
from fleetlimit.store.base import Outcome, Spend, Store, Ticket

__all__ = ["MARK", "Mark", "enter", "enter_function", "limits_of", "mark_of", "plan"]

logger = get_logger(__name__)

#: A start is late when it lags by a tenth of what the margin allows, and this.
_LATE_US = 1_000

MARK = "__fleetlimit__"
#: On the request while its body runs. A task that calls itself inside its own body gets a request
#: that inherits it, and so does not ask (or go back into the queue) a second time.
_ENTERED = "_fleetlimit_entered"
_PLAN = "_fleetlimit_plan"


@dataclass
class Mark:
    """On a limited function: its limits, and whether a task is known that has the hook for them."""

    bindings: list[Binding]
    owned: bool = False


@dataclass
class Plan:
    """A task's limits, and how its arguments are called."""

    bindings: tuple[Binding, ...]
    signature: inspect.Signature


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


def plan(task: Any) -> Plan:
    """What `enter` needs of a task; kept on it, since nothing of it changes between two runs."""
    found = vars(task)[_PLAN] = Plan(limits_of(task), inspect.signature(task.run))
    return found


def enter(task: Any, mark: Mark | None = None) -> None:
    """Return when the body may start; raise to end this delivery, the task being back in its queue."""
    request = task.request
    if request.called_directly or vars(request).get(_ENTERED):
        return
    settings = settings_of(task.app)
    if settings.enabled and not (request.is_eager and settings.eager == "ignore"):
        _pass(task, vars(task).get(_PLAN) or _unplanned(task, mark), settings)
    vars(request)[_ENTERED] = True


def _unplanned(task: Any, mark: Mark | None) -> Plan:
    found = plan(task)
    return found if found.bindings or not mark else Plan(tuple(mark.bindings), found.signature)


def _pass(task: Any, plan: Plan, settings: Settings) -> None:
    request = task.request
    args, kwargs = request.args or (), request.kwargs or {}
    spends = merged([one.spend(plan.signature, args, kwargs) for one in plan.bindings])
    if not spends:
        return
    store = limiter_of(task.app).store
    outcome = _ask(store, spends, request, seen_us(request), settings)
    if not outcome.admitted:
        outcome = _wait(task, spends, outcome, settings, store)
    _start(store, spends, outcome)
    restore(request)


def _ask(
    store: Store, spends: Sequence[Spend], request: Any, seen: int, settings: Settings
) -> Outcome:
    ticket = Ticket(
        id=request.id,
        first_seen_us=seen,
        max_sleep_us=settings.max_sleep_us,
        horizon_us=settings.horizon_us,
        expires_in_us=expires_in_us(request),
    )
    try:
        return store.acquire(spends, ticket)
    except StoreUnavailable as error:
        logger.debug("%s waits: %s", request.id, error)
        wait_us = round(random.uniform(5, 15) * 1e6)
        return Outcome(False, wait_us, 0, seen, False, 0, ())


def _wait(
    task: Any, spends: Sequence[Spend], outcome: Outcome, settings: Settings, store: Store
) -> Outcome:
    """Put the task back and end the delivery; where that is impossible, wait here until admitted."""
    message = Message.of(task)
    stays = task.request.is_eager or cannot_wait_in_queue(task.app, message)
    while not outcome.admitted:
        if not stays:
            _put_back(task, message, outcome, settings)
        time.sleep(min(outcome.wait_us / 1e6, 1.0))
        outcome = _ask(store, spends, task.request, outcome.first_seen_us, settings)
    return outcome


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
        wait_us = (message.expires_in_us or 0) + 50_000
    try:
        put_back(task.app, message, max(0, wait_us) / 1e6, outcome.first_seen_us)
    except Exception as error:
        logger.debug("%s[%s] could not be re-queued, waits here: %r", task.name, message.id, error)
        return
    rank = max((one.rank for one in outcome.readings), default=0)
    logger.debug("%s[%s] waits %.3f s, rank %d", task.name, message.id, outcome.wait_us / 1e6, rank)
    quit_delivery(task, settings.waiting_state, outcome.wait_us / 1e6)
