"""The scripts as Redis gets them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from fleetlimit.store.scripts import script, script_names


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


def test_the_names_are_those_of_the_scripts_and_not_of_their_parts() -> None:
    names = script_names()
    assert {"acquire", "try", "release", "override"} <= set(names)
    assert not {"state", "line", "place", "room", "gcra", "fixed_window"} & set(names)
