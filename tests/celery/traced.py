"""A Celery app whose worker is traced by the library that `TEST_TRACER` names. Each transaction or span that the library
would send away becomes a line of JSON in the file `TEST_SPANS`."""

from __future__ import annotations

import json
import os
import sys
import time
import types
from typing import Any

import redis
from celery import Celery

TRACER, SPANS = os.environ["TEST_TRACER"], os.environ["TEST_SPANS"]
OPTIONS = json.loads(os.environ.get("TEST_TRACER_OPTIONS", "{}"))


def write(**span: Any) -> None:
    with open(SPANS, "a") as file:
        file.write(json.dumps(span, default=str) + "\n")


def sentry() -> None:
    import sentry_sdk
    from sentry_sdk.transport import Transport

    class ToFile(Transport):
        def capture_envelope(self, envelope: Any) -> None:
            for item in envelope.items:
                if item.type == "transaction":
                    self._transaction(item.payload.json)
                elif item.type == "span":
                    for span in item.payload.json["items"]:
                        self._streamed(span)

        def _transaction(self, event: Any) -> None:
            trace = event["contexts"]["trace"]
            spans = {span["op"]: span.get("data", {}) for span in event["spans"]}
            waited_ms = spans.get("queue.process", {}).get("messaging.message.receive.latency")
            write(
                name=event["transaction"],
                trace=trace["trace_id"],
                parent=trace["parent_span_id"],
                denied=False,
                waited_s=waited_ms and waited_ms / 1000,
            )

        def _streamed(self, span: Any) -> None:
            told = {name: one["value"] for name, one in span["attributes"].items()}
            if told.get("sentry.op") == "queue.task.celery":
                write(
                    name=span["name"],
                    trace=span["trace_id"],
                    parent=span.get("parent_span_id"),
                    denied=told.get("fleetlimit.denied", False),
                )

    sentry_sdk.init(
        dsn="http://key@127.0.0.1/1", transport=ToFile, traces_sample_rate=1.0, **OPTIONS
    )


def opentelemetry() -> None:
    from opentelemetry import trace
    from opentelemetry.instrumentation.celery import CeleryInstrumentor
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

    class ToFile(SpanExporter):
        def export(self, spans: Any) -> SpanExportResult:
            for span in spans:
                write(
                    name=span.name,
                    trace=f"{span.context.trace_id:032x}",
                    parent=f"{span.parent.span_id:016x}" if span.parent else None,
                    denied=span.attributes.get("fleetlimit.denied", False),
                )
            return SpanExportResult.SUCCESS

    class StartedOnly(SimpleSpanProcessor):
        """The recipe in docs/operations.md."""

        def on_end(self, span: Any) -> None:
            if not span.attributes.get("fleetlimit.denied"):
                super().on_end(span)

    provider = TracerProvider()
    processor = StartedOnly if OPTIONS.get("recipe") else SimpleSpanProcessor
    provider.add_span_processor(processor(ToFile()))
    trace.set_tracer_provider(provider)
    CeleryInstrumentor().instrument()


def datadog() -> None:
    from ddtrace import patch
    from ddtrace.trace import TraceFilter, tracer

    class ToFile(TraceFilter):
        def process_trace(self, trace: Any) -> None:
            for span in trace:
                if span.name == "celery.run":
                    write(
                        name=span.resource,
                        trace=f"{span.trace_id:032x}",
                        parent=f"{span.parent_id or 0:016x}",
                        denied=span.get_tag("fleetlimit.denied") == "true",
                        kept=span.context.sampling_priority,
                    )

    class StartedOnly(TraceFilter):
        """The recipe in docs/operations.md."""

        def process_trace(self, trace: Any) -> Any:
            return None if trace[0].get_tag("fleetlimit.denied") else trace

    recipe: list[Any] = [StartedOnly()] if OPTIONS.get("recipe") else []
    tracer.configure(trace_processors=[*recipe, ToFile()])
    patch(celery=True)


def broken() -> None:
    class Broken(types.ModuleType):
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError("a library in another state than it should be")

    for name in ("sentry_sdk", "sentry_sdk.traces", "opentelemetry.trace", "ddtrace.trace"):
        sys.modules[name] = Broken(name)


{"sentry": sentry, "opentelemetry": opentelemetry, "datadog": datadog, "broken": broken}[TRACER]()

from fleetlimit import rate_limited, task_throttled  # noqa: E402 - the tracer comes first, as in life
from fleetlimit.celery import presence  # noqa: E402

presence.EVERY_S = 1.0
REDIS = os.environ["TEST_REDIS"]
app = Celery("tests", broker=os.environ["TEST_BROKER"], backend=REDIS)
app.conf.update(
    {
        "broker_connection_retry_on_startup": True,
        "fleetlimit_url": f"{REDIS}?socket_timeout=5",  # a busy machine is no outage
        **json.loads(os.environ.get("TEST_CONF", "{}")),
    }
)


@app.task(bind=True)
@rate_limited("partner", 50, 1, burst=20)
def call(self: Any, run: str, n: int = 0) -> int:
    sent = {name: vars(self.request).get(name) for name in ("traceparent", "sentry-trace")}
    nested = (self.request.headers or {}).get("sentry-trace")
    entry = json.dumps({"at": time.time(), "n": n, **sent, "nested": nested})
    redis.Redis.from_url(REDIS).rpush(f"starts:{run}", entry)
    return n


@task_throttled.connect
def _throttled(sender: Any, task_id: str, **_: Any) -> None:
    redis.Redis.from_url(REDIS).rpush(f"throttled:{sender.request.args[0]}", task_id)
