"""A task's message while it waits: what came, so that it can be published again unchanged."""

from __future__ import annotations

import base64
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from functools import cached_property
from typing import Any, NamedTuple

from celery.utils.time import maybe_iso8601
from kombu.serialization import dumps as kombu_dumps
from kombu.serialization import registry
from kombu.utils import json

from fleetlimit.celery.header import FIELDS, FORM, HEADER, copy_of, is_newer, ours
from fleetlimit.celery.queues import described, targets
from fleetlimit.errors import FleetlimitError
from fleetlimit.store.base import ticket_id

__all__ = [
    "CAME",
    "DEATHS",
    "Message",
    "Serialized",
    "UnreadableError",
    "came_with",
    "expires_in_us",
    "unpacked",
]

#: Among the properties of a delivery, between the worker's main process and its pool: what a request does not say
#: of the message that it was made from.
CAME = "fleetlimit"
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
#: What RabbitMQ notes when a message moves by way of a dead-letter exchange, as through the delay queues.
DEATHS = ("x-death", "x-first-death", "x-last-death")
#: Properties that publishing makes anew. The headers are among them where the message was one of `task_protocol=1`,
#: whose headers are few: it goes back as one of 2.
_REMADE = ("expiration", "application_headers")
_BROKER_HEADERS = (*DEATHS, "x-delivery-count")


