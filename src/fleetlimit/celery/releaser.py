"""Lets parked tasks go when their turn comes: a thread in each worker's main process.

Nobody is elected. A releaser that finds nothing to do although something was due (another one was
faster) looks less often, up to once a second; one that finds work looks again when the next is due.
So one or two do the work, and the others notice within a second when they are gone.
"""

from __future__ import annotations

import contextlib
import os
import random
import select
import threading
import time
from typing import Any

from celery.utils.log import get_logger
from kombu.exceptions import OperationalError

from fleetlimit.celery.config import settings_of
from fleetlimit.celery.message import unpacked
from fleetlimit.celery.requeue import let_go
from fleetlimit.errors import FleetlimitError, StateError
from fleetlimit.store.keyspace import name_and_key
from fleetlimit.store.room import Released, Room

__all__ = ["Releaser", "ring", "running"]

logger = get_logger(__name__)

#: Seconds between two looks: at most, and at least (what is due within it goes in one batch).
SLOWEST, FASTEST = 1.0, 0.01
#: A line with foreign data is looked at again after this.
_BAD_LINE_S = 30.0
#: Redis's clock against this host's: a greater difference from one look to the next is a step.
_STEP_US = 2_000_000


#: Where a pool process says that it parked a task whose turn is near.
_bell: tuple[int, int] | None = None


def running() -> bool:
    """Whether this worker lets parked tasks go: one that does not must not park any."""
    return _bell is not None


def ring() -> None:
    """Wake this worker's releaser, from any of its processes."""
    bell = _bell
    if bell:
        with contextlib.suppress(OSError):  # full: it wakes anyway
            os.write(bell[1], b"!")


class Releaser:
    """Made before the pool forks, so that its processes know the bell; started after."""

    def __init__(self, app: Any, room: Room) -> None:
        global _bell
        self._app, self._room = app, room
        self._lead_us = settings_of(app).lead_us
        self._stopped = False
        self._expected_us = 0
        self._difference_us: int | None = None
        _bell = self._bell = os.pipe()
        for end in self._bell:
            os.set_blocking(end, False)
        self._thread = threading.Thread(target=self._run, name="fleetlimit-releaser", daemon=True)

    def start(self, *_: Any) -> None:
        self._thread.start()

    def stop(self, *_: Any) -> None:
        global _bell
        self._stopped = True
        with contextlib.suppress(OSError):
            os.write(self._bell[1], b"!")
        self._thread.join(5)
        if _bell == self._bell:
            _bell = None
        if not self._thread.is_alive():
            for end in self._bell:
                os.close(end)

    def _run(self) -> None:
        pause = 0.0
        while not self._stopped:
            try:
                if select.select([self._bell[0]], [], [], pause)[0]:
                    os.read(self._bell[0], 4096)
                pause = self.look(pause)
            except FleetlimitError as error:
                logger.debug("waiting room: %s", error)
                pause = SLOWEST
            except Exception:
                logger.exception("waiting room: unexpected; tries again")
                pause = SLOWEST

    def look(self, pause: float) -> float:
        """Let go what is due; seconds until the next look."""
        due = self._room.due_lines()
        if self._stepped(due.now_us):
            self._room.wake_all()
            self._difference_us = None
            return FASTEST
        # Was it done by another one, before we came?
        lost = bool(self._expected_us) and due.next_us > self._expected_us
        next_us = due.next_us if not due.lines else 0
        for line in due.lines:
            try:
                released = self._room.release(line, self._lead_us)
            except StateError as error:  # one bad line must not hold up the others
                logger.warning("waiting room: %s; looks again in %g s", error, _BAD_LINE_S)
                self._room.postpone(line, _BAD_LINE_S)
                continue
            self._publish(line, released)
            lost = lost and not released.messages
            if released.next_us:
                next_us = min(next_us or released.next_us, released.next_us)
        self._expected_us = next_us
        if not next_us:
            return SLOWEST
        sleep = max((next_us - due.now_us) / 1e6, FASTEST)
        if lost:
            sleep = max(sleep, min(2 * pause, SLOWEST) * random.uniform(0.7, 1.0))
        return min(sleep, SLOWEST)

    def _stepped(self, now_us: int) -> bool:
        """Whether Redis's clock was set, or another server took over with another one: then what was
        planned by the old one may lie far ahead."""
        difference = now_us - time.monotonic_ns() // 1000
        if self._difference_us is not None and abs(difference - self._difference_us) > _STEP_US:
            return True
        self._difference_us = difference
        return False

    def _publish(self, line: str, released: Released) -> None:
        done = []
        for id, seen_us, text in released.messages:
            try:
                let_go(self._app, unpacked(text), seen_us, released.copy, name_and_key(line))
            except (OperationalError, OSError) as error:
                # The broker is away: the claims run out, and all are tried again.
                logger.debug("%s could not be let go: %r", id, error)
                break
            except Exception as error:
                logger.warning("%s cannot be let go, and is tried again: %r", id, error)
                continue
            done.append(id)
        if done:
            self._room.confirm(line, released.copy, done)
