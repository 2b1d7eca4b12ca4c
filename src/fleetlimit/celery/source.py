"""Finds the Redis of an app's limits, with the options that Celery was given for it.

With `fleetlimit_url` and `FLEETLIMIT_URL`, no option of Celery's is used. A Redis that is found as result backend or as
broker is used as Celery uses it, with the same TLS, credential provider, Sentinels and key prefix. Two things are not
taken over: retries (a request that spends units is sent once), and timeouts that are longer than ours.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import redis

from fleetlimit.celery import compat
from fleetlimit.errors import ConfigurationError
from fleetlimit.store.connection import TIMEOUT_S
from fleetlimit.store.urls import (
    Endpoint,
    checked_url,
    credential_provider,
    database,
    endpoint_of,
    scheme_of,
)

__all__ = ["Source", "broker_endpoint", "same_server", "source_of", "sources_of"]

_URL_SETTING = "FLEETLIMIT_URL"
_REDIS = ("redis", "rediss", "sentinel", "redis+socket", "socket", "valkey", "valkeys")
_PORT, _SENTINEL_PORT = 6379, 26379
#: Arguments of Celery's connections that are used for the limits as well.
_TAKEN = (
    "db",
    "username",
    "password",
    "credential_provider",
    "client_name",
    "socket_keepalive",
    "socket_keepalive_options",
    "socket_timeout",
    "socket_connect_timeout",
    "health_check_interval",
    "protocol",
)
_TIMEOUTS = ("socket_timeout", "socket_connect_timeout")
#: Words in errors of Celery's about options. These errors repeat nothing of a URL, so they may be shown.
_HARMLESS = ("ssl_cert_reqs", "SSL connection parameters", "Credential provider is not")
#: Celery adds `_END` to a result backend's prefix that does not end with one of `_ENDS`.
_END, _ENDS = "_", ":_-."


@dataclass(frozen=True)
class Source:
    """The arguments for a `RateLimiter`."""

    #: A URL, an `Endpoint`, a redis-py client or a store.
    redis: Any
    #: None: not set.
    key_prefix: str | None = None


# `fleetlimit_url` may contain a password, so Celery must hide it. Celery hides settings whose names match a pattern. (A
# value whose `repr` hides the password would not be enough, because a worker answers `inspect conf` with the text of a
# `str`, whatever its `repr` is.)
compat.hide_settings(_URL_SETTING)


def source_of(app: Any) -> Source:
    """The Redis of an app's limits.

    :raises ConfigurationError: listing the places that were looked at, or naming the place that cannot be read.
    """
    conf = app.conf
    own = conf.get("fleetlimit_key_prefix")
    said = {
        "app.conf.fleetlimit_url": conf.get("fleetlimit_url"),
        _URL_SETTING: os.environ.get(_URL_SETTING),
    }
    for place, url in said.items():
        if isinstance(url, str) and url:
            return Source(checked_url(place, url), own)
        if url is not None and url != "":
            return Source(url, own)
    looked = [f"{place} (not set)" for place in said]
    found: dict[str, Callable[[Any], tuple[Endpoint, str] | None]] = {
        "result_backend": _backend,
        "broker_url": _broker,
    }
    for place, look in found.items():
        if one := look(app):
            endpoint, theirs = one
            own = os.environ.get("FLEETLIMIT_KEY_PREFIX") if own is None else own
            return Source(endpoint, theirs if own is None else own)
        looked.append(f"{place} ({_shown(_urls(conf)[place])})")
    raise ConfigurationError(
        "no Redis for the rate limits. Looked at: "
        + ", ".join(looked)
        + ". Set app.conf.fleetlimit_url = 'redis://...'."
    )


def sources_of(app: Any) -> Iterator[Source]:
    """Every Redis in the app's configuration in which its limits are, or may have been before."""
    own = app.conf.get("fleetlimit_key_prefix")
    for url in (app.conf.get("fleetlimit_url"), os.environ.get(_URL_SETTING)):
        if isinstance(url, str) and url:
            yield Source(url, own)
    for look in (_backend, _broker):
        with contextlib.suppress(ConfigurationError):
            if one := look(app):
                yield Source(one[0], one[1] if own is None else own)


def broker_endpoint(app: Any) -> Endpoint | None:
    """The broker, if it is Redis."""
    found = _broker(app)
    return found[0] if found else None


def same_server(app: Any) -> bool:
    """Whether the limits are on the broker's own server, in the same database or in another one."""
    broker = broker_endpoint(app)
    if not broker:
        return False
    limits = source_of(app).redis
    if isinstance(limits, str):
        limits = endpoint_of(limits)
    return isinstance(limits, Endpoint) and limits.server == broker.server


def _urls(conf: Any) -> dict[str, str | None]:
    return {
        "result_backend": _first(conf.result_backend),
        "broker_url": _first(conf.broker_write_url or conf.broker_url),
    }


def _first(urls: Any) -> str | None:
    if isinstance(urls, (list, tuple)):
        urls = urls[0] if urls else None
    return urls.split(";")[0] if isinstance(urls, str) else None


