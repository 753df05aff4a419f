"""The decisions about raises and openings, without any I/O: an acknowledged fence survives the loss of its database.

Each operation is a generator. It yields the effects that it wants, is sent their answers, and returns the outcome. A
process may stop at each ``yield``, for an hour or for ever. The database may be rewound at any moment, and a server
that another one has replaced may go on. ``tests/model/test_journal.py`` tries all of it.

The rules that carry the promise:

- A raise is in the journal before it is in the database. Between the two, the gateway looks at the marker of the newest
  term. An opening moves the marker before it reads the journal. So either the opening reads the raise, or the raise
  sees the marker. Each fence that any session can see is in every database that is opened later.
- An object write looks at the marker once its intent is committed. So its signature is older than the next marker.
- The marker is read before the server is asked for its run. So no opening of an ended run can displace a later one.
- Each opening raises all fences to the journal, in one transaction on the run that its marker names.
- Intents go back with a database, too. Object writes wait for their requests, unless the run continues the last one.
- Issued tokens go back as well. A run that may lack some begins an epoch of locks. The marker has it before.
"""

from collections.abc import Generator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, TypeAlias, TypeVar, cast

from gateway.journal.contents import ACCEPTABLE, Contents, Entry, Flaw, Problem
from gateway.journal.trust import Marker, Mode, Opened, Run, Server, continues, judge, judge_contents, may_serve

Result = TypeVar("Result")

ATTEMPTS = 5
"""How often an operation starts again because another gateway was quicker."""

FORGOTTEN = 1_000_000
"""Terms that an opening skips after a loss: the journal may have forgotten so many."""

ANNOUNCED_FOR = timedelta(days=1)
"""How long an announcement of object writes holds, by the database's clock. Much less than any retention."""


@dataclass(frozen=True, slots=True)
class Loss:
    """A fence that is lower than the journal says, or absent: ``was`` is what the database has."""

    entry: Entry
    was: str | None


# Raises ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Commit:
    """Commit the claims of a write, on a database that was opened for the session's run, in this gateway's mode.

    The transaction raises no fence that is not among ``secured``, and commits only if the opened term is ``looked`` or
    a later one. The answer is ``Committed``, ``Unsecured`` or ``Behind``.
    """

    secured: tuple[Entry, ...]
    looked: int


@dataclass(frozen=True, slots=True)
class Committed:
    """The claims are committed, and as safe as the mode promises once ``claim`` returns this.

    ``raised``: the fences that the transaction raised; ``term``: the term in which the database was opened.
    ``outcome`` is the answer of the statement. It may be a refusal, which the transaction did not have to write.
    """

    term: int
    raised: tuple[Entry, ...] = ()
    outcome: Any = None


@dataclass(frozen=True, slots=True)
class Unsecured:
    """The transaction was rolled back: it would raise these fences, and the journal does not have them yet."""

    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class Behind:
    """The transaction was rolled back: the journal knows a later term than that in which the database was opened."""


@dataclass(frozen=True, slots=True)
class Append:
    """Append raises to the journal, together with those of other writers, and then read the newest marker.

    Without entries, only the marker is read: by a request to the store that was sent after this was asked.
    """

    entries: tuple[Entry, ...] = ()


@dataclass(frozen=True, slots=True)
class Remember:
    """Have raises appended soon, and do not wait for it. They were committed in the ``term``."""

    entries: tuple[Entry, ...]
    term: int


RaiseEffect: TypeAlias = Commit | Append | Remember
RaiseSteps: TypeAlias = Generator[RaiseEffect, Any, Result]


def claim(mode: Mode) -> RaiseSteps[Committed | None]:
    """Carry out the claims of a write or a barrier. Only ``Committed`` may be answered as a success.

    None: nothing was written. The journal knows a later term than this database, which has to be opened again.
    """
    secured: tuple[Entry, ...] = ()
    looked = 0
    for _ in range(ATTEMPTS):
        answer = cast("Committed | Unsecured | Behind", (yield Commit(secured, looked)))
        if isinstance(answer, Committed):
            if mode is Mode.ASYNC and answer.raised:
                yield Remember(answer.raised, answer.term)
            return answer
        if isinstance(answer, Behind):
            return None
        marker = cast(Marker, (yield Append(answer.entries)))
        secured, looked = (*secured, *answer.entries), max(looked, marker.term)
    return None


def send(mode: Mode, entry: Entry, term: int, *, announced: datetime | None) -> RaiseSteps[bool]:
    """Decide whether the request of an object write may be sent, once its intent is committed in the ``term``.

    ``entry``: the resource, its token, and the time of the intent. ``announced``: when this process last announced
    object writes to the resource. Return False if the database has been replaced: the intent must be given up.
    """
    known = announced is not None and entry.at - announced < ANNOUNCED_FOR
    entries = () if known else (replace(entry, objects=entry.at),)
    if mode is Mode.SYNC:
        marker = cast(Marker, (yield Append(entries)))
        return marker.term <= term
    if mode is Mode.ASYNC and entries:
        yield Remember(entries, term)
    return True


