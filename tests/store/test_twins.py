"""The Lua and the Python are one algorithm: random histories, every answer compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fleetlimit.conformance import Clock
from fleetlimit.demo.processes import Server
from fleetlimit.limit import RateLimit
from fleetlimit.store.base import Spend, Store, Ticket
from fleetlimit.store.memory import MemoryStore
from fleetlimit.store.redis import RedisStore

WINDOWS = ("fixed_window", "sliding_log", "sliding_counter")
# One name with different numbers: a limit that is changed in flight.
LIMITS = [
    RateLimit("a", 10, 1, margin=0),
    RateLimit("a", 100, 1, burst=5, margin="auto"),
    RateLimit("b", 7, 60, burst=7, margin="auto"),
    RateLimit("b", 1_000_000, 1, burst=20, margin="auto"),
    RateLimit("c", 3, 1, burst=2),
    RateLimit("f", 5, 0.3, algorithm="fixed_window", margin="auto"),
    RateLimit("f", 8, 1, algorithm="fixed_window", offset=0.25, margin=0.1),
    RateLimit("z", 9, 3600, algorithm="fixed_window", tz="America/New_York", margin="auto"),
    RateLimit("l", 6, 0.5, algorithm="sliding_log", margin=0),
    RateLimit("l", 9, 1, algorithm="sliding_log", margin="auto"),
    RateLimit("s", 5, 0.3, algorithm="sliding_counter", margin="auto"),
    RateLimit("s", 9, 1, algorithm="sliding_counter", offset=0.5, margin=0),
    RateLimit("b", 7, 1, algorithm="leaky_bucket", margin="auto"),
    RateLimit("a", 7, 1, algorithm="sliding_log"),
    RateLimit("c", 7, 1, algorithm="fixed_window"),
]
OVERRIDES = [
    *[()] * 4,
    *[
        (RateLimit("x", n, 1, burst=b, margin="auto").rule,)
        for n, b in ((20, 1), (3, 3), (50, 9), (7, 2))
    ],
    (RateLimit("x", 8, 1, algorithm="fixed_window").rule,),
    *[(RateLimit("x", n, 1, algorithm="sliding_log").rule,) for n in (3, 12)],
    (RateLimit("x", 8, 0.4, algorithm="sliding_counter").rule,),
    tuple(RateLimit("x", 4, 0.7, algorithm=one, margin="auto").rule for one in ("gcra", *WINDOWS)),
]
gaps = st.integers(0, 300_000) | st.sampled_from(
    [0, 0, 1, 99_999, 100_000, 1_500_000, 6_000_000, 3_600_000_000, -3_600_000_000]
)
tickets = st.none() | st.tuples(
    st.integers(0, 9),
    st.booleans(),
    st.sampled_from([0, 250_000]),
    st.sampled_from([None, 150_000]),
    st.sampled_from([500_000, 10_000_000]),
    st.sampled_from([100_000, 30_000_000]),
)
asks = st.tuples(st.integers(0, len(LIMITS) - 1), st.sampled_from(["", "k"]), st.integers(1, 7))
steps = st.tuples(
    gaps,
    st.sampled_from(
        ["acquire"] * 14 + ["peek", "give_back", "delay", "reset", "configure", "pause", "margin"]
    ),
    st.lists(asks, min_size=1, max_size=3, unique_by=lambda a: (LIMITS[a[0]].name, a[1])),
    tickets,
)


class Player:
    """Plays a history on one store and remembers what a task would: its id and first-seen time."""

    def __init__(self, make: Callable[[Clock], Store]) -> None:
        self.clock = Clock()
        self.store = make(self.clock)
        self.seen: dict[int, int] = {}
        self.last: tuple[Spend, object] | None = None

    def play(
        self, gap: int, verb: str, asked: list[tuple[int, str, int]], ticket: tuple | None
    ) -> object:
        self.clock.now += gap
        spends = [Spend(LIMITS[n], key, min(cost, LIMITS[n].most)) for n, key, cost in asked]
        if verb == "peek":
            return self.store.peek(spends)
        if verb == "delay":
            return self.store.delay(spends, 20_000)
        if verb in ("configure", "pause", "margin"):
            return self._override(verb, *asked[0])
        if verb == "reset":
            return self.store.reset(spends[0].limit.name, spends[0].key)
        if verb == "give_back":
            return self.store.give_back(*self.last) if self.last else None  # type: ignore[arg-type]
        outcome = self.store.acquire(spends, self._ticket(ticket))
        if outcome.admitted:
            self.last = (spends[0], outcome.readings[0])
        if ticket:
            self.seen[ticket[0]] = outcome.first_seen_us
        return outcome

    def _override(self, verb: str, n: int, key: str, cost: int) -> object:
        change: dict[str, Any] = {"rules": OVERRIDES[cost + n % 6]}
        if verb == "pause":
            change = {"pause_us": cost * 50_000, "forced": bool(n % 2)}
        if verb == "margin":
            change = {"margin": cost * 13, "briefly": bool(n % 2)}  # from 13 to 91 thousandths
        return self.store.change_override(LIMITS[n].name, **change)

    def _ticket(self, ticket: tuple | None) -> Ticket | None:
        if ticket is None:
            return None
        n, woken, sleep, expires, grace, hop = ticket
        seen = self.seen.get(n, 0) if woken else 0
        return Ticket(f"t{n}", seen, sleep, 2_000_000, grace, expires, hop_us=hop)


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(steps, max_size=50))
def test_same_answers(valkey: Server, history: list[tuple]) -> None:
    redis.Redis.from_url(valkey.url).flushall()
    python = Player(MemoryStore)
    lua = Player(lambda clock: RedisStore(valkey.url, clock=clock))
    try:
        for n, step in enumerate(history):
            assert lua.play(*step) == python.play(*step), (n, step)
    finally:
        lua.store.close()