def came_with(message: Any, fields: Mapping[str, Any]) -> dict[str, Any]:
    """What the fields of a request do not say of its message: how the body was serialized (Redis's properties do not
    say it, those of RabbitMQ do), and headers whose names a request uses for something else."""
    sent = message.headers or {}
    hidden = {name: sent[name] for name in _NOT_HEADERS - {HEADER} if name in sent}
    if "headers" in fields:
        hidden["headers"] = fields["headers"]
    return {"content_type": message.content_type, "headers": hidden}


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
    #: The queues it goes to, to be declared before: name, exchange, its type, routing key, arguments,
    #: durable. A worker of another queue may be the one that lets it go.
    queues: list[list[Any]]
    #: By which it stands in a line, once that is known.
    ticket: str = ""
    #: Fields of our header that a later version wrote: they stay.
    more: dict[str, Any] = field(default_factory=dict)
    #: Whether the broker delivered it again before it could start.
    redelivered: bool = False
    #: Whether it was revoked while it was parked: the worker that gets it says so.
    revoked: bool = False
    #: Our header, in a form that only a later version reads: it stays as it is.
    newer: dict[str, Any] | None = None

    @classmethod
    def of(cls, task: Any) -> Message:
        request = task.request
        found = ours(vars(request))
        route = request.delivery_info or {}
        properties = dict(request.properties or {})
        if "task" in (properties.get("application_headers") or ()):
            del properties["application_headers"]  # its headers once more
        properties.update(found.get("properties", {}))
        came = properties.pop(CAME, None) or {}
        content_type = came.get("content_type") or properties.get("content_type")
        exchange = found.get("exchange", route.get("exchange")) or ""
        routing_key = found.get("routing_key", route.get("routing_key")) or ""
        return cls(
            id=request.id,
            headers={**_headers(vars(request)), **came.get("headers", {})},
            properties=properties,
            body=(request.args, request.kwargs, _embedded(request)),
            serializer=registry.type_to_name.get(content_type) or task.serializer,
            exchange=exchange,
            routing_key=routing_key,
            eta=found.get("eta", request.eta),
            copy=copy_of(request),
            queues=[described(queue) for queue in targets(task.app, exchange, routing_key)],
            ticket=found.get("ticket", ""),
            redelivered=bool(route.get("redelivered") or found.get("redelivered")),
            more={name: it for name, it in found.items() if name not in FIELDS},
            newer=vars(request)[HEADER] if is_newer(vars(request)) else None,
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
        mine = {
            **self.more,
            "form": FORM,
            "seen_us": seen_us,
            "line": line,
            "exchange": self.exchange,
            "routing_key": self.routing_key,
            "eta": self.eta,
            **({"properties": remade} if (remade := self._remade()) else {}),
            **({"ticket": self.ticket} if self.ticket else {}),
            **({"copy": copy} if copy else {}),
            **({"due_us": due_us, "countdown": countdown} if due_us else {}),
            **({"redelivered": True} if self.redelivered else {}),
            **({"revoked": True} if self.revoked else {}),
        }
        return {**self.headers, "eta": eta, HEADER: self.newer or mine}

    def _remade(self) -> dict[str, Any]:
        """Of its properties, those that come otherwise when it is published again: the body is to see them as they were."""
        return {name: self.properties[name] for name in _REMADE if name in self.properties}

    @cached_property
    def serialized(self) -> tuple[str, str, str]:
        """The body's content type, encoding and text (bytes in base64)."""
        content_type, encoding, data = kombu_dumps(self.body, serializer=self.serializer)
        if isinstance(data, bytes):
            data = base64.b64encode(data).decode()
        return content_type, encoding, data

    def its_ticket(self) -> str:
        """The ticket by which it stands in a line; the same for the same message, delivered again."""
        if not self.ticket:
            self.ticket = ticket_id(
                self.id, f"{self.headers.get('task')} {self.serialized[2]}".encode()
            )
        return self.ticket

    def packed(self, secret: str | None = None) -> str:
        """As text, for the waiting room; signed, where there is a secret."""
        fields = {name: getattr(self, name) for name in _PACKED}
        fields["ticket"] = self.its_ticket()
        return signed(json.dumps({**fields, "body": self.serialized}), secret)


#: What a parked message holds beside its body.
_PACKED = (
    "id",
    "headers",
    "properties",
    "serializer",
    "exchange",
    "routing_key",
    "eta",
    "copy",
    "queues",
    "redelivered",
    "more",
)


def signed(text: str, secret: str | None) -> str:
    """`<HMAC-SHA-256>;<text>`; without a secret the text alone."""
    return f"{_signature(text, secret)};{text}" if secret else text


def _signature(text: str, secret: str) -> str:
    return hmac.new(secret.encode(), text.encode(), "sha256").hexdigest()


def unpacked(text: str, secret: str | None = None) -> Message:
    """A message from the waiting room; its body stays serialized. Fields that this version does not know are kept, and
    travel in our header.

    :raises UnreadableError: for what is no message, or, where there is a secret, not signed with it.
    """
    signature, _, rest = text.partition(";") if text[:1] != "{" else ("", "", text)
    try:
        expected = _signature(rest, secret).encode() if secret else b""
        if secret and not hmac.compare_digest(signature.encode(), expected):
            raise UnreadableError("its signature does not match fleetlimit_secret")
        fields = json.loads(rest.encode())
        known = {name: _checked(fields, name) for name in (*_PACKED, "ticket")}
        more = {name: it for name, it in fields.items() if name not in (*known, "body")}
        known["more"] = {**more, **known["more"]}
        return Message(**known, body=Serialized(*map(_text, fields["body"])))
    except UnreadableError:
        raise
    except Exception as error:  # whoever wrote it may have written anything
        raise UnreadableError(f"it is no message of fleetlimit's: {error!r:.200}") from error


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"of the body, something is of type {type(value).__name__}")
    return value


def _checked(fields: dict[str, Any], name: str) -> Any:
    """:raises TypeError: for a field of another type than ours."""
    value, right = fields[name], _TYPES.get(name, str)
    if not isinstance(value, right):
        raise TypeError(f"{name} is of type {type(value).__name__}")
    return value


#: Types of what a parked message holds, where they are no text.
_TYPES: dict[str, Any] = {
    "headers": dict,
    "properties": dict,
    "queues": list,
    "redelivered": bool,
    "more": dict,
    "eta": (str, type(None)),
}


class UnreadableError(FleetlimitError):
    """A parked message that cannot be read."""


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
