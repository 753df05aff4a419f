"""Installs and upgrades the ``fencing`` schema with the migrations that come with the package."""

from pathlib import Path

import asyncpg
from alembic import command
from alembic.config import Config as Alembic
from alembic.script import ScriptDirectory

_PACKAGED = Path(__file__).parents[1] / "migrations"
_CHECKOUT = Path(__file__).parents[2] / "migrations"


def upgrade(dsn: str) -> None:
    """Bring the schema to the version of this package, in one transaction. Safe to run at any time, by anyone."""
    command.upgrade(_alembic(dsn), "head")


def newest() -> str:
    """The revision this package needs."""
    head = ScriptDirectory.from_config(_alembic("")).get_current_head()
    assert head is not None
    return head


async def installed(dsn: str) -> str | None:
    """The revision the database has; None where the schema is not installed."""
    connection = await asyncpg.connect(dsn)
    try:
        revision: str | None = await connection.fetchval("SELECT version_num FROM fencing.migration")
    except asyncpg.UndefinedTableError:
        return None
    finally:
        await connection.close()
    return revision


def _alembic(dsn: str) -> Alembic:
    config = Alembic()
    config.set_main_option("script_location", str(_PACKAGED if _PACKAGED.is_dir() else _CHECKOUT))
    config.attributes["dsn"] = dsn
    return config
