"""The chain shows every change to the record, by any role. Both halves of the chain agree to the byte, as lines do."""

import json
import re
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.db import record
from gateway.db.database import Database
from gateway.db.export import Export, ExportFormat
from gateway.db.record import RecordHead
from gateway.fencing import chain_verification
from gateway.fencing.chain_verification import Flaw
from gateway.fencing.credential_redaction import redacted
from gateway.fencing.record import Filters
from tests import ROOT
from tests.record.entries import EXPORT, as_superuser, flaws, lines, on_record, put, written

# The characters that PostgreSQL takes as text: all but NUL and lone surrogates. Characters that need an escape come
# often.
SPECIAL = "\x01\x08\t\n\x0b\x0c\r\x1f \"'\\/\x7f\x80\x85\u2028\u2029\ufeff\uffff\U0001f9df{}[],:%"
texts = st.text(
    st.one_of(st.sampled_from(SPECIAL), st.characters(exclude_characters="\0", exclude_categories=["Cs"])), max_size=20
)
numbers = st.one_of(st.integers(-(10**30), 10**30), st.floats(allow_nan=False, allow_infinity=False))
values = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, texts),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(texts, inner, max_size=4)),
    max_leaves=10,
)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    strings=st.lists(st.one_of(st.none(), texts), min_size=14, max_size=14),
    details=st.one_of(st.none(), st.dictionaries(texts, values, max_size=4)),
    token=st.tuples(st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1)),
    moment=st.datetimes(),
)
async def test_python_hashes_what_postgres_hashes(
    database: Database, strings: list[str | None], details: Any, token: tuple[int, int], moment: Any
) -> None:
    """For every text there is, nested ones too."""
    await database.fetch_write(
        "INSERT INTO fencing.intake (kind, plane, rule, resource, reason, holder, caller, method, target, client, "
        "request_id, payload_sha256, fence_holder, fence_caller, details, epoch, value, fence_epoch, fence_value, "
        "fence_raised_at, enforced, payload_size) VALUES (coalesce($1, ''), $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, "
        "$12, $13, $14, $15, $16, $17, $16, $17, $18::timestamp AT TIME ZONE 'UTC', $19, $17)",
        *strings,
        None if details is None else json.dumps(details),
        *token,
        moment,
        token[1] % 2 == 0,
    )
    before = await record.read_head(database)
    await record.seal(database)
    head = await record.read_head(database)
    row = await database.fetchrow(f"{EXPORT} DESC LIMIT 1")
    assert row is not None
    line = row["line"]
    entry = chain_verification.parse(line)
    expected = chain_verification.next_hash(bytes.fromhex(before.hash), chain_verification.canonical(entry))
    assert expected.hex() == head.hash == entry["hash"]
    assert chain_verification.canonical(entry).decode()[:-1] == line.rpartition(',"hash":"')[0]


async def test_the_first_entry_follows_on_a_constant(database: Database) -> None:
    assert await record.read_head(database) == RecordHead(0, chain_verification.START.hex())
    exported = await on_record(database, 1)
    assert flaws(exported) == []
    entry = chain_verification.parse(exported[0])
    assert (entry["token"], entry["fence"], entry["position"]) == ("1.1", "2.2", "1")


COLUMNS = {
    "id": "gen_random_uuid()",
    "at": "at + interval '1 microsecond'",
    "kind": "'raised'",
    "plane": "'objects'",
    "rule": "NULL",
    "resource": "resource || ' '",
    "reason": "'token-used'",
    "enforced": "false",
    "epoch": "0",
    "value": "value + 1",
    "holder": "'Ann'",
    "caller": "'somebody'",
    "method": "'DELETE'",
    "target": "''",
    "client": "NULL",
    "request_id": "'request-1'",
    "payload_size": "0",
    "payload_sha256": "repeat('cd', 32)",
    "fence_epoch": "3",
    "fence_value": "fence_value - 1",
    "fence_holder": "NULL",
    "fence_caller": "'writer'",
    "fence_raised_at": "fence_raised_at - interval '1 day'",
    "details": "details || '{\"more\": 1}'",
    "hash": "sha256(hash)",
}


