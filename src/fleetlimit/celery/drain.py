"""Empties the waiting rooms of an app, in a program that is not a worker."""

from __future__ import annotations

import threading
from typing import Any

from fleetlimit.celery.producers import BROKER_S, bounded
from fleetlimit.celery.releaser import Releaser
from fleetlimit.celery.rooms import former_rooms, own_room
from fleetlimit.celery.wiring import limiter_of, settings_of
from fleetlimit.errors import ConfigurationError, FleetlimitError
from fleetlimit.limiter import redis_store
from fleetlimit.store.parked import lanes_of, live_workers, parked_lines, quarantine
from fleetlimit.store.room import AT_ONCE, Room

__all__ = ["BrokerUnavailable", "Drain"]


class BrokerUnavailable(FleetlimitError):
    """The app's broker does not answer."""


class Drain:
    """Lets the tasks go that are parked for the broker of an app, at the limits' pace or all at once. Tasks in former
    places of the limits go at once, because nothing is counted there any more. A drain parks no tasks.

    :raises BrokerUnavailable: if the broker does not answer.
    :raises FleetlimitError: if the limits' Redis does not answer, or is not known.
    """

    def __init__(self, app: Any, *, at_once: bool = False) -> None:
        #: The errors of former places that do not answer. Tasks that are parked there stay.
        self.missed: list[str] = []
        self._at_once = at_once
        _check_broker(app)
        if not redis_store(limiter_of(app).store):
            raise ConfigurationError("this app has no waiting room: its limits are not in Redis")
        own = own_room(app)
        if own is None:
            raise BrokerUnavailable("the app's broker does not say which one it is")
        own.store.identity()  # without its answer, a former place could not be distinguished from it
        self._own = own
        self._former = list(former_rooms(app, own, lambda error: self.missed.append(str(error))))
        lead_us = AT_ONCE if at_once else settings_of(app).lead_us
        self._releasers = [_releaser(app, own, lead_us)]
        self._releasers += [_releaser(app, room, AT_ONCE) for room in self._former]
        self._pauses = [0.0 for _ in self._releasers]

    @property
    def workers(self) -> int:
        """How many workers with limits there are, on all brokers."""
        return live_workers(self._own.store)

    @property
    def parked(self) -> int:
        """How many tasks are parked for this app's broker."""
        return sum(room.parked_for(room.broker).parked for room in [self._own, *self._former])

    @property
    def quarantined(self) -> int:
        """How many messages lie in quarantine, of all limits."""
        rooms = [self._own, *self._former]
        return sum(sum(quarantine(room.store).values()) for room in rooms)

    @property
    def away(self) -> bool:
        """Whether the broker stopped answering."""
        return any(one.away for one in self._releasers)

    @property
    def silent(self) -> list[str]:
        """Queues with parked tasks from which no worker with limits takes tasks."""
        lines = parked_lines(self._own.store, [self._own.broker])
        lanes = lanes_of(self._own.store, lines, self._own.broker)
        return sorted({lane.queue for lane in lanes if lane.parked and lane.gone})

    def look(self) -> float:
        """Let the due tasks go.

        :return: seconds until the next look.
        """
        for room in [*([self._own] if self._at_once else []), *self._former]:
            room.wake()  # makes all lines due now
        self._pauses = [
            one.look(pause) for one, pause in zip(self._releasers, self._pauses, strict=True)
        ]
        return min(self._pauses)

    def close(self) -> None:
        for one in self._releasers:
            one.stop()
        for room in self._former:
            room.store.close()


def _releaser(app: Any, room: Room, lead_us: int) -> Releaser:
    ready = threading.Event()
    ready.set()
    return Releaser(app, lambda: room, ready, lead_us=lead_us)


def _check_broker(app: Any) -> None:
    """:raises BrokerUnavailable: if the broker does not answer. The text shows no URL, because a URL may hold a
    password."""
    try:
        with app.connection_for_write(transport_options=bounded(app)) as connection:
            connection.connect_timeout = BROKER_S
            connection.ensure_connection(max_retries=1, timeout=BROKER_S)
    except Exception as error:  # whatever the transport raises
        raise BrokerUnavailable(f"the app's broker does not answer: {error}") from error
