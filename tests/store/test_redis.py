"""What only a real server can show: expiry, foreign data, lost scripts, many callers at once."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import redis

from fleetlimit import ConfigurationError, RateLimit, RateLimiter, StateError, StoreUnavailable
from fleetlimit.demo.processes import Server, until
from fleetlimit.store.base import Spend, Ticket
from fleetlimit.store.connection import Connection
from fleetlimit.store.redis import RedisStore
from fleetlimit.store.scripts import Script, script_names

from .everything import everything

TEN = RateLimit("ten", 10, 60, burst=10)


def test_state_lives_only_as_long_as_it_says_something(client: redis.Redis, server: Server) -> None:
    store = RedisStore(server.url)  # N6
    limit = RateLimit("short", 10, 1, margin=0)
    assert store.acquire([Spend(limit)]).admitted
    assert 0 < client.pttl("fleetlimit:{short}") <= 101  # type: ignore[operator]
    for n in range(10_000):
        store.acquire([Spend(limit, str(n))])
    store.acquire([Spend(limit)], Ticket("t", horizon_us=100_000, grace_us=0))
    until(lambda: client.dbsize() == 0, "all keys expired")


def test_a_waiting_line_outlives_its_bucket(client: redis.Redis, server: Server) -> None:
    store = RedisStore(server.url)
    limit = RateLimit("short", 10, 1)
    store.acquire([Spend(limit)])
    store.acquire([Spend(limit)], Ticket("t", max_sleep_us=0, grace_us=5_000_000))
    for key in ("", ":line", ":due"):
        assert 4_000 < client.pttl("fleetlimit:{short}" + key) <= 5_200  # type: ignore[operator]


@pytest.mark.parametrize("suffix", ["", ":line", ":due"])
def test_foreign_type_names_the_key(client: redis.Redis, server: Server, suffix: str) -> None:
    limiter = RateLimiter(server.url)  # N11
    client.hset("fleetlimit:{ten}" + suffix, "a", "b")
    if suffix == ":due":
        client.zadd("fleetlimit:{ten}:line", {"a": 1})
    if suffix:
        client.set("fleetlimit:{ten}", "1:0:5:0", px=60_000)  # somebody waits: the line is read
    with pytest.raises(StateError, match=r"fleetlimit:\{ten\}"):
        limiter.store.acquire([Spend(TEN)], Ticket("t", 5))
    assert limiter.acquire(RateLimit("other", 1, 1))
    limiter.reset(TEN)
    assert limiter.acquire(TEN)


@pytest.mark.parametrize(
    "value", ["hello", "", "-5", "nan", "inf", "1e999x", "12", "1:-2", "1:x", "1:nan", "2:7"]
)
def test_foreign_value_names_the_key(client: redis.Redis, server: Server, value: str) -> None:
    client.set("fleetlimit:{ten}", value)  # N11
    with pytest.raises(StateError, match=r"fleetlimit:\{ten\}"):
        RateLimiter(server.url).acquire(TEN)


def test_script_flush_between_any_two_calls(client: redis.Redis, server: Server) -> None:  # R1
    store = RedisStore(server.url)
    spend = [Spend(TEN)]
    outcome = store.acquire(spend)
    for call in (
        lambda: store.acquire(spend),
        lambda: store.peek(spend),
        lambda: store.delay(spend, 5),
        lambda: store.give_back(spend[0], outcome.readings[0]),
        lambda: store.reset(TEN.name),
    ):
        client.script_flush()
        call()
    assert store.peek(spend).readings[0].remaining == 10


class Forgetful(Connection):
    """Before each command the server forgets all scripts. What was asked for, by its digest."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.asked: set[str] = set()
        self._other = redis.Redis.from_url(url)

    def call(self, *command: str | int | bytes) -> Any:
        self._forget([command])
        return super().call(*command)

    def sent(self, commands: Sequence[Sequence[str | int | bytes]]) -> Iterator[Any]:
        self._forget(commands)
        return super().sent(commands)

    def _forget(self, commands: Sequence[Sequence[str | int | bytes]]) -> None:
        self.asked |= {str(one[1]) for one in commands if one[0] == "EVALSHA"}
        self._other.script_flush()


