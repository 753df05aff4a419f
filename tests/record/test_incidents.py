"""Incidents: the refusals of one writer are one thing, with a state, and with notes on record."""

import time
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from typing import Any

import httpx
import pytest
import pytest_asyncio

from gateway.db import incidents, record
from gateway.db.database import Database
from gateway.fencing.incident import GAP, LONGEST_NOTE, MOST_NOTES, QUIET
from gateway.fencing.record import Filters
from tests.record.test_audit_commands import run
from tests.record.watched import ANN, AUDITOR, BOB, HOSTILE, Watched, watched
from tests.tiers import first

ON_CALL = "on-call-key"
CALLERS = [
    {"name": "auditor", "api_key": AUDITOR},
    {"name": "on-call", "api_key": ON_CALL},
    {"name": "ann", "api_key": ANN},
    {"name": "bob", "api_key": BOB},
]
GRANTS = [
    {"callers": ["auditor", "on-call"], "actions": ["audit"], "everything": True},
    {"callers": ["on-call"], "actions": ["break"], "resources": ["job/**"]},
    {"callers": ["ann"], "actions": ["break"], "resources": ["other/**"]},
]

PUT = """INSERT INTO fencing.intake (kind, at, plane, rule, resource, reason, enforced, epoch, value, holder, caller,
    method, target, request_id, fence_epoch, fence_value, fence_holder, fence_caller, fence_raised_at, details)
SELECT 'rejection', clock_timestamp() - $1::interval, 'tables', 'public.jobs', $2, $3, $4, 0, $5, $6, $7, 'PATCH', '/',
    'r', 0, 34, 'worker-9', 'bob', clock_timestamp() - interval '1 day', $8::jsonb
RETURNING id"""


async def refusal(
    database: Database,
    ago: timedelta = timedelta(),
    *,
    resource: str = "job/1",
    reason: str = "token-stale",
    enforced: bool = True,
    token: int = 33,
    holder: str | None = "worker-7",
    caller: str = "ann",
    details: str | None = None,
) -> str:
    """A refused write on record; its id."""
    row = await database.fetchrow_write(PUT, ago, resource, reason, enforced, token, holder, caller, details)
    assert row is not None
    return str(row["id"])


MINUTE = timedelta(minutes=1)


@pytest_asyncio.fixture
async def stage(dsn: str) -> AsyncIterator[Watched]:
    async with watched(dsn, callers=CALLERS, grants=GRANTS) as one:
        yield one


async def listed(stage: Watched, key: str = AUDITOR, **parameters: Any) -> list[dict[str, Any]]:
    answer = await stage.get("/v1/incidents", key, **parameters)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["incidents"]
    return found


async def acknowledge(stage: Watched, identifier: str, note: str = "", key: str = ON_CALL) -> httpx.Response:
    async with stage.client(key) as client:
        return await client.post(f"/v1/incidents/{identifier}/acknowledgements", json={"note": note})


async def test_the_refusals_of_a_zombie_are_one_incident(stage: Watched) -> None:
    first = await refusal(stage.database, 9 * MINUTE)
    for minutes in (8, 4, 1):
        await refusal(stage.database, minutes * MINUTE)
    (incident,) = await listed(stage)
    assert (incident["id"], incident["count"], incident["inside"], incident["passed"]) == (first, 4, 4, 0)
    assert (incident["state"], incident["reason"], incident["resource"]) == ("going-on", "token-stale", "job/1")
    assert (incident["holder"], incident["caller"], incident["token"]) == ("worker-7", "ann", "33")
    assert (incident["overtaken_by"], incident["fence"]) == ("worker-9", "34")
    length = datetime.fromisoformat(incident["last"]) - datetime.fromisoformat(incident["first"])
    assert abs(length - 8 * MINUTE) < MINUTE
    assert (await stage.get(f"/v1/incidents/{first}")).json() == incident


async def test_a_gap_begins_another_incident_and_any_refusal_leads_to_its_own(stage: Watched) -> None:
    before = GAP + 30 * MINUTE
    earlier = [await refusal(stage.database, before + MINUTE), await refusal(stage.database, before)]
    later = [await refusal(stage.database, 20 * MINUTE), await refusal(stage.database, 19 * MINUTE)]
    found = await listed(stage)
    assert [(one["id"], one["count"], one["state"]) for one in found] == [
        (later[0], 2, "resolved"),
        (earlier[0], 2, "resolved"),
    ]
    for ids in (earlier, later):
        for one in ids:
            assert (await stage.get(f"/v1/incidents/{one}")).json()["id"] == ids[0]


