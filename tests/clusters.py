"""A Redis Cluster and a Sentinel of our own, on loopback, on free ports."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import redis
import redis.sentinel

from fleetlimit.demo.processes import Server, free_port, redis_server, spawn, stop, until

from .conftest import need


@contextmanager
def cluster(folder: Path) -> Iterator[list[Server]]:
    """Three masters without replicas, each with a third of the slots."""
    binary = need("redis-server", "nothing is tried on a Redis Cluster")
    with ExitStack() as stack:
        nodes = []
        for n in range(3):
            home = folder / str(n)
            home.mkdir()
            options = ("--cluster-enabled", "yes", "--cluster-port", str(free_port()))
            nodes.append(stack.enter_context(redis_server(home, *options, binary=binary)))
        clients = [redis.Redis(port=node.port, decode_responses=True) for node in nodes]
        for n, client in enumerate(clients):
            first, last = 16384 * n // 3, 16384 * (n + 1) // 3 - 1
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", first, last)
            client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", n + 1)
        for n, node in enumerate(nodes):
            bus = node.process.args[node.process.args.index("--cluster-port") + 1]  # type: ignore[union-attr,index,arg-type]
            clients[0].execute_command("CLUSTER", "MEET", "127.0.0.1", node.port, bus)
            del n
        for client in clients:
            until(
                lambda client=client: (
                    "cluster_state:ok" in str(client.execute_command("CLUSTER INFO"))  # type: ignore[misc]
                    or client.cluster("info").get("cluster_state") == "ok"
                ),
                "the cluster",
            )
        until(lambda: all(len(client.cluster("nodes")) == 3 for client in clients), "all nodes")
        yield nodes


@contextmanager
def sentinel(folder: Path) -> Iterator[tuple[Server, int, redis.sentinel.Sentinel]]:
    """A master, its replica, and one sentinel that knows them as `limits`: the master, the sentinel's
    port, and a client."""
    binary = need("redis-server", "nothing is tried behind a Sentinel")
    other = folder / "replica"
    other.mkdir()
    with ExitStack() as stack:
        master = stack.enter_context(redis_server(folder, binary=binary))
        follow = ("--replicaof", "127.0.0.1", str(master.port))
        stack.enter_context(redis_server(other, *follow, binary=binary))
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
