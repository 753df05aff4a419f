"""AWS STS at the gateway: S3 clients get temporary keys for an identity token, with nothing but variables."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from uuid import uuid4

import httpx
import pytest
import pytest_asyncio

from gateway.auth import temporary_keys
from gateway.auth.sigv4 import RequestHead, StoreCredentials, sign
from gateway.demo.embedded import EmbeddedPostgres
from tests.clients.sdks import DIRECTORY, java_command
from tests.doubles.s3 import S3Double
from tests.identity_provider import AUDIENCE, ISSUER, Provider, claims, rsa_key, token
from tests.objects.object_gateway import Stage, staged
from tests.waiting import PATIENCE

pytestmark = pytest.mark.asyncio(loop_scope="module")

KEY = rsa_key("one")
SIGNING = ["new signing key of thirty-two bytes", "old signing key of thirty-two bytes"]
ROLE = "arn:aws:iam::000000000000:role/writer"
POD = "system:serviceaccount:shop:worker"
GRANTS = [
    {
        "callers": [f"kubernetes:{POD}"],
        "actions": ["read", "write", "lock", "credentials"],
        "buckets": ["bucket/in/**"],
        "resources": ["s3/bucket/in/**"],
    },
    {"callers": ["group:kubernetes:readers"], "actions": ["read"], "buckets": ["bucket/in/**"]},
]


@dataclass(frozen=True)
class Cluster:
    stage: Stage
    provider: Provider

    def variables(self, path: Path, role: str = ROLE, session: str = "pod-1", subject: str = POD) -> dict[str, str]:
        """Return all that a pod gets to see: variables, and a file with its token."""
        path.write_text(token(KEY, claims(subject)))
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(path.parent),
            "AWS_WEB_IDENTITY_TOKEN_FILE": str(path),
            "AWS_ROLE_ARN": role,
            "AWS_ROLE_SESSION_NAME": session,
            "AWS_ENDPOINT_URL_S3": self.stage.origin,
            "AWS_ENDPOINT_URL_STS": f"{self.stage.origin}/v1/sts",
            "AWS_REGION": "us-east-1",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    async def assume(self, text: str, path: str = "/v1/sts", **more: str) -> httpx.Response:
        form = {
            "Action": "AssumeRoleWithWebIdentity",
            "Version": "2011-06-15",
            "RoleArn": ROLE,
            "RoleSessionName": "pod-1",
            "WebIdentityToken": text,
            **more,
        }
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        async with httpx.AsyncClient(timeout=PATIENCE) as client:
            return await client.post(f"{self.stage.origin}{path}", content=urlencode(form), headers=headers)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(postgres_server: EmbeddedPostgres) -> AsyncIterator[Cluster]:
    async with Provider(KEY).running() as provider:
        issuer = {"name": "kubernetes", "issuer": ISSUER, "audiences": [AUDIENCE], "keys": provider.url}
        async with staged(
            postgres_server,
            S3Double(buckets=["bucket"]),
            callers=[],
            grants=GRANTS,
            issuers=[{**issuer, "groups_claim": ["groups"]}],
            identity={"signing_keys": SIGNING},
        ) as stage:
            yield Cluster(stage, provider)


CLIENT = """
import boto3, json, sys
s3 = boto3.client("s3")
key, token = sys.argv[1:]
def fence(params, **_):
    if token: params["headers"]["Fencing-Token"] = token
s3.meta.events.register("before-call.s3.PutObject", fence)
def outcome(call):
    try:
        return call()["ResponseMetadata"]["HTTPStatusCode"]
    except s3.exceptions.ClientError as error:
        return error.response["Error"]["Code"]
