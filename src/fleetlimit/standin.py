"""The store and the sleep that `fleetlimit.testing` uses instead of Redis and of real sleeping, in this process."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from fleetlimit.store.base import Store

__all__ = ["StandIn", "current", "sleep"]


@dataclass(frozen=True)
class StandIn:
    """A store that every limiter uses (also for eager tasks), and a function that stands for sleeping."""

    store: Store
    sleep: Callable[[float], None]


#: None outside of tests. Set and read as `standin.current`.
current: StandIn | None = None


def sleep(seconds: float) -> None:
    (current.sleep if current else time.sleep)(seconds)
