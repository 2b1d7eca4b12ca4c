"""A fleet on a clock that a test moves: queues, workers and releasers are played, the scripts and Redis are real.

What may happen to it are the methods without an underscore. While time passes, `check` looks at what must always
hold.
"""

from __future__ import annotations

import heapq
import struct
from collections import Counter
from dataclasses import dataclass, field
from itertools import count

import redis

from fleetlimit import RateLimit, RateLimiter
from fleetlimit.conformance import START, Clock
from fleetlimit.store.base import Spend, Ticket, Verdict, hop_us
from fleetlimit.store.redis import LEASE_US, RedisStore
from fleetlimit.store.room import Fate, Released, Room
from fleetlimit.store.shared import LATE_US, SILENT_US

__all__ = ["Fleet"]

LINE = "fleetlimit:{api}"
LEAD_US, SLEEP_US = 150_000, 250_000
#: No task that could start waits for so much longer while the limit idles, microseconds; the time in which the dearest
#: task would save up its units comes on top.
PATIENCE_US = 2_500_000 + LEAD_US
#: From a releaser to a worker. What a dead worker had fetched comes again after the second.
WAY_US, REDELIVERED_US = 8_000, 3_000_000
SECOND_US = 1_000_000


@dataclass(frozen=True)
class Copy:
    """A message on its way to a worker."""

    id: str
    seen_us: int = 0
    mark: str = ""


@dataclass
class Queue:
    """A queue, whose tasks all cost the same. It is read, or its messages stay in `backlog`."""

    broker: str
    cost: int
    read: bool = True
    since: int = START
    #: How long nobody had read it, when that ended.
    unread_us: int = 0
    backlog: list[Copy] = field(default_factory=list)


@dataclass
class Broker:
    """Its workers and their releasers, which all live or none."""

    room: Room
    alive: bool = True
    since: int = START
    look_at: int = START
    #: What happens to the next claim: its releaser dies "before" or "after" it publishes, or the broker "refuses".
    claim: str = ""


