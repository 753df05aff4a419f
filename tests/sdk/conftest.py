"""One gateway for all tests of the client library; every test has a lock of its own."""

from collections.abc import AsyncIterator, Iterator
from uuid import uuid4

import pytest

from gateway.client import FencedClient
from gateway.demo.embedded import EmbeddedPostgres
from tests.sdk.counter import Counter
from tests.sdk.stage import Stage, staged


@pytest.fixture(scope="session")
def stage(postgres_server: EmbeddedPostgres) -> Iterator[Stage]:
    with staged(postgres_server) as one:
        yield one


@pytest.fixture
async def client(stage: Stage) -> AsyncIterator[FencedClient]:
    async with stage.client() as one:
        yield one


@pytest.fixture
def job() -> str:
    """A lock nobody else wants."""
    return f"job/{uuid4().hex}"


@pytest.fixture
def counter() -> Counter:
    return Counter()
