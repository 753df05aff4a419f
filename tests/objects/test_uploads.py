"""Multipart uploads by clients: parts are staged, and the completion is the fenced write."""

import hashlib
import zlib
from base64 import b64encode
from io import BytesIO
from typing import Any

import pytest
import pytest_asyncio
from boto3.s3.transfer import TransferConfig
from mypy_boto3_s3 import S3Client

from gateway.objects.s3.xml import Part, complete
from tests.objects.clients import body_of, call, connect, opened, outcome
from tests.objects.object_gateway import WRITER, Stage, entomb, module_stage, store
from tests.objects.raw import head, send
from tests.tiers import first

pytestmark = pytest.mark.asyncio(loop_scope="module")

CALLERS = [
    WRITER,
    {"name": "stranger", "access_key_id": "AKIASTRANGER", "secret_access_key": "stranger-secret"},
]
STALE = (412, "StaleFencingToken")
UNKNOWN = (404, "NoSuchUpload")
FAILED = (412, "PreconditionFailed")
MEBIBYTE = 1024 * 1024
COMPLETE = "CompleteMultipartUpload"


shared = module_stage(lambda: store(minimum_part_size=1), callers=CALLERS)


# The condition of a completion is ignored here.
weak = module_stage(lambda: store(minimum_part_size=1, ignored_conditions=frozenset({COMPLETE})))


@pytest_asyncio.fixture(params=first(["weak", "strong"]), loop_scope="module")
async def either(request: pytest.FixtureRequest, shared: Stage, weak: Stage) -> Stage:
    return shared if request.param == "strong" else weak


def follow_ups(s3: S3Client, completion: dict[str, Any]) -> dict[str, tuple[Any, dict[str, Any]]]:
    """Return all operations on an open upload, with their arguments."""
    named = {name: completion[name] for name in ("Key", "UploadId")}
    return {
        "part": (s3.upload_part, {**named, "PartNumber": 3, "Body": b"three"}),
        "copy": (s3.upload_part_copy, {**named, "PartNumber": 3, "CopySource": "bucket/no-matter"}),
        "complete": (s3.complete_multipart_upload, completion),
        "abort": (s3.abort_multipart_upload, named),
    }


class TestToken:
    async def test_the_one_of_the_opening_holds_for_what_follows(self, shared: Stage, key: str) -> None:
        s3 = connect(shared.origin)
        presented = {"fencing-token": "34", "fencing-holder": "ann", "colour": "red"}
        completion = await opened(s3, key, Metadata=presented, ContentType="text/css")
        assert await shared.fence(f"s3/bucket/{key}") is None, "nothing has taken effect"
        done = await call(s3.complete_multipart_upload, **completion)
        assert done["ResponseMetadata"]["HTTPHeaders"]["fencing-token"] == "34"
        assert done["ETag"].endswith('-2"')
        assert await body_of(s3, key) == b"onetwo"
        found = await call(s3.head_object, Key=key)
        assert (found["Metadata"], found["ContentType"], found["ETag"]) == ({"colour": "red"}, "text/css", done["ETag"])
        assert await outcome(connect(shared.origin, "34", "bob").put_object, Key=key, Body=b"x") == (
            *(412, "DuplicateFencingToken"),
        )
        (rejection,) = await shared.rejections(resource=f"s3/bucket/{key}")
        assert (rejection["fence"], rejection["raised_by"]) == ("34", "ann")

    async def test_it_does_not_hold_for_another_caller(self, shared: Stage, key: str) -> None:
        owner = connect(shared.origin)
        completion = await opened(owner, key, Metadata={"fencing-token": "34"})
        stranger = connect(shared.origin, access_key="AKIASTRANGER", secret_key="stranger-secret")
        since = len(shared.double.requests)
        for function, arguments in follow_ups(stranger, completion).values():
            assert await outcome(function, **arguments) == (428, "FencingTokenRequired")
        assert shared.written(since) == []
        assert [one.upload_id for one in shared.uploads(key)] == [completion["UploadId"]]
        assert await outcome(owner.complete_multipart_upload, **completion) == (200, "")
        assert shared.body(key) == b"onetwo"

    @pytest.mark.parametrize("presented", ["header", "opening"])
    async def test_a_stale_one_is_refused_and_on_record(self, shared: Stage, key: str, presented: str) -> None:
        s3 = connect(shared.origin, "33" if presented == "header" else None)
        metadata = {} if presented == "header" else {"fencing-token": "33"}
        completion = await opened(s3, key, Metadata=metadata)
        assert (await shared.barrier(f"s3/bucket/{key}", "34")).status_code == 200
        since = len(shared.double.requests)
        for function, arguments in follow_ups(s3, completion).values():
            assert await outcome(function, **arguments) == STALE
        assert await outcome(s3.create_multipart_upload, Key=key, Metadata=metadata) == STALE
        assert shared.written(since) == []
        assert [one.upload_id for one in shared.uploads(key)] == [completion["UploadId"]], (
            "it may be the successor's by now"
        )
        assert shared.body(key) is None
        rejections = await shared.rejections(resource=f"s3/bucket/{key}")
        assert [(one["token"], one["fence"], one["caller"]) for one in rejections] == [("33", "34", "writer")] * 5

    async def test_a_successor_may_finish_what_was_begun_before(self, shared: Stage, key: str) -> None:
        completion = await opened(connect(shared.origin, "33"), key)
        assert await outcome(connect(shared.origin, "34").complete_multipart_upload, **completion) == (200, "")
        assert await shared.fence(f"s3/bucket/{key}") == "34"
        assert await outcome(connect(shared.origin, "33").put_object, Key=key, Body=b"x") == STALE
        assert shared.body(key) == b"onetwo"


