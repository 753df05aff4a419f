"""Open sessions with Postgres, handed out one at a time, and what the driver's exceptions become.

asyncpg's own pool takes 50 µs for each statement, and this one 25. It resets sessions and releases them
in a task of their own. The gateway never changes settings of its sessions, so neither is needed. If foreign code in the
database changes a reported setting, the session is not used again.
"""

import asyncio
import os
import re
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, TypeGuard

import asyncpg

from gateway.budget import Budget, Room
from gateway.errors import (
    AccessRefused,
    ForOperator,
    Full,
    GatewayError,
    OutcomeUnknown,
    RaiseUnsecured,
    SqlError,
    Unavailable,
)

Session: TypeAlias = "asyncpg.Connection[asyncpg.Record]"

_GOODBYE = 2.0
"""Seconds that a server has to end a session."""


Lost: TypeAlias = Unavailable | OutcomeUnknown

LOST: tuple[type[BaseException], ...] = (
    OSError,
    TimeoutError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.PostgresConnectionError,
)
"""Errors of a session that was lost, or never opened. The caller decides whether a statement under way took effect."""

_ERRNO = re.compile(r"\[Errno (\d+)\]")

# Errors of fencing.check_secured_v1: raises that are not in the journal, and a database that was opened too long ago.
UNSECURED, _BEHIND = "FN504", "FN505"
# The database undid the transaction and asks for it again.
_AGAIN = (asyncpg.SerializationError, asyncpg.DeadlockDetectedError, asyncpg.InvalidCachedStatementError)

# Errors of the server, not of the statement: by class, or by the whole SQLSTATE. The statement is
# undone, and may succeed another time: connections behind the server, timeouts and cancellations, want of memory or
# disk, conflicts between transactions. A server that takes no writes has become a standby, or is being maintained.
_PASSING = ("08", "40", "53", "57", "72", "25006", "25P03", "25P04", "55P03")
_READ_ONLY = "25006"
_COMPLETION_UNKNOWN = "40003"
# A prepared statement is not there. Code in the database has removed it, maybe with others.
NOT_PREPARED = "26000"
# Errors of a server that grants no session: wrong credentials, no such database, no right to connect to it.
_REFUSES_SESSIONS = ("28", "3D", "42501")
# It grants one later, so a gateway that starts waits for it.
_TOO_MANY_SESSIONS = "53300"
_DISK_FULL = "53100"
FORBIDDEN = "42501"
_START = "Start the database, or correct postgres.dsn."
_CORRECT = "Correct the role, the password or the name of the database in postgres.dsn, or the server's pg_hba.conf."
_FEWER_SESSIONS = "Raise max_connections of the database, or lower postgres.pool_size."
_MAKE_ROOM = "Make room on the disk of the database."
_ENDS_THE_SESSION = ("FATAL", "PANIC")


class translated:  # noqa: N801 - reads as a phrase at its call sites
    """Turns asyncpg's exceptions into ours. ``lost`` is what a lost connection means at this point.

    ``only_reads``: the transaction was made read-only on purpose, so a refused write is the statement's own fault.
    ``at``: host, port and name of the database. ``opening``: a session is being opened.
    """

    def __init__(self, lost: type[Lost], at: str = "", *, only_reads: bool = False, opening: bool = False) -> None:
        self._lost, self._only_reads, self._at, self._opening = lost, only_reads, at, opening

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is None:
            return
        if is_answer(error):
            raise self._of_server(error) from error
        # asyncpg's complaint about an argument it cannot encode is an InterfaceError too; that one is our own mistake.
        if isinstance(error, LOST) and not isinstance(error, ValueError):
            raise self._of_connection(heard(error)) from error

    def _of_connection(self, heard: str) -> Lost:
        said = "The database cannot be reached." if self._opening else "The database connection was lost."
        return self._lost(said, operator=ForOperator(_START, self._at, heard))

    def _of_server(self, error: asyncpg.PostgresError) -> Lost | SqlError | RaiseUnsecured:
        sqlstate, message = error.sqlstate or "XX000", error.message or str(error)
        if ends_the_session(error):
            if sqlstate.startswith((*_REFUSES_SESSIONS, _TOO_MANY_SESSIONS)):
                remedy = _FEWER_SESSIONS if sqlstate == _TOO_MANY_SESSIONS else _CORRECT
                return AccessRefused(
                    f"The database refuses the gateway a session: {message}.", operator=ForOperator(remedy, self._at)
                )
            return self._of_connection(message)
        if sqlstate == _COMPLETION_UNKNOWN:
            return self._lost(f"The database does not know the outcome: {message}.")
        if sqlstate in (UNSECURED, _BEHIND):
            return RaiseUnsecured((error.detail or "") if sqlstate == UNSECURED else "")
        if isinstance(error, asyncpg.LockNotAvailableError):
            return Unavailable("Another write of this resource is still under way.")
        if sqlstate == _READ_ONLY and self._only_reads:
            return SqlError(sqlstate, message, detail=error.detail, hint=error.hint)
        if sqlstate == _DISK_FULL:
            return Full("A disk of the database is full.", operator=ForOperator(_MAKE_ROOM, self._at, message))
        if sqlstate.startswith(_PASSING) or isinstance(error, _AGAIN):
            return Unavailable(f"The database ended the statement: {message}.")
        return SqlError(sqlstate, message, detail=error.detail, hint=error.hint)


