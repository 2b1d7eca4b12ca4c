"""The waiting rooms that a worker serves: its own, and those in former places of the limits in which tasks were
left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from celery.utils.log import get_logger

from fleetlimit.celery.broker import broker_of
from fleetlimit.celery.source import Source, sources_of
from fleetlimit.celery.wiring import limiter_of, settings_of
from fleetlimit.errors import FleetlimitError
from fleetlimit.limiter import redis_store
from fleetlimit.store.redis import RedisStore
from fleetlimit.store.room import Room

__all__ = ["former_rooms", "own_room", "room_of"]

logger = get_logger(__name__)


def own_room(app: Any) -> Room | None:
    """The room in the limits' Redis of an app, whether or not the app parks tasks there. None if the store has no room,
    or if the broker's name is not known."""
    store, broker = redis_store(limiter_of(app).store), broker_of(app)
    return Room(store, broker) if store and broker else None


def room_of(app: Any) -> Room | None:
    """The waiting room of an app; None if it is off, or if there can be none."""
    return own_room(app) if settings_of(app).waiting_room else None


def _note(error: FleetlimitError) -> None:
    logger.debug("a former place of the limits does not answer: %s", error)


def former_rooms(
    app: Any, own: Room | None, missed: Callable[[FleetlimitError], None] = _note
) -> Iterator[Room]:
    """Rooms in former places of the limits in which tasks of this broker are parked.

    :param missed: is called with the error if such a place does not answer.
    """
    # While the own Redis is away, it is not known which other place is the same one. The next start looks again.
    try:
        here = {own.store.identity()} if own else set()
    except FleetlimitError as error:
        missed(error)
        return
    for source in [*sources_of(app), *map(Source, settings_of(app).former_urls)]:
        store = RedisStore(source.redis, key_prefix=source.key_prefix or "")
        try:
            place = store.identity()
            if place not in here:
                here.add(place)
                room = Room(store, broker_of(app))
                if room.broker and room.parked_for(room.broker).parked:
                    yield room
                    continue
        except FleetlimitError as error:
            missed(error)
        store.close()
