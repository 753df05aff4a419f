"""Open sessions with the server that takes writes: one of those that a DSN names, perhaps behind a pooler.

asyncpg knows several hosts too, but asks one after the other, with one timeout for all. A server that is paused accepts
connections and never answers. A former primary answers as if it were one still (decision 069).
"""

import asyncio
import re
import uuid
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from time import monotonic
from typing import Any, TypeAlias
from urllib.parse import parse_qsl, unquote, urlencode
from weakref import WeakSet

import asyncpg

from gateway.db.pool import Session
from gateway.errors import SessionsShared

Admit: TypeAlias = Callable[[Session], Awaitable[None]]

APPLICATION = "fencing-gateway"
UNREADABLE = "It is not the address of a database."
"""The words of the ``ValueError`` for a DSN that cannot be read."""

_PORT = "5432"
_DSN = re.compile(r"(?P<before>postgres(?:ql)?://(?:[^/?#]*@)?)(?P<hosts>[^/?#@]*)(?P<path>[^?#]*)(?:\?(?P<query>.*))?")
# The server is gone, is starting or stopping, or takes no writes: another one may.
_ELSEWHERE = (OSError, TimeoutError, asyncpg.InternalClientError, asyncpg.PostgresConnectionError)
_NOT_NOW = "57"
# PostgreSQL translates the text of a warning, and not the name of the function that issues it.
_WAITS_FOR_STANDBY = "SyncRepWaitForLSN"

