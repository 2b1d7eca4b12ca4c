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

#: Sent in the process that denied a run, with `sender` (the task), `task_id`, `limit` (its name),
#: `key` (as it stands in Redis; None for a limit without), `rank` (place in the line, from 0) and
#: `wait` (seconds until its turn, as known now). Once for each delivery that ends so.
task_throttled = Signal(
    name="task_throttled", providing_args={"task_id", "limit", "key", "rank", "wait"}
)
#: The limits' Redis went away, or is back. Sent in each process that notices, in any of its threads,
#: with `sender` (the app), `away` (bool) and `cause` (the error, or None).
limits_outage = Signal(name="limits_outage", providing_args={"away", "cause"})
#: `task_throttled` for monitors. Celery's own state of a task (in Flower, say) becomes THROTTLED by it, and
#: stays so until the task has ended: right for as long as it waits, which is the longest part.
EVENT = "task-throttled"


def announce(task: Any, spends: Sequence[Spend], outcome: Outcome) -> None:
    """Tell that a delivery ends here and the task waits."""
    events = bool(runtime_of(task.app).event_senders)
    if not (events or task_throttled.receivers):
        return
    # No readings: the store gave no answer, and the first limit stands for all.
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
        except Exception as error:  # nothing of the task's depends on it
            logger.debug("%s: no event: %r", task.request.id, error)
