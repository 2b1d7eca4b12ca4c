"""Letting go: how much at once, by how many, what was cancelled meanwhile, and after Redis was emptied."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from fleetlimit import RateLimit, RateLimiter
from fleetlimit.conformance import START, Clock
from fleetlimit.demo.processes import Server
from fleetlimit.store.base import Late, Spend, Ticket, Verdict
from fleetlimit.store.redis import LEASE_US, RedisStore
from fleetlimit.store.room import AT_ONCE, BYTES, LINES, Fate, Released, Room
from tests.celery.parked import message

from .simulation import Fleet, Queue

SLOW = RateLimit("slow", 1, 3600, margin=0)


@pytest.fixture(params=["valkey", "redis7"])
def store(request: pytest.FixtureRequest, clock: Clock) -> Iterator[RedisStore]:
    server: Server = request.getfixturevalue(request.param)
    redis.Redis.from_url(server.url).flushall()
    one = RedisStore(redis.Redis.from_url(server.url, socket_timeout=60), clock=clock)
    yield one
    one.close()


def park(store: RedisStore, id: str, message: str = "m", key: str = "") -> None:
    store.acquire([Spend(SLOW, key)])
    ticket = Ticket(id, broker="a", lane="q", queue="q", message=message)
    assert store.acquire([Spend(SLOW, key)], ticket).verdict is Verdict.PARKED


def release(room: Room, line: str = "fleetlimit:{slow}") -> Released:
    (found,) = room.release([line], AT_ONCE)
    assert isinstance(found, Released)
    return found


def test_a_look_is_bounded_by_bytes(store: RedisStore) -> None:
    size, room = 200 * 1024, Room(store, "a")
    for n in range(64):
        park(store, f"t{n:02}", "x" * size)
    looks = []
    while len(released := release(room).messages):
        assert sum(len(text) for _, _, text in released) <= BYTES + size
        looks.append([id for id, _, _ in released])
    assert sorted(id for look in looks for id in look) == [f"t{n:02}" for n in range(64)]
    assert all(look == [f"t{n:02}"] for n, look in enumerate(looks))


def test_a_message_of_more_than_the_bound_goes_alone(store: RedisStore) -> None:
    room = Room(store, "a")
    for n in range(2):
        park(store, f"t{n}", "x" * (BYTES + 1))
    assert [len(release(room).messages) for _ in range(3)] == [1, 1, 0]


@pytest.mark.parametrize("became", ["published", "refused", "nothing: its releaser died"])
def test_cancelled_while_it_is_let_go(store: RedisStore, clock: Clock, became: str) -> None:
    """ "Cancelled" means that it does not run."""
    room = Room(store, "a")
    park(store, "t")
    released = release(room)
    assert [id for id, _, _ in released.messages] == ["t"]
    assert not room.cancel("slow", "t")
    if became == "published":
        room.settle([Fate(released, {"t": None})])
        assert not room.cancel("slow", "t")
        return
    if became == "refused":
        room.settle([Fate(released, {"t": ("no queue takes it", True)})])
    else:
        clock.now += LEASE_US
    assert room.cancel("slow", "t")
    clock.forward(60)
    assert release(room).messages == []
    room.settle([Fate(released, {"t": None})])  # the dead releaser's word comes after all
    assert store.peek([Spend(SLOW)]).readings[0].waiting == 0


def test_each_line_is_handed_to_one_releaser(store: RedisStore) -> None:
    """Sixteen releasers do no more than one: nothing is claimed, or looked at, twice."""
    for n in range(1000):
        park(store, "t", key=f"k{n}")
    rooms = [Room(store, "a") for _ in range(16)]
    store.connection.client.zadd(
        "fleetlimit:rooms:a", {f"fleetlimit:{{slow:k{n}}}": 0 for n in range(1000)}
    )
    handed = [room.due_lines().lines for room in rooms]
    assert sorted(line for lines in handed for line in lines) == sorted(
        f"fleetlimit:{{slow:k{n}}}" for n in range(1000)
    )
    assert [len(lines) for lines in handed] == [LINES] * 7 + [1000 - 7 * LINES] + [0] * 8


def test_redis_was_emptied_while_tasks_wait(store: RedisStore, clock: Clock) -> None:
    limiter, room = RateLimiter(store), Room(store, "a")
    limiter.pause("slow", 3600, force=True)
    park(store, "t")
    store.connection.client.flushall()
    clock.forward(1)
    limiter.pause("slow", 3600, force=True)
    park(store, "other")
    assert room.due_lines().lines == ()  # each releaser looks once a second
    limiter.resume("slow", force=True)
    assert room.due_lines().lines == ("fleetlimit:{slow}",)


def test_a_beat_costs_the_same_however_many_workers_there_are(store: RedisStore) -> None:
    """It runs as many commands, and none of them looks at all workers: the server's own time says so."""
    client = store.connection.client

    def beats() -> tuple[dict[str, int], float]:
        """The commands of a hundred beats, and the server's microseconds for the quickest ten of them together."""
        client.config_resetstat()
        times = []
        for _ in range(100):
            before = client.info("commandstats").get("cmdstat_evalsha", {"usec": 0})["usec"]
            store.beat("w0:4", 60)
            times.append(client.info("commandstats")["cmdstat_evalsha"]["usec"] - before)
        calls = {name: one["calls"] for name, one in client.info("commandstats").items()}
        others = ("config", "info", "client", "hello")
        commands = {name: n for name, n in calls.items() if not any(it in name for it in others)}
        return commands, sum(sorted(times)[:10])

    store.beat("w0:4", 60)
    commands, few = beats()
    for n in range(1, 2000):
        store.beat(f"w{n}:4", 60)
    now, many = beats()
    assert now == commands
    assert many < 4 * few  # that of one which adds all of them up is a hundred times as much
    assert store.beat("w0:4", 60)[0] == 8000


