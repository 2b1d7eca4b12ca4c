"""The scripts as Redis gets them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from fleetlimit.store.scripts import _folder, script, script_names
from fleetlimit.store.shared import SHARED

from ..conftest import need


def printed(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", "-m", "fleetlimit.store", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_script_is_printed_as_redis_gets_it() -> None:
    done = printed("acquire")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == script("acquire").text + "\n"
    for part in ("local function load(", "MAKERS.g = function()", "DEFAULT = 'g'"):
        assert done.stdout.count(part) == 1


@pytest.mark.parametrize("arguments", [[], ["acquire", "try"], ["state"], ["nothing"], ["../x"]])
def test_what_is_no_script_is_refused_with_the_names_of_those_there_are(
    arguments: list[str],
) -> None:
    done = printed(*arguments)
    assert done.returncode == 1
    assert done.stdout == ""
    assert "acquire, adopt, announce, beat, confirm, delay, due, give_back" in done.stderr


def test_a_number_that_python_knows_too_stands_in_python_alone() -> None:
    names = re.compile(rf"^ *local [^=]*\b({'|'.join(SHARED)})\b", re.MULTILINE)
    for path in _folder().glob("*.lua"):
        assert not names.findall(path.read_text()), path.name
    text = script("release").text
    assert text.startswith("local ")
    first = text.partition("\n")[0]
    assert "LATE_US" in first
    assert str(SHARED["LATE_US"]) in first
    assert "BRIEF_US" not in first  # it is not used there
    assert not script("try").text.startswith("local IDLE_US")


def test_the_names_are_those_of_the_scripts_and_not_of_their_parts() -> None:
    names = script_names()
    assert {"acquire", "try", "release", "override"} <= set(names)
    assert not {"state", "line", "place", "room", "gcra", "fixed_window"} & set(names)


@pytest.mark.parametrize("name", script_names())
def test_luacheck_finds_nothing(name: str, tmp_path: Path) -> None:
    """Above all no global name, which would be an error at run time in a branch that is seldom taken. (A script may have
    parts of which it does not use all.)"""
    luacheck = need("luacheck", "the scripts are not checked")
    path = tmp_path / f"{name}.lua"
    path.write_text(script(name).text)
    done = subprocess.run(
        [luacheck, "--std", "lua51", "--read-globals", "redis", "struct", "KEYS", "ARGV", "--no-unused",
         "--no-redefined", "--no-max-line-length", "--ignore", "581", "--no-color", "--", path],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
