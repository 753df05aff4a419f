"""Places in the record, for those who go through it in order, a bounded stretch at a time."""

from dataclasses import dataclass
from datetime import date

from gateway.db.database import Database, Transaction
from gateway.db.queries import load

_SQL = load("cursors")


@dataclass(frozen=True, slots=True)
class Place:
    """A place in the record: a position, and the day it was sealed on, by which older partitions are left out."""

    position: int
    day: date


@dataclass(frozen=True, slots=True)
class Stretch:
    """A stretch of the record: where it ends; how many entries before its first one are not there any more.

    ``whole``: it goes to the end of the record.
    """

    end: Place
    dropped: int
    whole: bool


async def stretch(executor: Database | Transaction, after: Place, most: int) -> Stretch:
    """The record after a place, at most so many entries of it. It may be empty, and ends where it begins then."""
    row = await executor.fetchrow(_SQL["span"], after.day, after.position, most)
    assert row is not None
    if row["first"] is None:
        return Stretch(Place(row["head"], row["head_day"]), row["head"] - after.position, whole=True)
    end = Place(row["last"], row["day"])
    return Stretch(end, row["first"] - after.position - 1, whole=end.position == row["head"])
