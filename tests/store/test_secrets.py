"""No password, nor a piece of one, in an error, a log line or a `repr`, whatever characters it has."""

from __future__ import annotations

import logging
import traceback
from pathlib import Path
from urllib.parse import quote

import pytest
import redis

from fleetlimit import ConfigurationError, FleetlimitError, RateLimit, RateLimiter
from fleetlimit.demo.processes import redis_server
from fleetlimit.limiter import redis_store
from fleetlimit.store.urls import endpoint_of

ONE = RateLimit("one", 1, 60)
PIECES = ("s3cr", "t0p", "wh1sper")
ODD = [f"s3cr{sign}t0p{other}wh1sper" for sign in "?[]@%/#:&=;" for other in "?[@/:"]
FORMS = [
    "redis://:{}@127.0.0.1:1/0",
    "rediss://user:{}@127.0.0.1:1/0",
    "unix://:{}@/no/such/socket",
    "sentinel://:{}@127.0.0.1:1/limits",
    "redis+cluster://:{}@127.0.0.1:1",
    "{}@127.0.0.1:1/0",
]


def shown(error: BaseException) -> str:
    """All that a log or a tracker may show of an error: its text, and that of those behind it."""
    parts = ["".join(traceback.format_exception_only(type(error), error))]
    for behind in (error.__cause__, error.__context__):
        if behind is not None:
            parts.append(shown(behind))
    return " ".join(parts)


@pytest.mark.parametrize("form", FORMS)
def test_a_password_as_it_is(form: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    for password in ODD:
        try:
            limiter = RateLimiter(form.format(password))
            store = redis_store(limiter.store)
            assert store
            said = f"{limiter!r} {store!r} {store.connection!r} {store.connection._source!r}"
            limiter.acquire(ONE)
        except FleetlimitError as error:
            said = shown(error)
        assert not [piece for piece in PIECES if piece in said + caplog.text], (password, said)
        caplog.clear()


def test_an_error_says_what_to_do() -> None:
    with pytest.raises(ConfigurationError, match="percent-encoded"):
        RateLimiter("redis://:s3cr?t@127.0.0.1/0")
    with pytest.raises(ConfigurationError, match="percent-encoded"):
        RateLimiter("redis://:s3cr[t@127.0.0.1/0")


def test_an_encoded_password_is_what_it_says(tmp_path: Path) -> None:
    password = "p?[@%/#:&=;w"
    with redis_server(tmp_path) as server:
        redis.Redis.from_url(server.url).config_set("requirepass", password)
        url = server.url.replace("redis://", f"redis://:{quote(password, safe='')}@")
        assert RateLimiter(url).acquire(ONE)


def test_an_endpoint_shows_no_credentials() -> None:
    found = endpoint_of("sentinel://user:s3cret@h:1/limits/3?sentinel_password=t0p")
    assert found.options["password"] == "s3cret"
    assert "s3cret" not in repr(found)
    assert "t0p" not in repr(found)
