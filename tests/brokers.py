"""A RabbitMQ of our own, on loopback, on free ports."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fleetlimit.demo.processes import free_port, listening, spawn, stop, until

from .conftest import need


@dataclass
class Rabbit:
    port: int
    command: list[str]
    env: dict[str, str]
    folder: Path

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}//"

    def start(self) -> subprocess.Popen[bytes]:
        process = spawn(self.command, self.folder / "rabbit.log", env=self.env)
        until(lambda: listening(self.port) or process.poll() is not None, "RabbitMQ", 60)
        assert process.poll() is None, (self.folder / "rabbit.log").read_text()
        return process

    def control(self, *words: str) -> None:
        """`rabbitmqctl`, as who started the broker."""
        script = "/usr/lib/rabbitmq/bin/rabbitmqctl"
        command = script if Path(script).exists() else "rabbitmqctl"
        subprocess.run([command, *words], env=self.env, capture_output=True, check=True)


@contextmanager
def rabbitmq(folder: Path, settings: str = "") -> Iterator[Rabbit]:
    """`settings`: of the broker, as arguments of its runtime (`-rabbit name value`)."""
    need("rabbitmq-server", "nothing is tried on RabbitMQ")
    port, dist, epmd = free_port(), free_port(), free_port()
    (folder / "enabled_plugins").touch()
    env = {
        **os.environ,
        "HOME": str(folder),
        "RABBITMQ_NODENAME": f"test{port}@localhost",
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODE_PORT": str(port),
        "RABBITMQ_DIST_PORT": str(dist),
        "ERL_EPMD_PORT": str(epmd),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
        "RABBITMQ_LOG_BASE": str(folder / "log"),
        "RABBITMQ_PID_FILE": str(folder / "pid"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
        "RABBITMQ_CONF_ENV_FILE": "/dev/null",
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": (
            f"-kernel inet_dist_use_interface {{127,0,0,1}} {settings}"
        ),
    }
    # Debian's wrapper in /usr/sbin changes to the rabbitmq user; the script itself does not.
    script = "/usr/lib/rabbitmq/bin/rabbitmq-server"
    command = [script if Path(script).exists() else "rabbitmq-server"]
    rabbit = Rabbit(port, command, env, folder)
    process = rabbit.start()
    try:
        yield rabbit
    finally:
        stop(process, 20)
        # The node's own epmd, which outlives it.
        subprocess.run(
            ["epmd", "-port", str(epmd), "-kill"], env=env, capture_output=True, check=False
        )
