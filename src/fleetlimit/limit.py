"""`RateLimit`: the value object that says how much is allowed, and all of its validation."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from datetime import timedelta
from fractions import Fraction

from fleetlimit.errors import ConfigurationError, CostError
from fleetlimit.gcra import Rule

__all__ = ["POLICIES", "RateLimit", "checked_policy", "checked_processes"]

#: What may happen while the store is away.
POLICIES = ("share", "wait", "open", "raise")

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.\-/]{0,126}[A-Za-z0-9])?")
# Lua numbers are doubles: every time, in ticks, must stay an exact integer. A year's worth of
# microseconds is 2**45, the epoch is 2**51, so a capacity below 2**52 leaves room to add.
_EXACT = 2**52
# One emission rounded up to whole ticks may cost at most this share of the rate.
_ROUNDING = Fraction(1, 1000)


@dataclass(frozen=True)
class RateLimit:
    """At most `limit` units per `per`, shared by all who use the same `name`.

    In any window of `per` at most `limit + burst - 1` units are admitted.

    :param name: identity of the limit; letters, digits and `_ . - /`, at most 128.
    :param limit: units per period, a whole number from 1.
    :param per: the period, in seconds or as a `timedelta`; a microsecond at least.
    :param burst: units that may start at the same instant; 1 (default) spaces them evenly,
        `limit` lets a whole period's worth go at once. At most `limit`.
    :param margin: stretches the emission interval by this share (default 0.01), so that the
        promise still holds at the API: the way from admission to arrival may vary by up to
        `margin * per`. 0 is allowed.
    :param on_outage: what happens while Redis is away: `"share"`, `"wait"`, `"open"`, `"raise"` (see
        `fleetlimit.store.guard`); None: what the app or the `RateLimiter` says.
    :raises ConfigurationError: naming the argument and the value.
    """

    name: str
    limit: int
    per: float = field(default=1.0)
    burst: int = 1
    margin: float = 0.01
    on_outage: str | None = None
    #: The same limit in whole ticks, as the algorithm and the scripts use it.
    rule: Rule = field(init=False, repr=False, compare=False)

    def __init__(
        self,
        name: str,
        limit: int,
        per: float | timedelta = 1.0,
        *,
        burst: int = 1,
        margin: float = 0.01,
        on_outage: str | None = None,
    ) -> None:
        put = object.__setattr__  # frozen: the only place that writes
        put(self, "name", _checked_name(name))
        put(self, "limit", _whole("limit", limit))
        put(self, "per", _seconds(per))
        put(self, "burst", _whole("burst", burst))
        put(self, "margin", _checked_margin(margin))
        put(self, "on_outage", on_outage if on_outage is None else checked_policy(on_outage))
        if self.burst > self.limit:
            raise ConfigurationError(
                f"burst={burst!r} is above limit={limit!r}: a burst is part of the period's units"
            )
        put(self, "rule", _rule(self))

    @property
    def per_us(self) -> int:
        """The period in microseconds."""
        return round(self.per * 1_000_000)

    def check_cost(self, cost: int) -> int:
        """Return `cost` if it can ever be admitted.

        :raises CostError: for a cost that is no whole number from 1, or above `burst`.
        """
        if isinstance(cost, bool) or not isinstance(cost, int) or cost < 1:
            raise CostError(f"cost={cost!r} for limit {self.name!r}: must be a whole number from 1")
        if cost > self.burst:
            raise CostError(
                f"cost={cost!r} for limit {self.name!r} can never be admitted: "
                f"burst={self.burst!r} is the most that may start at one instant"
            )
        return cost


def checked_policy(policy: object) -> str:
    """:raises ConfigurationError: for what is no `on_outage`."""
    if policy not in POLICIES:
        raise ConfigurationError(f"on_outage={_short(policy)}: must be one of {POLICIES}")
    return str(policy)


def checked_processes(argument: str, number: object) -> int | None:
    """:raises ConfigurationError: for what is no number of processes, nor None."""
    return None if number is None else _whole(argument, number)


def _checked_name(name: object) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"name={_short(name)}: must be 1 to 128 of the characters A-Z a-z 0-9 _ . - /, "
            "and begin and end with a letter or a digit"
        )
    return name


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _whole(argument: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigurationError(f"{argument}={_short(value)}: must be a whole number from 1")
    return value


def _seconds(per: object) -> float:
    if isinstance(per, timedelta):
        per = per.total_seconds()
    number = isinstance(per, (int, float)) and not isinstance(per, bool)
    if not number or not abs(per) < 1e12:  # type: ignore[arg-type]  # number says it has one
        raise ConfigurationError(f"per={_short(per)}: must be seconds (a number) or a timedelta")
    if per < 1e-6:  # type: ignore[operator]  # same
        raise ConfigurationError(f"per={per!r}: must be at least one microsecond")
    return per  # type: ignore[return-value]  # same


def _checked_margin(margin: object) -> float:
    number = isinstance(margin, (int, float)) and not isinstance(margin, bool)
    if not number or not 0 <= margin < 1:  # type: ignore[operator]  # number says it compares
        raise ConfigurationError(f"margin={_short(margin)}: must be a number from 0, below 1")
    return margin  # type: ignore[return-value]  # same


def _rule(limit: RateLimit) -> Rule:
    """Choose the tick: a microsecond, or as fine as keeps rounding below 0.1 % of the rate."""
    exact = Fraction(limit.per_us) * (1 + Fraction(str(limit.margin))) / limit.limit
    for ticks_per_us in (1, 10**3, 10**6, 10**9):
        emission = math.ceil(exact * ticks_per_us)
        if emission <= exact * ticks_per_us * (1 + _ROUNDING):
            break
    if emission * limit.burst + 10**6 * ticks_per_us >= _EXACT:
        raise ConfigurationError(
            f"limit={limit.limit!r}, per={limit.per!r}, burst={limit.burst!r}: "
            "too fine or too long to be counted exactly"
        )
    return Rule(emission, ticks_per_us, emission * limit.burst)
