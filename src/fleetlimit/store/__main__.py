"""Print a script as Redis gets it: `python -m fleetlimit.store acquire`."""

from __future__ import annotations

import sys

from fleetlimit.store.scripts import script, script_names

if __name__ == "__main__":
    names = script_names()
    if len(sys.argv) != 2 or sys.argv[1] not in names:
        sys.exit(f"usage: python -m fleetlimit.store SCRIPT, which is one of {', '.join(names)}")
    print(script(sys.argv[1]).text)
