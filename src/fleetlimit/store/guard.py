"""A store under a policy for the time when it gives no answer.

Before the store counts as away it is looked at twice. A reply that is late is waited for once more, and
where a connection broke, the store is asked something that only reads: if it answers, the caller is denied
for a moment. Else a breaker opens: from then on decisions are made here,
without asking, and a thread probes until the store answers again. All processes then go back at the same instant, which the first
one to notice sets on the store's own clock: else some would take the whole limit from Redis while
others still took their share of it.

Policies (`RateLimit.on_outage`, or the default):

- `"share"`: the same GCRA in this process's memory, at limit / last known number of processes. In any
  window the fleet stays at or under the limit and one unit for each process. A process that never
  learned the number (it started in the outage) takes no share, and waits.
- `"wait"`: denied, for 5 to 15 s.
- `"open"`: admitted.
- `"raise"`: `StoreUnavailable`.

A refusal that stays (`StoreRefused`: credentials, permissions, certificates) follows the same policy, and is
logged as an error with its text.
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
#: During an outage there is no shared line, and the next cell of another process may be later still. So a task sleeps in
#: place up to so many times as long as otherwise before it goes back into its queue.
_SLEEPS = 2
#: Seconds between two probes: in the first five seconds, and later.
_PROBE_S, _PROBE_LATER_S = (0.2, 0.4), (0.5, 1.0)
#: A share is a little less than its part, for the unit that Redis may admit at the instant of return.
_SHARE = 1.02
#: Without one answered call for so long the store is away, whatever it says to reads, seconds.
_DOUBT_S = 2.0
#: So many timeouts of silence are enough to know (a little below two, for a clock that rounds).
_WAITED = 1.9
#: A refusal that comes and goes is said again only after so long, seconds.
_SAY_AGAIN_S = 600.0
#: How much later than a sleep in place a caller comes back that is denied for a moment, seconds.
_MOMENT_S = (0.25, 0.75)


@dataclass(frozen=True)
class Health:
    """What this process knows of the store."""

    #: Whether decisions are made without it.
    away: bool
    #: Since when, seconds of `time.time()`; None when it is there.
    since: float | None
    #: How often it went away.
    outages: int
    #: Decisions made without it, by verdict.
    admitted_alone: int
    denied_alone: int
    #: What the store refuses, in its own words: decisions, or what a thread beside them asks. It does not pass by
    #: itself.
    refusal: str | None = None


class Guard:
    """A `Store` for limiters and workers. Thread- and fork-safe.

    :param inner: the store that decides when it can.
    :param policy: for limits that do not say their own.
    :param processes: the last known number of processes that share the limits; None: never known.
    :param on_change: called with (away, cause) at each change of state, in any thread.
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
        self._life = object()  # a probe's thread ends with the life it began in
        self._doubt_since: float | None = None  # the first failed call since one was answered
        self._refusal: str | None = None
        self._beside: dict[str, str] = {}  # what threads beside the decisions are refused
        self._said_at: dict[str, float] = {}  # refusals, and when they were said
        self._level = logging.WARNING  # how loud the present outage was said

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
        """Whether a failed call means that the store is away. It is not where this process had no free
        connection, nor where the store answers a read right after: then the call met a connection that
        was cut. A call that `took` two timeouts (seconds) has waited long enough."""
        if cause.crowded:
            return False
        if isinstance(cause, StoreRefused) or isinstance(cause.__cause__, ResponseError):
            return True  # it has answered, and does not decide
        now = time.monotonic()
        since = self._doubt_since = self._doubt_since or now
        if now - since > _DOUBT_S or took >= _WAITED * self.inner.connection.timeout:
            return True
        return not self.inner.answers(spends[0])

    def _insist(self, spends: Sequence[Spend], ticket: Ticket) -> Outcome:
        """A message went along and the reply was lost: it may lie parked. Ask again, shortly, before a
        second copy is made; a place is taken once, however often asked."""
        for pause in _AGAIN_S:
            time.sleep(pause)
            try:
                return self.inner.acquire(spends, ticket)
            except StoreUnavailable:
                continue
        return _wait()  # not "share": a copy that goes back into the queue meets the parked one

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
        """Not worth a timeout while the store is known to be away."""
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
        logger.log(self._level, "rate limit %s: %s; %s until it is back", *words)
        threading.Thread(
            target=self._probe, args=args, name="fleetlimit-probe", daemon=True
        ).start()
        self._on_change(True, error)

    def _said(self, spends: Sequence[Spend]) -> str:
        policy = self._policy_of(spends[0])
        number = self._processes()
        if policy == "share":
            return f"this process takes 1 of {number} shares" if number else "limited tasks wait"
        return {"wait": "limited tasks wait", "open": "LIMITS ARE OPEN", "raise": "asking fails"}[
            policy
        ]

    def _loudness(self) -> int:
        """How loud the present state is said: a refusal as an error, once as long as it is the same one."""
        return self._how_loud(self._refusal) if self._refusal else logging.WARNING

    def _how_loud(self, refusal: str) -> int:
        now = time.monotonic()
        known = now - self._said_at.get(refusal, -_SAY_AGAIN_S) < _SAY_AGAIN_S
        if not known:
            self._said_at[refusal] = now
        return logging.DEBUG if known else logging.ERROR

    def _note_refusal(self, refusal: str | None) -> None:
        """What the store refuses may change while it is away."""
        if refusal != self._refusal:
            self._refusal = refusal
            if refusal:
                logger.log(self._loudness(), "rate limits: %s", refusal)

    def note(self, thread: str, error: Exception | None) -> None:
        """What a thread beside the decisions was answered (None: it was answered well). A refusal is said as loud as
        one of a decision, and stands in `health` until the thread is refused no more."""
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
            logger.log(level, "rate limits (%s): Redis does not refuse it any more", thread)

    def _probe(self, spend: Spend, life: object) -> None:
        began = time.monotonic()
        while True:
            pace = _PROBE_S if time.monotonic() - began < 5 else _PROBE_LATER_S
            time.sleep(random.uniform(*pace))
            if self._life is not life:
                return
            try:
                wait = self.inner.rejoin(spend)
            except Exception as error:  # whatever it is: then it is not back
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
            # A copy that a room let go may not be the only one: the store must say which starts.
            return _wait()
        max_sleep_us = _SLEEPS * ticket.max_sleep_us if ticket else 0
        return self._share(spends, max_sleep_us, look_only=look_only)

    def _moment(
        self, spends: Sequence[Spend], ticket: Ticket | None, cause: StoreUnavailable
    ) -> Outcome:
        """Denied for a moment, for the store is there: it hands out the whole limit, and a share would
        come on top."""
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
    """What a forked child does, as long as there is the guard: its locks and threads are the parent's."""
    here = weakref.ref(guard)

    def reset() -> None:
        if one := here():
            one._reset()

    return reset


def _wait() -> Outcome:
    now = time.monotonic_ns() // 1000
    return Outcome(Verdict.DENIED, round(random.uniform(5, 15) * 1e6), 0, 0, now, alone=True)
