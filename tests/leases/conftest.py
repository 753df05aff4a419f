"""One gateway and one database for all tests of a module; every test has a lock of its own."""

from collections.abc import AsyncIterator
from uuid import uuid4

import pytest
import pytest_asyncio

from gateway.demo.embedded import EmbeddedPostgres
from tests.leases.asking import Service, served
from tests.leases.stage import Gateway, gateway
from tests.postgres import fresh_database

SIGNING_KEY = "a key that signs sequencers in tests"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service(postgres_server: EmbeddedPostgres) -> AsyncIterator[Service]:
    async with fresh_database(postgres_server) as dsn:
        resources = [{"match": "delayed/*", "lock_delay": 600}]
        leases = {"signing_keys": [SIGNING_KEY], "max_ttl": 3000}
        async with served(dsn, leases=leases, resources=resources, limits={"max_wait": 30}) as one:
            yield one


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def dsn_of_module(postgres_server: EmbeddedPostgres) -> AsyncIterator[str]:
    async with fresh_database(postgres_server) as dsn:
        yield dsn


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pair(dsn_of_module: str) -> AsyncIterator[tuple[Gateway, Gateway]]:
    """Two gateways below HTTP."""
    async with gateway(dsn_of_module) as first, gateway(dsn_of_module) as second:
        yield first, second


@pytest.fixture
def job() -> str:
    """A lock that no other test uses."""
    return f"job/{uuid4().hex}"
