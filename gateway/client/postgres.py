"""Tokens from Postgres: those of the schema ``fencing`` without a gateway, and those of a table of locks.

``DatabaseLeases`` are the locks of a client whose address is a database (docs/sdk.md). They are the gateway's own
leases, by functions of the schema, and so is the barrier.

``PostgresSource`` is for programs with a lock database of their own: one row for each lock, with a number that the
acquiring statement increments. It is not a sequence: a rollback does not undo ``nextval`` together with the row that
names the holder. Sessions may also cache a sequence's numbers and hand them out in another order. See docs/sources.md.
"""

import asyncio
import json
import logging
import math
import os
import uuid
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, LiteralString

from gateway.client.api import Retries, make
from gateway.client.cancellation import whole
from gateway.client.errors import FencingError, NotAcquired, Refused, Unavailable, needs
from gateway.client.leases import LONGEST_TIMEOUT, SHORTEST_TIMEOUT
from gateway.client.source import Attempt, Clock, H, Held, LockService, now
from gateway.errors import DatabaseClosed
from gateway.fencing.token import Token

if TYPE_CHECKING:
    import psycopg
    from psycopg.sql import Composed

OPENING = 10.0
"""Seconds for which an acquire is tried again on a closed database: a gateway opens it at once, if there is one."""

_LOG = logging.getLogger("gateway.client")

# The server's messages for a refused login; libpq passes on only the sentence.
_NOT_LET_IN: Final = ("authentication failed", "no pg_hba.conf entry", "does not exist", "permission denied")


@dataclass(slots=True)
class _Line:
    """A connection, which serves one statement at a time."""

    connection: "psycopg.AsyncConnection[Any] | None" = None
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def close(self) -> None:
        connection, self.connection = self.connection, None
        if connection is not None:
            await connection.close()


class _Locks(LockService[H]):
    """Locks of a database. Each statement is a transaction of its own, by one of few connections."""

    service = "Postgres"

    def __init__(self, url: str, poll: float, timeout: float, clock: Clock) -> None:
        super().__init__(clock)
        with needs("postgres"):
            import psycopg  # noqa: PLC0415
            import psycopg.sql  # noqa: PLC0415
        self._psycopg = psycopg
        self._url = url
        self._at = _address(url)
        self.poll = poll
        self._timeout = timeout
        self._process = os.getpid()
        self._lines: defaultdict[str, _Line] = defaultdict(_Line)
        self._inherited: defaultdict[str, _Line] | None = None

    async def aclose(self) -> None:
        for line in self._lines.values():
            await line.close()
            # The next one may be of another event loop.
            line.turn = asyncio.Lock()

    async def _run(self, statement: "LiteralString | Composed", **values: object) -> tuple[Any, ...] | None:
        """One statement, which is its own transaction; its only row, if it has one."""
        return await self._run_by("requests", statement, values)

    async def _run_by(
        self, name: str, statement: "LiteralString | Composed", values: dict[str, Any]
    ) -> tuple[Any, ...] | None:
        """Do what ``_run`` does, by the line of this name."""
        if self._process != os.getpid():
            # A fork copies the parent's connections, and must not use them or close them.
            self._process, self._inherited, self._lines = os.getpid(), self._lines, defaultdict(_Line)
        line = self._lines[name]
        with self._translated():
            try:
                async with asyncio.timeout(self._timeout), line.turn:
                    if line.connection is None or line.connection.closed:
                        line.connection = await self._connect()
                    cursor = await self._execute(line.connection, statement, values)
                    return await cursor.fetchone() if cursor.description else None
            except (self._psycopg.OperationalError, TimeoutError):
                await line.close()
                raise

    async def _connect(self) -> "psycopg.AsyncConnection[Any]":
        try:
            # A transaction pooler has another session for each statement, and no prepared ones. The name is not that of
            # a session that ends with a lock.
            made = await self._psycopg.AsyncConnection.connect(
                self._url,
                autocommit=True,
                prepare_threshold=None,
                application_name="fencing",
                # Of several hosts, the one that is no standby.
                target_session_attrs="read-write",
            )
        except self._psycopg.ProgrammingError:
            # The error has words of the string, and one may be of the password.
            advice = "Write postgresql://role:password@host:port/database, with % escapes in the password."
            raise Refused("The connection string of Postgres cannot be read.", status=400, advice=advice) from None
        except self._psycopg.OperationalError as error:
            said = str(error).strip()
            if any(words in said for words in _NOT_LET_IN):
                raise Refused(f"Postgres does not let us in: {said}", status=401) from error
            raise
        return made

    async def _execute(
        self, connection: "psycopg.AsyncConnection[Any]", statement: "LiteralString | Composed", values: dict[str, Any]
    ) -> "psycopg.AsyncCursor[Any]":
        return await connection.execute(statement, values)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        errors = self._psycopg.errors
        try:
            yield
        except TimeoutError as error:
            raise Unavailable(f"Postgres at {self._at} has not answered within {self._timeout:g} s.") from error
        except self._psycopg.Error as error:
            if (meant := self._meaning(error)) is not None:
                raise meant from error
            if isinstance(error, (self._psycopg.OperationalError, errors.ReadOnlySqlTransaction)):
                raise Unavailable(f"Postgres at {self._at} cannot work just now: {error}") from error
            raise Refused(f"Postgres refuses: {error}.", status=400) from error

    @abstractmethod
    def _meaning(self, error: "psycopg.Error") -> FencingError | None:
        """Return what an error means to these locks. None for any other."""


