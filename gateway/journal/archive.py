"""The objects of a journal in its store: written, read with a verdict on each, and compacted into snapshots.

The order of listing carries the promise. Segments are listed before snapshots. A compaction removes segments only once
there are two snapshots that cover them. So what a reader misses in the first list is in the second.
"""

import asyncio
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Protocol
from uuid import UUID, uuid4

from gateway.background import at_a_time
from gateway.bounded import Bounded
from gateway.journal import format as encoding
from gateway.journal.contents import (
    FENCES,
    MARKER,
    SEGMENTS,
    SNAPSHOTS,
    Contents,
    Entry,
    Flaw,
    Keeping,
    Problem,
    Segment,
    Snapshot,
    ahead,
    compact,
    find_gap,
    merge,
    number_of,
    snapshot_name,
)
from gateway.journal.trust import Marker

_AT_A_TIME = 16
_READINGS = 5
_KNOWN = 4096
_TRIALS = 3
_RACERS = 8
_FATAL = (Problem.FOREIGN, Problem.NEWER)


class Store(Protocol):
    """The objects of one journal. Every method raises ``JournalUnusable`` where the store does not do it."""

    async def add(self, name: str, content: bytes) -> bool:
        """Write an object that must not exist. Return False if it does."""

    async def replace(self, name: str, content: bytes, version: str) -> bool:
        """Replace an object that must have this version. Return False if it has another one."""

    async def read(self, name: str) -> tuple[bytes, str] | None:
        """Return an object and its version; None if it does not exist."""

    async def names(self, prefix: str) -> list[str]:
        """Return the names that begin so, in their order."""

    async def remove(self, name: str) -> None:
        """Remove an object, if there is one."""

    async def find_unfit(self) -> Flaw | None:
        """Return the reason why the store must not be used, as far as it has means of its own to tell."""


@dataclass(frozen=True, slots=True)
class StoredMarker:
    """The marker, or the flaw of it, and its version in the store; "" for none. ``marker`` is None without one."""

    marker: Marker | Flaw | None = None
    version: str = ""


class _Vanished(Exception):
    """An object that was listed is gone: a compaction has removed it meanwhile."""


@dataclass(frozen=True, slots=True)
class _Listing:
    segments: tuple[str, ...]
    snapshots: tuple[int, ...]

    @property
    def newest(self) -> int:
        return self.snapshots[-1] if self.snapshots else 0


@dataclass(frozen=True, slots=True)
class _Base:
    """The newest snapshot that is usable, with its fences if they were asked for. None, and none, without one."""

    index: Snapshot | None = None
    fences: Mapping[str, Entry] | None = None
    damaged: tuple[Flaw, ...] = ()


