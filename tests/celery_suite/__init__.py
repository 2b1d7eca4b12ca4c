"""Celery's own integration suite, run without limits and with every task limited.

`make celery-suite` runs all of it, for each broker: without limits (`plain`), with a limit that never binds (`never`),
and with one that denies most deliveries, the waiting room on (`room`) and off (`countdown`). It prints the tests that
end differently, and the fields of `request` that a body sees differently than the first delivery had them.

    python -m tests.celery_suite --broker redis --mode room t/integration/test_tasks.py
"""
