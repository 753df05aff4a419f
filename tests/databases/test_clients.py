"""The client library, guards and `gateway run` with locks of two databases, also while one of them is down."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import httpx
import pytest
import pytest_asyncio

from gateway.client import FencedClient, LockLost
from gateway.guard import installation
from gateway.guard.installation import GuardRequest
from tests.databases.fleet import SOON, Fleet, fleet
from tests.doubles.s3 import S3Double
from tests.guard.stage import logging_in_as, refused
from tests.postgres import Server, as_owner
from tests.processes import COMMAND
from tests.running import ACCESS_KEY, API_KEY, SECRET_KEY
from tests.waiting import PATIENCE

LOCKS = {"north": "north.orders/1", "south": "south.orders/1"}


@pytest_asyncio.fixture
async def gateway(request: pytest.FixtureRequest, postgres_server: Server) -> AsyncIterator[Fleet]:
    double, gives_up = S3Double(buckets=["northern", "southern"]), getattr(request, "param", PATIENCE)
    async with fleet(postgres_server, double, gives_up=gives_up) as one:
        yield one


def client(gateway: Fleet, **settings: Any) -> FencedClient:
    keys: dict[str, Any] = {"api_key": API_KEY, "access_key_id": ACCESS_KEY, "secret_access_key": SECRET_KEY}
    return FencedClient(url=gateway.origin, **keys, **settings)


async def update(http: httpx.AsyncClient, schema: str, status: str) -> httpx.Response:
    headers = {"Content-Profile": schema}
    return await http.patch("/v1/tables/orders?id=eq.1", json={"status": status}, headers=headers)


async def test_locks_of_two_databases_write_each_in_its_own(gateway: Fleet) -> None:
    async with client(gateway) as fenced, fenced.lock(LOCKS["north"]) as north, fenced.lock(LOCKS["south"]) as south:
        for lock, schema in ((north, "north"), (south, "south")):
            assert (await update(lock.http, schema, "locked")).status_code == 204
            assert await gateway.asked(schema, f"SELECT status FROM {schema}.orders WHERE id = 1") == ["locked"]
            # The token of a lock is for its resource alone, so it writes nothing in the other database.
            other = "south" if schema == "north" else "north"
            assert (await update(lock.http, other, "crossed")).status_code == 422
            assert await gateway.asked(other, f"SELECT count(*) FROM {other}.orders WHERE status = 'crossed'") == [0]


@pytest.mark.thorough
@pytest.mark.parametrize("gateway", [SOON], indirect=True, ids=[""])
@pytest.mark.parametrize("trouble", ["cut", "pause"])
async def test_locks_are_renewed_while_another_database_is_down(gateway: Fleet, trouble: str) -> None:
    """All locks of a client share a renewal. The one whose database is down gets lost, and no other."""
    ttl = 6.0
    async with client(gateway) as fenced:
        async with fenced.lock("job/1", ttl=ttl) as kept, fenced.lock("job/2", ttl=ttl) as too:

            async def lose() -> None:
                async with fenced.lock("tenant-7/job", ttl=ttl):
                    getattr(gateway.lines["south"], trouble)()
                    await asyncio.sleep(PATIENCE)

            with pytest.raises(LockLost):
                await lose()
            assert not kept.lost.is_set()
            assert not too.lost.is_set()
        gateway.lines["south"].mend()
        gateway.lines["south"].resume()


async def test_guards_fence_sessions_in_each_database(gateway: Fleet) -> None:
    for schema, part in gateway.settings.parts.items():
        owner = as_owner(gateway.addresses[str(schema)])
        role = f"writer_{schema}"
        connection = await asyncpg.connect(owner)
        await connection.execute(f"DROP ROLE IF EXISTS {role}; CREATE ROLE {role} LOGIN")
        await connection.execute(f"GRANT USAGE ON SCHEMA {schema} TO {role}")
        await connection.execute(f"GRANT SELECT, UPDATE ON {schema}.orders TO {role}")
        request = GuardRequest(f"{schema}.orders", dsn=owner, grants=(role,))
        await installation.install(part, request)
        session = await asyncpg.connect(logging_in_as(role, owner))
        try:
            async with session.transaction():
                assert await session.fetchval("SELECT fencing.hold($1, '5', 'host')", f"{schema}.orders/1") == "raised"
                await session.execute(f"UPDATE {schema}.orders SET status = 'direct' WHERE id = 1")
            async with gateway.api() as api:
                stale = {"Fencing-Token": "4", "Content-Profile": str(schema)}
                late = await api.patch("/v1/tables/orders?id=eq.1", json={"status": "late"}, headers=stale)
                assert late.status_code == 412
            # A token that a session holds for a resource of the other database covers no row of this one.
            other = "south" if schema == "north" else "north"
            async with refused("FN422"), session.transaction():
                await session.fetchval("SELECT fencing.hold($1, '9', 'host')", f"{other}.orders/1")
                await session.execute(f"UPDATE {schema}.orders SET status = 'crossed' WHERE id = 1")
        finally:
            await session.close()
            await connection.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")
            await connection.close()
        assert await gateway.fences(str(schema)) == [f"{schema}.orders/1"]


async def test_a_command_runs_under_a_lock_of_the_second_database(gateway: Fleet) -> None:
    script = "import json, os; print(json.dumps(dict(os.environ)))"
    arguments = ("run", "--lock", "tenant-7/nightly", "--", sys.executable, "-c", script)
    environment = {"GATEWAY_URL": gateway.origin, "GATEWAY_API_KEY": API_KEY, "PATH": "/usr/bin:/bin"}
    gateway.lines["north"].cut()
    process = await asyncio.create_subprocess_exec(
        *COMMAND, *arguments, env=environment, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await asyncio.wait_for(process.communicate(), PATIENCE)
    assert process.returncode == 0
    found = json.loads(output)
    assert found["FENCING_RESOURCE"] == "tenant-7/nightly"
    assert await gateway.fences("south") == ["tenant-7/nightly"]
