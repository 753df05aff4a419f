"""Run the journal's protocol: carry out each effect that it yields, and send it the answer."""

from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from itertools import count
from typing import Any, TypeAlias, assert_never

from gateway.background import background_tasks, repeat
from gateway.batching import Lane
from gateway.errors import GatewayError, Unavailable
from gateway.fencing.token import Token
from gateway.journal import protocol
from gateway.journal.contents import Contents, Entry, Flaw, Problem
from gateway.journal.journal import Journal
from gateway.journal.protocol import (
    Acknowledged,
    Append,
    AskServer,
    Begin,
    Behind,
    Commit,
    Committed,
    CreateMarker,
    DatabaseSide,
    FindLower,
    Identify,
    Mode,
    OpenDatabase,
    Opening,
    OwnRaise,
    ReadJournal,
    ReadMarker,
    Remember,
    Server,
    Unsecured,
)
from gateway.observe.events import Observe, ignore

CommitClaims: TypeAlias = Callable[[Commit], Awaitable[Committed | Unsecured | Behind]]
"""Runs the transaction of ``Commit``. It may be called several times; each call that commits nothing leaves nothing."""

FLUSH_INTERVAL = 1.0
"""Seconds between two flushes of the journal."""
MOST_WAITING = 100_000
CLOSING = 5.0


