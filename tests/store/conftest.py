"""A clock that the test moves."""

from __future__ import annotations

import pytest

from fleetlimit.conformance import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()
