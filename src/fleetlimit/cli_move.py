"""The operator's commands that move parked tasks: adopt and drain."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from fleetlimit.cli_common import (
    Failed,
    celerys_app,
    counted,
    limiter_at,
    load_app,
    note,
    orphan_line,
    plain_errors,
    room_of,
    url_option,
)
from fleetlimit.errors import FleetlimitError
from fleetlimit.limiter import RateLimiter
from fleetlimit.store.room import Room

if TYPE_CHECKING:
    from fleetlimit.celery.drain import Drain

__all__ = ["COMMANDS"]

#: Seconds between two lines of output of a drain.
_PROGRESS_S = 2.0
#: While workers run, the room counts as empty only after no task has been parked for so many seconds.
_EMPTY_S = 3.0


@click.command(short_help="Hand tasks of a broker without workers to another broker.")
@click.argument("former", required=False)
@click.argument("broker", required=False)
@click.option("-A", "--app", help="The Celery app, as for `celery -A`.")
@url_option
def adopt(former: str | None, broker: str | None, app: str | None, url: str | None) -> None:
    """Hand the tasks that are parked for the broker FORMER, which no worker serves, to the workers of
    BROKER or to those of the app's broker (-A).

    Without FORMER it lists the brokers that have parked tasks and no workers.
    """
    app = app or (None if broker else celerys_app())
    with plain_errors():
        if not former:
            _list_orphans(room_of(RateLimiter.from_app(load_app(app)) if app else limiter_at(url)))
            return
        room = _heir(broker, app, url)
        _check_orphan(room, former)
        number = room.adopt(former)
    click.echo(
        f"{counted(number, 'task')} of the broker {former}: now parked for the broker {room.broker}"
    )


def _list_orphans(room: Room) -> None:
    orphans = room.orphans()
    for orphan in orphans:
        click.echo(orphan_line(orphan))
    if not orphans:
        note("Nothing is parked for a broker without workers.")
    served = sorted(broker for broker, there in room.brokers().items() if there and broker)
    note(f"Brokers with workers: {', '.join(served) or 'none'}.")


def _heir(broker: str | None, app: str | None, url: str | None) -> Room:
    """The room of the broker whose workers get the tasks.

    :raises click.UsageError: unless the broker is given in exactly one of the two ways.
    :raises Failed: for a broker that is not known, or does not answer.
    """
    if (broker is None) == (app is None):
        raise click.UsageError("say whose workers get the tasks: BROKER, or -A app")
    if app:
        from fleetlimit.celery.broker import broker_of

        loaded = load_app(app)
        if not (name := broker_of(loaded)):
            raise Failed(f"-A {app}: its broker does not answer, so the broker's name is not known")
        return room_of(RateLimiter.from_app(loaded), broker=name)
    found = room_of(limiter_at(url), broker=broker or "")
    if found.broker not in (known := found.brokers()):
        raise Failed(f"no worker ever served a broker {broker!r}; known: {_listed(known)}")
    return found


def _check_orphan(room: Room, former: str) -> None:
    """:raises Failed: if workers serve that broker, or if no task is parked for it."""
    if former == room.broker:
        raise Failed(f"the tasks of {former!r} are already parked for that broker")
    if room.brokers().get(former):
        raise Failed(f"workers serve the broker {former!r} (or did until 16 s ago)")
    orphans = [one.broker for one in room.orphans()]
    if former not in orphans:
        raise Failed(
            f"no task is parked for a broker {former!r}; brokers with parked tasks and no workers: {_listed(orphans)}"
        )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(name for name in names if name)) or "none"


# --- drain ----------------------------------------------------------------------------------------


@click.command(short_help="Empty an app's waiting rooms, before fleetlimit is removed.")
@click.option(
    "-A", "--app", required=True, default=celerys_app, help="The Celery app, as for `celery -A`."
)
@click.option("--now", is_flag=True, help="Let all tasks go at once, whatever their turn is.")
@click.option("--timeout", type=click.FloatRange(0), help="Give up after so many seconds.")
@click.pass_context
def drain(ctx: click.Context, app: str, now: bool, timeout: float | None) -> None:
    """Empty an app's waiting rooms: parked tasks go back into their queues, at the limits' pace.

    Use it before you take fleetlimit out, with `fleetlimit_waiting_room = False` in the app's settings, so
    that its workers park no more tasks. The exit status is 0 when no task is parked any more, and 1 if the
    timeout came first.
    """
    loaded = load_app(app)
    from fleetlimit.celery.drain import Drain

    with plain_errors():
        work = Drain(loaded, at_once=now)
        try:
            _say_beforehand(work, now)
            left = _drain(work, timeout, now)
            bad = work.quarantined if left is None else 0
        finally:
            work.close()
    if left is not None:
        more = "" if left else ", but workers with limits may park some again"
        click.echo(f"{counted(left, 'task')} parked after {timeout:g} s{more}")
        ctx.exit(1)
    if bad:
        note(f"{counted(bad, 'message')} in quarantine: see `fleetlimit parked NAME --bad`.")
    if work.missed:
        raise Failed(
            "a former place of the limits gave no answer: tasks that are parked there stay"
        )
    click.echo("nothing is parked")


def _say_beforehand(work: Drain, now: bool) -> None:
    for error in work.missed:
        note(f"A former place of the limits: {error}")
    if now and (workers := work.workers):
        note(
            f"Workers with limits that run: {workers}. A task that comes before its turn waits again, and is parked "
            "again unless fleetlimit_waiting_room is False for these workers."
        )


def _drain(work: Drain, timeout: float | None, now: bool) -> int | None:
    """Let tasks go until none is parked and none is parked again.

    :return: None, or the number of tasks that are still parked when the time is up.
    """
    began = said = seen = time.monotonic()
    left, pause, why = (
        work.parked,
        0.0,
        "",
    )  # an error of Redis ends the command here; later on Redis may be away for a while
    patience = (
        _EMPTY_S if left and work.workers else 0
    )  # a task that was let go may be parked again
    while left or time.monotonic() - seen < patience:
        try:
            pause = work.look()
            left, why = work.parked, _why(work, now)
        except FleetlimitError as error:
            pause, why = 1.0, f"; {error}"
        moment = time.monotonic()
        seen = moment if left else seen
        if timeout is not None and moment - began >= timeout:
            return left
        if left and moment - said >= _PROGRESS_S:
            said = moment
            click.echo(f"{left} parked{why}")
        time.sleep(min(pause, 1.0) if left or patience else 0)
    return None


def _why(work: Drain, now: bool) -> str:
    """Why tasks are still parked, if that is known; else ''."""
    if work.away:
        return "; the broker does not answer"
    silent = [] if now else work.silent
    if not silent:
        return ""
    return f"; no worker with limits takes tasks from {', '.join(silent)}: start one, or use --now"


COMMANDS = (adopt, drain)
