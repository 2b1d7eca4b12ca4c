"""What a limiter does with Redis, all of it."""

from __future__ import annotations

from fleetlimit import RateLimit, RateLimiter
from fleetlimit.limiter import redis_store
from fleetlimit.store.base import Spend, Ticket, Verdict
from fleetlimit.store.room import Room

ONE = RateLimit("one", 1, 60)
FIVE = RateLimit("five", 5, 60, burst=5)


def everything(limiter: RateLimiter) -> None:
    """Each verb and each script, once."""
    store = redis_store(limiter.store)
    assert store
    room, line = Room(store, "b"), store.keys.state("one")
    assert limiter.acquire(ONE)
    assert limiter.acquire([ONE, FIVE]).retry_after
    ticket = Ticket("t", broker="b", message="m", horizon_us=1)
    assert store.acquire([Spend(ONE)], ticket).verdict is Verdict.PARKED
    room.due_lines()
    limiter.configure("one", 1000, 1)
    assert limiter.parked("one") == ["t"]
    released = room.release(line, 150_000)
    room.confirm(line, released.copy, ["t"])
    store.withdraw("one", "", "t")
    limiter.pause("one", 1)
    limiter.resume("one")
    limiter.configure("one")
    outcome = store.acquire([Spend(FIVE)])
    store.delay([Spend(FIVE)], 1000)
    store.give_back(Spend(FIVE), outcome.readings[0])
    limiter.status("one")
    limiter.reset(ONE)
    room.wake_all()
    assert store.beat("me:4", 10)[0] >= 4
    assert store.rejoin(Spend(ONE)) > 0
