"""DeleteObjects fences each key by itself; DeleteObject of a version is an amendment."""

import base64
import hashlib
from typing import Any

import pytest

from tests.doubles.s3.objects import DeleteMarker
from tests.objects import raw
from tests.objects.clients import body_of, call, connect, outcome
from tests.objects.object_gateway import Stage, module_stage, store
from tests.objects.recording import RecordingDouble, recorded
from tests.tiers import first

pytestmark = pytest.mark.asyncio(loop_scope="module")

STALE = (412, "StaleFencingToken")


# Keys below jobs/x belong to the resource job/x. The bucket "other" keeps versions.
shared = module_stage(
    lambda: store(kind=RecordingDouble, versioned=["other"]),
    objects=[{"match": "bucket/jobs/{job}/**", "resource": "job/{job}"}],
)


def doomed(*keys: str | dict[str, Any], **more: Any) -> dict[str, Any]:
    """The argument of a DeleteObjects."""
    objects = [{"Key": each} if isinstance(each, str) else each for each in keys]
    return {"Delete": {"Objects": objects, **more}}


class TestMany:
    async def test_each_key_has_its_own_end(self, shared: Stage, key: str) -> None:
        s3 = connect(shared.origin, "33", "ann")
        fine, absent, changed, kept = (f"{key}/{name}" for name in ("fine", "absent", "changed", "kept"))
        overtaken, long = f"jobs/{key}/x", "k" * 1025
        for each in (fine, changed, kept, overtaken):
            await call(s3.put_object, Key=each, Body=b"x")
        etag = (await call(s3.head_object, Key=kept))["ETag"]
        assert (await shared.barrier(f"job/{key}", "34", "bob")).status_code == 200
        since = len(shared.double.requests)
        wanted = doomed(fine, overtaken, {"Key": changed, "ETag": '"other"'}, absent, long, {"Key": kept, "ETag": etag})
        answer = await call(s3.delete_objects, **wanted)
        assert [each["Key"] for each in answer["Deleted"]] == [fine, absent, kept]
        errors = {each["Key"]: each for each in answer["Errors"]}
        assert {name: each["Code"] for name, each in errors.items()} == {
            overtaken: "StaleFencingToken",
            changed: "PreconditionFailed",
            long: "FencingResourceMalformed",
        }
        assert "retrying cannot succeed" in errors[overtaken]["Message"]
        assert {name for name in (fine, changed, kept, overtaken) if shared.body(name)} == {changed, overtaken}
        (rejection,) = await shared.rejections(resource=f"job/{key}")
        assert (rejection["token"], rejection["fence"], rejection["holder"]) == ("33", "34", "ann")
        assert (rejection["method"], rejection["target"]) == ("POST", "/bucket?delete")
        assert {each.operation.value for each in shared.written(since)} == {"DeleteObject"}, "one by one, conditionally"
        assert await shared.fence(f"s3/bucket/{fine}") == "33"

    async def test_each_refused_key_is_on_record(self, shared: Stage, key: str) -> None:
        keys = [f"jobs/{key}/{number}" for number in range(20)]
        for each in keys:
            shared.double.put("bucket", each, b"x")
        assert (await shared.barrier(f"job/{key}", "34")).status_code == 200
        before = shared.double.sequence
        answer = await call(connect(shared.origin, "33").delete_objects, **doomed(*keys))
        assert "Deleted" not in answer
        assert [(each["Key"], each["Code"]) for each in answer["Errors"]] == [(each, STALE[1]) for each in keys]
        assert not shared.applied(before)
        assert len(await shared.rejections(resource=f"job/{key}")) == len(keys)
        answer = await call(connect(shared.origin, "34").delete_objects, **doomed(*keys))
        assert [each["Key"] for each in answer["Deleted"]] == keys, "in the order they were named"

    async def test_quiet(self, shared: Stage, key: str) -> None:
        shared.double.put("bucket", key, b"x")
        shared.double.put("bucket", f"{key}-2", b"x")
        wanted = doomed(key, {"Key": f"{key}-2", "ETag": '"other"'}, Quiet=True)
        answer = await call(connect(shared.origin, "34").delete_objects, **wanted)
        assert "Deleted" not in answer
        assert [(each["Key"], each["Code"]) for each in answer["Errors"]] == [(f"{key}-2", "PreconditionFailed")]
        assert (shared.body(key), shared.body(f"{key}-2")) == (None, b"x")

    async def test_the_same_key_twice(self, shared: Stage, key: str) -> None:
        shared.double.put("bucket", key, b"x")
        answer = await call(connect(shared.origin, "34").delete_objects, **doomed(key, key))
        assert [each["Key"] for each in answer["Deleted"]] == [key, key]
        assert "Errors" not in answer
        assert shared.body(key) is None
        assert len(shared.double.applied(key=key)) == 2, "a put and one delete"
        assert await shared.count("intent", key) == 0

    async def test_a_document_without_a_checksum_is_refused(self, shared: Stage, key: str) -> None:
        shared.double.put("bucket", key, b"x")
        body = f"<Delete><Object><Key>{key}</Key></Object></Delete>".encode()
        for header, code in (
            (None, "InvalidRequest"),
            (("content-md5", "AAAAAAAAAAAAAAAAAAAAAA=="), "BadDigest"),
            (("x-amz-checksum-crc32", "AAAAAA=="), "BadDigest"),
        ):
            reply = await posted(shared, body, digest=[header] if header else [])
            assert (reply.status, reply.code) == (400, code)
        assert shared.body(key) == b"x"
        assert (await posted(shared, body, "33")).status == 200
        assert shared.body(key) is None
        assert (await shared.barrier(f"s3/bucket/{key}", "34")).status_code == 200
        refused = (await posted(shared, body, "33")).body.decode()
        (rejection,) = await shared.rejections(resource=f"s3/bucket/{key}")
        assert f"<Rejection>{rejection['id']}</Rejection>" in refused
        assert "<Fence>34</Fence>" in refused


