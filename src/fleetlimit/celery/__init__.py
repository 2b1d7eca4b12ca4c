"""The Celery side: `rate_limited`, `RateLimitedTask`, and what a worker needs to keep a limit.

Importing this package makes every Celery app of the process install the check in front of its
limited tasks when it finalizes, and look for Redis when a worker starts.
"""

from fleetlimit.celery.decorator import rate_limited
from fleetlimit.celery.setup import connect
from fleetlimit.celery.signals import limits_outage, task_throttled
from fleetlimit.celery.task import RateLimitedTask
from fleetlimit.celery.wiring import limiter_of

__all__ = ["RateLimitedTask", "limiter_of", "limits_outage", "rate_limited", "task_throttled"]

connect()
