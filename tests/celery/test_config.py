"""Where Redis is found, and the settings."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery

from fleetlimit import ConfigurationError, RateLimiter
from fleetlimit.celery.config import _source, settings_of
from fleetlimit.demo.processes import spawn, until
from fleetlimit.store.memory import MemoryStore
from fleetlimit.store.redis import RedisStore


def made(**conf: Any) -> Celery:
    app = Celery("config", set_as_current=False)
    app.conf.update(conf)
    return app


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FLEETLIMIT_URL", "CELERY_BROKER_URL", "CELERY_RESULT_BACKEND"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("conf", "found"),
    [
        ({"fleetlimit_url": "redis://a", "result_backend": "redis://b"}, "redis://a"),
        ({"result_backend": "redis://b/1", "broker_url": "redis://c"}, "redis://b/1"),
        ({"result_backend": "rpc://", "broker_url": "redis://c/2"}, "redis://c/2"),
        ({"broker_url": "redis://c/2;redis://d"}, "redis://c/2"),
        ({"broker_url": ["redis://c/2", "redis://d"]}, "redis://c/2"),
        ({"broker_url": "redis+socket:///run/r.sock?virtual_host=3"}, "unix:///run/r.sock?db=3"),
        (
            {"result_backend": "rediss://h:6380/0?ssl_cert_reqs=CERT_REQUIRED"},
            "rediss://h:6380/0?ssl_cert_reqs=required",
        ),
    ],
)
def test_found_in_this_order(conf: dict[str, Any], found: str) -> None:
    assert _source(made(**conf)) == found
    RateLimiter(found)


def test_environment_comes_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLEETLIMIT_URL", "redis://env")
    assert _source(made(result_backend="redis://b")) == "redis://env"
    assert _source(made(fleetlimit_url="redis://a")) == "redis://a"


def test_nothing_found_lists_the_places() -> None:
    with pytest.raises(ConfigurationError) as caught:
        _source(made(broker_url="amqp://user:secret@host", result_backend="rpc://"))
    said = str(caught.value)
    for place in ("app.conf.fleetlimit_url (not set)", "FLEETLIMIT_URL", "result_backend (rpc)",
                  "broker_url (amqp)"):  # fmt: skip
        assert place in said
    assert "secret" not in said


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("fleetlimit_max_sleep", -1),
        ("fleetlimit_max_sleep", 1.5),
        ("fleetlimit_max_sleep", "0.1"),
        ("fleetlimit_horizon", 0),
        ("fleetlimit_eager", "maybe"),
        ("fleetlimit_waiting_state", "SUCCESS"),
    ],
)
def test_bad_settings_are_named(name: str, value: object) -> None:
    with pytest.raises(ConfigurationError, match=f"{name}={value!r}"):
        settings_of(made(**{name: value}))


def test_horizon_is_half_the_visibility_timeout() -> None:
    assert settings_of(made()).horizon_us == 900_000_000
    options = {"visibility_timeout": 60}
    assert settings_of(made(broker_transport_options=options)).horizon_us == 30_000_000


@pytest.mark.parametrize(
    ("conf", "on"),
    [
        ({"broker_url": "redis://a/1"}, True),
        ({"broker_url": "redis://a:6379/1", "result_backend": "redis://a/2"}, True),
        ({"broker_url": "redis://a", "result_backend": "redis://cache"}, False),
        ({"broker_url": "redis://a", "fleetlimit_url": "redis://other"}, False),
        ({"broker_url": "redis://a", "fleetlimit_url": "redis://:pw@a:6379/5"}, True),
        ({"broker_url": "amqp://a", "result_backend": "redis://a"}, False),
        ({"broker_url": "amqp://a", "fleetlimit_waiting_room": True}, True),
        ({"broker_url": "redis://a", "fleetlimit_waiting_room": False}, False),
    ],
)
def test_the_room_is_on_where_the_limits_redis_is_the_brokers(
    conf: dict[str, Any], on: bool
) -> None:
    assert settings_of(made(**conf)).waiting_room is on


def test_worker_without_redis_does_not_start(tmp_path: Any) -> None:
    import sys

    (tmp_path / "unlimited.py").write_text(
        "from celery import Celery\n"
        "from fleetlimit import rate_limited\n"
        "app = Celery(broker='memory://')\n"
        "@app.task\n@rate_limited('api', 5, per=1)\ndef f(): ...\n"
    )
    log = tmp_path / "log"
    command = [sys.executable, "-m", "celery", "-A", "unlimited", "worker", "-P", "solo"]
    process = spawn(command, log, cwd=tmp_path)
    until(lambda: process.poll() is not None, "the worker gives up", 30)
    assert process.returncode != 0
    assert "no Redis for the rate limits. Looked at: app.conf.fleetlimit_url" in log.read_text()


def configured(source: Any, namespace: str | None = None) -> Celery:
    app = Celery("config", set_as_current=False)
    app.config_from_object(source, namespace=namespace)
    return app


class DjangoSettings:
    """As `django.conf:settings`: upper case, with much in it that is not Celery's."""

    DEBUG = True
    FLEETLIMIT_URL = "redis://theirs"  # a setting of the project's own
    MY_FLEETLIMIT_THING = 1


