"""Rights: those of the gateway's role in the schema ``fencing``, and those to write without the gateway."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from gateway.db.database import Database, Transaction
from gateway.db.migrations import LOCK
from gateway.db.pool import FOLDER, FORBIDDEN, load
from gateway.errors import ConfigurationError, RightMissing, SqlError

_SQL = load("rights")
_ACCESS = load("access")
_MEMBERSHIP_OPTIONS = 160000
_PARAMETER_PRIVILEGES = 150000
_ROOM = 64 * 1024
"""Bytes that need new pages of a table, and so room on its disk."""

# The rights that the gateway's statements need, table by table. The gateway adds to the record and never changes it.
# A test derives the same table from the text of all queries and functions.
TABLES = {
    "migration": ("SELECT",),
    "compatibility": ("SELECT",),
    "fence": ("SELECT", "INSERT", "UPDATE"),
    "opening": ("SELECT", "UPDATE"),
    "ownership": ("SELECT", "UPDATE"),
    "table_naming": ("SELECT", "INSERT", "UPDATE"),
    "bucket_naming": ("SELECT", "INSERT", "UPDATE"),
    "intent": ("SELECT", "INSERT", "UPDATE", "DELETE"),
    "forbidden": ("SELECT", "INSERT", "UPDATE", "DELETE"),
    "spent": ("SELECT", "INSERT", "UPDATE", "DELETE"),
    "object": ("SELECT", "INSERT", "UPDATE", "DELETE"),
    "upload": ("SELECT", "INSERT", "UPDATE", "DELETE"),
    "tombstone": ("SELECT", "INSERT", "UPDATE", "DELETE"),
    "idempotency": ("SELECT", "INSERT", "UPDATE", "DELETE"),
    "lock": ("SELECT", "INSERT", "UPDATE"),
    "lease": ("SELECT", "INSERT", "UPDATE", "DELETE"),
    "attendant": ("SELECT", "INSERT", "UPDATE", "DELETE"),
    "waiter": ("SELECT", "INSERT", "UPDATE", "DELETE"),
    "living_waiter": ("SELECT",),
    "issuer": ("SELECT", "INSERT", "UPDATE"),
    "intake": ("SELECT", "INSERT"),
    "entry": ("SELECT",),
    "entry_other": ("SELECT",),
    "head": ("SELECT",),
    "record": ("SELECT",),
    "rejection": ("SELECT",),
    "event": ("SELECT",),
    "administration": ("SELECT",),
    "payload": ("SELECT", "INSERT"),
    "traffic": ("SELECT", "INSERT", "UPDATE", "DELETE"),
    "key_use": ("SELECT", "INSERT", "UPDATE"),
    "patrol": ("SELECT", "INSERT", "UPDATE", "DELETE"),
    "watch": ("SELECT", "UPDATE"),
    "webhook": ("SELECT", "INSERT", "UPDATE"),
    "alarm": ("SELECT", "INSERT", "UPDATE"),
}

OF_THE_OWNER = {"guarded", "stamp", "refusals_counted", "refusal_log", "refusal_log_read"}
"""Tables that only functions work on that run with the rights of the schema's owner."""

# Functions that run with the rights of the schema's owner, and are for the gateway. Others of that kind are for writers
# beside it.
FUNCTIONS = (
    "seal_v1",
    "prepare_days_v1",
    "drop_day_v1",
    "drop_payloads_v1",
    "watch_step_v1",
    "look_at_guards_v1",
    "record_refusals_v1",
    "record_refusals_v2",
    "check_table_naming_v1",
)

# Functions in the statements of writes and reads, which may run under a role of their caller.
CALLED_BY_STATEMENTS = (
    "check_unchanged_v1",
    "check_version_v1",
    "check_relation_v1",
    "check_foreign_v1",
    "check_one_node_v1",
    "is_distributed_v1",
    "reaches_foreign_v1",
    "check_table_naming_v1",
    "escape_v1",
    "refuse_mismatch_v1",
)


# PostgreSQL names the relation, without its schema, or the function. Functions of the schema end in their version.
_OF_FENCING = re.compile(rf"\b(?:fencing|\w+_v\d+|{'|'.join(TABLES)})\b")


async def run_grants(transaction: Transaction, query: str, *arguments: object) -> None:
    """Run each ``statement`` that a query returns. No other session migrates or grants until the transaction ends.

    Two grants at once would fail. Citus would make them on other nodes, too, which need not have the schema.
    """
    await transaction.execute("SET LOCAL citus.enable_ddl_propagation = off")
    await transaction.execute(_SQL["alone"], LOCK)
    for row in await transaction.fetch(query, *arguments):
        await transaction.execute(row["statement"])


