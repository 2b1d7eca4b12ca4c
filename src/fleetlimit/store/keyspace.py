"""The names of all keys in Redis.

`fleetlimit:{name}` or `fleetlimit:{name:key}` holds a line's state. The other keys of a line are the same with a suffix
(see `lua/line.lua`). `fleetlimit:{name}:override` holds numbers and pauses that override the limit's own numbers. The
braces keep one line in one slot of a Redis Cluster and spread the lines over its nodes. A store's prefix stands before
all keys, so that two environments can share one database.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from fleetlimit.errors import ConfigurationError

__all__ = ["Keys", "is_broker", "is_state", "name_and_key", "raw", "text"]

_STATE = "fleetlimit:{"
#: The suffixes of a line's keys, in the order in which `lua/line.lua` takes the keys.
_LINE = ("", ":line", ":tickets", ":lanes", ":due", ":room", ":started")
_BAD = ":bad"
_LONGEST_PREFIX = 200


def text(value: str | bytes) -> str:
    """A reply as text, whether or not the client decodes it. Bytes that are not UTF-8 are kept; `raw` returns them."""
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value


def raw(value: str) -> bytes:
    """The original bytes of a result of `text`."""
    return value.encode("utf-8", "surrogateescape")


def is_state(line: str) -> bool:
    """Whether this can be the key of a line's state. Anything else in an index of rooms is foreign data."""
    return re.fullmatch(r"[ -~]*fleetlimit:\{[^{}]+\}", line) is not None


def is_broker(name: str) -> bool:
    """Whether this can be the name of a broker. '' stands for a broker without a name."""
    return re.fullmatch(r"[A-Za-z0-9_.\-]{0,64}", name) is not None


def name_and_key(state: str) -> tuple[str, str]:
    """The limit's name and the key in a state key with any prefix."""
    name, _, key = state.rpartition(_STATE)[2][:-1].partition(":")
    return name, key


@dataclass(frozen=True)
class Keys:
    """The names of all keys that a store uses. All of them begin with `prefix`. A prefix with braces of its own
    (`{shop}:`) puts all lines into one slot of a Redis Cluster.

    :raises ConfigurationError: for a prefix that is not text, or that would scatter a line over a Cluster.
    """

    prefix: str = ""

    def __post_init__(self) -> None:
        prefix = self.prefix
        if not isinstance(prefix, str) or len(prefix) > _LONGEST_PREFIX or not _printable(prefix):
            raise ConfigurationError(
                f"key_prefix={prefix!r:.80}: must be printable text without spaces, "
                f"{_LONGEST_PREFIX} characters at most"
            )
        if prefix.partition("{")[2].startswith("}"):
            raise ConfigurationError(
                f"key_prefix={prefix!r}: must not begin its braces with {{}}: a Redis Cluster would then "
                "spread the keys of one line over several nodes"
            )

    @property
    def brokers(self) -> str:
        """The brokers that have (or had) parked tasks, and until when each of them is served."""
        return f"{self.prefix}fleetlimit:brokers"

    @property
    def processes(self) -> tuple[str, str]:
        """Two keys: which workers share the limits and how many processes each has, and the sum. (No limit can have
        such a name.)"""
        return f"{self.prefix}{_STATE}:processes}}", f"{self.prefix}{_STATE}:processes}}:sum"

    @property
    def quarantine(self) -> str:
        """The lines with messages in quarantine, and when the last message came there."""
        return f"{self.prefix}fleetlimit:quarantine"

    @property
    def limits(self) -> str:
        """The limits that workers and programs have announced."""
        return f"{self.prefix}fleetlimit:limits"

    @property
    def store(self) -> str:
        """The id of this database, under this prefix."""
        return f"{self.prefix}fleetlimit:store"

    @property
    def back(self) -> str:
        """When all processes ask Redis again after an outage, in microseconds."""
        return f"{self.prefix}fleetlimit:back"

    def rooms(self, broker: str) -> str:
        """The index of rooms of a broker: which lines have parked tasks, and when to visit them."""
        return f"{self.prefix}fleetlimit:rooms:{broker}"

    def revoked(self, broker: str) -> str:
        """The ids of tasks that were revoked while tasks were parked for a broker, and when they were revoked."""
        return f"{self.prefix}fleetlimit:revoked:{broker}"

    def state(self, name: str, key: str = "") -> str:
        """The key of a line's state; its other keys begin with it."""
        return f"{self.prefix}{_STATE}{name}:{key}}}" if key else f"{self.prefix}{_STATE}{name}}}"

    def override(self, name: str) -> str:
        """The numbers and the pause that override a limit's own numbers."""
        return f"{self.prefix}{_STATE}{name}}}:override"

    def line(self, state: str, cluster: bool) -> tuple[str, ...]:
        """All keys of a line, in the order in which the scripts take them. On a Cluster the override is passed as an
        argument (`given_override`), and a key of the line's own slot takes its place here."""
        return _line(self.prefix, state, cluster, _LINE)

    def room(self, state: str, cluster: bool) -> tuple[str, ...]:
        """The keys for scripts that let tasks go: those of the line, the quarantine, the override."""
        return _line(self.prefix, state, cluster, (*_LINE, _BAD))

    def encoded(self, name: str, key: str, cluster: bool) -> tuple[bytes, ...]:
        """All keys of a line as bytes, as they are sent."""
        return _encoded(self.prefix, name, key, cluster)


@lru_cache(maxsize=4096)
def _line(prefix: str, state: str, cluster: bool, suffixes: tuple[str, ...]) -> tuple[str, ...]:
    own = (state + suffix for suffix in suffixes)
    override = f"{state}:override" if cluster else Keys(prefix).override(name_and_key(state)[0])
    return (*own, override)


@lru_cache(maxsize=4096)
def _encoded(prefix: str, name: str, key: str, cluster: bool) -> tuple[bytes, ...]:
    keys = Keys(prefix)
    return tuple(one.encode() for one in keys.line(keys.state(name, key), cluster))


def _printable(prefix: str) -> bool:
    return prefix.isprintable() and " " not in prefix
