"""A suite for pytest that tests what every store must do. It is for authors of their own stores.

```python
class TestMyStore(StoreConformance):
    factory = functools.partial(MyStore, "my://address")  # takes clock=None; its stores share one state

    def empty(self) -> None:
        ...  # forget everything that is stored

    def stored(self) -> int:
        ...  # how many keys hold anything
```

`factory` must be picklable, because other processes make their stores with it. If processes cannot share your store,
set `test_exactly_the_limit_from_processes = None` in the class. If your store frees its memory only when it is asked
again, set `test_what_says_nothing_goes_away = None`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

pytest.register_assert_rewrite(
    "fleetlimit.conformance.algorithms",
    "fleetlimit.conformance.gcra",
    "fleetlimit.conformance.line",
)

from fleetlimit.conformance.algorithms import AlgorithmSuite  # noqa: E402  # after the rewriting
from fleetlimit.conformance.clock import START, Clock  # noqa: E402  # same
from fleetlimit.conformance.gcra import GcraSuite  # noqa: E402  # same
from fleetlimit.conformance.line import LineSuite  # noqa: E402  # same
from fleetlimit.store.base import Store  # noqa: E402  # same

__all__ = ["START", "Clock", "StoreConformance"]


class StoreConformance(AlgorithmSuite, GcraSuite, LineSuite):
    """Make a subclass with `factory`, `empty` and `stored`."""

    #: Makes a store. `clock` is a callable that returns microseconds since the epoch.
    factory: Callable[..., Store]

    def empty(self) -> None:
        """Forget everything that is stored."""
        raise NotImplementedError

    @pytest.fixture
    def clock(self) -> Clock:
        """The stores' clock, which the test moves."""
        return Clock()

    @pytest.fixture
    def make_store(self, clock: Clock) -> Iterator[Callable[[], Store]]:
        """Makes stores that share one state and one clock."""
        self.empty()
        made: list[Store] = []

        def make() -> Store:
            made.append(type(self).factory(clock=clock))
            return made[-1]

        yield make
        for store in made:
            store.close()

    @pytest.fixture
    def store(self, make_store: Callable[[], Store]) -> Store:
        """One of the stores of `make_store`."""
        return make_store()
