"""Installs the ``fencing`` schema from ``gateway/db/schema``, and upgrades one that is there by the migrations.

The migrations are files of SQL, ``migrations/r1001_subject.sql``. Each has a number, and brings a schema from the
revision before to its own.
"""

import asyncio
import re
import time
from functools import cache
from pathlib import Path

import asyncpg

from gateway.db.database import Database
from gateway.db.pool import FORBIDDEN, load
from gateway.db.servers import APPLICATION, Servers
from gateway.errors import ConfigurationError, SchemaLocked, SchemaTooNew, SqlError, UnreleasedSchema

UNDEFINED_TABLE = "42P01"

_CONNECT_TIMEOUT = 5.0
"""Seconds."""
_PACKAGED = Path(__file__).parents[1] / "migrations"
_CHECKOUT = Path(__file__).parents[2] / "migrations"

_SCHEMA = Path(__file__).with_name("schema")
_INCLUDE = re.compile(r"^\\ir (.+)$", re.MULTILINE)

BASELINE = "r1000"
"""The first released revision. Earlier ones, 0001 to 0018 and then r0001 on, had other migrations."""

LOCK = 5_461_934
"""The advisory lock of sessions that migrate or grant: they wait for each other. The number is arbitrary."""

PATIENCE = 60.0
"""Seconds in which a migration tries to lock the tables that it changes."""
_PAUSE = 1.0
"""Seconds between two attempts, in which writers go on that had to wait."""
_LOCKED = ("55P03", "40P01")

# Writers queue up behind a migration that waits for a lock, so its timeout is short. A deadlock, which PostgreSQL finds
# after a second, ends the migration and no writer. A migration that is paused loses its session, and so its locks.
#
# Each node of a Citus cluster has fences of its own. Citus would copy functions and types to the others, and would
# refuse to make any on a node that is not its coordinator. Other servers take it for a setting without a meaning.
_ALONE = f"""
SELECT pg_advisory_xact_lock({LOCK});
SET LOCAL lock_timeout = '300ms';
SET LOCAL standard_conforming_strings = on;
SET LOCAL idle_in_transaction_session_timeout = '5s';
SET LOCAL citus.enable_ddl_propagation = off
"""
_IS_THERE = "SELECT to_regclass('fencing.migration') IS NOT NULL"
_REVISION = "SELECT version_num FROM fencing.migration"


def upgrade(dsn: str) -> None:
    """Bring the schema to the version of this package, in one transaction. Safe to run at any time, in any process.

    A newer schema stays as it is. Raises ``ConfigurationError`` if the session lacks a right, and ``SqlError`` if the
    database refuses. Raises ``UnreleasedSchema`` or ``SchemaTooNew`` for a schema that is not for this version, and
    ``SchemaLocked`` if other sessions keep its tables locked. Nothing has changed then.
    """
    asyncio.run(_upgrade(dsn))


async def _upgrade(dsn: str) -> None:
    await check_rights(dsn)
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            await _upgrade_once(dsn)
        except asyncpg.PostgresError as error:
            if error.sqlstate not in _LOCKED:
                raise SqlError(error.sqlstate or "XX000", error.message or str(error)) from error
            if time.monotonic() >= deadline:
                raise SchemaLocked(PATIENCE) from error
            # Writers queue up behind a migration that waits for a lock. So it waits briefly, and often.
            await asyncio.sleep(_PAUSE)
        else:
            return


async def _upgrade_once(dsn: str) -> None:
    session = await Servers(dsn, _CONNECT_TIMEOUT).reach({"application_name": APPLICATION})
    try:
        async with session.transaction(isolation="read_committed"):
            await session.execute(_ALONE)
            # Another version may have migrated while this session waited.
            before = await session.fetchval(_REVISION) if await session.fetchval(_IS_THERE) else None
            if before is None:
                await session.execute(_schema())
                before = await session.fetchval(_REVISION)
            for revision, step in _steps():
                if revision > before:
                    await session.execute(step.read_text())
                    await session.execute("UPDATE fencing.migration SET version_num = $1", revision)
    finally:
        await session.close()


async def check_rights(dsn: str) -> None:
    """Raise ``ConfigurationError`` if there is anything to migrate, and the session may not."""
    try:
        found = await installed(dsn)
        if found is not None and found >= newest():
            return
    except SqlError as error:
        if error.sqlstate != FORBIDDEN:
            raise
    async with Database(dsn, pool_size=1) as database:
        lacking = await database.fetch(load("rights")["missing_to_migrate"])
    for row in lacking:
        as_owner = f"gateway migrate --dsn postgresql://{row['owner']}@HOST/DATABASE --grant-to ROLE_OF_THE_GATEWAY"
        raise ConfigurationError(
            f"The role {row['role']} lacks a right to migrate: {row['lacking']}. Nothing was changed.",
            advice=f"Run it as the owner, {row['owner']}: {as_owner}. Or let the owner run: {row['fix']};",
        )


@cache
def newest() -> str:
    """Return the revision that this package needs. Later revisions have higher numbers."""
    return _steps()[-1][0]


def check(found: str | None, needed: str | None = None, by: str = "this version of the gateway") -> str | None:
    """Raise ``ConfigurationError`` if the installed revision is older than ``needed``, by default the newest.

    Return a notice for one that is newer than this version, which is fine: what an older gateway calls stays, and never
    changes its meaning. So two versions can run side by side, until ``SchemaTooNew`` is raised.
    """
    advice, needed = "Run 'gateway migrate' first.", needed or newest()
    if found is None:
        raise ConfigurationError("The fencing schema is not installed.", advice=advice)
    if found < needed:
        raise ConfigurationError(f"The fencing schema is at {found}; {by} needs {needed}.", advice=advice)
    if found > newest():
        return f"The fencing schema is at {found}, newer than {newest()}, which this version knows. All of it works."
    return None


def _schema() -> str:
    install = (_SCHEMA / "install.sql").read_text()
    return _INCLUDE.sub(lambda named: (_SCHEMA / named[1]).read_text(), install)


def _steps() -> list[tuple[str, Path]]:
    """Return the revisions in their order, each with the file of its statements."""
    return [(path.stem.partition("_")[0], path) for path in sorted(_folder().glob("r*.sql"))]


async def installed(dsn: str) -> str | None:
    """Return the revision that the database has; None where the schema is not installed.

    Raises ``Unavailable`` where the database cannot be reached, and ``SqlError`` where it refuses. Raises
    ``UnreleasedSchema`` where the revision is from before the first release, and ``SchemaTooNew`` where it serves only
    newer gateways than this one.
    """
    async with Database(dsn, pool_size=1) as database:
        try:
            row = await database.fetchrow(_REVISION)
        except SqlError as error:
            if error.sqlstate == UNDEFINED_TABLE:
                return None
            raise
        revision = None if row is None else str(row["version_num"])
        if revision is not None and revision < BASELINE:
            raise UnreleasedSchema(revision)
        if revision is not None and revision > newest():
            row = await database.fetchrow("SELECT oldest FROM fencing.compatibility")
            if row is not None and row["oldest"] > newest():
                raise SchemaTooNew(revision, row["oldest"], newest())
    return revision


def _folder() -> Path:
    return _PACKAGED if _PACKAGED.is_dir() else _CHECKOUT
