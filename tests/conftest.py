"""Real PostgreSQL for every test that wants one: one server a session, one fresh database a test.

The server is the embedded one, or, to test with another release, that of ``TEST_POSTGRES``: the address of a superuser
without a database, such as ``postgresql://postgres@127.0.0.1:5432``.
"""

import asyncio
import os
import tempfile
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import asyncpg
import pytest

from gateway.embedded import EmbeddedPostgres, postgres
from gateway.store import schema
from gateway.store.database import Database

TEMPLATE = "fencing_template"


@dataclass(frozen=True)
class OwnPostgres:
    """A server that is there already."""

    address: str

    def dsn(self, database: str = "postgres") -> str:
        return f"{self.address}/{database}"


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[EmbeddedPostgres | OwnPostgres]:
    if address := os.environ.get("TEST_POSTGRES"):
        own = OwnPostgres(address)
        asyncio.run(_execute(own.dsn(), f"DROP DATABASE IF EXISTS {TEMPLATE}"))
        make_template(own)
        yield own
        return
    with tempfile.TemporaryDirectory(prefix="pg") as directory, postgres(Path(directory) / "data") as server:
        make_template(server)
        yield server


def make_template(server: EmbeddedPostgres | OwnPostgres) -> None:
    """Put the database there that fresh ones are copies of."""
    asyncio.run(_execute(server.dsn(), f"CREATE DATABASE {TEMPLATE}"))
    schema.upgrade(server.dsn(TEMPLATE))


@pytest.fixture
def dsn(postgres_server: EmbeddedPostgres | OwnPostgres) -> Iterator[str]:
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
