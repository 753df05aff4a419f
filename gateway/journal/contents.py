"""The contents of a journal: raised fences in segments and snapshots, how they are merged, and what may be dropped.

Pure. A segment holds the raises that one gateway appended together. A snapshot stands for all segments that it covers.
The newest snapshot may be lost or damaged: the one before it and the segments beside both hold the same fences.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from uuid import UUID

from gateway.errors import JournalUnusable
from gateway.fencing.token import Token

PREFIX = ".fencing-gateway/journal/"
"""The prefix of a journal in a bucket, unless another one is configured."""
MARKER = "marker"
SEGMENTS, SNAPSHOTS, FENCES = "segments/", "snapshots/", "fences/"
"""Names of the objects of a journal, or the prefixes of these names."""

_DIGITS = 18
"""The most digits of a number in a name. Numbers of snapshots have twelve, as long as that is enough."""

AHEAD = timedelta(minutes=5)
"""How far a time in the journal may be ahead of the database's clock before it counts as one of a wrong clock."""


class Problem(StrEnum):
    """The ways in which a journal, or a database beside it, cannot be used."""

    FOREIGN = "foreign"
    """An object belongs to another installation."""
    NEWER = "newer-version"
    """An object was written by a later version of the gateway."""
    TRUNCATED = "truncated"
    """An object ends before its end."""
    CORRUPT = "corrupt"
    """An object has other bytes than were written."""
    MISSING = "missing"
    """An object that must exist does not."""
    BEHIND = "behind"
    """The database was opened in a term that the journal does not know: the journal was put back, or replaced."""
    TOO_OLD = "too-old"
    """The database is from before the time that the journal covers."""
    MOVED = "moved"
    """The database is another system than the one that was opened last: a loaded dump, or an upgrade."""
    RESTORED = "restored"
    """The database was opened without a journal, and was put back since. Nothing shows what it has lost."""
    SUPERSEDED = "superseded"
    """Another server was opened after this one."""
    WEAKER = "weaker-mode"
    """The database was opened with a mode that promises more than the configured one."""
    BUSY = "busy"
    """Other gateways open the database at the same time."""
    UNREACHABLE = "unreachable"
    """The store of the journal does not answer, or refuses to be read."""
    UNWRITABLE = "unwritable"
    """The store of the journal refuses to be written."""
    UNFIT = "unfit"
    """The store of the journal does not show its last write to every reader."""


ACCEPTABLE = frozenset(
    {
        Problem.TRUNCATED,
        Problem.CORRUPT,
        Problem.MISSING,
        Problem.BEHIND,
        Problem.TOO_OLD,
        Problem.MOVED,
        Problem.RESTORED,
        Problem.WEAKER,
    }
)
"""Problems that an operator may accept together with the loss. The others end by another action."""


_ACCEPT = "If the loss is acceptable, open the database with `gateway open --accept-loss` (docs/journal.md)."

ADVICE: dict[Problem, str] = {
    Problem.FOREIGN: "Give this installation a bucket or a prefix of its own.",
    Problem.NEWER: "Upgrade this gateway.",
    Problem.TRUNCATED: f"Restore the object. {_ACCEPT}",
    Problem.CORRUPT: f"Restore the object. {_ACCEPT}",
    Problem.MISSING: f"Restore the object, and look for rules that delete objects of the journal. {_ACCEPT}",
    Problem.BEHIND: f"Configure the journal that this database was opened with. {_ACCEPT}",
    Problem.TOO_OLD: f"Restore a later backup. {_ACCEPT}",
    Problem.MOVED: _ACCEPT,
    Problem.RESTORED: "Stop all writers, and run `gateway open --accept-loss`. Then let each writer acquire its lock "
    "again (docs/guides/backup.md).",
    Problem.SUPERSEDED: "Stop this server, and make it a replica of the one that replaced it.",
    Problem.WEAKER: f"Configure the stronger mode. {_ACCEPT}",
    Problem.BUSY: "Send the request again.",
    Problem.UNREACHABLE: "Check the address and the credentials of the journal, and its store.",
    Problem.UNWRITABLE: "Give the gateway the right to write to the journal.",
    Problem.UNFIT: "Use another store for the journal.",
}
"""The next step for the operator."""


