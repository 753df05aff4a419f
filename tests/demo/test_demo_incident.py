"""The sample of the demo is on record as everything else is: sealed, chained, found, with its fences in force."""

import httpx
import pytest

from gateway.db import fences
from gateway.db.database import Database
from gateway.demo import incident
from gateway.fencing.token import Token
from tests.running import API_KEY, config, running
from tests.waiting import PATIENCE


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
