"""Never run, only type-checked: what a user may write, and what the checker must infer."""

from __future__ import annotations

from datetime import timedelta

from fleetlimit import Decision, RateLimit, RateLimiter, rate_limited

partner = RateLimit("partner-api", 100, per=timedelta(minutes=1), burst=5)
daily = RateLimit("quota", 1000, 86_400, algorithm="fixed_window", offset=timedelta(0), tz="UTC")
bound: int = daily.bound
limiter = RateLimiter("redis://localhost")
decision: Decision = limiter.acquire(partner, key=("eu", 5), cost=2)
both: Decision = limiter.acquire([partner, (partner, "a"), (partner, "a", 2)])
wait: float = decision.retry_after


@rate_limited("partner-api", 100, per=60, key="{order_id}", cost=lambda order_id: 2)
def charge(order_id: int) -> str:
    return str(order_id)


receipt: str = charge(5)  # the decorator keeps the function's own type
charge("5")  # type: ignore[arg-type]
rate_limited("partner-api", "100", 60)  # type: ignore[call-overload]
rate_limited("partner-api", 100)  # type: ignore[call-overload]
rate_limited(partner, burst=5)  # type: ignore[call-overload]
rate_limited(partner, key="{order_id}")
minute: RateLimit = RateLimit.parse("100/m", name="partner-api")
