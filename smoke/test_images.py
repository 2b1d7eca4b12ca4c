"""The project's image as a fleet runs it: two worker containers and one Redis.

`make smoke` runs this.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from pytest_celery import (
    RESULT_TIMEOUT,
    CeleryTestSetup,
    CeleryTestWorker,
    CeleryWorkerCluster,
    CeleryWorkerContainer,
    RedisContainer,
    RedisTestBackend,
    RedisTestBroker,
)
from pytest_docker_tools import build, container, fxtr

from fleetlimit.demo.measure import worst_window
from smoke import tasks

pytestmark = pytest.mark.timeout(900)  # the first run builds the image

TASKS = 30
#: A call is stamped after it was let through: one stamped late meets those behind it.
TOLERANCE = 2


class Worker(CeleryWorkerContainer):
    """pytest-celery's app and this project's tasks, in this project's image."""

    @classmethod
    def command(cls, *args: str, **kwargs: dict[str, object]) -> list[str]:
        return super().command("--concurrency=4", *args)

    @classmethod
    def tasks_modules(cls) -> set[ModuleType]:
        return {tasks}


class Redis(RedisContainer):
    """Reached where the engine says, for the tests may run in a container themselves: pytest-celery's
    own class then joins `localhost` to the port of another address."""

    @property
    def host_url(self) -> str:
        host, port = self.get_addr("6379/tcp")
        return f"{self.prefix()}{host}:{port}/{self.vhost}"


# On the host's network, so that pip reaches whatever this machine reaches.
image = build(
    path=str(Path(__file__).parents[1]), tag="fleetlimit-smoke:latest", network_mode="host"
)
redis_container = container(
    image="redis:7-alpine",
    ports=Redis.ports(),
    network="{default_pytest_celery_network.name}",
    wrapper_class=Redis,
    command=Redis.command(),
)
one_container, other_container = (
    container(
        image="{image.id}",
        init=True,
        environment=fxtr("default_worker_env"),
        network="{default_pytest_celery_network.name}",
        volumes={"{default_worker_volume.name}": {"bind": "/app", "mode": "ro"}},
        wrapper_class=Worker,
        timeout=60,
        command=fxtr("default_worker_command"),
    )
    for _ in range(2)
)


@pytest.fixture
def default_worker_container_cls() -> type[Worker]:
    return Worker


@pytest.fixture
def celery_broker(redis_container: Redis) -> RedisTestBroker:
    return RedisTestBroker(redis_container)


@pytest.fixture
def celery_backend(redis_container: Redis) -> Iterator[RedisTestBackend]:
    backend = RedisTestBackend(redis_container)
    yield backend
    backend.teardown()


@pytest.fixture
def celery_worker_cluster(
    one_container: Worker, other_container: Worker, celery_setup_app: object
) -> CeleryWorkerCluster:
    return CeleryWorkerCluster(
        CeleryTestWorker(one_container, celery_setup_app),
        CeleryTestWorker(other_container, celery_setup_app),
    )


def test_two_containers_share_one_limit(celery_setup: CeleryTestSetup) -> None:
    assert celery_setup.ready(control=True)
    sent = [tasks.charge.delay(number) for number in range(TASKS)]
    ran = [result.get(timeout=RESULT_TIMEOUT) for result in sent]

    assert [number for number, _, _ in ran] == list(range(TASKS))
    assert len({host for _, host, _ in ran}) == len(celery_setup.worker_cluster)
    worst = worst_window(sorted(at for _, _, at in ran), tasks.PER)
    assert worst <= tasks.LIMIT + TOLERANCE
