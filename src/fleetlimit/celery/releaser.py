"""Lets parked tasks go when their turn comes, in a thread in each worker's main process.

There is no leader election. An index that all releasers share says which lines are due, and each line that is due is
handed to one of them. A releaser that finds nothing although a line was due (because another one was faster) looks less
often, but at least once a second. A releaser that finds work looks again when the next line is due. So one or two
releasers do the work, and if these die, the others notice it within a second.
"""

from __future__ import annotations

import contextlib
import os
import random
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from celery.utils.log import get_logger

from fleetlimit.celery.broker import identify
from fleetlimit.celery.message import UnreadableError, unpacked
from fleetlimit.celery.publisher import BrokerAway, Parcel, Publisher
from fleetlimit.celery.runtime import runtime_of
from fleetlimit.celery.wiring import settings_of
from fleetlimit.errors import FleetlimitError, StateError
from fleetlimit.store.base import task_id
from fleetlimit.store.keyspace import name_and_key
from fleetlimit.store.mend import mend
from fleetlimit.store.room import Fate, Released, Room

__all__ = ["Releaser", "ring", "running"]

logger = get_logger(__name__)

#: Seconds between two looks: at most, and at least (tasks that are due within that time go in one batch).
SLOWEST, FASTEST = 1.0, 0.01
#: A line with foreign data is looked at again after this.
_BAD_LINE_S = 30.0
#: So many messages that are logged only once are remembered.
_MOST_TOLD = 1_000
#: If the difference between Redis's clock and this host's changes by more than this between two looks, a clock was set.
_STEP_US = 2_000_000
#: How many lines are handled together: their messages are claimed, published and confirmed in one batch.
_BITE = 32
#: Seconds between two checks whether the broker is still the same, and whether there are rooms that nobody serves.
_CHECK_S = 60.0


def running(app: Any) -> bool:
    """Whether a worker of this app lets parked tasks go here. If it does not, it must not park any."""
    return bool(runtime_of(app).bells)


def ring(app: Any) -> None:
    """Wake the releasers of this app's workers, from any of their processes."""
    for bell in tuple(runtime_of(app).bells):
        with contextlib.suppress(OSError):  # the pipe is full, so the releaser wakes anyway
            # not os.write: that of eventlet waits, and refuses two writers at once
            os.writev(bell[1], [b"!"])