async def test_a_changed_column_is_found(database: Database) -> None:
    """A superuser changes one of the columns of each fifth entry, with the triggers switched off."""
    await on_record(database, 5 * len(COLUMNS))
    places = {5 * number + 3: column for number, column in enumerate(COLUMNS)}
    await as_superuser(
        database,
        *(f"UPDATE fencing.entry SET {one} = {COLUMNS[one]} WHERE position = {place}" for place, one in places.items()),
    )
    # If the hash itself differs, the next entry does not follow on it either.
    follower = next(place + 1 for place, column in places.items() if column == "hash")
    assert flaws(await lines(database)) == [(Flaw.CHANGED, place) for place in sorted({*places, follower})]
    rows = await database.fetch(
        "SELECT attname::text AS name FROM pg_attribute WHERE attrelid = 'fencing.entry'::regclass AND attnum > 0"
    )
    assert {row["name"] for row in rows} == {*COLUMNS, "position", "day"}, "the day is where it stands, not what it is"


async def test_an_entry_that_is_gone_is_found(database: Database) -> None:
    await on_record(database, 5)
    await as_superuser(database, "DELETE FROM fencing.entry WHERE position IN (2, 3)")
    assert flaws(await lines(database)) == [(Flaw.MISSING, 2)]


async def test_entries_that_have_changed_places_are_found(database: Database) -> None:
    await on_record(database, 10)
    await as_superuser(
        database,
        "DELETE FROM fencing.entry WHERE position = 3",
        "UPDATE fencing.entry SET position = 3 WHERE position = 4",
        "UPDATE fencing.entry SET position = 4 WHERE position = 5",
        "UPDATE fencing.entry SET position = 99 WHERE position = 7",
        "UPDATE fencing.entry SET position = 7 WHERE position = 8",
        "UPDATE fencing.entry SET position = 8 WHERE position = 99",
    )
    found = flaws(await lines(database))
    assert (Flaw.CHANGED, 3) in found, "its place was filled"
    assert (Flaw.CHANGED, 7) in found, "two have changed places"


async def test_a_tail_that_was_cut_off_is_found_by_whoever_saw_it(database: Database) -> None:
    """Even where the end of the chain was put back, and goes on from there."""
    exported = await on_record(database, 5)
    seen = await record.read_head(database)
    third = chain_verification.parse(exported[2])["hash"]
    await as_superuser(
        database,
        "DELETE FROM fencing.entry WHERE position > 3",
        f"UPDATE fencing.head SET position = 3, hash = '\\x{third}'",
    )
    witness = {seen.position: seen.hash}
    assert flaws(await lines(database)) == [], "the chain itself is whole"
    assert flaws(await lines(database), witness) == [(Flaw.MISSING, 4)]
    await written(database, 4, first=100)
    await record.seal(database)
    assert flaws(await lines(database)) == []
    assert flaws(await lines(database), witness) == [(Flaw.WITNESS, 5)]


async def test_an_export_calls_no_function_of_ours(database: Database) -> None:
    """The body of each stands in the plan: a call of one for every row takes longer than all the rest."""
    today = (await database.now()).date()
    for form in ExportFormat:
        async with database.apart() as session:
            sql, values = Export(session, Filters(), [today], (0, 10))._of(form, today)
            plan = await session.fetch(f"EXPLAIN (VERBOSE) {sql}", *values)
        shown = "\n".join(row[0] for row in plan)
        assert "encode(" in shown, "the plan tells what is put out"
        assert not re.findall(r"fencing\.\w+\(", shown), form


PAGE = ROOT / "docs/record.md"
WITH_CREDENTIALS = (
    "/b/k?X-Amz-Credential=AKIA1%2F20260101&X-Amz-Signature=5ec4e7",
    "/b/k?x-amz-security-token=t&x=1",
    "/b/k?x-amz-meta-fencing-sequencer=order/5:exclusive:34:s",
    "/v1/tables/t?APIKEY=eq.k",
)


async def test_old_entries_with_credentials_are_found_and_new_ones_are_not(database: Database) -> None:
    """The query of docs/record.md finds what earlier revisions sealed with a credential, and nothing else."""
    (query,) = re.findall(r"^SELECT position, at, caller, target.*?;$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    for target in (*WITH_CREDENTIALS, *map(redacted, WITH_CREDENTIALS), "/v1/tables/t?id=eq.1"):
        await put(database, target=target)
    assert {row["target"] for row in await database.fetch(query)} == set(WITH_CREDENTIALS)
