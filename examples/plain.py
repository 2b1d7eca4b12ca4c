"""A program without Celery waits for the limit before each call.

FLEETLIMIT_URL=redis://localhost:6379/0 python -m examples.plain
"""

from __future__ import annotations

import time

from fleetlimit import RateLimit, RateLimiter


def main() -> None:
    limiter = RateLimiter()  # reads FLEETLIMIT_URL
    partner = RateLimit("partner-api", 10, per=1)
    for number in range(12):
        while not (decision := limiter.acquire(partner)):
            time.sleep(decision.retry_after)
        print(
            f"call {number}: {decision.remaining} left, full again in {decision.reset_after:.2f} s"
        )


if __name__ == "__main__":
    main()