# Openings -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReadMarker:
    """Read the marker: a ``Marker``, None where there is none, or a ``Flaw``."""


@dataclass(frozen=True, slots=True)
class AskServer:
    """Ask a session for its run and for the row of the last opening: a ``Server``."""


@dataclass(frozen=True, slots=True)
class Identify:
    """Give the database an installation id if it has none, durably. The next ``AskServer`` shows it."""


@dataclass(frozen=True, slots=True)
class CreateMarker:
    """Replace the marker by the next one, if it is still the one that was read last. Return whether it was."""

    marker: Marker


@dataclass(frozen=True, slots=True)
class ReadJournal:
    """Read the raises that a database with this ``noted`` snapshot may lack: ``Contents``, or a ``Flaw``.

    ``whole``: read all that the journal has. ``salvage``: leave out what cannot be read.
    """

    noted: int
    whole: bool = False
    salvage: bool = False


@dataclass(frozen=True, slots=True)
class FindLower:
    """Return a ``Loss`` for each of these fences that is lower in the database of this run, or absent."""

    run: Run
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class OpenDatabase:
    """In one transaction on this run: write the row, raise the fences and put the ``losses`` on record.

    Return False, and change nothing, if the term of the row is not lower, or the session belongs to another run.

    ``waits``: resources whose object writes and raises wait until the requests of earlier runs are dead; None stands
    for all resources. Without ``continues`` tokens that were issued may be lost: locks begin the row's epoch.
    """

    run: Run
    opened: Opened
    losses: tuple[Loss, ...] = ()
    waits: frozenset[str] | None = frozenset()
    continues: bool = True


@dataclass(frozen=True, slots=True)
class Begin:
    """Append a segment without raises to an empty journal, which says that a database was opened with it."""

    term: int


@dataclass(frozen=True, slots=True)
class Opening:
    """The database is open in this term. ``fresh``: this operation has opened it. ``losses``: fences it raised.

    ``continues``: the run has all that the last one had committed. ``accepted``: the flaw that an operator accepted.
    """

    term: int
    fresh: bool
    losses: tuple[Loss, ...] = ()
    continues: bool = True
    waits: frozenset[str] | None = frozenset()
    accepted: Flaw | None = None
    contents: Contents = field(default_factory=Contents)


@dataclass(frozen=True, slots=True)
class _Again:
    """The opening starts again: another gateway was quicker, or it needs an epoch that its marker does not have."""

    begins_epoch: bool = False


OpenEffect: TypeAlias = (
    ReadMarker | AskServer | Identify | CreateMarker | ReadJournal | FindLower | OpenDatabase | Begin
)
OpenSteps: TypeAlias = Generator[OpenEffect, Any, Result]


def open_database(mode: Mode, *, again: bool = False, accept_loss: bool = False) -> OpenSteps[Opening | Flaw]:
    """Open the database for the run of the server that answers, if it is not open.

    ``again``: read the journal even if it is open, because the journal has got raises that no opening may have read.
    ``accept_loss``: open it in spite of a flaw, after which acknowledged raises may be missing.
    """
    begins_epoch = False
    for _ in range(ATTEMPTS):
        if mode is Mode.OFF:
            marker: Marker | Flaw | None = None
        else:
            marker = cast("Marker | Flaw | None", (yield ReadMarker()))
        server = cast(Server, (yield AskServer()))
        if mode is not Mode.OFF and server.opened.installation is None and marker is None:
            yield Identify()
            continue
        if not again and may_serve(server, mode) and (mode is Mode.OFF or _is_newest(server.opened, marker)):
            return Opening(server.opened.term, fresh=False)
        outcome = yield from _open(mode, server, marker, accept_loss=accept_loss, begins_epoch=begins_epoch)
        # Marker, server and journal were read one after the other. Another gateway may have opened it meanwhile, or
        # another server may have come.
        if isinstance(outcome, Flaw) and mode is not Mode.OFF:
            now = cast(Server, (yield AskServer()))
            if (yield ReadMarker()) != marker or (now.run, now.opened) != (server.run, server.opened):
                continue
        if not isinstance(outcome, _Again):
            return outcome
        begins_epoch = outcome.begins_epoch
    return Flaw(Problem.BUSY, "other gateways are opening the database")


def _is_newest(opened: Opened, marker: Marker | Flaw | None) -> bool:
    return isinstance(marker, Marker) and (marker.installation, marker.term) == (opened.installation, opened.term)


