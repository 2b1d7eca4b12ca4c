"""A Redis Cluster and a Sentinel of our own, on loopback, on free ports."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import redis
import redis.sentinel

from fleetlimit.demo.processes import Server, free_port, redis_server, spawn, stop, until

from .conftest import need

MASTERS = 3
#: A replica's first copy of its master begins at once, and not after the usual 5 s.
AT_ONCE = ("--repl-diskless-sync-delay", "0")


@contextmanager
def cluster(folder: Path, *, replicas: bool = False) -> Iterator[list[Server]]:
    """Three masters, each with a third of the slots; then, if wanted, a replica of each in the same order,
    which takes over some four seconds after its master died."""
    binary = need("redis-server", "nothing is tried on a Redis Cluster")
    with ExitStack() as stack:
        nodes, buses = [], []
        for n in range(2 * MASTERS if replicas else MASTERS):
            home = folder / str(n)
            home.mkdir()
            buses.append(free_port())
            options = ["--cluster-enabled", "yes", "--cluster-port", str(buses[-1]), *AT_ONCE]
            if replicas:
                options += ["--cluster-node-timeout", "1500"]
            nodes.append(stack.enter_context(redis_server(home, *options, binary=binary)))
        clients = [redis.Redis(port=node.port, decode_responses=True) for node in nodes]
        for n, client in enumerate(clients):
            client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", n + 1)
            if n < MASTERS:
                first, last = 16384 * n // MASTERS, 16384 * (n + 1) // MASTERS - 1
                client.execute_command("CLUSTER", "ADDSLOTSRANGE", first, last)
        for node, bus in zip(nodes, buses, strict=True):
            clients[0].execute_command("CLUSTER", "MEET", "127.0.0.1", node.port, bus)
        until(lambda: all(_knows(client, len(nodes)) for client in clients), "the cluster")
        for master, replica in zip(clients, clients[MASTERS:], strict=False):
            replica.execute_command("CLUSTER", "REPLICATE", master.execute_command("CLUSTER MYID"))
        until(lambda: all(map(follows, clients[MASTERS:])), "the replicas")
        yield nodes


def _knows(client: Any, number: int) -> bool:
    """Whether a node has met so many, and finds all slots served."""
    return (
        len(client.cluster("nodes")) == number and client.cluster("info")["cluster_state"] == "ok"
    )


def follows(client: Any) -> bool:
    """Whether a replica has its first copy."""
    role = client.execute_command("ROLE")
    return bool(role[0] == "slave" and role[3] == "connected")


def masters(nodes: Sequence[Server]) -> list[Server]:
    """Those of a cluster's nodes that live and hold slots."""
    found = []
    for node in nodes:
        with suppress(redis.RedisError), redis.Redis(port=node.port) as client:
            if client.execute_command("ROLE")[0] == b"master":
                found.append(node)
    return found


@contextmanager
def sentinel(
    folder: Path, *, binary: str | None = None, env: dict[str, str] | None = None
) -> Iterator[tuple[Server, int, redis.sentinel.Sentinel]]:
    """A master, its replica, and one sentinel that knows them as `limits`: the master, the sentinel's
    port, and a client. `env`: the replica's environment."""
    binary = binary or need("redis-server", "nothing is tried behind a Sentinel")
    other = folder / "replica"
    other.mkdir()
    with ExitStack() as stack:
        master = stack.enter_context(redis_server(folder, *AT_ONCE, binary=binary))
        follow = ("--replicaof", "127.0.0.1", str(master.port))
        replica = stack.enter_context(redis_server(other, *follow, binary=binary, env=env))
        with redis.Redis(port=replica.port, decode_responses=True) as copy:
            until(lambda: follows(copy), "the replica")
        port = free_port()
        conf = folder / "sentinel.conf"
        conf.write_text(
            f"port {port}\nbind 127.0.0.1\nsentinel monitor limits 127.0.0.1 {master.port} 1\n"
            "sentinel down-after-milliseconds limits 1000\nsentinel failover-timeout limits 5000\n"
        )
        process = spawn([binary, str(conf), "--sentinel"], folder / "sentinel.log")
        try:
            client = redis.sentinel.Sentinel([("127.0.0.1", port)], socket_timeout=1)

            def known() -> bool:
                try:
                    return bool(
                        client.discover_master("limits") and client.discover_slaves("limits")
                    )
                except redis.RedisError:
                    return False

            until(known, "the sentinel")
            yield master, port, client
        finally:
            stop(process)


def failed_over(client: Any, former: Server) -> bool:
    """Whether the sentinel names another master than the former one."""
    with suppress(redis.RedisError):
        return bool(client.discover_master("limits")[1] != former.port)
    return False
