"""Entries in the record, its lines, and what a verifier says of them."""

from collections.abc import Iterable, Mapping
from datetime import date
from typing import Any

from gateway.db import record
from gateway.db.database import Database
from gateway.fencing.chain_verification import Flaw, Verifier

EXPORT = "SELECT fencing.ndjson_v1(e) AS line FROM fencing.entry AS e ORDER BY position"


async def written(database: Database, count: int, first: int = 1) -> None:
    """So many refusals in the intake, all of them different."""
    await database.fetch_write(
        "INSERT INTO fencing.intake (kind, plane, rule, resource, reason, enforced, epoch, value, holder, caller, "
        "method, target, client, request_id, payload_size, payload_sha256, fence_epoch, fence_value, fence_holder, "
        "fence_caller, fence_raised_at, details) "
        "SELECT 'rejection', 'tables', 'orders', 'orders/' || n, 'token-stale', true, 1, n, 'ann', 'writer', 'PATCH', "
        "'/orders', '127.0.0.1', 'request-' || n, n, repeat('ab', 32), 2, n + 1, 'bob', 'other', clock_timestamp(), "
        "jsonb_build_object('n', n, 'words', jsonb_build_array('a', NULL, true, 1.50)) "
        "FROM generate_series($2::integer, $2 + $1::integer - 1) AS s (n) ORDER BY n",
        count,
        first,
    )


async def on_record(database: Database, count: int) -> list[str]:
    """So many sealed entries; the lines of all there are."""
    await written(database, count)
    await record.seal(database)
    return await lines(database)


async def lines(database: Database) -> list[str]:
    """The whole record, as it is exported."""
    return [row["line"] for row in await database.fetch(EXPORT)]


async def entries(database: Database, *kinds: str) -> list[dict[str, Any]]:
    """The entries of these kinds, sealed or not, in the order in which they came in."""
    await record.seal(database)
    rows = await database.fetch("SELECT * FROM fencing.entry WHERE kind = ANY ($1) ORDER BY position", list(kinds))
    return [dict(row) for row in rows]


async def partition_of(database: Database, day: date) -> str:
    """Return the name of the partition that is for this day."""
    row = await database.fetchrow("SELECT name FROM fencing.stretches_v1() WHERE $1 BETWEEN first AND last", day)
    assert row is not None
    return str(row["name"])


def flaws(
    exported: Iterable[str], witnesses: Mapping[int, str] | None = None, after: int | None = 0
) -> list[tuple[Flaw, int]]:
    """Return each flaw and its position."""
    verifier = Verifier(witnesses, after)
    found = [finding for line in exported for finding in verifier.take(line)]
    return [(finding.flaw, finding.position) for finding in (*found, *verifier.finish())]


async def as_superuser(database: Database, *statements: str) -> None:
    """With the triggers disabled, as only a superuser can."""

    async def work(transaction: Any) -> None:
        await transaction.execute("SET LOCAL session_replication_role = replica")
        for statement in statements:
            await transaction.execute(statement)

    await database.run(work)
