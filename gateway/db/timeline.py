"""Sums up the record of one resource in the database, so that a hundred thousand entries make one picture."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from gateway.db import fences, leases
from gateway.db.database import Database, Record
from gateway.db.pool import columns, load
from gateway.db.record import token_from_row
from gateway.fencing.record import Kind
from gateway.fencing.token import Token, pair
from gateway.timeline.history import (
    Activity,
    History,
    LeaseEvent,
    Party,
    Refusals,
    Remark,
    Span,
    Takeover,
    Tally,
    Totals,
)

_SQL = load("timeline")

PIECES = 240
"""Pieces a span is cut into; refused writes of one lane are summed up in each."""
ALL_PARTIES = 12
MOST_REFUSED = 6
NEWEST = 4
"""So many parties are all shown; of more, those with the most refused writes and those with the newest tokens."""
_REMARKS = 50
_BARS = 80
_NEAR = timedelta(minutes=1)


async def read_extent(
    database: Database, resource: str, position: int, within: Span | None = None
) -> tuple[datetime, datetime] | None:
    """Return the first and the last event of note, in the whole record or within a span; None if there is none.

    The first event may be that a later overtaken holder raised the fence, if that was not long before.
    """
    if within is None:
        (row,) = await database.search(_SQL["whole"], resource, position)
    else:
        (row,) = await database.search(_SQL["extent"], resource, position, within.since, within.until)
    first, last, begun = row["first"], row["last"], row["begun"]
    if first is None:
        return None
    is_near = begun is not None and first - begun <= max(last - first, _NEAR)
    return (min(first, begun) if is_near else first), last


async def read_history(database: Database, resource: str, span: Span, position: int) -> History:
    """One resource during one span, up to a position of the record."""
    during = (resource, position, span.since, span.until)
    rows = await database.search(_SQL["parties"], *during, ALL_PARTIES, MOST_REFUSED, NEWEST)
    parties = tuple(_tally(row) for row in rows)
    fence = await fences.read(database, resource)
    tokens = _tokens([*(tally.party.token for tally in parties), fence.token if fence else None])
    takeovers = [_takeover(row) for row in await database.search(_SQL["takeovers"], resource, position, *tokens)]
    met = [row["met"] for row in rows if row["met"] is not None]
    takeovers += [_met(row) for row in await database.search(_SQL["met"], resource, sorted(set(met)))]
    totals = Totals() if not rows else _totals(rows[0])
    remarks = await database.search(_SQL["remarks"], *during, _REMARKS)
    crowded = totals.parties > len(parties)
    return History(
        resource,
        span,
        fence,
        totals,
        parties=parties,
        takeovers=tuple(takeovers),
        refusals=await _refusals(database, during, tokens),
        leases=(
            *[_lease_event(row) for row in await database.search(_SQL["leases"], *during, *tokens)],
            *await _living(database, resource),
        ),
        remarks=tuple(_remark(row) for row in reversed(remarks)),
        remarked=remarks[0]["in_all"] if remarks else 0,
        activity=await _activity(database, resource, position, span) if crowded else (),
        counted=await count_counted(database, span.since, span.until, resource),
    )


async def count_counted(
    database: Database, since: datetime, until: datetime | None = None, resource: str | None = None
) -> int:
    """Return how many refusals by guards are known by their number alone: in a time, and perhaps of this resource."""
    (row,) = await database.search(_SQL["counted"], since, until, resource)
    return int(row["counted"])


async def count_pending(database: Database, resource: str) -> tuple[int, datetime | None]:
    """How many object writes are under way, and since when the oldest."""
    (row,) = await database.fetch(_SQL["pending"], resource)
    return row["count"], row["oldest"]


async def _refusals(
    database: Database, during: tuple[str, int, datetime, datetime], tokens: Sequence[Sequence[int]]
) -> tuple[Refusals, ...]:
    """In pieces of the span. Which entry a piece begins with is looked up afterwards: it is one of thousands."""
    resource, _, since, until = during
    rows = await database.search(_SQL["refusals"], *during, (until - since).total_seconds() / PIECES, *tokens)
    found = await database.search(_SQL["ids"], resource, [row["position"] for row in rows])
    ids = {row["position"]: row["id"] for row in found}
    return tuple(
        Refusals(
            (token_from_row(row), row["holder"]),
            row["first"],
            row["last"],
            row["count"],
            row["noted"],
            row["reason"],
            ids[row["position"]],
            row["requests"],
        )
        for row in rows
        if row["position"] in ids
    )


async def _living(database: Database, resource: str) -> list[LeaseEvent]:
    (view,) = await leases.read_locks(database, [resource], 0)
    return [
        LeaseEvent(hold.acquired_at, Kind.LEASE_GRANTED, Party(hold.token, hold.holder, hold.caller))
        for hold in view.holders
    ]


async def _activity(database: Database, resource: str, position: int, span: Span) -> tuple[Activity, ...]:
    width = span.length / _BARS
    rows = await database.search(_SQL["activity"], resource, position, span.since, span.until, width.total_seconds())
    return tuple(
        Activity(
            Span(span.since + row["piece"] * width, min(span.since + (row["piece"] + 1) * width, span.until)),
            row["refused"],
            row["takeovers"],
            row["requests"],
        )
        for row in rows
        if row["piece"] < _BARS
    )


def _tokens(tokens: Sequence[Token | None]) -> list[Sequence[int]]:
    """Epochs and values, each token once, as arguments of a statement."""
    return columns(map(pair, sorted({token for token in tokens if token is not None})), 2)


def _party(row: Record, prefix: str = "") -> Party:
    return Party(token_from_row(row, prefix), row[f"{prefix}holder"], row[f"{prefix}caller"])


def _tally(row: Record) -> Tally:
    return Tally(_party(row), row["refused"], row["noted"], row["first"], row["last"], row["requests"])


def _totals(row: Record) -> Totals:
    return Totals(row["parties"], row["zombies"], row["refused_in_all"], row["noted_in_all"], row["requests_in_all"])


def _takeover(row: Record) -> Takeover:
    over = None if row["fence_value"] is None else _party(row, "fence_")
    return Takeover(row["at"], Kind(row["kind"]), _party(row), over, row["fence_raised_at"])


def _met(row: Record) -> Takeover:
    return Takeover(row["fence_raised_at"], Kind.RAISED, _party(row, "fence_"), _party(row), None, inferred=True)


def _lease_event(row: Record) -> LeaseEvent:
    return LeaseEvent(row["at"], Kind(row["kind"]), _party(row), row["granted_at"])


def _remark(row: Record) -> Remark:
    return Remark(row["at"], Kind(row["kind"]), row["id"], _party(row), row["count"])