async def test_an_incident_that_began_before_the_time_is_whole(stage: Watched) -> None:
    first = await refusal(stage.database, 90 * MINUTE)
    for minutes in (50, 20):
        await refusal(stage.database, minutes * MINUTE)
    since = (await stage.database.now() - timedelta(hours=1)).isoformat()
    (incident,) = await listed(stage, since=since)
    assert (incident["id"], incident["count"], incident["inside"]) == (first, 3, 2)


@pytest.mark.thorough
async def test_many_incidents_that_began_before_the_time_are_soon_found(stage: Watched) -> None:
    """The last hour cuts off all of them. Only some are followed back, and each has its refusals of the time."""
    for number in range(30):
        await refusal(stage.database, 62 * MINUTE, holder=f"worker-{number}")
        await refusal(stage.database, 10 * MINUTE, holder=f"worker-{number}")
    since = (await stage.database.now() - timedelta(hours=1)).isoformat()
    found = await listed(stage, since=since)
    assert [(one["count"], one["inside"]) for one in found] == [(2, 1)] * 30


async def test_numbers_agree_with_the_list_of_refusals(stage: Watched) -> None:
    for number in range(3):
        await refusal(stage.database, number * MINUTE)
        await refusal(stage.database, number * MINUTE, reason="denied", resource=f"job/{number}", caller="bob")
    await refusal(stage.database, resource="job/2", enforced=False)
    now = await stage.database.now()
    since = now - timedelta(hours=1)
    found = await listed(stage, since=since.isoformat())
    total = (await stage.get("/v1/rejections", since=since.isoformat())).json()["total"]
    assert sum(one["inside"] for one in found) == total == 7
    counts = await incidents.count_refusals(stage.database, since, now + MINUTE, MINUTE)
    assert (counts.zombies, counts.others, counts.passed, counts.total) == (3, 3, 1, 7)
    assert {(one["reason"], one["resource"], one["count"], one["passed"]) for one in found} == {
        ("token-stale", "job/1", 3, 0),
        ("token-stale", "job/2", 1, 1),
        ("denied", None, 3, 0),
    }
    for one in found:
        same = {
            name: one[name] for name in ("reason", "caller", "resource", "token", "holder") if one[name] is not None
        }
        assert (await stage.get("/v1/rejections", **same)).json()["total"] == one["count"]


async def test_a_writer_that_takes_a_newer_token_has_ended_its_incident(stage: Watched) -> None:
    await refusal(stage.database)
    await refusal(stage.database, holder="worker-8")
    await stage.database.fetch_write(
        "INSERT INTO fencing.intake (kind, resource, epoch, value, holder, caller) "
        "VALUES ('raised', 'job/1', 0, 35, 'worker-7', 'ann')"
    )
    found = {one["holder"]: one for one in await listed(stage)}
    assert (found["worker-7"]["state"], found["worker-7"]["renewed"]) == ("resolved", True)
    assert (found["worker-8"]["state"], found["worker-8"]["renewed"]) == ("going-on", False)
    # The old process of that holder writes on: it is a zombie, whatever the new one does.
    await refusal(stage.database)
    assert (await listed(stage, holder="worker-7"))[0]["state"] == "going-on"


async def test_an_acknowledgement_is_on_record_and_later_refusals_are_going_on_again(stage: Watched) -> None:
    first = await refusal(stage.database, 3 * MINUTE)
    answer = await acknowledge(stage, await refusal(stage.database, MINUTE), "  Stopping worker-7.\n")
    assert answer.status_code == 200, answer.text
    told = answer.json()
    assert (told["id"], told["state"]) == (first, "acknowledged")
    (note,) = told["acknowledgements"]
    assert (note["by"], note["note"]) == ("on-call", "Stopping worker-7.")
    entry = (await stage.get(f"/v1/events/{note['id']}")).json()
    assert (entry["kind"], entry["resource"], entry["token"]) == ("incident-acknowledged", "job/1", "33")
    assert (entry["holder"], entry["caller"], entry["at"]) == ("worker-7", "on-call", note["at"])
    assert entry["details"] == {
        "incident": first,
        "reason": "token-stale",
        "of": "ann",
        "writes": 2,
        "note": "Stopping worker-7.",
    }
    assert [one["id"] for one in (await stage.get("/v1/events", kind="incident-acknowledged")).json()["events"]] == [
        note["id"]
    ]
    await refusal(stage.database)
    (again,) = await listed(stage, state="going-on-again")
    assert again["acknowledgements"] == [note]
    assert await listed(stage, state="acknowledged") == []