print(json.dumps([
    outcome(lambda: s3.put_object(Bucket="bucket", Key=key, Body=b"x")),
    outcome(lambda: s3.get_object(Bucket="bucket", Key=key)),
    outcome(lambda: s3.put_object(Bucket="bucket", Key="elsewhere", Body=b"x")),
]))
"""


async def run(variables: dict[str, str], *command: str) -> str:
    told = await asyncio.to_thread(
        subprocess.run, command, env=variables, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert told.returncode == 0, told.stderr
    return told.stdout


@pytest.mark.thorough
async def test_boto3_writes_with_nothing_but_variables(cluster: Cluster, tmp_path: Path) -> None:
    variables = cluster.variables(tmp_path / "token")
    told = await run(variables, sys.executable, "-c", CLIENT, "in/a", "7")
    assert json.loads(told) == [200, 200, "AccessDenied"]
    # With one address for everything, STS is asked at the root.
    everything = {"AWS_ENDPOINT_URL": cluster.stage.origin, "AWS_ENDPOINT_URL_STS": cluster.stage.origin}
    assert json.loads(await run(variables | everything, sys.executable, "-c", CLIENT, "in/a", "8"))[:2] == [200, 200]
    assert json.loads(await run(variables, sys.executable, "-c", CLIENT, "in/a", "7"))[0] != 200


async def test_a_role_that_names_a_lock_gives_fenced_keys(cluster: Cluster, tmp_path: Path) -> None:
    resource = "s3/bucket/in/b"
    role = f"arn:aws:iam::000000000000:role/lock/{resource}"
    headers = {"Authorization": f"Bearer {token(KEY, claims(POD))}"}
    unheld = await cluster.assume(token(KEY, claims(POD)), RoleArn=role)
    assert (unheld.status_code, "does not hold the lock" in unheld.text) == (403, True)
    async with httpx.AsyncClient(base_url=cluster.stage.origin, timeout=PATIENCE, headers=headers) as client:
        held = await client.post(f"/v1/leases/{resource}", json={"holder": "pod-1", "ttl": 60})
        assert held.status_code == 201
        variables = cluster.variables(tmp_path / "token", role)
        other = await cluster.assume(token(KEY, claims(POD)), RoleArn=role, RoleSessionName="pod-2")
        assert other.status_code == 403
        # The client sends no token of its own.
        assert json.loads(await run(variables, sys.executable, "-c", CLIENT, "in/b", "")) == [200, 200, "AccessDenied"]
        newer = await client.post(f"/v1/fences/{resource}/barrier", headers={"Fencing-Token": "99"})
        assert newer.status_code == 403  # it has no such grant
    reader = await cluster.assume(token(KEY, claims("reader", groups=["readers"])), RoleArn=role)
    assert (reader.status_code, "AccessDenied" in reader.text) == (403, True)


@pytest.mark.installed
async def test_a_role_that_names_a_lock_gives_the_sdk_for_java_fenced_keys(cluster: Cluster, tmp_path: Path) -> None:
    resource = "s3/bucket/in/java"
    program = java_command(DIRECTORY / "Identity.java")
    headers = {"Authorization": f"Bearer {token(KEY, claims(POD))}"}
    async with httpx.AsyncClient(base_url=cluster.stage.origin, timeout=PATIENCE, headers=headers) as client:
        held = await client.post(f"/v1/leases/{resource}", json={"holder": "pod-1", "ttl": 60})
        assert held.status_code == 201
        variables = cluster.variables(tmp_path / "token", f"arn:aws:iam::000000000000:role/lock/{resource}")
        assert await run(variables, *program, "in/java") == "hello\n"
        # Another key belongs to another lock.
        with pytest.raises(AssertionError, match="Status Code: 403"):
            await run(variables, *program, "in/b")


async def test_a_lock_whose_name_is_a_pattern_gives_no_keys_for_other_resources(cluster: Cluster) -> None:
    """A name may have asterisks. In the scope of keys they would stand for any name, also for deeper ones."""
    headers = {"Authorization": f"Bearer {token(KEY, claims(POD))}"}
    async with httpx.AsyncClient(base_url=cluster.stage.origin, timeout=PATIENCE, headers=headers) as client:
        for resource in ("s3/bucket/in/*", "s3/bucket/in/**"):
            held = await client.post(f"/v1/leases/{resource}", json={"holder": "pod-1", "ttl": 60})
            assert held.status_code == 201
            answer = await cluster.assume(
                token(KEY, claims(POD)), RoleArn=f"arn:aws:iam::000000000000:role/lock/{resource}"
            )
            assert (answer.status_code, "<Code>ValidationError</Code>" in answer.text) == (400, True), answer.text


async def test_groups_of_the_token_hold_for_its_keys(cluster: Cluster) -> None:
    """A newline at the end of its file is no part of the token."""
    answer = await cluster.assume(token(KEY, claims("reader", groups=["readers"])) + "\n", DurationSeconds="900")
    assert answer.status_code == 200, answer.text
    assert answer.headers["cache-control"] == "no-store"
    session = answer.text.partition("<SessionToken>")[2].partition("<")[0]
    presented = temporary_keys.read_session_token(session)
    assert (presented.caller, presented.groups) == ("kubernetes:reader", ("kubernetes:readers",))
    assert presented.scope is None


FORGED = rsa_key("one")
WRONG: dict[str, tuple[dict[str, str], str]] = {
    "another action": ({"Action": "AssumeRole"}, "ValidationError"),
    "a policy that would limit it": ({"Policy": "{}"}, "ValidationError"),
    "no session": ({"RoleSessionName": ""}, "ValidationError"),
    "too short": ({"DurationSeconds": "899"}, "ValidationError"),
    "no number": ({"DurationSeconds": "٩٠٠"}, "ValidationError"),
    "a forged token": ({"WebIdentityToken": token(FORGED, claims(POD))}, "InvalidIdentityToken"),
    "an API key": ({"WebIdentityToken": "writer-api-key"}, "InvalidIdentityToken"),
    "an expired token": ({"WebIdentityToken": token(KEY, claims(POD, exp=1))}, "ExpiredTokenException"),
    "markup": ({"RoleArn": "arn:aws:iam::0:role/lock/<x>&"}, "ValidationError"),
}


@pytest.mark.parametrize(("more", "code"), WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("path", ["/v1/sts", "/"])
async def test_a_wrong_request_is_refused_as_clients_of_sts_expect(
    cluster: Cluster, path: str, more: dict[str, str], code: str
) -> None:
    answer = await cluster.assume(token(KEY, claims(POD)), path, **more)
    assert (answer.status_code, f"<Code>{code}</Code>" in answer.text) == (400, True), answer.text
    assert "<ErrorResponse" in answer.text
    assert not any(part in answer.text for part in more.get("WebIdentityToken", "").split(".") if len(part) > 20)


async def test_a_body_that_is_too_large_or_a_field_twice_is_refused(cluster: Cluster) -> None:
    large = await cluster.assume("x" * 40_000)
    assert (large.status_code, "too large" in large.text) == (400, True)
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    async with httpx.AsyncClient(timeout=PATIENCE) as client:
        twice = await client.post(
            f"{cluster.stage.origin}/v1/sts", content=b"Action=AssumeRoleWithWebIdentity&Action=x", headers=headers
        )
    assert (twice.status_code, "twice" in twice.text) == (400, True)


async def test_only_keys_of_this_configuration_count(cluster: Cluster) -> None:
    """A changed session token, another gateway's keys, and keys of a caller that no trusted issuer has."""
    soon, unique = datetime.now(UTC) + timedelta(hours=1), uuid4().hex[:20].upper()

    async def read(secret: str, caller: str, expires: Any = soon) -> tuple[int, str]:
        keys = temporary_keys.issue(caller, secret, unique, expires)
        host = cluster.stage.origin.removeprefix("http://")
        headers = [("host", host), ("x-amz-security-token", keys.session_token)]
        raw = [(name.encode(), value.encode()) for name, value in headers]
        head = RequestHead("GET", b"/bucket", b"list-type=2&prefix=in%2F", raw)
        stored = StoreCredentials(keys.access_key_id, keys.secret_access_key, "us-east-1")
        headers += sign(head, "UNSIGNED-PAYLOAD", stored, datetime.now(UTC))
        async with httpx.AsyncClient(timeout=PATIENCE) as client:
            answer = await client.get(f"{cluster.stage.origin}/bucket?list-type=2&prefix=in%2F", headers=dict(headers))
        return answer.status_code, answer.text.partition("<Code>")[2].partition("<")[0]

    pod = f"kubernetes:{POD}"
    assert (await read(SIGNING[0], pod))[0] == 200
    assert (await read(SIGNING[1], pod))[0] == 200  # a key that proves, and signs no more
    assert await read("x" * 32, pod) == (400, "InvalidToken")
    assert await read(SIGNING[0], "other:ann") == (403, "InvalidAccessKeyId")
    assert await read(SIGNING[0], "writer") == (403, "InvalidAccessKeyId")
    assert await read(SIGNING[0], pod, datetime.now(UTC) - timedelta(seconds=1)) == (400, "ExpiredToken")
    assert (await read(SIGNING[0], "kubernetes:nobody"))[1] == "AccessDenied"
