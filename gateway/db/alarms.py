"""What is known of each alarm, and what it counts. One transaction has it from the look to what follows from it."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from gateway.db.cursors import Place
from gateway.db.database import Database, Transaction
from gateway.db.queries import load

_SQL = load("alarms")

_START = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class State:
    """How far an alarm has looked, and its window: where that ends, and the times of what it holds, ascending.

    While it is on: ``since`` when, the ``total`` it has counted, and the id of the entry that says it was ``raised``.
    """

    place: Place
    moment: datetime
    times: tuple[datetime, ...]
    since: datetime | None
    total: int
    raised: UUID | None


@dataclass(frozen=True, slots=True)
class Counted:
    """A refused write that counts."""

    position: int
    at: datetime


async def introduce(database: Database, name: str, prefix: str, minutes: int) -> None:
    """An alarm that is not known yet looks at what is put on record from now on; one whose rule is new counts anew."""
    await database.fetch_write(_SQL["introduce"], name, prefix, minutes)


async def due(database: Database, names: Sequence[str]) -> list[str]:
    """Those of the named that have something to look at."""
    return [row["name"] for row in await database.fetch(_SQL["due"], list(names))]


async def lock(transaction: Transaction, name: str) -> tuple[State, datetime] | None:
    """Its state, and the time. None while another gateway looks."""
    row = await transaction.fetchrow(_SQL["lock"], name)
    if row is None:
        return None
    times = tuple(_START + timedelta(microseconds=one) for one in json.loads(row["times"]))
    place = Place(row["position"], row["day"])
    return State(place, row["moment"], times, row["since"], row["total"], row["raised"]), row["now"]


async def counted(transaction: Transaction, after: Place, until: int, prefix: str) -> list[Counted]:
    """The refused writes between a place and a position, in the order of the record."""
    rows = await transaction.fetch(_SQL["counted"], after.day, after.position, until, prefix)
    return [Counted(row["position"], row["at"]) for row in rows]


async def particulars(
    transaction: Transaction, since: datetime, until: int, prefix: str, most: int
) -> dict[str, list[Any]]:
    """The most frequent ``resources``, ``holders``, ``callers``, with their counts; the newest ``rejections`` by id."""
    said: dict[str, list[Any]] = {"resources": [], "holders": [], "callers": [], "rejections": []}
    for row in await transaction.fetch(_SQL["particulars"], since, until, prefix, most):
        by = row["by"]
        said[by].append(row["name"] if by == "rejections" else {"name": row["name"], "count": row["count"]})
    return said


async def save(transaction: Transaction, name: str, state: State) -> None:
    """Keep it for the next look, of whichever gateway."""
    times = json.dumps([(one - _START) // timedelta(microseconds=1) for one in state.times])
    place = state.place
    await transaction.execute(
        _SQL["save"], name, place.position, place.day, state.moment, times, state.since, state.total, state.raised
    )