class Fleet:
    def __init__(self, url: str, algorithm: str = "gcra") -> None:
        self.clock = Clock()
        self.raw = redis.Redis.from_url(url, decode_responses=True)
        self.raw.flushall()
        self._bytes = redis.Redis.from_url(url)
        self.store = RedisStore(
            redis.Redis.from_url(url, socket_timeout=60), clock=self.clock
        )  # a patient client
        self.limiter = RateLimiter(self.store)
        self.burst = 5 if algorithm == "gcra" else None
        self.limit = RateLimit("api", 10, 1, margin=0, algorithm=algorithm, burst=self.burst)
        self.queues = {"cheap": Queue("a", 1), "dear": Queue("a", 3), "far": Queue("b", 2)}
        self.brokers = {name: Broker(Room(self.store, name)) for name in "ab"}
        self.sent: dict[str, str] = {}  # id: queue
        self.starts: list[tuple[int, int, str]] = []  # when, cost, id
        self.ended: set[str] = set()  # revoked or cancelled
        self.asks: Counter[str] = Counter()  # by id
        self.looks = 0
        self.rates = [(START, 10)]  # from when on, units per second
        self.paused_until = 0
        self.disturbed = START
        self.idle_since: int | None = START
        self._able: dict[str, int] = {}  # parked tasks that could start, and since when
        self._events: list[tuple[int, int, Copy]] = []
        self._number = count()
        self.run(0)  # the releasers are known

    def close(self) -> None:
        self.store.close()
        self.raw.close()
        self._bytes.close()

    # --- what may happen --------------------------------------------------------------------------

    def send(self, queue: str, number: int) -> None:
        for _ in range(number):
            id = f"t{len(self.sent):04}"
            self.sent[id] = queue
            self._arrive(Copy(id))
            self.clock.now += 100

    def run(self, seconds: float) -> None:
        """Let time pass."""
        until = self.clock.now + round(seconds * 1e6)
        check_at = self.clock.now
        while True:
            looks = [one.look_at for one in self.brokers.values()]
            at = min([*looks, check_at, *(one[0] for one in self._events[:1])])
            if at > until:
                break
            self.clock.now = max(self.clock.now, at)
            while self._events and self._events[0][0] <= self.clock.now:
                self._arrive(heapq.heappop(self._events)[2])
            for one in self.brokers.values():
                if one.look_at <= self.clock.now:
                    self._look(one)
            if check_at <= self.clock.now:
                self.check()
                check_at = self.clock.now + 250_000
        self.clock.now = until
        self.check()

    def drain(self, seconds: float) -> None:
        """Let time pass until nobody waits."""
        until = self.clock.now + round(seconds * 1e6)
        while self.waiting():
            assert self.clock.now < until, f"still waiting: {self.waiting()}"
            self.run(0.5)

    def waiting(self) -> list[str]:
        done = self.ended | {id for _, _, id in self.starts}
        return [id for id in self.sent if id not in done]

    def revoke(self, nth: int) -> None:
        """A worker discards it when it comes."""
        if waiting := self.waiting():
            self.ended.add(waiting[nth % len(waiting)])

    def cancel(self, nth: int) -> None:
        if parked := sorted(self.raw.hkeys(LINE + ":room")):
            id = parked[nth % len(parked)]
            if self.limiter.cancel("api", id):
                self.ended.add(id)

    def die(self, nth: int) -> None:
        """A worker dies with a third of what is on its way: that is delivered again later."""
        for n, (at, _, copy) in enumerate(events := self._events):
            again = self.clock.now + REDELIVERED_US if n % 3 == nth % 3 else at
            events[n] = again, next(self._number), copy
        heapq.heapify(events)
        self._disturb()

    def claim(self, broker: str, what: str) -> None:
        self.brokers[broker].claim = what
        self._disturb()

    def pause(self, seconds: float) -> None:
        self.limiter.pause("api", seconds, force=True)
        self.paused_until = self.clock.now + round(seconds * 1e6)
        self._disturb()

    def resume(self) -> None:
        self.limiter.resume("api", force=True)
        self.paused_until = 0
        self._disturb()

    def configure(self, rate: int) -> None:
        self.limiter.configure(
            "api", rate, 1, margin=0, algorithm=self.limit.algorithm, burst=self.burst, force=True
        )
        self.rates.append((self.clock.now, rate))
        self._disturb()

    def read(self, name: str, read: bool) -> None:
        """Workers take up a queue, or leave it."""
        queue = self.queues[name]
        if queue.read == read:
            return
        queue.unread_us = self.clock.now - queue.since if read else 0
        queue.read, queue.since = read, self.clock.now
        backlog, queue.backlog = queue.backlog, []
        for copy in backlog:
            self._deliver(copy, WAY_US)
        self._disturb(
            0 if read else SILENT_US - LATE_US
        )  # the first few are waited for for so long

    def serve(self, name: str, alive: bool) -> None:
        """All workers of a broker start, or stop."""
        broker = self.brokers[name]
        if broker.alive != alive:
            broker.alive, broker.since, broker.look_at = alive, self.clock.now, self.clock.now
            for queue, one in self.queues.items():
                if one.broker == name:
                    self.read(queue, alive)
            self._disturb()

    # --- the fleet --------------------------------------------------------------------------------

    def _disturb(self, longer_us: int = 0) -> None:
        self.disturbed = max(self.disturbed, self.clock.now + longer_us)

    def _deliver(self, copy: Copy, after_us: int) -> None:
        heapq.heappush(self._events, (self.clock.now + after_us, next(self._number), copy))

    def _arrive(self, copy: Copy) -> None:
        name = self.sent[copy.id]
        queue = self.queues[name]
        if not queue.read:
            queue.backlog.append(copy)
            return
        if copy.id in self.ended:
            self.store.withdraw("api", "", copy.id, how="came")
            return
        self.asks[copy.id] += 1
        outcome = self.store.acquire(
            [Spend(self.limit, cost=queue.cost)],
            Ticket(
                copy.id, copy.seen_us, SLEEP_US, copy=copy.mark, broker=queue.broker, lane=name, queue=name,
                message=f"the message of {copy.id}", lead_us=LEAD_US,
            ),
        )  # fmt: skip
        if outcome.admitted:
            self._start(copy.id, queue.cost, self.clock.now + outcome.sleep_us)
        elif outcome.verdict is Verdict.DENIED:
            wait = min(outcome.wait_us - LEAD_US, hop_us(outcome.wait_us, Ticket.horizon_us))
            wait = 0 if outcome.wait_us <= SLEEP_US else max(wait, 0)
            self._deliver(Copy(copy.id, outcome.first_seen_us, copy.mark), wait + WAY_US)
        elif outcome.verdict is Verdict.PARKED and outcome.wait_us < 1_500_000:
            self.brokers[queue.broker].look_at = self.clock.now  # the bell

    def _start(self, id: str, cost: int, at: int) -> None:
        assert id not in [one for _, _, one in self.starts], f"{id} starts twice"
        self.starts.append((at, cost, id))

    def _look(self, broker: Broker) -> None:
        """What a releaser does."""
        if not broker.alive:
            broker.look_at = self.clock.now + 1_000_000
            return
        due = broker.room.due_lines()
        self.looks += bool(due.lines)
        for released in broker.room.release(due.lines, LEAD_US):
            assert isinstance(released, Released)
            if released.messages:
                self._publish(broker, released)
        sleep = (
            10_000 if due.lines else max((due.next_us or due.now_us + 10**6) - due.now_us, 10_000)
        )
        broker.look_at = self.clock.now + min(sleep, 1_000_000)

    def _publish(self, broker: Broker, released: Released) -> None:
        what, broker.claim = broker.claim, ""
        ids = [id for id, _, _ in released.messages]
        if what in ("", "after"):
            for id, seen, text in released.messages:
                assert text == f"the message of {id}"
                self._deliver(Copy(id, seen, str(released.copy)), WAY_US)
        if what in ("", "refuses"):
            why = ("no queue takes it", True) if what else None
            broker.room.settle([Fate(released, dict.fromkeys(ids, why))])

    # --- what must hold ---------------------------------------------------------------------------

    def check(self) -> None:
        tickets = self._tickets()
        self._check_counters(tickets)
        self._check_windows()
        self._check_accounted()
        self._check_conservation(tickets)

    def _tickets(self) -> dict[str, tuple[str, int, bool, int, int]]:
        """By id: lane, cost, parked, let go at, not before."""
        found, members = {}, []
        for id, value in self.raw.hgetall(LINE + ":tickets").items():
            lane, place, cost, parked, let_go, _, not_before = value.split(":")
            found[id] = lane, int(cost), parked == "1", int(let_go), int(not_before)
            members.append(f"{lane}:{int(place):016}:{id}")
        scores = self.raw.zmscore(LINE + ":line", members) if members else []
        assert None not in scores, f"{members[scores.index(None)]} is not in the line"
        return found

    def _check_counters(self, tickets: dict[str, tuple[str, int, bool, int, int]]) -> None:
        assert self.raw.zcard(LINE + ":line") == len(tickets)
        parked = {id for id, one in tickets.items() if one[2]}
        assert set(self.raw.hkeys(LINE + ":room")) == parked
        assert set(self.raw.zrange(LINE + ":due", 0, -1)) == set(tickets) - parked
        for lane, value in self.raw.hgetall(LINE + ":lanes").items():
            counted = tuple(map(int, value.split(":")[1:3]))
            ours = [one for one in tickets.values() if one[0] == lane]
            assert counted == (sum(one[1] for one in ours), sum(one[2] for one in ours)), lane
        assert self._units() == sum(one[1] for one in tickets.values())
        if not tickets:
            kept = [key for key in self.raw.scan_iter(LINE + "*") if self.raw.ttl(key) == -1]
            assert set(kept) <= {LINE + ":override", LINE + ":bad"}, kept

    def _units(self) -> int:
        """Of those who wait, as the state says."""
        state = self._bytes.get(LINE) or b"1:0"
        if state.startswith(b"1l"):
            return int(struct.unpack_from(">d", state, 2)[0])
        return 0 if state.startswith(b"1:") else int(state.split(b":")[1])

    def _check_windows(self) -> None:
        """No second holds more than the largest limit that was in force around it allows."""
        starts = sorted(self.starts)[-150:]
        for n, (at, _, _) in enumerate(starts):
            units = sum(cost for when, cost, _ in starts[n:] if when < at + SECOND_US)
            ends = [start for start, _ in self.rates[1:]] + [at + SECOND_US]
            near = [
                rate
                for (_, rate), end in zip(self.rates, ends, strict=True)
                if end >= at - SECOND_US
            ]
            most = max(near) * (2 if "window" in self.limit.algorithm else 1)
            most += (
                len(near) - 1
            ) * self.limit.most  # after a change it may lend a bucket once more
            assert units <= most + self.limit.burst - 1, (units, starts)

    def _check_accounted(self) -> None:
        known = {copy.id for _, _, copy in self._events}
        known |= {copy.id for queue in self.queues.values() for copy in queue.backlog}
        known |= set(self.raw.hkeys(LINE + ":room")) | set(self.raw.hkeys(LINE + ":bad"))
        assert not set(self.waiting()) - known, "lost"

    def _check_conservation(self, tickets: dict[str, tuple[str, int, bool, int, int]]) -> None:
        """Who could start, and since when: nobody waits while the limit idles."""
        now = self.clock.now
        able = {id for id, one in tickets.items() if self._is_able(id, *one)}
        self._able = {id: self._able.get(id, now) for id in able}
        rate = self.rates[-1][1]
        tat = 0.0
        for at, cost, _ in sorted(self.starts)[-50:]:
            tat = max(tat, at) + cost * 1e6 / rate
        calm = max(self.disturbed, self.paused_until)
        waits = now - max(calm, min(self._able.values(), default=now))
        patience = PATIENCE_US + 3e6 / rate
        if self.limit.algorithm != "gcra":
            patience += (
                1_000_000  # a window's units may all start at its begin: then it idles to its end
            )
        idle = now - max(calm, tat)
        assert min(idle, waits) <= patience, f"idle for {idle / 1e6:.1f} s, {len(able)} could start"
        self._check_pace(now - waits + patience, rate)

    def _check_pace(self, since: float, rate: int) -> None:
        """While some could start all the time, the limit is used."""
        spent = sum(cost for at, cost, _ in self.starts if at >= since)
        slack = self.limit.most + 3
        if (
            self.limit.algorithm != "gcra"
        ):  # all of a window at once, but for what is too little for the dearest task
            rate, slack = rate - 2, rate + 3
        if not all(
            one.read for one in self.queues.values()
        ):  # their tasks are waited for once, when their turn comes
            slack += rate * PATIENCE_US / 1e6
        owed = 0.85 * rate * (self.clock.now - since) / 1e6 - slack
        assert spent >= owed, f"{spent} of {owed:.0f} units since {since}"

    def _is_able(
        self, id: str, name: str, cost: int, parked: bool, let_go: int, not_before: int
    ) -> bool:
        queue, now = self.queues[name.rstrip("~")], self.clock.now  # (~: of those refused)
        found_again = queue.unread_us and queue.since + queue.unread_us / 2 + PATIENCE_US > now
        return (
            parked
            and queue.read
            and self.brokers[queue.broker].alive
            and now >= let_go + LEASE_US
            and now >= not_before
            and not found_again
        )
