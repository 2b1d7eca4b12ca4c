"""`celery -A app inspect throttled [LIMIT [KEY]]`: who waits, asked of the workers."""

from __future__ import annotations

import dataclasses
from typing import Any

from celery.worker.control import inspect_command

from fleetlimit.celery.config import limiter_of, room_of
from fleetlimit.celery.gate import limits_of
from fleetlimit.errors import FleetlimitError

__all__ = ["throttled"]


@inspect_command(args=[("name", str), ("key", str)], signature="[LIMIT [KEY]]")  # type: ignore[untyped-decorator]  # Celery has no type hints
def throttled(
    state: Any, name: str | None = None, key: str | None = None, **_: Any
) -> dict[str, Any]:
    """Tasks that wait for a rate limit: how many, parked, the oldest, the next due."""
    tasks = state.app.tasks.values()
    names = (
        [name] if name else sorted({one.limit.name for task in tasks for one in limits_of(task)})
    )
    limiter = limiter_of(state.app)
    try:
        found = {one: limiter.status(one, key) for one in names}
        room = room_of(state.app)
        if room and key is None:  # and the keys under which tasks are parked
            found |= {f"{one}:{its}": room.status(one, its) for one, its in room.keys(names)}
        return {line: dataclasses.asdict(status) for line, status in found.items()}
    except FleetlimitError as error:
        return {"error": str(error)}
