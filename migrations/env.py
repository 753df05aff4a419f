"""Runs the migrations of the ``fencing`` schema, for ``gateway migrate``."""

import asyncio

from alembic import context
from sqlalchemy import Connection, text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

# Writers queue up behind a migration that waits for a lock, so its timeout is short. A deadlock, which PostgreSQL finds
# after a second, ends the migration and no writer. A migration that is paused loses its session, and so its locks.
TIMEOUTS = "SET LOCAL lock_timeout = '300ms'; SET LOCAL idle_in_transaction_session_timeout = '5s'"

# Each node of a Citus cluster has fences of its own. Citus would copy functions and types to the others, and would
# refuse to make any on a node that is not its coordinator. Other servers take it for a setting without a meaning.
ONE_NODE = "SET LOCAL citus.enable_ddl_propagation = off"


def migrate(connection: Connection) -> None:
    """Run all migrations in one transaction: one that fails leaves nothing behind. A newer schema stays as it is."""
    connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": context.config.attributes["lock"]})
    for statement in (*TIMEOUTS.split("; "), ONE_NODE):
        connection.execute(text(statement))
    # IF NOT EXISTS needs the right to create schemas even if there is one.
    if not connection.execute(text("SELECT to_regnamespace('fencing')")).scalar():
        connection.execute(text("CREATE SCHEMA fencing"))
    context.configure(connection=connection, version_table="migration", version_table_schema="fencing")
    found, head = context.get_context().get_current_revision(), context.get_head_revision()
    # A newer version may have migrated while this session waited.
    if found is None or found < str(head):
        context.run_migrations()


async def online() -> None:
    connect = context.config.attributes["connect"]
    engine = create_async_engine("postgresql+asyncpg://", async_creator=connect, poolclass=NullPool)
    async with engine.begin() as connection:
        await connection.run_sync(migrate)


asyncio.run(online())
