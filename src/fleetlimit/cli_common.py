"""What the commands share: the address of Redis, keys, and errors in one line."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar
from urllib.parse import unquote

import click
from click.core import ParameterSource

from fleetlimit.errors import ConfigurationError, FleetlimitError, UnknownLimitError
from fleetlimit.keys import encode
from fleetlimit.limit import RateLimit
from fleetlimit.limiter import RateLimiter, redis_store
from fleetlimit.store.names import algorithm_in_use, check_known
from fleetlimit.store.parked import Orphan
from fleetlimit.store.room import Room

__all__ = [
    "MARGIN",
    "Failed",
    "as_option",
    "as_typed",
    "celerys_app",
    "counted",
    "encoded",
    "key_option",
    "limiter_at",
    "load_app",
    "note",
    "orphan_line",
    "place_options",
    "plain_errors",
    "room_at",
    "room_of",
    "url_option",
]


F = TypeVar("F", bound=Callable[..., Any])
#: Where a command's own `-A` is kept until Redis is needed.
_APP = "fleetlimit.app"


class Failed(click.ClickException):
    """The command could not do its work. (Status 1 means that the demo broke its promise, or that a drain ran out of
    time.)"""

    exit_code = 2


url_option = click.option(
    "--url", envvar="FLEETLIMIT_URL", show_envvar=True, help="The URL of the limits' Redis."
)


def _keep_app(ctx: click.Context, parameter: click.Parameter, app: str | None) -> None:
    ctx.meta[_APP] = app


def place_options(command: F) -> F:
    """The two ways to say where the limits are: the app's settings, or a URL."""
    app = click.option(
        "-A",
        "--app",
        expose_value=False,
        callback=_keep_app,
        help="Take the limits' Redis from the settings of this Celery app.",
    )
    return app(url_option(command))


def celerys_app() -> str | None:
    """The app of `celery -A app fleetlimit ...`, None if there is none."""
    app = click.get_current_context().find_root().obj
    return app if isinstance(app, str) else None


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
    """The limiter at a URL, or the limiter of the app that the command line names.

    :raises click.UsageError: if there is neither a URL nor an app.
    """
    ctx = click.get_current_context()
    typed = ctx.get_parameter_source("url") is ParameterSource.COMMANDLINE
    if app := ctx.meta.get(_APP) or (None if typed else celerys_app()):
        return RateLimiter.from_app(load_app(app))
    if not url:
        raise click.UsageError(
            "where is Redis? Give -A app, or --url redis://..., or set FLEETLIMIT_URL"
        )
    return RateLimiter(url if typed else None)  # None: an error names the variable


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
    """The waiting rooms in a Redis, for commands that need no particular broker. A note says so if the limit `name` is
    not known there, because a misspelt name reads like a limit under which no task waits.

    :raises FleetlimitError: for a name that no limit can have.
    """
    RateLimit(name, limit=1, per=1)
    room = room_of(limiter_at(url))
    if not algorithm_in_use(room.store, name):
        try:
            check_known(room.store, name)
        except UnknownLimitError as error:
            hint = f" Did you mean {error.nearest}?" if error.nearest else ""
            note(f"No worker and no program has announced a limit {name!r}.{hint}")
    return room


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
