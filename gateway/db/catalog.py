"""Reads from the database's own catalog what the table plane has to know of the exposed tables."""

from collections.abc import Iterable, Sequence

from gateway.db.database import Database, Record, Transaction
from gateway.db.pool import load

_SQL = load("catalog")
_OF_THE_SCHEMA = {"fencing.is_distributed_v1(c.oid)": "false", "fencing.reaches_foreign_v1(c.oid)": "c.relkind = 'f'"}
"""Functions of the fencing schema, and what can be told without them. Citus, and tables behind a view, are not seen."""


async def relations(database: Database, schemas: Sequence[str], *, installed: bool = True) -> list[Record]:
    """One row for each table and view of ``schemas``; what there are several of in it is a JSON text.

    All names of types, and those in defaults, are qualified unless they are PostgreSQL's own, so that they mean the
    same in every session. ``installed``: the database has the fencing schema. Raises ``Unavailable`` where the database
    cannot be reached.
    """
    query = _SQL["relations"]
    for called, known in () if installed else _OF_THE_SCHEMA.items():
        query = query.replace(called, known)

    async def read(transaction: Transaction) -> list[Record]:
        await transaction.execute("SET LOCAL search_path = ''")
        return await transaction.fetch(query, list(schemas))

    return await database.run(read)


async def references(database: Database) -> Record:
    """Return the foreign keys that change rows, and what is below each table and view, as JSON texts."""
    (row,) = await database.fetch(_SQL["references"], None)
    return row


async def references_from(transaction: Transaction, relations: Iterable[int]) -> Record:
    """Return, as the catalog is now, what ``references`` has that leads away from these relations."""
    (row,) = await transaction.fetch(_SQL["references"], sorted(relations))
    return row


async def functions(database: Database, names: Sequence[str]) -> list[Record]:
    """One row for each form of the functions called ``schema.name``; what there are several of in it is a JSON text.

    Types are named as by ``relations``. Raises ``Unavailable`` where the database cannot be reached.
    """

    async def read(transaction: Transaction) -> list[Record]:
        await transaction.execute("SET LOCAL search_path = ''")
        return await transaction.fetch(_SQL["functions"], list(names))

    return await database.run(read)


async def schema_names(database: Database) -> list[str]:
    """Return the schemas of the users. Raises ``Unavailable`` where the database cannot be reached."""
    return [row["name"] for row in await database.fetch(_SQL["schemas"])]


async def function_names(database: Database, schemas: Sequence[str]) -> list[str]:
    """Return the functions of schemas as ``schema.name``. Raises ``Unavailable`` as ``relations`` does."""
    return [row["name"] for row in await database.fetch(_SQL["function_names"], list(schemas))]