class Releaser:
    """A thread that lets parked tasks go. It is made before the pool forks, so that the pool's processes inherit its
    bell (the pipe that wakes it), and it is started after.

    :param find_room: gives the room, or None while the broker's name is not known.
    :param ready: is set once the worker's own consumer has declared its queues. Nothing is published before.
    :param revoked: the ids of the tasks that this worker knows to be revoked, or None.
    :param lead_us: how long before its turn a task is let go at most. With `room.AT_ONCE` all tasks are let go at once.
    """

    def __init__(
        self,
        app: Any,
        find_room: Callable[[], Room | None],
        ready: threading.Event,
        revoked: Any = None,
        lead_us: int | None = None,
    ) -> None:
        settings = settings_of(app)
        self._runtime = runtime_of(app)
        self._label = "releaser" if lead_us is None else "releaser of a former place of the limits"
        self._app, self._find_room, self._ready, self._revoked = app, find_room, ready, revoked
        self._found_room: Room | None = None
        self._lead_us = settings.lead_us if lead_us is None else lead_us
        self._secret = settings.secret
        self._publisher, self._away = Publisher(app), False
        self._stopped = False
        self._expected_us = 0
        self._difference_us: int | None = None
        self._told: set[str] = set()
        self._mirrored: set[str] = set()
        self._mirror_at = 0.0
        self._check_at = time.monotonic() + _CHECK_S
        self._former: set[str] = set()  # names that the broker had before
        self._bell = os.pipe()
        for end in self._bell:
            os.set_blocking(end, False)
        if lead_us is None:
            self._runtime.bells.append(self._bell)
        self._thread = threading.Thread(target=self._run, name="fleetlimit-releaser", daemon=True)

    def start(self, *_: Any) -> None:
        self._thread.start()

    def halt(self, **_: Any) -> None:
        """Let no more tasks go. This worker ends, and would fetch them only to give them back."""
        self._stopped = True
        with contextlib.suppress(OSError):
            os.writev(self._bell[1], [b"!"])

    def stop(self, *_: Any) -> None:
        self.halt()
        if self._thread.ident:
            self._thread.join(5)
        if self._bell in (bells := self._runtime.bells):
            bells.remove(self._bell)
        if not self._thread.is_alive():
            self._publisher.close()
            for end in self._bell:
                os.close(end)

    def _run(self) -> None:
        pause = 0.0
        while not self._stopped:
            try:
                if select.select([self._bell[0]], [], [], pause)[0]:
                    os.read(self._bell[0], 4096)
                pause = self.look(pause) if self._ready.is_set() else 0.1
                self._runtime.note(self._label, None)
            except StateError as error:
                self._say_once(str(error))
                pause = SLOWEST
            except FleetlimitError as error:
                logger.debug("waiting room: %s", error)
                self._runtime.note(self._label, error)
                pause = SLOWEST
            except Exception:
                logger.exception("waiting room: unexpected error; the worker tries again")
                pause = SLOWEST
        if self._found_room:
            with contextlib.suppress(FleetlimitError):
                self._mirror_revoked(again=True)
        self._publisher.close()

    def look(self, pause: float) -> float:
        """Let the due tasks go.

        :return: seconds until the next look.
        """
        try:
            return self._look(pause)
        except StateError:
            if self._found_room and mend(self._room.store, self._room.broker):
                return FASTEST
            raise

    def _look(self, pause: float) -> float:
        self._found_room = self._found_room or self._find_room()
        if not self._found_room:
            return SLOWEST
        self._mirror_revoked()
        if time.monotonic() >= self._check_at:
            self._check()
        due = self._room.due_lines(serves=not self._away)
        if self._stepped(due.now_us):
            self._room.wake()
            self._difference_us = None
            return FASTEST
        # Whether another releaser did the expected work before this one came.
        lost = bool(self._expected_us) and not due.lines and due.now_us >= self._expected_us
        self._expected_us = due.next_us
        if due.lines:
            self.serve(due.lines)
            return SLOWEST if self._away else 0.0  # there may be more
        if not due.next_us:
            return SLOWEST
        sleep = max((due.next_us - due.now_us) / 1e6, FASTEST)
        if lost:
            sleep = max(sleep, min(2 * pause, SLOWEST) * random.uniform(0.7, 1.0))
        return min(sleep, SLOWEST)

    @property
    def away(self) -> bool:
        """Whether the broker did not answer the last time."""
        return self._away

    @property
    def _room(self) -> Room:
        assert self._found_room is not None
        return self._found_room

    def _stepped(self, now_us: int) -> bool:
        """Whether Redis's clock was set, or another server with another clock took over. Visits that were planned by
        the old clock may then lie far ahead."""
        difference = now_us - time.monotonic_ns() // 1000
        if self._difference_us is not None and abs(difference - self._difference_us) > _STEP_US:
            return True
        self._difference_us = difference
        return False

    # --- what is due ------------------------------------------------------------------------------

    def serve(self, lines: Sequence[str]) -> int:
        """Let the due tasks of these lines go. The store claims the messages of the next batch of lines while the
        broker takes those of one.

        :return: the number of published tasks.
        """
        published, left = 0, deque(lines[at : at + _BITE] for at in range(0, len(lines), _BITE))
        claimed = self._begin(left)
        while claimed:
            fates = [fate for one in claimed().items() if (fate := self._claimed(*one))]
            ids = [task_id(ticket) for one in fates for ticket, _, _ in one.released.messages]
            revoked = self._room.revoked(ids)
            claimed = self._begin(left)
            published += self._publish(fates, revoked)
            if became := [one for one in fates if one.became]:
                self._tell(self._room.settle(became))
            if self._away or self._stopped:
                left.clear()
        return published

    def _begin(
        self, bites: deque[Sequence[str]]
    ) -> Callable[[], dict[str, Released | StateError]] | None:
        return self._room.begin_release(bites.popleft(), self._lead_us) if bites else None

    def _claimed(self, line: str, released: Released | StateError) -> Fate | None:
        if isinstance(released, StateError):  # one bad line must not hold up the others
            self._say_once(f"{released}; the worker looks again every {_BAD_LINE_S:g} s")
            self._room.postpone(line, _BAD_LINE_S)
            return None
        if released.newer:
            self._say_once(
                f"{line} holds tasks that a later version of fleetlimit parked; they stay parked"
            )
        if released.unreadable:
            self._tell({line: released.unreadable})
        return Fate(released)

    def _publish(self, fates: Sequence[Fate], revoked: set[str]) -> int:
        """Publish all messages, and note the result of each."""
        if self._stopped:
            return 0
        parcels: dict[tuple[int, str], Parcel] = {}
        for n, one in enumerate(fates):
            for ticket, seen_us, text in one.released.messages:
                try:
                    parcels[n, ticket] = self._parcel(one.released, ticket, seen_us, text, revoked)
                except UnreadableError as error:
                    one.became[ticket] = str(error), True
        try:
            if parcels or self._away:
                self._publisher.publish(list(parcels.values()))
            self._away = False
        except BrokerAway as error:
            logger.debug("waiting room: the broker does not answer: %s", error)
            self._away = True
        for (n, ticket), parcel in parcels.items():
            if parcel.error is None:
                fates[n].became[ticket] = None
            elif not self._away:
                fates[n].became[ticket] = parcel.error, True
            elif not parcel.sent:  # if it was sent it may have arrived, and its claim just expires
                fates[n].became[ticket] = parcel.error, False
        return sum(parcel.error is None for parcel in parcels.values())

    def _parcel(
        self, released: Released, ticket: str, seen_us: int, text: str, revoked: set[str]
    ) -> Parcel:
        message = unpacked(text, self._secret)
        message.ticket, message.revoked = ticket, message.id in revoked
        line = name_and_key(released.line)
        return Parcel(message, message.waiting(seen_us, line, copy=str(released.copy)))

    def _say_once(self, text: str) -> None:
        if text not in self._told and len(self._told) < _MOST_TOLD:
            self._told.add(text)
            logger.error("waiting room: %s", text)

    def _tell(self, quarantined: dict[str, int]) -> None:
        for line, number in quarantined.items():
            logger.error(
                "waiting room: %d messages of %s could not be let go and lie in quarantine: "
                "`fleetlimit parked %s --bad` shows them", number, line, name_and_key(line)[0],
            )  # fmt: skip

    # --- other duties -----------------------------------------------------------------------------

    def _mirror_revoked(self, *, again: bool = False) -> None:
        """Copy the revoked ids to Redis. Workers keep them in memory only, and a parked task must stay revoked when all
        workers restart."""
        if self._revoked is None or not (again or time.monotonic() >= self._mirror_at):
            return
        self._mirror_at = time.monotonic() + SLOWEST
        with contextlib.suppress(RuntimeError):  # the set grew meanwhile; the next call copies it
            if new := {id for id in self._revoked if isinstance(id, str)} - self._mirrored:
                self._room.remember_revoked(list(new))
                self._mirrored |= new

    def _check(self) -> None:
        self._check_at = time.monotonic() + _CHECK_S
        broker = identify(self._app)
        if broker and broker != self._room.broker:  # its database was emptied, or it has moved
            logger.warning(
                "waiting room: the broker's name is %s now, and was %s", broker, self._room.broker
            )
            self._former = (self._former | {self._room.broker}) - {broker}
            self._found_room = Room(self._room.store, broker)
        for former in self._former:  # again, for another worker may not know the name yet
            self._room.adopt(former)
        for one in self._room.orphans():
            logger.warning(
                "waiting room: %d tasks are parked for the broker %s, which no worker serves: "
                "start its workers, or give the tasks to this worker's broker with `fleetlimit adopt`",
                one.parked, one.broker,
            )  # fmt: skip