# The name of a segment begins with the timeline. A standby writes none.
_TIMELINE = """
SELECT CASE WHEN NOT pg_is_in_recovery()
    THEN ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::integer END
"""
_PAUSE = 0.5
"""Seconds between two looks at the servers."""
_LOOK = 1.0
"""Seconds that a look takes at most."""
_OTHERS = 0.5
"""Seconds that the other servers get to answer, once one takes writes.

They get nearly ``_TRUSTED`` if the servers were out of sight for that long, and are asked again. The first answer may
be that of a former primary, back from a pause. Its successor may have been a standby when it was asked, or be slow.
"""
_TRUSTED = 3.0
"""Seconds after a look in which the answers of its server are trusted. No standby takes over within this time."""


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
    def __init__(self, dsn: str, timeout: float) -> None:
        """``timeout``: seconds to open a session in, a third of them for each attempt if there are several servers."""
        # The server of before, then all of them at once, then the one that was found.
        self._dsns = _one_by_one(dsn)
        self._primary = self._dsns[0]
        self.at = ", ".join(dict.fromkeys(map(address_of, self._dsns)))
        """Host, port and name of the database, for operators."""
        self._timeout = timeout if len(self._dsns) == 1 else timeout / 3
        self._looking = asyncio.Lock()
        self.watched = False
        """Whether a session may be with a server that another one has replaced."""
        self.unconfirmed: WeakSet[Session] = WeakSet()
        """Sessions with a commit that was left waiting for its standby. The answer to the commit takes it out.

        PostgreSQL reports such a commit as a success, with a warning: it is on the disk of this server only.
        """
        # Of the last look that has found a server: when the others were asked, and its end.
        self._seen = self._looked = float("-inf")
        # Sessions to ask the servers on, kept while they are watched.
        self._asked: dict[str, Session] = {}
        self._sessions: WeakSet[Session] = WeakSet()
        self._opening: set[asyncio.Future[Session]] = set()
        self._kept = False

    async def connect(self, pinned: Mapping[str, str], admit: Admit | None = None, **settings: Any) -> Session:
        """Open a session with these settings. ``admit`` raises ``Unavailable`` for a session that must not write.

        Raise ``SessionsShared`` if a pooler gives the session to others between transactions.
        """
        session = await self.reach(pinned, **settings)
        try:
            own = f"SELECT WHERE pg_backend_pid() = {session.get_server_pid()}"
            direct = await session.execute(f"{pins(pinned)}; {own}") == "SELECT 1"
            if not direct and not self._kept:
                await self._check_pooler(session)
                self._kept = True
            if admit is not None:
                await admit(session)
        except BaseException:
            session.terminate()
            raise
        session.add_log_listener(self._hear)
        return session

    async def reach(self, parameters: Mapping[str, str], **settings: Any) -> Session:
        """Open a session with the server that takes writes.

        ``parameters``: its settings, as far as a pooler passes them on.
        """
        session = None
        while session is None:
            tried = self._primary
            try:
                session = await self._open_unless_replaced(tried, parameters, **settings)
            except (*_ELSEWHERE, asyncpg.PostgresError) as error:
                if len(self._dsns) == 1 or not _may_be_elsewhere(error):
                    raise
                await self._look(self._timeout, tried)
                tried = self._primary
                session = await self._open(tried, parameters, **settings)
            if session is not None and self._primary != tried:
                # Another server has taken over meanwhile. A former primary that continues would never confirm a commit.
                session.terminate()
                session = None
        self._sessions.add(session)
        return session

    async def watch(self) -> None:
        """Look for the server that takes writes, time and again, and end the sessions with any other one.

        Statements on a paused server would wait for it until their timeout. A single server is not watched.
        """
        if len(self._dsns) == 1:
            return
        self.watched = True
        try:
            while True:
                with suppress(Exception):  # none of them takes writes at the moment, whatever the reason
                    await self._look(_LOOK)
                await asyncio.sleep(_PAUSE)
        finally:
            self.watched = False
            self._stop_asking()

    async def leads(self, session: Session) -> bool:
        """Return whether the answer of this session is from the server that takes writes.

        A server that was paused continues as if it were the primary still. Without a synchronous standby, it would
        acknowledge commits that its successor does not have. Call it only while the servers are watched.
        """
        if monotonic() - self._seen > _TRUSTED:
            try:
                await self._look(_LOOK, unless_seen=True)
            except Exception:  # noqa: BLE001 - no server says that it takes writes
                return False
        return session in self._sessions

    def _hear(self, session: Any, message: asyncpg.PostgresLogMessage) -> None:
        if message.server_source_function == _WAITS_FOR_STANDBY:
            self.unconfirmed.add(session)

    async def _open_unless_replaced(self, dsn: str, parameters: Mapping[str, str], **settings: Any) -> "Session | None":
        """Open a session with a server. Return None if another one takes over meanwhile: a paused one never answers."""
        opening = asyncio.ensure_future(self._open(dsn, parameters, **settings))
        self._opening.add(opening)
        try:
            await asyncio.wait([opening])
        except asyncio.CancelledError:
            opening.add_done_callback(_end)  # it may be open already
            opening.cancel()
            raise
        finally:
            self._opening.discard(opening)
        return None if opening.cancelled() else opening.result()

    async def _open(self, dsn: str, parameters: Mapping[str, str], **settings: Any) -> Session:
        settings = {"timeout": self._timeout, **settings}
        if len(self._dsns) > 1:
            settings["target_session_attrs"] = "read-write"
        opened: Session
        try:
            opened = await asyncpg.connect(dsn, server_settings=dict(parameters), **settings)
        except asyncpg.ProtocolViolationError:
            # A pooler refuses startup parameters that it does not know. The session gets the same settings once it is
            # open.
            named = {"application_name": parameters["application_name"]}
            opened = await asyncpg.connect(dsn, server_settings=named, **settings)
        except (ValueError, OverflowError):
            # The driver's words may repeat the password.
            raise ValueError(UNREADABLE) from None
        return opened

    async def _look(self, limit: float, lost: str | None = None, *, unless_seen: bool = False) -> None:
        """Find the server that takes writes, in ``limit`` seconds, and move to it. Raises what connecting raises.

        ``lost``: the one that did not answer. Nothing is done if another one was found meanwhile; with ``unless_seen``,
        if the look of another statement can be trusted.
        """
        async with self._looking:
            if lost not in (None, self._primary) or (unless_seen and monotonic() - self._seen <= _TRUSTED):
                return
            try:
                primary, asked = await self._find(limit)
                self._move_to(primary)
            finally:
                if not self.watched:
                    self._stop_asking()
            self._seen, self._looked = asked, monotonic()

    async def _find(self, limit: float) -> tuple[str, float]:
        """Return the DSN of the server that takes writes; of several, that on the newest timeline.

        With it comes the time from which on its answers can be trusted: all other servers were asked then or later.
        """
        asked = monotonic()
        asking = {asyncio.ensure_future(self._ask(dsn)): dsn for dsn in self._dsns}
        waiting, early, answers, until = set(asking), set(asking), list[tuple[int, str]](), asked + limit
        try:
            while waiting:
                done, waiting = await asyncio.wait(
                    waiting, timeout=max(0.0, until - monotonic()), return_when=asyncio.FIRST_COMPLETED
                )
                if not done:
                    break
                is_first = not answers
                answers += [one.result() for one in done if one.exception() is None]
                if not answers:
                    continue
                # The first look of all has no server to mistrust.
                if is_first and self._looked > 0 and monotonic() - self._looked > _TRUSTED:
                    asked = monotonic()
                    until = asked + _TRUSTED - _OTHERS  # so the answer of the look can be trusted for a moment
                elif is_first:
                    until, early = min(until, monotonic() + _OTHERS), set()
                # A standby that said no before the first answer may have taken over since.
                for one in [one for one in early if one.done()]:
                    early.discard(one)
                    if one.exception() is not None:
                        again = asyncio.ensure_future(self._ask(asking[one]))
                        asking[again] = asking[one]
                        waiting.add(again)
            if answers:
                return max(answers)[1], asked
            errors = [error for one in asking if one.done() and (error := one.exception()) is not None]
            raise next((one for one in errors if not _may_be_elsewhere(one)), TimeoutError("No server takes writes."))
        finally:
            for one in asking:
                one.cancel()
            await asyncio.gather(*asking, return_exceptions=True)

    async def _ask(self, dsn: str) -> tuple[int, str]:
        """Return the timeline of a server. Raises what connecting raises, also for a standby."""
        session = self._asked.pop(dsn, None)
        if session is None or session.is_closed():
            session = await self._open(dsn, {"application_name": f"{APPLICATION} looking"})
        try:
            timeline = await session.fetchval(_TIMELINE)
        except BaseException:
            session.terminate()
            raise
        self._asked[dsn] = session
        if timeline is None:
            raise ConnectionRefusedError("The server is a standby.")
        return timeline, dsn

    def _stop_asking(self) -> None:
        for session in self._asked.values():
            session.terminate()
        self._asked.clear()

    def _move_to(self, dsn: str) -> None:
        """Open sessions with this server from now on, and end those with another one."""
        if dsn == self._primary:
            return
        self._primary = dsn
        for opening in self._opening:
            opening.cancel()
        for session in tuple(self._sessions):
            # terminate() would take the protocol away from under a statement that is being prepared.
            session._transport.abort()  # type: ignore[attr-defined]  # noqa: SLF001
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


