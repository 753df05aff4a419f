"""The journal of one gateway process: shared appends and looks, the flush of mode async, snapshots.

Raises that come together share one append and one look at the marker: two requests to the store, one after the other.
``protocol.py`` decides which answers wait for an append. The client of the store times it out.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID, uuid4

from gateway.background import wait_until
from gateway.batching import Lane
from gateway.bounded import Bounded
from gateway.errors import JournalUnusable
from gateway.journal.archive import Archive, Store, StoredMarker
from gateway.journal.contents import MARKER, Contents, Entry, Flaw, Keeping, Problem, Segment, Snapshot, merge
from gateway.journal.opening_table import OpeningTable
from gateway.journal.trust import Marker
from gateway.observe.events import Observe, StepReached, ignore

MOST = 4096
"""Raises of one segment, unless a single write has more."""
OVERLAP = 0.01
"""Seconds after which a group of raises sets out beside one that is under way."""
COMPACT_AFTER = 256
"""Segments outside of snapshots, after which the next snapshot is due."""
COMPACT_INTERVAL = 60.0
"""Seconds between two looks whether a snapshot is due, beside those after the segments of this process."""
WRITER_FOR = timedelta(days=1)
"""The longest use of one writer id. Snapshots forget writers after the retention, which is longer."""
RETENTION = timedelta(days=35)
SHORTEST_RETENTION = timedelta(days=7)
MOST_ANNOUNCED = 100_000


@dataclass(frozen=True, slots=True)
class JournalStatus:
    """The state of the journal in this process.

    ``pending``: raises that are not flushed, and ``lag``: seconds since the first of them. ``appended_at``: the
    database's clock at the last append. ``failure``: why the last append or snapshot failed; None where it did not.
    """

    term: int
    pending: int
    lag: float
    appended_at: datetime | None
    snapshot: int
    snapshot_at: datetime | None
    failure: JournalUnusable | None


class Journal:
    """One journal. ``adopt`` must have been called before anything is appended: an opening does it."""

    def __init__(
        self,
        store: Store,
        *,
        retention: timedelta = RETENTION,
        observe: Observe = ignore,
        compact_after: int = COMPACT_AFTER,
    ) -> None:
        """``retention``: the age of the oldest backup that may be opened. Older raises may be dropped."""
        if retention < SHORTEST_RETENTION:
            raise ValueError(f"the retention of a journal is at least {SHORTEST_RETENTION.days} days")
        self._archive = Archive(store)
        self._retention, self._observe = retention, observe
        self._compact_after = compact_after
        self._installation: UUID | None = None
        self._term = 0
        self._writer, self._sequence, self._confirmed = uuid4(), 0, 0
        self._writing_since: datetime | None = None
        # A position that the database has committed, by its clock, and the last one in the journal.
        self._position = 0
        self._position_at: datetime | None = None
        self._noted_position = 0
        self._announced: Bounded[str, datetime] = Bounded(MOST_ANNOUNCED)
        self.made: Marker | None = None
        """The last marker that this process has made."""
        self._pending: dict[str, Entry] = {}
        self._pending_since, self._pending_term = 0.0, 0
        self._appended = 0
        self._appended_at: datetime | None = None
        self._snapshot: Snapshot | None = None
        self._failure: JournalUnusable | None = None
        self._due = asyncio.Event()
        self._lane: Lane[tuple[Entry, ...], Marker] = Lane(
            self._together, most=MOST, room=MOST, lone_alone=False, overlap=OVERLAP
        )

    @property
    def status(self) -> JournalStatus:
        """The state of the journal in this process."""
        lag = asyncio.get_running_loop().time() - self._pending_since if self._pending else 0.0
        number, written_at = (self._snapshot.number, self._snapshot.at) if self._snapshot else (0, None)
        return JournalStatus(self._term, len(self._pending), lag, self._appended_at, number, written_at, self._failure)

    @property
    def term(self) -> int:
        """The term of the last opening that this process knows of."""
        return self._term

    @property
    def adopted(self) -> bool:
        """Whether the journal knows the installation that it belongs to."""
        return self._installation is not None

    def adopt(self, installation: UUID, term: int) -> None:
        """Belong to this installation from now on, whose database was opened in this term."""
        self._installation = self._archive.installation = installation
        self._term = max(self._term, term)

    # Appends ------------------------------------------------------------------------------------------------------

    async def append(self, entries: Sequence[Entry] = ()) -> Marker:
        """Append raises together with those of other writers, and return the newest marker, read afterwards.

        Without entries only the marker is read, by a request that is sent after this call. Raises
        ``JournalUnusable``: the raises may be in the journal then, and must not be committed.
        """
        marker = await self._lane.ask(tuple(entries), size=max(1, len(entries)))
        self._note_announced(entries)
        return marker

    def remember(self, entries: Sequence[Entry], term: int) -> None:
        """Keep raises for the next flush. ``term``: the one in which they were committed."""
        if not self._pending:
            self._pending_since, self._pending_term = asyncio.get_running_loop().time(), term
        self._pending = merge(entries, self._pending)
        self._pending_term = min(self._pending_term, term)
        self._note_announced(entries)

    @asynccontextmanager
    async def flushing(self) -> AsyncIterator[tuple[tuple[Entry, ...], int]]:
        """Hand out what is remembered, with the lowest term of it. If the block fails, it stays remembered."""
        taken, since, term = self._pending, self._pending_since, self._pending_term
        self._pending = {}
        try:
            yield tuple(taken.values()), term
        except BaseException:
            if taken:
                self._pending = merge([*taken.values(), *self._pending.values()])
                self._pending_since, self._pending_term = since, min(term, self._pending_term)
            raise

    def announced(self, resource: str) -> datetime | None:
        """Return when this process last announced object writes to the resource, by the database's clock."""
        return self._announced.get(resource)

    def reach(self, position: int, at: datetime) -> None:
        """Have the next flush note a position that the database has committed. ``at``: its clock."""
        self._position, self._position_at = max(self._position, position), at

    async def note_position(self) -> None:
        """Append the position that the database has reached, if the journal does not have it yet."""
        if self._position > self._noted_position and self._position_at is not None:
            await self._add((), self._position_at)

    async def begin(self, at: datetime) -> None:
        """Append a segment without raises: a database was opened with this journal. ``at``: the database's clock."""
        await self._add((), at)

    async def _together(self, groups: Sequence[tuple[Entry, ...]]) -> list[Marker]:
        entries = tuple(merge(entry for group in groups for entry in group).values())
        try:
            if entries:
                await self._add(entries, max(entry.at for entry in entries))
            marker = await self._look()
        except JournalUnusable as error:
            self._failure = error
            raise
        self._failure = None
        return [marker] * len(groups)

    async def _add(self, entries: tuple[Entry, ...], at: datetime) -> None:
        if self._installation is None:
            raise Flaw(Problem.BUSY, "the database is not open yet").error()
        if self._writing_since is None or at - self._writing_since > WRITER_FOR:
            self._writer, self._sequence, self._confirmed, self._writing_since = uuid4(), 0, 0, at
        self._sequence += 1
        writer, position = self._writer, self._position
        segment = Segment(
            self._installation, writer, self._sequence, self._confirmed, self._term, position, at, entries
        )
        self._observe(StepReached("journal.append.before"))
        await self._archive.append(segment)
        self._observe(StepReached("journal.append.after"))
        if writer == self._writer:
            self._confirmed = max(self._confirmed, segment.sequence)
        self._noted_position = max(self._noted_position, position)
        self._appended, self._appended_at = self._appended + 1, at
        if self._appended % self._compact_after == 0:
            self._due.set()

    async def _look(self) -> Marker:
        found = (await self._archive.marker()).marker
        if isinstance(found, Flaw):
            raise found.error()
        if found is None:
            raise Flaw(Problem.MISSING, "is gone", MARKER).error()
        if found.installation != self._installation:
            raise Flaw(Problem.FOREIGN, f"belongs to the installation {found.installation}", MARKER).error()
        return found

    def _note_announced(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            if entry.objects is not None:
                self._announced.remember(entry.resource, entry.objects)

    # Openings -----------------------------------------------------------------------------------------------------

    async def marker(self) -> StoredMarker:
        """Return the marker as it is now, of this or another installation."""
        return await self._archive.marker()

    async def create_marker(self, marker: Marker, version: str) -> bool:
        """Replace the marker if it still has this version. Return whether it had."""
        self._observe(StepReached("journal.marker.before"))
        created = await self._archive.create_marker(marker, version)
        if created:
            self.made = marker
        self._observe(StepReached("journal.marker.after"))
        return created

    async def read(
        self, installation: UUID, noted: int, now: datetime, *, whole: bool = False, salvage: bool = False
    ) -> Contents | Flaw:
        """Return the raises that a database with this noted snapshot may lack."""
        self._archive.installation = installation
        return await self._archive.read(noted, now, whole=whole, salvage=salvage)

    async def find_unfit(self) -> Flaw | None:
        """Return the reason why the store must not be used with mode sync."""
        return await self._archive.find_unfit()

    # Snapshots ----------------------------------------------------------------------------------------------------

    async def compact(self, database: OpeningTable) -> bool:
        """Write a snapshot, and have the database note it. Return whether there was something to do.

        Only the gateway of an open database does that. The database raises what the snapshot has and it has not: a
        raise that was never committed. So it has all raises of each snapshot that it has noted.
        """
        server = await database.ask()
        if self._installation is None or server.opened.run != server.run:
            return False
        opened = server.opened
        keeping = Keeping(server.now, self._retention, opened.snapshot, opened.began)
        self._observe(StepReached("journal.snapshot.before"))
        written = await self._archive.compact(keeping)
        self._observe(StepReached("journal.snapshot.after"))
        newest = written or await self._archive.newest(after=opened.snapshot)
        if newest is None:
            return False
        self._snapshot, fences = newest
        unnoted = [entry for entry in fences.values() if entry.since > opened.snapshot]
        await database.note(server.run, self._snapshot.number, unnoted)
        return True

    def ask_for_snapshot(self) -> None:
        """Have a snapshot written soon: the journal begins anew, and databases from before are too old for it."""
        self._due.set()

    async def wait_until_due(self) -> None:
        """Wait until a snapshot may be due: after many segments of this process, or of all of them."""
        while True:
            is_due = await wait_until(self._due, COMPACT_INTERVAL)
            if is_due or (self._appended and await self._archive.uncovered() >= self._compact_after):
                self._due.clear()
                return

    async def close(self, seconds: float) -> None:
        """Wait for the appends under way, for at most so many ``seconds``."""
        await self._lane.close(seconds)