class Runner:
    """Runs raises and openings of one gateway. Without a journal, the mode is off."""

    def __init__(
        self,
        mode: Mode,
        database: DatabaseSide,
        journal: Journal | None,
        observe: Observe = ignore,
        *,
        flush_interval: float = FLUSH_INTERVAL,
    ) -> None:
        if (journal is None) != (mode is Mode.OFF):
            raise ValueError("every mode but off needs a journal")
        self._mode, self._database, self._journal = mode, database, journal
        self._observe, self._flush_interval = observe, flush_interval
        self._fit = False
        # This process's own last acknowledged raises, and a counter around its transactions.
        self._own: tuple[OwnRaise, ...] = ()
        self._moments = count()
        # Requests that find the database closed at the same time share one opening.
        self._openings: Lane[None, Opening] = Lane(self._open_together, most=MOST_WAITING, lone_alone=False)

    async def claim(self, commit: CommitClaims) -> Acknowledged:
        """Carry out the claims of a write or a barrier, and return once the mode lets it be acknowledged.

        Raises ``JournalUnusable`` where the journal knows a later term than the database, or cannot be used; and what
        ``commit`` raises. Nothing is committed then, unless ``commit`` itself does not know.
        """
        for _ in range(protocol.ATTEMPTS):
            began = ended = next(self._moments)

            async def timed(effect: Commit) -> Committed | Unsecured | Behind:
                nonlocal began, ended
                began = next(self._moments)
                answer = await commit(effect)
                ended = next(self._moments)
                return answer

            done = await self._drive(protocol.claim(self._mode), timed)
            if isinstance(done, Acknowledged):
                for entry in done.raised:
                    self._own = protocol.remember_own(self._own, OwnRaise(entry, began, ended))
                return done
            await self.ensure_open()
        raise Flaw(Problem.BUSY, "it was opened again and again").error()

    @property
    def own_raises(self) -> tuple[OwnRaise, ...]:
        """The last raises that this process has acknowledged. A new session must find their fences, or higher ones."""
        return self._own

    def is_rewound(self, fences: Mapping[str, Token]) -> bool:
        """Return whether a database with these fences, of ``own_raises``, has lost a raise of this process."""
        return protocol.contradicts(self._own, fences)

    async def may_send(self, resource: str, token: Token, intended_at: datetime, term: int) -> bool:
        """Return whether the request of an object write may be sent. Its intent is committed, in the ``term``.

        False: the database was replaced. The intent must be given up, and the caller told to try again. Raises
        ``JournalUnusable``, which means the same.
        """
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
        steps = protocol.open_database(self._mode, again=again, accept_loss=accept_loss)
        opening = _Opening(self._database, self._journal)
        outcome = await _driven(steps, opening.perform)
        if isinstance(outcome, Flaw):
            raise outcome.error()
        assert isinstance(outcome, Opening)
        opening.adopt(outcome)
        return outcome

    async def flush(self) -> None:
        """Append what mode async has acknowledged, and the position that the database has reached."""
        journal = self._the_journal
        async with journal.flushing() as (entries, term):
            if not entries:
                await journal.note_position()
            elif await _driven(protocol.flush(self._mode, entries, term), self._perform_flush):
                await self.open(again=True)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Flush, and write snapshots, in the background while the block runs; and flush once more in the end."""
        if self._journal is None:
            yield
            return
        flushing = repeat("journal", self.flush, self._observe, self._flush_interval, longest=30.0)
        compacting = repeat("snapshot", self._compact_when_due, self._observe, 1.0, longest=60.0)
        async with background_tasks(flushing, compacting):
            yield
        with suppress(GatewayError):
            await self.flush()
        await self._journal.close(CLOSING)

    async def _compact_when_due(self) -> None:
        journal = self._the_journal
        await journal.wait_until_due()
        await journal.compact(self._database)

    async def _open_together(self, waiting: Sequence[None]) -> list[Opening]:
        opening = await self.open()
        return [opening] * len(waiting)

    async def _drive(self, steps: protocol.RaiseSteps[Any], commit: CommitClaims | None = None) -> Any:
        if self._journal is not None and not self._journal.adopted:
            await self.ensure_open()

        async def perform(effect: protocol.RaiseEffect) -> Any:
            match effect:
                case Commit():
                    assert commit is not None
                    return await commit(effect)
                case Append(entries):
                    return await self._the_journal.append(entries)
                case Remember(entries, term):
                    return self._the_journal.remember(entries, term)
                case _:
                    assert_never(effect)

        return await _driven(steps, perform)

    async def _perform_flush(self, effect: protocol.FlushEffect) -> Any:
        match effect:
            case Append(entries):
                return await self._the_journal.append(entries)
            case AskServer():
                return await self._database.ask()
            case FindLower(run, entries):
                return await self._database.find_lower(run, entries)
            case _:
                assert_never(effect)

    @property
    def _the_journal(self) -> Journal:
        assert self._journal is not None, "mode off has no journal"
        return self._journal


async def _driven(steps: Generator[Any, Any, Any], perform: Callable[[Any], Awaitable[Any]]) -> Any:
    answer: Any = None
    try:
        while True:
            try:
                effect = steps.send(answer)
            except StopIteration as end:
                return end.value
            answer = await perform(effect)
    finally:
        steps.close()


class _Opening:
    """One opening under way: the marker and the server as they were read last."""

    def __init__(self, database: DatabaseSide, journal: Journal | None) -> None:
        self._database, self._store = database, journal
        self._version = ""
        self._marker: protocol.Marker | None = None
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

    def adopt(self, opening: Opening) -> None:
        """Let the journal belong to the installation, also where another gateway has opened the database."""
        installation = self._asked.opened.installation
        if self._store is not None and installation is not None:
            self._store.adopt(installation, opening.term)

    @property
    def _asked(self) -> Server:
        if self._server is None:
            raise Unavailable("The database has not been asked.")
        return self._server

    async def _read_marker(self) -> protocol.Marker | Flaw | None:
        found = await self._journal.marker()
        self._version = found.version
        self._marker = found.marker if isinstance(found.marker, protocol.Marker) else None
        return found.marker

    async def _read(self, effect: ReadJournal) -> Contents | Flaw:
        installation = self._marker.installation if self._marker else self._asked.opened.installation
        assert installation is not None
        return await self._journal.read(
            installation, effect.noted, self._asked.now, whole=effect.whole, salvage=effect.salvage
        )
