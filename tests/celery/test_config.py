"""Where Redis is found, and the settings."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import celery
import pytest
import redis
from celery import Celery

from fleetlimit import ConfigurationError, RateLimiter
from fleetlimit.celery.source import source_of
from fleetlimit.celery.wiring import limiter_of, settings_of
from fleetlimit.demo.processes import spawn, until
from fleetlimit.limiter import redis_store
from fleetlimit.store.memory import MemoryStore
from fleetlimit.store.redis import RedisStore
from fleetlimit.store.urls import Endpoint, endpoint_of
from tests.store.test_secrets import shown

#: Celery knows credential providers, and TLS options beside a plain URL.
SINCE_56 = celery.VERSION >= (5, 6)


def endpoint(**conf: Any) -> Endpoint:
    found = source_of(made(**conf)).redis
    assert isinstance(found, Endpoint)
    return found


def made(**conf: Any) -> Celery:
    app = Celery("config", set_as_current=False)
    app.conf.update(conf)
    return app


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FLEETLIMIT_URL", "CELERY_BROKER_URL", "CELERY_RESULT_BACKEND"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("conf", "hosts", "db"),
    [
        ({"result_backend": "redis://b/1", "broker_url": "redis://c"}, [("b", 6379)], 1),
        ({"result_backend": "rpc://", "broker_url": "redis://c:1/2"}, [("c", 1)], 2),
        ({"broker_url": "redis://c/2;redis://d"}, [("c", 6379)], 2),
        ({"broker_url": ["redis://c/2", "redis://d"]}, [("c", 6379)], 2),
        ({"result_backend": "redis"}, [("localhost", 6379)], 0),
        ({"broker_url": "valkey://c/2"}, [("c", 6379)], 2),
    ],
)
def test_found_in_this_order(conf: dict[str, Any], hosts: list[Any], db: int) -> None:
    found = endpoint(**conf)
    assert (list(found.hosts), found.options["db"]) == (hosts, db)
    RateLimiter(found)


@pytest.mark.parametrize("place", ["broker_url", "result_backend"])
def test_a_unix_socket_as_celery_writes_it(place: str) -> None:
    found = endpoint(**{place: "redis+socket:///run/r.sock?virtual_host=3"})
    assert (found.path, found.options["db"]) == ("/run/r.sock", 3)
    RateLimiter(found)


@pytest.mark.parametrize(
    ("place", "options"),
    [
        ("broker_url", {"broker_use_ssl": {"ssl_ca_certs": "CA", "ssl_cert_reqs": 2}}),
        ("result_backend", {"redis_backend_use_ssl": {"ssl_ca_certs": "CA", "ssl_cert_reqs": 2}}),
    ],
)
@pytest.mark.parametrize("scheme", ["redis", "rediss"] if SINCE_56 else ["rediss"])
def test_tls_as_celery_is_told(
    place: str, options: dict[str, Any], scheme: str, tmp_path: Path
) -> None:
    ca = tmp_path / "ca.pem"
    ca.write_text("")
    told = {name: {**value, "ssl_ca_certs": str(ca)} for name, value in options.items()}
    found = endpoint(**{place: f"{scheme}://h:1/0", **told})
    assert found.tls
    assert (found.options["ssl_ca_certs"], found.options["ssl_cert_reqs"]) == (str(ca), 2)
    RateLimiter(found)


@pytest.mark.parametrize("place", ["broker_url", "result_backend"])
def test_tls_options_in_the_url(place: str) -> None:
    found = endpoint(**{place: "rediss://h:6380/0?ssl_cert_reqs=CERT_OPTIONAL"})
    assert found.tls
    assert found.options["ssl_cert_reqs"] == ssl.CERT_OPTIONAL


PROVIDER = f"{__name__}.Provider"


class Provider(redis.CredentialProvider):
    def get_credentials(self) -> tuple[str, str]:
        return "limits", "s3cret"


@pytest.mark.parametrize(
    "conf",
    [
        {"fleetlimit_url": f"redis://u:p@h/0?credential_provider={PROVIDER}"},
        *(
            (
                {"broker_url": f"redis://u:p@h/0?credential_provider={PROVIDER}"},
                {"result_backend": f"redis://u:p@h/0?credential_provider={PROVIDER}"},
                {
                    "result_backend": "redis://u:p@h/0",
                    "redis_backend_credential_provider": PROVIDER,
                },
                {"result_backend": "redis://h", "redis_backend_credential_provider": Provider()},
            )
            if SINCE_56
            else ()
        ),
    ],
)
def test_a_credential_provider(conf: dict[str, Any]) -> None:
    url = conf.get("fleetlimit_url")
    found = endpoint_of(url) if url else endpoint(**conf)
    assert isinstance(found.options["credential_provider"], Provider)
    assert not {"username", "password"} & set(found.options)
    RateLimiter(found)


def test_timeouts_are_taken_where_they_are_shorter_and_retries_are_not() -> None:
    options = {
        "socket_timeout": 30,
        "socket_connect_timeout": 0.1,
        "socket_keepalive": True,
        "health_check_interval": 25,
        "retry_on_timeout": True,
    }
    found = endpoint(broker_url="redis://h", broker_transport_options=options)
    assert found.options["socket_timeout"] == 0.25
    assert found.options["socket_connect_timeout"] == 0.1
    assert found.options["health_check_interval"] == 25
    assert found.options["socket_keepalive"] is True
    assert "retry_on_timeout" not in found.options
    settings = {
        "redis_socket_timeout": 0.2,
        "redis_socket_connect_timeout": 9,
        "redis_backend_health_check_interval": 7,
        "redis_retry_on_timeout": True,
    }
    found = endpoint(result_backend="redis://h", **settings)
    assert found.options["socket_timeout"] == 0.2
    assert found.options["socket_connect_timeout"] == 0.25
    assert found.options["health_check_interval"] == 7
    assert "retry_on_timeout" not in found.options


SENTINELS = "sentinel://:pw@a:26379/3;sentinel://:pw@b:26380/3"
MASTER = {"master_name": "limits", "sentinel_kwargs": {"password": "theirs"}}


@pytest.mark.parametrize(
    ("place", "options"),
    [
        ("broker_url", "broker_transport_options"),
        ("result_backend", "result_backend_transport_options"),
    ],
)
def test_sentinels_as_celery_writes_them(place: str, options: str) -> None:
    found = endpoint(**{place: SENTINELS, options: MASTER})
    assert found.hosts == (("a", 26379), ("b", 26380))
    assert (found.service, found.options["db"], found.options["password"]) == ("limits", 3, "pw")
    assert found.sentinel_options == {"password": "theirs"}
    RateLimiter(found)
    with pytest.raises(ConfigurationError, match=f"{options}: needs 'master_name'"):
        endpoint(**{place: SENTINELS})


@pytest.mark.parametrize(
    ("conf", "prefix"),
    [
        ({"broker_url": "redis://h"}, ""),
        (
            {"broker_url": "redis://h", "broker_transport_options": {"global_keyprefix": "dev"}},
            "dev",
        ),
        (
            {
                "result_backend": "redis://h",
                "result_backend_transport_options": {"global_keyprefix": "dev"},
            },
            "dev_",  # as Celery's own keys begin
        ),
        (
            {
                "result_backend": "redis://h",
                "result_backend_transport_options": {"global_keyprefix": "dev:"},
                "broker_transport_options": {"global_keyprefix": "other"},
            },
            "dev:",
        ),
        (
            {
                "broker_url": "redis://h",
                "broker_transport_options": {"global_keyprefix": "dev"},
                "fleetlimit_key_prefix": "own:",
            },
            "own:",
        ),
        (
            {
                "broker_url": "redis://h",
                "broker_transport_options": {"global_keyprefix": "dev"},
                "fleetlimit_url": "redis://other",
            },
            "",
        ),
        ({"fleetlimit_url": "redis://other", "fleetlimit_key_prefix": "own:"}, "own:"),
    ],
)
def test_the_prefix_of_the_place(conf: dict[str, Any], prefix: str) -> None:
    store = redis_store(limiter_of(made(**conf)).store)
    assert store
    assert store.keys.prefix == prefix


def test_a_wrong_prefix_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="key_prefix='a b'"):
        limiter_of(made(broker_url="redis://h", fleetlimit_key_prefix="a b"))


@pytest.mark.parametrize("place", ["fleetlimit_url", "broker_url", "result_backend"])
@pytest.mark.parametrize(
    "url", ["redis://:s3cr?t0p@h/1", "redis://:s3cr[t0p@h/1", "redis://:s3cr#t0p@h"]
)
def test_a_password_that_is_not_encoded_is_not_repeated(place: str, url: str) -> None:
    with pytest.raises(ConfigurationError, match="percent-encoded") as caught:
        limiter_of(made(**{place: url}))
    assert "s3cr" not in shown(caught.value)
    assert "t0p" not in shown(caught.value)


def test_environment_comes_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLEETLIMIT_URL", "redis://env")
    assert source_of(made(result_backend="redis://b")).redis == "redis://env"
    assert source_of(made(fleetlimit_url="redis://a")).redis == "redis://a"


def test_nothing_found_lists_the_places() -> None:
    with pytest.raises(ConfigurationError) as caught:
        source_of(made(broker_url="amqp://user:secret@host", result_backend="rpc://"))
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
        ({"broker_url": "redis://a", "fleetlimit_enabled": False}, False),
        ({"broker_url": "redis+socket:///r", "fleetlimit_url": "unix:///r?db=2"}, True),
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
