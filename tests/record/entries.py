"""Entries in the record: builders of them, all that is there, its lines, and what a verifier says of them."""

from collections.abc import Iterable, Mapping
from datetime import date, timedelta
from typing import Any

from gateway.db import record
from gateway.db.database import Database
from gateway.fencing.chain_verification import Flaw, Verifier
from gateway.fencing.record import Entry

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


DAYS = 12
"""Of these the sixth has no entries, the third no partition of its own, and the eighth one with the two after it."""

_MADE = """
SELECT n, gen_random_uuid() AS id, begin + n * interval '1 hour' AS at,
    (ARRAY['rejection', 'rejection', 'rejection', 'raised', 'lease-granted', 'barrier', 'administration'])[1 + n % 7]
        AS kind,
    (ARRAY['tables', 'objects', 'api', NULL])[1 + n % 4] AS plane, 'rule-' || n % 3 AS rule,
    CASE WHEN n % 11 > 0 THEN (ARRAY['job/', 'job/1', 'job/1/', 's3/bucket/'])[1 + n % 4] || n % 5 END AS resource,
    CASE n % 7 WHEN 0 THEN 'token-used' WHEN 1 THEN 'token-stale' WHEN 2 THEN 'token-duplicate' END AS reason,
    CASE WHEN n % 7 < 3 THEN n % 13 > 0 END AS enforced, n % 2 AS epoch, (n / 20)::bigint AS value,
    'holder-' || n % 5 AS holder, 'caller-' || n % 3 AS caller, 'PUT' AS method, '/x' AS target,
    'request-' || n AS request_id, n % 2 AS fence_epoch, (n / 20 + 1)::bigint AS fence_value,
    'holder-' || (n + 1) % 5 AS fence_holder, 'caller-' || (n + 1) % 3 AS fence_caller,
    begin + (n - 2) * interval '1 hour' AS fence_raised_at
FROM generate_series(1, $1::integer) AS n, (SELECT clock_timestamp() - interval '41 days') AS since (begin)
"""
_NAMES = """
id, at, kind, plane, rule, resource, reason, enforced, epoch, value, holder, caller, method, target, request_id,
fence_epoch, fence_value, fence_holder, fence_caller, fence_raised_at
"""


async def sealed(database: Database, count: int) -> None:
    """So many entries, put on record as gateways do: today, and chained."""
    await database.fetch_write(f"INSERT INTO fencing.intake ({_NAMES}) SELECT {_NAMES} FROM ({_MADE}) AS made", count)
    await record.seal(database)


async def of_days(database: Database, count: int) -> list[Entry]:
    """So many entries of the last days, straight into the record, so that their hashes chain nothing; all of them."""
    row = await database.fetchrow("SELECT (now() AT TIME ZONE 'UTC')::date AS today")
    assert row is not None
    today: date = row["today"]
    days = [today - timedelta(days=DAYS - 1 - number) for number in range(DAYS)]
    for number, day in enumerate(days[:-1]):
        if number not in {2, 8, 9}:
            last = day + timedelta(days=2 if number == 7 else 0)
            name = f"{day:%Y%m%d}" + (f"_{last:%Y%m%d}" if last > day else "")
            await database.fetch_write(
                f"CREATE TABLE fencing.entry_{name} PARTITION OF fencing.entry "
                f"FOR VALUES FROM ('{day}') TO ('{last + timedelta(days=1)}')"
            )
    await database.fetch_write(
        f"INSERT INTO fencing.entry (position, day, hash, {_NAMES}) "
        f"SELECT n, ($2::date[])[1 + (n - 1) * {DAYS - 1} / $1::integer], sha256(n::text::bytea), {_NAMES} "
        f"FROM ({_MADE}) AS made",
        count,
        [day for number, day in enumerate(days) if number != 5],
    )
    await database.fetch_write("UPDATE fencing.head SET position = $1, day = $2", count, today)
    return await everything(database)


async def everything(database: Database) -> list[Entry]:
    """The whole record, the oldest entry first."""
    await record.seal(database)
    rows = await database.fetch("SELECT * FROM fencing.entry ORDER BY position")
    return [record.entry_from_row(row) for row in rows]


async def put(database: Database, count: int = 1, *, sealed: bool = True, **columns: Any) -> list[str]:
    """Put refusals on record, and return their ids. ``columns`` are those of the record."""
    given = {
        "kind": "rejection",
        "resource": "job/nightly",
        "reason": "token-stale",
        "enforced": True,
        "epoch": 0,
        "value": 33,
        "holder": "host-a",
        "caller": "worker",
        "method": "PATCH",
        "target": "/v1/tables/runs?job=eq.nightly",
        "request_id": "r",
        **columns,
    }
    names = ", ".join(given)
    values = [f"${number}" for number in range(2, len(given) + 2)]
    rows = await database.fetch_write(
        f"INSERT INTO fencing.intake ({names}) SELECT {', '.join(values)} FROM generate_series(1, $1::int) "
        "RETURNING id::text",
        count,
        *given.values(),
    )
    if sealed:
        await record.seal(database)
    return [row["id"] for row in rows]
