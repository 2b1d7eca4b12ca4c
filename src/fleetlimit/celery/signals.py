"""Notifications: signals for code in the worker, an event for monitors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from celery.utils.dispatch import Signal
from celery.utils.log import get_logger

from fleetlimit.celery.runtime import runtime_of
from fleetlimit.store.base import Outcome, Spend

__all__ = ["EVENT", "announce", "limits_outage", "task_throttled"]

logger = get_logger(__name__)

#: Sent in the process in which a run was denied, with `sender` (the task), `task_id`, `limit` (its name),
#: `key` (as it stands in Redis; None if the limit has none), `rank` (the number of tasks ahead) and
#: `wait` (the seconds until its turn, as far as known). It is sent once for each delivery that ends with a denial.
task_throttled = Signal(
    name="task_throttled", providing_args={"task_id", "limit", "key", "rank", "wait"}
)
#: Sent when the limits' Redis stops answering, and when it answers again, in each process that notices and in any of
#: its threads, with `sender` (the app), `away` (bool) and `cause` (the error, or None).
limits_outage = Signal(name="limits_outage", providing_args={"away", "cause"})
#: `task_throttled` as an event for monitors. It sets Celery's event state of a task (as Flower shows it) to THROTTLED,
#: and this state stays until the task has ended. It is right while the task waits, which is the longest part.
EVENT = "task-throttled"


def announce(task: Any, spends: Sequence[Spend], outcome: Outcome) -> None:
    """Tell that a delivery ends here and the task waits."""
    events = bool(runtime_of(task.app).event_senders)
    if not (events or task_throttled.receivers):
        return
    # If the store gave no answer there are no readings, and the first limit stands for all.
    read = zip(spends, outcome.readings, strict=True) if outcome.readings else [(spends[0], None)]
    spend, reading = max(read, key=lambda one: one[1].wait_us if one[1] else 0)
    facts = {
        "limit": spend.limit.name,
        "key": spend.key or None,
        "rank": reading.rank if reading else None,
        "wait": outcome.wait_us / 1e6,
    }
    task_throttled.send(sender=task, task_id=task.request.id, **facts)
    if events:
        try:
            task.send_event(EVENT, retry=False, **facts)
        except Exception as error:  # the task does not depend on the event
            logger.debug("%s: the event could not be sent: %r", task.request.id, error)
