"""A shop that calls two partners. Start a worker, then send some work:

celery -A examples.shop worker -l INFO
python -m examples.send
"""

from __future__ import annotations

import os

from celery import Celery

from fleetlimit import RateLimit, RateLimitedTask, rate_limited

app = Celery("shop", broker=os.environ.get("BROKER_URL", "redis://localhost:6379/0"))
app.conf.update(worker_prefetch_multiplier=1, task_ignore_result=True)

# This limit is defined once and used by two tasks, which keep it together.
PAYMENTS = RateLimit("payments", 100, per=60)


@app.task
@rate_limited(PAYMENTS)
def charge(order_id: int) -> None:
    print(f"charge {order_id}")


@app.task
@rate_limited(PAYMENTS)
def refund(order_id: int) -> None:
    print(f"refund {order_id}")


@app.task
@rate_limited("mail", 1000, per=60, burst=50, cost="{recipients}")  # the partner counts recipients
@rate_limited("mail-tenant", 10, per=1, key="{tenant}")  # and each tenant has a pace of its own
def newsletter(tenant: str, recipients: int) -> None:
    print(f"newsletter of {tenant} to {recipients}")


@app.task(base=RateLimitedTask, limits=[rate_limited(PAYMENTS)])
def statement(account: str) -> None:
    print(f"statement of {account}")
