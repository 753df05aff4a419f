"""How far each webhook is in the record, and who is at work on it. All by the database's clock."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from gateway.db.database import Database, Transaction
from gateway.db.pool import load
from gateway.db.record import RecordPosition, entry_from_row
from gateway.fencing.record import Entry, EntryReason, Kind

_SQL = load("webhooks")


@dataclass(frozen=True, slots=True)
class ClaimedWebhook:
    """A webhook that this gateway is at work on. ``sending``: the last position of the message that may have been sent
    before, and is to be sent again as it was; ``failures``: in a row, until now.
    """

    name: str
    place: RecordPosition
    sending: int | None
    failures: int


@dataclass(frozen=True, slots=True)
class EntryFilter:
    """Which entries a webhook is sent: ``kinds`` at resources that begin with ``prefix``; those of ``alarms``.

    Entries with a reason have none of ``except_reasons``.
    """

    kinds: tuple[Kind, ...]
    prefix: str
    observed: bool
    alarms: tuple[str, ...]
    except_reasons: tuple[EntryReason, ...] = ()


@dataclass(frozen=True, slots=True)
class WebhookStatus:
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
    """Introduce webhooks. New ones begin at the end of the record."""
    await database.fetch_write(_SQL["introduce"], list(names))


async def take(database: Database, names: Sequence[str], owner: UUID, seconds: float) -> list[ClaimedWebhook]:
    """Of the named, those with something to do, for so long: theirs is this gateway's alone."""
    rows = await database.fetch_write(_SQL["take"], list(names), owner, seconds)
    return [
        ClaimedWebhook(row["name"], RecordPosition(row["position"], row["day"]), row["sending"], row["failures"])
        for row in rows
    ]


async def read_entries(
    database: Database, after: RecordPosition, until: int, selection: EntryFilter, most: int
) -> list[tuple[Entry, RecordPosition]]:
    """Return at most so many entries that a webhook is sent, after a place and up to a position."""
    rows = await database.fetch(
        _SQL["wanted"],
        after.day,
        after.position,
        until,
        [kind.value for kind in selection.kinds],
        selection.prefix,
        selection.observed,
        list(selection.alarms),
        most,
        [reason.value for reason in selection.except_reasons],
    )
    return [(entry_from_row(row), RecordPosition(row["position"], row["day"])) for row in rows]


async def mark_sending(
    database: Database, outbox: ClaimedWebhook, owner: UUID, last: int | None, seconds: float
) -> datetime | None:
    """Put down which entries are about to be sent, and have so much time again; the time now.

    None: it is another gateway's now.
    """
    row = await database.fetchrow_write(_SQL["sending"], outbox.name, owner, outbox.place.position, last, seconds)
    return None if row is None else row["now"]


async def advance(
    database: Database, outbox: ClaimedWebhook, owner: UUID, place: RecordPosition, *, received: bool
) -> bool:
    """Go on behind a place: all up to there was ``received``, or nothing was for it.

    False: it is another gateway's now.
    """
    arguments = (outbox.name, owner, outbox.place.position, place.position, place.day)
    return await database.fetchrow_write(_SQL["advance" if received else "skip"], *arguments) is not None


async def fail(
    database: Database, outbox: ClaimedWebhook, owner: UUID, error: str, seconds: float, *, paused: bool = False
) -> None:
    """Note a failed attempt. The next one comes after so long; with ``paused``, after an accepted test message."""
    await database.fetch_write(_SQL["fail"], outbox.name, owner, outbox.place.position, error, seconds, paused)


async def release(database: Database, name: str, owner: UUID) -> None:
    """Let others go on with it at once."""
    await database.fetch_write(_SQL["release"], name, owner)


async def resume(database: Database, name: str) -> None:
    """Try at once what waits, paused or not."""
    await database.fetch_write(_SQL["resume"], name)


async def list_statuses(database: Database, names: Sequence[str]) -> list[WebhookStatus]:
    """How the named stand, in the order of their names. One that no gateway has introduced yet is left out."""
    return [WebhookStatus(**row) for row in await database.fetch(_SQL["listed"], list(names))]


_START = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Window:
    """The times of refused writes that an alarm looks at. They are aware.

    ``moment`` is the end of the window and never goes back. ``times`` are the newest times in it, ascending, at most
    one more than the rule allows. While the alarm is on, ``since`` is when it began, and ``total`` is its count from
    the beginning of that window.
    """

    moment: datetime = _START
    times: tuple[datetime, ...] = ()
    since: datetime | None = None
    total: int = 0


@dataclass(frozen=True, slots=True)
class AlarmState:
    """How far an alarm has looked, its window, and the id of the entry that says it was ``raised``, while it is on."""

    place: RecordPosition
    window: Window
    raised: UUID | None


@dataclass(frozen=True, slots=True)
class AlarmCount:
    """A refused write that counts."""

    position: int
    at: datetime


async def introduce_alarms(database: Database, name: str, prefix: str, minutes: int) -> None:
    """Introduce an alarm. A new one looks at entries from now on; one with a changed rule counts anew."""
    await database.fetch_write(_SQL["introduce_alarm"], name, prefix, minutes)


async def list_due_alarms(database: Database, names: Sequence[str]) -> list[str]:
    return [row["name"] for row in await database.fetch(_SQL["due"], list(names))]


async def lock_alarm(transaction: Transaction, name: str) -> tuple[AlarmState, datetime] | None:
    """Its state, and the time. None while another gateway looks."""
    row = await transaction.fetchrow(_SQL["lock"], name)
    if row is None:
        return None
    times = tuple(_START + timedelta(microseconds=one) for one in json.loads(row["times"]))
    place = RecordPosition(row["position"], row["day"])
    return AlarmState(place, Window(row["moment"], times, row["since"], row["total"]), row["raised"]), row["now"]


async def list_refusals(transaction: Transaction, after: RecordPosition, until: int, prefix: str) -> list[AlarmCount]:
    rows = await transaction.fetch(_SQL["counted"], after.day, after.position, until, prefix)
    return [AlarmCount(row["position"], row["at"]) for row in rows]


async def summarize_refusals(
    transaction: Transaction, since: datetime, until: int, prefix: str, most: int
) -> dict[str, list[Any]]:
    """Return the most frequent ``resources``, ``holders`` and ``callers``, with counts, and the newest ``rejections``
    by id.
    """
    said: dict[str, list[Any]] = {"resources": [], "holders": [], "callers": [], "rejections": []}
    for row in await transaction.fetch(_SQL["particulars"], since, until, prefix, most):
        by = row["by"]
        said[by].append(row["name"] if by == "rejections" else {"name": row["name"], "count": row["count"]})
    return said


async def save_alarm(transaction: Transaction, name: str, state: AlarmState) -> None:
    """Keep it for the next look, of whichever gateway."""
    place, window = state.place, state.window
    times = json.dumps([(one - _START) // timedelta(microseconds=1) for one in window.times])
    kept = (window.moment, times, window.since, window.total, state.raised)
    await transaction.execute(_SQL["save"], name, place.position, place.day, *kept)