# The locks of the lease service, in the database itself --------------------------------------------------------------

# The database may have another default.
_ISOLATION: Final = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED;"
_ASK: Final = """
SELECT outcome, lease, token, expires_in, held_by
FROM fencing.acquire(%(resource)s, %(holder)s, %(ttl)s, %(request)s, %(mode)s, %(wait)s)
"""
_KEEP: Final = "SELECT fencing.renew(%(resource)s, %(lease)s, %(ttl)s)"
_END: Final = "SELECT fencing.release(%(resource)s, %(holder)s, %(request)s)"
_BARRIER: Final = """
SET LOCAL lock_timeout = %(timeout)s;
SELECT fencing.hold(%(resource)s, %(token)s, %(holder)s)
"""


@dataclass(frozen=True, slots=True)
class LeaseHandle:
    """``request``: what the database knows an acquire by, however often it asks. ``lease`` is None until the grant."""

    resource: str
    holder: str
    request: str
    lease: uuid.UUID | None = None


class DatabaseLeases(_Locks[LeaseHandle]):
    """The locks of the schema ``fencing``, by its own functions: a gateway that is added later goes on with them.

    ``url``: of libpq, of a role with ``gateway guard install --grants``. ``poll``: seconds between two questions of a
    waiter, which has a place in the queue. ``timeout``: seconds for one statement.
    """

    handles = LeaseHandle
    shares = True
    queues = True

    def __init__(self, url: str, *, poll: float = 0.5, timeout: float = 5.0, clock: Clock = now) -> None:
        super().__init__(url, poll, timeout, clock)

    async def barrier(self, held: Held, token: str, holder: str | None) -> None:
        """Raise the fence: once this has returned, nothing older takes effect.

        It waits for transactions of older holders, on a connection of its own: renewals must not wait with it.
        Raises ``Unavailable`` if they last too long, and ``Stale``.
        """
        values = {"resource": held.resource, "token": token, "holder": holder, "timeout": f"{1000 * self._timeout:.0f}"}
        with self._translated():
            # The server gives up first, and says for what it has waited.
            async with asyncio.timeout(2 * self._timeout), await self._connect() as connection:
                await self._execute(connection, _BARRIER, values)

    async def holds(self, held: Held) -> bool:
        return await self._keep(held, self._handle(held), None) is not None

    async def _take(self, attempt: Attempt[LeaseHandle]) -> Held | NotAcquired:
        left = attempt.give_up - self._clock()
        patience = min(max(left, SHORTEST_TIMEOUT), LONGEST_TIMEOUT)
        retries, opening = Retries(patience), Retries(min(patience, OPENING))
        told = False
        resource, holder = attempt.resource, attempt.holder
        attempt.handle = handle = attempt.handle or LeaseHandle(resource, holder, uuid.uuid4().hex)
        while True:
            asked = self._clock()
            values = {"ttl": attempt.ttl, "mode": attempt.mode, "wait": left > 0, "request": handle.request}
            try:
                row = await whole(self._run(_ASK, resource=resource, holder=holder, **values))
                break
            except Unavailable as error:
                await (opening if error.code == DatabaseClosed.code else retries).pause(error)
                if not told:
                    _LOG.warning("Waiting for %s: %s", resource, error)
                    told = True
        assert row is not None
        outcome, lease, issued, expires_in, held_by = row
        if outcome == "granted":
            token, valid_until = Token.parse(issued), asked + min(expires_in, attempt.ttl)
            kept = replace(handle, lease=lease)
            return Held(resource, holder, token.value, valid_until, token.epoch, kept, mode=attempt.mode)
        if outcome == "exhausted":
            advice = "Have an administrator start a new epoch, through a gateway: gateway epoch (docs/policies.md)."
            raise FencingError(f"{resource} has used up the tokens of its epoch.", advice=advice)
        refused = NotAcquired(resource, holder=held_by, expires_in=expires_in)
        if outcome == "upgrade":
            # The holder shares the lock. To wait for it alone would be to wait for itself.
            raise refused
        return refused

    async def _execute(
        self, connection: "psycopg.AsyncConnection[Any]", statement: "LiteralString | Composed", values: dict[str, Any]
    ) -> "psycopg.AsyncCursor[Any]":
        """Run one transaction in one message: a client that is paused must not keep rows locked meanwhile."""
        cursor: psycopg.AsyncCursor[Any] = self._psycopg.AsyncClientCursor(connection)
        await cursor.execute(self._psycopg.sql.SQL(_ISOLATION) + self._psycopg.sql.SQL(statement), values)
        while cursor.nextset():
            pass
        return cursor

    async def _keep(self, held: Held, handle: LeaseHandle, ttl: float | None) -> float | None:
        # An acquire may wait for a row that a transaction has locked, and renewals must not wait with it.
        row = await self._run_by("renewals", _KEEP, {"resource": held.resource, "lease": handle.lease, "ttl": ttl})
        return None if row is None or row[0] is None else min(row[0], ttl or math.inf)

    async def _give_back(self, handle: LeaseHandle) -> None:
        await self._run(_END, resource=handle.resource, holder=handle.holder, request=handle.request)

    def _meaning(self, error: "psycopg.Error") -> FencingError | None:
        errors, said = self._psycopg.errors, error.diag
        if isinstance(error, errors.LockNotAvailable):
            return Unavailable(
                "A transaction of an older holder has written, and is still open.",
                advice="Try again once it has ended.",
            )
        if isinstance(error, (errors.UndefinedFunction, errors.InvalidSchemaName)):
            advice = "Install or upgrade it: gateway migrate."
            return Refused(
                f"The schema fencing is missing, or too old: {said.message_primary}.", status=404, advice=advice
            )
        if isinstance(error, errors.InsufficientPrivilege):
            advice = "Let the role acquire locks: gateway guard install TABLE --grants ROLE."
            return Refused(f"Postgres refuses: {said.message_primary}.", status=403, advice=advice)
        if (error.sqlstate or "")[:2] != "FN":
            return None
        message, hint = said.message_primary or "", said.message_hint
        if error.sqlstate == "FN504":
            hint = "Raises have to be in the journal first. Lock by a gateway: set GATEWAY_URL to its address."
            return Refused(message, status=409, advice=hint)
        facts = json.loads(said.message_detail or "{}")
        code = facts.pop("code", "")
        if error.sqlstate == "FN503":
            if code == DatabaseClosed.code:
                hint = "A running gateway opens it. Without one, the operator runs: gateway open --dsn OWNER."
            return Unavailable(message, advice=hint, code=code, facts=facts)
        return make(int((error.sqlstate or "")[2:]), code, message, hint, facts)


