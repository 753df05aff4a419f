"""The ways in which roles of the database could write tables without the gateway."""

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.db.database import Database
from gateway.db.pool import load

_SQL = load("access")
_MEMBERSHIP_OPTIONS = 160000
_PARAMETER_PRIVILEGES = 150000


@dataclass(frozen=True, slots=True)
class Way:
    """A way of one login role, ``who``, to write; PUBLIC is every role.

    ``relation`` is quoted, and empty for a way to write any table. ``through`` is the role that has the right.
    ``detail`` names the privileges, or the function, view, table or schema. ``fix`` is SQL that closes it, if any.
    """

    relation: str
    way: str
    who: str
    through: str
    detail: str
    fix: str


@dataclass(frozen=True, slots=True)
class FencedTable:
    """A table, quoted, whose rows have fences, or that holds the fences. ``guarded``: a guard checks direct writers."""

    relation: str
    guarded: bool


async def fenced_tables(database: Database, tables: Sequence[str], guarded: Sequence[str]) -> list[FencedTable]:
    """Return these tables with their partitions and heirs, and those that hold the fences. All names are quoted."""
    rows = await database.fetch(_SQL["fenced"], list(tables), list(guarded))
    return [FencedTable(row["relation"], row["guarded"]) for row in rows]


async def ways_to_any_table(database: Database, trusted: Sequence[str], version: int) -> list[Way]:
    """Return the ways that are not about one table. ``version`` is the server's, as in ``server_version_num``."""
    rows = await database.fetch(_SQL["of_server"], list(trusted), _membership(version))
    return [Way("", row["way"], row["who"], row["through"], "", row["fix"]) for row in rows]


async def ways_to_tables(
    database: Database, tables: Sequence[FencedTable], trusted: Sequence[str], version: int
) -> list[Way]:
    """Return the ways to write one of these tables, but none of roles that could write any table."""
    names = [table.relation for table in tables]
    rows = await database.fetch(_SQL["on_tables"], names, list(trusted), _membership(version))
    return [Way(*(row[name] for name in ("relation", "way", "who", "through", "detail", "fix"))) for row in rows]


@dataclass(frozen=True, slots=True)
class Writers:
    """The sessions of one program with this database. ``who``: their role; ``own``: it is the gateway's.

    ``writing``: how many of them have written one of the tables in a transaction that is open.
    """

    who: str
    application: str
    own: bool
    sessions: int
    writing: int


async def sessions(database: Database, tables: Sequence[FencedTable], trusted: Sequence[str]) -> list[Writers]:
    """Return the sessions that are not those of gateways. PostgreSQL keeps none that have ended."""
    rows = await database.fetch(_SQL["sessions"], [table.relation for table in tables], list(trusted))
    return [Writers(**row) for row in rows]


async def ways_past_triggers(database: Database, trusted: Sequence[str], version: int) -> list[Way]:
    """Return the roles that could switch a guard off for their session."""
    if version < _PARAMETER_PRIVILEGES:
        return []
    query = _SQL["past_triggers"].format(has_parameter_privilege="has_parameter_privilege")
    return [
        Way("", "past-triggers", row["who"], row["who"], "", row["fix"])
        for row in await database.fetch(query, list(trusted))
    ]


async def ways_to_later_tables(database: Database, schemas: Sequence[str], trusted: Sequence[str]) -> list[Way]:
    """Return the default privileges that let others write tables that are created later."""
    rows = await database.fetch(_SQL["on_later_tables"], list(schemas), list(trusted))
    return [Way(row["place"], "default", row["who"], row["creator"], row["privileges"], row["fix"]) for row in rows]


def _membership(version: int) -> str:
    """Return how a role may act as another: as its member; with options from PostgreSQL 16 on."""
    return "USAGE, SET, MEMBER WITH ADMIN OPTION" if version >= _MEMBERSHIP_OPTIONS else "MEMBER"
