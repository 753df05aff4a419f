"""Clients of two databases, also while one is down: guarded sessions, and those with temporary keys."""

import re
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlencode

import asyncpg
import httpx
import pytest
import pytest_asyncio

from gateway.guard import installation
from gateway.guard.installation import GuardRequest
from tests.databases.fleet import CALLERS, SOON, Fleet, fleet
from tests.doubles.s3 import S3Double
from tests.guard.stage import logging_in_as, refused
from tests.identity_provider import AUDIENCE, ISSUER, Provider, claims, rsa_key, token
from tests.objects.clients import call, connect, outcome
from tests.postgres import Server, as_owner
from tests.running import GRANTS
from tests.waiting import PATIENCE


async def test_guards_fence_sessions_in_each_database(gateway: Fleet) -> None:
    for part in gateway.settings.parts:
        schema = str(part.name)
        owner = as_owner(gateway.addresses[schema])
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


# Temporary keys -----------------------------------------------------------------------------------------------------

KEY = rsa_key("one")
POD = "system:serviceaccount:shop:worker"
ROLE = "arn:aws:iam::000000000000:role/"
TO_POD = {"callers": [f"kubernetes:{POD}"], "actions": ["read", "write", "lock", "credentials"], "everything": True}
IN_BOTH = {"north": "s3/northern/job", "south": "s3/southern/job"}


@pytest_asyncio.fixture
async def trusting(request: pytest.FixtureRequest, postgres_server: Server) -> AsyncIterator[Fleet]:
    async with Provider(KEY).running() as provider:
        issuer = {"name": "kubernetes", "issuer": ISSUER, "audiences": [AUDIENCE], "keys": provider.url}
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
