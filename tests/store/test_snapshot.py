"""Redis comes back with what it knew some time ago: what the docs say of that is what happens."""

from __future__ import annotations

from collections import Counter

import pytest

from fleetlimit.demo.processes import Server

from .simulation import Fleet


class Restored(Fleet):
    """A fleet whose tasks may start twice."""

    def _start(self, id: str, cost: int, at: int) -> None:
        self.starts.append((at, cost, id))

    def snapshot(self) -> dict[bytes, tuple[bytes, int]]:
        keys = self._bytes.keys("*")
        return {key: (self._bytes.dump(key), max(self._bytes.pttl(key), 0)) for key in keys}  # type: ignore[misc]

    def restore(self, kept: dict[bytes, tuple[bytes, int]]) -> None:
        self._bytes.flushall()
        for key, (value, ttl) in kept.items():
            self._bytes.restore(key, ttl, value)
        self.rates.append((self.clock.now, 10))  # what was spent since then may be spent once more
        self._disturb()


@pytest.mark.parametrize("seconds", [0.5, 5])
def test_what_was_let_go_since_then_is_let_go_again(valkey: Server, seconds: float) -> None:
    fleet = Restored(valkey.url)
    try:
        fleet.send("cheap", 100)
        fleet.run(2)
        kept, parked = fleet.snapshot(), set(fleet.limiter.parked("api"))
        before = {id for _, _, id in fleet.starts}
        fleet.run(seconds)
        since = {id for _, _, id in fleet.starts} - before
        fleet.restore(kept)
        fleet.drain(20)
        fleet.run(15)
        times = Counter(id for _, _, id in fleet.starts)
        assert set(times) == set(fleet.sent)  # none is lost
        twice = {id for id, n in times.items() if n > 1}
        assert max(times.values()) == 2
        assert since & parked <= twice <= since
        assert fleet.limiter.status("api").waiting == 0
    finally:
        fleet.close()
