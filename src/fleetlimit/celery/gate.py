"""Decides for one delivery: the task starts, sleeps a moment and starts, or goes back into its queue."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Sequence
from typing import Any, NoReturn

from celery.exceptions import Ignore, Reject, Retry, SoftTimeLimitExceeded
from celery.utils.log import get_logger

from fleetlimit import standin
from fleetlimit.celery import compat
from fleetlimit.celery.broker import broker_of
from fleetlimit.celery.declared import Mark, Plan, mark_of, plan_of
from fleetlimit.celery.header import HEADER, copy_of, is_newer, line_of, ours, seen_us, ticket_of
from fleetlimit.celery.message import Message, expires_in_us
from fleetlimit.celery.queues import lane_of
from fleetlimit.celery.releaser import ring, running
from fleetlimit.celery.requeue import cannot_wait_in_queue, put_back, quit_delivery, show_pending
from fleetlimit.celery.restore import restore
from fleetlimit.celery.runtime import runtime_of
from fleetlimit.celery.settings import LARGEST_PARKED, Settings
from fleetlimit.celery.signals import announce
from fleetlimit.celery.start import give_back, start
from fleetlimit.celery.tracing import ends_without_start
from fleetlimit.celery.wiring import limiter_of, settings_of
from fleetlimit.errors import ConfigurationError, FleetlimitError, StateError, StoreUnavailable
from fleetlimit.store.base import Late, Outcome, Spend, Store, Ticket, Verdict, hop_us

__all__ = [
    "ENTERED",
    "TICKET",
    "acquired",
    "came",
    "enter",
    "enter_function",
    "lane_of_delivery",
]

logger = get_logger(__name__)

#: A releaser with nothing to do may not look for so long. It must be told of a task whose turn comes sooner.
_NEAR_US = 1_500_000
#: A task that waits in place for one of several limits asks again this long before its turn.
_EARLY_US = 5_000
#: If foreign data lies at a limit's key, its tasks come back after this time (from, to), in seconds.
_FOREIGN_S = (5, 15)
#: If the broker does not take a task back and the delivery can still be rejected, the task waits here at most this
#: long.
_HOLD_S = 30.0

#: A mark on the request while the body runs: True if the task has asked or need not ask. A task that calls itself
#: inside its own body gets a request that inherits the mark, so it does not ask (or go back into the queue) a second
#: time.
ENTERED = "_fleetlimit_entered"
#: On the request of a task that waited: the ticket that held its place in the line.
TICKET = "_fleetlimit_ticket"


def enter_function(mark: Mark) -> None:
    """The safety net inside a limited function, for a task whose `before_start` does not ask.

    :raises ConfigurationError: inside another task, because that task could only be put back from the middle of its
        body.
    """
    task = compat.current_task()
    if task is None:
        return  # a plain call
    own = mark_of(task.run)
    if own is mark:
        if not task.request.called_directly:
            enter(task)
    elif own is None and not mark.owned and not task.request.called_directly:
        raise ConfigurationError(
            f"@rate_limited({mark.bindings[0].limit.name!r}) is on a function that is no task, and {task.name!r} calls "
            "this function: put the decorator on the task (a decorator in between must keep the "
            "function's attributes, as functools.wraps does), or ask a RateLimiter"
        )


def enter(task: Any) -> None:
    """Return when the body may start. Raise to end this delivery; the task is then parked or back in its queue.

    A pool that runs the parts of a delivery in several threads (as for coroutines) may use one request object for all
    deliveries, one after the other. So nothing of ours may stay on it, because the next delivery would find it there.

    :raises ConfigurationError: in a thread that knows nothing of the delivery.
    """
    request = task.request
    shared = task.request_stack.top is None
    if vars(request).get(ENTERED) and not shared:
        return
    if request.called_directly:
        raise ConfigurationError(
            f"task {task.name!r}: its delivery is not known in this thread, because the worker's pool runs the parts "
            "of a task in several threads: no limit can be kept there; use one of Celery's own pools"
        )
    try:
        _enter(task, request)
    except BaseException:
        if shared:
            vars(request).pop(HEADER, None)
        raise


def _enter(task: Any, request: Any) -> None:
    settings = settings_of(task.app)
    ignored = request.is_eager and settings.eager == "ignore" and not standin.current
    if settings.enabled and not ignored:
        _pass(task, plan_of(task), settings)
    if HEADER in vars(request):
        vars(request)[TICKET] = ticket_of(request)
    restore(request)
    vars(request)[ENTERED] = not ignored


def _pass(task: Any, plan: Plan, settings: Settings) -> None:
    request = task.request
    args, kwargs = request.args or (), request.kwargs or {}
    spends = plan.spends(args, kwargs)
    if not spends:
        return
    store = limiter_of(task.app).store
    delivery = _Delivery(task, spends, store, settings)
    try:
        came(task, spends)
        outcome = delivery.ask()
        if not outcome.admitted:
            outcome = delivery.wait(outcome)
    except SoftTimeLimitExceeded:  # the task fails while it waits, and must not keep its place
        delivery.leave()
        raise
    except (Ignore, Reject, Retry):
        ends_without_start()
        raise
    try:
        start(task.app, store, spends, outcome)
    except SoftTimeLimitExceeded:
        give_back(store, spends, outcome)
        raise


class _Delivery:
    """One delivery of a limited task that has not started yet."""

    def __init__(
        self, task: Any, spends: Sequence[Spend], store: Store, settings: Settings
    ) -> None:
        self.task, self.spends, self.store, self.settings = task, spends, store, settings
        self.seen_us = seen_us(task.request)
        self._message: Message | None = None
        self._lane = lane_of_delivery(task)
        self._woken = self.seen_us > 0
        self._runtime = runtime_of(task.app)

    @property
    def message(self) -> Message:
        if self._message is None:
            self._message = Message.of(self.task)
        return self._message

    def ask(self, to_park: str = "") -> Outcome:
        """Ask the store. If other tasks are known to wait, the message is sent along and can be parked in the same
        round trip.

        :param to_park: the message of a task that was just denied without it. The task asks again only to be parked, so
            it must not book a cell and sleep, as a woken task may.
        """
        if is_newer(vars(self.task.request)):
            return _waits(
                self.task.app,
                "a later version of fleetlimit put some of them back, and only its workers start those",
            )
        request, message = self.task.request, Late(self._packed)
        broker, lane, queue = self._lane
        ticket = Ticket(
            id=self._ticket_id,
            first_seen_us=self.seen_us,
            max_sleep_us=0 if to_park else self.settings.max_sleep_us,
            horizon_us=self.settings.horizon_us,
            expires_in_us=expires_in_us(request.expires),
            copy=copy_of(request),
            broker=broker,
            lane=lane,
            queue=queue,
            message=to_park or message,
            park_after_us=self.settings.max_sleep_us,
            lead_us=self.settings.lead_us,
        )
        outcome = acquired(self.task.app, self.store, self.spends, ticket)
        if outcome.alone:  # decided without Redis, so the task has no place
            return outcome
        if outcome.wait_us or outcome.sleep_us:
            self._runtime.host.ask_for_margin(self.store, self.spends, outcome)
        self.seen_us = outcome.first_seen_us
        far = outcome.verdict is Verdict.DENIED and outcome.wait_us > ticket.park_after_us
        if far and not to_park and message.made is None and message.text:
            return self.ask(message.text)
        return outcome

    def _ticket_id(self) -> str:
        return self.message.its_ticket()

    def _packed(self) -> str:
        """The message for the waiting room; '' if it cannot be parked."""
        if (
            not (self.settings.waiting_room and running(self.task.app) and self._lane[0])
            or self._stays
        ):
            return ""
        packed = self.message.packed(self.settings.secret)
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
                self.store.withdraw(one.limit.name, one.key, self._ticket_id())

    def wait(self, outcome: Outcome) -> Outcome:
        """End the delivery when the task is parked or back in its queue. If that is impossible, wait here until the
        task is admitted, or for `_HOLD_S` if the message is not acknowledged yet."""
        began = time.monotonic()
        while not outcome.admitted:
            if self._is_near(outcome, began):
                standin.sleep(max(outcome.wait_us - _EARLY_US, 1000) / 1e6)
                outcome = self.ask()
                continue
            if outcome.verdict is Verdict.DUPLICATE:
                raise Ignore
            if outcome.verdict is Verdict.PARKED:
                self._quit(outcome)
            if not self._stays:
                self._put_back(outcome)
                if self.task.acks_late and time.monotonic() > began + _HOLD_S:
                    raise Reject("could not be put back into its queue", requeue=True)
            standin.sleep(min(outcome.wait_us / 1e6, 1.0))
            outcome = self.ask()
        return outcome

    def _is_near(self, outcome: Outcome, began: float) -> bool:
        """Whether a task with several limits waits here with its place. One limit admits it soon enough for a sleep in
        place, but the other limits may not be booked for so late. So the task sleeps without having spent anything, and
        asks again just before its turn."""
        near = outcome.verdict is Verdict.DENIED and outcome.wait_us <= self.settings.max_sleep_us
        patient = time.monotonic() < began + 2 * self.settings.max_sleep_us / 1e6
        return near and patient and self._woken and len(self.spends) > 1 and not outcome.alone

    def _put_back(self, outcome: Outcome) -> None:
        hop = hop_us(outcome.wait_us, self.settings.horizon_us)
        wait_us = min(outcome.wait_us - self.settings.lead_us, hop)
        if self.settings.waiting_room and outcome.wait_us <= self.settings.max_sleep_us:
            wait_us = 0  # the task may sleep in place, so no ETA and no worker's clock is needed
        if outcome.verdict is Verdict.EXPIRES:
            # The task expires before its turn. Celery itself revokes it when it has expired.
            left_us = (expires_in_us(self.task.request.expires) or 0) + 50_000
            wait_us = min(left_us, self.settings.horizon_us)
        try:
            wait_us = max(0, wait_us)
            due_us = 0 if outcome.alone or not wait_us else outcome.now_us + wait_us
            where = self._line(outcome)
            put_back(self.task.app, self.message, wait_us / 1e6, self.seen_us, where, due_us)
        except SoftTimeLimitExceeded:
            raise  # this is the task's own time limit, and not an error of the broker
        except Exception as error:
            self._refused(error)
            return
        self._runtime.refusals.clear()
        self._quit(outcome)

    def _refused(self, error: Exception) -> None:
        cause = type(error).__name__, self._lane[2]
        if cause not in self._runtime.refusals:
            self._runtime.refusals.add(cause)
            logger.warning(
                "limited tasks cannot be put back into queue %s, and wait in the worker until their turn; the first of "
                "them is %s: %r", self._lane[2], self.message.id, error,
            )  # fmt: skip

    def _quit(self, outcome: Outcome) -> NoReturn:
        """End this delivery. The task is safe elsewhere and will run, so an error or a time limit at this point must
        not make it fail."""
        try:
            logger.debug("%s waits %.3f s", self.message.id, outcome.wait_us / 1e6)
            if outcome.verdict is Verdict.PARKED and outcome.wait_us < _NEAR_US:
                ring(self.task.app)
            show_pending(self.task)
            announce(self.task, self.spends, outcome)
        except Exception as error:
            logger.debug("%s waits; the notification failed: %r", self.message.id, error)
        quit_delivery(self.task, self.settings.waiting_state, outcome.wait_us / 1e6)

    def _line(self, outcome: Outcome) -> tuple[str, str]:
        """The limit and key in whose line the task stands: those with the longest wait."""
        one = self.spends[0]
        if len(self.spends) > 1 and outcome.readings:
            waits = [reading.wait_us for reading in outcome.readings]
            one = self.spends[waits.index(max(waits))]
        return one.limit.name, one.key


def came(task: Any, spends: Sequence[Spend] = ()) -> None:
    """Take a task out of the line of another limit or key, in which it stood before (because its limit was renamed or
    removed). In that line it would make other tasks wait for it."""
    line = line_of(task.request)
    if line and line not in [(one.limit.name, one.key) for one in spends]:
        with contextlib.suppress(FleetlimitError):
            store = limiter_of(task.app).store
            store.withdraw(*line, ticket_of(task.request), how="came")


def acquired(app: Any, store: Store, spends: Sequence[Spend], ticket: Ticket) -> Outcome:
    """The store's answer. If it finds foreign data, or data that a later version wrote, the task waits and does not
    fail: the data may be gone when the task comes back."""
    try:
        return store.acquire(spends, ticket)
    except StateError as error:
        return _waits(app, str(error))


def _waits(app: Any, why: str) -> Outcome:
    """A denial without the store. Its reason `why` is logged once."""
    if runtime_of(app).is_new(why):
        logger.error("limited tasks wait: %s", why)
    wait_us = round(random.uniform(*_FOREIGN_S) * 1e6)
    return Outcome(Verdict.DENIED, wait_us, 0, 0, time.monotonic_ns() // 1000, alone=True)


def lane_of_delivery(task: Any) -> tuple[str, str, str]:
    """The broker, the lane and the queue from which a delivery comes."""
    request, broker = task.request, broker_of(task.app)
    found, route = ours(vars(request)), request.delivery_info or {}
    exchange = found.get("exchange", route.get("exchange")) or ""
    routing_key = found.get("routing_key", route.get("routing_key")) or ""
    return (broker, *lane_of(task.app, broker, exchange, routing_key))
