"""New epochs of fences: a compare-and-set, on record."""

from dataclasses import dataclass
from enum import StrEnum

from gateway.db.database import Database
from gateway.db.fences import fence_from_row
from gateway.db.queries import load
from gateway.fencing.rules import Fence
from gateway.fencing.token import Token

_SQL = load("epochs")


class Bump(StrEnum):
    """What came of the wish for a new epoch. ``EXHAUSTED``: there is none after the one it has."""

    DONE = "done"
    MISMATCH = "mismatch"
    EXHAUSTED = "exhausted"


@dataclass(frozen=True, slots=True)
class Bumped:
    """``fence`` is the one there is afterwards, None where there never was any. ``ended``: leases that had to end."""

    outcome: Bump
    fence: Fence | None
    ended: int


async def bump(database: Database, resource: str, expected: Token, caller: str, reason: str) -> Bumped:
    """Raise the fence to the beginning of the next epoch, if it carries exactly the expected token; on record.

    Raises ``OutcomeUnknown`` where the database was lost under way.
    """
    row = await database.fetchrow_write(_SQL["bump"], resource, expected.epoch, expected.value, caller, reason)
    assert row is not None
    fence = row["fence"]
    known = fence is not None and fence["resource"] is not None
    return Bumped(Bump(row["outcome"]), fence_from_row(fence) if known else None, row["ended"])
