"""Reads the address of Redis, and the options of its connections, from a URL.

A URL may contain a password, and a password that is not percent-encoded ends up in a wrong part of the URL. So the
errors here repeat nothing of the URL except its scheme and the names of options.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

import redis.connection
from redis import CredentialProvider

from fleetlimit.errors import ConfigurationError

__all__ = ["Endpoint", "checked_url", "credential_provider", "database", "endpoint_of", "scheme_of"]

# redis-py has type hints only in a part of its modules.
_parse_url: Any = redis.connection.parse_url

_PORT, _SENTINEL_PORT = 6379, 26379
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*(?=://)", re.IGNORECASE)
#: Other spellings of redis-py's schemes.
_SAME = {
    "redis+socket": "unix",
    "socket": "unix",
    "valkey": "redis",
    "valkeys": "rediss",
}
_ENCODE = "in a user name or password, the characters / ? # [ ] @ % must be percent-encoded"
_SENTINEL_FORM = "write sentinel://host:26379,host:26379/mymaster"


@dataclass(frozen=True)
class Endpoint:
    """A server, a Sentinel's service or a Cluster. Its `repr` shows no credentials."""

    #: (host, port) of the server, of the sentinels, or of some nodes of the Cluster.
    hosts: tuple[tuple[str, int], ...] = ()
    #: A Unix socket, in place of hosts.
    path: str = ""
    #: The name under which the sentinels know the master.
    service: str = ""
    cluster: bool = False
    tls: bool = False
    #: Arguments of redis-py's connections (`db`, `username`, `ssl_ca_certs`, ...) and of its pool.
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    #: The same for the connections to the sentinels themselves.
    sentinel_tls: bool = False
    sentinel_options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def server(self) -> tuple[Any, ...]:
        """The server itself, without the database and the credentials."""
        return self.hosts, self.path, self.service, self.cluster


class _Wrong(Exception):
    """What is wrong with a URL, in words that may be shown."""


def scheme_of(url: str) -> str:
    """The scheme of a URL; `(none)` if there is none (the text may be a secret then)."""
    found = _SCHEME.match(url)
    return found[0].lower() if found else "(none)"


def endpoint_of(url: str) -> Endpoint:
    """Read a URL.

    :raises ConfigurationError: naming the scheme and what is wrong, and nothing else of the URL.
    """
    scheme = scheme_of(url)
    try:
        return _endpoint(_SAME.get(scheme, scheme), url[len(scheme) :])
    except (_Wrong, ConfigurationError) as error:
        said = str(error)
    except Exception:
        said = f"cannot be read; {_ENCODE}"
    # Raised outside of the handler, because its `__context__` would repeat a piece of the URL.
    raise ConfigurationError(f"Redis URL with scheme {scheme!r}: {said}")


def checked_url(place: str, url: str) -> str:
    """A URL that stands in a setting.

    :raises ConfigurationError: as `endpoint_of`, with the name of the setting in front.
    """
    try:
        endpoint_of(url)
    except ConfigurationError as error:
        raise ConfigurationError(f"{place}: {error}") from None
    return url


def _endpoint(scheme: str, rest: str) -> Endpoint:
    parts = _split(scheme, rest)
    if scheme == "sentinel":
        return _sentinel(parts)
    if scheme in ("redis+cluster", "rediss+cluster"):
        return _cluster(parts)
    if scheme not in ("redis", "rediss", "unix"):
        known = "redis, rediss, unix, sentinel, redis+cluster, rediss+cluster"
        raise _Wrong(f"the scheme must be one of {known}")
    return _server(parts)


def _split(scheme: str, rest: str) -> SplitResult:
    if ";" in rest.partition("?")[0]:
        more = f"it names no service; {_SENTINEL_FORM}" if scheme == "sentinel" else "give one URL"
        raise _Wrong(f"this is a list of URLs: {more}")
    parts = urlsplit(scheme + rest)
    if "@" in parts.path + parts.query or parts.fragment:
        raise _Wrong(f"there is an @ or # after the host; {_ENCODE}")
    return parts


def _server(parts: SplitResult) -> Endpoint:
    hosts = () if parts.scheme == "unix" else (_host(parts.netloc, _PORT, "localhost"),)
    given = _parse_url(_readable(parts))
    for known in ("host", "port", "connection_class"):
        given.pop(known, None)
    path = given.pop("path", "")
    if hosts:
        database(unquote(parts.path))  # redis-py would use database 0 for a text that is no number
    if "virtual_host" in given:  # Celery's word
        given["db"] = database(given.pop("virtual_host"))
    return Endpoint(
        hosts=hosts, path=path, tls=parts.scheme == "rediss", options=_with_provider(given)
    )


