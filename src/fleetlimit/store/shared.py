"""Numbers that Python and the scripts share, in this one place.

A script begins with those that it uses, under the same names (`scripts.py`). Times are in microseconds.
"""

from __future__ import annotations

from fleetlimit.algorithms.base import LEAST_MARGIN, MOST_MARGIN
from fleetlimit.algorithms.window import LONGEST_SLEEP_US

__all__ = ["LEAST_MARGIN", "LONGEST_SLEEP_US", "MOST_MARGIN", "SHARED"]

#: A cell that has been unused for so long goes to the task that asks first, in the line or not.
IDLE_US = 5_000
#: A cell that is still free so shortly before it is due goes to a task that can sleep until then. Turns are taken well
#: ahead, so such a cell belongs to a task that is late, or to none.
FREE_US = 20_000
#: A new task may sleep in place for this fraction of the time for which a woken task may sleep (1/5 of 0.25 s: about
#: where a sleep costs less than going back into the queue). More would fill the pool with sleeping tasks.
NEWCOMER_SHARE = 5
#: A woken task may overtake at most so much time's worth of places (this absorbs the jitter of wake-ups).
PASS_US = 1_000_000
#: Of several limits, none is booked for so much later than it could be, because its cells until then would be lost.
TOGETHER_US = 10_000
#: One call looks at so many overdue tickets at most, so its cost stays bounded.
PURGE = 64
#: A task that is late by more than this is not waited for.
LATE_US = 1_000_000
#: No task comes from a lane any more if so many of its tasks are late, or one is late by so much, and no other has come
#: since.
SILENT, SILENT_US = 3, 5_000_000
#: So soon after a new task came from a lane that is gone, one of the tasks that wait is offered.
NEWS_US = 500_000
#: The time at which a task of a lane last came is kept with this precision.
HEARD_US = 100_000
#: The costs of so many tasks ahead are added up exactly.
LOOK = 64
#: A margin that a host asks for lasts so long, and goes back in the last part of this time.
MARGIN_US, FADES_US = 60_000_000, 30_000_000
#: A margin that is asked for briefly lasts so long. It is stored as a margin that has faded until then.
BRIEF_US = 2_000_000
#: The `gone` mark of a lane whose broker has no workers, and of a lane of messages that the broker refused.
NOBODY, REFUSED = 9_000_000_000_000_000, 9_000_000_000_000_001

SHARED = {
    name: value
    for name, value in tuple(globals().items())
    if name.isupper() and isinstance(value, int)
}
