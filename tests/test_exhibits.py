"""The limiters that are broken on purpose break, and the shared one beside them does not."""

from __future__ import annotations

import pytest

from examples.broken_limiters import CONFIGURED, INSTANCES, at_once, fleet
from fleetlimit.demo.processes import Server
from fleetlimit.limit import ALGORITHMS


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_private_limiters_admit_as_often_as_there_are_instances(algorithm: str) -> None:
    assert fleet(algorithm) == INSTANCES * CONFIGURED


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_shared_limiter_admits_its_number(server: Server, algorithm: str) -> None:
    """If it ever fell back to private state, this would be the number above."""
    assert fleet(algorithm, server.url) == CONFIGURED


def test_get_then_set_admits_nearly_all_and_the_script_its_number(server: Server) -> None:
    racy, exact = at_once(server.url, 10, 100)
    assert exact == 10
    assert racy > 50  # all who had read before the tenth had written
