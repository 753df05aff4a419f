"""What guards leave behind, made into entries of the record: refusals, rows that do not fit, lost triggers.

A function of the database decides and records each of these in one transaction: ``gateway/db/schema/watch.sql`` and
``refusals.sql``.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from gateway.store.database import Database, Record
from gateway.store.queries import load

_SQL = load("watches")


@dataclass(frozen=True, slots=True)
class Finding:
    """What was put on record of one table: ``rows`` of one resource, or what is missing of its guard.

    ``found_by`` is ``write`` or ``sweep``; ``resource`` is None where nothing tells it.
    """

    reason: str
    resource: str | None
    target: str
    found_by: str
    rows: int


@dataclass(frozen=True, slots=True)
class Step:
    """One stretch of a pass over a table, by its name as SQL has it. ``passed``: it was the last one."""

    relation: str
    passed: bool
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class Refused:
    """How often one session was refused for one reason. ``target`` is the table; all are None where nothing tells."""

    target: str | None
    reason: str | None
    count: int


async def record_refusals(database: Database, since: datetime | None) -> list[Refused]:
    """Put on record what guards have refused and nobody has recorded yet. ``since``: when the caller did so before."""
    rows = await database.fetch_write(_SQL["refusals"], since)
    return [Refused(row["target"], row["reason"], row["count"]) for row in rows]


async def look_at_guards(database: Database) -> list[Finding]:
    """Put on record which guards have got a trigger missing or switched off since the last look."""
    return [_finding(row) for row in await database.fetch_write(_SQL["look"])]


async def step(database: Database, rest: float, blocks: int, stamps: int, relation: str | None = None) -> Step | None:
    """Compare some ``blocks`` of rows, or some ``stamps``, of the table that has waited longest, or of this one.

    None where none has waited for ``rest`` seconds, or all are in somebody else's hands.
    """
    row = await database.fetchrow_write(_SQL["step"], relation, rest, blocks, stamps)
    if row is None or row["relation"] is None:
        return None
    found = json.loads(row["findings"])
    return Step(row["relation"], bool(row["passed"]), tuple(Finding(**each) for each in found))


async def relations(database: Database) -> list[str]:
    """The tables that carry stamps, partitions by themselves."""
    return [row["relation"] for row in await database.fetch(_SQL["relations"])]


async def forget_stamps(database: Database, target: str) -> Sequence[str]:
    """Have the stamps of a guard's tables taken anew; the tables. Until then nothing is found there."""
    return [row["relation"] for row in await database.fetch_write(_SQL["forget_stamps"], target)]


def _finding(row: Record) -> Finding:
    return Finding(row["reason"], row["resource"], row["target"], row["found_by"], row["rows"])
