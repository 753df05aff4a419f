"""A gateway serves on a database only if it was opened for the present run of its server."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import httpx
import pytest

from gateway.db.migrations import newest
from gateway.doctor.examination import examine
from gateway.findings import Check, CheckStatus
from gateway.observe.events import DatabaseOpened
from tests.postgres import GATEWAY
from tests.releases import NEXT_REVISION
from tests.running import API_KEY, OPEN, Events, config, running
from tests.waiting import PATIENCE, end_sessions

TABLE = "CREATE TABLE orders (id bigint PRIMARY KEY, note text); INSERT INTO orders VALUES (1, '')"
OTHER_RUN = "UPDATE fencing.opening SET started = started - interval '1 day'"
OTHER_SERVER = "UPDATE fencing.opening SET timeline = timeline + 1"


@pytest.fixture
async def session(dsn: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(dsn)
    await connection.execute(TABLE)
    yield connection
    await connection.close()


async def patch(origin: str, token: int) -> httpx.Response:
    headers = {"Authorization": f"Bearer {API_KEY}", "Fencing-Token": f"{token}"}
    async with httpx.AsyncClient(base_url=origin, headers=headers, timeout=PATIENCE) as client:
        return await client.patch("/v1/tables/orders?id=eq.1", json={"note": "x"})


async def openings(session: asyncpg.Connection) -> list[dict[str, Any]]:
    rows = await session.fetch(
        "SELECT details::text FROM fencing.record WHERE details ->> 'operation' = 'OpenDatabase'"
    )
    return [json.loads(row["details"]) for row in rows]


async def examined(dsn: str) -> Check:
    report = await examine(config(dsn).default)
    [check] = [check for check in report.checks if check.name == "run"]
    return check


def opened(events: Events) -> list[DatabaseOpened]:
    return [event for event in events if isinstance(event, DatabaseOpened)]


@pytest.mark.parametrize(
    ("change", "continues"), [(OTHER_RUN, True), pytest.param(OTHER_SERVER, False, marks=pytest.mark.thorough)]
)
@pytest.mark.thorough
async def test_each_run_is_opened_once_and_on_record(
    dsn: str, session: asyncpg.Connection, change: str, *, continues: bool
) -> None:
    await session.execute(change)
    assert (await examined(dsn)).status is CheckStatus.WARNING
    events = Events()
    async with running(config(dsn), events) as one, running(config(dsn), events) as two:
        answers = await asyncio.gather(*(patch(origin, 1) for origin in (one, two) for _ in range(4)))
        assert {answer.status_code for answer in answers} == {204}
        [event] = opened(events)
        assert (event.term, event.continues) == (1, continues)
        [entry] = await openings(session)
        assert (entry["term"], entry["continues"]) == (1, continues)
        assert entry["before"] != entry["run"]
        assert (await examined(dsn)).status is CheckStatus.OK


async def test_a_session_of_another_run_is_not_served_before_it_is_open(dsn: str, session: asyncpg.Connection) -> None:
    """The database was put back while a gateway ran. Its sessions have ended with the run."""
    events = Events()
    async with running(config(dsn), events) as origin:
        assert (await patch(origin, 1)).status_code == 204
        assert (opened(events), await openings(session)) == ([], []), "it is open where it was installed"
        await session.execute(OTHER_RUN)
        await session.execute(f"REVOKE UPDATE ON fencing.opening FROM {GATEWAY}")
        await end_sessions(dsn)
        refused = await patch(origin, 2)
        assert (refused.status_code, refused.json()["code"]) == (503, "database-closed"), refused.text
        assert refused.headers["retry-after"]
        async with asyncpg.create_pool(dsn, min_size=1, max_size=1) as owner:
            assert not await owner.fetch("SELECT FROM fencing.fence WHERE value = 2")
            await owner.execute(f"GRANT UPDATE ON fencing.opening TO {GATEWAY}")
        assert (await patch(origin, 2)).status_code == 204
        assert len(opened(events)) == 1


async def test_a_direct_writer_waits_for_a_gateway(dsn: str, session: asyncpg.Connection) -> None:
    assert await session.fetchval("SELECT fencing.hold('orders/1', '3')") == "raised"
    await session.execute(OTHER_RUN)
    with pytest.raises(asyncpg.PostgresError) as refused:
        await session.fetchval("SELECT fencing.hold('orders/1', '3')")
    assert (refused.value.sqlstate, json.loads(refused.value.detail or "")) == ("FN503", {"code": "database-closed"})
    async with running(config(dsn)) as origin:
        assert (await patch(origin, 1)).status_code == 204
        assert await session.fetchval("SELECT fencing.hold('orders/1', '3')") == "held"


async def test_a_gateway_that_started_before_its_database_serves_once_the_schema_is_new_enough(
    dsn: str, session: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check at the start cannot see the schema of a database that is not there yet."""
    monkeypatch.setattr("gateway.journal.opening_table.newest", lambda: NEXT_REVISION)
    async with running(config(dsn, grants=OPEN)) as url, httpx.AsyncClient(base_url=url, timeout=PATIENCE) as client:
        assert (await client.get("/v1/ready")).status_code == 503
        refused = await client.post("/v1/fences/job/1/barrier", json={"token": "1"})
        assert (refused.status_code, refused.json()["code"]) == (503, "database-closed")
        assert (
            f"The fencing schema is at {newest()}; this version of the gateway needs {NEXT_REVISION}." in refused.text
        )
        assert await session.fetchval("SELECT count(*) FROM fencing.fence") == 0
        await session.execute(f"UPDATE fencing.migration SET version_num = '{NEXT_REVISION}'")
        assert (await client.post("/v1/fences/job/1/barrier", json={"token": "1"})).status_code == 200
        assert (await client.get("/v1/ready")).status_code == 204


async def test_a_gateway_that_the_schema_no_longer_serves_gets_no_session(
    dsn: str, session: asyncpg.Connection
) -> None:
    """It may have started before the migration, or before its database."""
    async with running(config(dsn, grants=OPEN)) as url, httpx.AsyncClient(base_url=url, timeout=PATIENCE) as client:
        assert (await client.post("/v1/fences/job/1/barrier", json={"token": "1"})).status_code == 200
        await session.execute(
            f"UPDATE fencing.migration SET version_num = '{NEXT_REVISION}';"
            f"UPDATE fencing.compatibility SET oldest = '{NEXT_REVISION}'"
        )
        await end_sessions(dsn)
        refused = await client.post("/v1/fences/job/1/barrier", json={"token": "2"})
        assert (refused.status_code, refused.json()["code"]) == (503, "database-closed")
        assert f"which serves gateways of {NEXT_REVISION} and later. This one knows {newest()}." in refused.text
        async with asyncpg.create_pool(dsn, min_size=1, max_size=1) as owner:
            assert await owner.fetchval("SELECT value FROM fencing.fence") == 1
