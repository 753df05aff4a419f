"""DeleteObjects fences each key by itself; what S3 has no condition for is fenced by the end of a signature.

That is the delete of a version, and tags, ACLs, retention and legal holds.
"""

import asyncio
import base64
import hashlib
from datetime import UTC, datetime
from typing import Any

import pytest
from mypy_boto3_s3 import S3Client

from gateway.fencing.intent import DEAD_AFTER
from tests.doubles.s3.objects import DeleteMarker
from tests.doubles.s3.wire import Receive, Scope, Send
from tests.objects import raw
from tests.objects.clients import body_of, call, connect, outcome, refused
from tests.objects.object_gateway import RecordingDouble, Stage, entomb, module_stage, recorded, store
from tests.tiers import first
from tests.waiting import PATIENCE

pytestmark = pytest.mark.asyncio(loop_scope="module")

STALE = (412, "StaleFencingToken")


TAGS = {"TagSet": [{"Key": "colour", "Value": "red"}]}
UNTIL = datetime(2040, 1, 1, tzinfo=UTC)
# Keys below jobs/x belong to the resource job/x. The buckets "other" and "fresh" keep versions.
shared = module_stage(
    lambda: store("bucket", "other", "fresh", kind=RecordingDouble, versioned=("other", "fresh")),
    objects=[{"match": "bucket/jobs/{job}/**", "resource": "job/{job}"}],
    limits={"pending_wait": PATIENCE},
)


OWNER, OTHER = "111111111111", "222222222222"