def test_a_sleep_for_one_limit_holds_up_nobody_at_another(store: RedisStore, clock: Clock) -> None:
    tenant = RateLimit("tenant", 5, 1, margin=0)
    everybody = RateLimit("everybody", 50, 1, burst=10, margin=0)

    def ask(key: str, n: int, seen: int = 0) -> Verdict:
        spends = [Spend(tenant, key), Spend(everybody)]
        return store.acquire(spends, Ticket(f"{key}{n}", seen)).verdict

    assert ask("a", 0) is Verdict.ADMITTED
    clock.forward(0.02)
    assert (
        ask("a", 1, START) is Verdict.DENIED
    )  # its cell comes in 180 ms: it sleeps with its place
    assert [ask(key, 0) for key in "bcdefghi"] == [Verdict.ADMITTED] * 8
    clock.forward(0.18)
    assert ask("a", 1, START) is Verdict.ADMITTED


def test_messages_of_one_id_hold_places_of_their_own(store: RedisStore) -> None:
    """Two sends with one task id are two tasks, unless they are the same message delivered again."""
    sends = [
        message("order-7", body=((1,), {}, {})),
        message("order-7", body=((2,), {}, {})),
        message("order-7", body=((1,), {}, {}), headers={"task": "shop.refund", "id": "order-7"}),
    ]
    for one in [*sends, sends[0]]:
        park(store, one.its_ticket(), one.packed())
    room = Room(store, "a")
    assert room.status("slow").parked == 3
    assert list(room.parked("slow")) == ["order-7"] * 3
    assert len(release(room).messages) == 3


@pytest.mark.parametrize("place", [100, 300], ids=["before there is a line", "in a long line"])
def test_a_large_cost_waits_as_its_neighbours_do(server: Server, place: int) -> None:
    """A flow of 600 units each at 115 % of the limit; one of 14,000, which is the whole bucket."""
    fleet = Fleet(server.url)
    try:
        fleet.limit = RateLimit("api", 600_000, 60, burst=14_000, margin=0)
        fleet.rates = [(START, 10_000)]
        fleet.queues = {"flow": Queue("a", 600), "large": Queue("a", 14_000)}
        sent = {}
        for n in range(400):
            queue = "large" if n == place else "flow"
            sent[f"t{n:04}"] = fleet.clock.now
            fleet.send(queue, 1)
            fleet.run(0.0522)
        fleet.drain(20)
        wait = {id: at - sent[id] for at, _, id in fleet.starts}
        large = f"t{place:04}"
        before = [wait[f"t{n:04}"] for n in range(place - 10, place)]
        assert wait[large] <= max(before) + 1_500_000  # it saves up for 1.4 s
        assert fleet.asks[large] <= 4
        order = [id for _, _, id in sorted(fleet.starts)]
        assert sum(id > large for id in order[: order.index(large)]) <= 17  # a second's worth
        assert fleet.asks.total() <= 2.5 * 400
    finally:
        fleet.close()


class Many(Fleet):
    """Too many tasks to look at each again and again."""

    def check(self) -> None:
        pass

    def _start(self, id: str, cost: int, at: int) -> None:
        self.starts.append((at, cost, id))


@pytest.mark.parametrize("burst", [1, 20])
def test_ten_thousand_on_one_key(server: Server, burst: int) -> None:  # C16
    """Another key starts at once, and each of them is delivered about twice."""
    fleet = Many(server.url)
    try:
        fleet.limit = RateLimit("api", 1000, 1, margin=0, burst=burst)
        fleet.queues = {"cheap": Queue("a", 1)}
        fleet.send("cheap", 10_000)
        assert fleet.limiter.status("api").parked > 7_000
        other = fleet.store.acquire([Spend(fleet.limit, "other")], Ticket("other"))
        assert (other.verdict, other.sleep_us) == (Verdict.ADMITTED, 0)
        fleet.drain(12)
        assert len(fleet.starts) == len({id for _, _, id in fleet.starts}) == 10_000
        assert fleet.asks.total() <= 2.1 * 10_000
    finally:
        fleet.close()


def test_a_message_goes_along_where_somebody_waits(store: RedisStore) -> None:
    """It is made once, and not where nobody does."""
    made: list[str] = []

    def ask(id: str, limit: RateLimit) -> Verdict:
        message = Late(lambda: made.append(id) or "body")  # type: ignore[func-returns-value]
        ticket = Ticket(id, broker="b", max_sleep_us=0, message=message)
        verdict = store.acquire([Spend(limit)], ticket).verdict
        assert ticket.went_along == (id in made)
        return verdict

    slow, free = RateLimit("slow", 1, per=60), RateLimit("free", 100, per=1, burst=100)
    assert [ask(id, slow) for id in "abc"] == [
        Verdict.ADMITTED,
        Verdict.PARKED,
        Verdict.PARKED,
    ]
    assert [ask(id, free) for id in "de"] == [Verdict.ADMITTED] * 2
    assert made == ["b", "c"]
