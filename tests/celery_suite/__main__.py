"""The command line; see the package."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import pytest

from .report import compared
from .runs import BROKERS, MODES, WHOLE

LIMITED = MODES[1:]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.celery_suite", description=__doc__)
    parser.add_argument("--broker", action="append", choices=BROKERS, help="both, if not given")
    parser.add_argument("--mode", action="append", choices=LIMITED, help="all, if not given")
    parser.add_argument("--jobs", type=int, default=1, help="how many runs at a time")
    parser.add_argument(
        "tests", nargs=argparse.REMAINDER, help="for pytest, such as t/integration -k chord"
    )
    chosen = parser.parse_args()
    folder, wrong = Path(tempfile.mkdtemp(prefix="celery-suite-")), False
    print(f"records and logs: {folder}")
    for broker in chosen.broker or BROKERS:
        try:
            found = compared(
                broker, chosen.mode or LIMITED, chosen.tests or WHOLE, folder, chosen.jobs
            )
        except pytest.skip.Exception as skipped:
            print(f"{broker}: left out: {skipped}")
            continue
        for one in found:
            print(*one.lines(), sep="\n", flush=True)
            wrong = wrong or bool(one.faults or one.records.altered())
    return int(wrong)


raise SystemExit(main())
