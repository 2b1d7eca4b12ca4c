"""Fixtures for a program's own tests; what they do is in `fleetlimit.testing`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from fleetlimit.testing import Limits

__all__ = ["limits_in_memory", "limits_off", "limits_recorded"]


@pytest.fixture
def limits_off() -> Iterator[None]:
    """No limit holds anybody back."""
    from fleetlimit import testing

    with testing.off():
        yield


@pytest.fixture
def limits_recorded() -> Iterator[Limits]:
    """No limit holds anybody back; `.asked` tells what was asked for."""
    from fleetlimit import testing

    with testing.recorded() as limits:
        yield limits


@pytest.fixture
def limits_in_memory() -> Iterator[Limits]:
    """The real algorithm in memory, on a clock that `.clock.advance(seconds)` moves."""
    from fleetlimit import testing

    with testing.in_memory() as limits:
        yield limits