# A table of locks -----------------------------------------------------------------------------------------------------

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


@dataclass(frozen=True, slots=True)
class PostgresHandle:
    """Which hold it is: each acquire is one of its own."""

    resource: str
    lease: uuid.UUID


class PostgresSource(_Locks[PostgresHandle]):
    """Locks that are rows of a table. Needs the extra ``postgres``.

    ``url``: of libpq, ``postgresql://user@host/database``; a transaction pooler may stand between. ``table``: its name,
    with its schema if needed (``locks.fencing_lock``); ``install`` creates it. ``poll``: seconds between two looks of a
    waiter. ``timeout``: seconds for one statement. All statements use one connection.

    Leases expire by the clock of the database. A lease whose time is over is lost, even if the lock is free. Any of the
    waiters may be next.
    """

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
        super().__init__(url, poll, timeout, clock)
        self._table = self._psycopg.sql.Identifier(*table.split("."))

    async def install(self) -> None:
        """Make the table where there is none. Needs the right to create tables in its schema; the locks do not."""
        try:
            await self._run_at(TABLE)
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
            taken = await whole(self._run_at(_ACQUIRE, **values))
            if taken is not None:
                return attempt.held(taken[0], asked + attempt.ttl)
            refused = await self._look(resource)
        return refused or NotAcquired(resource, expires_in=0.0)

    async def _look(self, resource: str) -> NotAcquired | None:
        taken = await self._run_at(_LOOK, resource=resource)
        return None if taken is None else NotAcquired(resource, holder=taken[0], expires_in=taken[1])

    async def _keep(self, held: Held, handle: PostgresHandle, ttl: float) -> float | None:
        row = await self._run_at(_RENEW, resource=held.resource, lease=handle.lease, ttl=ttl)
        return None if row is None else ttl

    async def _give_back(self, handle: PostgresHandle) -> None:
        # The row stays, for its number.
        await self._run_at(_RELEASE, resource=handle.resource, lease=handle.lease)

    async def holds(self, held: Held) -> bool:
        lease = self._handle(held).lease
        return await self._run_at(_HOLDS, resource=held.resource, lease=lease) is not None

    async def _run_at(self, statement: LiteralString, **values: object) -> tuple[Any, ...] | None:
        return await self._run(self._psycopg.sql.SQL(statement).format(table=self._table), **values)

    def _meaning(self, error: "psycopg.Error") -> FencingError | None:
        errors = self._psycopg.errors
        if isinstance(error, errors.InsufficientPrivilege):
            advice = "The role needs USAGE on the schema, and SELECT, INSERT and UPDATE on the table."
            return Refused(f"Postgres refuses: {error}.", status=403, advice=advice)
        if isinstance(error, (errors.UndefinedTable, errors.InvalidSchemaName)):
            return Refused(f"There is no table: {error}", status=404, advice="Make it: await source.install()")
        if isinstance(error, errors.NumericValueOutOfRange):
            advice = "Have an administrator start a new epoch of the resource, and set the value of its row to 0."
            return FencingError("The row's number has come to its end.", advice=advice)
        return None


def _address(url: str) -> str:
    """Return hosts and ports of a connection string, without its user and password."""
    from psycopg import ProgrammingError, conninfo  # noqa: PLC0415 - an extra: the source has looked whether it is there

    try:
        named = conninfo.conninfo_to_dict(url)
    except ProgrammingError:  # a request finds out, and says so
        return "its address"
    host, port = str(named.get("host") or "localhost"), str(named.get("port") or "5432")
    return ", ".join(f"{one}:{port}" for one in host.split(",")) if "," not in port else f"{host}:{port}"
