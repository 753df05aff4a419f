"""The timeline out of what a real gateway has recorded, and out of more than can be drawn."""

from collections.abc import AsyncIterator
from datetime import timedelta

import asyncpg
import httpx
import pytest

from gateway.db import record, timeline
from gateway.db.database import Database
from gateway.fencing.record import Kind
from gateway.fencing.token import Token
from gateway.timeline.history import Span
from gateway.web import resource_page
from tests.running import API_KEY, config, running
from tests.waiting import PATIENCE

RESOURCE = "jobs/nightly"
CALLERS = [{"name": "writer", "api_key": API_KEY, "groups": ["admins"]}]


@pytest.fixture
async def client(dsn: str) -> AsyncIterator[httpx.AsyncClient]:
    async with (
        running(config(dsn, callers=CALLERS)) as origin,
        httpx.AsyncClient(base_url=origin, headers={"Authorization": f"Bearer {API_KEY}"}, timeout=PATIENCE) as opened,
    ):
        yield opened


async def acquire(client: httpx.AsyncClient, holder: str) -> str:
    answer = await client.post(f"/v1/leases/{RESOURCE}", json={"holder": holder, "ttl": 60})
    assert answer.status_code in (200, 201), answer.text
    return str(answer.json()["token"])


async def barrier(client: httpx.AsyncClient, token: str, holder: str) -> int:
    answer = await client.post(f"/v1/fences/{RESOURCE}/barrier", json={"token": token, "holder": holder})
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


async def test_a_lease_that_is_alive_goes_to_the_edge(client: httpx.AsyncClient, database: Database) -> None:
    token = await acquire(client, "job-a")
    assert await barrier(client, token, "job-a") == 200
    found = await resource_page.read_timeline(database, RESOURCE, None, None)
    ((band,),) = (row.bands for row in found.picture.rows)
    (row,) = found.picture.rows
    assert row.held is not None
    assert band.x2 == row.held.x2
    assert not row.held.ends


async def test_thousands_of_holders_are_summed_up_by_the_database(dsn: str, database: Database) -> None:
    connection = await asyncpg.connect(dsn)
    await connection.execute(
        """INSERT INTO fencing.intake (at, kind, resource, epoch, value, holder, caller,
               fence_epoch, fence_value, fence_holder, fence_caller, fence_raised_at)
           SELECT now() - make_interval(secs => 5000 - i), 'raised', $1, 0, i + 1, 'job-' || i + 1, 'worker',
               0, i, 'job-' || i, 'worker', now() - make_interval(secs => 5001 - i)
           FROM generate_series(1, 3000) AS i ORDER BY i""",
        RESOURCE,
    )
    # Of every 100th, as many as its hundreds; the fence they met is that of the one after.
    await connection.execute(
        """INSERT INTO fencing.intake (at, kind, resource, reason, enforced, epoch, value, holder, caller,
               fence_epoch, fence_value, fence_holder, fence_caller, fence_raised_at)
           SELECT now() - make_interval(secs => 4990 - i * 100), 'rejection', $1, 'token-stale', n % 2 = 0, 0, i * 100,
               'job-' || i * 100, 'worker', 0, i * 100 + 1, 'job-' || i * 100 + 1, 'worker', now() - interval '1 day'
           FROM generate_series(1, 30) AS i, generate_series(1, i) AS n""",
        RESOURCE,
    )
    await connection.close()
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


async def test_a_takeover_that_is_not_on_record_is_told_by_who_met_it(dsn: str, database: Database) -> None:
    connection = await asyncpg.connect(dsn)
    await connection.execute(
        """INSERT INTO fencing.intake (kind, resource, reason, enforced, epoch, value, holder, caller,
               fence_epoch, fence_value, fence_holder, fence_caller, fence_raised_at)
           SELECT 'rejection', $1, 'token-stale', true, 0, 33, NULL, 'old', 0, fence, NULL, who, now() - since
           FROM (VALUES (1, 34, 'new', interval '10 s'), (2, 36, 'newest', interval '1 s'))
               AS met (n, fence, who, since)
           ORDER BY n""",
        RESOURCE,
    )
    await connection.close()
    found = await resource_page.read_timeline(database, RESOURCE, None, None)
    old, new = (row.lane for row in found.picture.rows)
    assert (old.party.name, new.party.name) == ("old", "new")
    assert old.overtaken is not None
    assert old.overtaken.inferred
    assert old.overtaken.by.token == Token(0, 34)
