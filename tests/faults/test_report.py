"""What the report says of starts that are known."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tests.faults.report import Fault, main, measured, table


def starts(*times: float) -> list[dict[str, Any]]:
    return [{"at": at, "n": n} for n, at in enumerate(times)]


PACE = [n / 10 for n in range(10)]


@pytest.mark.parametrize(
    ("times", "healed", "back"),
    [
        ([*PACE, 5.0], 5.0, None),  # the backlog was over before
        ([*PACE, *(6.5 + t for t in PACE)], 5.0, 1.5),
        ([*PACE, *(5.05 + t for t in PACE)], 5.0, 0.0),  # within the first second
        ([5 + 2 * t for t in range(10)], 5.0, None),  # never again
        (PACE, None, None),  # a fault that stays
    ],
)
def test_seconds_to_the_normal_pace(
    times: list[float], healed: float | None, back: float | None
) -> None:
    assert measured("f", starts(*times), 10, tasks=len(times), healed=healed).recovery == back


def test_lost_and_the_worst_window() -> None:
    fault = measured("f", [*starts(0.0, 0.1, 1.05), {"at": 9.0, "n": 0}], 3, tasks=5)
    assert (fault.lost, fault.worst, fault.bound) == (2, 2, 3)


def test_rounds_are_summed_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rounds = [Fault("cut", 0, 11, 15, back) for back in (0.5, None, 2.0, 0.75)]
    assert " ".join(table(rounds)[1].split()) == "cut 4 of 4 0 11 / 15 0.5 0.8 2.0"
    rounds.append(Fault("cut", passed=False))  # failed before it had anything to note
    file = tmp_path / "rounds"
    file.write_text("".join(json.dumps(asdict(one)) + "\n" for one in rounds))
    assert main(str(file)) == 1
    assert "4 of 5" in capsys.readouterr().out
    assert " ".join(table([Fault("cut", passed=False)])[1].split()) == "cut 0 of 1 ? ? -"