def test_script_flush_before_every_script_that_there_is(  # R1
    client: redis.Redis, server: Server
) -> None:
    connection = Forgetful(server.url)
    limiter = RateLimiter(RedisStore(connection))
    everything(limiter)
    client.hset("fleetlimit:{one}:bad", "t", "lane:1:1:1:b:why\nx")
    assert limiter.drop("one", "t")
    missing = {name for name in script_names() if Script(name).sha not in connection.asked}
    assert not missing


@pytest.mark.parametrize("waits", [False, True], ids=["who does not wait", "who waits"])
def test_real_time_is_arithmetic(  # N10
    client: redis.Redis, server: Server, waits: bool
) -> None:
    """Early in a second, when the microseconds have fewer than six digits."""
    limiter, slow = RateLimiter(server.url), RateLimit("slow", 1, 3600, margin=0)
    limiter.acquire(slow, key="first")  # connected
    ticket = Ticket("t", 5) if waits else None

    until(lambda: client.time()[1] < 60_000, "the begin of a second")  # type: ignore[index]
    before = time.time()
    assert limiter.store.acquire([Spend(slow)], ticket).admitted
    tat = int(client.get("fleetlimit:{slow}").removeprefix("1:")) / 1e6  # type: ignore[union-attr]
    assert before + 3599 < tat < time.time() + 3601


@pytest.mark.parametrize(
    "value",
    [
        "1" + "l" * 80,
        "lorem ipsum " * 9,
        "1l" + "\x7f" * 64,
        "1f:1:2:-:-",
        "1g:1:2",
        "1c:1:2:3",
        "1z:1",
        "g:0:1:2:3",
        "2g:0:1:2:3",
    ],
)
@pytest.mark.parametrize("algorithm", ["gcra", "fixed_window", "sliding_log", "sliding_counter"])
def test_foreign_states(  # N11
    client: redis.Redis, server: Server, algorithm: str, value: str
) -> None:
    client.set("fleetlimit:{odd}", value)
    # Without a margin: in the last share of a window two of the algorithms admit nothing.
    limiter, odd = RateLimiter(server.url), RateLimit("odd", 5, 1, algorithm=algorithm, margin=0)
    with pytest.raises(StateError):
        limiter.acquire(odd)
    assert limiter.acquire(TEN)  # nothing else breaks
    limiter.reset(odd)
    assert limiter.acquire(odd)


@pytest.mark.parametrize(
    "value",
    [
        "1:z,1,2:0",
        "1:g,1:0",
        "1:g,0,0,0:0",
        "1:l,0,1000:0",
        "1:f,1:0",
        "hello",
        "1:g,1,1,1",
        ":0",
    ],
)
def test_foreign_overrides(client: redis.Redis, server: Server, value: str) -> None:
    client.set("fleetlimit:{odd}:override", value)
    limiter, odd = RateLimiter(server.url), RateLimit("odd", 5, 1)
    with pytest.raises(StateError):
        limiter.acquire(odd)
    assert limiter.acquire(TEN)
    limiter.configure("odd", 3, 1)
    assert limiter.acquire(odd)


def test_an_override_of_another_algorithm_is_met_once(server: Server) -> None:
    """The script is asked again with that algorithm, and has written nothing before."""
    store, limits = RedisStore(server.url, clock=lambda: 10**15), [TEN, RateLimit("second", 10, 1)]
    spends = [Spend(one) for one in limits]
    assert store.acquire(spends).admitted
    RateLimiter(store).configure("second", 5, 1, algorithm="sliding_log")
    store.delay(spends, 300_000)
    moved = store.peek(spends).readings[0].reset_us
    assert moved == TEN.rule.reset_us(None, 0) + TEN.rule.pace_us(1) + 300_000


def test_units_of_a_log_are_written_together(client: redis.Redis, server: Server) -> None:
    many = RateLimit("many", 1_000_000, 60, algorithm="sliding_log")
    store = RedisStore(server.url)
    client.config_resetstat()
    assert store.acquire([Spend(many, cost=900_000)]).admitted
    stats: Any = client.info("commandstats")
    assert stats["cmdstat_setrange"]["calls"] <= 4


def test_exactly_ten_from_threads(server: Server) -> None:  # R3
    limiter = RateLimiter(server.url)
    with ThreadPoolExecutor(20) as pool:
        assert sum(pool.map(lambda _: bool(limiter.acquire(TEN)), range(100))) == 10


