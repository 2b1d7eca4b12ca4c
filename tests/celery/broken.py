"""A worker with this module fails to tell that a task waits, as by a time limit that ends just then."""

from __future__ import annotations

from typing import Any

from celery.exceptions import SoftTimeLimitExceeded

from fleetlimit.celery import gate


def _announce(*_: Any) -> None:
    raise SoftTimeLimitExceeded


gate.announce = _announce
