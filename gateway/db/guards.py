"""Guards as the database has them: what is installed on which table, and what installing one has to know."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from gateway.db.database import Database, Record, Transaction
from gateway.db.pool import load
from gateway.db.record import fence_from_row, token_from_row
from gateway.fencing.record import Attempt, Rejection

_SQL = load("guards")


@dataclass(frozen=True, slots=True)
class Role:
    """A role of the database. A superuser can switch triggers off."""

    name: str
    superuser: bool


@dataclass(frozen=True, slots=True)
class GuardTarget:
    """A table that a guard is for.

    ``relations`` are the table and its partitions, quoted, the table first; ``heirs``: it has children by inheritance;
    ``stands_alone``: it has no partitions, and no parent through which its rows could be written; ``writers`` may write
    it beside its owner; ``functions`` are guard functions, in the schema fencing, that only this table uses;
    ``guarded``: there is a guard, or a part of one; ``able``: who asks has the rights that the functions of a guard
    need; ``watchable``: its primary key is of built-in types, None where it has none; ``virtual``: its generated
    columns that are not stored.
    """

    owner: str
    is_partition: bool
    has_heirs: bool
    stands_alone: bool
    relations: Sequence[str]
    writers: Sequence[str]
    functions: Sequence[str]
    guarded: bool
    able: bool
    watchable: bool | None
    virtual: Sequence[str]


@dataclass(frozen=True, slots=True)
class InstalledGuard:
    """A guard that is there. ``missing``: triggers of it that are not, or are switched off. ``by_statement``: it checks
    the rows of a statement together.
    """

    schema: str
    table: str
    function: str
    body: str
    arguments: Sequence[str]
    by_statement: bool
    missing: Sequence[str]


async def read_own_role(database: Database) -> Role:
    """Return the login role of this session."""
    (row,) = await database.fetch(_SQL["session"])
    return Role(row["role"], row["superuser"])


async def find_role(database: Database, name: str) -> Role | None:
    """Return the role of this name; None if there is none."""
    row = await database.fetchrow(_SQL["role"], name)
    return None if row is None else Role(row["role"], row["superuser"])


async def find_target(database: Database, schema: str, name: str) -> GuardTarget | None:
    """Return the table; None if there is none of this name."""
    row = await database.fetchrow(_SQL["relation"], schema, name)
    return None if row is None else GuardTarget(**row)


async def list_guards(database: Database, schemas: Sequence[str]) -> list[InstalledGuard]:
    """Return the guards on tables of these schemas, by name."""
    return [_installed(row) for row in await database.fetch(_SQL["installed"], list(schemas))]


async def run_script(database: Database, script: str) -> None:
    """Run the statements of a script, all or none. Raises ``SqlError`` where the database refuses one."""

    async def work(transaction: Transaction) -> None:
        await transaction.execute(script)

    await database.run(work)


def _installed(row: Record) -> InstalledGuard:
    # PostgreSQL ends each argument of a trigger with a zero byte.
    arguments = bytes(row["arguments"]).decode().split("\0")[:-1]
    return InstalledGuard(**{**row, "arguments": arguments})


@dataclass(frozen=True, slots=True)
class GuardFinding:
    """A recorded finding of one table: ``rows`` of one resource, or a missing part of its guard.

    ``found_by`` is ``write`` or ``sweep``; ``resource`` is None if it is unknown.
    """

    reason: str
    resource: str | None
    target: str
    found_by: str
    rows: int


@dataclass(frozen=True, slots=True)
class WatchStep:
    """One stretch of a pass over a table, by its name as SQL has it. ``passed``: it was the last one."""

    relation: str
    passed: bool
    findings: tuple[GuardFinding, ...]


@dataclass(frozen=True, slots=True)
class CountedRefusals:
    """Refusals of which only the number is known. ``target`` is the table, ``reason`` theirs, where these are known."""

    target: str | None
    reason: str | None
    count: int


async def record_refusals(database: Database, since: datetime | None) -> tuple[list[Rejection], list[CountedRefusals]]:
    """Record the refusals of guards that are not on record yet. ``since``: the time of the caller's last call.

    A call puts a part of them on record, so repeat it until it returns none.
    """
    rows = await database.fetch_write(_SQL["refusals"], since)
    return (
        [_rejection(row) for row in rows if row["id"] is not None],
        [CountedRefusals(row["target"], row["reason"], row["count"]) for row in rows if row["id"] is None],
    )


def _rejection(row: Record) -> Rejection:
    token, fence = token_from_row(row), fence_from_row(row["resource"], row)
    # A session sends no request. Each refusal stands for one of its own.
    attempt = Attempt(
        token=token,
        holder=row["holder"],
        caller=row["caller"],
        method="",
        target=row["target"] or "",
        client=row["client"],
        request_id=str(row["id"]),
        plane="tables",
        rule=row["target"],
    )
    return Rejection(row["id"], row["at"], row["resource"], row["reason"], True, attempt, fence)  # noqa: FBT003


async def check_guards(database: Database) -> list[GuardFinding]:
    """Put on record which guards have got a trigger missing or switched off since the last look."""
    return [_finding(row) for row in await database.fetch_write(_SQL["look"])]


async def guard_watch_step(
    database: Database, rest: float, blocks: int, stamps: int, relation: str | None = None
) -> WatchStep | None:
    """Compare some ``blocks`` of rows, or some ``stamps``, of this table, or of the one that has waited longest.

    Return None if none has waited for ``rest`` seconds, or if other gateways work on all of them.
    """
    row = await database.fetchrow_write(_SQL["step"], relation, rest, blocks, stamps)
    if row is None or row["relation"] is None:
        return None
    found = json.loads(row["findings"])
    return WatchStep(row["relation"], bool(row["passed"]), tuple(GuardFinding(**each) for each in found))


async def list_watched(database: Database) -> list[str]:
    """Return the tables that carry stamps, each partition separately."""
    return [row["relation"] for row in await database.fetch(_SQL["relations"])]


async def forget_stamps(database: Database, target: str) -> Sequence[str]:
    """Have the stamps of a guard's tables taken anew; the tables. Until then nothing is found there."""
    return [row["relation"] for row in await database.fetch_write(_SQL["forget_stamps"], target)]


def _finding(row: Record) -> GuardFinding:
    return GuardFinding(row["reason"], row["resource"], row["target"], row["found_by"], row["rows"])