class Archive:
    """One journal's objects. ``installation``: whose they must be; None until the database has said so."""

    def __init__(self, store: Store) -> None:
        self.installation: UUID | None = None
        self._store = store
        # Segments never change, so one that was written or read here need not be read again.
        self._known: Bounded[str, Segment] = Bounded(_KNOWN)

    async def marker(self) -> StoredMarker:
        """Return the marker as it is now."""
        found = await self._store.read(MARKER)
        if found is None:
            return StoredMarker()
        content, version = found
        return StoredMarker(encoding.read_marker(content, MARKER, None), version)

    async def create_marker(self, marker: Marker, version: str) -> bool:
        """Replace the marker if it still has this version. Return whether it had."""
        content = encoding.write_marker(marker)
        if not version:
            return await self._store.add(MARKER, content)
        return await self._store.replace(MARKER, content, version)

    async def append(self, segment: Segment) -> None:
        """Write a segment."""
        content = encoding.write_segment(segment)
        if not await self._store.add(segment.name, content):
            # A proxy may have sent the request twice. Then this is the answer to the second one.
            found = await self._store.read(segment.name)
            if found is None or found[0] != content:
                raise Flaw(Problem.UNWRITABLE, "has been written by another process", segment.name).error()
        self._known.remember(segment.name, segment)

    async def read(self, noted: int, now: datetime, *, whole: bool = False, salvage: bool = False) -> Contents | Flaw:
        """Return the raises that a database with this noted snapshot may lack. ``whole``, ``salvage``: as in the
        protocol.
        """
        for _ in range(_READINGS):
            try:
                return await self._read(noted, now, whole=whole, salvage=salvage)
            except _Vanished:
                continue
        return Flaw(Problem.MISSING, "objects vanish while they are read")

    async def compact(self, keeping: Keeping) -> tuple[Snapshot, Mapping[str, Entry]] | None:
        """Write the next snapshot, and remove what two snapshots cover. None if another gateway was quicker.

        Raises ``JournalUnusable`` also for a flaw in what is there.
        """
        for _ in range(_READINGS):
            try:
                return await self._compact(keeping)
            except _Vanished:
                continue
        return None

    async def newest(self, *, after: int) -> tuple[Snapshot, Mapping[str, Entry]] | None:
        """Return the newest snapshot with its fences, if its number is higher than ``after``."""
        listing = await self._list()
        base = await self._base(listing, fences=True) if listing.newest > after else _Base()
        if isinstance(base, Flaw):
            raise base.error()
        return None if base.index is None or base.index.number <= after else (base.index, base.fences or {})

    async def uncovered(self) -> int:
        """Return how many segments are in no snapshot."""
        listing = await self._list()
        base = await self._base(listing, fences=False)
        covered = base.index.covers if isinstance(base, _Base) and base.index else frozenset()
        return sum(name not in covered for name in listing.segments)

    async def find_unfit(self) -> Flaw | None:
        """Return the reason why the store must not be used: it does not show its last write to every reader.

        The check writes a few objects and removes them. A success proves little; one failure is enough.
        """
        if (flaw := await self._store.find_unfit()) is not None:
            return flaw
        folder = f"probe/{uuid4().hex}/"
        try:
            for trial in range(_TRIALS):
                if (detail := await self._try(folder, f"{folder}{trial}")) is not None:
                    return Flaw(Problem.UNFIT, detail)
        finally:
            for trial in range(_TRIALS):
                await self._store.remove(f"{folder}{trial}")
        return None

    async def _try(self, folder: str, name: str) -> str | None:
        contents = [f"{number} {uuid4()}".encode() for number in range(2 * _RACERS)]
        adding, replacing = contents[:_RACERS], contents[_RACERS:]
        if (version := await self._race(name, adding, [self._store.add(name, one) for one in adding])) is None:
            return "of writers that create one object at the same time, not exactly one succeeds"
        if name not in await self._store.names(folder):
            return "an object that was written is not listed"
        racers = [self._store.replace(name, one, version) for one in replacing]
        if await self._race(name, replacing, racers) is None:
            return "of writers that replace one object at the same time, not exactly one succeeds"
        return None

    async def _race(self, name: str, contents: Sequence[bytes], racers: Sequence[Awaitable[bool]]) -> str | None:
        """Return the version of the object, if exactly one writer says that it has written it, and it has."""
        answers = await asyncio.gather(*racers, return_exceptions=True)
        failures = [answer for answer in answers if isinstance(answer, BaseException)]
        if True not in answers and failures:
            raise failures[0]
        found = await self._store.read(name)
        if answers.count(True) != 1 or found is None or found[0] != contents[answers.index(True)]:
            return None
        return found[1]

    # Reading ------------------------------------------------------------------------------------------------------

    async def _list(self) -> _Listing:
        segments = tuple(await self._store.names(SEGMENTS))
        numbers = sorted(number_of(name) for name in await self._store.names(SNAPSHOTS))
        return _Listing(segments, tuple(number for number in numbers if number))

    async def _read(self, noted: int, now: datetime, *, whole: bool, salvage: bool) -> Contents | Flaw:
        listing = await self._list()
        # A database that has noted the newest snapshot but one lacks only what is in segments that still exist.
        tail = not whole and noted >= listing.newest - 1
        base = await self._base(listing, fences=not tail)
        if isinstance(base, Flaw):
            if not salvage:
                return base
            base = _Base(damaged=(base,))
        index, fences = base.index, base.fences
        covered = index.covers if index and (fences is not None or noted >= index.number) else frozenset()
        found = await self._segments(name for name in listing.segments if name not in covered)
        segments = [one for one in found if isinstance(one, Segment)]
        flaws = [one for one in found if isinstance(one, Flaw)]
        reached = {writer: last for writer, (last, _) in index.reached.items()} if index else {}
        if not flaws and (gap := find_gap(segments, listing.segments, reached)):
            flaws.append(gap)
        fatal = [flaw for flaw in flaws if flaw.problem in _FATAL or not salvage]
        if fatal:
            return min(fatal, key=lambda flaw: flaw.problem not in _FATAL)
        entries = merge([*(fences or {}).values(), *(entry for one in segments for entry in one.entries)])
        return Contents(
            number=listing.newest,
            complete_from=index.complete_from if index else 0,
            began=index.began if index else 0,
            position=max([index.position if index else 0, *(segment.position for segment in segments)]),
            entries=entries,
            segments=len(listing.segments),
            whole=fences is not None or not listing.snapshots,
            ahead=ahead(now, entries.values(), segments),
            damaged=(*base.damaged, *flaws),
        )

    async def _base(self, listing: _Listing, *, fences: bool) -> _Base | Flaw:
        """Return the newest snapshot that can be used. If that is not the newest one, its flaw costs nothing."""
        damaged: list[Flaw] = []
        for number in reversed(listing.snapshots):
            index = await self._index(number)
            if isinstance(index, Snapshot):
                kept = await self._fences(index.fences) if fences else None
                if not isinstance(kept, Flaw):
                    return _Base(index, kept, tuple(damaged))
                index = kept
            if index.problem in _FATAL:
                return index
            damaged.append(index)
        return damaged[0] if damaged else _Base()

    async def _index(self, number: int) -> Snapshot | Flaw:
        name = snapshot_name(number)
        found = await self._store.read(name)
        if found is None:
            raise _Vanished
        return encoding.read_snapshot(found[0], name, self.installation)

    async def _fences(self, name: str) -> dict[str, Entry] | Flaw:
        found = await self._store.read(name)
        if found is None:
            return Flaw(Problem.MISSING, "is gone, although a snapshot names it", name)
        return await asyncio.to_thread(encoding.read_fences, found[0], name, self.installation)

    async def _segments(self, names: Iterable[str]) -> list[Segment | Flaw]:
        async def one(name: str) -> Segment | Flaw:
            if (known := self._known.get(name)) is not None:
                return known
            found = await self._store.read(name)
            if found is None:
                raise _Vanished
            segment = encoding.read_segment(found[0], name, self.installation)
            if isinstance(segment, Segment):
                self._known.remember(name, segment)
            return segment

        return await at_a_time(_AT_A_TIME, one, names)

    # Compaction ---------------------------------------------------------------------------------------------------

    async def _compact(self, keeping: Keeping) -> tuple[Snapshot, Mapping[str, Entry]] | None:
        assert self.installation is not None
        listing = await self._list()
        base = await self._base(listing, fences=True)
        if isinstance(base, Flaw):
            raise base.error()
        before = base.index or Snapshot(self.installation, 0, 0, 0, keeping.now, "")
        fresh = await self._segments(name for name in listing.segments if name not in before.covers)
        for flaw in fresh:
            if isinstance(flaw, Flaw):
                raise flaw.error()
        segments = [one for one in fresh if isinstance(one, Segment)]
        if not segments and keeping.began <= before.began:
            return None
        number = listing.newest + 1
        name = f"{FENCES}{number:012}-{uuid4().hex}"
        index, fences = await asyncio.to_thread(compact, before, base.fences or {}, segments, keeping, number)
        index = replace(index, fences=name, covers=frozenset(listing.segments))
        content = await asyncio.to_thread(encoding.write_fences, self.installation, fences.values())
        await self._store.add(name, content)
        if not await self._store.add(index.name, encoding.write_snapshot(index)):
            await self._store.remove(name)
            return None
        await self._remove_covered(before, listing)
        return index, fences

    async def _remove_covered(self, before: Snapshot, listing: _Listing) -> None:
        """Remove what neither the new snapshot nor the one before needs."""
        old = [name for name in listing.segments if name in before.covers]
        old += [snapshot_name(number) for number in listing.snapshots if number < before.number]
        old += [name for name in await self._store.names(FENCES) if number_of(name) < before.number]

        async def one(name: str) -> None:
            await self._store.remove(name)
            self._known.pop(name, None)

        await at_a_time(_AT_A_TIME, one, old)
