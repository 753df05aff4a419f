"""The registered naming of tables and buckets."""

from collections.abc import Callable, Collection
from typing import TypeVar
from uuid import UUID

from gateway.db.database import Database, Record
from gateway.db.pool import load
from gateway.fencing.naming import BucketNaming, RegisteredNaming, TableNaming

_SQL = load("naming")

NamingT = TypeVar("NamingT", TableNaming, BucketNaming)


async def tables(database: Database) -> tuple[RegisteredNaming[TableNaming], ...]:
    """Return the naming of every table that has one."""
    return tuple(_registered(row, TableNaming.from_json) for row in await database.fetch(_SQL["tables"]))


async def buckets(database: Database) -> tuple[RegisteredNaming[BucketNaming], ...]:
    """Return the naming of every bucket that has one."""
    return tuple(_registered(row, BucketNaming.from_json) for row in await database.fetch(_SQL["buckets"]))


async def bucket(database: Database, name: str) -> RegisteredNaming[BucketNaming] | None:
    """Return the naming of a bucket; None if it has none yet."""
    row = await database.fetchrow(_SQL["bucket"], name)
    return None if row is None else _registered(row, BucketNaming.from_json)


async def register_table(
    database: Database, name: str, relation: int, naming: TableNaming, agreeing: Collection[UUID]
) -> None:
    """Register the naming of a table under its name, ``schema.table``, unless another gateway has just done so.

    ``agreeing``: the generations of the namings that concern this name or relation, all found to be the same as this.
    """
    await database.fetchrow_write(_SQL["register_table"], name, relation, naming.to_json(), list(agreeing))


async def register_bucket(database: Database, name: str, naming: BucketNaming) -> None:
    """Give a bucket its first naming, unless another gateway has just done so."""
    await database.fetchrow_write(_SQL["register_bucket"], name, naming.to_json())


def _registered(row: Record, read: Callable[[str], NamingT]) -> RegisteredNaming[NamingT]:
    change = None if row["change"] is None else read(row["change"])
    return RegisteredNaming(row["name"], read(row["naming"]), row["generation"], change, row["relation"])