class TestWhoseUpload:
    async def test_one_that_was_opened_at_the_store(self, shared: Stage, key: str) -> None:
        """The upload lacks the marks of a fenced write, so the gateway could not tell whose object it became."""
        completion = await opened(shared.beside(), key)
        for function, arguments in follow_ups(connect(shared.origin, "34"), completion).values():
            assert await outcome(function, **arguments) == UNKNOWN
        assert [one.upload_id for one in shared.uploads(key)] == [completion["UploadId"]]
        assert shared.body(key) is None

    async def test_one_of_the_gateways_own(self, shared: Stage, key: str) -> None:
        s3 = connect(shared.origin, "34")
        body = bytes(9 * MEBIBYTE)
        held, put = await shared.late(outcome(s3.put_object, Key=key, Body=body), operation="UploadPart", key=key)
        upload_id = shared.uploads(key)[0].upload_id
        listed = [{"PartNumber": 1, "ETag": '"e"'}]
        completion = {"Key": key, "UploadId": upload_id, "MultipartUpload": {"Parts": listed}}
        for function, arguments in follow_ups(s3, completion).values():
            assert await outcome(function, **arguments) == UNKNOWN
        held.release()
        assert await put == (200, "")
        assert shared.body(key) == body

    async def test_one_of_a_bucket_that_is_not_there(self, shared: Stage, key: str) -> None:
        """Fenced credentials that do not cover its keys hear of no bucket."""
        listed = [{"PartNumber": 1, "ETag": '"e"'}]
        named = {"Bucket": "nowhere", "Key": key, "UploadId": "u", "MultipartUpload": {"Parts": listed}}
        for function, arguments in follow_ups(connect(shared.origin, "34"), named).values():
            assert await outcome(function, **{**arguments, "Bucket": "nowhere"}) == (404, "NoSuchBucket")
        issued = await shared.issued(resource="s3/bucket/**", token="34")
        for bucket in ("nowhere", "other"):
            for function, arguments in follow_ups(connect(shared.origin, **issued), named).values():
                assert await outcome(function, **{**arguments, "Bucket": bucket}) == UNKNOWN

    async def test_one_of_another_key_or_that_was_aborted(self, shared: Stage, key: str) -> None:
        s3 = connect(shared.origin, "34")
        completion = await opened(s3, key)
        assert await outcome(s3.complete_multipart_upload, **{**completion, "Key": f"{key}-2"}) == UNKNOWN
        named = {name: completion[name] for name in ("Key", "UploadId")}
        assert await outcome(s3.abort_multipart_upload, **named) == (204, "")
        assert shared.uploads(key) == []
        for function, arguments in follow_ups(s3, completion).values():
            assert await outcome(function, **arguments) == UNKNOWN
        assert shared.body(key) is None


