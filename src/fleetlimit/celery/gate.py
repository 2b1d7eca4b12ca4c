"""The decision for one delivery: start, sleep a moment and start, or go back into the queue."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NoReturn

from celery import _state
from celery.exceptions import Ignore, Reject, SoftTimeLimitExceeded
from celery.utils.log import get_logger

from fleetlimit import standin
from fleetlimit.celery.binding import Binding
from fleetlimit.celery.config import LARGEST_PARKED, Settings, broker_of, limiter_of, settings_of
from fleetlimit.celery.message import Message, copy_of, expires_in_us, restore, seen_us
from fleetlimit.celery.origin import origin_of
from fleetlimit.celery.punctual import Punctuality
from fleetlimit.celery.releaser import ring, running
from fleetlimit.celery.requeue import cannot_wait_in_queue, put_back, quit_delivery, show_pending
from fleetlimit.celery.signals import announce
from fleetlimit.errors import ConfigurationError, StoreUnavailable
from fleetlimit.limit import RateLimit
from fleetlimit.limiter import merged
from fleetlimit.store.base import Outcome, Spend, Store, Ticket, Verdict

__all__ = ["MARK", "Mark", "enter", "enter_function", "limits_of", "mark_of", "plan", "warm"]

logger = get_logger(__name__)

#: A start is late when it lags by a tenth of what the margin allows, and this.
_LATE_US = 1_000
#: A report takes time itself, on a host that is late: then the rest of it is reported too.
_REPORTS = 3

#: A releaser with nothing to do may look only after this, and must be told of a nearer turn.
_NEAR_US = 1_500_000
#: A task that its broker will not take back waits here at most so long, where it can still be rejected.
_HOLD_S = 30.0

MARK = "__fleetlimit__"
#: On the request while its body runs. A task that calls itself inside its own body gets a request
#: that inherits it, and so does not ask (or go back into the queue) a second time.
_ENTERED = "_fleetlimit_entered"
_PLAN = "_fleetlimit_plan"


@dataclass
class Mark:
    """On a limited function: its limits, and whether a task is known that has the hook for them."""

    bindings: list[Binding]
    owned: bool = False


@dataclass
class Plan:
    """A task's limits, and how its arguments are called."""

    bindings: tuple[Binding, ...]
    signature: inspect.Signature

    def spends(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Spend]:
        """What a call asks for. Errors as `Binding.spend`."""
        if self._same is not None:
            return self._same
        return merged([one.spend(self.signature, args, kwargs) for one in self.bindings])

    @cached_property
    def _same(self) -> list[Spend] | None:
        """What every call asks for, where no key or cost depends on its arguments."""
        if any(one.key is not None or not isinstance(one.cost, int) for one in self.bindings):
            return None
        return merged([one.spend(self.signature, (), {}) for one in self.bindings])


def mark_of(function: Any) -> Any:
    return getattr(function, MARK, None)


def limits_of(task: Any) -> tuple[Binding, ...]:
    """All limits of a task (or task class): its `limits`, and those its function is marked with."""
    mark = mark_of(getattr(task, "run", None))
    listed = getattr(task, "limits", None) or ()
    if isinstance(listed, (Binding, RateLimit)):
        listed = (listed,)
    if not isinstance(listed, (list, tuple)):
        return tuple(mark.bindings) if mark else ()  # a task's own `limits`, which are not ours
    return (*(_as_binding(one, task) for one in listed), *(mark.bindings if mark else ()))


def _as_binding(one: Any, task: Any) -> Binding:
    if isinstance(one, Binding):
        return one
    if isinstance(one, RateLimit):
        return Binding(one, None, 1, origin_of(task))
    raise ConfigurationError(f"limits: {one!r:.80} must be rate_limited(...) or a RateLimit")


def enter_function(mark: Mark) -> None:
    """The safety net inside a limited function, for a task without the hook.

    :raises ConfigurationError: inside another task, which could only go back from its middle.
    """
    task = _state.get_current_task()
    if task is None:
        return  # a plain call
    own = mark_of(task.run)
    if own is mark:
        enter(task)
    elif own is None and not mark.owned and not task.request.called_directly:
        raise ConfigurationError(
            f"@rate_limited({mark.bindings[0].limit.name!r}) on a function that is no task, called "
            f"inside {task.name!r}: put it on the task (a decorator in between must keep the "
            "function's attributes, as functools.wraps does), or ask a RateLimiter"
        )


