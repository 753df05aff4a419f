"""Incidents: the refusals of one writer are one, with a state and notes on record; their timeline and report."""

import html
import json
import re
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.db import incidents, record, timeline
from gateway.db.database import Database
from gateway.errors import GatewayError
from gateway.fencing.incident import GAP, LONGEST_NOTE, MOST_NOTES
from gateway.fencing.record import Kind
from gateway.fencing.token import Token
from gateway.timeline.history import Span
from gateway.web import resource_page
from tests.record import conftest
from tests.record.conftest import ANN, AUDITOR, BOB, Watched, run, watched
from tests.record.entries import put

ON_CALL, ADMIN = "on-call-key", "admin-key"
CALLERS = [
    *conftest.CALLERS,
    {"name": "on-call", "api_key": ON_CALL},
    {"name": "admin", "api_key": ADMIN, "groups": ["admins"]},
]
GRANTS = [
    {"callers": ["auditor", "on-call"], "actions": ["audit"], "everything": True},
    {"callers": ["on-call"], "actions": ["break"], "resources": ["job/**"]},
    {"callers": ["ann"], "actions": ["break"], "resources": ["other/**"]},
]


async def refusal(database: Database, ago: timedelta = timedelta(), **columns: Any) -> str:
    """A refused write on record; its id."""
    now = await database.now()
    usual = {
        "at": now - ago,
        "plane": "tables",
        "rule": "public.jobs",
        "resource": "job/1",
        "holder": "worker-7",
        "caller": "ann",
        "fence_epoch": 0,
        "fence_value": 34,
        "fence_holder": "worker-9",
        "fence_caller": "bob",
        "fence_raised_at": now - timedelta(days=1),
    }
    (identifier,) = await put(database, sealed=False, **{**usual, **columns})
    return identifier


MINUTE = timedelta(minutes=1)


@pytest.fixture
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
    assert all(one["refused"] == one["count"] - one["passed"] for one in found)
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


async def test_a_note_that_cannot_be_kept_changes_nothing(stage: Watched) -> None:
    identifier = await refusal(stage.database)
    long = json.dumps({"note": "x" * (LONGEST_NOTE + 1)})
    async with stage.client(ON_CALL) as client:
        for body in (long, '{"note": "a\\u0000b"}', '{"note": 5}', '{"text": "x"}', '{"note": "\\ud800"}'):
            answer = await client.post(
                f"/v1/incidents/{identifier}/acknowledgements",
                content=body,
                headers={"content-type": "application/json"},
            )
            assert answer.status_code in (400, 422), answer.text
    assert (await listed(stage))[0]["acknowledgements"] == []


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
    assert "going-on\tjob/1\tworker\\x1b[2J-7 (33)\ttoken-stale\tworker-9 (34)\t1\t0\t" in said.stdout
    said = await run("acknowledge", identifier, "--note", "on it")
    assert said.exit_code == 0, said.output
    assert "acknowledged, 1 acknowledgements" in said.stderr
    said = await run("incidents", "--state", "acknowledged", "--json")
    assert '"note": "on it"' in said.stdout
    assert (await run("acknowledge", "nonsense")).exit_code == 1


