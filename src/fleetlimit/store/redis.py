"""The store the fleet shares: Redis or Valkey, one atomic script call per decision."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import islice
from typing import Any, TypeAlias

from fleetlimit.algorithms.base import Algorithm
from fleetlimit.algorithms.choose import from_wire
from fleetlimit.errors import StateError, StoreUnavailable
from fleetlimit.gcra import Rule, State, clamped
from fleetlimit.limit import RateLimit
from fleetlimit.store.base import Outcome, Override, Reading, Spend, Ticket, Verdict, read
from fleetlimit.store.connection import Connection
from fleetlimit.store.failures import CLIENT_ERRORS, cause_of, checked, failure_of, translated
from fleetlimit.store.keyspace import Keys, is_broker, raw, text
from fleetlimit.store.scripts import Call, script

__all__ = ["LEASE_US", "RedisStore"]

Arg: TypeAlias = "str | int | bytes"

#: How long after the first process notices that the store is back all ask again: no less than the others
#: need to notice it.
REJOIN_US = 1_300_000
#: A claim on a parked message is void after this, unless it was confirmed.
LEASE_US = 5_000_000

_ALL, _PER_LIMIT = 5, 5  # parts of a reply for all limits, and for each
_WAITING = _ALL + 2  # of the first limit
_NO_OVERRIDE = "1::0"
_NONE = ("", _NO_OVERRIDE)  # read by the script or (on a Cluster) given


class RedisStore:
    """Thread- and fork-safe.

    :param source: a URL, a redis-py client, or a ready `Connection`.
    :param clock: microseconds to use in place of the server's `TIME`: a test's, or this host's where
        scripts may not ask.
    :param key_prefix: stands before the name of every key.
    """

    def __init__(
        self, source: Any, *, clock: Callable[[], int] | None = None, key_prefix: str = ""
    ) -> None:
        self.keys = Keys(key_prefix)
        self.connection = source if isinstance(source, Connection) else Connection(source)
        self._clock = clock
        #: Lines in which others waited when last asked: the cheap script would say "not my case".
        self._busy: set[Arg] = set()
        self._rules: dict[str, Algorithm] = {}  # of limits whose own numbers were not in force
        self._overrides: dict[
            str, tuple[float, str]
        ] = {}  # on a Cluster: read at most once a second

    def acquire(self, spends: Sequence[Spend], ticket: Ticket | None = None) -> Outcome:
        if len(spends) == 1:
            return self._try(spends[0], ticket) or self._ask(spends, ticket)
        return self._one_by_one(spends, ticket) if self.is_cluster else self._ask(spends, ticket)

    def peek(self, spends: Sequence[Spend]) -> Outcome:
        if self.is_cluster:
            return _merged([self._ask([one], None, look_only=True) for one in spends])
        return self._ask(spends, None, look_only=True)

    def give_back(self, spend: Spend, reading: Reading) -> bool:
        if reading.spent is None:
            return False
        rule = reading.rule
        states = rule.write_state(reading.spent), rule.write_state(reading.former)
        args = [self.now(), rule.wire, spend.cost, *states]
        state = self.keys.state(spend.limit.name, spend.key)
        return bool(self.run("give_back", [state], args))

    def delay(self, spends: Sequence[Spend], late_us: int) -> None:
        together = [[one] for one in spends] if self.is_cluster else [spends]
        for group in together:
            keys: list[str] = []
            args: list[Arg] = [self.now(), late_us]
            for one in group:
                every = self.keys_of(self.keys.state(one.limit.name, one.key))
                keys += (every[0], every[-1])
                args += (one.limit.rule.wire, one.cost, self.given_override(one.limit.name))
            self.run("delay", keys, args)

    def withdraw(self, name: str, key: str, id: str, *, how: str = "") -> bool:
        """`how`: `"parked"`, only if its message lies here and nobody is letting it go; `"came"`, the task is
        here and starts without this line."""
        keys = self.keys_of(self.keys.state(name, key))[:7]
        reply = self.run("withdraw", keys, [self.now(), raw(id), how, LEASE_US])
        if reply == _BACK:
            self.visit_at_once(lambda line: line == keys[0])
        return bool(reply)

    def reset(self, name: str, key: str = "") -> None:
        state = self.keys.state(name, key)
        self.run("reset", self.keys_of(state), [])
        self.visit_at_once(lambda line: line == state)

    def visit_at_once(self, wanted: Callable[[str], bool]) -> None:
        """Have releasers look at these lines now: who is parked there may go sooner."""
        with translated([self.keys.brokers]):
            client = self.connection.client
            brokers = map(text, client.zrange(self.keys.brokers, 0, -1))
            for index in map(self.keys.rooms, filter(is_broker, brokers)):
                found = (
                    line for line, _ in client.zscan_iter(index, count=1000) if wanted(text(line))
                )
                while some := dict.fromkeys(islice(found, 1000), 0):
                    client.zadd(index, some, xx=True)

    def override(self, name: str) -> Override:
        form, *parts = self._stored_override(name).split(":")
        if form != "1" or len(parts) not in (2, 4):
            raise StateError(f"foreign data at {self.keys.override(name)}")
        return _override(self.keys.override(name), *parts)

    def change_override(
        self,
        name: str,
        *,
        rules: Sequence[Algorithm] | None = None,
        pause_us: int | None = None,
        forced: bool = False,
        margin: int = 0,
        briefly: bool = False,
    ) -> tuple[Override, int]:
        wires = "=" if rules is None else ";".join(rule.wire for rule in rules)
        pause = -1 if pause_us is None else pause_us
        args = [self.now(), wires, pause, int(forced), margin, int(briefly)]
        found, until, now, *noted = self.run("override", [self.keys.override(name)], args)
        self._overrides.pop(name, None)
        return _override(self.keys.override(name), text(found), until, *noted), now

    def now_us(self) -> int:
        if self._clock:
            return self._clock()
        with translated([]):
            seconds, micros = self.connection.client.time()
        return int(seconds) * 1_000_000 + int(micros)

    def beat(self, member: str, lasts_s: float) -> tuple[int, int, bool]:
        """A worker is there for so long (0: it leaves); the processes of all workers, the clock, and whether this
        member was not known."""
        args = [self.now(), member, round(lasts_s * 1e6)]
        number, now, new = self.run("beat", self.keys.processes, args)
        return number, now, bool(new)

    def rule_of(self, limit: RateLimit) -> Algorithm:
        """The numbers that were in force for a limit when last asked."""
        return self._rules.get(limit.name, limit.rule)

    def rejoin(self, spend: Spend) -> float:
        """After an outage: seconds until all processes should ask again, by an instant that the first
        one sets. :raises StoreUnavailable: while the store does not answer, or takes no writes."""
        key = (
            f"{self.keys.state(spend.limit.name, spend.key)}:back"
            if self.is_cluster
            else self.keys.back
        )
        return int(self.run("rejoin", [key], [self.now(), REJOIN_US])) / 1e6

    def identity(self) -> str:
        """What tells this database from all others, however it is addressed: an id that lies in it."""
        with translated([self.keys.store]):
            client = self.connection.client
            client.set(self.keys.store, uuid.uuid4().hex, nx=True)
            return text(client.get(self.keys.store))

    def answers(self, spend: Spend) -> bool:
        """Whether Redis answers a read right now; asked once, where the keys of `spend` live."""
        try:
            self.connection.call("EXISTS", self.keys.state(spend.limit.name, spend.key))
        except CLIENT_ERRORS as error:
            failure = failure_of(error, [])
            return isinstance(failure, StoreUnavailable) and failure.crowded
        return True

    def close(self) -> None:
        self.connection.close()

    @property
    def is_cluster(self) -> bool:
        return self.connection.is_cluster

    def keys_of(self, state: str) -> tuple[str, ...]:
        """All keys of a line, as the scripts take them."""
        return self.keys.line(state, self.is_cluster)

    def now(self) -> str | int:
        """What scripts take as the time: '' for the server's own."""
        return "" if self._clock is None else self._clock()

    def run(self, name: str, keys: Sequence[str | bytes], args: Sequence[Arg]) -> Any:
        """Run a script; the client's errors become ours."""
        try:
            return script(name)(self.connection, keys, args)
        except CLIENT_ERRORS as error:
            failure, cause = failure_of(error, keys), cause_of(error)
        raise failure from cause

    def run_many(self, name: str, calls: Sequence[Call]) -> list[Any]:
        """Run a script several times in one round trip: the replies, a `StateError` in the place of one.
        :raises StoreUnavailable: when the store gave no answer, or refuses."""
        return self.begin(name, calls)()

    def begin(self, name: str, calls: Sequence[Call]) -> Callable[[], list[Any]]:
        """The same in two parts: the calls are sent, and the replies taken whenever they are asked for. If nobody
        asks, their connection is closed."""
        asked = [keys for keys, _ in calls]
        with translated([keys[0] for keys in asked]):
            sent = script(name).begin(self.connection, calls)

        def replies() -> list[Any]:
            with translated([keys[0] for keys in asked]):
                found = next(sent)
            return list(map(checked, found, asked))

        return replies

    def given_override(self, name: str, *, fresh: bool = False) -> str:
        """On a Cluster the override lies in another slot than a line: it is read apart, at most once
        a second unless it must be `fresh`. Elsewhere '': the script reads it, in the same call."""
        if not self.is_cluster:
            return ""
        until, value = self._overrides.get(name, (0.0, ""))
        if fresh or until < time.monotonic():
            value = self._stored_override(name)
            self._overrides[name] = (time.monotonic() + 1, value)
        return value

    def _stored_override(self, name: str) -> str:
        with translated([self.keys.override(name)]):
            stored = self.connection.client.get(self.keys.override(name))
        return text(stored) if stored else _NO_OVERRIDE

    def _try(self, one: Spend, ticket: Ticket | None) -> Outcome | None:
        """The cheap script, where the last answer of the full one was no denial; None: it is a case
        for the full one."""
        rule = one.limit.rule
        if not isinstance(rule, Rule) or rule.ticks_per_us != 1 or one.cost > one.limit.burst:
            return None
        keys = self.keys.encoded(one.limit.name, one.key, self.is_cluster)
        newcomer = not ticket or not (ticket.first_seen_us or ticket.copy)
        given = self.given_override(one.limit.name)
        other = one.limit.name in self._rules  # as when last asked: then that script has no answer
        if not newcomer or other or keys[0] in self._busy or given not in _NONE:
            return None
        args = (self.now(), *_encoded_rule(rule), one.cost, b"1" if ticket else b"0")
        admitted, *found = self.run("try", (keys[0], keys[-1]), args)
        if not found:
            self._remember(keys[0], busy=True)
            return None
        self._rules.pop(one.limit.name, None)
        now, tat = found
        former = clamped(State(tat), now, rule) if tat else None
        wait = 0 if admitted else rule.decide(former, now, one.cost).wait_us

        def readings() -> tuple[Reading, ...]:
            spent = former if wait else rule.spend(former, now, one.cost, 0)
            return (read(rule, now, former, spent, wait_us=wait),)

        return Outcome(Verdict(admitted), wait, 0, 0, now, readings)

    def _remember(self, state: Arg, *, busy: bool) -> None:
        if not busy:
            self._busy.discard(state)
        elif len(self._busy) < 10_000:
            self._busy.add(state)

    def _ask(
        self, spends: Sequence[Spend], ticket: Ticket | None, *, look_only: bool = False
    ) -> Outcome:
        keys: list[str | bytes] = []
        args: list[Arg] = [self.now(), b"look" if look_only else b"ask", len(spends)]
        cluster = self.is_cluster
        for one in spends:
            keys += self.keys.encoded(one.limit.name, one.key, cluster)
            args += (one.limit.rule.wire, one.cost, self.given_override(one.limit.name))
        if ticket and not cluster:
            keys.append(self.keys.rooms(ticket.broker))  # on a Cluster: see below
        if ticket:
            args += _ticket_args(ticket, waits=keys[0] in self._busy)
        reply = self.run("acquire", keys, args)
        self._note_rules(reply, spends)
        outcome = _outcome(reply, spends, look_only)
        self._remember(keys[0], busy=not outcome.admitted or reply[_WAITING] > 0)
        if (visit := reply[4]) and cluster and ticket:
            # A crash just before this leaves the task in a room that nobody visits, until another
            # one parks there: on a Cluster the two writes cannot be one.
            index = self.keys.rooms(ticket.broker)
            with translated([index]):
                self.connection.client.zadd(index, {keys[0]: visit}, lt=True)
        return outcome

    def _note_rules(self, reply: list[Any], spends: Sequence[Spend]) -> None:
        for one, wire in zip(spends, reply[_ALL - 1 + _PER_LIMIT :: _PER_LIMIT], strict=True):
            rule = from_wire(text(wire))
            if rule != one.limit.rule:
                self._rules[one.limit.name] = rule
            else:
                self._rules.pop(one.limit.name, None)

    def _one_by_one(self, spends: Sequence[Spend], ticket: Ticket | None) -> Outcome:
        """Where keys live in different slots: one after the other, and what was taken is given
        back on a later denial. Nobody sleeps ahead here: the first limit's unit would start later
        than it was booked for."""
        if ticket:
            ticket = replace(ticket, max_sleep_us=0)
        taken: list[Outcome] = []
        for one in spends:
            outcome = self._try(one, ticket) or self._ask([one], ticket)
            if not outcome.admitted:
                for done, spend in zip(taken, spends, strict=False):
                    self.give_back(spend, done.readings[0])
                return _merged([*taken, outcome])
            taken.append(outcome)
        return _merged(taken)


