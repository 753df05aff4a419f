"""When a database and its journal may be trusted: what a server and the marker tell, and how it is judged. Pure.

A *run* is one start of one server. The row of the last opening says for which run the database was opened. The marker
has the newest term of the journal. A gateway also compares what it remembers: commits that it has seen, and its own
last raises. A flaw keeps the database closed, as long as no operator accepts the loss.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from gateway.journal.contents import Contents, Entry, Flaw, Problem


class Mode(StrEnum):
    """The losses of its database that an acknowledged raise survives."""

    OFF = "off"
    """No loss."""
    ASYNC = "async"
    """Losses after the next flush of the journal."""
    SYNC = "sync"
    """All losses."""

    def is_weaker_than(self, other: "Mode") -> bool:
        """Return whether this mode promises less than the other."""
        return _STRENGTH[self] < _STRENGTH[other]


_STRENGTH = {Mode.OFF: 0, Mode.ASYNC: 1, Mode.SYNC: 2}


@dataclass(frozen=True, slots=True)
class Run:
    """One start of one database server: its system identifier, its timeline, and when it started.

    ``database``: the identities of the database and of the table of the last opening, which a loaded dump changes.
    """

    system: str
    timeline: int
    started: datetime
    database: str = ""


@dataclass(frozen=True, slots=True)
class Opened:
    """The row in which the database says for which run it was opened. A rewind takes it back with everything else.

    ``position`` grows with each heartbeat. ``snapshot``: the database has all raises of the journal's snapshots up to
    this one. ``began``: the term in which the journal began anew. It does not help databases from before.
    ``epoch``: the one in which the lease service issues tokens.
    """

    installation: UUID | None = None
    run: Run | None = None
    term: int = 0
    mode: Mode = Mode.OFF
    position: int = 0
    snapshot: int = 0
    began: int = 0
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class Server:
    """The answer of one session: the run it belongs to, the row of the last opening, and the database's clock.

    ``written``: the position up to which the server's log is durable. It grows on a timeline, also over restarts.
    ``target``: the setting that ended the recovery of the server before its end, if there is one.
    """

    run: Run
    opened: Opened
    now: datetime
    written: int = 0
    target: str | None = None


@dataclass(frozen=True, slots=True)
class Marker:
    """The newest term of the journal, and the run that it was made for.

    ``base``: the newest term of a run before this one. Several gateways may have made markers for one run.
    ``epoch``: the newest one that the lease service of any run may have begun.
    """

    installation: UUID
    term: int
    base: int
    run: Run
    at: datetime
    epoch: int = 0


def may_serve(server: Server, mode: Mode) -> bool:
    """Return whether a session may carry fenced statements: its database was opened for its run, in this mode."""
    return server.opened.run == server.run and server.opened.mode is mode


def judge(server: Server, marker: Marker | Flaw | None, mode: Mode) -> Flaw | None:
    """Return the reason why the database must not be opened by itself, as far as the marker tells."""
    opened = server.opened
    if isinstance(marker, Flaw):
        return marker
    if mode.is_weaker_than(opened.mode):
        return Flaw(Problem.WEAKER, f"the database was opened with mode {opened.mode}, and {mode} promises less")
    if marker is not None and (flaw := _judge_marker(server, marker)) is not None:
        return flaw
    if marker is None and mode is not Mode.OFF and opened.mode is not Mode.OFF:
        return Flaw(Problem.MISSING, "the journal has no marker, and the database was opened with it")
    return _find_restored(server)


PUT_BACK = "put back"
"""An opening names a database that begins like this once a gateway has found that the database was put back."""


def _find_restored(server: Server) -> Flaw | None:
    """Return the flaw of a database that was put back, if it was opened without a journal and so shows it itself.

    A promoted standby is on another timeline, and so is a server that was recovered up to an earlier moment. Only the
    second one has a setting that says so.
    """
    before, run = server.opened.run, server.run
    if before is None or server.opened.mode is not Mode.OFF:
        return None
    if before.database.startswith(PUT_BACK):
        shown = f"a gateway has found that it was {before.database}"
    elif before.system != run.system:
        shown = "it is on another server than when it was last open, by a loaded dump or a major upgrade"
    elif before.database != run.database:
        shown = "it is another database than the one that was last open, by a loaded dump or a copy"
    elif before.timeline != run.timeline and server.target:
        shown = f"its server was recovered only up to {server.target}"
    else:
        return None
    return restored(shown)


def restored(shown: str) -> Flaw:
    """Return the flaw of a database without a journal that was put back. ``shown``: what shows it."""
    return Flaw(Problem.RESTORED, f"it was restored, and no journal shows which fences it has lost: {shown}")


def _judge_marker(server: Server, marker: Marker) -> Flaw | None:
    opened = server.opened
    if opened.installation is None:
        return Flaw(Problem.TOO_OLD, "the database was never opened with this journal: it is older, or another one")
    if opened.installation != marker.installation:
        return Flaw(Problem.FOREIGN, f"the journal belongs to the installation {marker.installation}")
    if opened.term > marker.term:
        return Flaw(Problem.BEHIND, f"the database knows term {opened.term}, and the journal only {marker.term}")
    if opened.run == server.run and marker.run != server.run and opened.term < marker.term:
        return Flaw(Problem.SUPERSEDED, f"another server was opened after this one, at {marker.at}")
    if marker.run.system != server.run.system:
        return Flaw(Problem.MOVED, "the database is another system than the one that was opened last")
    if marker.run.timeline > server.run.timeline:
        return Flaw(Problem.TOO_OLD, f"a server on the later timeline {marker.run.timeline} was opened before")
    return None


def judge_contents(server: Server, contents: Contents) -> Flaw | None:
    """Return the reason why the database must not be opened by itself, as far as the contents of the journal tell."""
    opened = server.opened
    if contents.number < opened.snapshot:
        return Flaw(Problem.MISSING, f"the database has noted snapshot {opened.snapshot}, which is gone")
    if opened.mode is Mode.OFF and not contents.pristine:
        return Flaw(Problem.TOO_OLD, "the database was not opened with this journal when it was last opened")
    if opened.snapshot < contents.complete_from:
        first = f"the journal begins with {contents.complete_from}"
        return Flaw(Problem.TOO_OLD, f"the database has noted snapshot {opened.snapshot}, and {first}")
    if opened.began < contents.began:
        return Flaw(Problem.TOO_OLD, f"the database is from before term {contents.began}, with which the journal began")
    return None


def continues(server: Server, base: int, position: int) -> bool:
    """Return whether this run has everything that earlier runs had committed.

    So it is a restart of the server that was opened last, on its timeline, and with each position that was noted. A
    promoted standby may lack the last commits. ``base``: the newest term of an earlier run; ``position``: the highest
    in the journal.
    """
    before = server.opened.run
    return (
        before is not None
        and replace(before, started=server.run.started) == server.run
        and server.opened.term >= base
        and server.opened.position >= position
    )


def went_back(seen: Server | None, server: Server) -> str | None:
    """Return what shows that the database has lost commits since this process saw it, or None.

    ``seen``: an answer that had come before the question of ``server`` was sent. Without a new run, a disk that was put
    back to a snapshot looks like a restart. A promoted standby has a timeline of its own, with a log of its own.
    """
    if seen is None or server.opened.began > seen.opened.began:
        return None
    if server.opened.term < seen.opened.term:
        return f"it was opened in term {seen.opened.term}, and knows only term {server.opened.term}"
    if server.run.system == seen.run.system and server.run.timeline < seen.run.timeline:
        return f"a server on timeline {seen.run.timeline} was open before, and this one is on {server.run.timeline}"
    same = (seen.run.system, seen.run.timeline) == (server.run.system, server.run.timeline)
    if same and server.written < seen.written:
        return f"its log had reached {_position(seen.written)}, and ends at {_position(server.written)}"
    return None


def _position(written: int) -> str:
    """Return a position of the log as PostgreSQL writes it."""
    return f"{written >> 32:X}/{written & 0xFFFFFFFF:X}"


# A gateway's own memory -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OwnRaise:
    """A raise of this process. ``began`` and ``ended``: numbers from one counter, around its transaction."""

    entry: Entry
    began: int
    ended: int


def remember_own(memory: Sequence[OwnRaise], acknowledged: Iterable[OwnRaise]) -> tuple[OwnRaise, ...]:
    """Return the acknowledged raises of which the last commit is one.

    A rewind that spares these spares all earlier ones. Commits under way together may have any order. So a raise is
    forgotten only if it had ended before a remembered one began.
    """
    together = (*memory, *acknowledged)
    latest = max((one.began for one in together), default=0)
    return tuple(one for one in together if one.ended >= latest)


def contradicts(memory: Iterable[OwnRaise], fences: Mapping[str, Any]) -> bool:
    """Return whether a database with these tokens, by resource, lacks a raise that this process has acknowledged."""
    return any(fences.get(one.entry.resource) is None or fences[one.entry.resource] < one.entry.token for one in memory)
