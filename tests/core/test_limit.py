"""`RateLimit`: what is refused, and that the emission interval is exact enough."""

from __future__ import annotations

import math
import re
from datetime import timedelta
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetlimit import ConfigurationError, CostError, RateLimit
from fleetlimit.limit import ALGORITHMS


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        *[("limit", bad) for bad in (0, -1, 1.5, math.nan, math.inf, True, "100", None)],
        *[("per", bad) for bad in (0, -1, math.nan, math.inf, True, "60", None, 1e-9)],
        ("per", timedelta(0)),
        *[("burst", bad) for bad in (0, -1, 11, True, 1.5, "2")],
        *[("margin", bad) for bad in (-0.1, 1, math.nan, math.inf, True, "0", None)],
        *[
            ("name", bad)
            for bad in ("", "a:b", "a{b", "a}b", "a*", "a\n", "a\0", "é", "x" * 10_000)
        ],
        *[("name", bad) for bad in (None, 5, " a", "-a", "a-")],
        *[("algorithm", bad) for bad in (None, "", "GCRA", "leaky", 5)],
        *[("offset", bad) for bad in (None, "0", True, math.nan, math.inf, 5)],
        *[("tz", bad) for bad in ("Europe/Berlin", "", 5)],
    ],
)
def test_bad_arguments_are_named(argument: str, value: object) -> None:  # N7, N13
    arguments = {"name": "api", "limit": 10, "per": 1.0, argument: value}
    with pytest.raises(ConfigurationError, match=argument) as caught:
        RateLimit(**arguments)  # type: ignore[arg-type]
    shown = value.total_seconds() if isinstance(value, timedelta) else value
    assert repr(shown)[:60] in str(caught.value)


@pytest.mark.parametrize("cost", [0, -1, True, 1.5, "1", None, 6])
def test_impossible_costs(cost: object) -> None:  # N3, N7
    with pytest.raises(CostError, match="cost="):
        RateLimit("api", 10, 1, burst=5).check_cost(cost)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("limit", "per", "margin", "emission", "ticks_per_us"),
    [
        (2000, 1, 0.01, 505, 1),
        (1, 86_400, 0, 86_400_000_000, 1),
        (1, 0.5, 0, 500_000, 1),
        (3, timedelta(seconds=7), 0, 2_333_334, 1),
        (1_000_000, 1, 0.01, 1010, 1000),
        (7, 60, 0.01, 8_657_143, 1),
    ],
)
def test_emission(
    limit: int, per: float, margin: float, emission: int, ticks_per_us: int
) -> None:  # N7
    rule = RateLimit("api", limit, per, margin=margin).rule
    assert (rule.emission, rule.ticks_per_us) == (emission, ticks_per_us)


@given(
    limit=st.integers(1, 10**7),
    per=st.floats(0.001, 86_400),
    margin=st.sampled_from([0, 0.01, 0.5]),
)
def test_rounding_never_gives_more_and_costs_little(limit: int, per: float, margin: float) -> None:
    made = RateLimit("api", limit, per, margin=margin)
    exact = Fraction(made.per_us) * (1 + Fraction(str(margin))) / limit
    emission = Fraction(made.rule.emission, made.rule.ticks_per_us)
    assert exact <= emission <= exact * Fraction(1001, 1000)
    assert made.rule.capacity == made.rule.emission * made.burst


def test_too_fine_to_be_exact() -> None:
    with pytest.raises(ConfigurationError, match="too fine or too long"):
        RateLimit("api", 10**13, 86_400, burst=10**13)


def test_equal_limits_are_equal() -> None:
    assert RateLimit("api", 10, 60) == RateLimit("api", 10, timedelta(minutes=1))
    assert hash(RateLimit("api", 10, 1)) == hash(RateLimit("api", 10, 1))
    assert RateLimit("api", 10, 1) != RateLimit("api", 11, 1)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"algorithm": "fixed_window", "burst": 5}, "burst=5"),
        ({"algorithm": "leaky_bucket", "burst": 2}, "burst=2"),
        ({"algorithm": "fixed_window", "tz": "Mars/Olympus"}, "tz='Mars/Olympus'"),
        ({"algorithm": "fixed_window", "tz": "../etc"}, "tz='../etc'"),
        ({"algorithm": "fixed_window", "tz": "UTC", "per": 15 * 86_400}, "per=1296000"),
        ({"algorithm": "sliding_counter", "tz": "UTC"}, "tz='UTC'"),
        ({"algorithm": "sliding_log", "offset": 5}, "offset=5"),
        ({"algorithm": "sliding_log", "limit": 1_000_001}, "limit=1000001"),
        ({"algorithm": "sliding_counter", "limit": 10**12, "per": 86_400}, "limit=1000000000000"),
    ],
)
def test_what_an_algorithm_does_not_have(arguments: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(said)):
        RateLimit(**{"name": "api", "limit": 10, "per": 1, **arguments})  # type: ignore[arg-type]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_cost_above_what_can_ever_start(algorithm: str) -> None:  # N3
    limit = RateLimit("api", 10, 1, algorithm=algorithm)
    assert limit.most == (1 if algorithm == "gcra" else 10)
    with pytest.raises(CostError, match="can never be admitted"):
        limit.check_cost(limit.most + 1)


def test_the_period_has_to_be_said() -> None:
    """A rate of 100 per minute that is taken for 100 per second is sixty times too fast."""
    with pytest.raises(ConfigurationError, match="per=None: say the period"):
        RateLimit("api", 100)


def test_celerys_form_is_named_and_can_be_read() -> None:
    with pytest.raises(ConfigurationError) as caught:
        RateLimit("api", "100/m")  # type: ignore[arg-type]
    assert "limit='100/m'" in str(caught.value)
    assert "limit=100, per=60" in str(caught.value)
    assert "RateLimit.parse('100/m', name='api')" in str(caught.value)
    assert RateLimit.parse("100/m", name="api") == RateLimit("api", 100, 60)
    assert RateLimit.parse("2/h", name="api", algorithm="sliding_log") == RateLimit(
        "api", 2, 3600, algorithm="sliding_log"
    )


@pytest.mark.parametrize("rate", ["100", "100/", "/m", "0.5/m", "-1/m", "100/min", "", 100, None])
def test_what_is_no_rate(rate: object) -> None:
    with pytest.raises(ConfigurationError, match="rate=") as caught:
        RateLimit.parse(rate, name="api")  # type: ignore[arg-type]
    assert repr(rate) in str(caught.value)
