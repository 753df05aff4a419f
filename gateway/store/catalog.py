"""Reads from the database's own catalog what the table plane has to know of the exposed tables."""

from collections.abc import Sequence

from gateway.store.database import Database, Record
from gateway.store.queries import load

_SQL = load("catalog")


async def relations(database: Database, schemas: Sequence[str]) -> list[Record]:
    """One row for each table and view of ``schemas``: schema, name, kind, and columns and keys as JSON texts.

    Raises ``Unavailable`` where the database cannot be reached.
    """
    return await database.fetch(_SQL["relations"], list(schemas))
