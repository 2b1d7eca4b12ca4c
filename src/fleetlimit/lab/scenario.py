"""The parameters of a run, their defaults and their bounds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from fleetlimit.errors import ConfigurationError
from fleetlimit.limit import ALGORITHMS, RateLimit

__all__ = ["CHOICES", "RANGES", "BadParameter", "Scenario", "parse"]

CHOICES: dict[str, tuple[str, ...]] = {
    "algorithm": tuple(ALGORITHMS),
    "traffic": ("steady", "burst", "boundary", "overload"),
    "instances": ("1", "3", "30"),
    #: Where the limit's state is kept: in each instance; shared, but read and written back in two
    #: steps; shared and changed in one step.
    "state": ("private", "naive", "atomic"),
    #: What a denied request does: it leaves; it waits for `retry_after`; it waits for its own turn in the line.
    "denied": ("leave", "countdown", "place"),
}
#: The smallest and the largest possible value of each number.
RANGES: dict[str, tuple[float, float]] = {
    "limit": (1, 1_000),
    "per": (0.1, 86_400),
    "burst": (1, 1_000),
    "latency": (0, 1000),
    "seed": (0, 9999),
}


class BadParameter(ValueError):
    """A parameter with a wrong value. The text names the parameter and the value."""


@dataclass(frozen=True)
class Scenario:
    """The parameters of one run. `per` is in seconds. `latency` is the time from a naive GET to its SET, in
    milliseconds. `burst` None is the algorithm's own default. The same scenario gives the same run."""

    algorithm: str = "gcra"
    traffic: str = "burst"
    instances: int = 3
    state: str = "atomic"
    denied: str = "place"
    limit: int = 10
    per: float = 60
    burst: int | None = None
    latency: int = 20
    seed: int = 1

    def rate_limit(self) -> RateLimit:
        """The limit as an object of the library."""
        return RateLimit(
            "partner-api", self.limit, self.per, algorithm=self.algorithm, burst=self.burst
        )

    def code(self) -> str:
        """The limit as a user writes it in Python."""
        extra = "" if self.algorithm == "gcra" else f', algorithm="{self.algorithm}"'
        extra += "" if self.burst is None else f", burst={self.burst}"
        per = int(self.per) if self.per == int(self.per) else self.per
        return f'RateLimit("partner-api", {self.limit}, per={per}{extra})'

    @property
    def period(self) -> str:
        """`per` as the page shows it, such as `86,400 s`."""
        return f"{self.per:,.0f} s" if self.per == int(self.per) else f"{self.per:,} s"

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def parse(query: Mapping[str, str]) -> Scenario:
    """The scenario of a URL's query. A parameter that is not in the query has its default.

    :raises BadParameter: for an unknown name, or a value that is not possible.
    """
    names = {field.name for field in fields(Scenario)}
    for name, value in query.items():
        if name not in names:
            raise BadParameter(f"{name[:40]}={_short(value)}: there is no such parameter")
    scenario = Scenario(**{name: _value(name, value) for name, value in query.items()})
    if scenario.state == "naive" and scenario.denied == "place":
        raise BadParameter("denied='place': with state='naive' there is no line to wait in")
    try:
        scenario.rate_limit()
    except ConfigurationError as error:
        raise BadParameter(str(error)) from None
    return scenario


def _value(name: str, value: str) -> Any:
    if name in CHOICES:
        if value not in CHOICES[name]:
            known = ", ".join(CHOICES[name])
            raise BadParameter(f"{name}={_short(value)}: must be one of {known}")
        return int(value) if name == "instances" else value
    least, most = RANGES[name]
    try:
        number = float(value) if name == "per" else int(value)
    except ValueError:
        number = math.nan
    if not least <= number <= most:
        kind = "a number" if name == "per" else "a whole number"
        raise BadParameter(f"{name}={_short(value)}: must be {kind} from {least} to {most:,}")
    return number


def _short(value: str) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
