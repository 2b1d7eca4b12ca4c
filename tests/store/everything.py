"""What a limiter does with Redis, all of it."""

from __future__ import annotations

import pytest

from fleetlimit import RateLimit, RateLimiter, UnknownLimitError
from fleetlimit.limiter import redis_store
from fleetlimit.store.base import Spend, Ticket, Verdict
from fleetlimit.store.room import Fate, Released, Room

ONE = RateLimit("one", 1, 60)
FIVE = RateLimit("five", 5, 60, burst=5)


def everything(limiter: RateLimiter) -> None:
    """Each verb and each script, once."""
    store = redis_store(limiter.store)
    assert store
    room = Room(store, "b")
    assert limiter.acquire(ONE)
    assert limiter.acquire([ONE, FIVE]).retry_after
    ticket = Ticket("t", broker="b", message="m", horizon_us=1)
    assert store.acquire([Spend(ONE)], ticket).verdict is Verdict.PARKED
    room.due_lines()
    limiter.configure("one", 1000, 1)
    assert limiter.parked("one") == ["t"]
    (released,) = room.release([store.keys.state("one")], 150_000)
    assert isinstance(released, Released)
    room.settle([Fate(released, {"t": ("no queue takes it", True)})])
    assert not limiter.cancel("one", "nobody")
    assert limiter.cancel_all("one") == 1
    for id in ("t", "u"):
        store.acquire([Spend(ONE)], Ticket(id, broker="b", message="m", max_sleep_us=0))
    assert not limiter.quarantined("one")
    assert not limiter.retry("one", "t")
    store.withdraw("one", "", "t")
    room.remember_revoked(["t"])
    assert room.revoked(["t", "u"]) == {"t"}
    assert room.orphans() == []
    assert Room(store, "c").adopt("b") >= 0
    assert store.identity()
    limiter.pause("one", 1)
    limiter.resume("one")
    limiter.configure("one")
    outcome = store.acquire([Spend(FIVE)])
    store.delay([Spend(FIVE)], 1000)
    store.give_back(Spend(FIVE), outcome.readings[0])
    limiter.status("one")
    with pytest.raises(UnknownLimitError, match=r"five\?"):
        limiter.pause("fivee", 1)
    limiter.reset(ONE)
    room.wake()
    assert store.beat("me:4", 10)[0] >= 4
    assert store.rejoin(Spend(ONE)) > 0
