"""The pool of connections: the one door to asyncpg, where its exceptions become ours."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from functools import partial
from typing import Any, TypeAlias, TypeVar

import asyncpg

from gateway.errors import OutcomeUnknown, SqlError, Unavailable

Record: TypeAlias = asyncpg.Record
Result = TypeVar("Result")

_ATTEMPTS = 5

# The session went away, or was never had. What a statement under way did is another question, answered by the caller.
_LOST: tuple[type[BaseException], ...] = (
    OSError,
    TimeoutError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.PostgresConnectionError,
    asyncpg.CannotConnectNowError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.TooManyConnectionsError,
    asyncpg.IdleInTransactionSessionTimeoutError,
)
# The database undid the transaction and asks for it again.
_AGAIN = (asyncpg.SerializationError, asyncpg.DeadlockDetectedError, asyncpg.InvalidCachedStatementError)


class Transaction:
    """One READ COMMITTED transaction under way. Errors in it are ours; nothing it did is kept unless it commits."""

    def __init__(self, connection: "asyncpg.pool.PoolConnectionProxy[Record]") -> None:
        self._connection = connection

    async def fetch(self, sql: str, *arguments: object) -> list[Record]:
        with _translated(Unavailable):
            return await self._connection.fetch(sql, *arguments)

    async def fetchrow(self, sql: str, *arguments: object) -> Record | None:
        with _translated(Unavailable):
            return await self._connection.fetchrow(sql, *arguments)

    async def execute(self, sql: str, *arguments: object) -> None:
        with _translated(Unavailable):
            await self._connection.execute(sql, *arguments)


class Database:
    """Postgres, through a pool that opens connections as they are needed and survives a restart of the server.

    Every session is pinned to UTC and ISO dates, because resource names contain such values as text, and to time-outs,
    because a gateway that was paused inside a transaction must not hold a fence row for ever. Nothing else is ever set
    in a session, so connections go back to the pool without asyncpg's reset query.
    """

    def __init__(
        self,
        dsn: str,
        *,
        pool_size: int = 16,
        statement_timeout: float = 30.0,
        lock_timeout: float = 10.0,
        idle_timeout: float = 5.0,
        connect_timeout: float = 5.0,
    ) -> None:
        """All time-outs are in seconds."""
        # A pool belongs to the event loop it is made in, which is not running yet where an app is built.
        self._create_pool = partial(
            asyncpg.create_pool,
            dsn,
            min_size=0,
            max_size=pool_size,
            max_inactive_connection_lifetime=60,
            statement_cache_size=512,
            timeout=connect_timeout,
            command_timeout=statement_timeout + connect_timeout,
            init=_insist_on_durability,
            reset=_no_reset,
            server_settings={
                "application_name": "fencing-gateway",
                "timezone": "UTC",
                "datestyle": "ISO, YMD",
                "intervalstyle": "iso_8601",
                "bytea_output": "hex",
                "extra_float_digits": "1",
                "default_transaction_isolation": "read committed",
                "statement_timeout": _milliseconds(statement_timeout),
                "lock_timeout": _milliseconds(lock_timeout),
                "idle_in_transaction_session_timeout": _milliseconds(idle_timeout),
            },
        )
        self._connect_timeout = connect_timeout

    async def open(self) -> None:
        """Make the pool usable. Connects to nothing yet: the server may still be down."""
        self._pool: asyncpg.Pool[Record] = await self._create_pool()

    async def close(self) -> None:
        """Close gracefully, but not for ever: statements still under way after a while are cut off."""
        try:
            async with asyncio.timeout(self._connect_timeout):
                await self._pool.close()
        except TimeoutError:
            self._pool.terminate()

    async def now(self) -> datetime:
        """The database's clock, the only one that is trusted."""
        row = await self.fetchrow("SELECT now() AS now")
        assert row is not None
        moment: datetime = row["now"]
        return moment

    async def fetch(self, sql: str, *arguments: object) -> list[Record]:
        """All rows of one statement that reads."""
        async with self._session() as connection:
            with _translated(Unavailable):
                return await connection.fetch(sql, *arguments)

    async def fetchrow(self, sql: str, *arguments: object) -> Record | None:
        """The first row of one statement that reads."""
        async with self._session() as connection:
            with _translated(Unavailable):
                return await connection.fetchrow(sql, *arguments)

    async def fetchrow_write(self, sql: str, *arguments: object) -> Record | None:
        """The first row of one autocommitted statement that writes.

        Raises ``OutcomeUnknown`` where the connection was lost under way: the server may have committed it.
        """
        async with self._session() as connection:
            with _translated(OutcomeUnknown):
                return await connection.fetchrow(sql, *arguments)

    async def run(self, work: Callable[[Transaction], Awaitable[Result]]) -> Result:
        """Run ``work`` in a transaction and commit it. Whatever ``work`` raises rolls everything back.

        Serialization failures and deadlocks are tried again a few times, from the start. Raises ``OutcomeUnknown``
        where the connection was lost while committing.
        """
        for attempt in range(_ATTEMPTS):
            try:
                return await self._run_once(work)
            except SqlError as error:
                if not isinstance(error.__cause__, _AGAIN) or attempt == _ATTEMPTS - 1:
                    raise
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def _run_once(self, work: Callable[[Transaction], Awaitable[Result]]) -> Result:
        async with self._session() as connection:
            transaction = connection.transaction(isolation="read_committed")
            with _translated(Unavailable):
                await transaction.start()
            try:
                result = await work(Transaction(connection))
            except BaseException:
                # A session that is gone has rolled back by itself.
                if not connection.is_closed():
                    with _translated(Unavailable):
                        await transaction.rollback()
                raise
            with _translated(OutcomeUnknown):
                await transaction.commit()
            return result

    @asynccontextmanager
    async def _session(self) -> AsyncIterator["asyncpg.pool.PoolConnectionProxy[Record]"]:
        with _translated(Unavailable):
            connection = await self._pool.acquire(timeout=self._connect_timeout)
        try:
            yield connection
        finally:
            await self._release(connection)

    async def _release(self, connection: "asyncpg.pool.PoolConnectionProxy[Record]") -> None:
        """Give the connection back. One that cannot be given back cleanly is dropped by the pool; the answer stands."""
        try:
            await self._pool.release(connection)
        except _LOST:
            connection.terminate()


