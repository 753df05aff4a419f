"""Lines of the export are to the byte what is hashed, with the hash behind, and cost no calls."""

import re
from datetime import date

import pytest

from gateway.db.database import Database
from gateway.db.export import Export, ExportFormat
from gateway.fencing.record import Filters
from tests.record.sealed import flaws
from tests.record.varied import sealed

# Each member comes as null, empty, and with characters to escape. Tokens come from both ends of their range, with and
# without epochs. Some details end as a line ends.
_ODD = r"""
INSERT INTO fencing.intake (kind, plane, rule, resource, reason, enforced, epoch, value, holder, caller, method, target,
    client, request_id, payload_size, payload_sha256, fence_epoch, fence_value, fence_holder, fence_caller,
    fence_raised_at, details)
SELECT coalesce(said, 'rejection'), said, said, said, said, n % 3 > 0, number, value, said, said, said, said,
    said, said, value, said, number, value, said, said, moment, details
FROM unnest(
    ARRAY[NULL, '', 'plain', E'a"b\\c/d\x01\x1f\x7f\n\t\r', '{}[]:,''}', U&'\00e9\2028\feff\+01f9df <&>']
) AS said
CROSS JOIN unnest(
    ARRAY[NULL, 0, 1, 2147483647], ARRAY[NULL, 0, 33, 9223372036854775807],
    ARRAY[NULL, '1970-01-01 00:00:00Z', '2026-03-01 04:05:06.000007+03', '9999-12-30 23:59:59.999999Z']::timestamptz[]
) AS numbers (number, value, moment)
CROSS JOIN unnest(ARRAY[NULL, '{}', '{"hash": "}", "b": {"c": [1.50, null, "\u00e9\"}"]}}']::jsonb[])
    WITH ORDINALITY AS of (details, n)
"""


async def test_a_line_is_the_text_that_is_hashed_and_the_hash(database: Database) -> None:
    await database.fetch_write(_ODD)
    await sealed(database, 100)
    rows = await database.fetch(
        "SELECT fencing.ndjson_v1(e) AS line, fencing.line_v1(e) AS hashed, encode(e.hash, 'hex') AS hash "
        "FROM fencing.entry AS e ORDER BY position"
    )
    assert len(rows) == 6 * 4 * 3 + 100
    for row in rows:
        assert row["line"] == row["hashed"].removesuffix("}") + f',"hash":"{row["hash"]}"}}'
    assert flaws(row["line"] for row in rows) == []


@pytest.mark.parametrize("form", ExportFormat)
async def test_an_export_calls_no_function_of_ours(database: Database, form: ExportFormat) -> None:
    """The body of each stands in the plan: a call of one for every row takes longer than all the rest."""
    row = await database.fetchrow("SELECT (now() AT TIME ZONE 'UTC')::date AS today")
    assert row is not None
    today: date = row["today"]
    async with database.apart() as session:
        sql, values = Export(session, Filters(), [today], (0, 10))._of(form, today)
        plan = await session.fetch(f"EXPLAIN (VERBOSE) {sql}", *values)
    shown = "\n".join(row[0] for row in plan)
    assert "encode(" in shown, "the plan tells what is put out"
    assert not re.findall(r"fencing\.\w+\(", shown)
