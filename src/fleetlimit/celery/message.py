"""A task's message while it waits: what came, so that it can be published again unchanged."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any, NamedTuple

from celery.utils.time import maybe_iso8601
from kombu.serialization import dumps as kombu_dumps
from kombu.serialization import registry
from kombu.utils import json

__all__ = [
    "HEADER",
    "Message",
    "Serialized",
    "copy_of",
    "due",
    "expires_in_us",
    "line_of",
    "queues_on",
    "restore",
    "seen_us",
    "unpacked",
]

#: The one header a waiting message carries; gone again before the body starts.
HEADER = "fleetlimit"
#: What a request holds beside the message's own headers.
_NOT_HEADERS = frozenset(
    [
        "properties",
        "reply_to",
        "correlation_id",
        "hostname",
        "delivery_info",
        "args",
        "kwargs",
        "is_eager",
        "callbacks",
        "errbacks",
        "chain",
        "chord",
        "headers",
        "called_directly",
        "time_limit",
        "soft_time_limit",
        "_children",
        "_protected",
        "fleetlimit",
    ]
)
_BROKER_HEADERS = ("x-death", "x-first-death", "x-last-death", "x-delivery-count")


def seen_us(request: Any) -> int:
    """When this task was first denied, by the store's clock: its place in the line; 0: never."""
    return int((vars(request).get(HEADER) or {}).get("seen_us", 0))


def copy_of(request: Any) -> str:
    """The mark of the copy that the waiting room let go; '' if it does not come from there."""
    return str((vars(request).get(HEADER) or {}).get("copy", ""))


def line_of(request: Any) -> tuple[str, str] | None:
    """The limit and key in whose line this task stands; None: in none."""
    line = (vars(request).get(HEADER) or {}).get("line")
    return (line[0], line[1]) if line else None


def due(fields: dict[str, Any]) -> tuple[int, float]:
    """When a task that waits as a countdown is due, by the store's clock (0: it does not say), and the
    countdown, seconds: it is no longer than that, whatever became of the clock."""
    ours = fields.get(HEADER) or {}
    return int(ours.get("due_us", 0)), float(ours.get("countdown", 0))


def expires_in_us(expires: Any) -> int | None:
    """Microseconds until Celery would revoke a task with this `expires`, by this host's clock;
    None: never."""
    if expires is None:
        return None
    at = maybe_iso8601(expires)
    if at.tzinfo is None:
        at = at.replace(tzinfo=timezone.utc)
    left: timedelta = at - datetime.now(timezone.utc)
    return round(left.total_seconds() * 1e6)


def restore(request: Any) -> None:
    """Let the body see the request as it was first sent: a `self.retry()` of the body's own must
    not carry this run's place in the line."""
    ours = vars(request).pop(HEADER, None)
    if ours is None:
        return
    request.eta = ours["eta"]
    if request.headers:
        request.headers = {k: v for k, v in request.headers.items() if k != HEADER} or None


@dataclass
class Message:
    """A delivery as it can be published again."""

    id: str
    headers: dict[str, Any]
    properties: dict[str, Any]
    body: Any
    serializer: str
    exchange: str
    routing_key: str
    eta: Any
    #: The mark of the copy that came, if a waiting room let it go.
    copy: str
    #: The queues to declare before publishing: name, exchange, its type, routing key, arguments,
    #: durable. A worker of another queue may be the one that lets it go.
    queues: list[list[Any]]

    @classmethod
    def of(cls, task: Any) -> Message:
        request = task.request
        ours = vars(request).get(HEADER) or {}
        route = request.delivery_info or {}
        properties = request.properties or {}
        exchange = ours.get("exchange", route.get("exchange")) or ""
        return cls(
            id=request.id,
            headers=_headers(vars(request)),
            properties=properties,
            body=(request.args, request.kwargs, _embedded(request)),
            serializer=registry.type_to_name.get(properties.get("content_type")) or task.serializer,
            exchange=exchange,
            routing_key=ours.get("routing_key", route.get("routing_key")) or "",
            eta=ours.get("eta", request.eta),
            copy=copy_of(request),
            queues=[
                [
                    q.name,
                    q.exchange.name,
                    q.exchange.type,
                    q.routing_key,
                    q.queue_arguments,
                    q.durable,
                ]
                for q in queues_on(task.app, exchange)
            ],
        )

    def waiting(
        self,
        seen_us: int,
        line: tuple[str, str],
        countdown: float = 0,
        due_us: int = 0,
        copy: str = "",
    ) -> dict[str, Any]:
        """The headers while it waits in `line` (a limit's name, and the key), until `due_us` by the
        store's clock."""
        eta = None
        if countdown > 0:
            eta = (datetime.now(timezone.utc) + timedelta(seconds=countdown)).isoformat()
        ours = {
            "seen_us": seen_us,
            "line": line,
            "exchange": self.exchange,
            "routing_key": self.routing_key,
            "eta": self.eta,
            **({"copy": copy} if copy else {}),
            **({"due_us": due_us, "countdown": countdown} if due_us else {}),
        }
        return {**self.headers, "eta": eta, HEADER: ours}

    def packed(self) -> str:
        """As text, for the waiting room."""
        content_type, encoding, data = kombu_dumps(self.body, serializer=self.serializer)
        if isinstance(data, bytes):
            data = base64.b64encode(data).decode()
        text: str = json.dumps({**vars(self), "body": [content_type, encoding, data]})
        return text


def unpacked(text: str) -> Message:
    """A message from the waiting room; its body stays serialized."""
    fields = json.loads(text)
    return Message(**{**fields, "body": Serialized(*fields["body"])})


class Serialized(NamedTuple):
    """A body as it travels: text, or bytes in base64 when the encoding says binary."""

    content_type: str
    content_encoding: str
    data: str


def _headers(fields: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value
        for name, value in fields.items()
        if name not in _NOT_HEADERS and not name.startswith(_BROKER_HEADERS)
    }


def _embedded(request: Any) -> dict[str, Any]:
    return {name: getattr(request, name) for name in ("callbacks", "errbacks", "chain", "chord")}


def queues_on(app: Any, exchange: str) -> list[Any]:
    if not exchange:
        return []  # the default exchange: the routing key is the queue
    return [q for q in app.amqp.queues.values() if q.exchange and q.exchange.name == exchange]
