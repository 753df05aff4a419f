"""The registered naming of tables and buckets."""

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TypeVar
from uuid import UUID

from gateway.db.database import Database, Record, Transaction
from gateway.db.intents import intent_from_row
from gateway.db.pool import columns, load
from gateway.errors import NamingChanged
from gateway.fencing.intent import Intent
from gateway.fencing.naming import BucketNaming, RegisteredNaming, TableNaming

_SQL = load("naming")

NamingT = TypeVar("NamingT", TableNaming, BucketNaming)


async def tables(database: Database) -> tuple[RegisteredNaming[TableNaming], ...]:
    """Return the naming of every table that has one."""
    return tuple(_registered(row, TableNaming.from_json) for row in await database.fetch(_SQL["tables"]))


async def primary_keys(database: Database, tables: Collection[str]) -> list[tuple[str, int]]:
    """Return the tables of these names, ``schema.table``, with the number of columns in their primary keys."""
    dots = [(name[:at], name[at + 1 :]) for name in tables for at, sign in enumerate(name) if sign == "."]
    return [(row["name"], row["columns"]) for row in await database.fetch(_SQL["primary_keys"], *columns(dots, 2))]


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


_LOCK_TABLES = "LOCK TABLE fencing.table_naming IN SHARE ROW EXCLUSIVE MODE"
# Announcements share the lock of their question. So this waits for all of them, and later ones see what it commits.
_LOCK_BUCKETS = "LOCK TABLE fencing.bucket_naming IN ACCESS EXCLUSIVE MODE"
# No barrier raises a fence, and no lock issues a token, between the reading of the old names and the commit.
_LOCK_FENCES = "LOCK TABLE fencing.fence, fencing.lock IN SHARE MODE"


@dataclass(frozen=True, slots=True)
class CarryCount:
    """The effect of carrying fences over a mapping.

    ``carried`` fences and locks have old names in it. ``collisions``: new names that take the place of several.
    ``too_long``: fences whose new name would be too long. ``epoch``: the highest of all.
    """

    carried: int
    collisions: int
    too_long: int
    epoch: int


async def count_carried(database: Database, mapping: str, *arguments: object) -> CarryCount:
    """Count the fences that a mapping carries over. ``mapping``: SQL that yields ``old`` and ``new`` names."""
    (row,) = await database.fetch(_over("count", mapping), *arguments)
    return CarryCount(**row)


async def names_below(database: Database, prefix: str) -> list[str]:
    """Return the names of all fences and locks that begin so."""
    return [row["resource"] for row in await database.fetch(_SQL["names_below"], prefix)]


async def remembered_keys(database: Database, bucket_name: str) -> list[tuple[str, str]]:
    """Return the keys of a bucket that anything is remembered of, each with a resource."""
    return [(row["resource"], row["key"]) for row in await database.fetch(_SQL["remembered_keys"], bucket_name)]


async def old_names(database: Database, patterns: Sequence[str]) -> tuple[int, int]:
    """Count the fences and locks whose names match one of these regular expressions; the highest epoch among them."""
    (row,) = await database.fetch(_SQL["old_names"], list(patterns))
    return row["total"], row["epoch"]


async def lease_holders(database: Database, patterns: Sequence[str]) -> dict[str, str]:
    """Return the holders of leases whose locks match one of these regular expressions, by the name of the lock."""
    return {row["resource"]: row["holder"] for row in await database.fetch(_SQL["holders"], list(patterns))}


async def pending(database: Database, bucket_name: str) -> list[Intent]:
    """Return the object writes of a bucket that may be under way."""
    return [intent_from_row(row["intent"]) for row in await database.fetch(_SQL["pending"], bucket_name)]


async def close_table(database: Database, name: str, relation: int, following: TableNaming) -> None:
    """Commit that no write of a table proves its naming any more. ``following`` is to be the next one."""

    await _close(database, _LOCK_TABLES, "close_table", name, relation, following.to_json())


async def close_bucket(database: Database, name: str, following: BucketNaming) -> None:
    """Commit that no announcement in a bucket proves its naming any more."""

    await _close(database, _LOCK_BUCKETS, "close_bucket", name, following.to_json())


async def _close(database: Database, lock: str, statement: str, *arguments: object) -> None:
    async def close(transaction: Transaction) -> None:
        await transaction.execute(lock)
        await transaction.fetch(_SQL[statement], *arguments)

    await database.run(close)


async def open_table(
    database: Database, table: str, name: str, relation: int, following: TableNaming, carry: "Carry"
) -> None:
    """Carry the fences of a table over, and put its next naming in force. ``table``: its name in SQL.

    The lock of the table waits for the writers that have proved the old naming. Raises ``NamingChanged`` if another
    change has begun meanwhile.
    """

    async def work(transaction: Transaction) -> None:
        await transaction.execute(_LOCK_FENCES)
        await transaction.execute(f"LOCK TABLE {table} IN SHARE ROW EXCLUSIVE MODE")
        await transaction.execute(_LOCK_TABLES)
        # A policy that hid rows would hide fences that have to be carried over. Like this it is an error.
        await transaction.execute("SET LOCAL row_security = off")
        await carry.execute(transaction)
        opened = await transaction.fetch(_SQL["open_table"], name, relation, following.to_json())
        await _record(transaction, f"the table {name}", str(following), carry, opened)

    await database.run(work)


async def open_bucket(
    database: Database, name: str, following: BucketNaming, carry: "Carry", keys: Sequence[tuple[str, str, str]]
) -> None:
    """Carry the fences of a bucket over, and put its next naming in force.

    ``keys``: each key whose resource changes, with the old and the new one. Raises ``NamingChanged`` if another change
    has begun meanwhile.
    """

    async def work(transaction: Transaction) -> None:
        await transaction.execute(_LOCK_FENCES)
        await transaction.execute(_LOCK_BUCKETS)
        await carry.execute(transaction)
        for moved in ("objects", "forbidden", "spent", "tombstones", "uploads"):
            await transaction.fetch(_SQL[f"move_{moved}"], name, *columns(keys, 3))
        opened = await transaction.fetch(_SQL["open_bucket"], name, following.to_json())
        await _record(transaction, f"the bucket {name}", str(following), carry, opened)

    await database.run(work)


@dataclass(frozen=True, slots=True)
class Carry:
    """How fences are carried over: SQL that yields ``old`` and ``new`` names. ``epoch``: all begin anew in this one.

    ``was``: the naming so far, for the record.
    """

    mapping: str
    arguments: Sequence[object]
    was: str
    epoch: int | None = None

    async def execute(self, transaction: Transaction) -> None:
        """Raise the fences of the new names."""
        query = _over("carry" if self.epoch is None else "carry_to_a_new_epoch", self.mapping)
        epoch = () if self.epoch is None else (self.epoch,)
        await transaction.raise_fences(query, *epoch, *self.arguments)


def _over(statement: str, mapping: str) -> str:
    return _SQL[statement].format(mapping=mapping, source=_SQL["source"].format(mapping=mapping))


async def _record(transaction: Transaction, target: str, following: str, carry: Carry, opened: list[Record]) -> None:
    if not opened:
        raise NamingChanged.in_progress(target, carry.was, "another naming")
    details = {"operation": "ApplyNaming", "was": carry.was, "is": following, "epoch": carry.epoch}
    await transaction.execute(_SQL["record"], target, json.dumps(details))
