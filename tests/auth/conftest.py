"""Databases with the table to which callers write."""

import asyncio
from collections.abc import Iterator

import asyncpg
import pytest

from tests.postgres import Server, fresh

ORDERS = "CREATE TABLE orders (id bigint PRIMARY KEY, state text); INSERT INTO orders VALUES (1, 'new'), (2, 'new')"


async def _execute(dsn: str, statements: str) -> None:
    session = await asyncpg.connect(dsn)
    await session.execute(statements)
    await session.close()


@pytest.fixture
async def orders(dsn: str) -> str:
    await _execute(dsn, ORDERS)
    return dsn


@pytest.fixture(scope="module")
def shared_orders(postgres_server: Server) -> Iterator[str]:
    """One database for tests that do not see what the others write."""
    with fresh(postgres_server) as dsn:
        asyncio.run(_execute(dsn, ORDERS))
        yield dsn
