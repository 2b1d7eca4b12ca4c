"""What the containers run; pytest-celery copies this file into them."""

from __future__ import annotations

import socket
import time

from celery import shared_task

from fleetlimit import rate_limited

LIMIT, PER = 10, 1.0


@shared_task  # type: ignore[untyped-decorator]  # Celery has no type hints
@rate_limited("smoke", LIMIT, per=PER)
def charge(number: int) -> tuple[int, str, float]:
    """Which number, in which container, and when: all containers share one kernel's clock."""
    return number, socket.gethostname(), time.monotonic()