def _acquire_25(url: str, gate: Path, answers: multiprocessing.Queue[int]) -> None:
    limiter = RateLimiter(url)
    while not gate.exists():
        time.sleep(0.001)
    answers.put(sum(bool(limiter.acquire(TEN)) for _ in range(25)))


def test_exactly_ten_from_processes(server: Server, tmp_path: Path) -> None:  # R3
    context = multiprocessing.get_context("spawn")
    answers: multiprocessing.Queue[int] = context.Queue()
    gate = tmp_path / "go"
    workers = [
        context.Process(target=_acquire_25, args=(server.url, gate, answers)) for _ in range(4)
    ]
    for worker in workers:
        worker.start()
    gate.touch()
    assert sum(answers.get(timeout=60) for _ in workers) == 10
    for worker in workers:
        worker.join()


def _forked(call: Callable[[], object]) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            call()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return pid


@pytest.mark.parametrize("kind", ["url", "client", "single connection client"])
def test_used_before_and_after_a_fork(server: Server, kind: str) -> None:  # R7
    sources = {
        "url": lambda: server.url,
        "client": lambda: redis.Redis.from_url(server.url),
        "single connection client": lambda: redis.Redis(
            port=server.port, single_connection_client=True
        ),
    }
    limiter = RateLimiter(sources[kind]())
    mine = RateLimit("mine", 1_000, 3600, burst=1000)
    limiter.acquire(mine)

    def check(key: str) -> None:
        remaining = [limiter.acquire(mine, key).remaining for _ in range(200)]
        assert remaining == list(range(999, 799, -1))

    children = [_forked(lambda n=n: check(f"child{n}")) for n in range(4)]  # type: ignore[misc]
    check("parent")
    assert [os.waitpid(pid, 0)[1] for pid in children] == [0, 0, 0, 0]


def test_threads_get_their_own_answers(server: Server) -> None:  # R7
    limiter = RateLimiter(server.url)
    mine = RateLimit("mine", 1_000, 3600, burst=1000)

    def check(n: int) -> bool:
        remaining = [limiter.acquire(mine, f"thread{n}").remaining for _ in range(100)]
        return remaining == list(range(999, 899, -1))

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(check, range(16)))


def test_an_interrupted_call_leaves_no_reply_behind(  # R7
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a soft time limit may interrupt it: just between the command and its reply."""
    connection = Connection(server.url)
    assert connection.call("ECHO", "first") == b"first"

    def strike(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(redis.Connection, "read_response", strike)
        with pytest.raises(KeyboardInterrupt):
            connection.call("ECHO", "interrupted")
    assert connection.call("ECHO", "mine") == b"mine"


def test_calls_are_on_their_way_before_their_replies_are_taken(server: Server) -> None:
    """Also calls of which nobody takes the replies: they are nobody else's."""
    store = RedisStore(Connection(server.url, timeout=5))

    def begin(name: str) -> Callable[[], list[Any]]:
        calls = [(store.keys.processes, ["", f"{name}{n}:1", 10_000_000]) for n in range(20)]
        return store.begin("beat", calls)

    store.beat("other:1", 10)  # the server knows the script
    first, second = begin("a"), begin("b")
    until(lambda: store.beat("other:1", 10)[0] == 41, "all were sent")
    for replies in (second, first):
        numbers = [processes for processes, *_ in replies()]
        assert (len(numbers), numbers) == (20, sorted(numbers))
    for n in range(150):  # more than there are connections
        begin(f"dropped{n}")
    assert store.beat("other:1", 10)[0] > 41


def test_no_server_is_unavailable_with_its_cause() -> None:
    limiter = RateLimiter("redis://:secret@127.0.0.1:1/0")
    with pytest.raises(StoreUnavailable) as caught:
        limiter.acquire(TEN)
    assert isinstance(caught.value.__cause__, redis.RedisError)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "source",
    ["http://:secret@host/0", "nonsense:secret", "redis://:secret@h/0?what=1", 5, object()],
)
def test_unusable_source(source: object) -> None:
    with pytest.raises(ConfigurationError) as caught:
        RateLimiter(source).acquire(TEN)
    assert "secret" not in str(caught.value)
