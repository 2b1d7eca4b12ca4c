"""Settings that hurt, said once when a worker starts: each with what to do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fleetlimit.celery.settings import Settings, redelivery_s

__all__ = ["advice"]

#: More tasks than this are fetched ahead for each pool process.
_MANY = 10


def advice(app: Any, settings: Settings) -> Iterator[str]:
    """One line for each setting that works against limited tasks."""
    conf = app.conf
    multiplier = conf.worker_prefetch_multiplier
    if multiplier == 0 or multiplier > _MANY:
        yield (
            f"worker_prefetch_multiplier={multiplier}: one worker fetches tasks that others could "
            "start, and the order of the line suffers; set it to 1"
        )
    if settings.waiting_room:
        return  # nothing waits as a countdown
    room = "or set fleetlimit_waiting_room=True"
    again, horizon = redelivery_s(app), settings.horizon_us / 1e6
    if again and horizon > again / 2:
        yield (
            f"fleetlimit_horizon={horizon:g}: the broker takes back what is not acknowledged within "
            f"{again:g} s, and tasks that wait longer run twice; lower it to {again / 2:g}, {room}"
        )
    if limit := conf.get("worker_eta_task_limit"):
        yield (
            f"worker_eta_task_limit={limit}: with as many tasks waiting as countdowns, this worker "
            f"fetches nothing else until one is due; unset it, {room}"
        )
    if _blocked_by_countdowns(app):
        yield (
            "a quorum queue on a direct exchange: a few tasks that wait as countdowns block all "
            f"others; bind the queue to a topic exchange, {room}"
        )


def _blocked_by_countdowns(app: Any) -> bool:
    """Celery delays natively only through exchanges that are not direct; elsewhere the countdowns on
    a quorum queue are held under a prefetch count that cannot grow."""
    return app.connection_for_write().transport.driver_type == "amqp" and any(
        (queue.queue_arguments or {}).get("x-queue-type") == "quorum"
        and queue.exchange.type == "direct"
        for queue in app.amqp.queues.values()
    )