async def test_only_callers_with_the_grant_acknowledge(stage: Watched) -> None:
    one, other = await refusal(stage.database), await refusal(stage.database, resource="tables/1")
    denied = await refusal(stage.database, reason="denied", resource="job/1")
    for identifier, key in ((one, AUDITOR), (one, BOB), (other, ON_CALL), (denied, ON_CALL)):
        answer = await acknowledge(stage, identifier, "mine", key)
        # Bob has no grant at all, and is told no more.
        assert (answer.status_code, answer.json()["code"]) == (403, "denied"), answer.text
    # Ann may break locks elsewhere, and sees her own refusals. These are not hers to acknowledge.
    assert (await acknowledge(stage, one, "mine", ANN)).status_code == 403
    async with stage.client(None) as client:
        path = f"/v1/incidents/{one}/acknowledgements"
        assert (await client.post(path, json={"note": "x"})).status_code in (401, 403)
    assert (await stage.get("/v1/events", kind="incident-acknowledged")).json()["events"] == []
    missing = [each["missing"] for each in (await stage.get("/v1/rejections", reason="denied")).json()["rejections"]]
    assert {"action": "break", "on": "resource tables/1"} in missing


async def test_other_callers_see_their_own_incidents_without_the_notes_of_others(stage: Watched) -> None:
    mine = await refusal(stage.database)
    other = await refusal(stage.database, caller="bob", holder="worker-7")
    await acknowledge(stage, mine, "Ann's worker is broken again.")
    (found,) = await listed(stage, ANN)
    assert (found["id"], found["acknowledgements"], found["state"]) == (mine, [], "acknowledged")
    assert (await stage.get(f"/v1/incidents/{other}", ANN)).status_code == 404
    assert (await acknowledge(stage, other, "x", ANN)).status_code == 404
    assert (await stage.get("/v1/incidents", None)).status_code in (401, 403)


@pytest.mark.parametrize(
    "body", first([{"note": "x" * (LONGEST_NOTE + 1)}, {"note": "a\0b"}, {"note": 5}, {"text": "x"}])
)
async def test_a_note_that_cannot_be_kept_changes_nothing(stage: Watched, body: dict[str, Any]) -> None:
    identifier = await refusal(stage.database)
    async with stage.client(ON_CALL) as client:
        answer = await client.post(f"/v1/incidents/{identifier}/acknowledgements", json=body)
        surrogate = await client.post(
            f"/v1/incidents/{identifier}/acknowledgements",
            content=b'{"note": "\\ud800"}',
            headers={"content-type": "application/json"},
        )
    assert answer.status_code in (400, 422), answer.text
    assert surrogate.status_code in (400, 422), surrogate.text
    assert (await listed(stage))[0]["acknowledgements"] == []


@pytest.mark.thorough
async def test_hostile_notes_are_kept_as_they_are(stage: Watched) -> None:
    identifier = await refusal(stage.database)
    for text in HOSTILE:
        assert (await acknowledge(stage, identifier, text)).status_code == 200
    (found,) = await listed(stage)
    assert [one["note"] for one in found["acknowledgements"]] == [text.strip() for text in HOSTILE]


@pytest.mark.thorough
async def test_notes_end_at_a_number(stage: Watched) -> None:
    identifier = await refusal(stage.database)
    for _ in range(MOST_NOTES):
        assert (await acknowledge(stage, identifier)).status_code == 200
    answer = await acknowledge(stage, identifier)
    assert (answer.status_code, answer.json()["code"]) == (409, "notes-exhausted")
    assert len((await listed(stage))[0]["acknowledgements"]) == MOST_NOTES


