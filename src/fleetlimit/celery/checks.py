"""Checks that a worker makes once it knows its tasks and its pool: for limits that would do nothing, or not what was
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
from fleetlimit.errors import ConfigurationError, CostError

__all__ = ["check_tasks", "task_advice"]


def check_tasks(app: Any, pool: type) -> None:
    """Refuse tasks whose limits could not be kept.

    :raises ConfigurationError: for a task with `base=RateLimitedTask` and no limit, for a task that has one limit twice
        and whose runs would all fail, for a limited task whose class handles messages in its own way, and for a limited
        coroutine function whose coroutine would never run.
    """
    for task in compat.tasks_of(app):
        require_limits(task)
        _check_sums(task)
        if limits_of(task) and task.Strategy != Task.Strategy:
            raise ConfigurationError(
                f"{described(task)}: its class has a Strategy of its own (for instance, it collects messages into a "
                "batch), so its body does not run once for each message and no limit can be kept for it; ask a "
                "RateLimiter in its body"
            )
        if _is_coroutine(task) and _calls_as_celery(task) and _is_celerys(pool):
            raise ConfigurationError(
                f"{described(task)}: an `async def`, which Celery calls without ever running its coroutine; "
                "write a plain `def`, or use a task class or a pool that runs coroutines"
            )


def _check_sums(task: Any) -> None:
    """:raises ConfigurationError: if a limit is on a task more than once for the same key, and its costs together are
    more units than can start at one instant."""
    totals: dict[tuple[str, Any], int] = {}
    for one in limits_of(task):
        if isinstance(one.cost, int):
            where = one.limit.name, getattr(one.key, "text", one.key)
            total = totals[where] = totals.get(where, 0) + one.cost
            try:
                one.limit.check_cost(total)
            except CostError as error:
                raise ConfigurationError(
                    f"{described(task)}: limit {one.limit.name!r} is on it more than once, and its costs add up: "
                    f"{error}"
                ) from None


def task_advice(app: Any, tasks: Sequence[Any]) -> Iterator[str]:
    """One line for each limited task that has an option which works against its limit."""
    for task in tasks:
        if task.rate_limit and not app.conf.worker_disable_rate_limits:
            yield (
                f"{described(task)}: Celery's own rate_limit={task.rate_limit!r} also holds, in each worker "
                "separately; remove it or the fleet's limit"
            )
        if _is_coroutine(task) and not _calls_as_celery(task):
            yield (
                f"{described(task)}: an `async def`; its class has a __call__ of its own, which must run the "
                "coroutine, because Celery does not"
            )
        yield from _costs(task)


def _costs(task: Any) -> Iterator[str]:
    for one in limits_of(task):
        if not isinstance(one.cost, int) and one.limit.most == 1:
            cost = getattr(one.cost, "text", None) or getattr(one.cost, "__qualname__", one.cost)
            yield (
                f"{described(task)}: cost={cost!r}, but limit {one.limit.name!r} lets only 1 unit start at one "
                "instant: a run that costs more fails with CostError; set its burst to the highest cost"
            )


def _is_coroutine(task: Any) -> bool:
    return bool(limits_of(task)) and inspect.iscoroutinefunction(inspect.unwrap(task.run))


def _calls_as_celery(task: Any) -> bool:
    return type(task).__call__ is Task.__call__


def _is_celerys(pool: type) -> bool:
    """Whether the pool is one of Celery's own. These run no coroutines, but another pool may."""
    return pool.__module__.startswith("celery.concurrency.")
