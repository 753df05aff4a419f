"""Fills a scratch database with a record of millions of entries, as a year of use could have left it.

Straight into the partitions, and with hashes that chain nothing: what is measured is finding them.
"""

from datetime import timedelta

import asyncpg

DAYS = 400
"""The last one is today. On one of them a zombie would not stop: it has a tenth of all entries."""

_CHUNK = 1_000_000

# Every column is a function of the position, so that a search knows the expected entries.
_FILL = """
INSERT INTO fencing.entry (position, day, hash, id, at, kind, plane, rule, resource, reason, enforced, epoch, value,
    holder, caller, method, target, client, request_id, payload_size, payload_sha256,
    fence_epoch, fence_value, fence_holder, fence_caller, fence_raised_at)
SELECT i, day, sha256(i::text::bytea), gen_random_uuid(), at, CASE WHEN refused THEN 'rejection' ELSE kind END,
    plane, plane || '-rule-' || i % 20, resource, CASE WHEN refused THEN reason END,
    CASE WHEN refused THEN i % 100 <> 0 END,
    0, i, CASE WHEN storm THEN 'holder-storm' ELSE 'holder-' || i * 31 % 5000 END,
    CASE WHEN storm THEN 'caller-storm' ELSE 'caller-' || i % 200 END,
    'PATCH', '/v1/tables/accounts?id=eq.' || i % 100000, '10.0.0.' || i % 250, lpad(to_hex(i), 32, '0'), 120,
    CASE WHEN refused THEN encode(sha256(i::text::bytea), 'hex') END,
    0, i + 1, 'holder-' || (i * 31 + 1) % 5000, 'caller-' || (i + 1) % 200, at - i % 300 * interval '1 second'
FROM (
    SELECT i, day, storm, day + i % 86400 * interval '1 second' AS at,
        storm OR i % 10 < 6 AS refused,
        (ARRAY['raised', 'raised', 'lease-granted', 'lease-released'])[i % 10 - 5] AS kind,
        CASE WHEN i % 1000 = 7 THEN 'api' WHEN i % 3 = 0 THEN 'tables' ELSE 'objects' END AS plane,
        CASE WHEN storm THEN 'job/storm' WHEN i % 3 = 0 THEN 'public.accounts/' || i * 7919 % 50000
             ELSE 's3/bucket/year/' || i * 7919 % 50000 END AS resource,
        CASE WHEN storm OR i % 97 > 3 THEN 'token-stale' WHEN i % 97 > 1 THEN 'token-used'
             WHEN i % 97 = 1 THEN 'token-duplicate' ELSE 'token-implausible' END AS reason
    FROM (
        SELECT i, i >= $2::bigint * 8 / 10 AND i < $2::bigint * 9 / 10 AS storm,
            $3::date + CASE WHEN i >= $2::bigint * 8 / 10 AND i < $2::bigint * 9 / 10 THEN $4::integer * 8 / 10
                ELSE ((i - 1) * $4::bigint / $2::bigint)::integer END AS day
        FROM generate_series($1::bigint, least($1 + $5::bigint - 1, $2)) AS i
    ) AS placed
) AS made
"""

_PARTITION = """
CREATE TABLE fencing.entry_{first:%Y%m%d}_{last:%Y%m%d} PARTITION OF fencing.entry
FOR VALUES FROM ('{first}') TO ('{next}')
"""
_END = "UPDATE fencing.head SET position = $1, day = $2, hash = sha256($1::bigint::text::bytea)"
_INDEXES = """
SELECT i.indexrelid::regclass::text AS name, pg_get_indexdef(i.indexrelid) AS definition
FROM pg_index i WHERE i.indrelid = 'fencing.entry'::regclass AND NOT i.indisprimary
"""


async def fill(dsn: str, entries: int) -> None:
    """Put so many entries on record. The indexes are made afterwards, which takes half the time."""
    connection = await asyncpg.connect(dsn)
    today = await connection.fetchval("SELECT (now() AT TIME ZONE 'UTC')::date")
    first = today - timedelta(days=DAYS - 1)
    indexes = await connection.fetch(_INDEXES)
    for index in indexes:
        await connection.execute(f"DROP INDEX {index['name']}")
    day = first
    while day < today:  # which has one, as migrations make it
        following = min(day + timedelta(days=7 - day.weekday()), today)
        last = following - timedelta(days=1)
        await connection.execute(_PARTITION.format(first=day, last=last, next=following))
        day = following
    for begin in range(1, entries + 1, _CHUNK):
        await connection.execute(_FILL, begin, entries, first, DAYS, _CHUNK)
    for index in indexes:
        await connection.execute(index["definition"].replace(" ON ONLY ", " ON "))
    await connection.execute(_END, entries, today)
    await connection.execute("VACUUM (ANALYZE) fencing.entry")
    await connection.close()
