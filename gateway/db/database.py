"""Statements and transactions: the one door to Postgres. ``gateway.db.pool`` has what its exceptions become."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from functools import partial
from typing import NamedTuple, Protocol, Self, TypeAlias, TypeVar, cast

import asyncpg

from gateway.batching import retrieve, shielded
from gateway.budget import SHARE
from gateway.db import roles
from gateway.db.pool import (
    FORBIDDEN,
    LOST,
    NOT_PREPARED,
    Lost,
    Session,
    SessionPool,
    SessionUse,
    is_read_only,
    leaves_sound,
    translated,
    wants_retry,
)
from gateway.db.roles import ActingBatch, ActingTogether, RoleStatements
from gateway.db.servers import APPLICATION, Servers, pins
from gateway.errors import Full, OutcomeUnknown, Overloaded, SqlError, Unavailable
from gateway.fencing.token import Token

Record: TypeAlias = asyncpg.Record
Result = TypeVar("Result")
Claims: TypeAlias = Sequence[tuple[str, Token]]

SHARED_SESSIONS = 4
"""Sessions for statements that share a trip, beside the ``pool_size`` others."""
SHARED_STATEMENT_TIMEOUT = 1.0
SHARED_LOCK_TIMEOUT = 0.1
"""Seconds, for each statement of a shared trip."""
_PROBE = 0.4  # of the time that a request waits for a session: a load balancer does not wait longer
SEARCHING_SESSIONS = 4
"""Sessions for searches of the record. Each comes to know hundreds of partitions, which takes its time and memory."""

_ATTEMPTS = 5
_PINNED = {
    "application_name": APPLICATION,
    "timezone": "UTC",
    "datestyle": "ISO, YMD",
    "intervalstyle": "iso_8601",
    "bytea_output": "hex",
    "extra_float_digits": "1",
    "default_transaction_isolation": "read committed",
    # A commit that was not confirmed is told of in a warning.
    "client_min_messages": "warning",
    # Citus hides its shards by a filter on each scan of pg_class. The driver's look-up of a type then takes seconds, on
    # each new session. Other servers take it for a setting without a meaning.
    "citus.override_table_visibility": "off",
}

# Each search is planned for its own values. To compile a plan of many days takes longer than it saves. Parallel workers
# would not keep the order of the days.
_SEARCHING = {"plan_cache_mode": "force_custom_plan", "jit": "off", "max_parallel_workers_per_gather": "0"}

# The settings among these whose changes the server reports by itself, under the names it uses then.
_REPORTED = {"TimeZone": "UTC", "DateStyle": "ISO, YMD", "IntervalStyle": "iso_8601"}

_SECURE = "SELECT set_config('fencing.secured', $1, true), set_config('fencing.looked', $2, true)"


class _RolledBack(Exception):
    """Ends a transaction that has only read."""


class Secured(NamedTuple):
    """Raises that are in the journal, as ``fencing.check_secured_v1`` reads them, and the term of its marker then."""

    raises: str
    looked: int


class Transaction:
    """One READ COMMITTED transaction under way. Errors in it are ours; nothing it did is kept unless it commits."""

    def __init__(self, session: Session, pinned: str, *, again: bool = False, at: str = "") -> None:
        """``pinned``: the statements that give the session its settings. ``at``: the address of the database.

        ``again``: the database has undone a first attempt, most likely for a deadlock.
        """
        self._session, self._pinned, self.again, self._at = session, pinned, again, at
        self._translated = translated(Unavailable, at)
        # The tokens that fences carry once it commits.
        self.claimed: list[tuple[str, Token]] = []

    async def fetch(self, sql: str, *arguments: object) -> list[Record]:
        with self._translated:
            return await self._session.fetch(sql, *arguments)

    async def fetchrow(self, sql: str, *arguments: object) -> Record | None:
        with self._translated:
            return await self._session.fetchrow(sql, *arguments)

    async def execute(self, sql: str, *arguments: object) -> None:
        with self._translated:
            await self._session.execute(sql, *arguments)

    async def raise_fences(self, sql: str, *arguments: object) -> int:
        """Run a statement that returns the fences that it raises, by ``resource``. Return how many it raises."""
        rows = await self.fetch(sql, *arguments)
        self.claimed += [(row["resource"], Token(row["epoch"], row["value"])) for row in rows]
        return len(rows)

    async def using(self, fetch: Callable[..., Awaitable[Result]], sql: str, arguments: tuple[object, ...]) -> Result:
        """Return the result of a statement by one of the ways in which a session can run it."""
        with self._translated:
            return await fetch(self._session, sql, *arguments)

    async def restore_pins(self) -> None:
        """Pin the session again, if code in this transaction has changed its settings for its time or longer."""
        await self.execute(f"RESET ALL; RESET ROLE; {self._pinned}")

    async def plan_for(self, role: str, rights: str | None) -> None:
        """Have all statements planned again, if this role has other rights than those of the session's plans."""
        if roles.planned_for(self._session).setdefault(role, rights) != rights:
            await self.execute("DISCARD PLANS")
            roles.planned_for(self._session)[role] = rights

    async def secure(self, secured: Secured) -> None:
        """Say which raises are in the journal."""
        await self.fetch(_SECURE, secured.raises, str(secured.looked))

    def expect_refused_writes(self) -> None:
        """Take a refused write (25006) for the statement's own fault, because the gateway made this read-only."""
        self._translated = translated(Unavailable, self._at, only_reads=True)


