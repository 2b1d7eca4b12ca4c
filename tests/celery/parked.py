"""Messages parked without a worker, and a releaser that is called by hand."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import redis
from celery import Celery

from fleetlimit import RateLimit
from fleetlimit.celery.broker import identify
from fleetlimit.celery.message import Message
from fleetlimit.celery.queues import lane_of
from fleetlimit.celery.releaser import Releaser
from fleetlimit.store.base import Spend, Ticket
from fleetlimit.store.redis import RedisStore
from fleetlimit.store.room import AT_ONCE, Room

__all__ = ["Rig", "message", "rig"]


def message(id: str, **fields: Any) -> Message:
    """A sound one, but for these fields."""
    made: dict[str, Any] = {
        "id": id,
        "headers": {"task": "shop.charge", "id": id, "retries": 0, "lang": "py"},
        "properties": {"correlation_id": id, "delivery_mode": 2, "priority": 0},
        "body": ((id,), {}, {}),
        "serializer": "json",
        "exchange": "",
        "routing_key": "celery",
        "eta": None,
        "copy": "",
        "queues": [],
    }
    return Message(**{**made, **fields})


class Rig:
    """An app, its limits' Redis, which is its broker too, and a releaser that lets all go at once (or `lead_us` before
    their turn)."""

    def __init__(self, url: str, lead_us: int = AT_ONCE, **conf: Any) -> None:
        self.app = Celery("rig", broker=url, set_as_current=False)
        self.app.conf.update(fleetlimit_url=url, **conf)
        self.raw = redis.Redis.from_url(url)
        self.raw.flushall()
        self.store = RedisStore(redis.Redis.from_url(url, socket_timeout=60))
        self.broker = identify(self.app)
        self.room = Room(self.store, self.broker)
        self.lead_us = lead_us
        self.releaser = self.another()
        self.number = 0

    def another(self) -> Releaser:
        ready = threading.Event()
        ready.set()
        return Releaser(self.app, lambda: self.room, ready, lead_us=self.lead_us)

    def park(self, text: str | bytes, id: str = "", limit: str = "api", cost: int = 1) -> str:
        """Park a text as it is, in the line of a limit of 20 a second that is paused until `open`; the ticket."""
        one = RateLimit(limit, 20, 1, margin=0, burst=5)
        self.number += 1
        ticket = id or f"t{self.number}"
        lane, queue = lane_of(self.app, self.broker, "", "celery")
        self.store.change_override(limit, pause_us=3_600_000_000)
        where = {"broker": self.broker, "lane": lane, "queue": queue}
        at_once = {"max_sleep_us": 0, "park_after_us": -1}
        self.store.acquire([Spend(one, cost=cost)], Ticket(ticket, message="x", **at_once, **where))
        key = f"fleetlimit:{{{limit}}}:room"
        form, rule, _ = self.raw.hget(key, ticket).split(b":", 2)
        what = text.encode() if isinstance(text, str) else text
        self.raw.hset(key, ticket, b":".join((form, rule, what)))
        return ticket

    def open(self, limit: str = "api") -> None:
        self.store.change_override(limit, pause_us=0)
        self.room.wake(limit)

    def good(self, number: int, limit: str = "api") -> list[str]:
        """Park so many sound tasks; their ids."""
        ids = [f"good{self.number + n}" for n in range(number)]
        for id in ids:
            self.park(message(id).packed(self.secret), id, limit)
        return ids

    def look(self) -> None:
        """Every line is due."""
        index = f"fleetlimit:rooms:{self.broker}"
        for line in self.raw.zrange(index, 0, -1):
            self.raw.zadd(index, {line: 0})
        self.releaser.look(0)

    @property
    def secret(self) -> str | None:
        return self.app.conf.get("fleetlimit_secret")

    def published(self, queue: str = "celery") -> list[dict[str, Any]]:
        """The headers of what lies in a queue, the oldest first."""
        return [json.loads(one)["headers"] for one in reversed(self.raw.lrange(queue, 0, -1))]

    def ids(self) -> list[str]:
        return [one["id"] for one in self.published()]

    def bad(self, limit: str = "api") -> dict[str, str]:
        """What lies in quarantine: why, by task."""
        return {one.id: one.error for one in self.room.quarantined(limit)}

    def close(self) -> None:
        self.releaser.stop()
        self.store.close()
        self.raw.close()
        self.app.close()


@contextmanager
def rig(url: str, lead_us: int = AT_ONCE, **conf: Any) -> Iterator[Rig]:
    one = Rig(url, lead_us, **conf)
    try:
        yield one
    finally:
        one.close()
