"""Encodes the values of keys. They come from task arguments, and must not be able to change the syntax of a Redis
key."""

from __future__ import annotations

import enum
import hashlib
import uuid
from urllib.parse import quote

from fleetlimit.errors import KeyValueError

__all__ = ["encode"]

#: A longer encoded value is replaced by its digest, so the memory for each key is bounded.
LONGEST = 128


def encode(value: object) -> str:
    """The encoded form of a key's value, as it stands in the Redis key. Different texts have different forms. A number
    or UUID has the form of its text, a tuple with one part that of its part, and an enum member that of its value.

    Letters, digits and `_ . -` stand for themselves, and all other characters are percent-encoded UTF-8. The parts of a
    tuple are joined by `:`, which no part can contain. A form that is longer than 128 characters is replaced by `~` and
    its SHA-256.

    :param value: a str, int or UUID, or a tuple of these.
    :raises KeyValueError: for None, an empty text, or another type. These never mean "no key".
    """
    parts = value if isinstance(value, tuple) else (value,)
    if not parts:
        raise KeyValueError("key=(): must not be an empty tuple")
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
        raise KeyValueError("key='': must not be an empty text")
    return quote(text.encode("utf-8", "surrogatepass"), safe="").replace("~", "%7E")