async def test_the_command_tells_what_passed_from_what_was_refused_and_when_it_was(
    stage: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    await refusal(stage.database, timedelta(minutes=3), resource="job/observed", enforced=False)
    await refusal(stage.database, timedelta(minutes=2), resource="job/observed", enforced=False)
    await refusal(stage.database, timedelta(seconds=4000), resource="job/mixed", enforced=False)
    await refusal(stage.database, timedelta(minutes=61), resource="job/mixed")
    await refusal(stage.database, timedelta(minutes=60), resource="job/mixed")
    monkeypatch.setenv("GATEWAY_URL", stage.origin)
    monkeypatch.setenv("GATEWAY_API_KEY", ON_CALL)
    titles, *rows = (line.split("\t") for line in (await run("incidents")).stdout.splitlines())
    shown = [
        {name: row[titles.index(name)] for name in ("state", "resource", "refused", "passed", "last")} for row in rows
    ]
    assert shown == [
        {"state": "going-on", "resource": "job/observed", "refused": "0", "passed": "2", "last": "wrote 2 minutes ago"},
        {"state": "resolved", "resource": "job/mixed", "refused": "2", "passed": "1", "last": "wrote 1 hour ago"},
    ]


# Timelines and reports ------------------------------------------------------------------------------------------------

RESOURCE, REPORTED = "jobs/nightly", "jobs/%3Cnight%3E/..~/1"


@pytest.fixture
async def history(dsn: str) -> AsyncIterator[Watched]:
    async with watched(dsn, callers=CALLERS) as one:
        yield one


@pytest.fixture
async def client(history: Watched) -> AsyncIterator[httpx.AsyncClient]:
    async with history.client(ADMIN) as opened:
        yield opened


async def acquire(client: httpx.AsyncClient, holder: str) -> str:
    answer = await client.post(f"/v1/leases/{RESOURCE}", json={"holder": holder, "ttl": 60})
    assert answer.status_code in (200, 201), answer.text
    return str(answer.json()["token"])


async def barrier(client: httpx.AsyncClient, token: str, holder: str, resource: str = RESOURCE) -> int:
    answer = await client.post(f"/v1/fences/{resource}/barrier", json={"token": token, "holder": holder})
    return answer.status_code


async def test_what_really_happened_is_what_is_drawn(client: httpx.AsyncClient, database: Database) -> None:
    first = await acquire(client, "job-a")
    assert await barrier(client, first, "job-a") == 200
    broken = await client.post(f"/v1/breaks/{RESOURCE}", json={"expected": first, "reason": "it is stuck"})
    assert broken.status_code == 200, broken.text
    second = await acquire(client, "job-b")
    assert await barrier(client, second, "job-b") == 200
    assert [await barrier(client, first, "job-a") for _ in range(3)] == [412] * 3
    bumped = await client.post(f"/v1/fences/{RESOURCE}/epoch", json={"expected": second, "reason": "restored"})
    assert bumped.status_code == 200, bumped.text
    assert await barrier(client, second, "job-b") == 412

    found = await resource_page.read_timeline(database, RESOURCE, None, None)
    a, b, epoch = (row.lane for row in found.picture.rows)
    assert (a.party.name, a.token, a.tally.refused, a.zombie) == ("job-a", Token.parse(first), 3, True)
    assert a.overtaken is not None
    assert (a.overtaken.by.name, a.overtaken.kind, a.overtaken.inferred) == ("job-b", Kind.BARRIER, False)
    assert a.since is not None
    assert a.since < a.overtaken.at == b.since
    assert [lease.end for lease in a.leases] == [Kind.LEASE_BROKEN]
    assert (b.party.name, b.tally.refused, [lease.end for lease in b.leases]) == ("job-b", 1, [Kind.LEASE_BROKEN])
    assert b.overtaken is not None
    assert b.overtaken.kind is Kind.EPOCH
    assert (epoch.begins_epoch, epoch.holds) == (True, True)
    assert len(found.picture.arrows) == 2
    assert [upright.text for upright in found.picture.uprights] == [f"epoch {bumped.json()['token'].partition('.')[0]}"]


async def test_thousands_of_holders_are_summed_up_by_the_database(database: Database) -> None:
    await database.fetch_write(
        """INSERT INTO fencing.intake (at, kind, resource, epoch, value, holder, caller,
               fence_epoch, fence_value, fence_holder, fence_caller, fence_raised_at)
           SELECT now() - make_interval(secs => 5000 - i), 'raised', $1, 0, i + 1, 'job-' || i + 1, 'worker',
               0, i, 'job-' || i, 'worker', now() - make_interval(secs => 5001 - i)
           FROM generate_series(1, 3000) AS i ORDER BY i""",
        RESOURCE,
    )
    # Of every 100th, as many as its hundreds; the fence they met is that of the one after.
    await database.fetch_write(
        """INSERT INTO fencing.intake (at, kind, resource, reason, enforced, epoch, value, holder, caller,
               fence_epoch, fence_value, fence_holder, fence_caller, fence_raised_at)
           SELECT now() - make_interval(secs => 4990 - i * 100), 'rejection', $1, 'token-stale', n % 2 = 0, 0, i * 100,
               'job-' || i * 100, 'worker', 0, i * 100 + 1, 'job-' || i * 100 + 1, 'worker', now() - interval '1 day'
           FROM generate_series(1, 30) AS i, generate_series(1, i) AS n""",
        RESOURCE,
    )
    now = await database.now()
    position = await record.seal(database)
    history = await timeline.read_history(database, RESOURCE, Span(now - timedelta(hours=2), now), position)
    assert (history.totals.parties, history.totals.zombies) == (3001, 30)
    assert (history.totals.refused, history.totals.noted) == (465, sum((i + 1) // 2 for i in range(1, 31)))
    refused = {tally.party.holder: tally.refused for tally in history.parties if tally.refused}
    assert refused == {f"job-{i * 100}": i for i in range(25, 31)}
    drawn = {tally.party.token.value for tally in history.parties if tally.party.token}
    assert drawn == {*(i * 100 + late for i in range(25, 31) for late in (0, 1)), 2998, 2999, 3000, 3001}
    assert sum(one.refused for one in history.activity) == 465
    assert sum(one.takeovers for one in history.activity) == 3000
    assert sum(one.count for one in history.refusals) == sum(range(25, 31))
    known = {one.by.token.value for one in history.takeovers if one.by.token and not one.inferred}
    assert {token for token in drawn if token > 1} <= known


async def test_a_takeover_that_is_not_on_record_is_told_by_who_met_it(database: Database) -> None:
    await database.fetch_write(
        """INSERT INTO fencing.intake (kind, resource, reason, enforced, epoch, value, holder, caller,
               fence_epoch, fence_value, fence_holder, fence_caller, fence_raised_at)
           SELECT 'rejection', $1, 'token-stale', true, 0, 33, NULL, 'old', 0, fence, NULL, who, now() - since
           FROM (VALUES (1, 34, 'new', interval '10 s'), (2, 36, 'newest', interval '1 s'))
               AS met (n, fence, who, since)
           ORDER BY n""",
        RESOURCE,
    )
    found = await resource_page.read_timeline(database, RESOURCE, None, None)
    old, new = (row.lane for row in found.picture.rows)
    assert (old.party.name, new.party.name) == ("old", "new")
    assert old.overtaken is not None
    assert old.overtaken.inferred
    assert old.overtaken.by.token == Token(0, 34)


LATE, NEXT = "<script>late</script>", "next & newest"


@pytest.fixture
async def reported(history: Watched) -> Watched:
    """A gateway where a holder was overtaken, and came twice more."""
    async with history.client(ANN) as writer:
        for token, holder, status in ((33, LATE, 200), (34, NEXT, 200), (33, LATE, 412), (33, LATE, 412)):
            assert await barrier(writer, str(token), holder, REPORTED) == status
    return history


def text(report: str) -> str:
    """Return the text of a report, without its markup."""
    body = re.sub(r"<style>.*?</style>|<[^>]*>", " ", report, flags=re.DOTALL)
    return re.sub(r"\s+", " ", html.unescape(body))


async def test_it_has_everything_and_needs_nothing(reported: Watched) -> None:
    answer = await reported.get(f"/v1/reports/{REPORTED}")
    head = (await reported.get("/v1/record/head")).json()
    refused = (await reported.get("/v1/rejections", resource=REPORTED)).json()["rejections"]
    report, said = answer.text, text(answer.text)
    assert answer.status_code == 200, report
    assert f"{LATE} (token 33) was overtaken by {NEXT} (token 34)" in said
    assert "tried 2 more requests that are no writes" in said
    assert "All 2 of these requests were refused before they took effect." in said
    assert "Taken over by a barrier" in said
    assert f"ended at position {head['position']}" in said
    assert head["hash"] in said
    assert len(refused) == 2
    assert len(re.findall(r"refused token-stale", said)) == 2
    assert report.startswith("<!doctype html>")
    for forbidden in ("<script", "<link", "<img", "href=", "src=", "url(", "@import", " style=", "javascript:"):
        assert forbidden not in report, forbidden
    assert answer.headers["content-security-policy"] == "default-src 'none'; style-src 'unsafe-inline'; sandbox"
    assert re.fullmatch(r'attachment; filename="[A-Za-z0-9._-]+\.html"', answer.headers["content-disposition"])


async def test_it_is_about_the_span_that_is_asked_for(reported: Watched) -> None:
    early, late = "2020-01-01T00:00:00Z", "2020-01-02T00:00:00Z"
    answer = await reported.get(f"/v1/reports/{REPORTED}", since=early, until=late)
    assert "No write was refused here in this time." in text(answer.text)
    answer = await reported.get(f"/v1/reports/{REPORTED}", since=late, until=early)
    assert (answer.status_code, answer.json()["code"]) == (400, "request-malformed")
    for moment in ("0001-01-01T00:00:00Z", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"):
        for end in ("since", "until"):
            answer = await reported.get(f"/v1/reports/{REPORTED}", **{end: moment})
            assert (answer.status_code, answer.json()["code"]) == (400, "request-malformed"), (end, moment)
    answer = await reported.get("/v1/reports/nobody-knows")
    assert "No write was refused here in this time." in text(answer.text)


async def test_the_command_writes_it_to_a_file(
    reported: Watched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GATEWAY_URL", reported.origin)
    monkeypatch.setenv("GATEWAY_API_KEY", AUDITOR)
    output, resource = tmp_path / "incident.html", ("--resource", REPORTED)
    assert f"{output}: written" in (await run("report", "--output", output, *resource)).output
    assert "tried 2 more requests that are no writes" in text(output.read_text())
    await run("report", "--output", output, *resource, "--until", "2020-01-01T00:00")
    assert "No write was refused here in this time." in text(output.read_text())
    for wrong in ((*resource, "--since", "yesterday"), ("--resource", "not canonical")):
        assert isinstance((await run("report", "--output", output, *wrong)).exception, GatewayError)
    result = await run("report", "--output", tmp_path / "no/such/folder.html", *resource)
    assert isinstance(result.exception, GatewayError)
    assert "cannot be written" in result.exception.message
