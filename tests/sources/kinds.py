"""The lock services, as the tests of what all sources promise see them."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.client.consul import ConsulSource
from gateway.client.etcd import EtcdSource
from gateway.client.kubernetes import KubernetesSource
from gateway.client.redis import RedisSource
from gateway.client.source import Source
from gateway.client.zookeeper import ZooKeeperSource
from tests.sources import go_servers, servers
from tests.sources.servers import Server


def _consul(address: str, **given: Any) -> Source:
    return ConsulSource(f"http://{address}", shortest_ttl=1.0, **given)


def _kubernetes(address: str, **given: Any) -> Source:
    return KubernetesSource(url=f"http://{address}", token="administrator-token", poll=0.1, **given)


@dataclass(frozen=True, slots=True)
class Kind:
    """``ttl``: about the shortest that is granted, in seconds. ``taking``: bytes of the request that takes the lock."""

    name: str
    server: Callable[[Path], Server]
    at: Callable[..., Source]
    """A source of the server at this ``host:port``."""
    ttl: float
    taking: bytes


KINDS = [
    Kind("etcd", servers.etcd, lambda address, **given: EtcdSource(f"http://{address}", **given), 1.0, b"/v3/kv/txn"),
    Kind("zookeeper", servers.zookeeper, ZooKeeperSource, 1.0, b"__lock__"),
    Kind("redis", servers.redis, lambda address, **given: RedisSource(f"redis://{address}", **given), 1.0, b"EVALSHA"),
    Kind("consul", go_servers.consul, _consul, 1.0, b"/v1/txn"),
    Kind("kubernetes", go_servers.KubernetesServer, _kubernetes, 1.0, b"PUT /apis/"),
]
