"""Tokens from a table of Postgres: one row for each lock, with a number that the acquiring statement increments.

It is for programs with a lock database of their own; behind a gateway, its lease service does the same and more. It is
not a sequence: a rollback does not undo ``nextval`` together with the row that names the holder. Sessions may also
cache a sequence's numbers and hand them out in another order. See docs/sources.md.
"""

import asyncio
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, LiteralString

from gateway.client.cancellation import whole
from gateway.client.errors import FencingError, NotAcquired, Refused, Unavailable, needs
from gateway.client.source import Attempt, Clock, Held, LockService, now

if TYPE_CHECKING:
    import psycopg

TABLE: Final = """\
CREATE TABLE IF NOT EXISTS {table} (
    resource   text COLLATE "C" PRIMARY KEY,
    value      bigint NOT NULL,
    lease      uuid,
    holder     text,
    expires_at timestamptz NOT NULL
) WITH (fillfactor = 50)
"""

# The row is locked when the condition is looked at, and the clock is that of this moment: excluded.expires_at may be
# older. A token must survive a crash of the server, so its commit waits for the disk, whatever the database's default.
_ACQUIRE: Final = """
INSERT INTO {table} AS own (resource, value, lease, holder, expires_at)
VALUES (%(resource)s, 1, %(lease)s, %(holder)s, clock_timestamp() + make_interval(secs => %(ttl)s))
ON CONFLICT (resource) DO UPDATE SET
    value = own.value + CASE WHEN own.lease = excluded.lease THEN 0 ELSE 1 END,
    lease = excluded.lease,
    holder = excluded.holder,
    expires_at = clock_timestamp() + make_interval(secs => %(ttl)s)
WHERE own.lease IS NULL OR own.lease = excluded.lease OR own.expires_at <= clock_timestamp()
RETURNING value, (
    SELECT set_config('synchronous_commit', 'on', true)
    WHERE current_setting('synchronous_commit') IN ('off', 'local')
)
"""
_LOOK: Final = """
SELECT holder, extract(epoch FROM expires_at - clock_timestamp())::float8
FROM {table} WHERE resource = %(resource)s AND lease IS NOT NULL AND expires_at > clock_timestamp()
"""
_RENEW: Final = """
UPDATE {table} SET expires_at = clock_timestamp() + make_interval(secs => %(ttl)s)
WHERE resource = %(resource)s AND lease = %(lease)s AND expires_at > clock_timestamp()
RETURNING value
"""
_HOLDS: Final = """
SELECT 1 FROM {table} WHERE resource = %(resource)s AND lease = %(lease)s AND expires_at > clock_timestamp()
"""
_RELEASE: Final = "UPDATE {table} SET lease = NULL, holder = NULL WHERE resource = %(resource)s AND lease = %(lease)s"

# The server's messages for a refused login; libpq passes on only the sentence.
_NOT_LET_IN: Final = ("authentication failed", "no pg_hba.conf entry", "does not exist", "permission denied")


@dataclass(frozen=True, slots=True)
class PostgresHandle:
    """Which hold it is: each acquire is one of its own."""

    resource: str
    lease: uuid.UUID


