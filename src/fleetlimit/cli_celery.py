"""Adds `celery inspect throttled` and `celery fleetlimit` to the command `celery`.

`celery inspect` knows only the commands that are registered before it loads an app, and with `autodiscover_tasks()` it
imports no module with tasks. But it always imports the modules of the entry point `celery.commands`, to which this one
belongs. So this module must import little.
"""

from __future__ import annotations

from typing import Any

import click
from celery.worker.control import inspect_command

__all__ = ["command", "throttled"]


@inspect_command(  # type: ignore[untyped-decorator]  # Celery has no type hints
    args=[("name", str), ("key", str), ("page", int)], signature="[LIMIT [KEY|- [PAGE]]]"
)
def throttled(state: Any, **arguments: Any) -> dict[str, Any]:
    """Tasks that wait for a rate limit: how many wait and are parked, the oldest, the next due. With KEY `-` all keys,
    a hundred for each PAGE."""
    from fleetlimit.celery import control

    return control.throttled(state, **arguments)


@click.command(
    "fleetlimit",
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(arguments: tuple[str, ...], **_: Any) -> None:
    """Show and change the rate limits of a fleet."""
    from fleetlimit.cli import main

    celerys = click.get_current_context().parent
    app = celerys.params.get("app") if celerys else None
    main(list(arguments), prog_name="celery fleetlimit", obj=app)