def plan(task: Any) -> Plan:
    """What `enter` needs of a task; kept on it, since nothing of it changes between two runs."""
    found = vars(task)[_PLAN] = Plan(limits_of(task), inspect.signature(task.run))
    return found


def enter(task: Any) -> None:
    """Return when the body may start; raise to end this delivery, the task being back in its queue."""
    request = task.request
    if request.called_directly or vars(request).get(_ENTERED):
        return
    settings = settings_of(task.app)
    ignored = request.is_eager and settings.eager == "ignore" and not standin.current
    if settings.enabled and not ignored:
        _pass(task, vars(task).get(_PLAN) or plan(task), settings)
    vars(request)[_ENTERED] = True


def _pass(task: Any, plan: Plan, settings: Settings) -> None:
    request = task.request
    args, kwargs = request.args or (), request.kwargs or {}
    spends = plan.spends(args, kwargs)
    if not spends:
        return
    store = limiter_of(task.app).store
    delivery = _Delivery(task, spends, store, settings)
    try:
        outcome = delivery.ask()
        if not outcome.admitted:
            outcome = delivery.wait(outcome)
    except SoftTimeLimitExceeded:  # in the middle of it: the task fails, and must not hold a place
        delivery.leave()
        raise
    try:
        _start(store, spends, outcome)
    except SoftTimeLimitExceeded:
        _give_back(store, spends, outcome)
        raise
    restore(request)


class _Delivery:
    """One delivery of a limited task that has not started yet."""

    def __init__(
        self, task: Any, spends: Sequence[Spend], store: Store, settings: Settings
    ) -> None:
        self.task, self.spends, self.store, self.settings = task, spends, store, settings
        self.seen_us = seen_us(task.request)
        self.line = spends[0].limit.name, spends[0].key
        self._message: Message | None = None

    @property
    def message(self) -> Message:
        if self._message is None:
            self._message = Message.of(self.task)
        return self._message

    def ask(self, *, parking: bool | None = None, again: bool = False) -> Outcome:
        """Ask the store. With `parking` (by default where others waited in this line when last
        asked) the message goes along, to be parked in the same round trip. `again`: just denied, and
        asks only to be parked: it must not sleep into a cell as one who was woken for it may."""
        if parking is None:
            parking = self.line in _busy
        request = self.task.request
        ticket = Ticket(
            id=request.id,
            first_seen_us=self.seen_us,
            max_sleep_us=0 if again else self.settings.max_sleep_us,
            horizon_us=self.settings.horizon_us,
            expires_in_us=expires_in_us(request.expires),
            copy=copy_of(request),
            broker=broker_of(self.task.app) if parking else "",
            message=self._packed() if parking else "",
            park_after_us=self.settings.max_sleep_us,
            lead_us=self.settings.lead_us,
        )
        outcome = self.store.acquire(self.spends, ticket)
        if outcome.alone:  # without Redis: nobody knows of a place
            return outcome
        waiting = self.line in _busy and any(one.waiting for one in outcome.readings)
        _remember(self.line, busy=waiting or not outcome.admitted)
        self.seen_us = outcome.first_seen_us
        if (
            outcome.verdict is Verdict.DENIED
            and outcome.wait_us > ticket.park_after_us
            and (not parking and self._packed())
        ):
            return self.ask(parking=True, again=True)
        return outcome

    def _packed(self) -> str:
        """The message for the waiting room; '' where it cannot be parked."""
        if not (self.settings.waiting_room and running()) or self._stays:
            return ""
        packed = self.message.packed()
        return packed if len(packed) <= LARGEST_PARKED else ""

    @property
    def _stays(self) -> bool:
        if self.task.request.is_eager or standin.current:
            return True
        return cannot_wait_in_queue(self.task.app, self.message)

    def leave(self) -> None:
        """Give up the place in line."""
        with contextlib.suppress(StoreUnavailable):
            for one in self.spends:
                self.store.withdraw(one.limit.name, one.key, self.task.request.id)

    def wait(self, outcome: Outcome) -> Outcome:
        """End the delivery, the task being parked or back in its queue; where that is impossible,
        wait here until admitted, or (where the message is not acknowledged yet) for a while."""
        held_until = time.monotonic() + _HOLD_S
        while not outcome.admitted:
            if outcome.verdict is Verdict.PARKED and outcome.wait_us < _NEAR_US:
                ring()
            if outcome.verdict is Verdict.DUPLICATE:
                raise Ignore
            if outcome.verdict is Verdict.PARKED:
                self._quit(outcome)
            if not self._stays:
                self._put_back(outcome)
                if self.task.acks_late and time.monotonic() > held_until:
                    raise Reject("could not be put back into its queue", requeue=True)
            standin.sleep(min(outcome.wait_us / 1e6, 1.0))
            outcome = self.ask()
        return outcome

    def _put_back(self, outcome: Outcome) -> None:
        wait_us = min(outcome.wait_us - self.settings.lead_us, self.settings.horizon_us)
        if self.settings.waiting_room and outcome.wait_us <= self.settings.max_sleep_us:
            wait_us = 0  # it may sleep in place: no ETA, and so no worker's clock, is needed
        if outcome.verdict is Verdict.EXPIRES:
            # It will not get its turn in time: Celery itself revokes it, when its time is over.
            left_us = (expires_in_us(self.task.request.expires) or 0) + 50_000
            wait_us = min(left_us, self.settings.horizon_us)
        try:
            wait_us = max(0, wait_us)
            due_us = 0 if outcome.alone or not wait_us else outcome.now_us + wait_us
            where = self._line(outcome)
            put_back(self.task.app, self.message, wait_us / 1e6, self.seen_us, where, due_us)
        except SoftTimeLimitExceeded:
            raise  # the task's own, not the broker's
        except Exception as error:
            logger.debug("%s could not be put back, waits here: %r", self.message.id, error)
            return
        logger.debug("%s waits %.3f s", self.message.id, outcome.wait_us / 1e6)
        self._quit(outcome)

    def _quit(self, outcome: Outcome) -> NoReturn:
        show_pending(self.task)
        announce(self.task, self.spends, outcome)
        quit_delivery(self.task, self.settings.waiting_state, outcome.wait_us / 1e6)

    def _line(self, outcome: Outcome) -> tuple[str, str]:
        """The limit and key in whose line the task stands: what binds it."""
        one = self.spends[0]
        if len(self.spends) > 1 and outcome.readings:
            waits = [reading.wait_us for reading in outcome.readings]
            one = self.spends[waits.index(max(waits))]
        return one.limit.name, one.key


