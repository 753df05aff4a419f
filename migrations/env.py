"""Runs the migrations of the ``fencing`` schema, for ``gateway migrate``."""

import asyncio

from alembic import context
from sqlalchemy import Connection, text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

# Makes sessions that migrate at the same time wait for each other. The number is arbitrary.
MIGRATION_LOCK = 5_461_934


def migrate(connection: Connection) -> None:
    """Run all migrations in one transaction: one that fails leaves nothing behind."""
    connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": MIGRATION_LOCK})
    # IF NOT EXISTS needs the right to create schemas even if there is one.
    if not connection.execute(text("SELECT to_regnamespace('fencing')")).scalar():
        connection.execute(text("CREATE SCHEMA fencing"))
    context.configure(connection=connection, version_table="migration", version_table_schema="fencing")
    context.run_migrations()


async def online() -> None:
    connect = context.config.attributes["connect"]
    engine = create_async_engine("postgresql+asyncpg://", async_creator=connect, poolclass=NullPool)
    async with engine.begin() as connection:
        await connection.run_sync(migrate)


asyncio.run(online())
