"""Tells tracing libraries which deliveries ended without a start.

Sentry, OpenTelemetry and Datadog open a transaction for each delivery, before the limit is asked, so a task that waits
would count once for each denial and once for its run. Where the library can still drop an open transaction, it is
dropped. Elsewhere it is marked, and docs/operations.md says how to drop what is marked. The trace goes on over the wait
by itself, because a waiting message keeps the headers that it was sent with.

A library is used only if the worker has loaded it, and only by its documented functions.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from celery.utils.log import get_logger

__all__ = ["DENIED", "ends_without_start"]

logger = get_logger(__name__)

#: The attribute (tag) of a transaction or span whose delivery ended without a start.
DENIED = "fleetlimit.denied"


def ends_without_start() -> None:
    """Drop or mark the transaction of the delivery that ends now. An error inside a library is logged at DEBUG, because
    the task does not depend on it."""
    for name, tell in _LIBRARIES.items():
        if library := sys.modules.get(name):
            try:
                tell(library)
            except Exception as error:
                logger.debug("%s could not be told of a delivery that ended: %r", name, error)


def _sentry(sentry_sdk: Any) -> None:
    """Drop the transaction that Sentry opened for this delivery, but not a program's own around an embedded worker."""
    span = sentry_sdk.get_current_span()
    transaction = span and span.containing_transaction
    if transaction and transaction.op == "queue.task.celery":
        transaction.sampled = False


def _sentry_streams(traces: Any) -> None:
    """Mark the span, because with `trace_lifecycle="stream"` a span cannot be dropped."""
    if span := traces.get_current_span():
        span.set_attribute(DENIED, True)


def _opentelemetry(trace: Any) -> None:
    """Mark the span, because a span that has started can be dropped only where it is exported."""
    trace.get_current_span().set_attribute(DENIED, True)


def _datadog(trace: Any) -> None:
    """Mark the span, and drop this process's part of the trace. (Trace metrics count the span all the same.)"""
    span = trace.tracer.current_span()
    if span and span.name == "celery.run":
        span.set_tag(DENIED, "true")
        if span is trace.tracer.current_root_span():
            span.set_tag("manual.drop")


_LIBRARIES: dict[str, Callable[[Any], None]] = {
    "sentry_sdk": _sentry,
    "sentry_sdk.traces": _sentry_streams,
    "opentelemetry.trace": _opentelemetry,
    "ddtrace.trace": _datadog,
}
