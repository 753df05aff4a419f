"""A journal in a second PostgreSQL: the same objects as in a bucket, one row each.

The second server should fail for other reasons than the first one: another machine, another disk, other backups. A
session never continues after a restart, and commits are pinned to be durable, as of all sessions of the gateway.
"""

from uuid import UUID

from gateway.db import rights
from gateway.db.database import Database, Record
from gateway.db.pool import load
from gateway.errors import JournalUnusable, OutcomeUnknown, SqlError, Unavailable
from gateway.journal.contents import Flaw, Problem

SCHEMA = "fencing_journal"
_SQL = {name: text.replace("{journal}", SCHEMA) for name, text in load("journal").items()}

# Refused for want of a right; and what a server says that takes no writes, such as a standby.
_REFUSED = ("42501", "25006")
_NO_TABLE = ("42P01", "3F000")


class RowStore:
    """A ``Store`` of ``gateway.journal.archive`` in a table."""

    def __init__(self, database: Database) -> None:
        """``database``: the second one, that of the journal."""
        self._database = database

    async def install(self) -> None:
        """Make the table, if there is none. The session needs the right to create a schema."""
        await self._written("install")

    async def add(self, name: str, content: bytes) -> bool:
        return await self._written("add", name, content)

    async def replace(self, name: str, content: bytes, version: str) -> bool:
        return await self._written("replace", name, content, UUID(version))

    async def read(self, name: str) -> tuple[bytes, str] | None:
        rows = await self._read("read", name)
        return (rows[0]["content"], rows[0]["version"]) if rows else None

    async def names(self, prefix: str) -> list[str]:
        after_all = prefix[:-1] + chr(ord(prefix[-1]) + 1) if prefix else ""
        return [row["name"] for row in await self._read("names", prefix, after_all)]

    async def remove(self, name: str) -> None:
        await self._written("remove", name)

    async def find_unfit(self) -> Flaw | None:
        """Return the reason why commits of this server may be lost."""
        (row,) = await self._read("durability")
        if row["recovering"]:
            return Flaw(Problem.UNFIT, "its server is a standby")
        if not row["fsync"] or not row["full_page_writes"]:
            return Flaw(Problem.UNFIT, "its server may lose commits: fsync or full_page_writes is off")
        return None

    async def _written(self, query: str, *arguments: object) -> bool:
        try:
            return await self._database.fetchrow_write(_SQL[query], *arguments) is not None
        except (Unavailable, OutcomeUnknown, SqlError, ValueError) as error:
            raise _fault(error) from error

    async def _read(self, query: str, *arguments: object) -> list[Record]:
        try:
            return await self._database.fetch(_SQL[query], *arguments)
        except (Unavailable, SqlError, ValueError) as error:
            raise _fault(error) from error


async def install(dsn: str, grant_to: str | None) -> None:
    """Make the table of a journal, and let a role use it. The session needs the right to create a schema."""
    async with Database(dsn, pool_size=1) as database:
        await RowStore(database).install()
        if grant_to is not None:
            await database.run(lambda transaction: rights.run_grants(transaction, _SQL["grants"], grant_to))


def _fault(error: Unavailable | OutcomeUnknown | SqlError | ValueError) -> JournalUnusable:
    if isinstance(error, ValueError):
        return Flaw(Problem.UNREACHABLE, "journal.dsn is not the address of a database").error()
    if isinstance(error, SqlError) and error.sqlstate in _NO_TABLE:
        return Flaw(Problem.MISSING, f"its database has no table {SCHEMA}.object").error()
    if isinstance(error, SqlError) and error.sqlstate in _REFUSED:
        return Flaw(Problem.UNWRITABLE, f"its database refuses: {error.message.rstrip('.')}").error()
    return Flaw(Problem.UNREACHABLE, f"its database does not answer: {error.message.rstrip('.')}").error()