class Owned(RecordingDouble):
    """A store that knows the owner of its buckets, and refuses requests that expect another one."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        expected = dict(scope["headers"]).get(b"x-amz-expected-bucket-owner", OWNER.encode()).decode()
        if expected == OWNER:
            await super().__call__(scope, receive, send)
            return
        document = b"" if scope["method"] == "HEAD" else b"<Error><Code>AccessDenied</Code></Error>"
        await send({"type": "http.response.start", "status": 403, "headers": []})
        await send({"type": "http.response.body", "body": document})


owned = module_stage(lambda: store("bucket", "other", kind=Owned, minimum_part_size=1))


async def test_the_expected_owner_is_judged_on_every_write(owned: Stage, key: str) -> None:
    """Also if the write asks the store for nothing: a delete of an absent key, a list of keys, an upload of ours."""
    s3 = connect(owned.origin, "33")
    await call(s3.put_object, Key="source", Body=b"x")
    upload = (await call(s3.create_multipart_upload, Key=key))["UploadId"]
    named: dict[str, Any] = {"Key": key, "UploadId": upload}
    part = await call(s3.upload_part, **named, PartNumber=1, Body=b"x")
    parts = {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
    source = {"Key": key, "CopySource": "bucket/source"}
    writes: list[tuple[Any, dict[str, Any]]] = [
        (s3.delete_object_tagging, {"Key": "source"}),
        (s3.put_object_tagging, {"Key": "source", "Tagging": TAGS}),
        (s3.put_object, {"Key": key, "Body": b"x"}),
        (s3.put_object, {"Key": key, "Body": bytes(9 * 1024**2)}),
        (s3.copy_object, source),
        (s3.create_multipart_upload, {"Key": key}),
        (s3.upload_part, {**named, "PartNumber": 1, "Body": b"x"}),
        (s3.upload_part_copy, {**named, "PartNumber": 2, "CopySource": "bucket/source"}),
        (s3.complete_multipart_upload, {**named, "MultipartUpload": parts}),
        (s3.abort_multipart_upload, named),
        (s3.delete_object, {"Key": key}),
        (s3.delete_objects, doomed(key, "source")),
    ]
    before = owned.double.sequence
    for function, arguments in writes:
        assert await outcome(function, **arguments, ExpectedBucketOwner=OTHER) == (403, "AccessDenied"), function
    for function, arguments in ((s3.copy_object, source), (s3.upload_part_copy, {**named, **source, "PartNumber": 2})):
        refusal = await outcome(function, **arguments, ExpectedSourceBucketOwner=OTHER)
        assert refusal == (403, "AccessDenied"), function
    issued = await owned.issued(resource="s3/other/**", token="34")
    status, code, message = await refused(
        connect(owned.origin, **issued).delete_object, Key=key, ExpectedBucketOwner=OTHER
    )
    assert (status, code) == (403, "AccessDenied")
    assert "These fenced credentials are for s3/other/**" in message, "they hear nothing of the bucket"
    assert not owned.applied(before)
    aborted = writes[-3]
    for function, arguments in [one for one in writes if one is not aborted]:
        status, code = await outcome(function, **arguments, ExpectedBucketOwner=OWNER)
        assert status < 300, code
    assert await outcome(s3.delete_object, Key=key, ExpectedBucketOwner=OWNER) == (204, "")


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
        assert rejection["key"] == overtaken, "the request names it in its body"
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
        assert sorted(one["key"] for one in await shared.rejections(resource=f"job/{key}")) == sorted(keys)
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


# Writes for which S3 has no condition.


def amendments(s3: S3Client) -> dict[str, tuple[Any, dict[str, Any]]]:
    """One of each kind."""
    return {
        "tagging": (s3.put_object_tagging, {"Tagging": TAGS}),
        "acl": (s3.put_object_acl, {"ACL": "private"}),
        "retention": (s3.put_object_retention, {"Retention": {"Mode": "GOVERNANCE", "RetainUntilDate": UNTIL}}),
        "legal-hold": (s3.put_object_legal_hold, {"LegalHold": {"Status": "ON"}}),
    }


PARTS = ["tagging", "acl", "retention", "legal-hold"]


def amended(stage: Stage, key: str, part: str, bucket: str = "bucket") -> bool:
    """Whether the amendment of that kind stands in the store."""
    content = stage.double.objects(bucket)[key].content
    if part == "tagging":
        return content.tags == {"colour": "red"}
    words = {"acl": b"FULL_CONTROL", "retention": b"GOVERNANCE", "legal-hold": b"ON"}
    return words[part] in content.documents.get(part, b"")


class TestEach:
    @pytest.mark.parametrize("part", first(PARTS))
    async def test_is_written_by_the_holder(self, shared: Stage, key: str, part: str) -> None:
        s3 = connect(shared.origin, "34", "ann")
        put = await call(s3.put_object, Key=key, Body=b"x", Metadata={"colour": "red"})
        assert not amended(shared, key, part)
        function, arguments = amendments(s3)[part]
        answer = await call(function, Key=key, **arguments)
        assert amended(shared, key, part)
        assert answer["ResponseMetadata"]["HTTPHeaders"]["fencing-token"] == "34"
        assert answer["ResponseMetadata"]["HTTPHeaders"]["fencing-resource"] == f"s3/bucket/{key}"
        found = await call(s3.head_object, Key=key)
        assert (found["ETag"], found["Metadata"]) == (put["ETag"], {"colour": "red"}), "nothing else has changed"
        assert await shared.count("intent", key) == 0

    @pytest.mark.parametrize("part", first(PARTS))
    async def test_is_refused_to_an_overtaken_one(self, shared: Stage, key: str, part: str) -> None:
        s3 = connect(shared.origin, "33", "ann")
        await call(s3.put_object, Key=key, Body=b"x")
        assert (await shared.barrier(f"s3/bucket/{key}", "34")).status_code == 200
        since = len(recorded(shared).asked)
        function, arguments = amendments(s3)[part]
        assert await outcome(function, Key=key, **arguments) == STALE
        assert recorded(shared).asked[since:] == []
        assert not amended(shared, key, part)
        (rejection,) = await shared.rejections(resource=f"s3/bucket/{key}")
        assert (rejection["token"], rejection["fence"], rejection["method"]) == ("33", "34", "PUT")
        assert rejection["target"] == f"/bucket/{key}?{part}"

    @pytest.mark.parametrize("part", first(PARTS))
    async def test_has_a_signature_that_ends_soon(self, shared: Stage, key: str, part: str) -> None:
        """The settling of it goes by the time of the announcement and by that lifetime."""
        s3 = connect(shared.origin, "34")
        shared.double.put("bucket", key, b"x")
        since = len(recorded(shared).asked)
        function, arguments = amendments(s3)[part]
        held, running = await shared.late(outcome(function, Key=key, **arguments), method="PUT", key=key)
        (intent,) = await shared.rows("SELECT * FROM fencing.intent WHERE key = $1", key)
        held.release()
        assert await running == (200, "")
        (asked,) = recorded(shared).changing(since)
        assert (asked.lifetime, part in asked.parameters) == (15, True)
        assert asked.signed_at == intent["signed_at"].replace(microsecond=0)
        assert (intent["kind"], intent["dead_after"]) == ("amendment", DEAD_AFTER)
        assert await shared.fence(f"s3/bucket/{key}") == "34"

    @pytest.mark.parametrize("part", first(PARTS))
    async def test_of_nothing_or_a_tombstone(self, shared: Stage, key: str, part: str) -> None:
        function, arguments = amendments(connect(shared.origin, "34"))[part]
        assert await outcome(function, Key=key, **arguments) == (404, "NoSuchKey")
        await entomb(shared, key)
        since = len(recorded(shared).asked)
        assert await outcome(function, Key=key, **arguments) == (404, "NoSuchKey")
        assert recorded(shared).changing(since) == []
        assert not amended(shared, key, part)
        assert await shared.count("intent", key) == 0

    @pytest.mark.parametrize("part", first(PARTS))
    async def test_of_a_version_below_one_that_stands_for_absence(self, shared: Stage, key: str, part: str) -> None:
        """In this bucket no caller has asked before whether the store knows of the version."""
        s3 = connect(shared.origin, "34")
        where = {"Bucket": "fresh", "Key": key}
        version = (await call(s3.put_object, **where, Body=b"one"))["VersionId"]
        marker = (await call(s3.delete_object, **where))["VersionId"]
        function, arguments = amendments(s3)[part]
        assert await outcome(function, **where, **arguments) == (404, "NoSuchKey")
        assert (await outcome(function, **where, **arguments, VersionId=marker))[0] == 405
        assert await outcome(function, **where, **arguments, VersionId="0" * 32) == (404, "NoSuchVersion")
        assert await outcome(function, **where, **arguments, VersionId=version) == (200, "")
        await call(s3.delete_object, **where, VersionId=marker)
        assert amended(shared, key, part, bucket="fresh")
        await entomb(shared, key, bucket="fresh")
        tombstone = shared.double.objects("fresh")[key].version_id
        assert await outcome(function, **where, **arguments, VersionId=version) == (200, "")
        assert await shared.count("intent", key) == 0
        assert shared.double.objects("fresh")[key].version_id == tombstone


async def test_tags_are_deleted(shared: Stage, key: str) -> None:
    s3 = connect(shared.origin, "34")
    await call(s3.put_object, Key=key, Body=b"x", Tagging="colour=red")
    since = len(recorded(shared).asked)
    assert await outcome(s3.delete_object_tagging, Key=key) == (204, "")
    assert shared.double.objects("bucket")[key].content.tags == {}
    (asked,) = recorded(shared).changing(since)
    assert (asked.method, asked.lifetime) == ("DELETE", 15)
    assert await outcome(connect(shared.origin, "33").delete_object_tagging, Key=key) == STALE
    await entomb(shared, key)
    assert await outcome(s3.delete_object_tagging, Key=key) == (404, "NoSuchKey")


async def test_an_error_of_the_store_is_passed_on(shared: Stage, key: str) -> None:
    s3 = connect(shared.origin, "34")
    shared.double.put("bucket", key, b"x")
    tags = {"TagSet": [{"Key": str(number), "Value": "x"} for number in range(11)]}
    assert await outcome(s3.put_object_tagging, Key=key, Tagging=tags) == (400, "InvalidTag")
    assert await shared.count("intent", key) == 0
    assert await outcome(s3.put_object_tagging, Key=key, Tagging=TAGS) == (200, "")


class Unknowing(RecordingDouble):
    """A store that passes over the parameters it does not know: GET ?tagging is a GetObject to it."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.behave(check_signatures=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        query = scope["query_string"].decode()
        pairs = [pair for pair in query.split("&") if pair.partition("=")[0] not in PARTS]
        await super().__call__({**scope, "query_string": "&".join(pairs).encode()}, receive, send)


