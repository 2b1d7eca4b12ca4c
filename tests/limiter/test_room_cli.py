"""The commands for tasks that wait: `fleetlimit status`, `parked`, `retry`, `drop`, `cancel` and `adopt`."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner, Result

from fleetlimit import RateLimit, RateLimiter, StateError
from fleetlimit.cli import main
from fleetlimit.demo.processes import Server
from fleetlimit.keys import encode
from fleetlimit.store.base import Spend, Ticket
from fleetlimit.store.redis import RedisStore
from fleetlimit.store.room import AT_ONCE, Fate, Released, Room

SLOW = RateLimit("slow", 1, 60)


class Operator:
    """Tasks of a broker, and somebody who types commands."""

    def __init__(self, url: str) -> None:
        self.url, self.store = url, RedisStore(url)

    def park(self, *ids: str, key: object = None, broker: str = "here", message: str = "x") -> None:
        """The first that asks under a key starts."""
        spend = Spend(SLOW, "" if key is None else encode(key))
        self.store.acquire([spend], Ticket("first", lane=broker, broker=broker))
        for id in ids:
            ticket = Ticket(id, lane=broker, broker=broker, message=message, queue="celery")
            assert self.store.acquire([spend], ticket).verdict == 2

    def wait_as_countdowns(self, number: int) -> None:
        for n in range(number):
            self.store.acquire([Spend(SLOW)], Ticket(f"c{n}", lane="here", broker="here"))

    def serve(self, *brokers: str) -> None:
        for broker in brokers:
            Room(self.store, broker).due_lines()

    def worker_dies(self, broker: str) -> None:
        """A releaser of it was there, long ago."""
        self.serve(broker)
        self.store.connection.client.zadd("fleetlimit:brokers", {broker: 1})

    def claim(self, broker: str = "here", line: str = "fleetlimit:{slow}") -> Released:
        (found,) = Room(self.store, broker).release([line], AT_ONCE)
        assert not isinstance(found, StateError)
        return found

    def refuse(
        self, broker: str = "here", line: str = "fleetlimit:{slow}", why: str = "no"
    ) -> None:
        """Nothing can be published: all parked there lies in quarantine."""
        room = Room(self.store, broker)
        for _ in range(20):
            self.store.connection.client.zadd(f"fleetlimit:rooms:{broker}", {line: 0})
            for ticket in self.store.connection.client.hkeys(f"{line}:room"):
                self._forget_pause(line, ticket.decode())
            released = self.claim(broker, line)
            if not released.messages:
                return
            room.settle([Fate(released, {id: (why, True) for id, _, _ in released.messages})])

    def _forget_pause(self, line: str, ticket: str) -> None:
        """It would not be tried again for a minute."""
        client = self.store.connection.client
        value = client.hget(f"{line}:tickets", ticket).decode()
        client.hset(f"{line}:tickets", ticket, value.rpartition(":")[0] + ":0")

    def __call__(self, *arguments: str) -> Result:
        return CliRunner().invoke(main, [*arguments, "--url", self.url])

    def said(self, *arguments: str) -> str:
        result = self(*arguments)
        assert result.exit_code == 0, result.output
        return result.output

    def json(self, *arguments: str) -> dict[str, object]:
        return json.loads(self.said(*arguments, "--json"))  # type: ignore[no-any-return]

    def refused(self, *arguments: str) -> str:
        """What a command says that fails: one clear line."""
        result = self(*arguments)
        assert result.exit_code == 2, result.output
        line = result.output.strip().splitlines()[-1]
        assert line.startswith("Error: ")
        assert "Traceback" not in result.output
        return line


@pytest.fixture
def operator(server: Server) -> Operator:
    return Operator(server.url)


# --- status ---------------------------------------------------------------------------------------


def test_status_shows_the_keys_that_have_parked_tasks(operator: Operator) -> None:
    for n in range(25):
        operator.park("a", "b", key=f"tenant {n}")
    operator.serve("here")
    said = operator.said("status", "slow")
    assert "waiting    0" in said
    assert "keys       25 with parked tasks (page 1 of 2" in said
    assert said.count("  waiting 2, parked 2, next due in ") == 20
    assert "--key 'tenant 0'" in said
    second = operator.said("status", "slow", "--page", "2")
    assert second.count("  waiting 2, parked 2") == 5
    one = operator.said("status", "slow", "--key", "tenant 24")
    assert "parked     2" in one
    assert "keys" not in one
    found = operator.json("status", "slow", "--page", "2")
    assert (found["keys"], found["page"], len(found["by_key"])) == (25, 2, 5)  # type: ignore[arg-type]


def test_a_key_of_several_parts_is_shown_as_it_is_typed(operator: Operator) -> None:
    operator.park("a", key=("acme", "eu:1"))
    operator.serve("here")
    assert "--key acme --key eu:1  waiting 1" in operator.said("status", "slow")
    assert "parked     1" in operator.said("status", "slow", "--key", "acme", "--key", "eu:1")


def test_status_shows_what_nobody_serves(operator: Operator) -> None:
    operator.park("a", "b", broker="old")
    operator.park("c", broker="here")
    operator.worker_dies("old")
    operator.serve("here")
    said = operator.said("status", "slow")
    assert "orphaned   2 tasks in 1 line, parked for the broker old, which no worker serves" in said
    assert operator.json("status", "slow")["orphans"] == [
        {"broker": "old", "lines": 1, "parked": 2}
    ]


def test_status_counts_the_quarantine(operator: Operator) -> None:
    assert "quarantine 0\n" in operator.said("status", "slow")
    operator.park("a", key="acme")
    operator.refuse(line="fleetlimit:{slow:acme}")
    said = operator.said("status", "slow")
    assert "quarantine 0, and under 1 key: see `fleetlimit parked slow --bad`" in said
    assert "quarantine 1: see" in operator.said("status", "slow", "--key", "acme")


def test_status_without_a_name_shows_every_limit(operator: Operator) -> None:
    assert "No worker and no program has announced a limit." in operator.said("status")
    operator.park("a", "b")
    operator.park("a", key="acme")
    operator.worker_dies("here")
    limiter = RateLimiter(operator.url)
    limiter.acquire(RateLimit("idle", 5, per=1))
    limiter.pause("idle", 60)
    limiter.configure("idle", 7, per=1)
    said = operator.said("status").splitlines()
    assert said[0].startswith("idle  waiting 0, parked 0, paused for ")
    assert said[0].endswith(" s more, numbers set with `configure`")
    assert said[1] == "slow  waiting 2, parked 2, and 1 key with parked tasks"
    assert said[2].startswith("orphaned   3 tasks in 2 lines, parked for the broker here")
    found = operator.json("status")
    assert found["limits"]["slow"]["parked"] == 2  # type: ignore[index,call-overload]
    assert found["limits"]["slow"]["keys"] == 1  # type: ignore[index,call-overload]
    assert found["orphans"] == [{"broker": "here", "lines": 2, "parked": 3}]
    operator.refuse(line="fleetlimit:{slow:acme}")
    assert operator.said("status").splitlines()[1].endswith("parked 2, quarantine under 1 key")
    assert "--key without NAME" in operator.refused("status", "--key", "acme")
    assert "--page without NAME" in operator.refused("status", "--page", "2")


# --- parked ---------------------------------------------------------------------------------------


def test_parked_lists_ids_in_order_and_says_where_it_stops(operator: Operator) -> None:
    operator.park("a", "b", broker="here")
    operator.park("c", "d", "e", broker="there")
    result = operator("parked", "slow", "--most", "3")
    assert result.stdout.split() == ["a", "b", "c"]
    assert "The first 3 of 5 parked tasks" in result.stderr
    assert operator.json("parked", "slow", "--most", "4") == {
        "parked": ["a", "b", "c", "d"],
        "more": 1,
    }
    assert operator("parked", "slow").stdout.split() == list("abcde")


def test_parked_looks_behind_those_who_wait_as_countdowns(operator: Operator) -> None:
    operator.park("first")
    operator.said("cancel", "slow", "--all")
    operator.wait_as_countdowns(1100)
    operator.park("a", "b")
    assert operator("parked", "slow", "--most", "1").stdout.split() == ["a"]
    assert "2 tasks will not run" in operator.said("cancel", "slow", "--all")


def test_parked_points_to_the_keys(operator: Operator) -> None:
    operator.park("a", key="acme")
    operator.serve("here")
    said = operator.said("parked", "slow")
    assert (
        "No task is parked without a key; this limit has parked tasks under 1 key (--key)" in said
    )
    assert operator("parked", "slow", "--key", "acme").stdout.split() == ["a"]
    assert "under 1 key (--key)" in operator.said("cancel", "slow", "--all")


# --- quarantine -----------------------------------------------------------------------------------


def test_the_quarantine_is_found_under_every_key(operator: Operator) -> None:
    operator.park("order-7#00000000", key="acme")
    operator.refuse(line="fleetlimit:{slow:acme}", why="no queue: it\nis gone")
    operator.park("b")
    operator.refuse(why="refused")
    said = operator.said("parked", "slow", "--bad")
    assert "order-7  --key acme  since 20" in said
    assert "no queue: it is gone" in said
    assert operator.said("parked", "slow", "--bad", "--key", "acme").count("\n") == 1
    found = operator.json("parked", "slow", "--bad", "--most", "1")
    (row,) = found["quarantine"]  # type: ignore[misc]
    assert (row["id"], row["key"], row["error"]) == ("order-7", ["acme"], "no queue: it is gone")
    assert found["more"] == 1


def test_what_is_unreadable_is_found_as_well(operator: Operator) -> None:
    operator.park("a", key="acme")
    line = "fleetlimit:{slow:acme}"
    operator.store.connection.client.hset(f"{line}:room", "a", "nonsense")
    assert operator.claim(line=line).messages == []
    assert "unreadable" in operator.said("parked", "slow", "--bad")


def test_retry_lets_it_go_again_by_its_own_broker(operator: Operator) -> None:
    operator.park("a", key="acme")
    operator.refuse(line="fleetlimit:{slow:acme}")
    operator.store.connection.client.delete("fleetlimit:{slow:acme}:lanes")  # it expired meanwhile
    assert Room(operator.store, "here").due_lines().lines == ()
    assert "a: will be tried again" in operator.said("retry", "slow", "a")
    assert Room(operator.store, "here").due_lines().lines == ("fleetlimit:{slow:acme}",)
    released = operator.claim(line="fleetlimit:{slow:acme}")
    assert [id for id, _, _ in released.messages] == ["a"]
    assert "No message lies in quarantine" in operator.said("parked", "slow", "--bad")


def test_drop_and_all(operator: Operator) -> None:
    for n in range(3):
        operator.park(f"t{n}", key=f"k{n}")
        operator.refuse(line=f"fleetlimit:{{slow:k{n}}}")
    assert "t1: was dropped" in operator.said("drop", "slow", "t1")
    assert operator.said("retry", "slow", "--all").splitlines() == [
        "t0: will be tried again",
        "t2: will be tried again",
    ]
    assert "No message lies in quarantine" in operator.said("drop", "slow", "--all")
    assert operator.json("status", "slow", "--key", "k1")["parked"] == 0
    assert operator.json("status", "slow", "--key", "k2")["parked"] == 1


# --- cancel ---------------------------------------------------------------------------------------


def test_cancel_one(operator: Operator) -> None:
    operator.park("a", "b", key="acme")
    assert "a: will not run" in operator.said("cancel", "slow", "a", "--key", "acme")
    assert "no task 'a' waits under 'slow' --key acme" in operator.refused(
        "cancel", "slow", "a", "--key", "acme"
    )
    operator.claim(line="fleetlimit:{slow:acme}")
    assert "'b' was let go" in operator.refused("cancel", "slow", "b", "--key", "acme")


def test_cancel_all_says_which_are_being_let_go(operator: Operator) -> None:
    operator.park("a", "b")
    operator.claim()
    operator.park("c", "d", "e")
    assert operator.said("cancel", "slow", "--all").splitlines() == [
        "3 tasks will not run",
        "a: was being let go, and may run",
        "b: was being let go, and may run",
    ]


# --- adopt ----------------------------------------------------------------------------------------


def test_adopt_hands_tasks_to_another_brokers_workers(operator: Operator) -> None:
    operator.park("a", "b", broker="old")
    operator.park("c", key="acme", broker="old")
    operator.park("d", broker="new")  # in the same line: it is not the old broker's
    operator.worker_dies("old")
    operator.serve("new")
    listed = operator.said("adopt")
    assert "3 tasks in 2 lines, parked for the broker old, which no worker serves" in listed
    assert "Brokers with workers: new." in listed
    assert "3 tasks of the broker old: now parked for the broker new" in operator.said(
        "adopt", "old", "new"
    )
    listed = operator.said("adopt")
    assert "Nothing is parked for a broker without workers." in listed
    assert "old" not in listed
    assert len(Room(operator.store, "new").due_lines().lines) == 2
    released = operator.claim("new")
    assert [id for id, _, _ in released.messages] == ["a", "b", "d"]


def test_what_cannot_be_adopted(operator: Operator) -> None:
    operator.park("a", broker="live")
    operator.park("b", broker="old")
    operator.serve("live")
    operator.worker_dies("old")
    for arguments, said in (
        (["live", "old"], "workers serve the broker 'live'"),
        (
            ["other", "live"],
            "no task is parked for a broker 'other'; brokers with parked tasks and no workers: old",
        ),
        (["old", "lvie"], "no worker ever served a broker 'lvie'; known: live, old"),
        (["old", "old"], "already parked for that broker"),
        (["old"], "say whose workers get the tasks"),
        (
            ["old", "-A", "no_such_module"],
            "-A no_such_module: cannot be loaded: ModuleNotFoundError",
        ),
        (["old", "-A", "json"], "-A json: cannot be loaded"),
    ):
        assert said in operator.refused("adopt", *arguments)


# --- help -----------------------------------------------------------------------------------------


def test_each_command_is_described_in_a_whole_line() -> None:
    said = CliRunner().invoke(main, ["--help"]).output
    commands = said.partition("Commands:")[2].strip().splitlines()
    assert len(commands) == len(main.commands) == 12
    assert not [line for line in commands if line.endswith("...")]


# --- errors ---------------------------------------------------------------------------------------


def test_errors_are_one_line(operator: Operator) -> None:
    for arguments, said in (
        (["parked", "a:b"], "name='a:b'"),
        (["cancel", "slow"], "the ID of a task, or --all"),
        (["cancel", "slow", "x", "--all"], "the ID of a task, or --all"),
        (["cancel", "slow", "x"], "no task 'x' waits under 'slow'"),
        (["retry", "slow", "x"], "no message of a task 'x' lies in quarantine under 'slow'"),
        (["drop", "slow"], "the ID of a task, or --all"),
        (["parked", "slow", "--most", "0"], "--most"),
        (["status", "slow", "--key", ""], "key=''"),
        (["drain", "-A", "no_such_module"], "No such option"),  # its Redis is the app's
    ):
        assert said in operator.refused(*arguments)
    away = Operator("redis://127.0.0.1:1")
    for arguments in (["parked", "slow"], ["parked", "slow", "--bad"], ["cancel", "slow", "--all"],
                      ["retry", "slow", "x"], ["adopt"], ["status", "slow"]):  # fmt: skip
        assert "no answer from Redis" in away.refused(*arguments)
