"""Guards as the database has them: what is installed on which table, and what installing one has to know."""

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.db.database import Database, Record, Transaction
from gateway.db.queries import load

_SQL = load("guards")


@dataclass(frozen=True, slots=True)
class Role:
    """A role of the database. A superuser can switch triggers off."""

    name: str
    superuser: bool


@dataclass(frozen=True, slots=True)
class Relation:
    """A table that a guard is for.

    ``relations`` are the table and its partitions, quoted, the table first; ``heirs``: it has children by inheritance;
    ``writers`` may write it beside its owner; ``functions`` are guard functions, in the schema fencing, that only this
    table uses; ``guarded``: there is a guard, or a part of one; ``able``: who asks has the rights that the functions of
    a guard need; ``watchable``: its primary key is of built-in types, None where it has none.
    """

    owner: str
    is_partition: bool
    has_heirs: bool
    relations: tuple[str, ...]
    writers: tuple[str, ...]
    functions: tuple[str, ...]
    guarded: bool
    able: bool
    watchable: bool | None


@dataclass(frozen=True, slots=True)
class Installed:
    """A guard that is there. ``missing``: triggers of it that are not, or are switched off."""

    schema: str
    table: str
    function: str
    body: str
    arguments: tuple[str, ...]
    missing: tuple[str, ...]


async def session(database: Database) -> Role:
    """The role that sessions of this database log in as."""
    row = await database.fetchrow(_SQL["session"])
    assert row is not None
    return Role(row["role"], row["superuser"])


async def role(database: Database, name: str) -> Role | None:
    """The role of this name; None where there is none."""
    row = await database.fetchrow(_SQL["role"], name)
    return None if row is None else Role(row["role"], row["superuser"])


async def relation(database: Database, schema: str, name: str) -> Relation | None:
    """The table; None where there is none of this name."""
    row = await database.fetchrow(_SQL["relation"], schema, name)
    if row is None:
        return None
    return Relation(
        row["owner"],
        row["is_partition"],
        row["has_heirs"],
        tuple(row["relations"]),
        tuple(row["writers"]),
        tuple(row["functions"]),
        row["guarded"],
        row["able"],
        row["watchable"],
    )


async def installed(database: Database, schemas: Sequence[str]) -> list[Installed]:
    """The guards on tables of these schemas, by name."""
    return [_installed(row) for row in await database.fetch(_SQL["installed"], list(schemas))]


async def run(database: Database, script: str) -> None:
    """Run the statements of a script, all or none. Raises ``SqlError`` where the database refuses one."""

    async def work(transaction: Transaction) -> None:
        await transaction.execute(script)

    await database.run(work)


def _installed(row: Record) -> Installed:
    # PostgreSQL ends each argument of a trigger with a zero byte.
    arguments = bytes(row["arguments"]).decode().split("\0")[:-1]
    return Installed(row["schema"], row["name"], row["function"], row["body"], tuple(arguments), tuple(row["missing"]))