async def grant(dsn: str, role: str) -> None:
    """Give a role what a gateway needs, and take away whatever more it has on these tables. As the schema's owner.

    Raises ``ConfigurationError`` where there is no such role, and where it is the owner, or could act as it, which
    leaves nothing to take away; ``SqlError`` where the session may not grant.
    """

    async def work(transaction: Transaction) -> None:
        if await transaction.fetch(_SQL["owned"], role):
            raise ConfigurationError(
                f"{role} owns tables of the schema fencing, or may act as who does: it can do anything to them",
                advice="Let another role own the schema first: docs/operations.md says how.",
            )
        await run_grants(transaction, _SQL["grants"], *_needed(), list(FUNCTIONS), role)

    async with Database(dsn, pool_size=1) as database:
        if not await database.fetch("SELECT FROM pg_roles WHERE rolname = $1", role):
            advice = f'Correct the name, or create it first: CREATE ROLE "{role}" LOGIN.'
            raise ConfigurationError(f"There is no role {role}.", advice=advice)
        await database.run(work)


async def let_act(dsn: str, roles: Sequence[str]) -> None:
    """Let roles call what the fenced statements of their callers call. As the schema's owner.

    Raises ``SqlError`` where there is no such role, or the session may not grant.
    """
    wanted = (_SQL["let_act"], list(roles), list(CALLED_BY_STATEMENTS))
    async with Database(dsn, pool_size=1) as database:
        await database.run(lambda transaction: run_grants(transaction, *wanted))


@dataclass(frozen=True, slots=True)
class ActingRole:
    """A role of the database that callers act under. ``member``: the gateway's role may take it.

    ``quoted`` and ``gateway``: the names of both roles, for SQL. ``may_call``: it may call what fenced statements call.
    ``unbound``: no policy binds it.
    """

    name: str
    quoted: str
    gateway: str
    exists: bool
    member: bool
    may_call: bool
    unbound: bool


async def acting_roles(database: Database, roles: Sequence[str]) -> list[ActingRole]:
    """Return what is known of these roles."""
    return [ActingRole(**row) for row in await database.fetch(_SQL["acting_roles"], list(roles))]


USAGE = "USAGE on the schema fencing"
"""The right without which no other one counts, as ``missing`` names it."""


async def missing(database: Database) -> list[str]:
    """Return the privileges that this session's role lacks on the schema, such as "INSERT on fencing.fence"."""
    rows = await database.fetch(_SQL["missing"], *_needed(), list(FUNCTIONS))
    return [row["privilege"] for row in rows]


def fix(privilege: str, role: str) -> str:
    """Return the SQL that grants one of the ``missing`` privileges to a role."""
    right, _, name = privilege.rpartition(" on ")
    quoted = '"' + role.replace('"', '""') + '"'
    kind = {"USAGE": "SCHEMA ", "EXECUTE": "FUNCTION "}.get(right, "")
    return f"GRANT {right} ON {kind}{name.removeprefix('the schema ')} TO {quoted}"


async def try_to_write(database: Database) -> None:
    """Raise what a request would meet that writes: ``RightMissing``, or ``Full``. The row is rolled back."""
    if lacking := await missing(database):
        raise RightMissing.of(lacking)

    async def work(transaction: Transaction) -> None:
        await transaction.execute(_SQL["take_room"], os.urandom(_ROOM))

    await database.read(work)


async def of_fencing(database: Database, error: SqlError) -> RightMissing | None:
    """Return the error for a statement that was refused because the gateway lacks a right on the fencing schema.

    None if it is about another relation, or if the role of a caller lacks the right.
    """
    about_fencing = error.sqlstate == FORBIDDEN and _OF_FENCING.search(error.message)
    if about_fencing and (lacking := await missing(database)):
        return RightMissing.of(lacking)
    return None


async def refused_statements(database: Database) -> list[str]:
    """Let PostgreSQL plan each query of ``gateway/db`` for this session's role, and return those that it refuses.

    A plan is refused where the role lacks a right on any relation of the query. Nothing is carried out. Queries that
    are completed when they are used are left out, and so are settings.
    """
    refused = []
    for number, (name, query) in enumerate(queries()):
        try:
            await database.run(partial(_plan, f"tried_{number}", query))
        except SqlError as error:
            refused.append(f"{name}: {error.message}")
    return refused


async def _plan(name: str, query: str, transaction: Transaction) -> None:
    await transaction.execute(f"PREPARE {name} AS {query}")
    row = await transaction.fetchrow(_SQL["parameters"], name)
    values = ", ".join(f"NULL::{kind}" for kind in row["kinds"]) if row else ""
    await transaction.execute(f"EXPLAIN EXECUTE {name}({values})" if values else f"EXPLAIN EXECUTE {name}")
    await transaction.execute(f"DEALLOCATE {name}")


