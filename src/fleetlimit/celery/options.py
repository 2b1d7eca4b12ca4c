"""Every setting `app.conf.fleetlimit_*`, with its possible values, its default and its meaning.

`settings.py` reads the settings by this table, and the page docs/reference/settings.md is made from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fleetlimit.limit import POLICIES

__all__ = ["OPTIONS", "Option"]


@dataclass(frozen=True)
class Option:
    """One setting. The texts are Markdown; a link in them starts at docs/reference/."""

    #: What the setting does, in whole sentences.
    meaning: str
    #: The default value; None: see `unset`.
    default: Any = None
    #: The possible words, the default first.
    choices: tuple[str, ...] = ()
    #: The smallest and the largest possible number of seconds.
    seconds: tuple[float, float] | None = None
    #: The possible values in words, if neither `choices`, `seconds` nor a default True or False say so.
    values: str = ""
    #: What happens if the setting is not set, if there is no fixed default.
    unset: str = ""


OPTIONS: dict[str, Option] = {
    "fleetlimit_url": Option(
        "The Redis that keeps the limits. [Which Redis](../outages.md#which-redis) lists the forms of a URL.",
        values="a Redis URL, a client of redis-py, or a store",
        unset="the first of these that is set: the environment variable `FLEETLIMIT_URL`, a Redis "
        "`result_backend`, a Redis `broker_url`",
    ),
    "fleetlimit_key_prefix": Option(
        "A text in front of the name of every key in Redis. With two prefixes, two environments can share one "
        "database, and each of them has limits of its own.",
        values="a text",
        unset="the environment variable `FLEETLIMIT_KEY_PREFIX`, or the `global_keyprefix` of the Celery "
        "setting in which Redis was found, or no prefix",
    ),
    "fleetlimit_enabled": Option(
        "`False` turns all limits of the app off. Its workers then need no Redis for them.",
        default=True,
    ),
    "fleetlimit_eager": Option(
        "What a task in eager mode (`task.apply()` or `task_always_eager`) does: with `ignore` it asks no limit, and "
        "with `wait` it waits in place for the limit.",
        choices=("ignore", "wait"),
    ),
    "fleetlimit_direct_calls": Option(
        "What happens if a task calls a limited task as a function: with `warn` the call runs without a limit and the "
        "worker logs a warning, with `error` it raises a `ConfigurationError`, with `wait` it waits in place, and "
        "with `ignore` it runs without a limit and without a warning. "
        "[More about direct calls](../operations.md#limited-tasks-that-are-called-as-functions).",
        choices=("warn", "error", "wait", "ignore"),
    ),
    "fleetlimit_waiting_state": Option(
        "What `AsyncResult.state` says while a task waits. With `RETRY`, Celery calls the task's `on_retry` and sends "
        "the signal `task_retry` for each denial.",
        choices=("PENDING", "RETRY"),
    ),
    "fleetlimit_max_sleep": Option(
        "The longest time that a task sleeps in the worker before it starts. A task whose turn is further away leaves "
        "the worker.",
        default=0.25,
        seconds=(0, 1),
    ),
    "fleetlimit_horizon": Option(
        "The longest countdown, for tasks that do not wait in the waiting room. A longer wait is taken in several "
        "countdowns.",
        seconds=(1, 86_400),
        unset="half of the broker's visibility timeout (or of a queue's `x-consumer-timeout`) if that is set, and at most 900",
    ),
    "fleetlimit_waiting_room": Option(
        "Whether tasks with a long wait are parked in Redis, in the [waiting room](../waiting-room.md).",
        values="`True` or `False`",
        unset="`True` if the limits are kept in the broker's own Redis server, otherwise `False`",
    ),
    "fleetlimit_on_outage": Option(
        "What a limit without an `on_outage` of its own does [while Redis is away](../outages.md).",
        choices=POLICIES,
    ),
    "fleetlimit_processes": Option(
        "How many worker processes share a limit while Redis is away.",
        values="a whole number from 1",
        unset="the workers count their processes themselves",
    ),
    "fleetlimit_client_time": Option(
        "`True` decides by the clocks of the hosts and not by Redis's own. Some managed services need it, because "
        "they refuse the command `TIME` in scripts.",
        default=False,
    ),
    "fleetlimit_broker": Option(
        "The name of the app's broker. Two brokers with the same name count as one. "
        "[When you need it](../waiting-room.md#whose-tasks-these-are).",
        values="letters, digits and `_.-`, at most 64",
        unset="fleetlimit asks the broker",
    ),
    "fleetlimit_secret": Option(
        "The secret with which parked messages are signed. It must be the same in all workers. A message with another "
        "signature is not published. [Who needs it](../waiting-room.md#trust).",
        values="a text of at least 16 characters",
        unset="parked messages are not signed",
    ),
    "fleetlimit_former_url": Option(
        "The Redis that kept the limits before they moved. Workers also let the tasks go that are still parked there.",
        values="a Redis URL, or a list of them",
        unset="no former place",
    ),
}
