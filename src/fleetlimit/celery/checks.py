"""What is looked at once a worker knows its tasks and its pool: limits that would do nothing, or not what was
meant."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from typing import Any

from celery.app.task import Task

from fleetlimit.celery import compat
from fleetlimit.celery.declared import limits_of
from fleetlimit.celery.origin import described
from fleetlimit.celery.task import require_limits
from fleetlimit.errors import ConfigurationError

__all__ = ["check_tasks", "task_advice"]


def check_tasks(app: Any, pool: type) -> None:
    """:raises ConfigurationError: for a task that names the base class and no limit, for a limited one whose class
    takes messages in its own way, and for a limited coroutine function whose coroutine nobody would run."""
    for task in compat.tasks_of(app):
        require_limits(task)
        if limits_of(task) and task.Strategy != Task.Strategy:
            raise ConfigurationError(
                f"{described(task)}: its class has a Strategy of its own, as one that collects messages to a batch, "
                "and its body does not run once for each message: no limit can be kept for it; ask a RateLimiter "
                "in its body"
            )
        if _is_coroutine(task) and _calls_as_celery(task) and _is_celerys(pool):
            raise ConfigurationError(
                f"{described(task)}: an `async def`, which Celery calls without ever running its coroutine; "
                "write a plain `def`, or use a task class or a pool that runs coroutines"
            )


def task_advice(app: Any, tasks: Sequence[Any]) -> Iterator[str]:
    """One line for each limited task of which something that was said works against its limit."""
    for task in tasks:
        if task.rate_limit and not app.conf.worker_disable_rate_limits:
            yield (
                f"{described(task)}: Celery's own rate_limit={task.rate_limit!r} holds beside its limit, in "
                "each worker for itself; remove one of them"
            )
        if _is_coroutine(task) and not _calls_as_celery(task):
            yield (
                f"{described(task)}: an `async def`; its class calls it itself, and must run the coroutine, for "
                "Celery does not"
            )
        yield from _costs(task)


def _costs(task: Any) -> Iterator[str]:
    for one in limits_of(task):
        if not isinstance(one.cost, int) and one.limit.most == 1:
            cost = getattr(one.cost, "text", None) or getattr(one.cost, "__qualname__", one.cost)
            yield (
                f"{described(task)}: cost={cost!r} of limit {one.limit.name!r}, which lets 1 unit start at one "
                "instant: a run that costs more fails with CostError; give it a burst of the highest cost"
            )


def _is_coroutine(task: Any) -> bool:
    return bool(limits_of(task)) and inspect.iscoroutinefunction(inspect.unwrap(task.run))


def _calls_as_celery(task: Any) -> bool:
    return type(task).__call__ is Task.__call__


def _is_celerys(pool: type) -> bool:
    """None of Celery's own pools runs coroutines; another one may."""
    return pool.__module__.startswith("celery.concurrency.")
