"""How far each webhook is in the record, and who is at work on it. All by the database's clock."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from gateway.db.cursors import Place
from gateway.db.database import Database
from gateway.db.queries import load
from gateway.db.record import entry_from_row
from gateway.fencing.record import Entry, Kind

_SQL = load("webhooks")


@dataclass(frozen=True, slots=True)
class Outbox:
    """A webhook that this gateway is at work on. ``sending``: the last position of the message that may have been sent
    before, and is to be sent again as it was; ``failures``: in a row, until now.
    """

    name: str
    place: Place
    sending: int | None
    failures: int


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which entries a webhook is sent: ``kinds`` at resources that begin with ``prefix``; those of ``alarms``."""

    kinds: tuple[Kind, ...]
    prefix: str
    observed: bool
    alarms: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Standing:
    """How a webhook stands. ``behind``: entries of the record that have not been looked at for it."""

    name: str
    position: int
    behind: int
    failures: int
    failing_since: datetime | None
    last_error: str | None
    not_before: datetime | None
    paused_at: datetime | None
    delivered_at: datetime | None


async def introduce(database: Database, names: Sequence[str]) -> None:
    """Those not known yet are told what is put on record from now on."""
    await database.fetch_write(_SQL["introduce"], list(names))


async def take(database: Database, names: Sequence[str], owner: UUID, seconds: float) -> list[Outbox]:
    """Of the named, those with something to do, for so long: theirs is this gateway's alone."""
    rows = await database.fetch_write(_SQL["take"], list(names), owner, seconds)
    return [Outbox(row["name"], Place(row["position"], row["day"]), row["sending"], row["failures"]) for row in rows]


async def wanted(database: Database, after: Place, until: int, wanted: Wanted, most: int) -> list[tuple[Entry, Place]]:
    """The entries a webhook is sent, of the stretch after a place and up to a position; at most so many."""
    rows = await database.fetch(
        _SQL["wanted"],
        after.day,
        after.position,
        until,
        [kind.value for kind in wanted.kinds],
        wanted.prefix,
        wanted.observed,
        list(wanted.alarms),
        most,
    )
    return [(entry_from_row(row), Place(row["position"], row["day"])) for row in rows]


async def sending(database: Database, outbox: Outbox, owner: UUID, last: int | None, seconds: float) -> datetime | None:
    """Put down which entries are about to be sent, and have so much time again; the time now.

    None: it is another gateway's now.
    """
    row = await database.fetchrow_write(_SQL["sending"], outbox.name, owner, outbox.place.position, last, seconds)
    return None if row is None else row["now"]


async def advance(database: Database, outbox: Outbox, owner: UUID, place: Place) -> bool:
    """Received up to there. False: it is another gateway's now."""
    arguments = (outbox.name, owner, outbox.place.position, place.position, place.day)
    return await database.fetchrow_write(_SQL["advance"], *arguments) is not None


async def skip(database: Database, outbox: Outbox, owner: UUID, place: Place) -> bool:
    """Nothing up to there was for it. False: it is another gateway's now."""
    arguments = (outbox.name, owner, outbox.place.position, place.position, place.day)
    return await database.fetchrow_write(_SQL["skip"], *arguments) is not None


async def fail(
    database: Database, outbox: Outbox, owner: UUID, error: str, seconds: float, *, paused: bool = False
) -> None:
    """It was not taken. Nobody tries again for so long; with ``paused``, before a test message has been accepted."""
    await database.fetch_write(_SQL["fail"], outbox.name, owner, outbox.place.position, error, seconds, paused)


async def release(database: Database, name: str, owner: UUID) -> None:
    """Let others go on with it at once."""
    await database.fetch_write(_SQL["release"], name, owner)


async def resume(database: Database, name: str) -> None:
    """Try at once what waits, paused or not."""
    await database.fetch_write(_SQL["resume"], name)


async def listed(database: Database, names: Sequence[str]) -> list[Standing]:
    """How the named stand, in the order of their names. One that no gateway has introduced yet is left out."""
    return [Standing(**row) for row in await database.fetch(_SQL["listed"], list(names))]