async def posted(
    stage: Stage, body: bytes, token: str = "34", digest: list[tuple[str, str]] | None = None
) -> raw.Reply:
    """A DeleteObjects by hand; ``digest``: the headers that vouch for it, by default the right one."""
    right = [("content-md5", base64.b64encode(hashlib.md5(body).digest()).decode())]
    headers = [("fencing-token", token), *(right if digest is None else digest)]
    length = [("content-length", str(len(body)))]
    head = raw.head(stage.origin, "POST", "/bucket?delete", headers, unsigned=length)
    return await raw.ask(stage.origin, head + body)


class TestVersions:
    async def test_one_of_them_is_deleted(self, shared: Stage, key: str) -> None:
        s3, where = connect(shared.origin, "34"), {"Bucket": "other", "Key": key}
        versions = [(await call(s3.put_object, **where, Body=body))["VersionId"] for body in (b"one", b"two", b"three")]
        since = len(recorded(shared).asked)
        answer = await call(s3.delete_object, **where, VersionId=versions[0])
        assert answer["VersionId"] == versions[0]
        assert [each.version_id for each in history(shared, key)] == [versions[2], versions[1]]
        assert await body_of(s3, key, bucket="other") == b"three"
        (asked,) = recorded(shared).changing(since)
        assert (asked.method, asked.parameters["versionId"], asked.lifetime) == ("DELETE", versions[0], 15)
        answer = await call(s3.delete_object, **where, VersionId=versions[2])
        assert await body_of(s3, key, bucket="other") == b"two", "the one before is there again"
        assert await outcome(s3.put_object, **where, Body=b"four") == (200, "")
        assert await body_of(s3, key, bucket="other") == b"four"
        assert await shared.count("intent", key) == 0

    async def test_a_delete_marker_is_made_and_taken_away(self, shared: Stage, key: str) -> None:
        s3, where = connect(shared.origin, "34"), {"Bucket": "other", "Key": key}
        await call(s3.put_object, **where, Body=b"one")
        deleted = await call(s3.delete_object, **where)
        assert deleted["DeleteMarker"] is True
        assert isinstance(history(shared, key)[0], DeleteMarker)
        assert await outcome(s3.get_object, **where) == (404, "NoSuchKey")
        removed = await call(s3.delete_object, **where, VersionId=deleted["VersionId"])
        assert (removed["DeleteMarker"], removed["VersionId"]) == (True, deleted["VersionId"])
        assert await body_of(s3, key, bucket="other") == b"one"

    async def test_many_at_once(self, shared: Stage, key: str) -> None:
        s3, where = connect(shared.origin, "34"), {"Bucket": "other", "Key": key}
        versions = [(await call(s3.put_object, **where, Body=body))["VersionId"] for body in (b"one", b"two")]
        entries = [{"Key": key, "VersionId": each} for each in versions]
        answer = await call(s3.delete_objects, Bucket="other", **doomed(*entries, f"{key}-2"))
        assert {(each["Key"], each.get("VersionId")) for each in answer["Deleted"]} == {
            *((key, each) for each in versions),
            (f"{key}-2", None),
        }
        assert history(shared, key) == []

    @pytest.mark.parametrize("many", [False, True])
    async def test_a_stale_token_deletes_none(self, shared: Stage, key: str, *, many: bool) -> None:
        s3, where = connect(shared.origin, "33"), {"Bucket": "other", "Key": key}
        version = (await call(s3.put_object, **where, Body=b"one"))["VersionId"]
        assert (await shared.barrier(f"s3/other/{key}", "34")).status_code == 200
        assert await deletion(s3, key, version, many=many) == STALE[1]
        assert [each.version_id for each in history(shared, key)] == [version]
        assert len(await shared.rejections(resource=f"s3/other/{key}")) == 1

    @pytest.mark.parametrize("many", [False, True])
    @pytest.mark.parametrize("etag", first(["0" * 32, ""]))
    async def test_no_version_is_deleted_while_a_late_request_may_wait(
        self, shared: Stage, key: str, etag: str, *, many: bool
    ) -> None:
        """The version that reappears from below may be just the one that a zombie's request waits for."""
        s3, where = connect(shared.origin, "34"), {"Bucket": "other", "Key": key}
        versions = [(await call(s3.put_object, **where, Body=body))["VersionId"] for body in (b"one", b"two")]
        await shared.rows(
            "INSERT INTO fencing.forbidden VALUES ($1, 'other', $2, $3, now() + interval '1 minute')",
            *(f"s3/other/{key}", key, etag),
        )
        since = len(recorded(shared).asked)
        assert await deletion(s3, key, versions[1], many=many) == "ServiceUnavailable"
        assert recorded(shared).changing(since) == []
        assert [each.version_id for each in history(shared, key)] == versions[::-1]
        assert await shared.count("intent", key) == 0
        await shared.rows("DELETE FROM fencing.forbidden WHERE key = $1", key)
        assert await deletion(s3, key, versions[1], many=many) == ""
        assert [each.version_id for each in history(shared, key)] == versions[:1]


async def deletion(s3: Any, key: str, version: str, *, many: bool) -> str:
    """The code of the deletion of one version; empty where it is done."""
    if not many:
        return (await outcome(s3.delete_object, Bucket="other", Key=key, VersionId=version))[1]
    answer = await call(s3.delete_objects, Bucket="other", **doomed({"Key": key, "VersionId": version}))
    return "".join(each["Code"] for each in answer.get("Errors", []))


def history(stage: Stage, key: str) -> list[Any]:
    """The versions of a key in the store, the newest first."""
    return list(stage.double.store.bucket("other").history.get(key, []))
