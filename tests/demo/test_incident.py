"""The sample of the demo agrees with itself, the rules of fencing and the demo's configuration, and is on record."""

from collections import Counter
from datetime import UTC, datetime, timedelta

import httpx
import pytest

from gateway.db import fences
from gateway.db.database import Database
from gateway.demo import demonstration as demo
from gateway.demo import incident
from gateway.demo.incident import Actor, Chronicle, Columns
from gateway.fencing.record import Kind
from gateway.fencing.token import Token
from tests.running import API_KEY, config, running
from tests.waiting import PATIENCE

NOW = datetime(2026, 3, 1, 9, 20, 30, tzinfo=UTC)
TAKEOVERS = (Kind.RAISED, Kind.BARRIER, Kind.EPOCH)


@pytest.fixture(scope="module")
def told() -> Chronicle:
    return incident.compose(NOW)


def fence_of(entry: Columns) -> tuple[int, int]:
    return entry["fence_epoch"], entry["fence_value"]


def token_of(entry: Columns) -> tuple[int, int]:
    return entry["epoch"], entry["value"]


@pytest.mark.parametrize(
    "later", [timedelta(minutes=7), timedelta(hours=5, minutes=39, seconds=30), timedelta(days=40)]
)
def test_it_can_be_told_at_any_hour(later: timedelta) -> None:
    entries = incident.compose(NOW + later).entries
    assert {Kind(entry["kind"]) for entry in entries} >= {Kind.REJECTION, Kind.EPOCH, Kind.SETTLED, Kind.BYPASS}
    assert all(datetime.fromisoformat(entry["at"]) < NOW + later for entry in entries)


def test_whoever_was_refused_had_been_overtaken_before_and_that_is_on_record(told: Chronicle) -> None:
    standing: dict[str, Columns] = {}
    refused = 0
    for entry in told.entries:
        resource = str(entry.get("resource"))
        if entry["kind"] in TAKEOVERS:
            if before := standing.get(resource):  # the very first write of a resource is not on record
                assert fence_of(entry) == token_of(before)
            standing[resource] = entry
        elif entry["kind"] == Kind.REJECTION and entry.get("reason") != "token-required":
            refused += 1
            assert entry["fence_raised_at"] < entry["at"]
            if entry["reason"] == "token-duplicate":
                assert token_of(entry) == fence_of(entry)
                assert entry["holder"] != entry["fence_holder"]
            else:
                assert entry["reason"] == "token-stale"
                assert token_of(entry) < fence_of(entry)
            takeover = standing.get(resource)
            if takeover is not None:
                assert token_of(takeover) == fence_of(entry)
                assert (takeover.get("holder"), takeover["at"]) == (
                    entry["fence_holder"],
                    entry["fence_raised_at"],
                )
    assert refused > 150
    assert [entry["at"] for entry in told.entries] == sorted(entry["at"] for entry in told.entries)


def test_counts_and_record_agree(told: Chronicle) -> None:
    refusals = Counter((e["rule"], e["enforced"]) for e in told.entries if e["kind"] == "rejection")
    refused, observed = Counter[str](), Counter[str]()
    for place, counts in told.traffic.items():
        assert place.minute.second == 0
        refused[place.rule] += counts.refused
        observed[place.rule] += counts.observed
    assert +refused == Counter({rule: number for (rule, enforced), number in refusals.items() if enforced})
    assert +observed == Counter({rule: number for (rule, enforced), number in refusals.items() if not enforced})


def test_the_rules_are_those_of_the_demo(told: Chronicle) -> None:
    config = demo.configuration("postgresql://", "http://store")
    modes = {rule.name: rule.mode or config.fencing.mode for rule in config.tables}
    modes |= {rule.match: rule.mode or config.fencing.mode for rule in config.objects}
    for under in incident.BACKGROUND:
        assert under is incident.ACCOUNTS or modes[under.name] is under.mode


def test_a_past_that_contradicts_itself_cannot_be_told(told: Chronicle) -> None:
    writer = Actor("a", "b", "10.0.0.1")
    told.barrier(NOW, "job/nightly-report", Token(0, 1), writer)
    with pytest.raises(ValueError, match="nobody raises"):
        told.play()


async def test_it_is_on_record_once_and_its_fences_hold(
    dsn: str, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    chronicle = incident.compose(await database.now())
    # A second later some of it is told in another order: parts of it go by the hours of the day, others by the moment.
    monkeypatch.setattr(incident, "compose", lambda now: chronicle)
    assert await incident.write(database)
    assert not await incident.write(database), "nothing is added to a record that there is"
    rows = await database.fetch("SELECT id::text, at, position FROM fencing.entry ORDER BY position")
    assert [row["position"] for row in rows] == list(range(1, len(chronicle.entries) + 1))
    assert [row["at"] for row in rows] == sorted(row["at"] for row in rows)
    assert [row["id"] for row in rows] == [entry["id"] for entry in chronicle.entries]
    fence = await fences.read(database, "producer/orders")
    assert fence is not None
    assert (fence.token, fence.holder) == (Token(1, 61011), "producer-2")
    traffic = await database.fetchrow("SELECT sum(refused + observed) AS n FROM fencing.traffic")
    assert traffic is not None
    assert traffic["n"] == sum(entry["kind"] == "rejection" for entry in chronicle.entries)
    headers = {"Authorization": f"Bearer {API_KEY}", "Content-Type": "application/json"}
    async with (
        running(config(dsn)) as url,
        httpx.AsyncClient(base_url=url, headers=headers, timeout=PATIENCE) as client,
    ):
        stale = await client.post("/v1/fences/job/nightly-report/barrier", json={"token": "41", "holder": "batch-vm-1"})
        newer = await client.post("/v1/fences/job/nightly-report/barrier", json={"token": "43", "holder": "batch-vm-3"})
    assert (stale.status_code, newer.status_code) == (412, 200)
