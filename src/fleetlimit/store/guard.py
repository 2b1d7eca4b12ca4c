"""A store with a policy for the time when it gives no answer.

One failed call does not mean that the store is away. A reply that is late is waited for once more. If a connection
broke, the store is asked something that only reads. If it answers, the caller is denied for a moment. If it does not, a
circuit breaker opens: from then on decisions are made here, without asking the store, and a thread probes until the
store answers again. All processes then return at the same moment, which the first process that gets an answer sets on
the store's own clock. Otherwise some processes would take the whole limit from Redis while others still took their
shares of it.

Policies (`RateLimit.on_outage`, or the default):

- `"share"`: the same GCRA in this process's memory, at limit / last known number of processes. In any window the fleet
  admits at most the limit and one unit more for each process. A process that does not know the number (because it
  started during the outage) takes no share, and its tasks wait.
- `"wait"`: denied, for 5 to 15 s.
- `"open"`: admitted.
- `"raise"`: `StoreUnavailable`.

A refusal (`StoreRefused`: credentials, permissions, certificates) does not pass by itself. It follows the same policy,
and is logged as an error with its text.
"""

from __future__ import annotations

import logging
import random
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from redis.exceptions import ResponseError

from fleetlimit.errors import StoreRefused, StoreUnavailable
from fleetlimit.forks import after_fork
from fleetlimit.store.base import Outcome, Override, Reading, Spend, Ticket, Verdict
from fleetlimit.store.redis import RedisStore
from fleetlimit.store.shares import Shares

__all__ = ["Guard", "Health"]

T = TypeVar("T")
logger = logging.getLogger("fleetlimit")

#: Pauses between tries to learn whether a message was parked, seconds.
_AGAIN_S = (0.05, 0.2, 0.5)
#: During an outage there is no shared line, and the next cell of another process may be later still. So a task sleeps
#: in place up to twice `max_sleep` before it goes back into its queue.
_SLEEPS = 2
#: Seconds between two probes: in the first five seconds, and later.
_PROBE_S, _PROBE_LATER_S = (0.2, 0.4), (0.5, 1.0)
#: The spacing of a share is longer by this factor, to make room for the unit that Redis may admit at the return.
_SHARE = 1.02
#: If no decision has been answered for so many seconds, the store counts as away even if it answers reads.
_DOUBT_S = 2.0
#: A call that has waited for so many timeouts proves an outage (a little below two, because clocks round).
_WAITED = 1.9
#: A refusal that comes and goes is logged again only after so many seconds.
_SAY_AGAIN_S = 600.0
#: A caller that is denied for a moment waits so many seconds (from, to) longer than a sleep in place.
_MOMENT_S = (0.25, 0.75)


@dataclass(frozen=True)
class Health:
    """What this process knows of the store."""

    #: Whether decisions are made without it.
    away: bool
    #: Since when, in seconds of `time.time()`; None if the store is not away.
    since: float | None
    #: How often the store went away.
    outages: int
    #: The numbers of decisions that were made without the store: admitted and denied.
    admitted_alone: int
    denied_alone: int
    #: What the store refuses, in its own words, whether a decision or another thread's call was refused. None: nothing.
    refusal: str | None = None