class PostgresSource(LockService[PostgresHandle]):
    """Locks that are rows of a table. Needs the extra ``postgres``.

    ``url``: of libpq, ``postgresql://user@host/database``; a transaction pooler may stand between. ``table``: its name,
    with its schema if needed (``locks.fencing_lock``); ``install`` creates it. ``poll``: seconds between two looks of a
    waiter. ``timeout``: seconds for one statement. All statements use one connection.

    Leases expire by the clock of the database. A lease whose time is over is lost, even if the lock is free. Any of the
    waiters may be next.
    """

    service = "Postgres"
    handles = PostgresHandle
    reuses = True

    def __init__(
        self,
        url: str,
        *,
        table: str = "fencing_lock",
        poll: float = 0.5,
        timeout: float = 5.0,
        clock: Clock = now,
    ) -> None:
        super().__init__(clock)
        with needs("postgres"):
            import psycopg  # noqa: PLC0415
            import psycopg.sql  # noqa: PLC0415
        self._psycopg = psycopg
        self._url = url
        self._at = _address(url)
        self._table = psycopg.sql.Identifier(*table.split("."))
        self.poll = poll
        self._timeout = timeout
        self._turn = asyncio.Lock()
        self._connection: psycopg.AsyncConnection[Any] | None = None

    async def install(self) -> None:
        """Make the table where there is none. Needs the right to create tables in its schema; the locks do not."""
        try:
            await self._run(TABLE)
        except Refused as refused:
            # Of two at once who find none, one fails, at a row of the catalogue or at its index.
            errors = self._psycopg.errors
            there = (errors.UniqueViolation, errors.DuplicateTable, errors.DuplicateObject)
            if not isinstance(refused.__cause__, there):
                raise

    async def _take(self, attempt: Attempt[PostgresHandle]) -> Held | NotAcquired:
        """Take the row. A waiter looks first: LISTEN would need a session without a pooler between."""
        resource, asked = attempt.resource, self._clock()
        refused = await self._look(resource) if attempt.refused else None
        if refused is None:
            attempt.handle = handle = attempt.handle or PostgresHandle(resource, uuid.uuid4())
            values = {"resource": resource, "lease": handle.lease, "holder": attempt.holder, "ttl": attempt.ttl}
            taken = await whole(self._run(_ACQUIRE, **values))
            if taken is not None:
                return attempt.held(taken[0], asked + attempt.ttl)
            refused = await self._look(resource)
        return refused or NotAcquired(resource, expires_in=0.0)

    async def _look(self, resource: str) -> NotAcquired | None:
        taken = await self._run(_LOOK, resource=resource)
        return None if taken is None else NotAcquired(resource, holder=taken[0], expires_in=taken[1])

    async def _keep(self, held: Held, handle: PostgresHandle, ttl: float) -> float | None:
        row = await self._run(_RENEW, resource=held.resource, lease=handle.lease, ttl=ttl)
        return None if row is None else ttl

    async def _give_back(self, handle: PostgresHandle) -> None:
        # The row stays, for its number.
        await self._run(_RELEASE, resource=handle.resource, lease=handle.lease)

    async def holds(self, held: Held) -> bool:
        lease = self._handle(held).lease
        return await self._run(_HOLDS, resource=held.resource, lease=lease) is not None

    async def aclose(self) -> None:
        await self._disconnect()
        # The next one may be of another event loop.
        self._turn = asyncio.Lock()

    async def _run(self, statement: LiteralString, **values: object) -> tuple[Any, ...] | None:
        """One statement, which is its own transaction; its only row, if it has one."""
        text = self._psycopg.sql.SQL(statement).format(table=self._table)
        with self._translated():
            try:
                async with asyncio.timeout(self._timeout), self._turn:
                    connection = await self._connected()
                    cursor = await connection.execute(text, values)
                    return await cursor.fetchone() if cursor.description else None
            except (self._psycopg.OperationalError, TimeoutError):
                await self._disconnect()
                raise

    async def _connected(self) -> "psycopg.AsyncConnection[Any]":
        if self._connection is None or self._connection.closed:
            try:
                # A transaction pooler has another session for each statement, and no prepared ones.
                self._connection = await self._psycopg.AsyncConnection.connect(
                    self._url, autocommit=True, prepare_threshold=None
                )
            except self._psycopg.OperationalError as error:
                said = str(error).strip()
                if any(words in said for words in _NOT_LET_IN):
                    raise Refused(f"Postgres does not let us in: {said}", status=401) from error
                raise
        return self._connection

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        errors = self._psycopg.errors
        try:
            yield
        except errors.InsufficientPrivilege as error:
            advice = "The role needs USAGE on the schema, and SELECT, INSERT and UPDATE on the table."
            raise Refused(f"Postgres refuses: {error}.", status=403, advice=advice) from error
        except (errors.UndefinedTable, errors.InvalidSchemaName) as error:
            raise Refused(
                f"There is no table: {error}", status=404, advice="Make it: await source.install()"
            ) from error
        except errors.NumericValueOutOfRange as error:
            advice = "Have an administrator start a new epoch of the resource, and set the value of its row to 0."
            raise FencingError("The row's number has come to its end.", advice=advice) from error
        except TimeoutError as error:
            raise Unavailable(f"Postgres at {self._at} has not answered within {self._timeout:g} s.") from error
        except (self._psycopg.OperationalError, errors.ReadOnlySqlTransaction) as error:
            raise Unavailable(f"Postgres at {self._at} cannot work just now: {error}") from error
        except self._psycopg.Error as error:
            raise Refused(f"Postgres refuses: {error}.", status=400) from error


def _address(url: str) -> str:
    """Return hosts and ports of a connection string, without its user and password."""
    from psycopg import ProgrammingError, conninfo  # noqa: PLC0415 - an extra: the source has looked whether it is there

    try:
        named = conninfo.conninfo_to_dict(url)
    except ProgrammingError:  # a request finds out, and says so
        return "its address"
    host, port = str(named.get("host") or "localhost"), str(named.get("port") or "5432")
    return ", ".join(f"{one}:{port}" for one in host.split(",")) if "," not in port else f"{host}:{port}"
