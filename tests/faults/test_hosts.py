"""Hosts that are hosts: a cable is pulled, and all of one worker's connections are gone at once."""

from __future__ import annotations

import json
import time
from pathlib import Path

from fleetlimit.demo.processes import until
from tests.celery.harness import fleet, heard, window
from tests.faults.drain import LIMIT, PROCESSES, SWITCH, TASKS, all_of, away, send
from tests.faults.report import Note
from tests.hosts import PORT, hosts, redis_on


def test_one_of_two_hosts_is_cut_off_and_healed(tmp_path: Path, note: Note) -> None:
    """Broker and limits are on a third. The records go by a unix socket, which no cable cuts: what the
    host starts meanwhile is seen."""
    with hosts(3) as lan, redis_on(lan, 1) as socket:
        url = f"redis://10.77.0.1:{PORT}/0"
        env = {
            "TEST_BROKER": url,
            "TEST_BACKEND": "",
            "TEST_CONF": json.dumps({"fleetlimit_url": url, "fleetlimit_waiting_room": False}),
        }
        with fleet(tmp_path, f"redis+socket://{socket}", f"unix://{socket}", **env) as one:
            one.start("prefork", PROCESSES // 2, prefix=lan.on(2))
            worker = one.start("prefork", PROCESSES // 2, prefix=lan.on(3))
            heard()
            run = one.run()
            send(one, run, TASKS)
            one.wait(run, 15)
            assert lan.reaches(3, 1)
            lan.cut(3)
            assert not lan.reaches(3, 1)
            time.sleep(4)
            lan.heal(3)
            healed = time.time()
            starts = all_of(one, run, TASKS)
            until(lambda: away(worker.log.read_text()) == 0, "all are back")
            before = worker.log.read_text().count("succeeded")
            again = one.run()
            send(one, again, 30)
            assert window(one.wait(again, 30)) <= LIMIT
            assert worker.log.read_text().count("succeeded") > before
    # The share of who is cut off, beside the whole limit.
    note(starts, LIMIT * (1 + 1 / 2) + SWITCH / 2, tasks=TASKS, healed=healed)
