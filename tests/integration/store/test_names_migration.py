"""Names with segments that clients fold get their new spelling, with what is known of them."""

import asyncio
from collections.abc import Iterator
from uuid import uuid4

import asyncpg
import pytest
from alembic import command
from alembic.script import ScriptDirectory

from gateway.db import migrations
from tests.databases import Server
from tests.integration.test_doctor import execute

BEFORE = """
INSERT INTO fencing.fence (resource, epoch, value, caller) VALUES
    ('t/..', 0, 34, 'w'), ('./a/../../b/.', 0, 35, 'w'), ('t/..x/.../a.', 0, 36, 'w');
INSERT INTO fencing.intent (resource, bucket, key, write_id, epoch, value, attempt)
    VALUES ('s3/b/../k', 'b', '../k', gen_random_uuid(), 0, 34, 1);
INSERT INTO fencing.lock (resource, value) VALUES ('t/..', 7);
INSERT INTO fencing.idempotency (caller, key, fingerprint, status, headers, body, claimed) VALUES
    ('w', 'k', '', 200, '{}', '', '[["t/..", 0], ["../a", 1], ["t/a", 2]]');
"""


RECORD = ("entry", "intake")
"""It says what happened, under the names of its time."""


@pytest.fixture
def before(postgres_server: Server) -> Iterator[str]:
    """A database of the revision before."""
    name = f"before_{uuid4().hex}"
    asyncio.run(execute(postgres_server.dsn(), f"CREATE DATABASE {name}"))
    command.upgrade(migrations._alembic(postgres_server.dsn(name)), "0015")
    yield postgres_server.dsn(name)
    asyncio.run(execute(postgres_server.dsn(), f"DROP DATABASE {name} WITH (FORCE)"))


def test_what_is_known_of_them_is_known_under_the_new_name(before: str) -> None:
    asyncio.run(execute(before, BEFORE))
    migrations.upgrade(before)
    asyncio.run(respelled(before))


async def respelled(dsn: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        fences = await connection.fetch("SELECT resource, value FROM fencing.fence ORDER BY value")
        assert [tuple(row) for row in fences] == [("t/..~", 34), (".~/a/..~/..~/b/.~", 35), ("t/..x/.../a.", 36)]
        assert await connection.fetchval("SELECT resource FROM fencing.intent") == "s3/b/..~/k"
        assert await connection.fetchval("SELECT resource FROM fencing.lock WHERE value = 7") == "t/..~"
        claimed = await connection.fetchval("SELECT claimed FROM fencing.idempotency")
        assert claimed == '[["t/..~", 0], ["..~/a", 1], ["t/a", 2]]'
    finally:
        await connection.close()


def test_every_table_that_knows_a_resource_by_its_name_is_respelled(before: str) -> None:
    """A table that a later migration adds begins empty, or with names in the new spelling."""
    asyncio.run(all_named(before))


async def all_named(dsn: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        rows = await connection.fetch(
            "SELECT table_name FROM information_schema.columns JOIN information_schema.tables USING (table_schema, "
            "table_name) WHERE table_schema = 'fencing' AND column_name = 'resource' AND table_type = 'BASE TABLE'"
        )
    finally:
        await connection.close()
    found = {row["table_name"] for row in rows if not row["table_name"].startswith(RECORD)}
    migration = ScriptDirectory.from_config(migrations._alembic(dsn)).get_revision("0016")
    assert migration is not None
    assert found == set(migration.module.NAMED)
