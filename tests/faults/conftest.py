"""Fixtures of the fault tests are those of the worker tests; and each notes what its fault did."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tests.celery.conftest import rabbit
from tests.faults.report import Fault, Note, measured, table

__all__ = ["rabbit"]

#: Of one test, whether it has failed so far; and of the whole run.
NOTED, FAILED = pytest.StashKey[list[Fault]](), pytest.StashKey[bool]()
FAULTS = pytest.StashKey[list[Fault]]()


@pytest.fixture
def note(request: pytest.FixtureRequest) -> Note:
    """Notes what a fault did, and checks it: nothing is lost, and no window above the bound."""

    def check(
        starts: Sequence[dict[str, Any]], bound: float, *, twice: int = 0, **facts: Any
    ) -> Fault:
        fault = measured(_name(request.node), starts, bound, **facts)
        request.node.stash.setdefault(NOTED, []).append(fault)
        assert fault.lost == 0
        assert len(starts) - facts["tasks"] <= twice
        assert fault.worst is not None
        assert fault.worst <= bound
        return fault

    return check


def _name(item: pytest.Item) -> str:
    return item.name.removeprefix("test_").replace("_", " ")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    report = yield
    failed = item.stash[FAILED] = report.failed or item.stash.get(FAILED, False)
    if report.when == "teardown":
        for one in item.stash.get(NOTED, [Fault(_name(item))] if failed else []):
            one.passed = not failed
            item.config.stash.setdefault(FAULTS, []).append(one)
            if file := os.environ.get("FLEETLIMIT_SOAK"):
                with Path(file).open("a") as out:
                    print(json.dumps(asdict(one)), file=out)
    return report


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if faults := config.stash.get(FAULTS, []):
        terminalreporter.write_sep("=", "faults")
        for line in table(faults):
            terminalreporter.write_line(line)
