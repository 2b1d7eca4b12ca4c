"""What an algorithm must answer, so that stores, the line and outages work with any of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from fleetlimit.algorithms.whole import Limit

__all__ = ["LEAST_MARGIN", "MOST_MARGIN", "Algorithm", "Name", "Standing", "Verdict", "grown"]

#: What an automatic margin is at least and at most, thousandths of the period.
LEAST_MARGIN, MOST_MARGIN = 10, 100


@dataclass(frozen=True)
class Standing:
    """Where one request stands, before anything is decided.

    `lag_us`: when its units exist (0 or less: now). `idle_us`: for how long they have stood ready and
    unused (negative: they will exist in so long); None when nothing is remembered.
    """

    lag_us: int
    idle_us: int | None


@dataclass(frozen=True)
class Verdict:
    """The answer for one limit. `state` is what to store."""

    admitted: bool
    wait_us: int
    sleep_us: int
    remaining: int
    reset_us: int
    state: Any


@dataclass(frozen=True)
class Name:
    """What one public name of an algorithm means.

    :param title: the name in words, as it stands within a sentence.
    :param options: those of `burst`, `offset` and `tz` that a limit of this name takes.
    :param full_burst: whether a burst that is not given is the whole limit; otherwise it is 1.
    """

    title: str
    options: frozenset[str] = frozenset()
    full_burst: bool = False


@dataclass(frozen=True)
class Algorithm(ABC):
    """One limit's numbers, and how it counts with them. Immutable.

    A subclass that declares `names` is found by `algorithms/registry.py`, which is how everything else learns of it.
    Its twin in `lua/` has the name of the subclass's module.

    A *state* is what is stored for one key: None when nothing is remembered, else an immutable value of the
    algorithm's own (`SlidingLog` shares one ring between its states). `clamped`, `beyond`,
    `delay`, `give_back` and `decide` take any stored state, all others what `clamped` gave for the same `now_us`.

    :param margin: what is in force of an automatic margin, thousandths of the period; 0: the margin is a number
        of the limit's own, which stays as it is.
    """

    margin: int = field(default=0, kw_only=True)

    #: The public names that the class serves. The first one stands for all of them where one is enough.
    names: ClassVar[Mapping[str, Name]]
    #: Begins the texts of its rules and of its states: a letter from a to z that no other algorithm has.
    letter: ClassVar[str]
    #: How many whole numbers its rules have.
    size: ClassVar[int]
    #: Sorts the names wherever they are listed.
    order: ClassVar[int] = 100
    #: Whether its windows begin at fixed times.
    aligned: ClassVar[bool] = False
    #: Whether `wait_us` is exact for a place in the line, and a saturated limit is used up. If not, both are nearly so.
    exact: ClassVar[bool] = True

    @classmethod
    @abstractmethod
    def from_limit(cls, limit: Limit) -> Algorithm:
        """The rule of a limit whose options are checked already (`margin` is set by `rule_of`).

        :raises ConfigurationError: for numbers that cannot be counted exactly.
        """

    @classmethod
    def from_numbers(cls, numbers: Sequence[int], margin: int = 0) -> Algorithm:
        """The rule with these `numbers`, which are `size` many."""
        make: Callable[..., Algorithm] = cls
        return make(*numbers, margin=margin)

    @classmethod
    @abstractmethod
    def bound(cls, limit: Limit) -> int:
        """The most units of cost 1 in any window of the limit's period, wherever the window begins."""

    @classmethod
    def most(cls, limit: Limit) -> int:
        """The most that one run may cost."""
        return limit.burst if "burst" in cls.names[limit.algorithm].options else limit.limit

    @property
    def wire(self) -> str:
        """The rule as the scripts take it: the letter and the numbers, parted by commas; and behind a `~` an automatic
        margin."""
        own = f"{self.letter},{self.numbers}"
        return f"{own}~{self.margin}" if self.margin else own

    @property
    @abstractmethod
    def numbers(self) -> str:
        """The rule's whole numbers, parted by commas. The first one is at least 1 and the second one at least 0."""

    def widened(self, margin: int) -> Any:
        """The rule with so large a margin in force, thousandths of the period: itself, unless its margin is
        automatic, at its least, and smaller."""
        if self.margin != LEAST_MARGIN or margin <= LEAST_MARGIN:
            return self
        return self._widened(min(margin, MOST_MARGIN))

    @abstractmethod
    def _widened(self, margin: int) -> Any: ...

    @abstractmethod
    def clamped(self, state: Any, now_us: int) -> Any:
        """The state without what has expired at `now_us`, and capped at the furthest point that valid admissions can
        reach. So nobody waits for long after a clock stepped back or a limit was raised."""

    @abstractmethod
    def beyond(self, state: Any, now_us: int) -> bool:
        """Whether a stored state is further ahead than valid admissions can reach. Then even a denial must store what
        `clamped` makes of it; otherwise the wait would move along with the clock."""

    @abstractmethod
    def look(self, state: Any, now_us: int, cost: int) -> Standing:
        """Where a request of `cost` stands."""

    @abstractmethod
    def wait_us(self, state: Any, now_us: int, cost: int, before: int) -> int:
        """When the turn of `cost` units comes if `before` units go first: exact for `before` 0, and for
        more as good as is known now (their check at the turn keeps it right)."""

    @abstractmethod
    def pace_us(self, units: int) -> int:
        """How long so many units take at the limit's even rate."""

    @abstractmethod
    def spend(self, state: Any, now_us: int, cost: int, sleep_us: int) -> Any:
        """The state after `cost` units start at `now_us + sleep_us`."""

    @abstractmethod
    def delay(self, state: Any, now_us: int, late_us: int, cost: int) -> Any:
        """The state after a start that came `late_us` after its unit, at `now_us`."""

    @abstractmethod
    def give_back(
        self, stored: Any, spent: Any, former: Any, now_us: int, cost: int
    ) -> tuple[bool, Any]:
        """Undo an admission that found `former` and left `spent`, where that lets nobody in too early:
        whether it was undone, and the state to store."""

    @abstractmethod
    def remaining(self, state: Any, now_us: int) -> int:
        """Units that may start at this instant."""

    @abstractmethod
    def reset_us(self, state: Any, now_us: int) -> int:
        """Until `remaining` is as large as it can be again, if nothing more is spent. Of an algorithm that counts
        in windows of a grid: the end of the present window at the earliest."""

    @abstractmethod
    def part(self, number: int, slack: float) -> Any:
        """The evenly spaced rule (`gcra.Rule`) of one of `number` processes that have no store to ask, together a
        little slower (`slack`, from 1) than this limit."""

    @abstractmethod
    def read_state(self, text: str) -> Any:
        """A state from a script's reply: its whole numbers, at most six, parted by colons; '' is None."""

    @abstractmethod
    def write_state(self, state: Any) -> str:
        """The same for `give_back`."""

    def short(self, cost: int) -> tuple[bytes, ...] | None:
        """What `lua/try.lua` takes of this rule; None if that script does not decide as this rule does."""
        return None

    def short_state(self, number: int, now_us: int) -> Any:
        """The (clamped) state that `lua/try.lua` found; 0 is None."""
        raise NotImplementedError("try.lua does not know this algorithm")

    def decide(self, state: Any, now_us: int, cost: int = 1, *, max_sleep_us: int = 0) -> Verdict:
        """Admit `cost` units now, or after a sleep of at most `max_sleep_us`, or deny.

        :param state: what the store holds, or None.
        :param now_us: the store's clock, microseconds.
        """
        state = self.clamped(state, now_us)
        wait_us = max(0, self.look(state, now_us, cost).lag_us)
        admitted = wait_us <= max_sleep_us
        if admitted:
            state = self.spend(state, now_us, cost, wait_us)
        return Verdict(
            admitted=admitted,
            wait_us=0 if admitted else wait_us,
            sleep_us=wait_us if admitted else 0,
            remaining=self.remaining(state, now_us),
            reset_us=self.reset_us(state, now_us),
            state=state,
        )


def grown(number: int, margin: int, whole: int) -> int:
    """A number of a rule under a larger margin. `whole`: how many thousandths of the period it stands for under
    the least one."""
    return number - (-number * (margin - LEAST_MARGIN) // whole)
