"""A broker's runs: each compared with the one without limits, and what is left of the differences."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from .aside import ASIDE
from .compare import Records, different
from .runs import MODES, Run, run

__all__ = ["Comparison", "compared"]


@dataclass(frozen=True)
class Comparison:
    """A run with limits beside the one without."""

    plain: Run
    limited: Run
    #: Tests that pass in one of the two only: as they ended there, and (alone, both ways) once more.
    differ: dict[str, str]
    #: Those of them that were alike when they ran again.
    alike_again: frozenset[str]

    @property
    def faults(self) -> dict[str, str]:
        """Which differences nothing explains."""
        return {test: how for test, how in self.differ.items() if test not in self.alike_again}

    @property
    def aside(self) -> dict[str, str]:
        """The tests that were left out, and why."""
        return _aside(self.records)

    @property
    def records(self) -> Records:
        return Records(self.limited.records)

    def lines(self) -> Iterator[str]:
        """The report."""
        plain, limited, counts = Records(self.plain.records), self.records, self.records.counts
        yield (
            f"{self.limited.broker}, {self.limited.mode}: {len(limited.passed())} of {len(limited.outcomes)} tests "
            f"pass, {len(plain.passed())} without limits; {counts['denied']} of {counts['came']} deliveries denied, "
            f"{counts['began']} bodies began; {counts['rerun']} tests tried again, {plain.counts['rerun']} without "
            f"limits; {self.limited.seconds:.0f} s, {self.plain.seconds:.0f} s without limits"
        )
        for test, why in self.aside.items():
            yield f"  left out: {test}: {why}"
        for test, how in self.differ.items():
            kind = "alike when run again" if test in self.alike_again else "DIFFERS"
            yield f"  {kind}: {test}: {how}"
        for name, times in limited.altered().items():
            yield f"  REQUEST ALTERED, {len(times)} times: {name}: {times[0]}"


def compared(
    broker: str, modes: Sequence[str], tests: Sequence[str], folder: Path, jobs: int = 1
) -> list[Comparison]:
    """Run tests of the suite without limits and in the modes given, `jobs` runs at a time.

    :param folder: what the runs leave there is overwritten by nobody: it must be new.
    """
    with ThreadPoolExecutor(jobs) as pool:
        plain, *limited = pool.map(
            lambda mode: run(broker, mode, tests, folder / broker / mode), [MODES[0], *modes]
        )
    return [_compare(plain, one, folder / broker / f"{one.mode}-again") for one in limited]


def _compare(plain: Run, limited: Run, folder: Path) -> Comparison:
    tests = different(Records(plain.records), Records(limited.records))
    aside = _aside(Records(limited.records))
    tests = [test for test in tests if test not in aside]
    alike = _alike(limited.broker, limited.mode, tests, folder) if tests else frozenset()
    return Comparison(plain, limited, _how(tests, plain, limited), alike)


def _alike(broker: str, mode: str, tests: list[str], folder: Path) -> frozenset[str]:
    """Those of the tests that end alike when both runs are repeated with them alone: it was chance."""
    both = [Records(run(broker, one, tests, folder / one).records) for one in (MODES[0], mode)]
    return frozenset(tests) - set(different(*both))


def _how(tests: list[str], plain: Run, limited: Run) -> dict[str, str]:
    was, now = Records(plain.records), Records(limited.records)
    return {
        test: f"{was.outcomes.get(test)} without limits, {now.outcomes.get(test)} with: {now.why(test) or was.why(test)}"
        for test in tests
    }


def _aside(records: Records) -> dict[str, str]:
    names = {test: re.sub(r"\[.*", "", test).rsplit("::", 1)[-1] for test in records.outcomes}
    return {
        test: ASIDE[name]
        for test, name in names.items()
        if name in ASIDE and records.outcomes[test] == "skipped"
    }