class TestTwice:
    async def test_a_completion_is_answered_again(self, either: Stage, key: str) -> None:
        s3 = connect(either.origin, "34")
        completion = await opened(s3, key)
        done = await call(s3.complete_multipart_upload, **completion)
        since = len(either.double.requests)
        for operation in ("part", "abort"):
            function, arguments = follow_ups(s3, completion)[operation]
            assert await outcome(function, **arguments) == UNKNOWN
        again = await call(s3.complete_multipart_upload, **completion)
        assert again["ETag"] == done["ETag"]
        assert either.written(since) == [], "all of it is known here"

    @pytest.mark.parametrize("then", first(["another", "the same", "deleted"]))
    async def test_only_while_the_object_is_its_own(self, either: Stage, key: str, then: str) -> None:
        s3 = connect(either.origin, "34")
        completion = await opened(s3, key)
        await call(s3.complete_multipart_upload, **completion)
        if then == "the same":
            await call(s3.complete_multipart_upload, **await opened(s3, key))
        elif then == "deleted":
            await call(s3.delete_object, Key=key)
        else:
            await call(s3.put_object, Key=key, Body=b"another")
        before = either.double.sequence
        assert await outcome(s3.complete_multipart_upload, **completion) == UNKNOWN
        assert not either.applied(before)
        assert await either.count("intent", key) == 0


class TestParts:
    async def test_an_invalid_list_of_parts_is_refused(self, shared: Stage, key: str) -> None:
        s3 = connect(shared.origin, "34")
        completion = await opened(s3, key)
        one, two = completion["MultipartUpload"]["Parts"]
        for parts, expected in (
            ([two, one], (400, "InvalidPartOrder")),
            ([one, one], (400, "InvalidPartOrder")),
            ([one, two, {**one, "PartNumber": 3}], (400, "InvalidPart")),
            ([{**one, "ETag": f'"{"0" * 32}"'}], (400, "InvalidPart")),
            ([{**one, "PartNumber": 0}], (400, "InvalidArgument")),
            ([{**one, "PartNumber": 10_001}], (400, "InvalidArgument")),
            ([], (400, "MalformedXML")),
        ):
            wrong = {**completion, "MultipartUpload": {"Parts": parts}}
            assert await outcome(s3.complete_multipart_upload, **wrong) == expected
        assert shared.body(key) is None
        assert await shared.count("intent", key) == 0
        assert await outcome(s3.complete_multipart_upload, **completion) == (200, ""), "it can be mended"

    async def test_a_part_is_copied_from_an_object(self, shared: Stage, key: str) -> None:
        s3 = connect(shared.origin, "34")
        shared.double.put("other", key, b"0123456789")
        upload_id = (await call(s3.create_multipart_upload, Key=key))["UploadId"]
        named = {"Key": key, "UploadId": upload_id}
        source = {"CopySource": f"other/{key}", "CopySourceRange": "bytes=2-4"}
        copied = await call(s3.upload_part_copy, **named, PartNumber=1, **source)
        listed = [{"PartNumber": 1, "ETag": copied["CopyPartResult"]["ETag"]}]
        await call(s3.complete_multipart_upload, **named, MultipartUpload={"Parts": listed})
        assert shared.body(key) == b"234"

    @pytest.mark.parametrize(
        ("source", "code"), [("tombstone", "NoSuchKey"), ("nothing", "NoSuchKey"), ("no bucket", "NoSuchBucket")]
    )
    async def test_no_part_is_copied_from_a_tombstone(self, shared: Stage, key: str, source: str, code: str) -> None:
        s3 = connect(shared.origin, "34")
        if source == "tombstone":
            await entomb(shared, f"{key}-source")
        upload_id = (await call(s3.create_multipart_upload, Key=key))["UploadId"]
        since = len(shared.double.requests)
        bucket = "nowhere" if source == "no bucket" else "bucket"
        named = {"Key": key, "UploadId": upload_id, "PartNumber": 1, "CopySource": f"{bucket}/{key}-source"}
        assert await outcome(s3.upload_part_copy, **named) == (404, code)
        assert shared.written(since) == []


def crc32(body: bytes) -> str:
    return b64encode(zlib.crc32(body).to_bytes(4, "big")).decode()


