"""Warnings about settings that work against limited tasks, each with the remedy. A worker logs them when it starts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fleetlimit.celery.settings import Settings, redelivery_s

__all__ = ["advice"]

#: A prefetch multiplier above this fetches too many tasks ahead for each pool process.
_MANY = 10


def advice(app: Any, settings: Settings) -> Iterator[str]:
    """One line for each setting that works against limited tasks."""
    conf = app.conf
    multiplier = conf.worker_prefetch_multiplier
    if multiplier == 0 or multiplier > _MANY:
        yield (
            f"worker_prefetch_multiplier={multiplier}: one worker fetches tasks that other workers could "
            "start, and tasks start less strictly in order; set it to 1"
        )
    if settings.waiting_room:
        return  # no task waits as a countdown
    room = "or set fleetlimit_waiting_room=True"
    again, horizon = redelivery_s(app), settings.horizon_us / 1e6
    if again and horizon > again / 2:
        yield (
            f"fleetlimit_horizon={horizon:g}: the broker takes back a message that is not acknowledged within "
            f"{again:g} s, and tasks that wait longer run twice; lower it to {again / 2:g}, {room}"
        )
    if limit := conf.get("worker_eta_task_limit"):
        yield (
            f"worker_eta_task_limit={limit}: when so many tasks wait as countdowns, this worker "
            f"fetches no other tasks until one of them is due; unset it, {room}"
        )
    if _blocked_by_countdowns(app):
        yield (
            "a quorum queue on a direct exchange: a few tasks that wait as countdowns block all "
            f"others; bind the queue to a topic exchange, {room}"
        )


def _blocked_by_countdowns(app: Any) -> bool:
    """Whether countdowns on a quorum queue block other tasks. Celery uses the broker's delay queues only for exchanges
    that are not direct. With a direct exchange the worker holds the countdowns, and its prefetch count cannot grow."""
    return app.connection_for_write().transport.driver_type == "amqp" and any(
        (queue.queue_arguments or {}).get("x-queue-type") == "quorum"
        and queue.exchange.type == "direct"
        for queue in app.amqp.queues.values()
    )
