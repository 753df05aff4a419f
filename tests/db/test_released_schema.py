"""Gateways of one release go on working after the next release has migrated: the rules for migrations are kept."""

import asyncio
import re
import subprocess
from collections.abc import AsyncIterator, Iterator

import asyncpg
import pytest
from alembic import command
from alembic.script import ScriptDirectory

from gateway.db import migrations
from gateway.db.pool import FOLDER, load
from tests import ROOT
from tests.catalogs import catalog
from tests.compatibility import broken
from tests.db.test_schema import an_empty, of
from tests.postgres import Server, template_of_today
from tests.releases import NEXT_SCRIPT
from tests.tiers import first

ALLOWED: dict[str, str] = {}
"""Findings that harm no older gateway all the same, and why: a repaired function, say."""

BREAKING = {
    "DROP FUNCTION fencing.release_v1": "function .*release_v1.* is gone",
    "ALTER FUNCTION fencing.release_v1 RENAME TO release_v2": "function .*release_v1.* is gone",
    "CREATE OR REPLACE FUNCTION fencing.reasons_v1() RETURNS text[] LANGUAGE sql IMMUTABLE PARALLEL SAFE "
    "RETURN ARRAY['token-stale']": "function .*reasons_v1.* is another one",
    "REVOKE EXECUTE ON FUNCTION fencing.release_v1 FROM PUBLIC": "function .*release_v1.* is another one",
    "DROP TABLE fencing.patrol": "relation fencing.patrol is gone",
    "ALTER TABLE fencing.lock DROP COLUMN delayed_until": "column fencing.lock.delayed_until is gone",
    "ALTER TABLE fencing.lock RENAME delayed_until TO delayed": "column fencing.lock.delayed_until is gone",
    "ALTER TABLE fencing.lock ALTER delayed_until SET NOT NULL": "column fencing.lock.delayed_until is another one",
    "ALTER TABLE fencing.patrol ADD COLUMN more text NOT NULL": "column fencing.patrol.more needs a value",
    "ALTER TABLE fencing.fence ADD COLUMN more text": "column fencing.fence.more changes the type of the rows",
    "ALTER TABLE fencing.intent ADD COLUMN more text": "column fencing.intent.more changes the type of the rows",
    "ALTER TABLE fencing.lock ADD CHECK (value < 100)": "constraint .* restricts fencing.lock",
    "CREATE INDEX slow ON fencing.lock (value)": "index fencing.slow restricts fencing.lock",
    "DROP INDEX fencing.spent_dead": "index fencing.spent_dead is gone",
    "CREATE TRIGGER strict BEFORE DELETE ON fencing.lock EXECUTE FUNCTION fencing.refuse_change_v1()": "trigger strict",
}


@pytest.fixture(scope="module")
def dsn(postgres_server: Server) -> Iterator[str]:
    template_of_today(postgres_server)
    with an_empty(postgres_server) as empty:
        migrations.upgrade(empty)
        yield empty


@pytest.fixture
async def connection(dsn: str) -> AsyncIterator[asyncpg.Connection]:
    """A session in a transaction that is undone."""
    opened = await asyncpg.connect(dsn)
    undone = opened.transaction()
    await undone.start()
    yield opened
    await undone.rollback()
    await opened.close()


def whole_rows(found: dict[str, str]) -> set[str]:
    """Return the relations whose rows functions or queries of the gateway return as one value."""
    relations = {name.removeprefix("relation ") for name in found if name.startswith("relation ")}
    heads = [text.partition("LANGUAGE")[0] for name, text in found.items() if name.startswith("function ")]
    texts = [text for file in FOLDER.glob("*.sql") for text in load(file.stem).values()]
    selected = re.compile(r"SELECT (\w+)(?: AS \w+)?\s+FROM fencing\.(\w+) AS \1\b")
    returned = set(re.findall(r"\b(fencing\.\w+)\b", "\n".join(heads)))
    return relations & (returned | {f"fencing.{name}" for text in texts for _, name in selected.findall(text)})


def test_no_migration_since_the_oldest_release_that_is_served_takes_away_what_it_needs(
    dsn: str, postgres_server: Server
) -> None:
    after = asyncio.run(of(dsn))
    (oldest,) = re.findall(r'"oldest": "(\w+)"', after["rows fencing.compatibility"])
    with an_empty(postgres_server) as older:
        command.upgrade(migrations._alembic(older), oldest)
        before = asyncio.run(of(older))
    assert [found for found in broken(before, after, whole_rows(before)) if found not in ALLOWED] == []
    assert oldest == migrations.BASELINE, "only a new major version may stop serving older gateways"


async def test_a_migration_may_add_what_older_gateways_need_not_know(connection: asyncpg.Connection) -> None:
    before = await catalog(connection)
    await connection.execute(NEXT_SCRIPT)
    assert broken(before, await catalog(connection), whole_rows(before)) == []


@pytest.mark.parametrize("statement", first(BREAKING))
async def test_a_migration_that_harms_older_gateways_is_found(connection: asyncpg.Connection, statement: str) -> None:
    before = await catalog(connection)
    await connection.execute(statement)
    found = broken(before, await catalog(connection), whole_rows(before))
    assert any(re.match(BREAKING[statement], one) for one in found), found


async def test_rows_that_cross_to_the_gateway_as_one_value_are_known(connection: asyncpg.Connection) -> None:
    names = {"fence", "intent", "forbidden", "spent", "lease", "living_waiter"}
    assert {f"fencing.{name}" for name in names} <= whole_rows(await catalog(connection))
    assert "fencing.lock" not in whole_rows(await catalog(connection))


def test_revisions_are_in_the_order_of_their_numbers() -> None:
    """Or a gateway would take an older schema for a newer one."""
    script = ScriptDirectory.from_config(migrations._alembic(""))
    revisions = [one.revision for one in reversed(list(script.walk_revisions()))]
    assert revisions == sorted(revisions)
    assert (revisions[0], revisions[-1]) == (migrations.BASELINE, migrations.newest())


def test_a_released_migration_is_never_edited() -> None:
    def git(*arguments: str) -> str:
        told = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
        return told.stdout if told.returncode == 0 else ""

    tags = git("tag", "--list", "v*", "--sort=-version:refname").split()
    if not tags:
        pytest.skip("no release is tagged in this checkout")
    for path in git("ls-tree", "-r", "--name-only", tags[0], "migrations/versions").split():
        assert git("show", f"{tags[0]}:{path}") == (ROOT / path).read_text(), path