CommitClaims: TypeAlias = Callable[[Secured | None], Awaitable[tuple[object, Claims, Session]]]
"""Runs a transaction: its outcome, what the fences carry, and its session. It may be called several times. A call that
raises ``RaiseUnsecured`` has committed nothing.
"""


class Openings(Protocol):
    """Admits sessions to a database that is open for their run, and has raises stored where the journal needs them."""

    pinned: Mapping[str, str]
    """Settings of each session."""

    async def admit(self, session: Session) -> None:
        """Return once the database is open for the run of this session. Raises ``Unavailable`` if it is not."""

    async def claim(self, commit: CommitClaims, *, objects: bool = False) -> object:
        """Run a transaction that may raise fences, and return its outcome once it may be acknowledged.

        ``objects``: it announces an object write.
        """

    async def may_send(self, resource: str, token: Token, intended_at: datetime, term: int) -> bool:
        """Return whether the request of an object write may be sent, as ``gateway.journal.protocol.send`` decides."""


class Database:
    """Postgres, through sessions that are opened when they are needed and that survive a restart of the server.

    Every session is pinned to UTC and ISO dates, because resource names contain such values as text. Every session is
    also pinned to timeouts: a gateway that was paused inside a transaction must not hold a fence row for ever.
    """

    def __init__(
        self,
        dsn: str,
        *,
        pool_size: int = 16,
        share: float = SHARE,
        statement_timeout: float = 30.0,
        read_timeout: float = 10.0,
        lock_timeout: float = 10.0,
        idle_timeout: float = 5.0,
        connect_timeout: float = 5.0,
        openings: Openings | None = None,
        servers: Servers | None = None,
    ) -> None:
        """All timeouts are in seconds. Without ``openings``, no run is compared and no journal kept.

        ``share``: the part of the sessions that one caller may have. ``read_timeout``: of statements that ``read`` and
        ``fetchrow_read`` run. ``servers``: those of the DSN, if another database shares them.
        """
        self._openings = openings
        self.read_timeout = min(statement_timeout, read_timeout)
        self.servers = servers or Servers(dsn, connect_timeout)
        self.suspect = True
        """Whether a statement was refused for want of room or of a right since writing was tried."""
        connect = partial(
            self.servers.connect,
            admit=None if openings is None else openings.admit,
            command_timeout=statement_timeout + connect_timeout,
            statement_cache_size=512,
        )
        self._connect_apart = partial(self.servers.connect, {**_PINNED, **_SEARCHING, "statement_timeout": "0"})
        settings = {
            **_PINNED,
            **({} if openings is None else openings.pinned),
            "statement_timeout": _milliseconds(statement_timeout),
            "lock_timeout": _milliseconds(lock_timeout),
            "idle_in_transaction_session_timeout": _milliseconds(idle_timeout),
        }
        # Batched statements use short timeouts. A statement whose batch fails is retried alone.
        hasty = settings | {
            "statement_timeout": _milliseconds(min(statement_timeout, SHARED_STATEMENT_TIMEOUT)),
            "lock_timeout": _milliseconds(min(lock_timeout, SHARED_LOCK_TIMEOUT)),
        }
        self._pinned = pins(settings)
        self._sessions = SessionPool(
            partial(connect, settings), pool_size, connect_timeout, share=share, sound=_is_as_pinned
        )
        # Reads have sessions of their own, so that slow ones keep no write waiting.
        briefly = settings | {"statement_timeout": _milliseconds(self.read_timeout)}
        self._reading = SessionPool(
            partial(connect, briefly), -(-pool_size // 2), connect_timeout, share=share, sound=_is_as_pinned
        )
        self._shared = SessionPool(partial(connect, hasty), SHARED_SESSIONS, connect_timeout, sound=_is_as_pinned)
        self._searching = SessionPool(partial(connect, settings | _SEARCHING), SEARCHING_SESSIONS, connect_timeout)
        self._acting = {
            self._sessions: RoleStatements(settings),
            self._reading: RoleStatements(briefly),
            self._shared: RoleStatements(hasty),
        }
        self._probe_timeout = _PROBE * connect_timeout
        self._probe: asyncio.Future[object] | None = None

    def use(self) -> dict[str, SessionUse]:
        """How sessions are used: those for statements that share a trip, those for reads, and all others."""
        return {"own": self._sessions.use, "reading": self._reading.use, "shared": self._shared.use}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        if self._probe is not None:
            self._probe.cancel()
        await self._sessions.close()
        await self._reading.close()
        await self._shared.close()
        await self._searching.close()

    async def now(self) -> datetime:
        (row,) = await self.fetch("SELECT now() AS now")
        moment: datetime = row["now"]
        return moment

    async def check_answers(self) -> None:
        """Return if the database answers, whatever its load. Raises ``Unavailable`` if not, or if it cannot be asked.

        It is asked on a session for shared trips, because statements that last long have others. All who ask at one
        time share the question. If it gets no answer in time, an answer to any other statement shows the same.
        """
        before = self._answers
        if self._probe is None or self._probe.done():
            # asyncpg ends a session whose statement takes too long. The next question has another one.
            ask = partial(asyncpg.Connection.fetchrow, timeout=2 * self._probe_timeout)
            self._probe = asyncio.ensure_future(self._alone(ask, Unavailable, "SELECT 1", (), self._shared))
            self._probe.add_done_callback(retrieve)  # all who asked may have left
        try:
            async with asyncio.timeout(self._probe_timeout):
                await shielded(self._probe)
        except (Overloaded, TimeoutError) as error:
            if self._answers == before:
                raise Unavailable("The database has answered no statement for seconds.") from error

    @property
    def _answers(self) -> int:
        return sum(pool.answers for pool in (self._sessions, self._reading, self._shared, self._searching))

    async def fetch(self, sql: str, *arguments: object) -> list[Record]:
        return await self._alone(asyncpg.Connection.fetch, Unavailable, sql, arguments)

    async def fetchrow(self, sql: str, *arguments: object) -> Record | None:
        return await self._alone(asyncpg.Connection.fetchrow, Unavailable, sql, arguments)

    async def fetchrow_read(self, sql: str, *arguments: object) -> Record | None:
        """Return the first row of one statement of a caller that reads, on a session for such."""
        return await self._alone(asyncpg.Connection.fetchrow, Unavailable, sql, arguments, self._reading)

    async def search(self, sql: str, *arguments: object) -> list[Record]:
        return await self._alone(asyncpg.Connection.fetch, Unavailable, sql, arguments, self._searching)

    @asynccontextmanager
    async def apart(self) -> AsyncIterator[Session]:
        """Open a session beside all others, without a limit on its statements: for large reads."""
        with translated(Unavailable, self.servers.at, opening=True):
            session = await self._connect_apart()
        try:
            yield session
        finally:
            # The server gives up what is under way on it.
            session.terminate()

    async def fetchrow_write(self, sql: str, *arguments: object) -> Record | None:
        """Return the first row of one autocommitted writing statement.

        Raise ``OutcomeUnknown`` if the connection was lost under way: the server may have committed it. Raise it as
        well if the server committed it without its standby. Raise ``Unavailable`` if the server ended the statement,
        for example by a timeout: nothing is written then.
        """
        return await self._alone(asyncpg.Connection.fetchrow, OutcomeUnknown, sql, arguments)

    async def fetchmany_claim(
        self,
        sql: str,
        arguments: Sequence[Sequence[object]],
        claims: Callable[[list[Record]], Claims],
        *,
        objects: bool = False,
        patient: bool = False,
    ) -> list[Record]:
        """Do what ``fetchmany_write`` does for statements that may raise fences. Raise what ``run`` raises.

        ``claims``: what the fences carry, by all rows. ``objects``: they announce object writes.
        """
        sessions = self._sessions if patient else self._shared
        return await self._claim_by(asyncpg.Connection.fetchmany, sql, (arguments,), claims, sessions, objects=objects)

    async def _claim_by(
        self,
        fetch: Callable[..., Awaitable[Result]],
        sql: str,
        arguments: tuple[object, ...],
        claims: Callable[[Result], Claims],
        sessions: SessionPool,
        *,
        objects: bool = False,
    ) -> Result:
        """Run one statement that may raise fences. It goes by itself, unless the journal needs its raises first."""

        async def inside(transaction: Transaction) -> Result:
            result = await transaction.using(fetch, sql, arguments)
            transaction.claimed.extend(claims(result))
            return result

        async def commit(secured: Secured | None) -> tuple[object, Claims, Session]:
            if secured is not None:
                return await self._attempt(inside, secured, sessions)
            result, session = await self._on_a_session(fetch, OutcomeUnknown, sql, arguments, sessions)
            return result, claims(result), session

        if self._openings is None:
            return await self._alone(fetch, OutcomeUnknown, sql, arguments, sessions)
        return cast(Result, await self._openings.claim(commit, objects=objects))

    async def fetch_write(self, sql: str, *arguments: object) -> list[Record]:
        """All rows of one autocommitted statement that writes. Raises what ``fetchrow_write`` raises."""
        return await self._alone(asyncpg.Connection.fetch, OutcomeUnknown, sql, arguments)

    async def fetchmany_write(
        self, sql: str, arguments: Sequence[Sequence[object]], *, patient: bool = False
    ) -> list[Record]:
        """Return the rows of one writing statement for each of ``arguments``, in one round trip and one transaction.

        A statement may do several writes, which share its snapshot. If one statement fails, all are rolled back.
        ``patient``: on one of the sessions that wait longer.
        """
        sessions = self._sessions if patient else self._shared
        return await self._alone(asyncpg.Connection.fetchmany, OutcomeUnknown, sql, (arguments,), sessions)

    async def fetchmany(self, sql: str, arguments: Sequence[Sequence[object]]) -> list[Record]:
        """Return the rows of one reading statement for each of ``arguments``, in one round trip."""
        return await self._alone(asyncpg.Connection.fetchmany, Unavailable, sql, (arguments,), self._shared)

    async def write_acting(
        self, batch: ActingBatch | ActingTogether, claims: Callable[[list[Record]], Claims], *, alone: bool = False
    ) -> list[Record]:
        """Return a row for each member of a batch of writes under a role. Raise what ``fetchmany_claim`` raises.

        ``alone``: on one of the sessions that wait longer.
        """
        sessions = self._sessions if alone else self._shared
        fetch = self._acting[sessions].fetch
        if batch.claims is None:
            return await self._alone(fetch, OutcomeUnknown, roles.WRITE, (batch,), sessions)
        return await self._claim_by(fetch, roles.WRITE, (batch,), claims, sessions)

    async def read_acting(self, batch: ActingBatch, *, alone: bool = False) -> list[Record]:
        """Return a row for each member of a batch of reads under a role. ``alone``: on a session for reads."""
        sessions = self._reading if alone else self._shared
        return await self._alone(self._acting[sessions].fetch, Unavailable, roles.READ, (batch,), sessions)

    async def run(self, work: Callable[[Transaction], Awaitable[Result]]) -> Result:
        """Run ``work`` in a transaction and commit it. Any error of ``work`` rolls everything back.

        Serialization failures and deadlocks are retried a few times, from the start. Raise ``Unavailable`` if nothing
        is written, and ``OutcomeUnknown`` if the connection was lost during the commit, or if no standby has it. Raises
        of fences are stored in the journal first, where its mode wants it. ``work`` is then run again.
        """
        if self._openings is None:
            return (await self._attempt(work))[0]
        return cast(Result, await self._openings.claim(partial(self._attempt, work)))

    async def read(self, work: Callable[[Transaction], Awaitable[Result]]) -> Result:
        """Run ``work``, which reads for a caller, in a transaction on a session for reads. Raise what ``run`` raises.

        The transaction is rolled back, so nothing that it did takes effect.
        """
        found: list[Result] = []

        async def inside(transaction: Transaction) -> None:
            found.append(await work(transaction))
            raise _RolledBack

        with suppress(_RolledBack):
            await self._attempt(inside, sessions=self._reading)
        return found[0]

    async def may_send(self, resource: str, token: Token, intended_at: datetime, term: int) -> bool:
        """Return whether the request of an object write may be sent, whose intent was committed in this term.

        False, and ``JournalUnusable``: another database may have been opened, and the intent must be given up.
        """
        return self._openings is None or await self._openings.may_send(resource, token, intended_at, term)

    async def _attempt(
        self,
        work: Callable[[Transaction], Awaitable[Result]],
        secured: Secured | None = None,
        sessions: SessionPool | None = None,
    ) -> tuple[Result, Claims, Session]:
        for attempt in range(_ATTEMPTS):
            try:
                return await self._run_once(work, secured, sessions or self._sessions, again=attempt > 0)
            except Unavailable as error:
                if not wants_retry(error) or attempt == _ATTEMPTS - 1:
                    raise
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def _alone(
        self,
        fetch: Callable[..., Awaitable[Result]],
        lost: type[Lost],
        sql: str,
        arguments: tuple[object, ...],
        sessions: SessionPool | None = None,
    ) -> Result:
        """One statement by itself."""
        return (await self._on_a_session(fetch, lost, sql, arguments, sessions))[0]

    async def _on_a_session(
        self,
        fetch: Callable[..., Awaitable[Result]],
        lost: type[Lost],
        sql: str,
        arguments: tuple[object, ...],
        sessions: SessionPool | None = None,
    ) -> tuple[Result, Session]:
        sessions = sessions or self._sessions
        with translated(Unavailable, self.servers.at, opening=True):
            session = await sessions.take()
        try:
            with translated(lost, self.servers.at):
                result = await fetch(session, sql, *arguments)
            await self._check_lasting(session)
        except BaseException as error:
            self._note(error)
            if leaves_sound(error.__cause__):
                sessions.give(session)  # the server has answered: it is ready for the next
            else:
                sessions.drop(session)
            raise
        sessions.give(session)
        return result, session

    async def _run_once(
        self,
        work: Callable[[Transaction], Awaitable[Result]],
        secured: Secured | None,
        sessions: SessionPool,
        *,
        again: bool,
    ) -> tuple[Result, Claims, Session]:
        with translated(Unavailable, self.servers.at, opening=True):
            session = await sessions.take()
        transaction = session.transaction(isolation="read_committed")
        try:
            with translated(Unavailable, self.servers.at):
                await transaction.start()
        except BaseException:
            # asyncpg takes its session for one inside a transaction from then on, whatever the server says.
            sessions.drop(session)
            raise
        try:
            try:
                inside = Transaction(session, self._pinned, again=again, at=self.servers.at)
                if secured is not None:
                    await inside.secure(secured)
                result = await work(inside)
            except BaseException as error:
                self._note(error)
                # The server rolls back the transaction of a session that is lost, before the rollback or during it.
                with suppress(asyncpg.PostgresError, *LOST):
                    if not session.is_closed():
                        await transaction.rollback()
                refused_write = isinstance(error, Unavailable) and is_read_only(error.__cause__)
                if refused_write or (isinstance(error, SqlError) and error.sqlstate == NOT_PREPARED):
                    session.terminate()
                raise
            with translated(OutcomeUnknown, self.servers.at):
                await transaction.commit()
            await self._check_lasting(session)
        finally:
            # One whose transaction could be ended neither way is still in it, and is not reused.
            sessions.give(session)
        return result, inside.claimed, session

    def _note(self, error: BaseException) -> None:
        forbidden = isinstance(error, SqlError) and error.sqlstate == FORBIDDEN
        self.suspect = self.suspect or forbidden or isinstance(error, Full)

    async def _check_lasting(self, session: Session) -> None:
        """Raise ``OutcomeUnknown`` if a failover could undo the commit, or has done so."""
        if session in self.servers.unconfirmed:
            self.servers.unconfirmed.discard(session)
            raise OutcomeUnknown("The database committed it, and no standby has confirmed that it has it.")
        if self.servers.watched and not await self.servers.leads(session):
            raise OutcomeUnknown("The database committed it, and another server has taken over.")


def _is_as_pinned(session: Session) -> bool:
    """Return whether no code in the database has changed the settings that names depend on, as far as the server
    reported.

    The server reports it before the statement is over, at no cost. A statement that is known to run
        code pins the settings again in any case (``gateway.db.settings``). A default or a check may run code as well.
    """
    reported = session.get_settings()
    for name, value in _REPORTED.items():  # noqa: SIM110 - a generator takes twice as long
        if getattr(reported, name, value) != value:
            return False
    return True


def _milliseconds(seconds: float) -> str:
    return str(max(1, round(seconds * 1000)))
