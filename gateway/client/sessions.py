"""The end of the database sessions of a lost lock.

It saves a successor's wait: a session that has written holds its fence until its transaction ends. The guard refuses
writes of a lost lock in any case.
"""

import logging
from typing import TYPE_CHECKING

from gateway.client.errors import needs

if TYPE_CHECKING:
    import psycopg

LIMIT = 5.0
"""Seconds that ending the sessions of one database may take."""

_LOG = logging.getLogger("gateway.client")
_SESSIONS = "SELECT pid FROM pg_stat_activity WHERE position(%s IN application_name) > 0 AND pid <> pg_backend_pid()"


async def end_sessions(dsn: str, tag: str) -> int:
    """End the sessions whose ``application_name`` contains the tag; return their number.

    ``dsn`` connects as the sessions do: a role may end its own sessions, and those of roles that it is a member of. All
    others stay. Needs the extra ``postgres``. Raise ``psycopg.Error`` if the database cannot be reached.
    """
    with needs("postgres"):
        import psycopg  # noqa: PLC0415 - an extra
    connection = await psycopg.AsyncConnection.connect(
        dsn, autocommit=True, prepare_threshold=None, connect_timeout=int(LIMIT), options="", application_name="fencing"
    )
    async with connection:
        rows = await (await connection.execute(_SESSIONS, (tag,))).fetchall()
        return sum([await _ended(connection, pid) for (pid,) in rows])


async def _ended(connection: "psycopg.AsyncConnection[tuple[int]]", pid: int) -> bool:
    import psycopg  # noqa: PLC0415 - an extra

    try:
        await connection.execute("SELECT pg_terminate_backend(%s)", (pid,))
    except psycopg.errors.InsufficientPrivilege:
        _LOG.warning("The session %s of a lost lock stays: it is another role's.", pid)
        return False
    return True
