"""A task's message while the task waits: it keeps everything that came, so it can be published again unchanged."""

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

#: A property that the worker's main process adds to a delivery for the pool. It holds the facts about the message that
#: the request does not contain.
CAME = "fleetlimit"
#: Fields of a request that are not headers of the message.
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
#: Headers that RabbitMQ adds when a message moves through a dead-letter exchange, as it does in the delay queues.
DEATHS = ("x-death", "x-first-death", "x-last-death")
#: Properties that publishing makes anew. `application_headers` is one of them if the message came with
#: `task_protocol=1`, which has few headers, because the message goes back with `task_protocol=2`.
_REMADE = ("expiration", "application_headers")
_BROKER_HEADERS = (*DEATHS, "x-delivery-count")


def came_with(message: Any, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Facts about a message that its request does not contain: how the body was serialized (the properties of RabbitMQ
    say it, those of Redis do not), and headers whose names a request uses for something else."""
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
    """A delivery in a form that can be published again."""

    id: str
    headers: dict[str, Any]
    properties: dict[str, Any]
    body: Any
    serializer: str
    exchange: str
    routing_key: str
    eta: Any
    #: The mark of the copy that came, if a waiting room let it go; else ''.
    copy: str
    #: The queues of the message, which are declared before it is published: name, exchange, its type, routing key,
    #: arguments, durable. (The worker that lets the message go may not read these queues itself.)
    queues: list[list[Any]]
    #: The ticket of the task in its line, once it is known.
    ticket: str = ""
    #: Fields of our header that a later version wrote. They are kept.
    more: dict[str, Any] = field(default_factory=dict)
    #: Whether the broker delivered the message again before the task could start.
    redelivered: bool = False
    #: Whether the task was revoked while it was parked. The worker that gets the message then discards it.
    revoked: bool = False
    #: Our header, if it has a form that only a later version reads. It stays as it is.
    newer: dict[str, Any] | None = None

    @classmethod
    def of(cls, task: Any) -> Message:
        request = task.request
        found = ours(vars(request))
        route = request.delivery_info or {}
        properties = dict(request.properties or {})
        if "task" in (properties.get("application_headers") or ()):
            del properties["application_headers"]  # a second copy of the headers
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
        """The headers of the message while it waits in `line` (a limit's name, and the key), until `due_us` by the
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
        """The properties that publishing changes. They travel in our header, so that the body sees them unchanged."""
        return {name: self.properties[name] for name in _REMADE if name in self.properties}

    @cached_property
    def serialized(self) -> tuple[str, str, str]:
        """The body's content type, encoding and text (bytes in base64)."""
        content_type, encoding, data = kombu_dumps(self.body, serializer=self.serializer)
        if isinstance(data, bytes):
            data = base64.b64encode(data).decode()
        return content_type, encoding, data

    def its_ticket(self) -> str:
        """The ticket of the task in a line. If the same message is delivered again, it has the same ticket."""
        if not self.ticket:
            self.ticket = ticket_id(
                self.id, f"{self.headers.get('task')} {self.serialized[2]}".encode()
            )
        return self.ticket

    def packed(self, secret: str | None = None) -> str:
        """The message as a text for the waiting room. It is signed if there is a secret."""
        fields = {name: getattr(self, name) for name in _PACKED}
        fields["ticket"] = self.its_ticket()
        return signed(json.dumps({**fields, "body": self.serialized}), secret)


#: The fields of a parked message, except its body.
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
    """`<HMAC-SHA-256>;<text>`, or only the text if there is no secret."""
    return f"{_signature(text, secret)};{text}" if secret else text


def _signature(text: str, secret: str) -> str:
    return hmac.new(secret.encode(), text.encode(), "sha256").hexdigest()


def unpacked(text: str, secret: str | None = None) -> Message:
    """Read a message from the waiting room. Its body stays serialized. Fields that this version does not know are kept
    and travel in our header.

    :raises UnreadableError: if the text is no message, or if there is a secret and the message is not signed with it.
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
    except Exception as error:  # another program may have written anything here
        raise UnreadableError(f"it is no message of fleetlimit's: {error!r:.200}") from error


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"a part of the body is of type {type(value).__name__}")
    return value


def _checked(fields: dict[str, Any], name: str) -> Any:
    """:raises TypeError: for a field that does not have the expected type."""
    value, right = fields[name], _TYPES.get(name, str)
    if not isinstance(value, right):
        raise TypeError(f"{name} is of type {type(value).__name__}")
    return value


#: The types of the fields of a parked message, except those that are texts.
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
    """A serialized body: text, or bytes in base64 if the encoding is `binary`."""

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
