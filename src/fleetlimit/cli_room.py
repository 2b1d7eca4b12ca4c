"""The operator's commands for tasks that wait: status, parked, retry, drop and cancel."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime, timezone

import click

from fleetlimit.cli_common import (
    Failed,
    as_option,
    as_typed,
    counted,
    encoded,
    key_option,
    limiter_at,
    note,
    orphan_line,
    place_options,
    plain_errors,
    room_at,
    room_of,
)
from fleetlimit.store.names import known_names
from fleetlimit.store.parked import Quarantined, Status
from fleetlimit.store.room import Room

__all__ = ["COMMANDS"]

#: So many keys are on one page of `status`.
_PAGE = 20
_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


# --- status ---------------------------------------------------------------------------------------


@click.command(short_help="Show how many tasks wait under a limit, or under all of them.")
@click.argument("name", required=False)
@key_option
@click.option(
    "--page",
    default=1,
    show_default=True,
    type=click.IntRange(1),
    help="Which page of a limit's keys.",
)
@place_options
@_json
def status(
    name: str | None, key: tuple[str, ...], page: int, url: str | None, as_json: bool
) -> None:
    """Show how many tasks wait under a limit, how many of them are parked, how long the oldest has waited, and
    when the next is due.

    Without --key it also shows the keys under which tasks are parked (the next due first), and brokers
    with parked tasks that no worker serves. Without NAME it shows all known limits, a line for each.
    """
    if name is None:
        for option, said in (("key", bool(key)), ("page", page > 1)):
            if said:
                raise click.UsageError(f"--{option} without NAME: say which limit")
        _show_all(url, as_json)
        return
    with plain_errors():
        room = room_at(url, name)
        found = room.status(name, encoded(key))
        lines, number = ([], 0) if key else room.keys([name], _PAGE, (page - 1) * _PAGE)
        keys = {its: room.status(name, its) for _, its in lines}
        bad_keys = 0 if key else len([its for its in room.quarantine_keys(name) if its])
        orphans = room.orphans()
    if as_json:
        by_key = [{"key": as_typed(its), **asdict(one)} for its, one in keys.items()]
        more = {
            "keys": number,
            "page": page,
            "by_key": by_key,
            "orphans": list(map(asdict, orphans)),
        }
        click.echo(json.dumps({**asdict(found), **more}))
        return
    for line in _status_lines(found, name, bad_keys, not key):
        click.echo(line)
    for line in _key_lines(keys, number, page):
        click.echo(line)
    for orphan in orphans:
        click.echo(f"orphaned   {orphan_line(orphan)}: see `fleetlimit adopt`")


def _show_all(url: str | None, as_json: bool) -> None:
    with plain_errors():
        room = room_of(limiter_at(url))
        names = sorted(known_names(room.store))
        found = {name: room.status(name) for name in names}
        keys = Counter(name for name, _ in room.keys(names, sys.maxsize)[0])
        bad = {name: len([its for its in room.quarantine_keys(name) if its]) for name in names}
        orphans = room.orphans()
    if as_json:
        limits = {
            name: {**asdict(one), "keys": keys[name], "bad_keys": bad[name]}
            for name, one in found.items()
        }
        click.echo(json.dumps({"limits": limits, "orphans": list(map(asdict, orphans))}))
        return
    for name, one in found.items():
        click.echo("".join([name, "  ", ", ".join(_facts(one, keys[name], bad[name]))]))
    if not found:
        note("No worker and no program has announced a limit.")
    for orphan in orphans:
        click.echo(f"orphaned   {orphan_line(orphan)}: see `fleetlimit adopt`")


def _facts(one: Status, keys: int, bad_keys: int) -> Iterator[str]:
    """The facts in a line about a limit: how many tasks wait, and anything unusual."""
    yield f"waiting {one.waiting}"
    yield f"parked {one.parked}"
    if keys:
        yield f"and {counted(keys, 'key')} with parked tasks"
    if one.paused:
        yield f"paused for {one.paused:.1f} s more"
    if one.configured:
        yield "numbers set with `configure`"
    if one.quarantined:
        yield f"{counted(one.quarantined, 'message')} in quarantine"
    if bad_keys:
        yield f"quarantine under {counted(bad_keys, 'key')}"


def _status_lines(found: Status, name: str, bad_keys: int, without_key: bool) -> Iterator[str]:
    yield f"waiting    {found.waiting}"
    yield f"parked     {found.parked}"
    nobody = "nobody waits without a key" if without_key else "nobody waits"
    yield f"oldest     {nobody if found.oldest is None else f'{found.oldest:.1f} s'}"
    if found.next_due is not None:
        yield f"next due   in {found.next_due:.1f} s"
    yield f"paused     {found.paused:.1f} s more" if found.paused else "paused     no"
    pace = found.configured
    yield f"numbers    {f'set with `configure`: a unit every {pace:.3g} s' if pace else 'as in the code'}"
    yield f"margin     {100 * found.margin:.1f} % where it is automatic"
    also = f", and under {counted(bad_keys, 'key')}" if bad_keys else ""
    hint = f": see `fleetlimit parked {name} --bad`" if found.quarantined or bad_keys else ""
    yield f"quarantine {found.quarantined}{also}{hint}"


def _key_lines(keys: dict[str, Status], number: int, page: int) -> Iterator[str]:
    if not number:
        return
    pages = -(-number // _PAGE)
    shown = f" (page {page} of {pages}; --page shows another)" if pages > 1 else ""
    yield f"keys       {number} with parked tasks{shown}"
    for its, one in keys.items():
        due = "" if one.next_due is None else f", next due in {one.next_due:.1f} s"
        yield f"  {as_option(its)}  waiting {one.waiting}, parked {one.parked}{due}"


# --- parked ---------------------------------------------------------------------------------------


@click.command(short_help="List the tasks that are parked under a limit.")
@click.argument("name")
@key_option
@click.option("--bad", is_flag=True, help="Show the messages that could not be let go, and why.")
@click.option(
    "--most", default=100, show_default=True, type=click.IntRange(1), help="Show at most so many."
)
@place_options
@_json
def parked(
    name: str, key: tuple[str, ...], bad: bool, most: int, url: str | None, as_json: bool
) -> None:
    """List the ids of the tasks that are parked under a limit (and key), in the order of the line.

    With --bad it lists the messages in quarantine instead, under all keys if no key is given.
    """
    with plain_errors():
        room = room_at(url, name)
        if bad:
            found = _quarantine(room, name, encoded(key) if key else None)
            _show_quarantine(found[:most], len(found), as_json)
            return
        ids = room.parked(name, encoded(key), most)
        more = max(0, room.status(name, encoded(key)).parked - len(ids))
        keys = 0 if key or ids else room.keys([name], 0)[1]
    if as_json:
        click.echo(json.dumps({"parked": ids, "more": more}))
        return
    for id in ids:
        click.echo(id)
    if more:
        note(f"The first {len(ids)} of {len(ids) + more} parked tasks; --most shows more.")
    if not ids:
        note(f"No task is parked{_see_keys(keys)}.")


def _see_keys(keys: int) -> str:
    return (
        f" without a key; this limit has parked tasks under {counted(keys, 'key')} (--key)"
        if keys
        else ""
    )


def _quarantine(room: Room, name: str, key: str | None = None) -> list[tuple[str, Quarantined]]:
    """The messages in quarantine, each with its (encoded) key, the oldest first. `key` None: under all keys."""
    keys = room.quarantine_keys(name) if key is None else [key]
    found = [(its, one) for its in keys for one in room.quarantined(name, its)]
    return sorted(found, key=lambda one: one[1].at)


def _show_quarantine(found: list[tuple[str, Quarantined]], number: int, as_json: bool) -> None:
    more = number - len(found)
    if as_json:
        rows = [
            {"id": one.id, "key": as_typed(key) if key else [], "error": one.error, "since": one.at}
            for key, one in found
        ]
        click.echo(json.dumps({"quarantine": rows, "more": more}))
        return
    for key, one in found:
        since = datetime.fromtimestamp(one.at, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
        click.echo("  ".join(filter(None, [one.id, as_option(key), f"since {since}", one.error])))
    if more:
        note(f"The first {len(found)} of {number} messages; --most shows more.")
    if not found:
        note("No message lies in quarantine.")


@click.command(short_help="Try a message in quarantine again.")
@click.argument("name")
@click.argument("id", required=False)
@click.option("--all", "all_", is_flag=True, help="All messages in quarantine under this limit.")
@place_options
def retry(name: str, id: str | None, all_: bool, url: str | None) -> None:
    """Try a message in quarantine again: the task takes its former place in the line."""
    for one in _recovered(name, id, all_, url, drop=False):
        click.echo(f"{one}: will be tried again")


@click.command(short_help="Forget a message in quarantine: its task will not run.")
@click.argument("name")
@click.argument("id", required=False)
@click.option("--all", "all_", is_flag=True, help="All messages in quarantine under this limit.")
@place_options
def drop(name: str, id: str | None, all_: bool, url: str | None) -> None:
    """Forget a message in quarantine for good. Its task will not run."""
    for one in _recovered(name, id, all_, url, drop=True):
        click.echo(f"{one}: was dropped, and will not run")


def _recovered(name: str, id: str | None, all_: bool, url: str | None, *, drop: bool) -> list[str]:
    """Try messages in quarantine again, or drop them, under all keys.

    :return: the ids of their tasks.
    :raises Failed: if no message of this id is in quarantine.
    """
    _one_or_all(id, all_)
    with plain_errors():
        room = room_at(url, name)
        there = {(key, one.id) for key, one in _quarantine(room, name) if all_ or one.id == id}
        done = [its for key, its in sorted(there) if room.recover(name, its, key, drop=drop)]
    if id and not done:
        raise Failed(f"no message of a task {id!r} lies in quarantine under {name!r}")
    if not done:
        note("No message lies in quarantine.")
    return done


def _one_or_all(id: str | None, all_: bool) -> None:
    """:raises click.UsageError: unless exactly one of the two is given."""
    if bool(id) == all_:
        raise click.UsageError("give the ID of a task, or --all")


@click.command(short_help="Take parked tasks out of their line: they will not run.")
@click.argument("name")
@click.argument("id", required=False)
@key_option
@click.option("--all", "all_", is_flag=True, help="All parked tasks of the line.")
@place_options
def cancel(name: str, id: str | None, key: tuple[str, ...], all_: bool, url: str | None) -> None:
    """Take a parked task, or all of them, out of the line for good. They will not run.

    The command names the tasks that were being let go at this moment, because these may run.
    """
    _one_or_all(id, all_)
    with plain_errors():
        room = room_at(url, name)
        if id:
            _cancel_one(room, name, id, encoded(key))
            return
        number, let_go = room.cancel_all(name, encoded(key))
        keys = 0 if key or number else room.keys([name], 0)[1]
    click.echo(f"{counted(number, 'task')} will not run{_see_keys(keys)}")
    for one in let_go:
        click.echo(f"{one}: was being let go, and may run")


def _cancel_one(room: Room, name: str, id: str, key: str) -> None:
    """:raises Failed: if the task may still run, or does not wait."""
    if room.cancel(name, id, key):
        click.echo(f"{id}: will not run")
    elif room.is_waiting(name, id, key):
        raise Failed(
            f"{id!r} was let go, or waits outside of the room, so it may run: revoke it instead"
        )
    else:
        under = f"{name!r} {as_option(key)}".strip()
        raise Failed(f"no task {id!r} waits under {under}")


COMMANDS = (status, parked, retry, drop, cancel)
