"""Makes a request what it was when its task first came."""

from __future__ import annotations

from typing import Any

from fleetlimit.celery.header import HEADER, ours
from fleetlimit.celery.message import CAME, DEATHS

__all__ = ["restore"]

_WAY = ("exchange", "routing_key")


def restore(request: Any) -> None:
    """Make a request what it was when the task first came, so that its body sees nothing of the wait."""
    found, fields = ours(vars(request)), vars(request)
    properties = dict(request.properties or {})
    waited, marked = fields.pop(HEADER, None) is not None, properties.pop(CAME, None) is not None
    if waited:
        fields["eta"] = found.get("eta", request.eta)
        for name in [name for name in fields if _is_ours(name)]:
            del fields[name]
        fields["headers"] = _without_ours(request.headers)
        info = fields["delivery_info"] = _delivered(request.delivery_info or {}, found)
        if way := properties.get("delivery_info"):  # kombu's own transports keep a copy here
            again = {"redelivered": True} if info["redelivered"] else {}
            kept = {name: info[name] for name in _WAY if name in way and name in info}
            properties["delivery_info"] = {**way, **kept, **again}
        if sent := properties.get("application_headers"):
            eta = {"eta": request.eta} if "eta" in sent else {}
            properties["application_headers"] = {**(_without_ours(sent) or {}), **eta}
        properties.update(found.get("properties", {}))
    if waited or marked:
        fields["properties"] = properties


def _is_ours(name: str) -> bool:
    """Whether a header was added while the task waited. (A task is never put back with the headers of `DEATHS`, so the
    broker added them meanwhile.)"""
    return name == HEADER or name.startswith(DEATHS)


def _without_ours(headers: dict[str, Any] | None) -> dict[str, Any] | None:
    if not headers:
        return headers
    return {name: value for name, value in headers.items() if not _is_ours(name)} or None


def _delivered(info: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """The exchange and routing key with which the message first came, and `redelivered` if the broker has delivered it
    again since its body last ran."""
    way: dict[str, Any] = {name: found[name] for name in _WAY if name in found}
    return {**info, **way, "redelivered": bool(info.get("redelivered") or found.get("redelivered"))}