@dataclass(frozen=True, slots=True)
class Flaw:
    """A reason why a journal cannot be used. ``name`` is the object that has it; empty for the journal as a whole."""

    problem: Problem
    detail: str
    name: str = ""

    def __str__(self) -> str:
        """Return the flaw as a sentence without its end, for an error or a finding."""
        return f"{self.name} {self.detail}" if self.name else self.detail

    def error(self) -> JournalUnusable:
        """Return the flaw as the error of a request that needs the journal."""
        return JournalUnusable(
            f"The journal of raised fences cannot be used: {self}.",
            advice=f"Nothing was written. {ADVICE[self.problem]}",
            facts={"problem": self.problem},
            # Superseded: in a failover, the gateway goes to the other server by itself.
            retry_after=1 if self.problem in (Problem.UNREACHABLE, Problem.BUSY, Problem.SUPERSEDED) else None,
        )


@dataclass(frozen=True, slots=True)
class Entry:
    """A raised fence. ``at``: the database's clock. ``objects``: when the resource announced object writes, None for
    never. ``since``: the number of the first snapshot with this token; 0 in segments.
    """

    resource: str
    token: Token
    at: datetime
    objects: datetime | None = None
    since: int = 0


@dataclass(frozen=True, slots=True)
class Segment:
    """Raises that one gateway process appended together, in one object that never changes.

    ``writer`` is the process and ``sequence`` counts its segments from 1. ``follows`` is the last of them that the
    store had confirmed before this one was sent; 0 for none. ``position``: a position that the database had reached.
    """

    installation: UUID
    writer: UUID
    sequence: int
    follows: int
    term: int
    position: int
    at: datetime
    entries: tuple[Entry, ...] = ()

    @property
    def name(self) -> str:
        """The name of its object."""
        return segment_name(self.writer, self.sequence)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The index of a snapshot. ``fences`` is the name of the object that holds its fences.

    Some fences are in no object any more. A database that has noted an older snapshot than ``complete_from`` may lack
    them. So may one that is from before the term in which the journal ``began`` anew.

    ``covers``: segments whose raises it holds and that may still exist. ``reached``: the last covered segment of each
    writer, with the time of it.
    """

    installation: UUID
    number: int
    complete_from: int
    position: int
    at: datetime
    fences: str
    began: int = 0
    covers: frozenset[str] = frozenset()
    reached: Mapping[UUID, tuple[int, datetime]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of its object."""
        return snapshot_name(self.number)


@dataclass(frozen=True, slots=True)
class Contents:
    """The raises that a database with a noted snapshot may lack. ``number``, ``complete_from`` and ``began`` are those
    of the newest snapshot, 0 without one. ``ahead``: how far the latest time is ahead of the database's clock.

    ``whole``: the entries are all that the journal has. ``damaged``: flaws that nothing was lost by.
    """

    number: int = 0
    complete_from: int = 0
    began: int = 0
    position: int = 0
    entries: Mapping[str, Entry] = field(default_factory=dict)
    segments: int = 0
    whole: bool = True
    ahead: timedelta = timedelta()
    damaged: tuple[Flaw, ...] = ()

    @property
    def pristine(self) -> bool:
        """Whether nothing was ever appended."""
        return self.number == 0 and self.segments == 0


def segment_name(writer: UUID, sequence: int) -> str:
    """Return the name of a segment."""
    return f"{SEGMENTS}{writer.hex}/{sequence:012}"


def snapshot_name(number: int) -> str:
    """Return the name of the index of a snapshot."""
    return f"{SNAPSHOTS}{number:012}"