unknowing = module_stage(Unknowing)


@pytest.mark.parametrize("part", first(PARTS))
async def test_a_store_that_does_not_know_it(unknowing: Stage, key: str, part: str) -> None:
    """There, the document would become the object."""
    s3 = connect(unknowing.origin, "34")
    unknowing.double.put("bucket", key, b"precious")
    since = len(recorded(unknowing).asked)
    function, arguments = amendments(s3)[part]
    for _ in range(2):
        assert await outcome(function, Key=key, **arguments) == (501, "NotImplemented")
    assert await outcome(s3.delete_object_tagging, Key=key) == (501, "NotImplemented"), "it would delete the object"
    assert recorded(unknowing).changing(since) == []
    assert await body_of(s3, key) == b"precious"


@pytest.mark.parametrize("part", first(PARTS))
async def test_an_error_about_a_version_is_no_proof_of_knowing_it(unknowing: Stage, key: str, part: str) -> None:
    """Any store says so of a version that is not there, whatever it was asked about it."""
    s3 = connect(unknowing.origin, "34")
    unknowing.double.store.bucket("other").versioning = "Enabled"
    where = {"Bucket": "other", "Key": key}
    await call(s3.put_object, **where, Body=b"precious")
    marker = (await call(s3.delete_object, **where))["VersionId"]
    version = (await call(s3.put_object, **where, Body=b"precious"))["VersionId"]
    since = len(recorded(unknowing).asked)
    function, arguments = amendments(s3)[part]
    for named, status in ((marker, 405), ("0" * 32, 404), ("nonsense", 400), (version, 501)):
        assert (await outcome(function, **where, **arguments, VersionId=named))[0] == status
        assert recorded(unknowing).changing(since) == []


