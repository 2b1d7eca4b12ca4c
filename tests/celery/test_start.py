"""A worker and its Redis: it is used as Celery uses it, or the worker says why it does not start."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import celery
import pytest
import redis

from fleetlimit.demo.processes import Server, free_port, redis_server, spawn, stop, until
from tests.certificates import certificate, tls_options
from tests.clusters import sentinel
from tests.conftest import need

SHOP = """
import json, os, redis
from celery import Celery
from fleetlimit import rate_limited

app = Celery("shop")
app.conf.update(worker_redirect_stdouts=False, **json.loads(os.environ["SHOP_CONF"]))

class Provider(redis.CredentialProvider):
    def get_credentials(self):
        return "limits", "s3cret"

@app.task(name="limited")
@rate_limited("api", 1000, per=1)
def limited(n):
    print(f"ran {n}", flush=True)

@app.task(name="free")
def free(n):
    print(f"free {n}", flush=True)
"""


class Shop:
    """A worker of an app with one limited and one free task."""

    def __init__(self, folder: Path, conf: Mapping[str, Any]) -> None:

        self.folder, self.log = folder, folder / "worker.log"
        (folder / "shop.py").write_text(SHOP)
        self.env = {
            "PATH": "/usr/bin:/bin",
            "PYTHONPATH": str(folder),
            "SHOP_CONF": json.dumps({"broker_connection_retry_on_startup": True, **conf}),
        }
        command = [
            sys.executable, "-m", "celery", "-A", "shop", "worker", "-P", "solo", "-l", "INFO",
            "--without-gossip", "--without-mingle", "-n", "w@h",
        ]  # fmt: skip
        self.process = spawn(command, self.log, cwd=folder, env=self.env)

    @property
    def said(self) -> str:
        return self.log.read_text()

    def call(self, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, *arguments], cwd=self.folder, env=self.env,
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        return done.stdout + done.stderr

    def works(self) -> None:
        """Start, and run ten tasks of each kind."""
        until(lambda: " ready." in self.said or self.process.poll() is not None, "ready", 60)
        assert self.process.poll() is None, self.said
        send = "import shop; [(shop.limited.delay(n), shop.free.delay(n)) for n in range(10)]"
        assert not self.call("-c", send)
        until(lambda: self.said.count("\nran ") == 10, "ten limited tasks", 30)
        until(lambda: self.said.count("\nfree ") == 10, "ten free tasks", 30)

    def refuses(self) -> str:
        """Do not start; the line that says why."""
        until(lambda: self.process.poll() is not None, "the worker ends", 60)
        assert self.process.returncode not in (0, None)
        assert "Traceback" not in self.said
        (line,) = [line for line in self.said.splitlines() if "cannot start" in line]
        return line


@contextmanager
def shop(folder: Path, **conf: Any) -> Iterator[Shop]:
    found = Shop(folder, conf)
    try:
        yield found
    finally:
        stop(found.process)


def test_tls_with_a_certificate_of_ones_own(tmp_path: Path) -> None:
    binary = need("redis-server", "no TLS is tried")
    key, found = certificate(tmp_path)
    port = free_port()
    with redis_server(tmp_path, *tls_options(key, found, port), binary=binary):
        told = {"ssl_ca_certs": str(found), "ssl_cert_reqs": "required"}
        url = f"rediss://127.0.0.1:{port}/0"
        for n, conf in enumerate(
            (
                {"broker_url": url, "broker_use_ssl": told},
                {
                    "broker_url": url,
                    "broker_use_ssl": told,
                    "result_backend": url,
                    "redis_backend_use_ssl": told,
                },
            )
        ):
            folder = tmp_path / str(n)
            folder.mkdir()
            with shop(folder, **conf) as one:
                one.works()


def test_a_certificate_that_is_not_trusted(server: Server, tmp_path: Path) -> None:
    binary = need("redis-server", "no TLS is tried")
    key, found = certificate(tmp_path)
    port = free_port()
    with (
        redis_server(tmp_path, *tls_options(key, found, port), binary=binary),
        shop(tmp_path, broker_url=server.url, fleetlimit_url=f"rediss://127.0.0.1:{port}/0") as one,
    ):
        assert "certificate verify failed" in one.refuses()


# Celery itself knows credential providers since 5.6.
PLACES = ["fleetlimit_url", "broker_url"]


@pytest.mark.parametrize("place", PLACES if celery.VERSION >= (5, 6) else PLACES[:1])
def test_a_credential_provider(server: Server, tmp_path: Path, place: str) -> None:
    with redis_server(tmp_path) as guarded:
        admin = redis.Redis.from_url(guarded.url)
        admin.execute_command("ACL", "SETUSER", "limits", "on", ">s3cret", "~*", "&*", "+@all")
        admin.execute_command("ACL", "SETUSER", "default", "off")
        url = f"{guarded.url}?credential_provider=shop.Provider"
        with shop(tmp_path, **{"broker_url": server.url, place: url}) as one:
            one.works()


def test_a_user_that_may_touch_its_own_prefix_only(tmp_path: Path) -> None:
    with redis_server(tmp_path) as guarded:
        admin = redis.Redis.from_url(guarded.url)
        rights = ("on", ">s3cret", "~dev:*", "&*", "+@all")
        admin.execute_command("ACL", "SETUSER", "dev", *rights)
        url = guarded.url.replace("redis://", "redis://dev:s3cret@")
        options = {"global_keyprefix": "dev:"}
        (tmp_path / "with").mkdir()
        with shop(tmp_path / "with", broker_url=url, broker_transport_options=options) as one:
            one.works()
            names = [key for key in admin.keys("*") if b"fleetlimit" in key]  # type: ignore[union-attr]
            assert names
            assert all(name.startswith(b"dev:fleetlimit:") for name in names)
        (tmp_path / "without").mkdir()
        conf = {"broker_url": url, "broker_transport_options": options, "fleetlimit_url": url}
        with shop(tmp_path / "without", **conf) as one:
            assert "Redis refused: " in one.refuses()


@pytest.mark.parametrize("place", ["broker", "result_backend"])
def test_sentinels_as_celery_writes_them(server: Server, tmp_path: Path, place: str) -> None:
    with sentinel(tmp_path) as (_, port, _):
        url = f"sentinel://127.0.0.1:{port}/0;sentinel://127.0.0.1:{port}/0"
        conf: dict[str, Any] = {"broker_url": server.url}
        conf |= {"result_backend": url} if place == "result_backend" else {"broker_url": url}
        conf[f"{place}_transport_options"] = {"master_name": "limits"}
        folder = tmp_path / "shop"
        folder.mkdir()
        with shop(folder, **conf) as one:
            one.works()


def test_a_wrong_password(server: Server, tmp_path: Path) -> None:
    with redis_server(tmp_path, "--requirepass", "s3cret") as guarded:
        url = guarded.url.replace("redis://", "redis://:wr0ng@")
        with shop(tmp_path, broker_url=server.url, fleetlimit_url=url) as one:
            assert "password" in one.refuses()
            assert "wr0ng" not in one.said


def test_no_redis_at_all(tmp_path: Path) -> None:
    with shop(tmp_path, broker_url="memory://") as one:
        assert "no Redis for the rate limits. Looked at: app.conf.fleetlimit_url" in one.refuses()


def test_an_outage_is_no_refusal(server: Server, tmp_path: Path) -> None:
    url = f"redis://127.0.0.1:{free_port()}/0"
    with shop(tmp_path, broker_url=server.url, fleetlimit_url=url) as one:
        until(lambda: " ready." in one.said or one.process.poll() is not None, "ready", 60)
        assert "starts without Redis" in one.said


def test_limits_that_are_off_need_no_redis(tmp_path: Path) -> None:
    for name in ("in", "processed"):
        (tmp_path / name).mkdir()
    options = {
        "data_folder_in": str(tmp_path / "in"),
        "data_folder_out": str(tmp_path / "in"),
        "processed_folder": str(tmp_path / "processed"),
        "control_folder": str(tmp_path / "processed"),
    }
    conf = {"broker_url": "filesystem://", "broker_transport_options": options}
    with shop(tmp_path, fleetlimit_enabled=False, **conf) as one:
        one.works()
        assert one.said.count("rate limits are off (fleetlimit_enabled=False)") == 1
        assert "Redis" not in one.said


@pytest.mark.parametrize("password", ["s3cret", "s3c%3Fr%40et"])
def test_report_and_inspect_show_no_password(tmp_path: Path, password: str) -> None:
    with redis_server(tmp_path) as guarded:
        redis.Redis.from_url(guarded.url).config_set("requirepass", unquote(password))
        url = guarded.url.replace("redis://", f"redis://:{password}@")
        with shop(tmp_path, broker_url=url, fleetlimit_url=url) as one:
            one.works()
            report = one.call("-m", "celery", "-A", "shop", "report")
            conf = one.call("-m", "celery", "-A", "shop", "inspect", "conf", "-d", "w@h")
            assert "fleetlimit_url" in report
            assert "fleetlimit_url" in conf
            for text in (report, conf, one.said):
                assert "s3c" not in text
