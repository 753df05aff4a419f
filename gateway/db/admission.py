"""How tokens stand with the fences and the lease service of this database."""

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.db.database import Database
from gateway.db.fences import fence_from_row
from gateway.db.queries import load
from gateway.fencing.lease import Mode
from gateway.fencing.rules import Fence
from gateway.fencing.token import Token

_SQL = load("admission")


@dataclass(frozen=True, slots=True)
class Found:
    """What the database knows of a token. ``fence``: that of its resource, None where there is none.

    ``issued``: the counter of the lease service has come as far; ``held``: a lease of exactly this token lasts, by the
    database's clock.
    """

    fence: Fence | None
    issued: bool
    held: bool


async def standing(database: Database, shown: Sequence[tuple[str, Token]], mode: Mode | None = None) -> list[Found]:
    """How each token stands with its resource, in the same order. ``mode``: leases of another one do not count."""
    rows = await database.fetch(
        _SQL["standing"],
        [resource for resource, _ in shown],
        [token.epoch for _, token in shown],
        [token.value for _, token in shown],
        mode,
    )
    return [
        Found(
            None if row["fence"] is None or row["fence"]["resource"] is None else fence_from_row(row["fence"]),
            row["issued"],
            row["held"],
        )
        for row in rows
    ]
