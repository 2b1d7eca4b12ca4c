"""A part of Celery's integration suite: its tests end alike without limits and with every task limited."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from .report import compared
from .runs import BROKERS
from .source import fetched

#: What is quick, and is denied: results, retries, replaced tasks, a task given back, groups and chords of both protocols.
PART = (
    "t/integration",
    "-k",
    "test_basic_task or requeue or task_retried or nesting or chain_of_nine or concurrent_apply "
    "or (reach_the_next_group and True-True)",
)


@pytest.fixture(scope="module")
def suite() -> Path:
    try:
        return fetched()
    except subprocess.CalledProcessError as error:
        pytest.skip(f"Celery's own tests cannot be downloaded, and are not run: {error}")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("broker", BROKERS)
def test_a_part_of_the_suite_ends_alike(suite: Path, tmp_path: Path, broker: str) -> None:
    for one in compared(broker, ["room", "countdown"], PART, tmp_path, jobs=3):
        report, counts = "\n".join(one.lines()), one.records.counts
        print(report)
        assert not one.faults, report
        assert not one.records.altered(), report
        assert one.records.passed(), report
        assert counts["denied"] > counts["began"] / 4, report
