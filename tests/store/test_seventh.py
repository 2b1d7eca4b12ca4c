"""A seventh algorithm is one file in Python and one in Lua, and nothing else has to know of it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fleetlimit.demo.processes import environment

ROOT = Path(__file__).parents[2]
SEVENTH = Path(__file__).parent / "seventh"
# The cost of a unit is a tenth too small: more than the limit starts.
RIGHT, WRONG = "+ cost * r[1]", "+ cost * r[1] * 0.9"

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The project with the algorithm added."""
    for name in ("src", "lua"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(SEVENTH / "metronome.py", tmp_path / "src" / "fleetlimit" / "algorithms")
    shutil.copy(SEVENTH / "metronome.lua", tmp_path / "lua")
    return tmp_path


def outcomes(copy: Path, *arguments: str) -> list[str]:
    """What pytest says of each test that it runs against the copy."""
    command = [sys.executable, "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", *arguments]
    ran = subprocess.run(
        command,
        cwd=ROOT,
        env=environment(PYTHONPATH=str(copy / "src")),
        capture_output=True,
        text=True,
        check=False,
    )
    said = [
        line
        for line in ran.stdout.splitlines()
        if line.startswith(("PASSED ", "FAILED ", "ERROR "))
    ]
    assert said, ran.stdout + ran.stderr
    return said


def test_it_passes_the_whole_suite(copy: Path) -> None:
    """And so do the others beside it, in memory and in Redis; and its twins give the same answers."""
    said = outcomes(
        copy, "tests/store/test_conformance.py", "tests/store/test_twins.py", "-k", "not TestRedis"
    )
    assert [line for line in said if not line.startswith("PASSED ")] == []
    for store in ("TestMemory", "TestValkey"):
        ours = [line for line in said if store in line and "metronome" in line]
        others = [line for line in said if store in line and "leaky_bucket" in line]
        assert len(ours) == len(others) > 15
    assert any("test_same_answers_of_each_algorithm[metronome]" in line for line in said)


def test_a_twin_that_differs_is_noticed(copy: Path) -> None:
    lua = copy / "lua" / "metronome.lua"
    assert RIGHT in lua.read_text()
    lua.write_text(lua.read_text().replace(RIGHT, WRONG))
    said = outcomes(copy, "tests/store/test_conformance.py", "-k", "TestValkey and metronome")
    failed = [line for line in said if line.startswith("FAILED ")]
    assert any("test_no_window_above_the_bound" in line for line in failed)
    assert len(failed) < len(said)