def number_of(name: str) -> int:
    """Return the number of a snapshot, or of the snapshot that fences belong to, by its name; 0 for another name."""
    number = name.rpartition("/")[2].partition("-")[0]
    return int(number) if number.isascii() and number.isdecimal() and len(number) <= _DIGITS else 0


def merge(entries: Iterable[Entry], found: dict[str, Entry] | None = None) -> dict[str, Entry]:
    """Return the highest token of each resource, with the last announcement of object writes under any token.

    ``found``: what was merged before. The entries are added to it.
    """
    found = {} if found is None else found
    for entry in entries:
        held = found.get(entry.resource)
        found[entry.resource] = entry if held is None else _joined(held, entry)
    return found


def _joined(one: Entry, other: Entry) -> Entry:
    if one.token == other.token:
        higher = replace(one, at=max(one.at, other.at), since=min(one.since or other.since, other.since or one.since))
    else:
        higher = max(one, other, key=lambda entry: entry.token)
    times = [entry.objects for entry in (one, other) if entry.objects is not None]
    return replace(higher, objects=max(times, default=None))


def find_gap(segments: Iterable[Segment], present: Iterable[str], reached: Mapping[UUID, int]) -> Flaw | None:
    """Return the first segment that another one follows and that is neither ``present`` nor covered by a snapshot."""
    names = frozenset(present)
    for segment in segments:
        name = segment_name(segment.writer, segment.follows)
        if segment.follows > reached.get(segment.writer, 0) and name not in names:
            return Flaw(Problem.MISSING, "is gone, although a later segment follows it", name)
    return None


@dataclass(frozen=True, slots=True)
class Keeping:
    """The rules for what a snapshot keeps. ``now``: the database's clock.

    ``noted`` is the last snapshot that the database has noted. Only what it noted may be dropped, once it is older than
    ``retention``. ``began``: the term in which the journal began anew for the database.
    """

    now: datetime
    retention: timedelta
    noted: int
    began: int = 0


def compact(
    before: Snapshot, kept: Mapping[str, Entry], segments: Iterable[Segment], keeping: Keeping, number: int
) -> tuple[Snapshot, dict[str, Entry]]:
    """Return the snapshot with this number, and its fences: the ``kept`` ones of ``before`` and the ``segments``.

    Nothing is dropped while a time is ahead of the database's clock, because then one of the clocks is wrong.
    """
    segments = tuple(segments)
    fresh = (replace(entry, since=number) for segment in segments for entry in segment.entries)
    merged = merge([*kept.values(), *fresh])
    oldest = keeping.now - keeping.retention
    dropped: set[str] = set()
    if ahead(keeping.now, merged.values(), segments) <= AHEAD:
        dropped = {name for name, entry in merged.items() if _is_over(entry, oldest, keeping.noted)}
    incomplete = max((merged[name].since for name in dropped), default=0)
    reached = dict(before.reached)
    for segment in segments:
        sequence, at = reached.get(segment.writer, (0, segment.at))
        reached[segment.writer] = (max(sequence, segment.sequence), max(at, segment.at))
    snapshot = replace(
        before,
        number=number,
        complete_from=max(before.complete_from, incomplete),
        began=max(before.began, keeping.began),
        position=max(before.position, max((segment.position for segment in segments), default=0)),
        at=keeping.now,
        reached={writer: last for writer, last in reached.items() if last[1] > oldest},
    )
    return snapshot, {name: entry for name, entry in merged.items() if name not in dropped}


def ahead(now: datetime, entries: Iterable[Entry], segments: Iterable[Segment]) -> timedelta:
    """Return how far the latest time is ahead of the database's clock; nothing where none is."""
    times = [*(entry.at for entry in entries), *(segment.at for segment in segments)]
    return max(max(times, default=now) - now, timedelta())


def _is_over(entry: Entry, before: datetime, noted: int) -> bool:
    """Return whether every database that may be opened has this raise, and no request under it can be under way."""
    return entry.at < before and entry.since <= noted and (entry.objects is None or entry.objects < before)