def _override(
    key: str, wires: str, until_us: str | int, margin: str | int = 0, margin_until_us: str | int = 0
) -> Override:
    """:raises StateError: for what is no override."""
    try:
        rules = tuple(from_wire(wire) for wire in wires.split(";")) if wires else ()
        return Override(rules, int(until_us), int(margin), int(margin_until_us))
    except ValueError as error:
        raise StateError(f"foreign data at {key}") from error


#: What `withdraw` says where releasers should visit the line.
_BACK = 2


@lru_cache(maxsize=1024)
def _encoded_rule(rule: Rule) -> tuple[bytes, ...]:
    return b"%d" % rule.emission, b"%d" % rule.capacity


def _ticket_args(ticket: Ticket, *, waits: bool) -> list[Arg]:
    expires = -1 if ticket.expires_in_us is None else max(0, ticket.expires_in_us)
    numbers = (
        f"{ticket.max_sleep_us} {ticket.horizon_us} {ticket.grace_us} {expires} "
        f"{ticket.park_after_us} {ticket.lead_us} {ticket.hop_us}"
    )
    where = ticket.lane, ticket.broker, ticket.queue
    parcel = ticket.parcel(waits=waits)
    return [ticket.name, ticket.first_seen_us, ticket.copy, parcel, *where, numbers]


