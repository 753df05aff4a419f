"""Lines of the export are to the byte what they were when the first of them was hashed, and cost no calls."""

import asyncio
import re
from collections.abc import Iterator
from datetime import date
from uuid import uuid4

import pytest
from alembic import command

from gateway.db import migrations, record
from gateway.db.database import Database
from gateway.db.export import Export, Form
from gateway.demo.embedded import EmbeddedPostgres
from gateway.fencing.record import Filters
from tests.integration.record.sealed import flaws, lines, written
from tests.integration.record.varied import sealed
from tests.integration.test_doctor import execute

# Every member there is as null, empty, and with what has to be escaped; tokens at both ends, with epochs and without;
# details that end like a line does.
_ODD = r"""
INSERT INTO fencing.intake (kind, plane, rule, resource, reason, enforced, epoch, value, holder, caller, method, target,
    client, request_id, payload_size, payload_sha256, fence_epoch, fence_value, fence_holder, fence_caller,
    fence_raised_at, details)
SELECT coalesce(said, 'rejection'), said, said, said, said, n % 3 > 0, number, value, said, said, said, said,
    said, said, value, said, number, value, said, said, moment, details
FROM unnest(
    ARRAY[NULL, '', 'plain', E'a"b\\c/d\x01\x1f\x7f\n\t\r', '{}[]:,''}', U&'\00e9\2028\feff\+01f9df <&>']
) AS said
CROSS JOIN unnest(
    ARRAY[NULL, 0, 1, 2147483647], ARRAY[NULL, 0, 33, 9223372036854775807],
    ARRAY[NULL, '1970-01-01 00:00:00Z', '2026-03-01 04:05:06.000007+03', '9999-12-30 23:59:59.999999Z']::timestamptz[]
) AS numbers (number, value, moment)
CROSS JOIN unnest(ARRAY[NULL, '{}', '{"hash": "}", "b": {"c": [1.50, null, "\u00e9\"}"]}}']::jsonb[])
    WITH ORDINALITY AS of (details, n)
"""


@pytest.fixture
def older(postgres_server: EmbeddedPostgres) -> Iterator[str]:
    """A database of the revision in which a line was the canonical text with the hash put behind."""
    name = f"older_{uuid4().hex}"
    asyncio.run(execute(postgres_server.dsn(), f"CREATE DATABASE {name}"))
    command.upgrade(migrations._alembic(postgres_server.dsn(name)), "0012")
    yield postgres_server.dsn(name)
    asyncio.run(execute(postgres_server.dsn(), f"DROP DATABASE {name} WITH (FORCE)"))


def test_they_are_what_they_were(older: str) -> None:
    before = asyncio.run(_filled(older))
    assert len(before) == 6 * 4 * 3 + 100
    migrations.upgrade(older)
    asyncio.run(_same(older, before))


async def _filled(dsn: str) -> list[str]:
    database = Database(dsn, pool_size=1)
    try:
        await database.fetch_write(_ODD)
        await sealed(database, 100)
        return await lines(database)
    finally:
        await database.close()


async def _same(dsn: str, before: list[str]) -> None:
    database = Database(dsn, pool_size=1)
    try:
        assert await lines(database) == before
        await written(database, 10)
        await record.seal(database)
        after = await lines(database)
        assert flaws(after) == [], "the chain goes on where it was"
        assert after[: len(before)] == before
    finally:
        await database.close()


@pytest.mark.parametrize("form", Form)
async def test_an_export_calls_no_function_of_ours(database: Database, form: Form) -> None:
    """The body of each stands in the plan: a call of one for every row takes longer than all the rest."""
    row = await database.fetchrow("SELECT (now() AT TIME ZONE 'UTC')::date AS today")
    assert row is not None
    today: date = row["today"]
    async with database.apart() as session:
        sql, values = Export(session, Filters(), [today], (0, 10))._of(form, today)
        plan = await session.fetch(f"EXPLAIN (VERBOSE) {sql}", *values)
    shown = "\n".join(row[0] for row in plan)
    assert "encode(" in shown, "the plan tells what is put out"
    assert not re.findall(r"fencing\.\w+\(", shown)