async def test_writes_of_one_holder_take_turns_with_an_amendment(shared: Stage, key: str) -> None:
    """Else the tags that were meant for what was there would be those of a new object."""
    s3 = connect(shared.origin, "34", "ann")
    await call(s3.put_object, Key=key, Body=b"x")
    put_tags = outcome(s3.put_object_tagging, Key=key, Tagging=TAGS)
    held, tagging = await shared.late(put_tags, operation="PutObjectTagging", key=key)
    since = len(recorded(shared).asked)
    acl = asyncio.ensure_future(outcome(s3.put_object_acl, Key=key, ACL="private"))
    put = asyncio.ensure_future(outcome(s3.put_object, Key=key, Body=b"new"))
    await asyncio.sleep(0.3)
    assert recorded(shared).changing(since) == [], "they wait"
    assert not acl.done()
    held.release()
    assert [await tagging, await acl, await put] == [(200, "")] * 3
    assert (shared.body(key), amended(shared, key, "tagging")) == (b"new", False)
    assert await shared.count("intent", key) == 0


async def test_a_settlers_bump_that_is_late_does_not_bring_older_tags_back(shared: Stage, key: str) -> None:
    """The write that the bump was to settle has ended by itself, so no other gateway has to settle it."""
    old, new = connect(shared.origin, "33"), connect(shared.origin, "35")
    await call(old.put_object, Key=key, Body=b"X", Tagging="colour=blue")
    shared.double.fail(400, code="EntityTooLarge", operation="PutObject", key=key)
    putting, place = outcome(old.put_object, Key=key, Body=b"Y"), {"at": "arrival", "key": key}
    held, zombie = await shared.late(putting, operation="PutObject", **place)
    raising = shared.barrier(f"s3/bucket/{key}", "34")
    bump, barrier = await shared.late(raising, operation="CompleteMultipartUpload", **place)
    held.release()
    assert await zombie == STALE
    assert (await shared.barrier(f"s3/bucket/{key}", "35")).status_code == 200
    assert await outcome(new.put_object_tagging, Key=key, Tagging=TAGS) == (200, "")
    bump.release()
    assert (await barrier).status_code == 200
    assert bump.statuses == [412]
    assert (await call(new.get_object_tagging, Key=key))["TagSet"] == TAGS["TagSet"]
    assert shared.body(key) == b"X"


async def test_the_document_is_verified(shared: Stage, key: str) -> None:
    shared.double.put("bucket", key, b"x")
    s3 = connect(shared.origin, "34")

    def spoil(params: dict[str, Any], **_: Any) -> None:
        params["headers"]["Content-MD5"] = "AAAAAAAAAAAAAAAAAAAAAA=="

    s3.meta.events.register("before-call.s3.PutObjectTagging", spoil)
    since = len(recorded(shared).asked)
    assert await outcome(s3.put_object_tagging, Key=key, Tagging=TAGS) == (400, "BadDigest")
    assert recorded(shared).changing(since) == []
