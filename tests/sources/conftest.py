"""One server of each kind for the whole session, and others for the tests that kill theirs."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from gateway.client.consul import ConsulSource
from gateway.client.etcd import EtcdSource
from gateway.client.kubernetes import KubernetesSource
from gateway.client.redis import RedisSource
from gateway.client.source import Held, Source
from gateway.client.zookeeper import ZooKeeperSource
from tests.sources import go_servers, servers
from tests.sources.servers import Network, Server, ServerMissing, network


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


# One server of each kind for the whole session, and others for the tests that kill theirs.


Sources = Callable[..., Source]


def pytest_itemcollected(item: pytest.Function) -> None:
    """Mark the tests that need a lock service on this machine."""
    if not {"server", "servers", "own"}.isdisjoint(item.fixturenames):
        item.add_marker(pytest.mark.installed)


def started(make: Callable[[], Server], stack: ExitStack) -> Server:
    """A running server, killed in the end. Skips the test where it is not installed."""
    try:
        server = make()
    except ServerMissing as missing:
        pytest.skip(str(missing))
    stack.callback(server.kill)
    return server.start()


@contextmanager
def addresses(make: Callable[[str, Path], Server], factory: pytest.TempPathFactory) -> Iterator[Callable[[str], str]]:
    """Yield a function that returns the address of the server of a name, which it starts if it is the first to ask."""
    made: dict[str, str] = {}
    with ExitStack() as stack:

        def address(name: str) -> str:
            if name not in made:
                directory = factory.mktemp("servers")
                made[name] = started(lambda: make(name, directory), stack).address
            return f"http://{made[name]}"

        yield address


@pytest.fixture(scope="session")
def _running() -> Iterator[Callable[[Kind], Server]]:
    with tempfile.TemporaryDirectory(prefix="locks") as directory, ExitStack() as stack:
        servers: dict[str, Server] = {}

        def running(kind: Kind) -> Server:
            if kind.name not in servers:
                own = Path(directory) / kind.name
                own.mkdir(exist_ok=True)
                servers[kind.name] = started(lambda: kind.server(own), stack)
            return servers[kind.name]

        yield running


@pytest.fixture(params=KINDS, ids=lambda kind: kind.name)
def kind(request: pytest.FixtureRequest) -> Kind:
    """Every kind of lock service in turn."""
    chosen: Kind = request.param
    return chosen


@pytest.fixture
def resource() -> str:
    """A lock that no other test uses."""
    return f"order/{uuid4().hex}"


async def acquire(
    source: Source, resource: str, holder: str = "one", *, ttl: float = 60.0, wait: float | None = 0
) -> Held:
    return await source.acquire(resource, holder=holder, ttl=ttl, wait=wait, mode="exclusive")


@pytest.fixture
def server(kind: Kind, _running: Callable[[Kind], Server]) -> Server:
    """A running server that other tests use, too."""
    return _running(kind)


@pytest.fixture
def own(kind: Kind, tmp_path: Path) -> Iterator[Server]:
    """A running server of the test's own, to kill and to start again."""
    with ExitStack() as stack:
        yield started(lambda: kind.server(tmp_path), stack)


@pytest.fixture
def net(server: Server) -> Iterator[Network]:
    """The way to the server, for one of the holders."""
    with network(server.port) as made:
        yield made


@pytest.fixture
async def sources(kind: Kind) -> AsyncIterator[Sources]:
    """Makes sources of this kind, ``sources(address, …)``, and closes them in the end."""
    async with AsyncExitStack() as stack:

        def make(address: str, **given: Any) -> Source:
            source = kind.at(address, **given)
            stack.push_async_callback(source.aclose)
            return source

        yield make
        # Run the callbacks that kazoo's threads have still queued on the loop.
        await asyncio.sleep(0)
