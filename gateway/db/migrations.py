"""Installs and upgrades the ``fencing`` schema with the migrations that come with the package."""

import asyncio
import time
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

import asyncpg

from gateway.db.database import Database
from gateway.db.pool import load
from gateway.db.servers import APPLICATION, Servers
from gateway.errors import ConfigurationError, SchemaLocked, SchemaTooNew, SqlError, UnreleasedSchema

if TYPE_CHECKING:
    from alembic.config import Config as Alembic

UNDEFINED_TABLE, FORBIDDEN = "42P01", "42501"

_CONNECT_TIMEOUT = 5.0
"""Seconds."""
_PACKAGED = Path(__file__).parents[1] / "migrations"
_CHECKOUT = Path(__file__).parents[2] / "migrations"

BASELINE = "r1000"
"""The first released revision. Earlier ones, 0001 to 0018 and then r0001 on, had other migrations."""

LOCK = 5_461_934
"""The advisory lock of sessions that migrate or grant: they wait for each other. The number is arbitrary."""

PATIENCE = 60.0
"""Seconds in which a migration tries to lock the tables that it changes."""
_PAUSE = 1.0
"""Seconds between two attempts, in which writers go on that had to wait."""
_LOCKED = ("55P03", "40P01")


def upgrade(dsn: str) -> None:
    """Bring the schema to the version of this package, in one transaction. Safe to run at any time, in any process.

    A newer schema stays as it is. Raises ``ConfigurationError`` if the session lacks a right, and ``SqlError`` if the
    database refuses. Raises ``UnreleasedSchema`` or ``SchemaTooNew`` for a schema that is not for this version, and
    ``SchemaLocked`` if other sessions keep its tables locked. Nothing has changed then.
    """
    asyncio.run(check_rights(dsn))
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            _upgrade_once(dsn)
        except SqlError as error:
            if error.sqlstate not in _LOCKED:
                raise
            if time.monotonic() >= deadline:
                raise SchemaLocked(PATIENCE) from error
            # Writers queue up behind a migration that waits for a lock. So it waits briefly, and often.
            time.sleep(_PAUSE)
        else:
            return


def _upgrade_once(dsn: str) -> None:
    from alembic import command  # noqa: PLC0415 - half of what starting any command takes, and few migrate

    try:
        command.upgrade(_alembic(dsn), "head")
    except Exception as error:
        # Alembic's driver wraps the database's answer, more than once.
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, asyncpg.PostgresError):
            cause = cause.__cause__
        if cause is None:
            raise
        raise SqlError(cause.sqlstate or "XX000", cause.message or str(cause)) from error


async def check_rights(dsn: str) -> None:
    """Raise ``ConfigurationError`` if there is anything to migrate, and the session may not."""
    try:
        found = await installed(dsn)
        if found is not None and found >= newest():
            return
    except SqlError as error:
        if error.sqlstate != FORBIDDEN:
            raise
    database = Database(dsn, pool_size=1)
    try:
        lacking = await database.fetch(load("rights")["missing_to_migrate"])
    finally:
        await database.close()
    for row in lacking:
        as_owner = f"gateway migrate --dsn postgresql://{row['owner']}@HOST/DATABASE --grant-to ROLE_OF_THE_GATEWAY"
        raise ConfigurationError(
            f"The role {row['role']} lacks a right to migrate: {row['lacking']}. Nothing was changed.",
            advice=f"Run it as the owner, {row['owner']}: {as_owner}. Or let the owner run: {row['fix']};",
        )


@cache
def newest() -> str:
    """Return the revision that this package needs. Later revisions have higher numbers."""
    return max(path.stem.partition("_")[0] for path in (_folder() / "versions").glob("r*.py"))


async def installed(dsn: str) -> str | None:
    """Return the revision that the database has; None where the schema is not installed.

    Raises ``Unavailable`` where the database cannot be reached, and ``SqlError`` where it refuses. Raises
    ``UnreleasedSchema`` where the revision is from before the first release, and ``SchemaTooNew`` where it serves only
    newer gateways than this one.
    """
    database = Database(dsn, pool_size=1)
    try:
        row = await database.fetchrow("SELECT version_num FROM fencing.migration")
        revision = None if row is None else str(row["version_num"])
        if revision is not None and revision < BASELINE:
            raise UnreleasedSchema(revision)
        if revision is not None and revision > newest():
            row = await database.fetchrow("SELECT oldest FROM fencing.compatibility")
            if row is not None and row["oldest"] > newest():
                raise SchemaTooNew(revision, row["oldest"], newest())
    except SqlError as error:
        if error.sqlstate == UNDEFINED_TABLE:
            return None
        raise
    finally:
        await database.close()
    return revision


def _alembic(dsn: str) -> "Alembic":
    from alembic.config import Config as Alembic  # noqa: PLC0415 - as above

    config = Alembic()
    config.set_main_option("script_location", str(_folder()))
    config.attributes["lock"] = LOCK
    config.attributes["connect"] = partial(Servers(dsn, _CONNECT_TIMEOUT).reach, {"application_name": APPLICATION})
    return config


def _folder() -> Path:
    return _PACKAGED if _PACKAGED.is_dir() else _CHECKOUT
