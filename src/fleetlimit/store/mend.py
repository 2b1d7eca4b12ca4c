"""Drops foreign data in the keys that all lines share, because it would stop all lines. Each case is logged."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from fleetlimit.store.failures import translated
from fleetlimit.store.keyspace import is_state, text
from fleetlimit.store.redis import RedisStore

__all__ = ["mend", "sound_lines"]

logger = logging.getLogger("fleetlimit")

_ROOM = ":room"


def sound_lines(store: RedisStore, index: str, lines: Sequence[str | bytes]) -> tuple[str, ...]:
    """Those members of an index of rooms that are keys of lines. Other members are removed from the index."""
    for line in lines:
        if not is_state(text(line)):
            logger.error(
                "waiting room: %s held %r, which names no line; it is dropped", index, line
            )
            with translated([index]):
                store.connection.client.zrem(index, line)
    return tuple(text(line) for line in lines if is_state(text(line)))


def mend(store: RedisStore, broker: str) -> bool:
    """Drop those of the shared keys that hold no sorted set. If a broker's index of rooms was dropped, it is made again
    from the rooms in the database.

    :return: whether there was such a key.
    """
    index, found = store.keys.rooms(broker), False
    with translated([index]):
        client = store.connection.client
        for key in (index, store.keys.brokers, store.keys.revoked(broker), store.keys.quarantine):
            kind = text(client.type(key))
            if kind in ("zset", "none"):
                continue
            found = True
            logger.error("waiting room: %s held a %s, not a sorted set; it is dropped", key, kind)
            client.delete(key)
            if key == index:
                rooms = map(text, client.scan_iter(f"*{_ROOM}", 1000))
                ours = (one[: -len(_ROOM)] for one in rooms if one.startswith(store.keys.prefix))
                if lines := [line for line in ours if is_state(line)]:
                    client.zadd(index, dict.fromkeys(lines, 0))
    return found
