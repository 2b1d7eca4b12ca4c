"""Key values come from task arguments: they are data, never key syntax."""

from __future__ import annotations

import enum
import hashlib
import uuid
from urllib.parse import quote

from fleetlimit.errors import KeyValueError

__all__ = ["encode"]

#: A longer encoded value is replaced by its digest, so memory per key is bounded.
LONGEST = 128


def encode(value: object) -> str:
    """The safe form of a key value, as it stands in the Redis key. Different texts never meet; a
    number or UUID is its text, a tuple of one its only part, an enum member its value.

    Letters, digits and `_ . -` stand for themselves, all else is percent-encoded UTF-8; the parts
    of a tuple are joined by `:`, which no part can contain. What is longer than 128 characters
    becomes `~` and its SHA-256.

    :param value: a str, int or UUID, or a tuple of these.
    :raises KeyValueError: for None, an empty text, or another type. Never read as "no key".
    """
    parts = value if isinstance(value, tuple) else (value,)
    if not parts:
        raise KeyValueError("key=(): an empty tuple names nobody")
    text = ":".join(_part(part) for part in parts)
    if len(text) > LONGEST:
        return "~" + hashlib.sha256(text.encode()).hexdigest()
    return text


def _part(value: object) -> str:
    if isinstance(value, enum.Enum):
        value = value.value
    if isinstance(value, bool) or not isinstance(value, (str, int, uuid.UUID)):
        raise KeyValueError(f"key={value!r:.80}: must be a str, int or UUID, or a tuple of these")
    try:
        text = str(value)
    except ValueError as error:  # an int of thousands of digits
        raise KeyValueError(f"key: {error}") from error
    if not text:
        raise KeyValueError("key='': an empty text names nobody")
    return quote(text.encode("utf-8", "surrogatepass"), safe="").replace("~", "%7E")