class TestChecksumOfTheObject:
    """The header beside a completion is about the object. The store checks it."""

    @pytest.mark.parametrize(
        ("kind", "value"),
        [
            ("COMPOSITE", crc32(zlib.crc32(b"hello").to_bytes(4, "big"))),
            ("COMPOSITE", crc32(zlib.crc32(b"hello").to_bytes(4, "big")) + "-1"),
            ("FULL_OBJECT", crc32(b"hello")),
        ],
    )
    async def test_in_each_of_its_forms(self, shared: Stage, key: str, kind: Any, value: str) -> None:
        s3 = connect(shared.origin, "34")
        completion = await opened(s3, key, [b"hello"], ChecksumAlgorithm="CRC32", ChecksumType=kind)
        named = {"ChecksumType": kind} if kind == "FULL_OBJECT" else {}
        wrong = {**completion, **named, "ChecksumCRC32": crc32(b"other")}
        assert await outcome(s3.complete_multipart_upload, **wrong) == (400, "BadDigest")
        assert shared.body(key) is None
        done = await call(s3.complete_multipart_upload, **completion, **named, ChecksumCRC32=value)
        assert done["ChecksumCRC32"].removesuffix("-1") == value.removesuffix("-1")

    async def test_from_the_transfer_manager_of_boto3(self, shared: Stage, key: str) -> None:
        body = b"x" * 6 * MEBIBYTE
        told = {"ChecksumCRC32": crc32(body), "ChecksumType": "FULL_OBJECT"}
        small = TransferConfig(multipart_threshold=1, multipart_chunksize=5 * MEBIBYTE)
        await call(
            connect(shared.origin, "34").upload_fileobj, Fileobj=BytesIO(body), Key=key, ExtraArgs=told, Config=small
        )
        assert (await call(shared.beside().head_object, Key=key, ChecksumMode="ENABLED"))["ChecksumCRC32"] == crc32(
            body
        )

    async def test_the_document_has_one_of_its_own(self, shared: Stage, key: str) -> None:
        completion = await opened(connect(shared.origin, "34"), key)
        target = f"/bucket/{key}?uploadId={completion['UploadId']}"
        document = complete(
            [Part(part["PartNumber"], part["ETag"].strip('"')) for part in completion["MultipartUpload"]["Parts"]]
        )
        for md5, expected in ((b"", "BadDigest"), (document, "")):
            digest = b64encode(hashlib.md5(md5).digest()).decode()
            headers = [("fencing-token", "34"), ("content-md5", digest), ("content-length", str(len(document)))]
            reply = await send(shared.origin, head(shared.origin, "POST", target, headers) + document)
            assert reply is not None
            assert reply.code == expected


class TestConditions:
    async def test_of_the_caller(self, either: Stage, key: str) -> None:
        """They hold whether or not the store looks at them."""
        s3 = connect(either.origin, "34")
        complete = s3.complete_multipart_upload
        assert await outcome(complete, **await opened(s3, key), IfMatch='"e"') == (404, "NoSuchKey")
        assert either.body(key) is None
        made = await call(s3.put_object, Key=key, Body=b"first")
        completion = await opened(s3, key)
        since = len(either.double.requests)
        assert await outcome(complete, **completion, IfNoneMatch="*") == FAILED
        assert await outcome(complete, **completion, IfMatch='"other"') == FAILED
        assert either.written(since) == []
        assert either.body(key) == b"first"
        assert await outcome(complete, **completion, IfMatch=made["ETag"]) == (200, "")
        assert either.body(key) == b"onetwo"

    async def test_a_condition_is_evaluated_after_the_announcement(self, either: Stage, key: str) -> None:
        """If the completion itself carries no condition, a look at the key before its announcement is not enough."""
        s3 = connect(either.origin, "34")
        one, other = [await opened(s3, key, (body,)) for body in (b"one", b"two")]
        completing = outcome(s3.complete_multipart_upload, **one, IfNoneMatch="*")
        seen, late = await either.late(completing, at="after", operation="HeadObject", key=key)
        assert await outcome(s3.complete_multipart_upload, **other, IfNoneMatch="*") == (200, "")
        seen.release()
        assert await late == FAILED
        assert either.body(key) == b"two"


async def late(stage: Stage, key: str, nth: int) -> None:
    """Have a completion held back, a newer holder acknowledged, and the completion arrive."""
    old, new = connect(stage.origin, "33"), connect(stage.origin, "34")
    completion = await opened(old, key)
    await call(old.put_object, Key=key, Body=b"before")
    completing = outcome(old.complete_multipart_upload, **completion)
    held, zombie = await stage.late(completing, operation=COMPLETE, key=key, nth=nth)
    assert (await stage.barrier(f"s3/bucket/{key}", "34")).status_code == 200
    assert stage.uploads(key) == [], "its upload is given up"
    assert stage.body(key) == b"before"
    held.release()
    await held.finished.wait()
    assert held.statuses == [404]
    assert (await zombie)[0] in (404, 412, 503)
    assert stage.body(key) == b"before"
    assert await stage.count("intent", key) == 0
    assert await outcome(new.put_object, Key=key, Body=b"after") == (200, "")
    assert await outcome(old.complete_multipart_upload, **completion) == STALE


async def test_a_late_completion_where_conditions_are_ignored(weak: Stage, key: str) -> None:
    await late(weak, key, nth=1)


async def test_a_late_completion_of_an_upload_older_than_the_object(shared: Stage, key: str) -> None:
    """Its second form: the conditional one has been refused."""
    await late(shared, key, nth=2)
