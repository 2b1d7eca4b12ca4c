"""The names of all keys in Redis.

`fleetlimit:{name}` or `fleetlimit:{name:key}` is a line's state, and the same with a suffix what belongs to the line
(see `lua/line.lua`); `fleetlimit:{name}:override` what is in force beside a limit's own numbers. The braces keep one
line in one slot of a Redis Cluster and spread the lines over its nodes.
"""

from __future__ import annotations

from functools import lru_cache

__all__ = [
    "BACK",
    "BROKERS",
    "LIMITS",
    "PROCESSES",
    "STORE",
    "encoded_keys",
    "line_keys",
    "name_and_key",
    "override_key",
    "revoked_key",
    "room_keys",
    "rooms_key",
    "state_key",
    "text",
]

#: The brokers that have (or had) parked tasks, and until when each is served; each has an index of its rooms.
BROKERS = "fleetlimit:brokers"
#: Which workers share the limits, and how many processes each has; and the sum. No limit has such a name.
PROCESSES = ("fleetlimit:{:processes}", "fleetlimit:{:processes}:sum")
#: The id of this database.
STORE = "fleetlimit:store"
#: The limits that workers and programs have announced.
LIMITS = "fleetlimit:limits"
#: When all processes ask again after an outage, microseconds.
BACK = "fleetlimit:back"


def text(value: str | bytes) -> str:
    """A reply as text, whether or not the client decodes."""
    return value.decode() if isinstance(value, bytes) else value


def state_key(name: str, key: str = "") -> str:
    """The key of a line's state; its other keys begin with it."""
    return f"fleetlimit:{{{name}:{key}}}" if key else f"fleetlimit:{{{name}}}"


def override_key(name: str) -> str:
    return f"fleetlimit:{{{name}}}:override"


def rooms_key(broker: str) -> str:
    """The index of rooms of a broker: which lines have parked tasks, and when to visit them."""
    return f"fleetlimit:rooms:{broker}"


def revoked_key(broker: str) -> str:
    """Ids of tasks revoked while something was parked for a broker, and when."""
    return f"fleetlimit:revoked:{broker}"


def name_and_key(state: str) -> tuple[str, str]:
    """The limit's name and the key in a state key."""
    name, _, key = state[len("fleetlimit:{") : -1].partition(":")
    return name, key


#: What belongs to a line, as `lua/line.lua` takes it.
_LINE = ("", ":line", ":tickets", ":lanes", ":due", ":room", ":started")


@lru_cache(maxsize=4096)
def line_keys(state: str, cluster: bool) -> tuple[str, ...]:
    """All keys of a line, in the order the scripts take them. On a Cluster the override is given as
    an argument (`given_override`), and its place is taken by a key of the line's own slot."""
    own = (state + suffix for suffix in _LINE)
    return (*own, _override_beside(state, cluster))


@lru_cache(maxsize=4096)
def room_keys(state: str, cluster: bool) -> tuple[str, ...]:
    """The same for scripts that let tasks go: those of the line, the quarantine, the override."""
    own = (state + suffix for suffix in (*_LINE, ":bad"))
    return (*own, _override_beside(state, cluster))


def _override_beside(state: str, cluster: bool) -> str:
    return state + ":override" if cluster else override_key(name_and_key(state)[0])


@lru_cache(maxsize=4096)
def encoded_keys(name: str, key: str, cluster: bool) -> tuple[bytes, ...]:
    return tuple(one.encode() for one in line_keys(state_key(name, key), cluster))
