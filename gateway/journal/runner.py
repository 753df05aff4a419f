"""Run the journal's protocol: carry out each effect that it yields, and send it the answer."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import count
from typing import Any, NoReturn, assert_never
from weakref import WeakKeyDictionary

from gateway.background import background_tasks, repeat
from gateway.batching import Lane
from gateway.db import ownership
from gateway.db.database import CommitClaims, Secured
from gateway.db.pool import UNSECURED, Session
from gateway.driver import drive
from gateway.errors import DatabaseClosed, GatewayError, RaiseUnsecured, SqlError, Unavailable
from gateway.fencing.ownership import Owner
from gateway.fencing.token import Token
from gateway.journal import opening_table, protocol, trust
from gateway.journal.contents import ADVICE, Contents, Entry, Flaw, Problem
from gateway.journal.journal import Journal, JournalStatus
from gateway.journal.opening_table import OpeningTable
from gateway.journal.protocol import (
    Append,
    AskServer,
    Begin,
    Behind,
    Commit,
    Committed,
    CreateMarker,
    FindLower,
    Identify,
    OpenDatabase,
    Opening,
    ReadJournal,
    ReadMarker,
    Remember,
    Unsecured,
)
from gateway.journal.trust import Mode, OwnRaise, Server
from gateway.observe.events import DatabaseOpened, Observe, ignore

FLUSH_INTERVAL = 1.0
"""Seconds between two flushes of the journal."""
LOOK_INTERVAL = 5.0
"""Seconds between two looks at how far a database without a journal is."""
GIVE_WAY = (0.25, 0.5, 1.0, 2.0)
"""Seconds between two looks at the opening of another gateway, more or less. After the last one, it is overtaken."""
MOST_WAITING = 100_000
CLOSING = 5.0


class Runner:
    """Runs raises and openings of one gateway, and admits its sessions. Without a journal, the mode is off.

    Implements ``gateway.db.database.Openings``.
    """

    def __init__(
        self,
        mode: Mode,
        database: OpeningTable,
        journal: Journal | None,
        observe: Observe = ignore,
        *,
        flush_interval: float = FLUSH_INTERVAL,
        owner: Owner | None = None,
    ) -> None:
        """``owner``: what the database must be; None for any one."""
        if (journal is None) != (mode is Mode.OFF):
            raise ValueError("every mode but off needs a journal")
        self._mode, self._database, self._journal, self._owner = mode, database, journal, owner
        # The database refuses raises of a session once it is opened with another mode.
        self.pinned: Mapping[str, str] = {"fencing.journal": mode.value}
        self._observe, self._flush_interval = observe, flush_interval
        self._fit = False
        # The last answer of the database that told of the furthest state.
        self._seen: Server | None = None
        # This process's own last acknowledged raises, and a counter around its transactions.
        self._own: tuple[OwnRaise, ...] = ()
        self._began: int | None = None
        self._announced = False
        self._moments = count()
        # The terms in which the admitted sessions found the database open.
        self._terms: WeakKeyDictionary[Session, int] = WeakKeyDictionary()
        # The database's clock, and this process's own at that moment, in seconds.
        self._clock: tuple[datetime, float] | None = None
        # Requests that find the database closed at the same time share one opening.
        self._openings: Lane[None, Opening] = Lane(self._open_together, most=MOST_WAITING, lone_alone=False)

    # Sessions -----------------------------------------------------------------------------------------------------

    async def admit(self, session: Session) -> None:
        """Return once the database is open for the run of this session. Raises ``Unavailable`` if it is not.

        It must own what this gateway gives it. It must not lack what is remembered here either: a virtual machine that
        was put back with its memory is no new run.
        """
        try:
            server = await self._opened(session)
            if self._owner is not None:
                await ownership.enter(session, self._owner)
            self._note_began(server.opened.began)
            await self._compare(session, server)
        except SqlError as error:
            raise DatabaseClosed(f"The database cannot be opened for its present run: {error.message}.") from error
        self._terms[session] = server.opened.term

    def _now(self) -> datetime:
        """Return about the time of the database's clock. A session was admitted before."""
        assert self._clock is not None
        then, at = self._clock
        return then + timedelta(seconds=_seconds() - at)

    async def _opened(self, session: Session) -> Server:
        server = await self._ask(session)
        if trust.may_serve(server, self._mode):
            return server
        if self._mode is Mode.OFF:
            # Once it is open, other gateways serve, which do not remember what this one does.
            self._note_began(server.opened.began)
            await self._compare(session, server)
        await self.ensure_open()
        server = await self._ask(session)
        if not trust.may_serve(server, self._mode):
            raise DatabaseClosed("The server of this session is not the one that was opened last.")
        return server

    async def _ask(self, session: Session) -> Server:
        seen = self._seen  # the answers of other sessions may be later ones
        server = await opening_table.ask(session)
        self._clock = server.now, _seconds()
        await self._note_seen(seen, server)
        return server

    async def look(self) -> None:
        """Ask the database how far it is, to know later whether it was put back.

        End all sessions if it was: a dump can be loaded below them, and another gateway may have closed the database.
        """
        seen = self._seen
        try:
            server = await self._database.ask()
        except GatewayError:
            return  # requests tell of it
        try:
            await self._note_seen(seen, server)
            flaw = trust.judge(server, None, self._mode)
            if flaw is not None and flaw.problem is Problem.RESTORED:
                raise _refusal(flaw)
        except DatabaseClosed:
            for session in list(self._terms):
                session.terminate()
            raise

    async def _note_seen(self, seen: Server | None, server: Server) -> None:
        """Note how far the database is. Close it if it was put back. With a journal, its opening finds that."""
        if self._mode is Mode.OFF and trust.judge(server, None, self._mode) is None:
            lost = trust.went_back(seen, server)
            if lost is not None:
                await self._close(server, lost)
            if trust.went_back(self._seen, server) is None:
                self._seen = server

    async def _close(self, server: Server, lost: str) -> NoReturn:
        """Keep the database closed for all gateways: those that were started since remember nothing."""
        # A server that was replaced may wait for its standby for ever. This gateway knows enough to refuse it.
        with suppress(GatewayError, TimeoutError):
            async with asyncio.timeout(CLOSING):
                known = max(server.opened.term, self._seen.opened.term if self._seen else 0)
                await self._database.close(server.run, server.opened.began, known, lost)
        raise _refusal(trust.restored(lost))

    def _note_began(self, term: int) -> None:
        """Note the term in which an operator has accepted a loss: what was acknowledged before may be lost."""
        if self._began is not None and term > self._began:
            self._own = ()
        self._began = term

    async def _compare(self, session: Session, server: Server) -> None:
        """Compare the fences with the last ones that this process has acknowledged."""
        if not await self._is_rewound(session):
            return
        if self._mode is Mode.OFF:
            await self._close(server, "it has lost fences that a gateway has acknowledged")
        await self.open(again=True)
        if not await self._is_rewound(session):
            return
        raise DatabaseClosed(
            "The database has lost fences that this gateway has acknowledged.",
            advice="Nothing was written. The operator restores a later state of the database, or accepts the loss with "
            "'gateway open --accept-loss'.",
        )

    async def _is_rewound(self, session: Session) -> bool:
        memory = self._own  # later raises need not be in the answer
        resources = [one.entry.resource for one in memory]
        return bool(memory) and trust.contradicts(memory, await opening_table.read_tokens(session, resources))

    # Raises -------------------------------------------------------------------------------------------------------

    async def claim(self, commit: CommitClaims, *, objects: bool = False) -> object:
        """Carry out the claims of a write or a barrier, and return its outcome once the mode lets it be acknowledged.

        Raises ``JournalUnusable`` where the journal knows a later term than the database, or cannot be used; and what
        ``commit`` raises. Nothing is committed then, unless ``commit`` itself does not know.
        """
        for _ in range(protocol.ATTEMPTS):
            began = ended = next(self._moments)

            async def timed(effect: Commit) -> Committed | Unsecured | Behind:
                nonlocal began, ended
                began = next(self._moments)
                answer = await self._commit(commit, effect, objects=objects)
                ended = next(self._moments)
                return answer

            done = await self._drive(protocol.claim(self._mode), timed)
            if done is not None:
                raised = [OwnRaise(entry, began, ended) for entry in done.raised]
                self._own = trust.remember_own(self._own, raised)
                return done.outcome
            await self.ensure_open()
        raise Flaw(Problem.BUSY, "it was opened again and again").error()

    async def _commit(self, commit: CommitClaims, effect: Commit, *, objects: bool) -> Committed | Unsecured | Behind:
        secured = Secured(opening_table.write_raises(effect.secured), effect.looked) if effect.secured else None
        try:
            outcome, claims, session = await commit(secured)
        except RaiseUnsecured as error:
            if not error.raises:
                return Behind()
            try:
                entries = opening_table.read_raises(error.raises, self._now())
            except (GatewayError, ValueError):
                # Code in the database uses our SQLSTATE. The journal must not get what no fence can carry.
                said = "Code in the database names raises of fences that cannot be read."
                raise SqlError(UNSECURED, said) from error
            return Unsecured(tuple(replace(one, objects=one.at) for one in entries) if objects else entries)
        now = self._now()
        return Committed(self._terms[session], tuple(Entry(name, token, now) for name, token in claims), outcome)

    @property
    def status(self) -> JournalStatus | None:
        """The state of the journal in this process; None without one."""
        return None if self._journal is None else self._journal.status

    @property
    def own_raises(self) -> tuple[OwnRaise, ...]:
        """The last raises that this process has acknowledged. A new session must find their fences, or higher ones."""
        return self._own

    async def may_send(self, resource: str, token: Token, intended_at: datetime, term: int) -> bool:
        """Return whether the request of an object write may be sent. Its intent is committed, in the ``term``.

        False: the database was replaced. The intent must be given up, and the caller told to try again. Raises
        ``JournalUnusable``, which means the same.
        """
        self._announced = True
        announced = self._journal.announced(resource) if self._journal else None
        entry = Entry(resource, token, intended_at)
        return bool(await self._drive(protocol.send(self._mode, entry, term, announced=announced)))

    async def ensure_open(self) -> Opening:
        """Open the database for its run, if it is not open, together with all other requests that want it.

        Raises ``JournalUnusable`` with the flaw that keeps it closed, and ``Unavailable`` without the database.
        """
        return await self._openings.ask(None)

    async def open(self, *, again: bool = False, accept_loss: bool = False) -> Opening:
        """Open the database as ``ensure_open`` does. ``again``, ``accept_loss``: as in the protocol.

        With mode sync, the first call checks whether the store of the journal is fit for it.
        """
        if self._mode is Mode.SYNC and not self._fit:
            if (flaw := await self._the_journal.find_unfit()) is not None:
                raise flaw.error()
            self._fit = True
        # Without a journal, only the gateways' own memory tells of a loss. An operator who accepts it begins anew.
        again = again or (accept_loss and self._mode is Mode.OFF)
        steps = protocol.open_database(self._mode, again=again, accept_loss=accept_loss)
        opening = _Opening(self._database, self._journal)
        outcome = await drive(steps, opening.perform)
        if isinstance(outcome, Flaw):
            raise _refusal(outcome)
        assert isinstance(outcome, Opening)
        opening.adopt(outcome)
        if outcome.fresh:
            self._observe(opening.event(outcome))
        return outcome

    async def examine(self) -> Flaw | None:
        """Return what would keep the database closed, or the journal from promising what the mode says. Change nothing.

        With mode sync, objects are written to find out whether the store is fit, and removed.
        """
        server = await self._database.ask()
        if self._journal is None:
            return trust.judge(server, None, self._mode)
        found = (await self._journal.marker()).marker
        flaw = trust.judge(server, found, self._mode)
        if flaw is None and server.opened.installation is not None:
            read = await self._journal.read(server.opened.installation, server.opened.snapshot, server.now)
            flaw = read if isinstance(read, Flaw) else trust.judge_contents(server, read)
        if flaw is None and self._mode is Mode.SYNC:
            flaw = await self._journal.find_unfit()
        return flaw

    async def flush(self) -> None:
        """Append what mode async has acknowledged, and a position that the database has reached.

        A database that was put back has a lower position. So it is known that it may lack object writes under way.
        """
        journal = self._the_journal
        await self._adopt(journal)
        if self._announced:
            self._announced = False
            position = await self._database.beat()
            if position is None:
                self._announced = True
            else:
                journal.reach(*position)
        async with journal.flushing() as (entries, term):
            if not entries:
                await journal.note_position()
            elif await self._drive(protocol.flush(self._mode, entries, term)):
                await self.open(again=True)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Flush, and write snapshots, in the background while the block runs."""
        if self._journal is None:
            pause = LOOK_INTERVAL
            looking = repeat("position", self.look, self._observe, pause, longest=2 * pause, at_once=True)
            async with background_tasks(looking):
                yield
            return
        flushing = repeat("journal", self.flush, self._observe, self._flush_interval, longest=30.0)
        compacting = repeat("snapshot", self._compact_when_due, self._observe, 1.0, longest=60.0)
        async with background_tasks(flushing, compacting):
            yield

    async def close(self) -> None:
        """Flush once more, and wait for the appends under way."""
        if self._journal is not None:
            with suppress(GatewayError):
                await self.flush()
            await self._journal.close(CLOSING)

    async def _compact_when_due(self) -> None:
        journal = self._the_journal
        await journal.wait_until_due()
        await journal.compact(self._database)

    async def _open_together(self, waiting: Sequence[None]) -> list[Opening]:
        try:
            opening = await self.open()
        except SqlError as error:
            raise DatabaseClosed(f"The database cannot be opened for its present run: {error.message}.") from error
        return [opening] * len(waiting)

    async def _drive(
        self,
        steps: protocol.RaiseSteps[Any] | protocol.FlushSteps[Any],
        commit: Callable[[Commit], Awaitable[Any]] | None = None,
    ) -> Any:
        async def perform(effect: protocol.RaiseEffect | protocol.FlushEffect) -> Any:
            match effect:
                case Commit():
                    assert commit is not None
                    return await commit(effect)
                case Append(entries):
                    if self._journal is None:
                        raise Flaw(Problem.WEAKER, "the database was opened with mode sync since").error()
                    await self._adopt(self._journal)
                    return await self._journal.append(entries)
                case Remember(entries, term):
                    return self._the_journal.remember(entries, term)
                case AskServer():
                    return await self._database.ask()
                case FindLower(run, entries):
                    return await self._database.find_lower(run, entries)
                case _:
                    assert_never(effect)

        return await drive(steps, perform)

    async def _adopt(self, journal: Journal) -> None:
        """Let the journal know its installation, before its first append. The database is open then."""
        if not journal.adopted:
            await self.ensure_open()

    @property
    def _the_journal(self) -> Journal:
        assert self._journal is not None, "mode off has no journal"
        return self._journal


def _refusal(flaw: Flaw) -> Unavailable:
    """Return the error of a request whose database this flaw keeps closed. There may be no journal."""
    if flaw.problem is not Problem.RESTORED:
        return flaw.error()
    return DatabaseClosed(f"The database stays closed: {flaw}.", advice=f"Nothing was written. {ADVICE[flaw.problem]}")


def _seconds() -> float:
    return asyncio.get_running_loop().time()


class _Opening:
    """One opening under way: the marker and the server as they were read last."""

    def __init__(self, database: OpeningTable, journal: Journal | None) -> None:
        self._database, self._store = database, journal
        self._version = ""
        self._marker: trust.Marker | None = None
        self._server: Server | None = None

    @property
    def _journal(self) -> Journal:
        assert self._store is not None, "mode off has no journal"
        return self._store

    async def perform(self, effect: protocol.OpenEffect) -> Any:
        match effect:
            case ReadMarker():
                return await self._read_marker()
            case AskServer():
                self._server = await self._database.ask()
                return self._server
            case Identify():
                return await self._database.identify()
            case CreateMarker(marker):
                if await self._is_opened_meanwhile():
                    return False
                self._marker = marker
                return await self._journal.create_marker(marker, self._version)
            case ReadJournal():
                return await self._read(effect)
            case FindLower(run, entries):
                return await self._database.find_lower(run, entries)
            case OpenDatabase():
                return await self._open(effect)
            case Begin():
                return await self._journal.begin(self._asked.now)
            case _:
                assert_never(effect)

    async def _open(self, effect: OpenDatabase) -> bool:
        done, opened = await self._database.open(effect), effect.opened
        if done and self._store is not None and opened.installation is not None:
            self._store.adopt(opened.installation, opened.term)
            if opened.began == opened.term:
                self._store.ask_for_snapshot()
        return done

    async def _is_opened_meanwhile(self) -> bool:
        """Give way to another gateway that is opening the database for this run. Return whether it went on meanwhile.

        Each of two gateways would else overtake the marker of the other, again and again. An opening takes longer than
        the time until the next request that needs one. A gateway that has died changes nothing, and is overtaken.
        """
        marker, server = self._marker, self._asked
        if marker is None or marker == self._journal.made:
            return False
        if marker.run != server.run or marker.term <= server.opened.term:
            return False
        for pause in GIVE_WAY:
            await asyncio.sleep(pause * random.uniform(0.5, 1.5))  # noqa: S311 - for no secret
            found, now = await self._journal.marker(), await self._database.ask()
            if (found.version, now.run, now.opened.term) != (self._version, server.run, server.opened.term):
                return True
        return False

    def adopt(self, opening: Opening) -> None:
        """Let the journal belong to the installation, also where another gateway has opened the database."""
        installation = self._asked.opened.installation
        if self._store is not None and installation is not None:
            self._store.adopt(installation, opening.term)

    def event(self, opening: Opening) -> DatabaseOpened:
        """Return the event of an opening that this process has carried out."""
        run = self._asked.run
        return DatabaseOpened(
            *(opening.term, run.timeline, run.started, opening.continues, len(opening.losses)),
            waiting="all" if opening.waits is None else len(opening.waits),
        )

    @property
    def _asked(self) -> Server:
        if self._server is None:
            raise Unavailable("The database has not been asked.")
        return self._server

    async def _read_marker(self) -> trust.Marker | Flaw | None:
        found = await self._journal.marker()
        self._version = found.version
        self._marker = found.marker if isinstance(found.marker, trust.Marker) else None
        return found.marker

    async def _read(self, effect: ReadJournal) -> Contents | Flaw:
        installation = self._marker.installation if self._marker else self._asked.opened.installation
        assert installation is not None
        return await self._journal.read(
            installation, effect.noted, self._asked.now, whole=effect.whole, salvage=effect.salvage
        )