def _open(
    mode: Mode, server: Server, found: Marker | Flaw | None, *, accept_loss: bool, begins_epoch: bool
) -> OpenSteps[Opening | Flaw | _Again]:
    """Open the database once. ``begins_epoch``: an attempt before has found that tokens may be lost."""
    opened, marker = server.opened, found if isinstance(found, Marker) else None
    flaw = judge(server, found, mode)
    if flaw is None and mode is not Mode.OFF:
        # A database that must stay closed moves no marker: that would replace a server that is open.
        flaw = yield from _judge_journal(server)
    if flaw is not None and not (accept_loss and flaw.problem in ACCEPTABLE):
        return flaw
    accepted = flaw
    term = max(opened.term, marker.term if marker else 0) + (1 if accepted is None else FORGOTTEN)
    row = replace(opened, run=server.run, term=term, mode=mode)
    if mode is Mode.OFF:
        continued = not accept_loss and continues(server, opened.term, 0)
        row = replace(row, began=term if accept_loss else row.began, epoch=opened.epoch + (not continued))
        nothing: frozenset[str] | None = None if accept_loss else frozenset()
        plain = Opening(term, fresh=True, continues=continued, waits=nothing, accepted=accepted)
        return plain if (yield OpenDatabase(server.run, row, (), nothing, continues=continued)) else _Again()
    row = replace(row, installation=marker.installation if marker else opened.installation)
    assert row.installation is not None
    base = _base(server, marker)
    begins_epoch = begins_epoch or accepted is not None or not continues(server, base, 0)
    epoch = max(opened.epoch, marker.epoch if marker else 0) + begins_epoch
    if not (yield CreateMarker(Marker(row.installation, term, base, server.run, server.now, epoch))):
        return _Again(begins_epoch)
    salvage = accepted is not None
    read = cast("Contents | Flaw", (yield ReadJournal(opened.snapshot, whole=salvage, salvage=salvage)))
    if isinstance(read, Flaw):
        return read
    losses = cast("tuple[Loss, ...]", (yield FindLower(server.run, tuple(read.entries.values()))))
    continued = accepted is None and not losses and continues(server, base, read.position)
    if not continued and not begins_epoch:
        return _Again(begins_epoch=True)
    waits = None if accepted else (yield from _find_waiting(opened, read, continued=continued))
    if isinstance(waits, Flaw):
        return waits
    row = _noted(row, read, anew=accepted is not None or opened.mode.is_weaker_than(mode))
    row = replace(row, epoch=opened.epoch if continued else epoch)
    if not (yield OpenDatabase(server.run, row, losses, waits, continues=continued)):
        return _Again(begins_epoch)
    if read.pristine:
        yield Begin(term)
    return Opening(term, fresh=True, losses=losses, continues=continued, waits=waits, accepted=accepted, contents=read)


def _judge_journal(server: Server) -> OpenSteps[Flaw | None]:
    """Return the reason why the contents of the journal keep the database closed, before anything is changed."""
    read = cast("Contents | Flaw", (yield ReadJournal(server.opened.snapshot)))
    return read if isinstance(read, Flaw) else judge_contents(server, read)


def _find_waiting(opened: Opened, read: Contents, *, continued: bool) -> OpenSteps[frozenset[str] | Flaw]:
    """Return the resources whose lost intents may have requests under way."""
    if continued:
        return frozenset()
    whole = read if read.whole else cast("Contents | Flaw", (yield ReadJournal(opened.snapshot, whole=True)))
    if isinstance(whole, Flaw):
        return whole
    return frozenset(name for name, entry in whole.entries.items() if entry.objects is not None)


def _noted(row: Opened, read: Contents, *, anew: bool) -> Opened:
    """Return the row with the snapshot whose raises the database has now. ``anew``: the journal begins here."""
    if read.whole:
        row = replace(row, snapshot=read.number)
    return replace(row, began=row.term) if anew else row


def _base(server: Server, marker: Marker | None) -> int:
    """Return the newest term of a run before this one."""
    if marker is None:
        return server.opened.term
    return marker.base if marker.run == server.run else marker.term


FlushEffect: TypeAlias = Append | AskServer | FindLower
FlushSteps: TypeAlias = Generator[FlushEffect, Any, Result]


def flush(mode: Mode, entries: tuple[Entry, ...], term: int) -> FlushSteps[bool]:
    """Append raises that were acknowledged before, in the ``term`` or later ones.

    Return whether the database must be opened once more: an opening may have read the journal without them.
    """
    marker = cast(Marker, (yield Append(entries)))
    if marker.term <= term:
        return False
    server = cast(Server, (yield AskServer()))
    if not may_serve(server, mode):
        return True
    lower = cast("tuple[Loss, ...]", (yield FindLower(server.run, entries)))
    return bool(lower)
