"""What may still start after `pause` has returned: who was admitted before, and sleeps in place until its start."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleetlimit.demo.processes import Server, until

from .harness import Fleet, fleet, patient, shop

SLOTS, MAX_SLEEP = 16, 0.25


@pytest.fixture
def one(server: Server, tmp_path: Path) -> Iterator[Fleet]:
    env = shop({"call": ("partner", 100)}, fleetlimit_max_sleep=MAX_SLEEP)
    with fleet(tmp_path, server.url, server.url, **env) as made:
        made.start("threads", SLOTS)
        yield made


def test_only_who_sleeps_in_place_starts_after_a_pause(one: Fleet) -> None:
    """Each slot of a pool holds one such task at most, and none for longer than `fleetlimit_max_sleep`."""
    run, limiter = one.run(), patient(one)
    for n in range(900):
        one.send("call", run, n)
    for _ in range(3):
        started = len(one.starts(run))
        until(lambda started=started: len(one.starts(run)) > started + 50, "they start")
        limiter.pause("partner", 60)
        at = time.time()
        until(
            lambda at=at: time.time() > at + 2, "two seconds"
        )  # a hundred and more if it did not hold
        after = [it["at"] - at for it in one.starts(run) if it["at"] > at]
        assert len(after) <= SLOTS
        assert max(after, default=0) < MAX_SLEEP + 0.5  # the half second is for a busy machine
        limiter.resume("partner")
    assert sorted(it["n"] for it in one.wait(run, 900)) == list(range(900))