async def _insist_on_durability(connection: Any) -> None:
    """An acknowledged fence must survive a crash of the server, whatever the database's default is.

    A stronger setting (``remote_apply``, say) is left alone.
    """
    await connection.execute(
        "SELECT set_config('synchronous_commit', 'on', false) "
        "WHERE current_setting('synchronous_commit') IN ('off', 'local')"
    )


async def _no_reset(connection: Any) -> None:
    """Nothing session-scoped is ever set; a transaction left open by a cancelled task is rolled back by the pool."""


class _translated:  # noqa: N801 - reads as a phrase at its call sites
    """Turns asyncpg's exceptions into ours. ``lost`` is what a lost connection means at this point."""

    def __init__(self, lost: type[Unavailable] | type[OutcomeUnknown]) -> None:
        self._lost = lost

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is None:
            return
        if isinstance(error, asyncpg.LockNotAvailableError):
            raise Unavailable(
                "Another write of this resource is still under way.",
                advice="Nothing was written. Send the request again.",
            ) from error
        # asyncpg's complaint about an argument it cannot encode is an InterfaceError too; that one is our own mistake.
        if isinstance(error, _LOST) and not isinstance(error, ValueError):
            raise self._lost("The database connection was lost.") from error
        if isinstance(error, asyncpg.PostgresError):
            raise SqlError(
                error.sqlstate or "XX000", error.message or str(error), detail=error.detail, hint=error.hint
            ) from error


def _milliseconds(seconds: float) -> str:
    return str(max(1, round(seconds * 1000)))
