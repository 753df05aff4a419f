"""Real PostgreSQL for every test that wants one: one server a session, one fresh database a test."""

import asyncio
import tempfile
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import asyncpg
import pytest

from gateway.embedded import EmbeddedPostgres, postgres
from gateway.store import schema
from gateway.store.database import Database

TEMPLATE = "fencing_template"


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[EmbeddedPostgres]:
    with tempfile.TemporaryDirectory(prefix="pg") as directory, postgres(Path(directory) / "data") as server:
        asyncio.run(_execute(server.dsn("postgres"), f"CREATE DATABASE {TEMPLATE}"))
        schema.upgrade(server.dsn(TEMPLATE))
        yield server


@pytest.fixture
def dsn(postgres_server: EmbeddedPostgres) -> Iterator[str]:
    """A fresh database with the fencing schema."""
    name = f"test_{uuid.uuid4().hex}"
    asyncio.run(_execute(postgres_server.dsn("postgres"), f"CREATE DATABASE {name} TEMPLATE {TEMPLATE}"))
    yield postgres_server.dsn(name)
    asyncio.run(_execute(postgres_server.dsn("postgres"), f"DROP DATABASE {name} WITH (FORCE)"))


@pytest.fixture
async def database(dsn: str) -> AsyncIterator[Database]:
    opened = Database(dsn)
    yield opened
    await opened.close()


async def _execute(dsn: str, statement: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()