class Guard:
    """A `Store` for limiters and workers. Thread- and fork-safe.

    :param inner: the store that decides while it answers.
    :param policy: the policy for limits that have none of their own.
    :param processes: returns the last known number of processes that share the limits, or None if it is not known.
    :param on_change: is called with (away, cause) at each change of state, in any thread.
    """

    def __init__(
        self,
        inner: RedisStore,
        policy: str = "raise",
        processes: Callable[[], int | None] = lambda: None,
        on_change: Callable[[bool, BaseException | None], None] = lambda away, cause: None,
    ) -> None:
        self.inner, self.policy = inner, policy
        self._processes, self._on_change = processes, on_change
        self._reset()
        after_fork(_resetter(self))

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._away_since: float | None = None
        self._outages = self._admitted = self._denied = 0
        self._shares = Shares()
        self._back_us = 0  # when the store is asked again, once that is known
        self._life = object()  # a probe's thread ends when this object was replaced since its start
        self._doubt_since: float | None = None  # the first failure since the last answer
        self._refusal: str | None = None
        self._beside: dict[str, str] = {}  # refusals to threads that make no decisions
        self._said_at: dict[str, float] = {}  # refusals, and when they were logged
        self._level = logging.WARNING  # the level at which the present outage was logged

    @property
    def health(self) -> Health:
        since = self._away_since
        numbers = self._outages, self._admitted, self._denied
        refusal = self._refusal or next(iter(tuple(self._beside.values())), None)
        return Health(since is not None, since, *numbers, refusal=refusal)

    # --- the verbs --------------------------------------------------------------------------------

    def acquire(self, spends: Sequence[Spend], ticket: Ticket | None = None) -> Outcome:
        if self._away_since is not None:
            return self._alone(spends, ticket, self._still_away())
        began = time.monotonic()
        try:
            outcome = self.inner.acquire(spends, ticket)
        except StoreUnavailable as error:
            cause = error
        else:
            self._doubt_since = None
            return outcome
        if away := self._is_away(cause, spends, time.monotonic() - began):
            self._lost(cause, spends)
        sent = ticket and ticket.went_along and not cause.crowded
        if ticket and sent and self._policies(spends) <= {"share", "wait"}:
            return self._insist(spends, ticket)
        if away:
            return self._alone(spends, ticket, cause)
        self._denied += 1
        return self._moment(spends, ticket, cause)

    def _is_away(self, cause: StoreUnavailable, spends: Sequence[Spend], took: float) -> bool:
        """Whether a failed call means that the store is away. It does not if this process had no free connection, or if
        the store answers a read right after, because then only a connection was cut. A call that `took` two timeouts
        (in seconds) has waited long enough, so the store is not asked again."""
        if cause.crowded:
            return False
        if isinstance(cause, StoreRefused) or isinstance(cause.__cause__, ResponseError):
            return True  # the store has answered, but it does not decide
        now = time.monotonic()
        since = self._doubt_since = self._doubt_since or now
        if now - since > _DOUBT_S or took >= _WAITED * self.inner.connection.timeout:
            return True
        return not self.inner.answers(spends[0])

    def _insist(self, spends: Sequence[Spend], ticket: Ticket) -> Outcome:
        """Ask again after the reply to a call with a message was lost. The message may be parked already, so the worker
        must know this before it makes a second copy. However often it asks, the task takes only one place."""
        for pause in _AGAIN_S:
            time.sleep(pause)
            try:
                return self.inner.acquire(spends, ticket)
            except StoreUnavailable:
                continue
        # Not "share": when the task comes back, Redis knows whether its message is parked.
        return _wait()

    def peek(self, spends: Sequence[Spend]) -> Outcome:
        if self._away_since is not None:
            return self._decided(spends, None, self._still_away(), look_only=True)
        began = time.monotonic()
        try:
            return self.inner.peek(spends)
        except StoreUnavailable as error:
            cause = error
        if not self._is_away(cause, spends, time.monotonic() - began):
            return self._moment(spends, None, cause)
        self._lost(cause, spends)
        return self._decided(spends, None, cause, look_only=True)

    def give_back(self, spend: Spend, reading: Reading) -> bool:
        return self._asked(lambda: self.inner.give_back(spend, reading))

    def delay(self, spends: Sequence[Spend], late_us: int) -> None:
        self._asked(lambda: self.inner.delay(spends, late_us))

    def withdraw(self, name: str, key: str, id: str, *, how: str = "") -> bool:
        return self._asked(lambda: self.inner.withdraw(name, key, id, how=how))

    def override(self, name: str) -> Override:
        return self.inner.override(name)

    def change_override(self, name: str, **change: Any) -> tuple[Override, int]:
        return self.inner.change_override(name, **change)

    def now_us(self) -> int:
        return self.inner.now_us()

    def reset(self, name: str, key: str = "") -> None:
        self.inner.reset(name, key)

    def close(self) -> None:
        with self._lock:
            self._away_since = self._refusal = None
            self._beside.clear()
            self._life = object()
        self.inner.close()

    def _asked(self, call: Callable[[], T]) -> T:
        """Call the store, unless it is known to be away: then fail at once instead of after a timeout."""
        if self._away_since is not None:
            raise self._still_away()
        return call()

    def _still_away(self) -> StoreUnavailable:
        if self._refusal:
            return StoreRefused(self._refusal)
        return StoreUnavailable("no answer from Redis a moment ago")

    # --- the breaker ------------------------------------------------------------------------------

    def _lost(self, error: StoreUnavailable, spends: Sequence[Spend]) -> None:
        with self._lock:
            if self._away_since is not None:
                return
            self._away_since = time.time()
            self._outages += 1
            self._back_us = 0
            self._shares = Shares()
            args = (spends[0], self._life)
            self._refusal = str(error) if isinstance(error, StoreRefused) else None
            self._level = self._loudness()
        words = spends[0].limit.name, error, self._said(spends)
        logger.log(self._level, "rate limit %s: %s; %s until Redis answers again", *words)
        threading.Thread(
            target=self._probe, args=args, name="fleetlimit-probe", daemon=True
        ).start()
        self._on_change(True, error)

    def _said(self, spends: Sequence[Spend]) -> str:
        policy = self._policy_of(spends[0])
        number = self._processes()
        if policy == "share":
            return f"this process takes 1 of {number} shares" if number else "limited tasks wait"
        return {
            "wait": "limited tasks wait",
            "open": "LIMITS ARE OPEN",
            "raise": "callers get an error",
        }[policy]

    def _loudness(self) -> int:
        """The level at which the present state is logged: the same refusal once as an error, an outage as a warning."""
        return self._how_loud(self._refusal) if self._refusal else logging.WARNING

    def _how_loud(self, refusal: str) -> int:
        now = time.monotonic()
        known = now - self._said_at.get(refusal, -_SAY_AGAIN_S) < _SAY_AGAIN_S
        if not known:
            self._said_at[refusal] = now
        return logging.DEBUG if known else logging.ERROR

    def _note_refusal(self, refusal: str | None) -> None:
        """Log a refusal that is not the last known one, because it may change while the store is away."""
        if refusal != self._refusal:
            self._refusal = refusal
            if refusal:
                logger.log(self._loudness(), "rate limits: %s", refusal)

    def note(self, thread: str, error: Exception | None) -> None:
        """Note how the store answered a thread that makes no decisions (`error` None: without an error). A refusal is
        logged at the same level as that of a decision, and stands in `health` until the store no longer refuses this
        thread."""
        refusal = str(error) if isinstance(error, StoreRefused) else None
        with self._lock:
            former = self._beside.pop(thread, None)
            if refusal:
                self._beside[thread] = refusal
            if refusal == former:
                return
            level = self._how_loud(refusal) if refusal else logging.WARNING
        if refusal:
            logger.log(level, "rate limits (%s): %s", thread, refusal)
        else:
            logger.log(level, "rate limits (%s): Redis no longer refuses this", thread)

    def _probe(self, spend: Spend, life: object) -> None:
        began = time.monotonic()
        while True:
            pace = _PROBE_S if time.monotonic() - began < 5 else _PROBE_LATER_S
            time.sleep(random.uniform(*pace))
            if self._life is not life:
                return
            try:
                wait = self.inner.rejoin(spend)
            except Exception as error:  # any error means that the store is not back
                logger.debug("rate limits: %r", error)
                self._note_refusal(str(error) if isinstance(error, StoreRefused) else None)
                continue
            self._back_us = time.monotonic_ns() // 1000 + round(wait * 1e6)
            time.sleep(wait)
            break
        with self._lock:
            if self._life is not life:
                return
            self._away_since = self._doubt_since = self._refusal = None
        logger.log(
            min(self._level, logging.WARNING),
            "rate limits: Redis is back after %.1f s",
            time.monotonic() - began,
        )
        self._on_change(False, None)

    # --- the policies -----------------------------------------------------------------------------

    def _policies(self, spends: Sequence[Spend]) -> set[str]:
        return {self._policy_of(one) for one in spends}

    def _policy_of(self, spend: Spend) -> str:
        return spend.limit.on_outage or self.policy

    def _alone(
        self, spends: Sequence[Spend], ticket: Ticket | None, cause: StoreUnavailable
    ) -> Outcome:
        outcome = self._decided(spends, ticket, cause)
        if outcome.admitted:
            self._admitted += 1
        else:
            self._denied += 1
        return outcome

    def _decided(
        self,
        spends: Sequence[Spend],
        ticket: Ticket | None,
        cause: StoreUnavailable,
        *,
        look_only: bool = False,
    ) -> Outcome:
        policies = self._policies(spends)
        if "raise" in policies:
            raise cause
        if "wait" in policies or ("share" in policies and ticket and ticket.copy):
            # There may be two copies of a task that a room let go, and only the store knows which of them may start.
            return _wait()
        max_sleep_us = _SLEEPS * ticket.max_sleep_us if ticket else 0
        return self._share(spends, max_sleep_us, look_only=look_only)

    def _moment(
        self, spends: Sequence[Spend], ticket: Ticket | None, cause: StoreUnavailable
    ) -> Outcome:
        """Deny for a moment. The store is there and hands out the whole limit, so this process must not take a share on
        top."""
        if "raise" in self._policies(spends):
            raise cause
        wait = round(random.uniform(*_MOMENT_S) * 1e6) + (ticket.max_sleep_us if ticket else 0)
        now = time.monotonic_ns() // 1000
        return Outcome(Verdict.DENIED, wait, 0, 0, now, alone=True)

    def _share(
        self, spends: Sequence[Spend], max_sleep_us: int, *, look_only: bool = False
    ) -> Outcome:
        shared = [one for one in spends if self._policy_of(one) == "share"]
        number = self._processes()
        if shared and not number:
            return _wait()
        parts = [(one, self.inner.rule_of(one.limit).part(number or 1, _SHARE)) for one in shared]
        with self._lock:
            taken = self._shares.take(parts, max_sleep_us, self._back_us, look_only=look_only)
        return taken or _wait()


def _resetter(guard: Guard) -> Callable[[], None]:
    """The function that resets a guard in a forked child, because its locks and threads belong to the parent. It does
    not keep the guard alive."""
    here = weakref.ref(guard)

    def reset() -> None:
        if one := here():
            one._reset()

    return reset


def _wait() -> Outcome:
    now = time.monotonic_ns() // 1000
    return Outcome(Verdict.DENIED, round(random.uniform(5, 15) * 1e6), 0, 0, now, alone=True)
