"""A lock service named by an address, as ``gateway run --source`` takes it."""

from collections.abc import Callable
from urllib.parse import SplitResult, unquote, urlsplit

from gateway.client.source import Source

GATEWAY = "gateway"
"""The gateway's own lease service."""

FORMS = (
    "gateway, etcd://host:2379, zookeeper://host:2181, redis://host:6379/0, consul://host:8500, "
    "kubernetes://namespace, postgresql://host/database"
)


def source_at(address: str) -> Source | None:
    """Return the source at this address; None for the gateway itself.

    ``etcds``, ``rediss`` and ``consuls`` speak TLS. etcd and ZooKeeper take several hosts separated by commas, and a
    user and a password before them. Raise ValueError for an address of no known lock service, and ``MissingExtra`` if
    its library is not installed.
    """
    if address == GATEWAY:
        return None
    parts = urlsplit(address)
    if parts.scheme in ("redis", "rediss", "postgresql", "postgres"):
        return _by_url(address)
    make = _KINDS.get(parts.scheme)
    if make is None or not parts.netloc:
        raise ValueError(f"must be one of: {FORMS}")
    return make(parts)


# Each library hangs on its own module: a source that is not asked for costs nothing, and need not be installed.


def _etcd(parts: SplitResult) -> Source:
    from gateway.client.etcd import EtcdSource  # noqa: PLC0415

    scheme, (username, password) = "https" if parts.scheme == "etcds" else "http", _user(parts)
    endpoints = [f"{scheme}://{host}" for host in _hosts(parts).split(",")]
    return EtcdSource(endpoints, username=username, password=password, prefix=parts.path.strip("/") or "fencing")


def _zookeeper(parts: SplitResult) -> Source:
    from gateway.client.zookeeper import ZooKeeperSource  # noqa: PLC0415

    username, password = _user(parts)
    root = parts.path if parts.path.strip("/") else "/fencing"
    return ZooKeeperSource(_hosts(parts), username=username, password=password, root=root)


def _consul(parts: SplitResult) -> Source:
    from gateway.client.consul import ConsulSource  # noqa: PLC0415

    scheme, (_, token) = "https" if parts.scheme == "consuls" else "http", _user(parts)
    return ConsulSource(f"{scheme}://{_hosts(parts)}", token=token)


def _kubernetes(parts: SplitResult) -> Source:
    from gateway.client.kubernetes import KubernetesSource  # noqa: PLC0415

    return KubernetesSource(namespace=parts.netloc)


def _by_url(address: str) -> Source:
    """Return a source whose own library reads the address."""
    if address.startswith("redis"):
        from gateway.client.redis import RedisSource  # noqa: PLC0415

        return RedisSource(address)
    from gateway.client.postgres import PostgresSource  # noqa: PLC0415

    return PostgresSource(address)


_KINDS: dict[str, Callable[[SplitResult], Source]] = {
    "etcd": _etcd,
    "etcds": _etcd,
    "zookeeper": _zookeeper,
    "consul": _consul,
    "consuls": _consul,
    "kubernetes": _kubernetes,
}


def _hosts(parts: SplitResult) -> str:
    return parts.netloc.rpartition("@")[2]


def _user(parts: SplitResult) -> tuple[str | None, str | None]:
    """User and password; None for what is not there."""
    user, colon, password = parts.netloc.rpartition("@")[0].partition(":")
    return unquote(user) or None, unquote(password) if colon else None
