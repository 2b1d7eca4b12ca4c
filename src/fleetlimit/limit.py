"""`RateLimit`: the value object that says how much is allowed, and all of its validation."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from zoneinfo import ZoneInfo

from fleetlimit.algorithms.base import LEAST_MARGIN, Algorithm
from fleetlimit.algorithms.registry import (
    ALGORITHMS,
    DEFAULT,
    ONE_OF_EACH,
    kind_of,
    name_of,
    rule_of,
)
from fleetlimit.errors import ConfigurationError, CostError

__all__ = [
    "ALGORITHMS",
    "DEFAULT",
    "DEFAULT_MARGIN",
    "POLICIES",
    "RateLimit",
    "checked_policy",
    "checked_processes",
    "rules_of",
]

#: What may happen while the store is away.
POLICIES = ("share", "wait", "open", "raise")

#: What `margin` is if nothing is said.
DEFAULT_MARGIN: float | str = "auto"

#: Celery's form of a rate, and how many seconds its letters stand for.
_RATE = re.compile(r"(\d{1,15})/([smhd])", re.ASCII)
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.\-/]{0,126}[A-Za-z0-9])?")


@dataclass(frozen=True)
class RateLimit:
    """At most `limit` units per `per`, shared by all who use the same `name`.

    In any window of `per` at most `bound` units are admitted: with the default algorithm `limit + burst - 1`.

    :param name: identity of the limit; letters, digits and `_ . - /`, at most 128.
    :param limit: units per period, a whole number from 1.
    :param per: the period, in seconds or as a `timedelta`; a microsecond at least. It has no default.
    :param algorithm: how it counts: `"gcra"` (default), `"token_bucket"`, `"leaky_bucket"`,
        `"fixed_window"`, `"sliding_log"` or `"sliding_counter"`; docs/algorithms.md says when to pick which.
    :param burst: units that may start at the same instant, at most `limit`. For `gcra`, where 1 (default)
        spaces them evenly, and `token_bucket` (default: `limit`); the others have none of their own.
    :param margin: the share of the period (0 is allowed) by which the way from admission to the API may vary
        without breaking the promise there. It stretches the emission interval or the log's period; of a fixed
        window or a sliding counter's, the last share admits nothing. `"auto"` (default): 0.01, and up to 0.1 while
        a worker of the fleet sees that its host makes tasks late.
    :param on_outage: what happens while Redis is away: `"share"`, `"wait"`, `"open"`, `"raise"` (see
        `fleetlimit.store.guard`); None: what the app or the `RateLimiter` says.
    :param offset: when windows begin after the epoch (or after midnight of 1970-01-01 in `tz`), seconds or
        a `timedelta`; for `fixed_window` and `sliding_counter`. The epoch was a Thursday: a week that begins
        on Monday has an offset of four days.
    :param tz: the IANA name of the zone whose midnight windows are aligned to, for `fixed_window`; a day is
        then 23 or 25 hours long where the clocks change.
    :raises ConfigurationError: naming the argument and the value.
    """

    name: str
    limit: int
    per: float
    burst: int = 1
    margin: float | str = DEFAULT_MARGIN
    on_outage: str | None = None
    algorithm: str = DEFAULT
    offset: float = 0.0
    tz: str | None = None
    _rule: Algorithm = field(init=False, repr=False, compare=False)

    def __init__(
        self,
        name: str,
        limit: int,
        per: float | timedelta | None = None,  # required: left out, it is named as any wrong value
        *,
        burst: int | None = None,
        margin: float | str = DEFAULT_MARGIN,
        on_outage: str | None = None,
        algorithm: str = DEFAULT,
        offset: float | timedelta = 0.0,
        tz: str | None = None,
    ) -> None:
        put = object.__setattr__  # frozen: the only place that writes
        put(self, "name", _checked_name(name))
        put(self, "limit", _units(name, limit))
        put(self, "per", _seconds(per))
        put(self, "algorithm", _checked_algorithm(algorithm))
        put(self, "burst", self._checked_burst(burst))
        put(self, "margin", _checked_margin(margin))
        put(self, "on_outage", on_outage if on_outage is None else checked_policy(on_outage))
        put(self, "offset", self._checked_offset(offset))
        put(self, "tz", self._checked_zone(tz))
        put(self, "_rule", rule_of(self))

    @classmethod
    def parse(cls, rate: str, *, name: str, **options: Any) -> RateLimit:
        """A limit from Celery's form of a rate: `RateLimit.parse("100/m", name="partner-api")`.

        :param rate: a whole number, a slash, and `s`, `m`, `h` or `d` (a day).
        :param options: all other arguments of a `RateLimit`.
        :raises ConfigurationError: naming the argument and the value.
        """
        found = _RATE.fullmatch(rate) if isinstance(rate, str) else None
        if not found:
            raise ConfigurationError(
                f"rate={_short(rate)}: must be a whole number, a slash and one of s, m, h and d, "
                "such as '100/m' for 100 in 60 seconds"
            )
        return cls(name, int(found[1]), _UNITS[found[2]], **options)

    @property
    def rule(self) -> Algorithm:
        """The same limit in whole numbers, as the algorithm and the scripts use it."""
        return self._rule if self.tz is None else rule_of(self)

    @property
    def per_us(self) -> int:
        """The period in microseconds."""
        return round(self.per * 1_000_000)

    @property
    def least_margin(self) -> float:
        """The share of the period that is kept free in any case."""
        return LEAST_MARGIN / 1000 if isinstance(self.margin, str) else self.margin

    @property
    def most(self) -> int:
        """The most that one run may cost."""
        return kind_of(self.algorithm).most(self)

    @property
    def bound(self) -> int:
        """The most units of cost 1 in any window of `per`, wherever it begins."""
        return kind_of(self.algorithm).bound(self)

    def check_cost(self, cost: int) -> int:
        """Return `cost` if it can ever be admitted.

        :raises CostError: for a cost that is no whole number from 1, or above `most`.
        """
        if isinstance(cost, bool) or not isinstance(cost, int) or cost < 1:
            raise CostError(f"cost={cost!r} for limit {self.name!r}: must be a whole number from 1")
        if cost > self.most:
            argument = "burst" if self.most == self.burst else "limit"
            raise CostError(
                f"cost={cost!r} for limit {self.name!r} can never be admitted: "
                f"{argument}={self.most!r} is the most that may start at one instant"
            )
        return cost

    def _checked_burst(self, burst: int | None) -> int:
        name = name_of(self.algorithm)
        if "burst" not in name.options:
            if burst is not None and _whole("burst", burst) != 1:
                raise ConfigurationError(f"burst={_short(burst)}: {self.algorithm} has no burst")
            return 1
        if burst is None:
            return self.limit if name.full_burst else 1
        if _whole("burst", burst) > self.limit:
            raise ConfigurationError(
                f"burst={burst!r} is above limit={self.limit!r}: a burst is part of the period's units"
            )
        return burst

    def _checked_offset(self, offset: object) -> float:
        if isinstance(offset, timedelta):
            offset = offset.total_seconds()
        number = isinstance(offset, (int, float)) and not isinstance(offset, bool)
        if not number or not abs(offset) < 1e9:  # type: ignore[arg-type]  # number says it has one
            raise ConfigurationError(f"offset={_short(offset)}: must be seconds or a timedelta")
        if offset and "offset" not in name_of(self.algorithm).options:
            raise ConfigurationError(f"offset={offset!r}: {self.algorithm} has no windows to align")
        return float(offset)  # type: ignore[arg-type]  # same

    def _checked_zone(self, tz: object) -> str | None:
        if tz is None:
            return None
        if "tz" not in name_of(self.algorithm).options:
            zoned = " or ".join(one for one in ALGORITHMS if "tz" in name_of(one).options)
            raise ConfigurationError(f"tz={_short(tz)}: only {zoned} is aligned to a zone")
        try:
            if not isinstance(tz, str):
                raise TypeError("not a name")
            return ZoneInfo(tz).key
        except (TypeError, ValueError, OSError, LookupError) as error:
            raise ConfigurationError(f"tz={_short(tz)}: no such time zone here: {error}") from error


def rules_of(name: str, own: str | None, given: dict[str, Any]) -> tuple[Algorithm, ...]:
    """The numbers as the algorithm that was given counts them. Without one, as each of them does: the
    limit is asked for by its own.

    :raises ConfigurationError: for what the given algorithm, or the limit's `own`, cannot take.
    """
    if "algorithm" in given:
        return (RateLimit(name, **given).rule,)
    if own:
        RateLimit(name, **given, algorithm=own)
    found = []
    for algorithm in ONE_OF_EACH:
        parts = {"limit", "per", "margin"} | name_of(algorithm).options
        numbers = {part: value for part, value in given.items() if part in parts}
        try:
            found.append(RateLimit(name, **numbers, algorithm=algorithm).rule)
        except ConfigurationError:
            if algorithm == DEFAULT and not own:
                raise
    return tuple(found)


def checked_policy(policy: object) -> str:
    """:raises ConfigurationError: for what is no `on_outage`."""
    if policy not in POLICIES:
        raise ConfigurationError(f"on_outage={_short(policy)}: must be one of {POLICIES}")
    return str(policy)


def _checked_algorithm(algorithm: object) -> str:
    if algorithm not in ALGORITHMS:
        raise ConfigurationError(f"algorithm={_short(algorithm)}: must be one of {ALGORITHMS}")
    return str(algorithm)


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


def _units(name: object, limit: object) -> int:
    if isinstance(limit, str) and (found := _RATE.fullmatch(limit)):
        raise ConfigurationError(
            f"limit={limit!r}: this is Celery's form of a rate. Write limit={found[1]}, "
            f"per={_UNITS[found[2]]}, or RateLimit.parse({limit!r}, name={name!r})"
        )
    return _whole("limit", limit)


def _seconds(per: object) -> float:
    if per is None:
        raise ConfigurationError(
            "per=None: say the period, in seconds (60) or as a timedelta; it has no default"
        )
    if isinstance(per, timedelta):
        per = per.total_seconds()
    number = isinstance(per, (int, float)) and not isinstance(per, bool)
    if not number or not abs(per) < 1e12:  # type: ignore[arg-type]  # number says it has one
        raise ConfigurationError(f"per={_short(per)}: must be seconds (a number) or a timedelta")
    if per < 1e-6:  # type: ignore[operator]  # same
        raise ConfigurationError(f"per={per!r}: must be at least one microsecond")
    return per  # type: ignore[return-value]  # same


def _checked_margin(margin: object) -> float | str:
    if margin == "auto":
        return "auto"
    number = isinstance(margin, (int, float)) and not isinstance(margin, bool)
    if not number or not 0 <= margin < 1:  # type: ignore[operator]  # number says it compares
        raise ConfigurationError(
            f"margin={_short(margin)}: must be a number from 0, below 1, or 'auto'"
        )
    return margin  # type: ignore[return-value]  # same
