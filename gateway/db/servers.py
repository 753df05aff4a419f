"""Open sessions with the server that takes writes: one of those that a DSN names, perhaps behind a pooler.

asyncpg knows several hosts too, but gives all of them one timeout. A server that is paused accepts connections and
never answers, so it would use up the time for all others (decision 069).
"""

import re
import uuid
from collections.abc import Mapping
from typing import Any
from weakref import WeakSet

import asyncpg

from gateway.db.pool import Session
from gateway.errors import SessionsShared

APPLICATION = "fencing-gateway"

_SEVERAL = re.compile(r"(postgres(?:ql)?://(?:[^/?#]*@)?)([^/?#@]*,[^/?#@]*)(.*)")
# The server is gone, is starting or stopping, or takes no writes: another one may.
_ELSEWHERE = (OSError, TimeoutError, asyncpg.InternalClientError, asyncpg.PostgresConnectionError)
_NOT_NOW = "57"
# PostgreSQL translates the text of a warning, and not the name of the function that issues it.
_WAITS_FOR_STANDBY = "SyncRepWaitForLSN"


def pins(settings: Mapping[str, str]) -> str:
    """Return the statements that give a session these settings, whatever a pooler did with its startup parameters.

    Acknowledged commits survive a crash of the server, whatever the database's default is. A stronger setting of
    ``synchronous_commit`` (``remote_apply``, say) is left alone.
    """
    each = ", ".join(f"set_config('{name}', '{value}', false)" for name, value in settings.items())
    return (
        f"SELECT {each}; SELECT set_config('synchronous_commit', 'on', false) "
        "WHERE current_setting('synchronous_commit') IN ('off', 'local')"
    )


class Servers:
    """The servers of one DSN, and the sessions with them."""

    def __init__(self, dsn: str, timeout: float) -> None:
        """``timeout``: seconds to open a session in, shared by the servers that are tried."""
        self._dsns = _one_by_one(dsn)
        self._share = timeout / len(self._dsns)
        self._sessions: WeakSet[Session] = WeakSet()
        self._unconfirmed: WeakSet[Session] = WeakSet()
        self._kept = False

    async def connect(self, pinned: Mapping[str, str], **settings: Any) -> Session:
        """Open a session with these settings.

        Raise ``SessionsShared`` if a pooler gives the session to others between transactions.
        """
        session = await self.reach(pinned, **settings)
        try:
            own = f"SELECT WHERE pg_backend_pid() = {session.get_server_pid()}"
            direct = await session.execute(f"{pins(pinned)}; {own}") == "SELECT 1"
            if not direct and not self._kept:
                await self._check_pooler(session)
                self._kept = True
        except BaseException:
            session.terminate()
            raise
        session.add_log_listener(self._hear)
        return session

    async def reach(self, parameters: Mapping[str, str], **settings: Any) -> Session:
        """Open a session with the first server that accepts it, the one of the last session before all others.

        ``parameters``: its settings, as far as a pooler passes them on.
        """
        lost: BaseException | None = None
        for dsn in tuple(self._dsns):
            try:
                session = await _open(dsn, parameters, timeout=self._share, **settings)
            except _ELSEWHERE as error:
                lost = error
            except asyncpg.PostgresError as error:
                if not (error.sqlstate or "").startswith(_NOT_NOW):
                    raise
                lost = error
            else:
                if dsn != self._dsns[0]:
                    self._move_to(dsn)
                self._sessions.add(session)
                return session
        assert lost is not None
        raise lost

    def is_confirmed(self, session: Session) -> bool:
        """Return whether no commit of the session since the last call was left waiting for its standby.

        PostgreSQL reports such a commit as a success, with a warning: it is on the disk of this server only.
        """
        if session in self._unconfirmed:
            self._unconfirmed.discard(session)
            return False
        return True

    def _hear(self, session: Any, message: asyncpg.PostgresLogMessage) -> None:
        if message.server_source_function == _WAITS_FOR_STANDBY:
            self._unconfirmed.add(session)

    def _move_to(self, dsn: str) -> None:
        """Prefer this server from now on, and end the sessions with the others.

        Statements on a paused server would wait for it until their timeout.
        """
        self._dsns.remove(dsn)
        self._dsns.insert(0, dsn)
        for session in tuple(self._sessions):
            session.terminate()
        self._sessions.clear()

    async def _check_pooler(self, session: Session) -> None:
        """Raise ``SessionsShared`` if this session and another one do not keep what each of them sets.

        A pooler that has one server session gives it to both. One that takes its server sessions in turn gives another
        one to the two looks in a row.
        """
        other = await self.reach({"application_name": APPLICATION})
        try:
            marks = {session: uuid.uuid4().hex, other: uuid.uuid4().hex}
            for one, mark in marks.items():
                await one.execute(f"SELECT set_config('fencing.session', '{mark}', false)")
            for one in (session, session, other):
                look = f"SELECT WHERE current_setting('fencing.session', true) = '{marks[one]}'"
                if await one.execute(look) != "SELECT 1":
                    raise SessionsShared
        finally:
            other.terminate()


async def _open(dsn: str, parameters: Mapping[str, str], **settings: Any) -> Session:
    try:
        opened: Session = await asyncpg.connect(dsn, server_settings=dict(parameters), **settings)
    except asyncpg.ProtocolViolationError:
        # A pooler refuses startup parameters that it does not know. The session gets the same settings once it is open.
        named = {"application_name": parameters["application_name"]}
        opened = await asyncpg.connect(dsn, server_settings=named, **settings)
    return opened


def _one_by_one(dsn: str) -> list[str]:
    """Return a DSN for each of the hosts of this one."""
    if (several := _SEVERAL.fullmatch(dsn)) is None:
        return [dsn]
    before, hosts, after = several.groups()
    return [f"{before}{host}{after}" for host in hosts.split(",")]
