"""Which limits are in use, and how each of them counts: what workers and programs have announced in Redis.

So a change to a misspelt name is noticed, and one that the limit's own algorithm cannot take. Announcing
never decides anything: a limit works whether or not it is known.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from difflib import get_close_matches

from fleetlimit.algorithms.choose import ALGORITHMS
from fleetlimit.errors import UnknownLimitError
from fleetlimit.store.base import Spend
from fleetlimit.store.failures import translated
from fleetlimit.store.keyspace import text
from fleetlimit.store.redis import RedisStore

__all__ = ["Noted", "algorithm_in_use", "announce", "check_known", "known_names", "warning_of"]

#: How long a limit is known after it was last announced: longer than a fleet is down over a weekend.
_LASTS_US = 7 * 86_400 * 1_000_000
#: When a process announces a limit again, seconds; and when that failed.
_AGAIN_S, _RETRY_S = 86_400.0, 60.0
#: Names that one process remembers at most.
_MOST = 10_000
_NAME_IN_KEY = re.compile(r"[^:}]+")


def announce(store: RedisStore, algorithms: Mapping[str, str]) -> None:
    """These limits, each with its algorithm, are in use."""
    if algorithms:
        members = [f"{name}:{algorithm}" for name, algorithm in algorithms.items()]
        store.run("announce", [store.keys.limits], [store.now(), _LASTS_US, *members])


def algorithm_in_use(store: RedisStore, name: str) -> str | None:
    """How a limit counts, by the last announcement of it; None for one that was not announced."""
    members = [f"{name}:{algorithm}" for algorithm in ALGORITHMS]
    with translated([store.keys.limits]):
        times = store.connection.client.zmscore(store.keys.limits, members)
    found = [(at, one) for at, one in zip(times, ALGORITHMS, strict=True) if at is not None]
    return max(found)[1] if found else None


def known_names(store: RedisStore) -> set[str]:
    """Limits that were announced, or of which anything is stored. It goes through all keys of the database."""
    client = store.connection.client
    with translated([store.keys.limits]):
        names = {text(member).split(":")[0] for member in client.zrange(store.keys.limits, 0, -1)}
        states = store.keys.state("")[:-1]  # as the keys of all lines begin
        for key in client.scan_iter(match=_literally(states) + "*", count=1000):
            if found := _NAME_IN_KEY.match(text(key)[len(states) :]):
                names.add(found[0])
    return names


def _literally(text: str) -> str:
    """As a pattern of Redis."""
    return re.sub(r"([*?\[\]\\])", r"\\\1", text)


def check_known(store: RedisStore, name: str) -> None:
    """:raises UnknownLimitError: naming the known limit that is spelt most like it."""
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
        hint = f" Did you mean {error.nearest}?" if error.nearest else ""
        return f"No worker and no program has announced a limit {name!r}.{hint}"
    return ""


class Noted:
    """The limits that one process asks for, and when to announce each of them (again)."""

    def __init__(self) -> None:
        self._due: dict[tuple[str, str], float] = {}
        self._algorithms: dict[str, str] = {}

    def due(self, spends: Sequence[Spend]) -> dict[str, str]:
        """Of these limits, those to announce now, with their algorithms: hardly ever any."""
        now, found = time.monotonic(), {}
        for one in spends:
            which = one.limit.name, one.limit.algorithm
            if self._due.get(which, 0.0) <= now and len(self._due) < _MOST:
                self._due[which] = now + _AGAIN_S
                found[which[0]] = self._algorithms[which[0]] = which[1]
        return found

    def failed(self, algorithms: Mapping[str, str]) -> None:
        """The announcement was not heard."""
        for which in algorithms.items():
            self._due[which] = time.monotonic() + _RETRY_S

    def algorithm(self, name: str) -> str | None:
        """How a limit counts in this process; None if it was not asked for."""
        return self._algorithms.get(name)
