"""A gateway in front of two databases, and a client that asks it."""

from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio

from tests.databases.fleet import Fleet, fleet
from tests.doubles.s3 import S3Double
from tests.postgres import Server
from tests.waiting import PATIENCE


@pytest_asyncio.fixture
async def gateway(request: pytest.FixtureRequest, postgres_server: Server) -> AsyncIterator[Fleet]:
    """A gateway of one test. Its parameter: the seconds after which it gives up a database that does not answer."""
    double, gives_up = S3Double(buckets=["northern", "southern"]), getattr(request, "param", PATIENCE)
    async with fleet(postgres_server, double, gives_up=gives_up) as one:
        yield one


@pytest_asyncio.fixture
async def api(gateway: Fleet) -> AsyncIterator[httpx.AsyncClient]:
    async with gateway.api() as client:
        yield client


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(postgres_server: Server) -> AsyncIterator[Fleet]:
    """A gateway for tests that keep to their own rows, keys and locks, and leave its lines alone."""
    async with fleet(postgres_server, S3Double(buckets=["northern", "southern"])) as one:
        for schema in one.lines:
            await one.asked(schema, f"INSERT INTO {schema}.orders SELECT n, 'new' FROM generate_series(3, 6) n")
        yield one


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_api(shared: Fleet) -> AsyncIterator[httpx.AsyncClient]:
    async with shared.api() as client:
        yield client
