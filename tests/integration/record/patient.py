"""A database that is waited for, for tests that are not about its time-outs."""

from gateway.db.database import Database
from tests.waiting import PATIENCE


def patient(dsn: str, *, pool_size: int = 16) -> Database:
    """Return a database whose time-outs are longer than a test waits for anything, as those of the fixture are."""
    long = 2 * PATIENCE
    return Database(
        dsn, pool_size=pool_size, statement_timeout=long, lock_timeout=long, idle_timeout=long, connect_timeout=long
    )
