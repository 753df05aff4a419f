"""One gateway for all clients. Each test has a lock of its own, and keeps to the objects and the row that it covers."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trustme

from gateway.demo import demonstration as demo
from gateway.demo import embedded
from gateway.demo.embedded import EmbeddedPostgres
from tests.clients import formats
from tests.clients.commands import Shell
from tests.clients.formats import Lake
from tests.clients.gateway import Gateway, Lock, Login, serving
from tests.clients.sdks import JavaObjects, java_objects
from tests.postgres import fresh
from tests.tiers import first


@contextmanager
def _gateway(server: EmbeddedPostgres, directory: Path, authority: trustme.CA | None = None) -> Iterator[Gateway]:
    with fresh(server) as dsn, embedded.s3() as store:
        # The tables of the demo, which the page of clients shows.
        asyncio.run(formats.execute(dsn, ";".join(demo.SAMPLE)))
        with serving(dsn, store.endpoint(), directory, authority) as one:
            yield one


@pytest.fixture(scope="session")
def gateway(postgres_server: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with _gateway(postgres_server, tmp_path_factory.mktemp("gateway")) as one:
        yield one


@pytest.fixture(scope="session")
def secure_gateway(postgres_server: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """One that speaks TLS, over which most clients send their bodies in another form."""
    with _gateway(postgres_server, tmp_path_factory.mktemp("secure"), trustme.CA()) as one:
        yield one


@pytest.fixture(scope="session")
def lake(postgres_server: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    """One for table formats, with a guard on their catalog."""
    with formats.lake(postgres_server, tmp_path_factory.mktemp("lake")) as one:
        yield one


@pytest.fixture(scope="session")
def java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaObjects]:
    """The program with the AWS SDK for Java and S3A, which takes seconds to start."""
    with java_objects(Shell(tmp_path_factory.mktemp("java"), {})) as one:
        yield one


@pytest.fixture
def lock(gateway: Gateway) -> Lock:
    return gateway.lock()


@pytest.fixture(params=first(["session token", "fenced credentials"]))
def login(request: pytest.FixtureRequest, lock: Lock) -> Login:
    """The token as clients present it that can set no header: in the session token, or bound to their keys."""
    return lock.session() if request.param == "session token" else lock.fenced()


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A file that every client sends in parts: 20 MiB, no two MiB alike."""
    path = tmp_path / "large"
    path.write_bytes(b"".join(bytes([number]) * 1024**2 for number in range(20)))
    return path