def heard(error: BaseException) -> str:
    """Return the system's words about a failed connection. The driver's may contain what it connects with."""
    if isinstance(error, TimeoutError):
        return "timed out"
    if isinstance(error, OSError):
        # For several addresses of one name, the event loop makes one text of all errors.
        number = error.errno or int((_ERRNO.search(str(error)) or ["", "0"])[1])
        return os.strerror(number) if number > 0 else error.strerror or type(error).__name__
    return type(error).__name__


def wants_retry(error: GatewayError) -> bool:
    """Return whether the database undid the transaction because of others, and wants it from the start."""
    return isinstance(error.__cause__, _AGAIN)


def refuses_sessions(error: Unavailable) -> bool:
    """Return whether the server can be reached, but grants the gateway no session."""
    cause = error.__cause__
    return is_answer(cause) and ends_the_session(cause) and (cause.sqlstate or "").startswith(_REFUSES_SESSIONS)


def is_answer(error: BaseException | None) -> TypeGuard[asyncpg.PostgresError]:
    """Return whether the server said this. asyncpg uses the same classes for what it finds out itself."""
    return isinstance(error, asyncpg.PostgresError) and error.severity is not None


def leaves_sound(error: BaseException | None) -> bool:
    """Return whether the session can be used again after this."""
    return (
        is_answer(error) and not ends_the_session(error) and not is_read_only(error) and error.sqlstate != NOT_PREPARED
    )


def is_read_only(error: BaseException | None) -> bool:
    """Return whether the server takes no writes, such as one that was a primary before."""
    return is_answer(error) and error.sqlstate == _READ_ONLY


def ends_the_session(error: asyncpg.PostgresError) -> bool:
    # The first is the same in all languages of the server. Poolers may send only the second.
    return (error.severity_en or error.severity) in _ENDS_THE_SESSION


@dataclass(frozen=True, slots=True)
class SessionUse:
    """Sessions in use and idle, out of ``limit``, and how many wait for one."""

    limit: int
    in_use: int
    idle: int
    waiting: int


class SessionPool:
    """At most ``limit`` sessions, opened when they are needed, and shared between callers."""

    def __init__(
        self,
        connect: Callable[[], Awaitable[Session]],
        limit: int,
        timeout: float,
        *,
        share: float = 1.0,
        sound: Callable[[Session], bool] = lambda _: True,
    ) -> None:
        """Open nothing yet. ``timeout``: seconds to wait for a session. ``share``: see ``Budget``.

        ``sound``: whether a session may be used again.
        """
        self._connect, self._sound = connect, sound
        self._budget = Budget(limit, "sessions with the database", share=share, patience=timeout)
        self._idle: deque[Session] = deque()
        self._rooms: dict[Session, Room] = {}
        self.answers = 0
        """How often a session has come back after an answer. Only a change of it means something."""
        self._closed = False

    @property
    def use(self) -> "SessionUse":
        budget = self._budget
        return SessionUse(budget.size, budget.used, len(self._idle), budget.waiting)

    async def take(self) -> Session:
        """Return a session for the caller alone, until it is given back or dropped.

        Raises ``Overloaded`` where none gets free in time, and what connecting raises.
        """
        room = await self._budget.take(1)
        try:
            session = self._reusable() or await self._connect()
        except BaseException:
            self._budget.give(room)
            raise
        self._rooms[session] = room
        return session

    def give(self, session: Session) -> None:
        """Give a session back whose last statement is over. One that is still inside a transaction is not reused."""
        if self._closed or session.is_closed() or session.is_in_transaction() or not self._sound(session):
            self.drop(session)
            return
        self.answers += 1
        self._idle.append(session)
        self._budget.give(self._rooms.pop(session))

    def drop(self, session: Session) -> None:
        """Drop a session of unknown state. The server rolls back what it had not committed."""
        session.terminate()
        self._budget.give(self._rooms.pop(session))

    async def close(self) -> None:
        """Close what is idle; what is in use goes when it is given back."""
        self._closed = True
        idle, self._idle = self._idle, deque()
        await asyncio.gather(*map(_close, idle))

    def _reusable(self) -> "Session | None":
        while self._idle:
            session = self._idle.pop()
            if not session.is_closed():
                return session
        return None


async def _close(session: Session) -> None:
    """Close a session. A server that is paused or gone does not answer."""
    # In each case asyncpg has closed the connection before it raises.
    with suppress(*LOST):
        await session.close(timeout=_GOODBYE)


FOLDER = Path(__file__).with_name("queries")

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)


def columns(rows: Iterable[Sequence[Any]], number: int) -> list[Sequence[Any]]:
    """Return rows as columns, as statements take them. There are so many columns even without rows."""
    return list(zip(*rows, strict=True)) or [()] * number


def load(subject: str) -> dict[str, str]:
    """Return the queries of ``gateway/db/queries/{subject}.sql`` by name."""
    pieces = _NAME.split((FOLDER / f"{subject}.sql").read_text())
    return {name: body.strip() for name, body in zip(pieces[1::2], pieces[2::2], strict=True)}
