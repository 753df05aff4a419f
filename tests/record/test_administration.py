"""Each privileged action is on record before it takes effect, and so is the fate of an older holder's writes."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio

from gateway.demo.embedded import EmbeddedPostgres
from tests.doubles.s3 import S3Double
from tests.objects.clients import call, connect, outcome
from tests.objects.object_gateway import Stage, staged
from tests.running import ACCESS_KEY, API_KEY, SECRET_KEY

pytestmark = pytest.mark.asyncio(loop_scope="module")

STALE = (412, "StaleFencingToken")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(postgres_server: EmbeddedPostgres) -> AsyncIterator[Stage]:
    keys = {"access_key_id": ACCESS_KEY, "secret_access_key": SECRET_KEY, "api_key": API_KEY}
    callers = [{"name": "writer", "groups": ["admins"], **keys}]
    async with staged(postgres_server, S3Double(buckets=["bucket"]), callers=callers, s3={"pending_wait": 0.2}) as one:
        yield one


async def entries(stage: Stage, kind: str, **details: str) -> list[dict[str, Any]]:
    """Return the entries of a kind whose details contain these."""
    found = await stage.rows(
        "SELECT * FROM fencing.record WHERE kind = $1 AND details @> $2::jsonb ORDER BY at", kind, json.dumps(details)
    )
    return [{**row, "details": json.loads(row["details"])} for row in found]


async def test_buckets(shared: Stage) -> None:
    bucket = f"bucket-{uuid4().hex}"
    s3 = connect(shared.origin)
    await call(s3.create_bucket, Bucket=bucket)
    await call(s3.delete_bucket, Bucket=bucket)
    created, deleted = await entries(shared, "administration", bucket=bucket)
    assert created["details"] == {"operation": "CreateBucket", "bucket": bucket}
    assert deleted["details"] == {"operation": "DeleteBucket", "bucket": bucket}
    assert (created["plane"], created["caller"], created["method"]) == ("objects", "writer", "PUT")
    assert created["target"].startswith(f"/{bucket}")
    assert created["request_id"]


class TestCredentials:
    @pytest.mark.parametrize(("pattern", "plain"), [("job/{0}", True), ("s3/bucket/{0}/**", False)])
    async def test_issued_ones(self, shared: Stage, pattern: str, plain: bool) -> None:  # noqa: FBT001
        resource = pattern.format(uuid4().hex)
        async with shared.api() as api:
            wanted = {"resource": resource, "token": "1.34", "holder": "ann", "ttl": 900}
            issued = (await api.post("/v1/credentials", json=wanted)).json()
        (entry,) = await entries(shared, "administration", pattern=resource)
        assert entry["details"] == {
            "operation": "IssueCredentials",
            "pattern": resource,
            "access_key_id": issued["access_key_id"],
            "expiration": issued["expiration"].replace("Z", "+00:00"),
        }
        assert entry["resource"] == (resource if plain else None)
        assert (entry["plane"], entry["epoch"], entry["value"], entry["holder"]) == ("api", 1, 34, "ann")
        (text,) = await shared.rows("SELECT r::text FROM fencing.record AS r WHERE id = $1", entry["id"])
        assert issued["secret_access_key"] not in text["r"]
        assert issued["session_token"] not in text["r"]

    async def test_none_are_given_out_that_are_not_on_record(self, shared: Stage) -> None:
        await shared.rows("ALTER TABLE fencing.intake RENAME TO lost")
        try:
            async with shared.api() as api:
                answer = await api.post("/v1/credentials", json={"resource": "job/1", "token": "34"})
        finally:
            await shared.rows("ALTER TABLE fencing.lost RENAME TO intake")
        assert answer.status_code >= 500
        assert "secret" not in answer.text


class TestSettled:
    """A zombie's put is on its way when its successor comes."""

    @pytest_asyncio.fixture(loop_scope="module")
    async def key(self) -> str:
        return f"key-{uuid4().hex}"

    async def _settled(self, shared: Stage, key: str) -> tuple[dict[str, Any], Any]:
        (entry,) = await entries(shared, "settled", key=key)
        said = (entry["plane"], entry["resource"], entry["value"])
        assert said == ("objects", f"s3/bucket/{key}", 33)
        return entry, entry["details"]

    @pytest.mark.parametrize("how", ["barrier", "write"])
    async def test_what_never_takes_effect(self, shared: Stage, key: str, how: str) -> None:
        await call(connect(shared.origin, "33").put_object, Key=key, Body=b"before")
        held = shared.double.hold(operation="PutObject", key=key)
        zombie = asyncio.ensure_future(outcome(connect(shared.origin, "33").put_object, Key=key, Body=b"late"))
        await held.arrived.wait()
        (intent,) = await shared.rows("SELECT write_id, signed_at FROM fencing.intent WHERE key = $1", key)
        if how == "barrier":
            assert (await shared.barrier(f"s3/bucket/{key}", "34", "bob")).status_code == 200
        else:
            await call(connect(shared.origin, "34", "bob").put_object, Key=key, Body=b"new")
        held.release()
        assert await zombie == STALE
        entry, details = await self._settled(shared, key)
        assert (entry["fence_value"], entry["fence_holder"], entry["fence_caller"]) == (34, "bob", "writer")
        assert entry["fence_raised_at"] is not None
        assert (details["bucket"], details["write_id"]) == ("bucket", str(intent["write_id"]))
        assert (details["mutation"], details["seen"]) == ("conditional", False)
        assert details["announced_at"]

    async def test_what_had_taken_effect(self, shared: Stage, key: str) -> None:
        """Its answer was lost: the gateway cannot say so, and its successor finds it there."""
        lost = shared.double.hold("after", operation="PutObject", key=key)
        writing = asyncio.ensure_future(outcome(connect(shared.origin, "33").put_object, Key=key, Body=b"there"))
        await lost.arrived.wait()
        assert (await shared.barrier(f"s3/bucket/{key}", "34")).status_code == 200
        lost.release()
        await writing
        _, details = await self._settled(shared, key)
        assert details["seen"] is True

    async def test_ones_own_write_is_no_zombies(self, shared: Stage, key: str) -> None:
        """It waits for the one before, of its own holder, and settles that where it takes too long."""
        await call(connect(shared.origin, "33").put_object, Key=key, Body=b"before")
        held = shared.double.hold(operation="PutObject", key=key)
        first = asyncio.ensure_future(outcome(connect(shared.origin, "33").put_object, Key=key, Body=b"first"))
        await held.arrived.wait()
        assert await outcome(connect(shared.origin, "33").put_object, Key=key, Body=b"second") == (200, "")
        held.release()
        await first
        assert await entries(shared, "settled", key=key) == []
