"""What the commands share: the address of Redis, keys, and errors in one line."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import unquote

import click

from fleetlimit.errors import ConfigurationError, FleetlimitError
from fleetlimit.keys import encode
from fleetlimit.limit import RateLimit
from fleetlimit.limiter import RateLimiter, redis_store
from fleetlimit.store.parked import Orphan
from fleetlimit.store.room import Room

__all__ = [
    "MARGIN",
    "Failed",
    "as_option",
    "as_typed",
    "counted",
    "encoded",
    "key_option",
    "limiter_at",
    "load_app",
    "note",
    "orphan_line",
    "plain_errors",
    "room_at",
    "room_of",
    "url_option",
]


class Failed(click.ClickException):
    """The command could not do its work. (Status 1 means that the demo broke its promise, or that a drain ran out of
    time.)"""

    exit_code = 2


url_option = click.option(
    "--url", envvar="FLEETLIMIT_URL", help="The URL of the limits' Redis [FLEETLIMIT_URL]."
)
key_option = click.option(
    "--key",
    multiple=True,
    help="The key, if the limit has keys. If a key has several parts, give each part with its own --key.",
)


class _Margin(click.ParamType):  # type: ignore[type-arg]  # generic in newer versions only
    name = "float|auto"

    def convert(self, value: Any, param: Any, ctx: Any) -> float | str:
        if value == "auto":
            return "auto"
        try:
            return float(value)
        except ValueError:
            self.fail(f"{value!r} is neither a number nor `auto`", param, ctx)


MARGIN = _Margin()


def limiter_at(url: str | None) -> RateLimiter:
    """:raises click.UsageError: if there is no URL."""
    if not url:
        raise click.UsageError("where is Redis? Give --url redis://..., or set FLEETLIMIT_URL")
    return RateLimiter(url)


@contextmanager
def plain_errors() -> Iterator[None]:
    """:raises Failed: with the text of an error of the library, in one line."""
    try:
        yield
    except FleetlimitError as error:
        raise Failed(str(error)) from None


def encoded(key: tuple[str, ...]) -> str:
    """The encoded form of a key that was typed, as it stands in Redis; '' for no key.

    :raises KeyValueError: for an empty key.
    """
    return encode(key) if key else ""


def as_typed(key: str) -> list[str]:
    """The parts of an encoded key, as `--key` takes them. (For a long key only the digest is known.)"""
    return [unquote(part) for part in key.split(":")]


def as_option(key: str) -> str:
    """The options `--key` for an encoded key, as they would stand on a command line."""
    return " ".join(f"--key {shlex.quote(part)}" for part in as_typed(key)) if key else ""


def room_at(url: str | None, name: str) -> Room:
    """The waiting rooms in a Redis, for commands that need no particular broker.

    :raises FleetlimitError: for a name that no limit can have.
    """
    RateLimit(name, limit=1, per=1)
    return room_of(limiter_at(url))


def room_of(limiter: RateLimiter, broker: str = "") -> Room:
    """The waiting rooms in the limits' Redis, for one broker.

    :raises ConfigurationError: if the limits are not in Redis.
    """
    store = redis_store(limiter.store)
    if store is None:
        raise ConfigurationError("this limiter has no waiting room: its store is not Redis")
    return Room(store, broker)


def note(text: str) -> None:
    """Print a note for people on stderr, so that it does not stand between ids that a program reads."""
    click.echo(text, err=True)


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def orphan_line(orphan: Orphan) -> str:
    tasks, lines = counted(orphan.parked, "task"), counted(orphan.lines, "line")
    return f"{tasks} in {lines}, parked for the broker {orphan.broker}, which no worker serves"


def load_app(name: str) -> Any:
    """The Celery app that `celery -A name` would load, with its tasks.

    :raises Failed: if it cannot be loaded.
    """
    from celery import Celery
    from celery.app.utils import find_app

    try:
        app = find_app(name)
        if isinstance(app, Celery):
            app.loader.import_default_modules()
            app.finalize()
    except Exception as error:  # the app's own modules may raise anything
        raise Failed(f"-A {name}: cannot be loaded: {type(error).__name__}: {error}") from None
    if not isinstance(app, Celery):
        raise Failed(f"-A {name}: this is no Celery app, but a {type(app).__name__}")
    return app
