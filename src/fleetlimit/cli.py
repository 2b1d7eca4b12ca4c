"""The command `fleetlimit`."""

from __future__ import annotations

import json
import math
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from fleetlimit import cli_move, cli_room
from fleetlimit.cli_common import MARGIN, Failed
from fleetlimit.cli_common import limiter_at as _limiter
from fleetlimit.cli_common import place_options as _place
from fleetlimit.cli_common import plain_errors as _plain_errors
from fleetlimit.errors import ConfigurationError
from fleetlimit.limit import ALGORITHMS, RateLimit

if TYPE_CHECKING:
    from fleetlimit.demo.run import Outcome, Plan

__all__ = ["main"]

#: The demo's small API cannot answer more calls per second than this. A period shorter than a tenth of a second shows
#: the machine's scheduling and not the limit.
_FASTEST, _SHORTEST = 200, 0.1
_LONGEST = 3600


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="fleetlimit")
def main() -> None:
    """One rate limit for a whole Celery fleet, kept in Redis."""


for _command in (*cli_room.COMMANDS, *cli_move.COMMANDS):
    main.add_command(_command)


def _units(ctx: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    """:raises click.BadParameter: for a text that is no whole number."""
    if value is None:
        return None
    with suppress(ValueError):
        return int(value)
    try:
        rate = RateLimit.parse(value, name="rate")
    except ConfigurationError:
        raise click.BadParameter(f"{value!r} is not a whole number") from None
    raise click.BadParameter(
        f"{value!r} is Celery's form of a rate; write {rate.limit} --per {rate.per:g}"
    )


_force = click.option(
    "--force", is_flag=True, help="Do it even if nobody has announced this limit."
)


@main.command(short_help="Change a limit's numbers for the whole fleet, at once.")
@click.argument("name")
@click.argument("limit", callback=_units, required=False)
@click.option("--per", type=float, help="The period, in seconds; needed with LIMIT.")
@click.option("--burst", type=int, help="Units that may start at one instant; 1 by default.")
@click.option(
    "--margin", type=MARGIN, help="Share of the period kept free, or `auto` (the default)."
)  # fmt: skip
@click.option(
    "--algorithm", type=click.Choice(ALGORITHMS), help="How units are counted; by default as in the code."
)  # fmt: skip
@click.option("--offset", type=float, help="When windows begin after the epoch, in seconds.")
@click.option("--tz", help="The time zone at whose midnight fixed windows begin.")
@_force
@_place
def configure(
    name: str, limit: int | None, per: float | None, burst: int | None, margin: float | str | None,
    algorithm: str | None, offset: float | None, tz: str | None, force: bool, url: str | None,
) -> None:  # fmt: skip
    """Change a limit's numbers for the whole fleet, at once and until the next change.

    The options burst, margin, offset and tz that you leave out get their defaults, not the values in the code.
    Without LIMIT the numbers in the code apply again.
    """
    numbers: dict[str, Any] = {"per": per, "burst": burst, "margin": margin}
    numbers |= {"algorithm": algorithm, "offset": offset, "tz": tz}
    given = [option for option, value in numbers.items() if value is not None]
    if limit is None and given:
        raise click.UsageError(f"--{given[0]} without LIMIT: say how many units per period")
    if limit is not None and per is None:
        raise click.UsageError("LIMIT without --per: say how long the period is")
    with _plain_errors():
        _limiter(url).configure(name, limit, **numbers, force=force)
    more = [f"burst {burst or 1}", algorithm or "the code's algorithm", *([tz] if tz else [])]
    click.echo(
        f"{name}: {'as in the code' if limit is None else f'{limit} per {per:g} s, ' + ', '.join(more)}"
    )


@main.command(short_help="Close a limit for the whole fleet, for some seconds.")
@click.argument("name")
@click.argument("seconds", type=float)
@click.option(
    "--force", is_flag=True, help="Do it even if this shortens a pause, or if nobody has announced this limit."
)  # fmt: skip
@_place
def pause(name: str, seconds: float, force: bool, url: str | None) -> None:
    """Close a limit for the whole fleet: nothing starts for so many SECONDS. A pause that already lasts longer
    is not shortened."""
    with _plain_errors():
        lasts = _limiter(url).pause(name, seconds, force=force)
    if lasts > seconds + 0.001:
        click.echo(
            f"{name}: stays paused for {lasts:.0f} s, because an earlier pause lasts longer (--force shortens it)"
        )
    else:
        click.echo(f"{name}: paused for {seconds:.15g} s")


@main.command()
@click.argument("name")
@_force
@_place
def resume(name: str, force: bool, url: str | None) -> None:
    """End a pause."""
    with _plain_errors():
        _limiter(url).resume(name, force=force)
    click.echo(f"{name}: is no longer paused")


@main.command(short_help="See a fleet keep a limit, in about a minute.")
@click.option("--limit", default=30, show_default=True, help="Calls the API allows per period.")
@click.option("--per", default=3.0, show_default=True, help="The period, in seconds.")
@click.option("--tasks", default=150, show_default=True, help="Length of the backlog.")
@click.option("--workers", default=3, show_default=True, help="Celery workers to start.")
@click.option("--skip-baselines", is_flag=True, help="Run fleetlimit only.")
@click.option(
    "--picture", default="fleetlimit-demo.png", show_default=True, help="Where to write the PNG.",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
)  # fmt: skip
@click.option("--no-picture", is_flag=True, help="Write no picture.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, and nothing else.")
def demo(
    limit: int, per: float, tasks: int, workers: int, skip_baselines: bool, picture: Path,
    no_picture: bool, as_json: bool,
) -> None:  # fmt: skip
    """Watch a fleet keep a limit, with real workers and a real API, in about a minute.

    The demo starts a Redis, an HTTP API that answers 429 above its limit, and Celery workers, all on
    this machine. It sends a backlog, and compares fleetlimit with Celery's own rate_limit and with
    plain retries. The exit status is 1 if fleetlimit broke its promise: if a window was above the
    limit, a call was refused, or a task was not done.
    """
    _check(limit, per, tasks, workers)
    target = None if no_picture else picture
    if target is not None and not os.access(target.absolute().parent, os.W_OK):
        raise click.BadParameter(f"cannot write to {target.parent}", param_hint="'--picture'")
    _need_extras()
    from fleetlimit.demo.run import Plan

    plan = Plan(limit, per, tasks, workers, baselines=not skip_baselines)
    try:
        kept = _show(plan, target, as_json)
    except KeyboardInterrupt:
        click.echo("Interrupted; everything that was started is ended.", err=True)
        sys.exit(130)
    sys.exit(0 if kept else 1)


def _check(limit: int, per: float, tasks: int, workers: int) -> None:
    """:raises click.UsageError: for numbers that cannot be run, naming the option."""
    try:
        RateLimit("demo", limit, per)
    except ConfigurationError as error:
        raise click.UsageError(f"--limit and --per: {error}") from None
    for option, value, most in (("tasks", tasks, 100_000), ("workers", workers, 16)):
        if not 1 <= value <= most:
            raise click.BadParameter(f"{value} is not from 1 to {most}", param_hint=f"'--{option}'")
    if per < _SHORTEST:
        raise click.BadParameter(f"{per:g} is below {_SHORTEST:g} s", param_hint="'--per'")
    if limit / per > _FASTEST:
        raise click.UsageError(
            f"--limit {limit} per {per:g} s is {limit / per:g} calls a second; "
            f"the demo's API can answer {_FASTEST}"
        )
    if (seconds := tasks * per / limit) > _LONGEST:
        raise click.UsageError(
            f"--tasks {tasks} at {limit} per {per:g} s take {math.ceil(seconds)} s; "
            f"the demo runs at most {_LONGEST} s"
        )


def _need_extras() -> None:
    """:raises Failed: if the packages of the extra `demo` are not installed. Nothing has been started then."""
    try:
        import matplotlib  # noqa: F401
        import rich  # noqa: F401
    except ImportError as error:
        raise Failed(
            f"the demo needs {error.name}, which is not installed: pip install 'fleetlimit[demo]'"
        ) from None


def _show(plan: Plan, picture: Path | None, as_json: bool) -> bool:
    """Run the demo and show the results.

    :return: whether fleetlimit kept its promise.
    """
    from fleetlimit.demo.run import document
    from fleetlimit.demo.view import console_for, screen

    outcomes = _play(plan, sys.stderr if as_json else sys.stdout, quiet=as_json)
    written = _draw(plan, outcomes, picture) if picture is not None else None
    if as_json:
        click.echo(json.dumps({**document(plan, outcomes), "picture": written}, indent=2))
    else:
        console_for(sys.stdout).print(screen(plan, outcomes, written))
    return outcomes[0].result.promise_kept


def _draw(plan: Plan, outcomes: Sequence[Outcome], picture: Path) -> str | None:
    """Write the picture. If that fails, print the reason on stderr and return None, because the numbers matter more."""
    from fleetlimit.demo.picture import draw

    try:
        draw(plan, outcomes, picture)
    except OSError as error:
        click.echo(f"No picture: {error}", err=True)
        return None
    return str(picture)


def _play(plan: Plan, stream: IO[str], quiet: bool) -> Sequence[Outcome]:
    """Run all variants. No process that was started is left behind, whatever happens.

    :raises Failed: if something did not start.
    """
    import redis

    from fleetlimit.demo.measure import FleetError
    from fleetlimit.demo.run import play
    from fleetlimit.demo.view import console_for, watching

    before = signal.signal(signal.SIGTERM, _terminated)
    try:
        with watching(plan, console_for(stream), quiet) as watcher:
            return play(plan, watcher)
    except (ConfigurationError, FleetError, redis.RedisError, OSError) as error:
        raise Failed(str(error)) from error
    finally:
        signal.signal(signal.SIGTERM, before)


def _terminated(number: int, frame: Any) -> None:
    raise SystemExit(128 + number)  # unwinds, so that the processes end as with Ctrl-C


@main.command(short_help="Try limits on a page in your browser.")
@click.option(
    "--port",
    default=8765,
    show_default=True,
    help="The port to listen on; 0 chooses a free one.",
    type=click.IntRange(0, 65535),
)
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
def lab(port: int, host: str) -> None:
    """Try limits on a page in your browser, with every algorithm, on a simulated clock."""
    try:
        from fleetlimit.lab.server import listen, serve
    except ImportError as error:
        missing = (error.name or "").split(".")[0]
        raise Failed(
            f"the lab needs {missing}, which is not installed: pip install 'fleetlimit[lab]'"
        ) from None
    try:
        bound = listen(host, port)
    except OSError as error:
        raise Failed(f"cannot listen on {host}, port {port}: {error.strerror}") from None
    shown = f"[{host}]" if ":" in host else host
    click.echo(f"http://{shown}:{bound.getsockname()[1]}/  (Ctrl-C ends it)")
    with suppress(KeyboardInterrupt):  # (a background job of a shell gets no Ctrl-C)
        serve(bound, host)
    click.echo("Ended.")


if __name__ == "__main__":
    main()