def _outcome(reply: list[Any], spends: Sequence[Spend], look_only: bool) -> Outcome:
    verdict, (pause, now, first_seen) = Verdict(reply[0]), reply[1:4]
    admitted = verdict is Verdict.ADMITTED
    sleep = pause if admitted and not look_only else 0
    return Outcome(
        verdict, 0 if admitted else pause, sleep, first_seen, now,
        lambda: _readings(reply, spends, sleep if admitted and not look_only else None),
    )  # fmt: skip


def _readings(reply: list[Any], spends: Sequence[Spend], sleep: int | None) -> tuple[Reading, ...]:
    now, found = reply[2], []
    for n, one in enumerate(spends):
        at = _ALL + _PER_LIMIT * n
        wait, rank, waiting, state, wire = reply[at : at + _PER_LIMIT]
        rule = from_wire(text(wire))
        former = rule.read_state(text(state))
        spent = former if sleep is None else rule.spend(former, now, one.cost, sleep)
        found.append(read(rule, now, former, spent, wait_us=wait, rank=rank, waiting=waiting))
    return tuple(found)


def _merged(outcomes: list[Outcome]) -> Outcome:
    last = outcomes[-1]
    return Outcome(
        verdict=next((one.verdict for one in outcomes if not one.admitted), Verdict.ADMITTED),
        wait_us=max(one.wait_us for one in outcomes),
        sleep_us=0,
        first_seen_us=last.first_seen_us,
        now_us=last.now_us,
        read=lambda: tuple(reading for one in outcomes for reading in one.readings),
    )