@pytest.mark.parametrize(
    ("name", "namespace", "right"),
    [
        ("fleetlimit_on_outge", None, "fleetlimit_on_outage"),
        ("FLEETLIMIT_ON_OUTGE", None, "fleetlimit_on_outage"),
        ("FLEETLIMIT_ON_OUTAGE", None, "fleetlimit_on_outage"),
        ("CELERY_FLEETLIMIT_ON_OUTAGE", None, "fleetlimit_on_outage"),
        ("CELERY_FLEETLIMIT_ON_OUTGE", "CELERY", "CELERY_FLEETLIMIT_ON_OUTAGE"),
        ("FLEETLIMIT_ON_OUTAGE", "CELERY", "CELERY_FLEETLIMIT_ON_OUTAGE"),
        ("Celery_Fleetlimit_On_Outage", "CELERY", "CELERY_FLEETLIMIT_ON_OUTAGE"),
        ("celery_fleetlimit_on_outge", "celery", "celery_fleetlimit_on_outage"),
        ("fleetlimit_on_outge", "CELERY", "CELERY_FLEETLIMIT_ON_OUTAGE"),
        ("TASKS_FLEETLIMIT_ON_OUTGE", "TASKS_", "TASKS_FLEETLIMIT_ON_OUTAGE"),
    ],
)
def test_a_misspelt_setting_in_any_spelling(name: str, namespace: str | None, right: str) -> None:
    source = type("Settings", (DjangoSettings,) if namespace else (), {name: "open"})
    with pytest.raises(ConfigurationError) as caught:
        settings_of(configured(source, namespace))
    assert name in str(caught.value)
    assert right in str(caught.value)


@pytest.mark.parametrize(
    ("name", "namespace"),
    [
        ("fleetlimit_on_outage", None),
        ("CELERY_FLEETLIMIT_ON_OUTAGE", "CELERY"),
        ("fleetlimit_on_outage", "CELERY"),
        ("celery_fleetlimit_on_outage", "celery"),
        ("TASKS_FLEETLIMIT_ON_OUTAGE", "TASKS_"),
    ],
)
def test_a_setting_in_any_spelling(name: str, namespace: str | None) -> None:
    source = type("Settings", (DjangoSettings,) if namespace else (), {name: "open"})
    assert settings_of(configured(source, namespace)).on_outage == "open"
    value = type("Settings", (), {name: "nonsense"})
    with pytest.raises(ConfigurationError, match="on_outage='nonsense'"):
        settings_of(configured(value, namespace))


class Custom(MemoryStore):
    """A store of the user's own."""


def test_a_store_of_ones_own_has_no_policy() -> None:
    """What is said beside it would be ignored, so it is refused."""
    RateLimiter(Custom(), on_outage="raise")  # what it does anyway
    for said in (
        {"on_outage": "nonsense"},
        {"on_outage": "open"},
        {"processes": 4},
        {"on_change": print},
        {"client_time": True},
    ):
        with pytest.raises(ConfigurationError) as caught:
            RateLimiter(Custom(), **said)  # type: ignore[arg-type]
        ((name, value),) = said.items()
        assert f"{name}={value!r}" in str(caught.value)
    with pytest.raises(ConfigurationError, match="client_time=True"):
        RateLimiter(RedisStore("redis://127.0.0.1:1"), client_time=True)
    for source in (Custom(), "redis://127.0.0.1:1"):
        with pytest.raises(ConfigurationError, match="on_outage='nonsense'"):
            RateLimiter(source, on_outage="nonsense")


def test_a_store_of_ones_own_in_an_app() -> None:
    store = Custom()
    assert RateLimiter.from_app(made(fleetlimit_url=store)).store is store
    for name, value in (("on_outage", "open"), ("processes", 4), ("client_time", True)):
        app = made(**{"fleetlimit_url": store, f"fleetlimit_{name}": value})
        with pytest.raises(ConfigurationError, match=f"{name}={value!r}"):
            RateLimiter.from_app(app)
