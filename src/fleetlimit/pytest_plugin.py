"""Fixtures for a program's own tests. `fleetlimit.testing` explains them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from fleetlimit.testing import Limits

__all__ = ["limits_in_memory", "limits_off", "limits_recorded"]


@pytest.fixture
def limits_off() -> Iterator[None]:
    """Every limit admits every request."""
    from fleetlimit import testing

    with testing.off():
        yield


@pytest.fixture
def limits_recorded() -> Iterator[Limits]:
    """Every limit admits every request, and `.asked` lists the questions."""
    from fleetlimit import testing

    with testing.recorded() as limits:
        yield limits


@pytest.fixture
def limits_in_memory() -> Iterator[Limits]:
    """The real algorithm runs in memory, on a clock that `.clock.advance(seconds)` moves."""
    from fleetlimit import testing

    with testing.in_memory() as limits:
        yield limits
