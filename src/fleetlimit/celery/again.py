"""Gives a new place to a task that started and then rejected itself with `requeue=True`. Its next start is a new one,
so the task must wait at the end of the line.

The broker delivers the same message again, whose header names the place that has been used already. A ticket in the
line has precedence over the header, so the task takes a ticket at the end before the broker gets the rejection.
"""

from __future__ import annotations

import contextlib
from typing import Any

from celery.exceptions import Reject
from celery.states import REJECTED

from fleetlimit.celery.declared import plan_of
from fleetlimit.celery.gate import TICKET, lane_of_delivery
from fleetlimit.celery.wiring import limiter_of, settings_of
from fleetlimit.errors import FleetlimitError
from fleetlimit.store.base import Ticket

__all__ = ["on_postrun"]


def on_postrun(task: Any, state: str, retval: Any) -> None:
    """Called when a body has ended. If it rejected itself with `requeue=True` and had waited in a line, it takes a new
    place."""
    ticket = vars(task.request).get(TICKET)
    if ticket and state == REJECTED and isinstance(retval, Reject) and retval.requeue:
        with contextlib.suppress(FleetlimitError):  # then the task comes back to its old place
            _join(task, ticket)


def _join(task: Any, ticket: str) -> None:
    request, settings, store = task.request, settings_of(task.app), limiter_of(task.app).store
    spends = plan_of(task).spends(request.args or (), request.kwargs or {})
    broker, lane, queue = lane_of_delivery(task)
    place = Ticket(
        id=ticket,
        max_sleep_us=0,
        horizon_us=settings.horizon_us,
        broker=broker,
        lane=lane,
        queue=queue,
    )
    outcome = store.acquire(spends, place)
    if outcome.admitted and not outcome.alone:  # no task waits, so it needs no place
        for one, reading in zip(spends, outcome.readings, strict=True):
            store.give_back(one, reading)