def _readable(parts: SplitResult) -> str:
    """A URL in redis-py's spelling, from that of Celery's documentation."""
    query = parts.query
    for level in ("NONE", "OPTIONAL", "REQUIRED"):
        query = query.replace(f"ssl_cert_reqs=CERT_{level}", f"ssl_cert_reqs={level.lower()}")
    return f"{parts.scheme}://{parts.netloc}{parts.path}?{query}"


def _sentinel(parts: SplitResult) -> Endpoint:
    """`sentinel://[user:password@]host:port[,host:port...]/service[/db][?option=value]`; options:
    `ssl=true`, `ssl_...`, `credential_provider`, `sentinel_username`, `sentinel_password`."""
    service, _, db = parts.path.strip("/").partition("/")
    if not service or service.isdecimal():
        raise _Wrong(f"it names no service; {_SENTINEL_FORM}")
    options: dict[str, Any] = dict(parse_qsl(parts.query))
    tls = options.pop("ssl", "").lower() in ("1", "true", "yes")
    theirs = {name[9:]: options.pop(name) for name in list(options) if name.startswith("sentinel_")}
    known = {
        name: options.pop(name)
        for name in list(options)
        if name.startswith("ssl_") or name == "credential_provider"
    }
    if options:
        raise _Wrong(f"unknown options: {', '.join(options)}")
    secure = {name: value for name, value in known.items() if name.startswith("ssl_")}
    return Endpoint(
        hosts=_hosts(parts.netloc, _SENTINEL_PORT),
        service=unquote(service),
        tls=tls or bool(secure),
        sentinel_tls=tls or bool(secure),
        options=_with_provider({"db": database(db), **_credentials(parts), **known}),
        sentinel_options={**secure, **theirs},
    )


def _cluster(parts: SplitResult) -> Endpoint:
    """`redis+cluster://[user:password@]host:port[,host:port...]`; `rediss+cluster` with TLS."""
    if parts.path.strip("/") or parts.query:
        raise _Wrong("a cluster has no database, and the URL takes no options")
    return Endpoint(
        hosts=_hosts(parts.netloc, _PORT),
        cluster=True,
        tls=parts.scheme.startswith("rediss"),
        options=_credentials(parts),
    )


def _hosts(netloc: str, port: int) -> tuple[tuple[str, int], ...]:
    return tuple(_host(place, port) for place in netloc.rpartition("@")[2].split(","))


def _host(netloc: str, port: int, default: str = "") -> tuple[str, int]:
    parts = urlsplit(f"//{netloc.rpartition('@')[2]}")
    host = unquote(parts.hostname or default)
    if not host:
        raise _Wrong("it names no host")
    try:
        return host, parts.port or port
    except ValueError:
        pass
    raise _Wrong(f"the port must be a number from 1 to 65535; {_ENCODE}")


def _credentials(parts: SplitResult) -> dict[str, Any]:
    given = {"username": parts.username, "password": parts.password}
    return {name: unquote(value) for name, value in given.items() if value}


def database(value: Any) -> int:
    """The number of a database, from a path or a setting.

    :raises ConfigurationError: if the value is no number. The text does not repeat the value.
    """
    try:
        return int(str(value or 0).strip("/") or 0)
    except ValueError:
        pass
    raise ConfigurationError("the database must be a number")


def _with_provider(options: dict[str, Any]) -> dict[str, Any]:
    if found := options.get("credential_provider"):
        options["credential_provider"] = credential_provider(found)
        for replaced in ("username", "password"):
            options.pop(replaced, None)
    return options


def credential_provider(value: Any) -> CredentialProvider:
    """The object that provides the credentials, from the name of its class as Celery writes it (`module.Class`).

    :raises ConfigurationError: if it cannot be imported, or is no credential provider.
    """
    found = value
    if isinstance(value, str):
        module, _, name = value.replace(":", ".").rpartition(".")
        try:
            found = getattr(import_module(module), name)()
        except Exception as error:
            said = f"credential_provider={value!r}: {type(error).__name__}"
            raise ConfigurationError(said) from error
    if not isinstance(found, CredentialProvider):
        raise ConfigurationError(
            f"credential_provider={value!r:.80}: must be a redis.CredentialProvider, or its name"
        )
    return found
