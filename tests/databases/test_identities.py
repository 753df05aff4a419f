"""Temporary keys, tokens and renewals for a database that is not the default one, and while one of both is down."""

import re
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest
import pytest_asyncio

from tests.databases.fleet import CALLERS, SOON, Fleet, fleet
from tests.doubles.s3 import S3Double
from tests.identity_provider import AUDIENCE, ISSUER, Provider, claims, rsa_key, token
from tests.objects.clients import call, connect, outcome
from tests.postgres import Server
from tests.running import GRANTS
from tests.waiting import PATIENCE

KEY = rsa_key("one")
POD = "system:serviceaccount:shop:worker"
ROLE = "arn:aws:iam::000000000000:role/"
TO_POD = {"callers": [f"kubernetes:{POD}"], "actions": ["read", "write", "lock", "credentials"], "everything": True}
IN_BOTH = {"north": "s3/northern/job", "south": "s3/southern/job"}


@pytest_asyncio.fixture
async def gateway(request: pytest.FixtureRequest, postgres_server: Server) -> AsyncIterator[Fleet]:
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


async def assume(gateway: Fleet, role: str, session: str = "pod-1") -> httpx.Response:
    form = {"Action": "AssumeRoleWithWebIdentity", "Version": "2011-06-15", "RoleArn": ROLE + role}
    form |= {"RoleSessionName": session, "WebIdentityToken": token(KEY, claims(POD))}
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    async with httpx.AsyncClient(timeout=PATIENCE) as client:
        return await client.post(f"{gateway.origin}/v1/sts", content=urlencode(form), headers=headers)


def client(gateway: Fleet, told: str, fencing_token: str | None = None) -> Any:
    """Return a client of S3 with the keys in an answer of STS."""
    key, secret, session = (
        re.findall(rf"<{name}>(.*?)</{name}>", told)[0] for name in ("AccessKeyId", "SecretAccessKey", "SessionToken")
    )
    return connect(gateway.origin, fencing_token, access_key=key, secret_key=secret, aws_session_token=session)


def in_bucket(database: str) -> dict[str, Any]:
    return {"Bucket": f"{database}ern", "Key": "job", "Body": b"x"}


async def test_a_web_identity_gets_keys_of_the_lock_that_it_holds_in_each_database(gateway: Fleet) -> None:
    bearer = {"Authorization": f"Bearer {token(KEY, claims(POD))}"}
    async with httpx.AsyncClient(base_url=gateway.origin, headers=bearer, timeout=PATIENCE) as pod:
        for database, lock in IN_BOTH.items():
            refused = await assume(gateway, f"lock/{lock}")
            assert (refused.status_code, "does not hold the lock" in refused.text) == (403, True), refused.text
            held = await pod.post(f"/v1/leases/{lock}", json={"holder": "pod-1", "ttl": 60, "barrier": True})
            assert held.status_code == 201, held.text
            keys = await assume(gateway, f"lock/{lock}")
            assert keys.status_code == 200, keys.text
            fenced = client(gateway, keys.text)
            await call(fenced.put_object, **in_bucket(database))
            other = "north" if database == "south" else "south"
            assert (await outcome(fenced.put_object, **in_bucket(other)))[0] == 403
            barrier = {"token": str(int(held.json()["token"]) + 1)}
            async with gateway.api() as api:
                assert (await api.post(f"/v1/fences/{lock}/barrier", json=barrier)).status_code == 200
            assert (await outcome(fenced.put_object, **in_bucket(database)))[0] == 412
    assert await gateway.fences("north") == ["s3/northern/job"]
    assert await gateway.fences("south") == ["s3/southern/job"]


@pytest.mark.thorough
@pytest.mark.parametrize("gateway", [SOON], indirect=True, ids=[""])
async def test_keys_without_a_lock_are_for_all_databases_and_one_that_is_down_does_not_stop_them(
    gateway: Fleet,
) -> None:
    keys = (await assume(gateway, "writer")).text
    for database in IN_BOTH:
        await call(client(gateway, keys, "5").put_object, **in_bucket(database))
    for trouble, down, up in (("cut", "north", "south"), ("pause", "north", "south"), ("cut", "south", "north")):
        getattr(gateway.lines[down], trouble)()
        again = await assume(gateway, "writer")
        assert again.status_code == 200, (down, again.text)
        await call(client(gateway, again.text, "6").put_object, **in_bucket(up))
        gateway.lines[down].mend()
        gateway.lines[down].resume()


@pytest.mark.thorough
async def test_fenced_keys_are_issued_where_their_resource_belongs(gateway: Fleet) -> None:
    async with gateway.api() as api:
        for down, up in (("north", "south"), ("south", "north")):
            gateway.lines[down].cut()
            asked = {"resource": IN_BOTH[up], "token": "30"}
            keys = await api.post("/v1/credentials", json=asked)
            assert keys.status_code == 201, keys.text
            view = keys.json()
            given = {"access_key": view["access_key_id"], "secret_key": view["secret_access_key"]}
            fenced = connect(gateway.origin, **given, aws_session_token=view["session_token"])
            await call(fenced.put_object, **in_bucket(up))
            assert (await outcome(fenced.put_object, **in_bucket(down)))[0] == 403
            lost = await api.post("/v1/credentials", json={"resource": IN_BOTH[down], "token": "30"})
            assert lost.status_code == 503
            gateway.lines[down].mend()