def _end(opening: "asyncio.Future[Session]") -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().terminate()


def _may_be_elsewhere(error: BaseException) -> bool:
    """Return whether another server may accept the session that this one did not."""
    if isinstance(error, asyncpg.PostgresError) and (error.sqlstate or "").startswith(_NOT_NOW):
        return True
    return isinstance(error, _ELSEWHERE)


def address_of(dsn: str) -> str:
    """Return host, port and name of the database of a DSN with one host. It has no user and no password."""
    parts = _DSN.fullmatch(dsn)
    if parts is None:
        return ""
    query = dict(parse_qsl(parts["query"] or ""))
    host = query.get("host") or parts["hosts"] or "localhost"
    name, colon, port = host.rpartition(":") if not host.endswith("]") and not host.startswith("/") else (host, "", "")
    host, port = (name, port) if colon and port.isdigit() else (host, query.get("port", _PORT))
    database = query.get("dbname") or unquote(parts["path"].strip("/"))
    return f"{unquote(host)}:{port}" + (f"/{database}" if database else "")


def _one_by_one(dsn: str) -> list[str]:
    """Return a DSN for each of the hosts of this one. libpq takes them in the address or in the query."""
    if (parts := _DSN.fullmatch(dsn)) is None:
        return [dsn]
    query = parse_qsl(parts["query"] or "", keep_blank_values=True)
    named = dict(query)
    rest = [(name, value) for name, value in query if name not in ("host", "port", "target_session_attrs")]
    hosts = parts["hosts"].split(",")
    if "host" in named and not parts["hosts"]:
        names = named["host"].split(",")
        ports = named.get("port", "").split(",")
        ports = ports * len(names) if len(ports) == 1 else ports
        if len(ports) != len(names):
            return [dsn]  # the driver refuses it
        places = [{"host": name, **({"port": port} if port else {})} for name, port in zip(names, ports, strict=True)]
        each = ["?" + urlencode([*place.items(), *rest]) for place in places]
        return [dsn] if len(each) == 1 else [f"{parts['before']}{parts['path']}{one}" for one in each]
    if len(hosts) == 1:
        return [dsn]
    end = parts["path"] + (f"?{urlencode(rest)}" if rest else "")
    return [f"{parts['before']}{host}{end}" for host in hosts]
