"""The settings and the limiter of an app, each made at first use and kept in its `Runtime`."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from fleetlimit import standin
from fleetlimit.celery.runtime import Runtime, runtime_of
from fleetlimit.celery.settings import Settings, read_settings
from fleetlimit.celery.signals import limits_outage
from fleetlimit.celery.source import source_of
from fleetlimit.limiter import RateLimiter, is_custom

__all__ = ["limiter_of", "settings_of"]


def settings_of(app: Any) -> Settings:
    """The app's settings, read once, at first use.

    :raises ConfigurationError: naming the setting and the value.
    """
    runtime = runtime_of(app)
    if runtime.settings is None:
        runtime.settings = read_settings(app)
    return runtime.settings


def limiter_of(app: Any) -> RateLimiter:
    """The limiter of an app, which is made once. Its Redis comes from `app.conf.fleetlimit_url` (a URL, a redis-py
    client or a store), `FLEETLIMIT_URL`, a Redis `result_backend`, or a Redis broker (see `source.py`).

    :raises ConfigurationError: listing the places that were looked at.
    """
    if standin.current:
        return RateLimiter()
    runtime = runtime_of(app)
    with runtime.lock:
        if runtime.limiter is None:
            runtime.limiter = _limiter(app, runtime)
        return runtime.limiter


def _limiter(app: Any, runtime: Runtime) -> RateLimiter:
    settings, source = settings_of(app), source_of(app)
    if is_custom(source.redis):
        # With such a store, settings about outages, clocks and keys would do nothing, so RateLimiter refuses them.
        parts = ("on_outage", "processes", "client_time", "key_prefix")
        said = {one: app.conf.get(f"fleetlimit_{one}") for one in parts}
        given = {one: value for one, value in said.items() if value is not None}
        return RateLimiter(source.redis, **given)
    return RateLimiter(
        source.redis,
        key_prefix=source.key_prefix,
        on_outage=settings.on_outage,
        processes=lambda: settings.processes or runtime.processes,
        client_time=settings.client_time,
        on_change=_tells(app),
    )


def _tells(app: Any) -> Callable[[bool, BaseException | None], None]:
    """A callback that sends the signal. It must not keep the app alive, because the app keeps the limiter, and the
    limiter keeps the callback."""
    here = weakref.ref(app)
    return lambda away, cause: limits_outage.send(here(), away=away, cause=cause) and None
