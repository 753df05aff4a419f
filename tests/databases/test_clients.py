"""Clients of two databases, also while one is down: the library, guards, `gateway run`, and temporary keys."""

import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlencode

import asyncpg
import httpx
import pytest
import pytest_asyncio

from gateway.client import FencedClient, LockLost
from gateway.guard import installation
from gateway.guard.installation import GuardRequest
from tests.databases.fleet import CALLERS, SOON, Fleet, fleet
from tests.doubles.s3 import S3Double
from tests.guard.stage import logging_in_as, refused
from tests.identity_provider import AUDIENCE, ISSUER, Provider, claims, rsa_key, token
from tests.objects.clients import call, connect, outcome
from tests.postgres import Server, as_owner
from tests.processes import COMMAND
from tests.running import ACCESS_KEY, API_KEY, GRANTS, SECRET_KEY
from tests.waiting import PATIENCE

LOCKS = {"north": "north.orders/1", "south": "south.orders/1"}


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


# Temporary keys -----------------------------------------------------------------------------------------------------

KEY = rsa_key("one")
POD = "system:serviceaccount:shop:worker"
ROLE = "arn:aws:iam::000000000000:role/"
TO_POD = {"callers": [f"kubernetes:{POD}"], "actions": ["read", "write", "lock", "credentials"], "everything": True}
IN_BOTH = {"north": "s3/northern/job", "south": "s3/southern/job"}


@pytest_asyncio.fixture
async def trusting(request: pytest.FixtureRequest, postgres_server: Server) -> AsyncIterator[Fleet]:
    async with Provider(KEY).running() as provider:
        issuer = {"name": "kubernetes", "issuer": ISSUER, "audiences": [AUDIENCE], "keys_url": provider.url}
        async with fleet(
            postgres_server,
            S3Double(buckets=["northern", "southern"]),
            gives_up=getattr(request, "param", PATIENCE),
            callers=CALLERS,
            grants=[GRANTS[0], TO_POD],
            issuers=[issuer],
            identity={"signing_keys": ["a signing key of thirty-two bytes."]},
        ) as one:
            yield one


async def assume(trusting: Fleet, role: str, session: str = "pod-1") -> httpx.Response:
    form = {"Action": "AssumeRoleWithWebIdentity", "Version": "2011-06-15", "RoleArn": ROLE + role}
    form |= {"RoleSessionName": session, "WebIdentityToken": token(KEY, claims(POD))}
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    async with httpx.AsyncClient(timeout=PATIENCE) as client:
        return await client.post(f"{trusting.origin}/v1/sts", content=urlencode(form), headers=headers)


def s3_client(trusting: Fleet, told: str, fencing_token: str | None = None) -> Any:
    """Return a client of S3 with the keys in an answer of STS."""
    key, secret, session = (
        re.findall(rf"<{name}>(.*?)</{name}>", told)[0] for name in ("AccessKeyId", "SecretAccessKey", "SessionToken")
    )
    return connect(trusting.origin, fencing_token, access_key=key, secret_key=secret, aws_session_token=session)


def in_bucket(database: str) -> dict[str, Any]:
    return {"Bucket": f"{database}ern", "Key": "job", "Body": b"x"}


async def test_a_web_identity_gets_keys_of_the_lock_that_it_holds_in_each_database(trusting: Fleet) -> None:
    bearer = {"Authorization": f"Bearer {token(KEY, claims(POD))}"}
    async with httpx.AsyncClient(base_url=trusting.origin, headers=bearer, timeout=PATIENCE) as pod:
        for database, lock in IN_BOTH.items():
            refused = await assume(trusting, f"lock/{lock}")
            assert (refused.status_code, "does not hold the lock" in refused.text) == (403, True), refused.text
            held = await pod.post(f"/v1/leases/{lock}", json={"holder": "pod-1", "ttl": 60, "barrier": True})
            assert held.status_code == 201, held.text
            keys = await assume(trusting, f"lock/{lock}")
            assert keys.status_code == 200, keys.text
            fenced = s3_client(trusting, keys.text)
            await call(fenced.put_object, **in_bucket(database))
            other = "north" if database == "south" else "south"
            assert (await outcome(fenced.put_object, **in_bucket(other)))[0] == 403
            barrier = {"token": str(int(held.json()["token"]) + 1)}
            async with trusting.api() as api:
                assert (await api.post(f"/v1/fences/{lock}/barrier", json=barrier)).status_code == 200
            assert (await outcome(fenced.put_object, **in_bucket(database)))[0] == 412
    assert await trusting.fences("north") == ["s3/northern/job"]
    assert await trusting.fences("south") == ["s3/southern/job"]


@pytest.mark.thorough
@pytest.mark.parametrize("trusting", [SOON], indirect=True, ids=[""])
async def test_keys_without_a_lock_are_for_all_databases_and_one_that_is_down_does_not_stop_them(
    trusting: Fleet,
) -> None:
    keys = (await assume(trusting, "writer")).text
    for database in IN_BOTH:
        await call(s3_client(trusting, keys, "5").put_object, **in_bucket(database))
    for trouble, down, up in (("cut", "north", "south"), ("pause", "north", "south"), ("cut", "south", "north")):
        getattr(trusting.lines[down], trouble)()
        again = await assume(trusting, "writer")
        assert again.status_code == 200, (down, again.text)
        await call(s3_client(trusting, again.text, "6").put_object, **in_bucket(up))
        trusting.lines[down].mend()
        trusting.lines[down].resume()


@pytest.mark.thorough
async def test_fenced_keys_are_issued_where_their_resource_belongs(trusting: Fleet) -> None:
    async with trusting.api() as api:
        for down, up in (("north", "south"), ("south", "north")):
            trusting.lines[down].cut()
            asked = {"resource": IN_BOTH[up], "token": "30"}
            keys = await api.post("/v1/credentials", json=asked)
            assert keys.status_code == 201, keys.text
            view = keys.json()
            given = {"access_key": view["access_key_id"], "secret_key": view["secret_access_key"]}
            fenced = connect(trusting.origin, **given, aws_session_token=view["session_token"])
            await call(fenced.put_object, **in_bucket(up))
            assert (await outcome(fenced.put_object, **in_bucket(down)))[0] == 403
            lost = await api.post("/v1/credentials", json={"resource": IN_BOTH[down], "token": "30"})
            assert lost.status_code == 503
            trusting.lines[down].mend()
