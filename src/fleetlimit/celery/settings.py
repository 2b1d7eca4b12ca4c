"""The settings of an app, read and checked."""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from celery.utils.text import match_case

from fleetlimit.celery.options import OPTIONS
from fleetlimit.celery.source import same_server
from fleetlimit.errors import ConfigurationError
from fleetlimit.limit import checked_processes

__all__ = [
    "LARGEST_PARKED",
    "Settings",
    "read_settings",
    "redelivery_s",
]

_HORIZON_S = 900.0
_NAMES = tuple(OPTIONS)
#: A task is woken before its turn by this share of the sleep in place. It covers the way from the broker to the pool,
#: and leaves the rest of the sleep for waiting until tasks just ahead have started.
_LEAD = 0.6


@dataclass(frozen=True)
class Settings:
    """The settings `app.conf.fleetlimit_*`. Times are in microseconds here; the settings themselves are in seconds."""

    enabled: bool
    #: What eager mode does: "ignore" the limit, or "wait" in place.
    eager: str
    #: What happens when a task calls a limited task as a function: "warn" (it runs), "error", "wait" (in place), or
    #: "ignore".
    direct_calls: str
    #: What `AsyncResult.state` says while a task waits: "PENDING" or "RETRY".
    waiting_state: str
    #: The longest sleep in place before a start.
    max_sleep_us: int
    #: The longest single wait as a countdown.
    horizon_us: int
    #: Whether tasks with long waits are parked in Redis.
    waiting_room: bool
    #: The policy while Redis is away, for limits without one of their own.
    on_outage: str
    #: Whether hosts' clocks decide, for a Redis that refuses `TIME` in scripts.
    client_time: bool
    #: How many processes share the limits. None: the workers count themselves.
    processes: int | None
    #: The name of the broker, if an operator has set it. "": the broker is asked.
    broker: str
    #: The secret with which parked messages are signed. None: they are not signed.
    secret: str | None
    #: The URLs of former Redis servers of the limits. Tasks that are still parked there are let go.
    former_urls: tuple[str, ...]

    @property
    def lead_us(self) -> int:
        return int(self.max_sleep_us * _LEAD)


#: The size in bytes of the largest message that is parked. Tasks with larger messages wait as countdowns.
LARGEST_PARKED = 256 * 1024


def read_settings(app: Any) -> Settings:
    """Read and check the settings of an app.

    :raises ConfigurationError: naming the setting and the value.
    """
    conf = app.conf

    def one_of(name: str) -> str:
        choices = OPTIONS[name].choices
        value = conf.get(name, choices[0])
        if value not in choices:
            raise ConfigurationError(f"{name}={value!r}: must be one of {choices}")
        return str(value)

    def flag(name: str) -> bool:
        value = conf.get(name, OPTIONS[name].default)
        if not isinstance(value, bool):
            raise ConfigurationError(f"{name}={value!r}: must be True or False")
        return value

    _check_names(conf)
    enabled = flag("fleetlimit_enabled")
    return Settings(
        enabled=enabled,
        eager=one_of("fleetlimit_eager"),
        direct_calls=one_of("fleetlimit_direct_calls"),
        waiting_state=one_of("fleetlimit_waiting_state"),
        max_sleep_us=_between(conf, "fleetlimit_max_sleep"),
        waiting_room=_waiting_room(app, enabled),
        on_outage=one_of("fleetlimit_on_outage"),
        processes=checked_processes("fleetlimit_processes", conf.get("fleetlimit_processes")),
        client_time=flag("fleetlimit_client_time"),
        horizon_us=_between(conf, "fleetlimit_horizon", _horizon(app)),
        broker=_broker(conf.get("fleetlimit_broker")),
        secret=_secret(conf.get("fleetlimit_secret")),
        former_urls=_urls(conf.get("fleetlimit_former_url")),
    )


def _broker(name: Any) -> str:
    if name is None:
        return ""
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9_.\-]{1,64}", name):
        raise ConfigurationError(
            f"fleetlimit_broker={name!r:.80}: must be a name of letters, digits and '_.-', at most 64"
        )
    return name


def _secret(value: Any) -> str | None:
    if value is not None and (not isinstance(value, str) or len(value) < 16):
        raise ConfigurationError("fleetlimit_secret: must be a text of at least 16 characters")
    return value


def _urls(value: Any) -> tuple[str, ...]:
    urls = (value,) if isinstance(value, str) else tuple(value or ())
    if not all(isinstance(url, str) and "://" in url for url in urls):
        raise ConfigurationError("fleetlimit_former_url: must be a Redis URL, or a list of them")
    return urls


def _check_names(conf: Any) -> None:
    """:raises ConfigurationError: for a setting that does not exist, or that Celery does not read under its name, so
    that it would be ignored."""
    keys = [key for key in conf.keys() if isinstance(key, str)]  # noqa: SIM118  # no plain mapping
    prefix = conf.prefix or ""  # of the namespace, such as "CELERY_"
    for key in keys:
        name = key.lower()
        for start in (prefix.lower(), "celery_"):
            if name.startswith(f"{start}fleetlimit_"):
                name = name[len(start) :]
        if not name.startswith("fleetlimit_"):
            continue
        nearest = name if name in _NAMES else next(iter(get_close_matches(name, _NAMES)), _NAMES[0])
        right = match_case(prefix + nearest, prefix) if prefix else nearest
        if name not in _NAMES:
            raise ConfigurationError(
                f"{key}: unknown setting, did you mean {right}? The settings are {', '.join(_NAMES)}"
            )
        theirs = (
            prefix and key == "FLEETLIMIT_URL"
        )  # a project may keep the value of our environment variable under its name
        if key not in (name, right) and not theirs:
            raise ConfigurationError(
                f"{key}: Celery does not read a setting under this name; write {right}"
            )


def _between(conf: Any, name: str, unset: float | None = None) -> int:
    option = OPTIONS[name]
    assert option.seconds is not None
    least, most = option.seconds
    value = conf.get(name, option.default if unset is None else unset)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
        raise ConfigurationError(f"{name}={value!r}: must be from {least} to {most} seconds")
    return int(value * 1e6)


def _waiting_room(app: Any, enabled: bool) -> bool:
    """Whether the room is on. By default it is on if the limits' Redis is also the broker's, because a parked task is
    then as safe as a task in its queue."""
    value = app.conf.get("fleetlimit_waiting_room")
    if value is None:
        return enabled and same_server(app)
    if not isinstance(value, bool):
        raise ConfigurationError(f"fleetlimit_waiting_room={value!r}: must be True or False")
    return value


def _horizon(app: Any) -> float:
    """Half of the time for which the broker waits for an acknowledgement before it delivers again, in seconds."""
    again = redelivery_s(app)
    return max(1.0, min(_HORIZON_S, again / 2)) if again else _HORIZON_S


def redelivery_s(app: Any) -> float | None:
    """How many seconds a broker waits for an acknowledgement, if the app says it: the visibility timeout of Redis and
    SQS, or RabbitMQ's consumer timeout if it is set for a queue. None: the app does not say it, and the broker's own
    default holds, which is half an hour or more for all three."""
    said = [(app.conf.broker_transport_options or {}).get("visibility_timeout")]
    for queue in app.amqp.queues.values():
        for arguments in (queue.queue_arguments, queue.consumer_arguments):
            timeout_ms = (arguments or {}).get("x-consumer-timeout")
            said.append(timeout_ms / 1000 if timeout_ms else None)
    return min((float(one) for one in said if one), default=None)