def _shown(url: str | None) -> str:
    if not url:
        return "not set"
    return scheme_of(url) if "://" in url else "no URL"


def _is_redis(url: str | None) -> bool:
    return bool(url) and (scheme_of(url or "") in _REDIS or url == "redis")


def _broker(app: Any) -> tuple[Endpoint, str] | None:
    url = _urls(app.conf)["broker_url"]
    if not _is_redis(url):
        return None
    if scheme_of(url or "").startswith("valkey"):  # no transport of kombu's own
        return endpoint_of(url or ""), ""
    theirs = _read("broker_url", app.connection_for_write)
    options = theirs.transport_options or {}
    given = {
        **options,
        "db": database(theirs.virtual_host),
        "username": theirs.userid,
        "password": theirs.password,
        "credential_provider": getattr(theirs, "credential_provider", None),  # since kombu 5.5
        **(theirs.ssl if isinstance(theirs.ssl, Mapping) else {}),
    }
    prefix = options.get("global_keyprefix") or ""
    if "://" in (theirs.hostname or ""):  # by a Unix socket
        at = endpoint_of(theirs.hostname)
        return Endpoint(path=at.path, options={**_taken(given), **at.options}), prefix
    tls = isinstance(theirs.ssl, Mapping)
    if theirs.transport_cls != "sentinel":
        hosts = ((theirs.hostname or "localhost", theirs.port or _PORT),)
        return Endpoint(hosts, tls=tls, options=_taken(given)), prefix
    urls = [url for url in theirs.alt if scheme_of(url) == "sentinel"] or [url or ""]
    hosts = tuple(_read("broker_url", partial(_place, url)) for url in urls)
    return _sentinel("broker_transport_options", hosts, options, given, tls=tls), prefix


def _place(url: str) -> tuple[str, int]:
    from kombu.utils.url import url_to_parts

    parts = url_to_parts(url)
    return parts.hostname or "localhost", parts.port or _SENTINEL_PORT


def _backend(app: Any) -> tuple[Endpoint, str] | None:
    from celery.backends.redis import RedisBackend

    url = _urls(app.conf)["result_backend"]
    if not _is_redis(url):
        return None
    backend = _read("result_backend", lambda: app.backend)
    if not isinstance(backend, RedisBackend):  # a class of the user's own: its URL is used
        return endpoint_of(url or ""), ""
    options = app.conf.get("result_backend_transport_options") or {}
    prefix = options.get("global_keyprefix") or ""
    if prefix and prefix[-1] not in _ENDS:
        prefix += _END
    given = backend.connparams
    tls = _is_tls(given.get("connection_class"))
    if path := given.get("path"):
        return Endpoint(path=path, options=_taken(given)), prefix
    if "hosts" in given:
        hosts = tuple((one["host"], int(one["port"])) for one in given["hosts"])
        where = "result_backend_transport_options"
        return _sentinel(where, hosts, options, given, tls=tls), prefix
    hosts = ((given["host"], int(given["port"])),)
    return Endpoint(hosts, tls=tls, options=_taken(given)), prefix


def _is_tls(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, redis.SSLConnection)


def _sentinel(
    where: str,
    hosts: tuple[tuple[str, int], ...],
    options: Mapping[str, Any],
    given: Mapping[str, Any],
    *,
    tls: bool,
) -> Endpoint:
    service = options.get("master_name")
    if not service:
        raise ConfigurationError(f"{where}: needs 'master_name' for a Sentinel")
    return Endpoint(
        hosts,
        service=service,
        tls=tls,
        options=_taken(given),
        sentinel_tls=bool((options.get("sentinel_kwargs") or {}).get("ssl")),
        sentinel_options=_taken(options.get("sentinel_kwargs") or {}),
    )


def _taken(given: Mapping[str, Any]) -> dict[str, Any]:
    """Those of Celery's arguments that are used for the limits as well."""
    kept = {
        name: value
        for name, value in given.items()
        if value is not None and (name in _TAKEN or name.startswith("ssl_"))
    }
    for name in _TIMEOUTS:
        if name in kept:
            kept[name] = min(float(kept[name]), TIMEOUT_S)
    if provider := kept.get("credential_provider"):
        kept["credential_provider"] = credential_provider(provider)
        for replaced in ("username", "password"):
            kept.pop(replaced, None)
    return kept


def _read(place: str, read: Callable[[], Any]) -> Any:
    """The result of `read`.

    :raises ConfigurationError: if Celery cannot read the setting. Celery's own error is not shown, unless it is known
        to repeat nothing of the URL.
    """
    try:
        return read()
    except Exception as error:
        kind, said = type(error).__name__, str(error).strip()
    if any(words in said for words in _HARMLESS):
        raise ConfigurationError(f"{place}: {said}")
    raise ConfigurationError(
        f"{place}: Celery cannot read it ({kind}); in a password, the characters / ? # [ ] @ % must be "
        "percent-encoded"
    )