async def test_many_notes_of_others_leave_an_acknowledgement_in_place(stage: Watched) -> None:
    """A caller that may break other locks writes as many notes as it likes, on refusals of its own."""
    about: list[dict[str, Any]] = [{}, {"reason": "denied", "resource": "job/2"}, {"caller": "zoë", "holder": None}]
    acknowledged = [await refusal(stage.database, **one) for one in about]
    note = """INSERT INTO fencing.intake (kind, plane, resource, caller, holder, epoch, value, details)
        SELECT 'incident-acknowledged', 'api', $1, $2, $3, 0, $4, jsonb_build_object('reason', $5::text, 'of', $6::text)
        FROM generate_series(1, $7::int)"""
    notes = [("worker-7", 33, "token-stale", "ann"), (None, None, "denied", "ann"), (None, 33, "token-stale", "zoë")]
    for holder, value, reason, caller in notes:
        await stage.database.fetchrow_write(note, "job/1", "on-call", holder, value, reason, caller, 1)
    for holder, caller in (("worker-7", "bob"), ("worker-8", "ann")):
        await stage.database.fetchrow_write(note, "other/1", "ann", holder, 33, "token-stale", caller, 2_500)
    found = {one["id"]: one for one in await listed(stage)}
    for identifier in acknowledged:
        assert found[identifier]["state"] == "acknowledged"
        assert [one["by"] for one in found[identifier]["acknowledgements"]] == ["on-call"]


@pytest.mark.thorough
async def test_unknown_entries_and_other_kinds_are_no_incidents(stage: Watched) -> None:
    lease = await stage.put()
    for identifier in (lease, "00000000-0000-0000-0000-000000000000"):
        assert (await stage.get(f"/v1/incidents/{identifier}")).status_code == 404
    assert (await stage.get("/v1/incidents", state="over")).status_code == 400
    assert (await stage.get("/v1/incidents/nonsense")).status_code in (400, 404, 422)
    ends = {"since": "0001-01-02T00:00:00Z", "until": "9999-12-30T00:00:00Z"}
    for parameters in (ends, {"until": ends["since"]}, {"since": ends["until"]}, {"until": ends["until"]}):
        assert await listed(stage, **parameters) == []


async def test_the_commands_list_and_acknowledge(stage: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    identifier = await refusal(stage.database, holder="worker\x1b[2J-7")
    monkeypatch.setenv("GATEWAY_URL", stage.origin)
    monkeypatch.setenv("GATEWAY_API_KEY", ON_CALL)
    said = await run("incidents", "--prefix", "job/")
    assert said.exit_code == 0, said.output
    assert "going-on\tjob/1\tworker\\x1b[2J-7 (33)\ttoken-stale\tworker-9 (34)\t1\t" in said.stdout
    said = await run("acknowledge", identifier, "--note", "on it")
    assert said.exit_code == 0, said.output
    assert "acknowledged, 1 acknowledgements" in said.stderr
    said = await run("incidents", "--state", "acknowledged", "--json")
    assert '"note": "on it"' in said.stdout
    assert (await run("acknowledge", "nonsense")).exit_code == 1


@pytest.mark.thorough
async def test_a_storm_is_counted_exactly_and_soon(database: Database) -> None:
    """100,000 refusals within an hour are one incident. The bound is for a machine with other work."""
    await database.fetch_write(
        """INSERT INTO fencing.intake (kind, at, plane, rule, resource, reason, enforced, epoch, value, holder, caller,
            method, target, request_id, fence_epoch, fence_value, fence_holder, fence_caller, fence_raised_at)
        SELECT 'rejection', clock_timestamp() - n * interval '30 ms', 'tables', 'public.jobs', 'job/1', 'token-stale',
            true, 0, 33, 'worker-7', 'ann', 'PATCH', '/v1/tables/jobs?id=eq.' || n, 'r' || n, 0, 34, 'worker-9', 'bob',
            clock_timestamp() - interval '2 hours'
        FROM generate_series(1, 100000) AS n"""
    )
    await record.seal(database)
    now = await database.now()
    begun = time.monotonic()
    found = await incidents.find_incidents(database, Filters(since=now - timedelta(days=1)), now)
    counts = await incidents.count_refusals(database, now - timedelta(days=1), now + MINUTE, 15 * MINUTE)
    assert time.monotonic() - begun < 10
    assert [one.count for one in found.incidents] == [100_000]
    assert (counts.zombies, counts.complete, found.complete) == (100_000, True, True)
    assert found.incidents[0].last > now - QUIET
