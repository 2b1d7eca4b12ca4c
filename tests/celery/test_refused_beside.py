"""Redis refuses what a worker's threads ask beside the decisions: it is said as an error, once, and seen in `health()`."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from fleetlimit.celery import limiter_of, presence
from fleetlimit.demo.processes import Server, until

from .test_apps_side_by_side import Shop, working

ALL = ("on", ">s3cret", "~*", "&*", "+@all")


@pytest.fixture
def admin(redis7: Server) -> Iterator[redis.Redis]:
    """A server with a user `limits`, who may do all until a test says otherwise."""
    with redis.Redis.from_url(redis7.url, decode_responses=True) as client:
        client.flushall()
        client.execute_command("ACL", "SETUSER", "limits", "reset", *ALL)
        yield client
        client.execute_command("ACL", "DELUSER", "limits")


def refusals(admin: redis.Redis) -> int:
    found: Any = admin.info("errorstats")
    return int(found.get("errorstat_NOPERM", {"count": 0})["count"])


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.levelno == logging.ERROR]


@pytest.mark.parametrize("thread", ["heartbeat", "releaser"])
def test_it_is_said_once_and_seen(
    admin: redis.Redis,
    redis7: Server,
    thread: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """No task is sent: no decision meets the refusal."""
    monkeypatch.setattr(presence, "EVERY_S", 0.1 if thread == "heartbeat" else 3600)
    shop = Shop(redis7.url)
    shop.app.conf.fleetlimit_url = redis7.url.replace("//", "//limits:s3cret@")
    shop.app.conf.fleetlimit_waiting_room = thread == "releaser"
    with working(shop.app):
        health = limiter_of(shop.app).health
        admin.execute_command("ACL", "SETUSER", "limits", "-@scripting", "-@sortedset")
        before = refusals(admin)
        until(lambda: refusals(admin) >= before + 4, "it is refused again and again")
        until(lambda: health().refusal, "it is seen")
        assert "no permissions" in health().refusal
        assert not health().away
        assert [f"({thread})" in one and health().refusal in one for one in errors(caplog)] == [
            True
        ]
        admin.execute_command("ACL", "SETUSER", "limits", *ALL)
        until(lambda: health().refusal is None, "it is over")
        until(lambda: f"({thread}): Redis no longer refuses this" in caplog.text, "that is said")
    assert "s3cret" not in caplog.text
