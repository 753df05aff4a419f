"""A database with the table to which callers write."""

import asyncpg
import pytest

ORDERS = "CREATE TABLE orders (id bigint PRIMARY KEY, state text); INSERT INTO orders VALUES (1, 'new'), (2, 'new')"


@pytest.fixture
async def orders(dsn: str) -> str:
    session = await asyncpg.connect(dsn)
    await session.execute(ORDERS)
    await session.close()
    return dsn