#: Lines whose last answer in this process was a denial: a guess, which saves a round trip.
_busy: set[tuple[str, str]] = set()


def _remember(line: tuple[str, str], *, busy: bool) -> None:
    if not busy:
        _busy.discard(line)
    elif len(_busy) < 10_000:
        _busy.add(line)


def _start(store: Store, spends: Sequence[Spend], outcome: Outcome) -> None:
    """Sleep until the admitted cell, and report a start that comes late all the same."""
    if outcome.alone or standin.current:
        standin.sleep(outcome.sleep_us / 1e6)
        return
    clock = _punctuality(os.getpid(), id(store))
    due = clock.due_us(outcome.now_us, outcome.sleep_us)
    if (early := due - clock.clock()) > 0:
        standin.sleep(early / 1e6)
    tolerated = min(one.limit.per_us * one.limit.margin for one in spends) / 10 + _LATE_US
    reported = 0
    for _ in range(_REPORTS):
        late = clock.late_us(due) - reported
        if late <= tolerated:
            return
        with contextlib.suppress(StoreUnavailable):
            store.delay(spends, late)
        reported += late


def _give_back(store: Store, spends: Sequence[Spend], outcome: Outcome) -> None:
    """An admitted run that will not start after all."""
    if outcome.alone:
        return
    with contextlib.suppress(StoreUnavailable):
        for one, reading in zip(spends, outcome.readings, strict=True):
            store.give_back(one, reading)


def warm(app: Any) -> None:
    """Connect, and learn the difference of the clocks, before a pool process gets its first task:
    else a first start that comes late would not be seen to be."""
    store = limiter_of(app).store
    with contextlib.suppress(StoreUnavailable):
        for _ in range(3):
            _punctuality(os.getpid(), id(store)).due_us(store.now_us(), 0)


@functools.lru_cache(maxsize=8)
def _punctuality(pid: int, store_id: int) -> Punctuality:
    return Punctuality()
