"""What `fleetlimit.testing` puts in the place of Redis and of sleeping, in this process."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from fleetlimit.store.base import Store

__all__ = ["StandIn", "current", "sleep"]


@dataclass(frozen=True)
class StandIn:
    """A store that every limiter uses, eager tasks included, and how to sleep."""

    store: Store
    sleep: Callable[[float], None]


#: None outside of tests. Set and read as `standin.current`.
current: StandIn | None = None


def sleep(seconds: float) -> None:
    (current.sleep if current else time.sleep)(seconds)
