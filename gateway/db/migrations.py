"""Installs and upgrades the ``fencing`` schema with the migrations that come with the package."""

import asyncio
import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import asyncpg

from gateway.db.database import Database
from gateway.db.pool import load
from gateway.db.servers import APPLICATION, Servers
from gateway.errors import ConfigurationError, SqlError, UnreleasedSchema

if TYPE_CHECKING:
    from alembic.config import Config as Alembic

UNDEFINED_TABLE, FORBIDDEN = "42P01", "42501"

_CONNECT_TIMEOUT = 5.0
"""Seconds."""
_PACKAGED = Path(__file__).parents[1] / "migrations"
_CHECKOUT = Path(__file__).parents[2] / "migrations"

# Released revisions begin with an r: r0001. The ones before, 0001 to 0018, had other migrations.
_UNRELEASED = re.compile(r"[0-9]{4}")


def upgrade(dsn: str) -> None:
    """Bring the schema to the version of this package, in one transaction. Safe to run at any time, in any process.

    Raises ``ConfigurationError`` if the session lacks a right, ``UnreleasedSchema`` if the schema has no upgrade, and
    ``SqlError`` if the database refuses. Nothing has changed then.
    """
    from alembic import command  # noqa: PLC0415 - half of what starting any command takes, and few migrate

    asyncio.run(check_rights(dsn))
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
        if await installed(dsn) == newest():
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


def newest() -> str:
    """Return the revision that this package needs."""
    from alembic.script import ScriptDirectory  # noqa: PLC0415 - as above

    head = ScriptDirectory.from_config(_alembic("")).get_current_head()
    assert head is not None
    return head


async def installed(dsn: str) -> str | None:
    """Return the revision that the database has; None where the schema is not installed.

    Raises ``Unavailable`` where the database cannot be reached, ``SqlError`` where it refuses, and ``UnreleasedSchema``
    where the revision is from before the first release.
    """
    database = Database(dsn, pool_size=1)
    try:
        row = await database.fetchrow("SELECT version_num FROM fencing.migration")
    except SqlError as error:
        if error.sqlstate == UNDEFINED_TABLE:
            return None
        raise
    finally:
        await database.close()
    revision = None if row is None else str(row["version_num"])
    if revision is not None and _UNRELEASED.fullmatch(revision):
        raise UnreleasedSchema(revision)
    return revision


def _alembic(dsn: str) -> "Alembic":
    from alembic.config import Config as Alembic  # noqa: PLC0415 - as above

    config = Alembic()
    config.set_main_option("script_location", str(_PACKAGED if _PACKAGED.is_dir() else _CHECKOUT))
    config.attributes["connect"] = partial(Servers(dsn, _CONNECT_TIMEOUT).reach, {"application_name": APPLICATION})
    return config
