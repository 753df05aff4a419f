"""Waits until sessions of a database wait for one another, as pg_stat_activity tells it, or are gone.

Not as pg_locks does: for what holds up a row it has no database, and other databases of the same server may be busy.
"""

import asyncio
from typing import TypeAlias

import asyncpg

from gateway.db.database import Database
from gateway.db.pool import Session

Asked: TypeAlias = "Database | Session"
"""Whom the database is asked through: not in a transaction, which would be told the same again and again."""

PATIENCE = 30.0
"""Seconds that a test waits for what must happen: longer than a busy machine takes for anything."""

_WAITING = """
    SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND wait_event_type = 'Lock' AND ($1::text IS NULL OR wait_event = $1)
"""

_OTHERS = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
_END = "SELECT pg_terminate_backend(pid, $2) FROM unnest($1::int[]) AS pid"


async def waiting(database: Asked, sessions: int = 1) -> None:
    """Return once so many sessions wait for a lock."""
    async with asyncio.timeout(PATIENCE):
        while await number_waiting(database) < sessions:
            await asyncio.sleep(0.01)


async def number_waiting(database: Asked, lock: str | None = None) -> int:
    """How many do right now; of a kind of ``lock`` only, such as ``relation``."""
    row = await database.fetchrow(_WAITING, lock)
    assert row is not None
    return int(row[0])


async def end_sessions(dsn: str) -> None:
    """End all sessions of the database, as its restart does. Return once they are gone, and their clients know it."""
    connection = await asyncpg.connect(dsn)
    try:
        ended = [pid for (pid,) in await connection.fetch(_OTHERS)]
        # Some may have ended by themselves meanwhile, or may be new: neither is waited for.
        await connection.execute(_END, ended, int(PATIENCE * 1000))
        left = [pid for (pid,) in await connection.fetch(_OTHERS) if pid in ended]
        assert left == [], "they do not end"
    finally:
        await connection.close()
    # Their sockets are closed by now. The event loop finds that out at each turn, and takes a few to say so.
    for _ in range(10):
        await asyncio.sleep(0)
