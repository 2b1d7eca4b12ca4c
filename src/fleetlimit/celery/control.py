"""The answer to `celery -A app inspect throttled [LIMIT [KEY]]`: how many tasks wait. (`cli_celery.py` registers the
command.)"""

from __future__ import annotations

import dataclasses
from typing import Any

from fleetlimit.celery.declared import limits_of
from fleetlimit.celery.rooms import room_of
from fleetlimit.celery.wiring import limiter_of
from fleetlimit.errors import FleetlimitError
from fleetlimit.limiter import redis_store
from fleetlimit.store.names import warning_of

__all__ = ["throttled"]


#: So many keys are in one answer.
_PAGE = 100


def throttled(
    state: Any, name: str | None = None, key: str | None = None, page: int = 1, **_: Any
) -> dict[str, Any]:
    """What a worker knows of the tasks that wait; see `fleetlimit.cli_celery.throttled`."""
    tasks = state.app.tasks.values()
    names = (
        [name] if name else sorted({one.limit.name for task in tasks for one in limits_of(task)})
    )
    limiter = limiter_of(state.app)
    key = None if key == "-" else key
    try:
        found: dict[str, Any] = {
            one: dataclasses.asdict(limiter.status(one, key)) for one in names if page == 1
        }
        inner = redis_store(limiter.store)
        if name and inner and (warning := warning_of(inner, name)):
            found["error"] = warning
        room = room_of(state.app)
        if room and key is None:  # add the keys under which tasks are parked
            keys, number = room.keys(names, _PAGE, (page - 1) * _PAGE)
            found |= {
                f"{one}:{its}": dataclasses.asdict(room.status(one, its)) for one, its in keys
            }
            if number > page * _PAGE:
                found["more"] = (
                    f"{number - page * _PAGE} more keys of {number}: inspect throttled "
                    f"{name or 'LIMIT'} - {page + 1}"
                )
        return found
    except FleetlimitError as error:
        return {"error": str(error)}
