"""The gateway's role adds to the record and changes nothing; not even its owner does by mistake."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from itertools import product
from uuid import uuid4

import pytest
from typer.testing import CliRunner

from gateway.cli import application
from gateway.db import record, rights
from gateway.db.database import Database
from gateway.doctor import examination as doctor
from gateway.errors import ConfigurationError, SqlError
from gateway.findings import CheckStatus
from tests.doctor.test_doctor import execute
from tests.postgres import GATEWAY
from tests.record.entries import lines, on_record, partition_of
from tests.running import config

REFUSED = "42501"


@pytest.fixture
def role(dsn: str) -> Iterator[str]:
    """A role as a gateway should have it."""
    name = f"gateway_{uuid4().hex}"
    asyncio.run(execute(dsn, f"CREATE ROLE {name} LOGIN"))
    asyncio.run(rights.grant(dsn, name))
    yield name
    asyncio.run(execute(dsn, f"DROP OWNED BY {name}", f"DROP ROLE {name}"))


@pytest.fixture
async def gateway(dsn: str, role: str) -> AsyncIterator[Database]:
    opened = Database(dsn.replace("://postgres:@", f"://{role}@"), pool_size=2)
    yield opened
    await opened.close()


async def refused(database: Database, statement: str) -> SqlError:
    with pytest.raises(SqlError) as error:
        await database.fetch_write(statement)
    assert error.value.sqlstate == REFUSED, error.value.message
    return error.value


CHANGES = [
    "UPDATE fencing.{} SET holder = 'nobody'",
    "DELETE FROM fencing.{}",
    "TRUNCATE fencing.{}",
    "ALTER TABLE fencing.{} DISABLE TRIGGER ALL",
    "DROP TABLE fencing.{}",
]
TABLES = ["entry", "entry_other"]


ROUND_IT = [
    "INSERT INTO fencing.entry (position, day, hash, kind) VALUES (1, now(), '', 'x')",
    "INSERT INTO fencing.entry_other (position, day, hash, kind) VALUES (1, '2099-01-01', '', 'x')",
    "UPDATE fencing.head SET position = 0",
    "DELETE FROM fencing.head",
    "SET session_replication_role = replica",
    "CREATE OR REPLACE FUNCTION fencing.line_v1(entry fencing.entry) RETURNS text LANGUAGE sql RETURN ''",
    "ALTER TABLE fencing.entry DETACH PARTITION fencing.entry_other",
]


async def test_it_is_not_enough_to_change_anything(database: Database, gateway: Database) -> None:
    before = await on_record(database, 3)
    today = await partition_of(database, (await database.now()).date())
    for change, table in product(CHANGES, (*TABLES, today, "intake")):
        await refused(gateway, change.format(table))
    for statement in ROUND_IT:
        await refused(gateway, statement)
    assert await lines(database) == before


async def test_who_owns_the_record_does_not_change_it_by_mistake(database: Database) -> None:
    """The owner has to switch a trigger off first."""
    before = await on_record(database, 3)
    today = await partition_of(database, (await database.now()).date())
    for change, table in product(CHANGES[:3], (*TABLES, today)):
        error = await refused(database, change.format(table))
        assert "only ever added to" in error.message
    assert await lines(database) == before


async def test_partitions_that_are_made_later_are_kept_as_well(database: Database, gateway: Database) -> None:
    while await record.prepare_partitions(gateway, 10, 1):
        pass
    rows = await database.fetch("SELECT relid::regclass::text AS name FROM pg_partition_tree('fencing.entry')")
    assert len(rows) >= 4, "the record, two weeks at least, and all other days"
    for row in rows:
        for one in (gateway, database):
            await refused(one, f"DELETE FROM {row['name']}")
        await refused(database, f"TRUNCATE {row['name']}")


async def test_strangers_cannot_even_seal(dsn: str, role: str) -> None:
    """A role with USAGE on the schema, to call ``fencing.hold``."""
    stranger = f"stranger_{uuid4().hex}"
    await execute(dsn, f"CREATE ROLE {stranger} LOGIN", f"GRANT USAGE ON SCHEMA fencing TO {stranger}")
    database = Database(dsn.replace("://postgres:@", f"://{stranger}@"), pool_size=1)
    try:
        for call in ("seal_v1(1)", "prepare_days_v1(1, 1)", "drop_day_v1(400)"):
            await refused(database, f"SELECT fencing.{call}")
        for view in ("entry", "intake", "record", "rejection"):
            await refused(database, f"SELECT FROM fencing.{view}")
    finally:
        await database.close()
        await execute(dsn, f"DROP OWNED BY {stranger}", f"DROP ROLE {stranger}")


class TestGranting:
    def test_it_goes_with_migrating(self, dsn: str, role: str) -> None:
        asyncio.run(
            execute(
                dsn,
                f"GRANT ALL ON ALL TABLES IN SCHEMA fencing TO {role}",
                f"REVOKE EXECUTE ON FUNCTION fencing.seal_v1 FROM {role}",
            )
        )
        ran = CliRunner().invoke(application, ["migrate", "--dsn", dsn, "--grant-to", role])
        assert ran.exit_code == 0, ran.output
        assert f"granted to {role}" in ran.output

        async def found() -> tuple[list[str], list[str]]:
            opened = Database(dsn.replace("://postgres:@", f"://{role}@"), pool_size=1)
            try:
                return await rights.missing(opened), await rights.excessive(opened)
            finally:
                await opened.close()

        assert asyncio.run(found()) == ([], [])

    async def test_nothing_is_taken_from_who_owns_the_schema(self, dsn: str) -> None:
        with pytest.raises(ConfigurationError, match="owns tables of the schema"):
            await rights.grant(dsn, "postgres")

    async def test_no_table_is_forgotten(self, database: Database) -> None:
        """The list of rights names each table that exists."""
        rows = await database.fetch(
            "SELECT relname::text AS name FROM pg_class WHERE relnamespace = 'fencing'::regnamespace "
            "AND relkind IN ('r', 'p', 'v') AND relname !~ '^entry_[0-9]{8}'"
        )
        assert {row["name"] for row in rows} == set(rights.TABLES) | rights.OF_THE_OWNER


class TestDoctor:
    async def check(self, dsn: str, role: str) -> doctor.Check:
        report = await doctor.examine(config(dsn.replace("://postgres:@", f"://{role}@")).default)
        (check,) = [check for check in report.checks if check.name == "record"]
        return check

    async def test_a_role_that_can_only_add_is_fine_and_one_that_can_do_more_is_warned_of(
        self, dsn: str, role: str
    ) -> None:
        assert (await self.check(dsn, role)).status is CheckStatus.OK
        await execute(
            dsn, f"GRANT DELETE ON fencing.intake TO {role}", f"GRANT UPDATE, INSERT ON fencing.entry TO {role}"
        )
        check = await self.check(dsn, role)
        assert check.status is CheckStatus.WARNING
        for privilege in ("DELETE on fencing.intake", "INSERT on fencing.entry", "UPDATE on fencing.entry"):
            assert privilege in check.detail

    async def test_so_is_one_that_owns_the_record(self, dsn: str) -> None:
        await execute(dsn, f"ALTER ROLE {GATEWAY} SUPERUSER")
        try:
            check = await self.check(dsn, GATEWAY)
        finally:
            await execute(dsn, f"ALTER ROLE {GATEWAY} NOSUPERUSER")
        assert check.status is CheckStatus.WARNING
        assert "ownership of fencing.entry" in check.detail
