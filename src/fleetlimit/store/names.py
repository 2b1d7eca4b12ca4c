"""Which limits are in use, and with which algorithm. Workers and programs announce their limits in Redis.

The announcements make it possible to refuse a change to a misspelt name, or a change that the limit's own algorithm
cannot take. A limit works whether or not it was announced.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from difflib import get_close_matches

from fleetlimit.algorithms.registry import ALGORITHMS
from fleetlimit.errors import UnknownLimitError
from fleetlimit.store.base import Spend
from fleetlimit.store.failures import translated
from fleetlimit.store.keyspace import text
from fleetlimit.store.redis import RedisStore

__all__ = ["Noted", "algorithm_in_use", "announce", "check_known", "known_names", "warning_of"]

#: How long a limit is known after it was last announced. This is longer than a fleet is down over a weekend.
_LASTS_US = 7 * 86_400 * 1_000_000
#: After how many seconds a process announces a limit again, and after how many if the announcement failed.
_AGAIN_S, _RETRY_S = 86_400.0, 60.0
#: One process remembers at most so many names.
_MOST = 10_000
_NAME_IN_KEY = re.compile(r"[^:}]+")


def announce(store: RedisStore, algorithms: Mapping[str, str]) -> None:
    """Announce that these limits, each with its algorithm, are in use."""
    if algorithms:
        members = [f"{name}:{algorithm}" for name, algorithm in algorithms.items()]
        store.run("announce", [store.keys.limits], [store.now(), _LASTS_US, *members])


def algorithm_in_use(store: RedisStore, name: str) -> str | None:
    """The algorithm of a limit, as it was last announced; None if the limit was not announced."""
    members = [f"{name}:{algorithm}" for algorithm in ALGORITHMS]
    with translated([store.keys.limits]):
        times = store.connection.client.zmscore(store.keys.limits, members)
    found = [(at, one) for at, one in zip(times, ALGORITHMS, strict=True) if at is not None]
    return max(found)[1] if found else None


def known_names(store: RedisStore) -> set[str]:
    """The limits that were announced, or for which anything is stored. This reads the names of all keys of the
    database."""
    client = store.connection.client
    with translated([store.keys.limits]):
        names = {text(member).split(":")[0] for member in client.zrange(store.keys.limits, 0, -1)}
        states = store.keys.state("")[:-1]  # the keys of all lines begin with this
        for key in client.scan_iter(match=_literally(states) + "*", count=1000):
            if found := _NAME_IN_KEY.match(text(key)[len(states) :]):
                names.add(found[0])
    return names


def _literally(text: str) -> str:
    """A pattern of Redis that matches exactly this text."""
    return re.sub(r"([*?\[\]\\])", r"\\\1", text)


def check_known(store: RedisStore, name: str) -> None:
    """:raises UnknownLimitError: if the limit is not known, naming the known limit with the most similar spelling."""
    names = known_names(store)
    if name not in names:
        nearest = get_close_matches(name, sorted(names), n=1)
        raise UnknownLimitError(name, nearest[0] if nearest else None)


def warning_of(store: RedisStore, name: str) -> str:
    """What to tell somebody who looks at a limit that is not known: a misspelt name reads like a limit under which
    nobody waits. '' for one that is known."""
    if algorithm_in_use(store, name):
        return ""
    try:
        check_known(store, name)
    except UnknownLimitError as error:
        return f"No worker and no program has announced a limit {name!r}.{error.hint}"
    return ""


class Noted:
    """The limits that one process asks for, and when it must announce each of them (again)."""

    def __init__(self) -> None:
        self._due: dict[tuple[str, str], float] = {}
        self._algorithms: dict[str, str] = {}

    def due(self, spends: Sequence[Spend]) -> dict[str, str]:
        """Those of these limits that must be announced now, with their algorithms. There are hardly ever any."""
        now, found = time.monotonic(), {}
        for one in spends:
            which = one.limit.name, one.limit.algorithm
            if self._due.get(which, 0.0) <= now and len(self._due) < _MOST:
                self._due[which] = now + _AGAIN_S
                found[which[0]] = self._algorithms[which[0]] = which[1]
        return found

    def failed(self, algorithms: Mapping[str, str]) -> None:
        """Note that the announcement of these limits failed."""
        for which in algorithms.items():
            self._due[which] = time.monotonic() + _RETRY_S

    def algorithm(self, name: str) -> str | None:
        """The algorithm of a limit in this process; None if the process did not ask for the limit."""
        return self._algorithms.get(name)