def queries() -> list[tuple[str, str]]:
    """Return name and text of each query of ``gateway/db`` that is complete as it stands."""
    subjects = sorted(file.stem for file in FOLDER.glob("*.sql"))
    named = [(f"{subject}.{name}", text) for subject in subjects for name, text in load(subject).items()]
    return [(name, text) for name, text in named if "{" not in text and not name.startswith("settings.")]


async def excessive(database: Database) -> list[str]:
    """Return the changes that this session's role could make to the record, such as "UPDATE on fencing.entry"."""
    return [row["privilege"] for row in await database.fetch(_SQL["excessive"])]


def _needed() -> tuple[list[str], list[str]]:
    pairs = [(table, privilege) for table, privileges in TABLES.items() for privilege in privileges]
    return [table for table, _ in pairs], [privilege for _, privilege in pairs]


@dataclass(frozen=True, slots=True)
class Server:
    """The server, and a session of the gateway's role on it. ``version_number`` as in server_version_num: 140005."""

    version: str
    version_number: int
    database: str
    role: str
    superuser: bool
    read_only: bool
    isolation: str
    time_zone: str
    date_style: str
    fsync: bool
    synchronous_commit: bool


@dataclass(frozen=True, slots=True)
class Exposed:
    """One exposed schema and the names of its tables and views. ``usable``: the role has USAGE on it."""

    schema: str
    present: bool
    usable: bool
    relations: Sequence[str]


async def server_facts(database: Database) -> Server:
    """Return facts of the server. Raise ``Unavailable`` if it cannot be reached, ``SqlError`` if it refuses the
    session.
    """
    (row,) = await database.fetch(_SQL["server"])
    return Server(**dict(row))


async def exposed_tables(database: Database, schemas: Sequence[str]) -> list[Exposed]:
    """Return the exposed schemas, in the order of the configuration."""
    rows = await database.fetch(_SQL["exposed"], list(schemas))
    return [Exposed(**row) for row in rows]


@dataclass(frozen=True, slots=True)
class MissingRights:
    """Privileges that the gateway's role lacks on a table or sequence, and the statement that grants them."""

    relation: str
    privileges: tuple[str, ...]
    fix: str


async def missing_on_exposed(database: Database, schemas: Sequence[str]) -> list[MissingRights]:
    """Return the missing rights on tables of these schemas, and on the sequences of their defaults."""
    tables = await database.fetch(_SQL["missing_on_exposed"], list(schemas))
    sequences = await database.fetch(_SQL["missing_on_sequences"], list(schemas))
    return [
        *(MissingRights(row["relation"], tuple(row["privileges"]), row["fix"]) for row in tables),
        *(MissingRights(row["relation"], ("USAGE",), row["fix"]) for row in sequences),
    ]


# Ways of other roles to write ----------------------------------------------------------------------------------------


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
    rows = await database.fetch(_ACCESS["fenced"], list(tables), list(guarded))
    return [FencedTable(row["relation"], row["guarded"]) for row in rows]


async def ways_to_any_table(database: Database, trusted: Sequence[str], version: int) -> list[Way]:
    """Return the ways that are not about one table. ``version`` is the server's, as in ``server_version_num``."""
    rows = await database.fetch(_ACCESS["of_server"], list(trusted), _membership(version))
    return [Way(relation="", detail="", **row) for row in rows]


async def ways_to_tables(
    database: Database, tables: Sequence[FencedTable], trusted: Sequence[str], version: int
) -> list[Way]:
    """Return the ways to write one of these tables, but none of roles that could write any table."""
    names = [table.relation for table in tables]
    rows = await database.fetch(_ACCESS["on_tables"], names, list(trusted), _membership(version))
    return [Way(**row) for row in rows]


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
    rows = await database.fetch(_ACCESS["sessions"], [table.relation for table in tables], list(trusted))
    return [Writers(**row) for row in rows]


async def ways_past_triggers(database: Database, trusted: Sequence[str], version: int) -> list[Way]:
    """Return the roles that could switch a guard off for their session."""
    if version < _PARAMETER_PRIVILEGES:
        return []
    query = _ACCESS["past_triggers"].format(has_parameter_privilege="has_parameter_privilege")
    return [
        Way("", "past-triggers", row["who"], row["who"], "", row["fix"])
        for row in await database.fetch(query, list(trusted))
    ]


async def ways_to_later_tables(database: Database, schemas: Sequence[str], trusted: Sequence[str]) -> list[Way]:
    """Return the default privileges that let others write tables that are created later."""
    rows = await database.fetch(_ACCESS["on_later_tables"], list(schemas), list(trusted))
    return [Way(row["place"], "default", row["who"], row["creator"], row["privileges"], row["fix"]) for row in rows]


def _membership(version: int) -> str:
    """Return how a role may act as another: as its member; with options from PostgreSQL 16 on."""
    return "USAGE, SET, MEMBER WITH ADMIN OPTION" if version >= _MEMBERSHIP_OPTIONS else "MEMBER"
