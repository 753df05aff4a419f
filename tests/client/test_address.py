"""Lock services named by an address: each becomes its source, with what the address says; nothing is connected to."""

from typing import Any

import pytest

from gateway.commands.run import GATEWAY, source_at

ADDRESSES: list[tuple[str, str, dict[str, Any]]] = [
    ("etcd://host:2379", "EtcdSource", {"_prefix": "fencing"}),
    ("etcds://user:p%40ss@one:2379,two:2379/locks", "EtcdSource", {"_prefix": "locks"}),
    ("zookeeper://one:2181,two:2181", "ZooKeeperSource", {"_hosts": "one:2181,two:2181", "_root": "/fencing"}),
    ("zookeeper://host:2181/locks", "ZooKeeperSource", {"_hosts": "host:2181", "_root": "/locks"}),
    ("redis://:secret@host:6379/1", "RedisSource", {"_url": "redis://:secret@host:6379/1"}),
    ("consul://:secret@host:8500", "ConsulSource", {}),
    ("kubernetes://jobs", "KubernetesSource", {"_namespace": "jobs"}),
    ("postgresql://user:@/app?host=/run/pg", "PostgresSource", {"_url": "postgresql://user:@/app?host=/run/pg"}),
]


@pytest.mark.parametrize(("address", "kind", "known"), ADDRESSES, ids=[address for address, _, _ in ADDRESSES])
def test_an_address_names_a_source(address: str, kind: str, known: dict[str, Any]) -> None:
    source = source_at(address)
    assert type(source).__name__ == kind
    assert {name: getattr(source, name) for name in known} == known


def test_a_password_is_what_its_escapes_stand_for_and_hosts_are_those_after_it() -> None:
    source: Any = source_at("etcds://user:p%40ss@one:2379,two:2379/locks")
    known = [vars(source), *(vars(part) for part in vars(source).values() if hasattr(part, "__dict__"))]
    shown = repr(known)
    assert "p@ss" in shown
    assert "https://one:2379" in shown
    assert "https://two:2379" in shown


def test_the_gateway_itself_is_no_other_source() -> None:
    assert source_at(GATEWAY) is None


@pytest.mark.parametrize("address", ["", "host:2379", "mongodb://host", "etcd://", "kubernetes://", "https://host"])
def test_what_is_no_address_is_told_what_one_is(address: str) -> None:
    with pytest.raises(ValueError, match="must be one of: gateway, etcd://"):
        source_at(address)
