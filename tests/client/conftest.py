"""One gateway for all tests of a module; every test has a lock of its own.

It runs in a thread of this process, and must not outlast its module. Otherwise it would meet the replacements that
tests of other modules put in the place of a library's parts.
"""

from collections.abc import AsyncIterator, Iterator
from uuid import uuid4

import pytest

from gateway.client import FencedClient
from gateway.demo.embedded import EmbeddedPostgres
from tests.client.stage import Counter, Stage, staged


@pytest.fixture(scope="module")
def stage(postgres_server: EmbeddedPostgres) -> Iterator[Stage]:
    with staged(postgres_server) as one:
        yield one


@pytest.fixture
async def client(stage: Stage) -> AsyncIterator[FencedClient]:
    async with stage.client() as one:
        yield one


@pytest.fixture
def eager(client: FencedClient, monkeypatch: pytest.MonkeyPatch) -> FencedClient:
    """The client, which renews its locks, and finds that one is lost, soon.

    Pauses are a fortieth as long as ever. Locks may last for long then, so a busy machine loses none.
    """
    leases = client._leases
    monkeypatch.setattr(leases, "pause", lambda seconds: leases._batches.pause(seconds / 40))
    return client


@pytest.fixture
def job() -> str:
    """A lock that no other test uses."""
    return f"job/{uuid4().hex}"


@pytest.fixture
def counter() -> Counter:
    return Counter()
