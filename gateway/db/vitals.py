"""How much there is of what should not be much: for those who watch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gateway.db.cursors import Place
from gateway.db.database import Database
from gateway.db.queries import load

_SQL = load("vitals")


@dataclass(frozen=True, slots=True)
class Vitals:
    """Numbers of rows, up to the limit that was asked for; ages in seconds, 0 where there are none.

    ``webhooks``: entries not looked at for it, and for how long it has been failing, by name. ``alarms`` are those that
    are known, and whether each is on.
    """

    intents: int
    oldest_intent: float
    tombstones: int
    uploads: int
    position: int
    unsealed: int
    oldest_unsealed: float
    held: int
    waiters: int
    webhooks: Mapping[str, tuple[int, float]]
    alarms: Mapping[str, bool]


async def end(database: Database) -> Place:
    """The end of the record."""
    row = await database.fetchrow(_SQL["head"])
    assert row is not None
    return Place(row["position"], row["day"])


async def entries(database: Database, after: Place, limit: int) -> tuple[Mapping[str, int], Place]:
    """How many entries of which kind come after a place, at most ``limit`` in all; and where these end."""
    rows = await database.fetch(_SQL["entries"], after.day, after.position, limit)
    last = max((Place(row["position"], row["day"]) for row in rows), key=lambda place: place.position, default=after)
    return {row["kind"]: row["number"] for row in rows}, last


async def read(database: Database, limit: int, webhooks: Sequence[str], alarms: Sequence[str]) -> Vitals:
    """How things stand. Raises ``Unavailable``."""
    counted: dict[str, float] = {}
    for query in ("objects", "record", "leases"):
        row = await database.fetchrow(_SQL[query], limit)
        assert row is not None
        counted.update(row)
    behind = await database.fetch(_SQL["webhooks"], list(webhooks)) if webhooks else []
    active = await database.fetch(_SQL["alarms"], list(alarms)) if alarms else []
    return Vitals(
        **counted,  # type: ignore[arg-type]  # each query has the names and types of its fields
        webhooks={row["name"]: (row["behind"], row["failing"]) for row in behind},
        alarms={row["name"]: row["active"] for row in active},
    )
