"""Real boto3 finds an S3 in the double: objects, conditions, lists, uploads, versions, tags. It is as strict as AWS."""

from __future__ import annotations

import base64
import hashlib
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.doubles.conftest import KEYS, Call, begin_upload, quoted
from tests.doubles.s3 import Condition, Refusal, S3Double, refusal_of_delete, refusal_of_write

E, OTHER = "e" * 32, "f" * 32


async def test_keys_are_taken_literally(call: Call, double: S3Double) -> None:
    """Neither the signature nor the store normalises a key."""
    for key in KEYS:
        await call("put_object", Key=key, Body=b"body")
    assert list(double.objects("bucket")) == KEYS
    assert [entry["Key"] for entry in (await call("list_objects_v2"))["Contents"]] == sorted(KEYS, key=str.encode)


async def test_what_is_absent_is_not_found(status: Call) -> None:
    assert await status("get_object", Key="absent") == (404, "NoSuchKey")
    assert await status("head_object", Key="absent") == (404, "404")
    assert await status("delete_object", Key="absent") == (204, "")
    assert await status("head_bucket", Bucket="absent") == (404, "404")
    assert await status("list_objects_v2", Bucket="absent") == (404, "NoSuchBucket")


async def test_what_the_double_does_not_have_is_refused(status: Call, double: S3Double) -> None:
    """An operation that is taken for another one would make every proof worthless."""
    double.put("bucket", "key", b"body")
    assert await status("get_object_torrent", Key="key") == (501, "NotImplemented")
    assert await status("restore_object", Key="key", RestoreRequest={"Days": 1}) == (501, "NotImplemented")
    assert await status("get_bucket_policy") == (501, "NotImplemented")


@pytest.mark.parametrize(
    ("if_match", "if_none_match", "current", "changed", "expected"),
    [
        (None, None, None, False, None),
        (None, None, E, True, None),
        (None, "*", None, False, None),
        (None, "*", E, False, ("PreconditionFailed", "If-None-Match")),
        (None, "*", E, True, ("PreconditionFailed", "If-None-Match")),
        (None, "*", None, True, ("ConditionalRequestConflict", "If-None-Match")),
        (None, f'"{E}"', None, False, ("NotImplemented", "If-None-Match")),
        (f'"{E}"', None, E, False, None),
        (E, None, E, False, None),
        (f'"{E}"', None, OTHER, False, ("PreconditionFailed", "If-Match")),
        (f'"{E}"', None, OTHER, True, ("PreconditionFailed", "If-Match")),
        (f'"{E}"', None, None, False, ("NoSuchKey", "If-Match")),
        (f'"{E}"', None, None, True, ("NoSuchKey", "If-Match")),
        (f'"{E}"', None, E, True, ("ConditionalRequestConflict", "If-Match")),
        ("*", None, E, False, ("NotImplemented", "If-Match")),
        (f'"{E}"', "*", E, False, ("NotImplemented", "If-Match,If-None-Match")),
    ],
)
def test_a_write_is_judged_as_aws_judges_it(
    if_match: str | None,
    if_none_match: str | None,
    current: str | None,
    changed: bool,  # noqa: FBT001 - a column of the table
    expected: tuple[str, str] | None,
) -> None:
    verdict = refusal_of_write(Condition(if_match, if_none_match), current, changed_since_initiation=changed)
    assert verdict == (Refusal(*expected) if expected else None)


@pytest.mark.parametrize(
    ("if_match", "if_none_match", "current", "expected"),
    [
        (None, None, None, None),
        (None, None, E, None),
        (f'"{E}"', None, E, None),
        ("*", None, E, None),
        (f'"{E}"', None, OTHER, ("PreconditionFailed", "If-Match")),
        (f'"{E}"', None, None, ("NoSuchKey", "If-Match")),
        ("*", None, None, ("NoSuchKey", "If-Match")),
        (None, "*", E, ("NotImplemented", "If-None-Match")),
    ],
)
def test_a_delete_is_judged_as_aws_judges_it(
    if_match: str | None, if_none_match: str | None, current: str | None, expected: tuple[str, str] | None
) -> None:
    assert refusal_of_delete(Condition(if_match, if_none_match), current) == (Refusal(*expected) if expected else None)


async def test_a_completion_notices_that_its_key_has_changed(call: Call, status: Call, double: S3Double) -> None:
    """If the same bytes are back, the ETag is the same again, yet AWS answers 409. Tags are no change."""
    conflict = (409, "ConditionalRequestConflict")
    double.put("bucket", "key", b"old")
    upload = await begin_upload(call, b"new")
    double.put("bucket", "key", b"old")
    assert await status("complete_multipart_upload", IfMatch=quoted(b"old"), **upload) == conflict
    await call("delete_object", Key="key")
    assert await status("complete_multipart_upload", IfNoneMatch="*", **upload) == conflict
    placed, upload = double.put("bucket", "key", b"old"), await begin_upload(call, b"new")
    await call("put_object_tagging", Key="key", Tagging=TAGS)
    assert await status("complete_multipart_upload", IfMatch=placed.etag, **upload) == (200, "")


def test_an_etag_comes_back_with_its_bytes_unless_etags_are_unique(double: S3Double) -> None:
    """The hazard that forbidden ETags are for must be there to be tested against."""
    assert double.put("bucket", "key", b"same").etag == double.put("bucket", "key", b"same").etag
    double.behave(etags="unique")
    assert double.put("bucket", "key", b"same").etag != double.put("bucket", "key", b"same").etag


async def test_the_date_is_the_stores_own(call: Call, double: S3Double) -> None:
    """The gateway forgets by this header, so a test that moves the store's clock must move it too."""
    double.behave(clock_offset=600)
    dated = (await call("head_bucket"))["ResponseMetadata"]["HTTPHeaders"]["date"]
    assert abs(parsedate_to_datetime(dated) - double.service.now()) < timedelta(minutes=1)


async def test_a_body_that_is_not_what_it_claims_is_refused(status: Call, double: S3Double) -> None:
    wrong = base64.b64encode(hashlib.md5(b"other").digest()).decode()
    assert await status("put_object", Key="key", Body=b"body", ContentMD5=wrong) == (400, "BadDigest")
    assert await status("put_object", Key="key", Body=b"body", ChecksumCRC32="AAAAAA==") == (400, "BadDigest")
    assert double.mutations == []


LISTS = {
    "list_objects_v2": (["Contents"], ["ContinuationToken"]),
    "list_multipart_uploads": (["Uploads"], ["KeyMarker", "UploadIdMarker"]),
    "list_object_versions": (["Versions", "DeleteMarkers"], ["KeyMarker", "VersionIdMarker"]),
}
"""The entries of each list, and the parameters that lead to its next page."""


@pytest.mark.parametrize("page_size", [1, 2, 1000])
@pytest.mark.parametrize("operation", LISTS)
async def test_lists_are_ordered_grouped_and_paged(
    call: Call, double: S3Double, operation: str, page_size: int
) -> None:
    double.behave(versioned=operation == "list_object_versions")
    writing = "create_multipart_upload" if operation == "list_multipart_uploads" else "put_object"
    made: list[tuple[str, str | None]] = []
    for key in ["b", "a/1", "a/2", "z", "\U00010000", "c/1", *(["b"] if operation != "list_objects_v2" else [])]:
        answer = await call(writing, Key=key)
        made.append((key, answer.get("UploadId", answer.get("VersionId"))))
    if operation == "list_object_versions":
        made = [("b", (await call("delete_object", Key="b"))["VersionId"]), *reversed(made)]

    async def walked(**arguments: Any) -> tuple[list[tuple[str, str | None]], list[str]]:
        found, prefixes, more = [], [], dict[str, str]()
        entries, markers = LISTS[operation]
        limit = "MaxUploads" if operation == "list_multipart_uploads" else "MaxKeys"
        while True:
            page = await call(operation, **{limit: page_size}, **arguments, **more)
            shown = [entry for name in entries for entry in page.get(name, [])]
            groups = [entry["Prefix"] for entry in page.get("CommonPrefixes", [])]
            assert len(shown) + len(groups) <= page_size
            found += [(entry["Key"], entry.get("UploadId", entry.get("VersionId"))) for entry in shown]
            prefixes += groups
            if not page["IsTruncated"]:
                return found, prefixes
            more = {name: page[f"Next{name}"] for name in markers if f"Next{name}" in page}

    listed, groups = await walked()
    assert (sorted(listed), groups) == (sorted(made), [])
    if page_size == 1 or operation != "list_object_versions":  # boto3 gives versions and markers apart
        assert listed == sorted(made, key=lambda entry: entry[0].encode())
    assert await walked(Prefix="a/") == (sorted(each for each in made if each[0].startswith("a/")), [])
    listed, groups = await walked(Delimiter="/")
    assert (sorted(listed), groups) == (sorted(each for each in made if "/" not in each[0]), ["a/", "c/"])
    encoded = await call(operation, Prefix="\U00010000", EncodingType="url")
    assert [entry["Key"] for entry in encoded[LISTS[operation][0][0]]] == ["%F0%90%80%80"]


async def test_multipart_uploads(call: Call, status: Call, double: S3Double) -> None:
    double.behave(minimum_part_size=1)
    upload = await begin_upload(call, b"one", b"two")
    listed = await call("list_multipart_uploads")
    assert [entry["UploadId"] for entry in listed["Uploads"]] == [upload["UploadId"]]
    place = {"Key": "key", "UploadId": upload["UploadId"]}
    for marker in (0, 1):
        page = await call("list_parts", **place, MaxParts=1, PartNumberMarker=marker)
        assert ([part["PartNumber"] for part in page["Parts"]], page["IsTruncated"]) == ([marker + 1], marker == 0)
    done = await call("complete_multipart_upload", **upload)
    digests = hashlib.md5(b"one").digest() + hashlib.md5(b"two").digest()
    assert done["ETag"] == f'"{hashlib.md5(digests).hexdigest()}-2"'
    assert double.objects("bucket")["key"].content.body == b"onetwo"
    assert double.mutations[-1].write_id == "w"
    assert await status("complete_multipart_upload", **upload) == (404, "NoSuchUpload")
    await call("copy_object", Key="key", CopySource="bucket/key", Metadata={}, MetadataDirective="REPLACE")
    assert double.objects("bucket")["key"].etag == hashlib.md5(b"onetwo").hexdigest()


async def test_an_aborted_upload_is_gone_when_the_list_says_so(call: Call, status: Call, double: S3Double) -> None:
    """AWS may answer an abort early. Until the list no longer shows the upload, it can still be completed."""
    double.behave(abort_delay=60)
    first, second = await begin_upload(call, b"one"), await begin_upload(call, b"two")
    for upload in (first, second):
        assert await status("abort_multipart_upload", Key="key", UploadId=upload["UploadId"]) == (204, "")
    assert "Uploads" not in await call("list_multipart_uploads", Prefix="other")
    assert len((await call("list_multipart_uploads"))["Uploads"]) == 2
    assert await status("complete_multipart_upload", **first) == (200, "")
    assert len((await call("list_multipart_uploads"))["Uploads"]) == 1
    double.behave(clock_offset=61)
    assert "Uploads" not in await call("list_multipart_uploads")
    assert await status("complete_multipart_upload", **second) == (404, "NoSuchUpload")
    assert await status("abort_multipart_upload", Key="key", UploadId=second["UploadId"]) == (204, "")
    assert await status("abort_multipart_upload", Key="key", UploadId="unknown") == (404, "NoSuchUpload")
    assert double.objects("bucket")["key"].content.body == b"one"


async def test_bodies_that_are_not_kept_are_hashed_and_counted(call: Call, status: Call, double: S3Double) -> None:
    double.behave(keeps_bodies=False)
    body = bytes(range(256)) * 40_000
    put = await call("put_object", Key="key", Body=body, ChecksumAlgorithm="SHA256")
    assert put["ETag"] == quoted(body)
    headed = await call("head_object", Key="key", ChecksumMode="ENABLED")
    assert (headed["ContentLength"], headed["ChecksumSHA256"]) == (len(body), put["ChecksumSHA256"])
    assert double.objects("bucket")["key"].content.body == b""
    assert (await call("list_objects_v2"))["Contents"][0]["Size"] == len(body)
    assert await status("get_object", Key="key") == (501, "NotImplemented")
    assert await status("put_object", Key="key", Body=b"x", ChecksumCRC32="AAAAAA==") == (400, "BadDigest")
    assert (await call("copy_object", Key="copy", CopySource="bucket/key"))["CopyObjectResult"]["ETag"] == put["ETag"]
    tags = {"TagSet": [{"Key": "a", "Value": "b"}]}
    assert await status("put_object_tagging", Key="key", Tagging=tags) == (200, "")


async def test_an_upload_of_parts_that_are_not_kept_is_the_same_object(call: Call, double: S3Double) -> None:
    """ETag, size, and the checksum over the whole, which is combined from the parts'."""
    body = bytes(range(256)) * 24_000
    for algorithm in ("CRC32", "CRC32C", "CRC64NVME"):
        answers = []
        for keeps in (True, False):
            double.behave(keeps_bodies=keeps)
            upload = await begin_upload(call, body, b"end", ChecksumAlgorithm=algorithm, ChecksumType="FULL_OBJECT")
            answer = await call("complete_multipart_upload", **upload, ChecksumType="FULL_OBJECT")
            answers.append((answer["ETag"], answer[f"Checksum{algorithm}"]))
            assert double.objects("bucket")["key"].content.size == len(body) + 3
        assert answers[0] == answers[1]


class TestVersions:
    """Ids, delete markers, and conditions that look at the current version."""

    @pytest.fixture(autouse=True)
    def versioned(self, double: S3Double) -> None:
        double.behave(versioned=True)

    async def test_a_delete_marker_hides_the_key(self, call: Call, status: Call) -> None:
        first = await put(call, b"body")
        marker = (await call("delete_object", Key="key"))["VersionId"]
        with pytest.raises(ClientError) as caught:
            await call("get_object", Key="key")
        headers = caught.value.response["ResponseMetadata"]["HTTPHeaders"]
        assert (headers["x-amz-delete-marker"], headers["x-amz-version-id"]) == ("true", marker)
        assert await status("get_object", Key="key", VersionId=marker) == (405, "MethodNotAllowed")
        assert "Contents" not in await call("list_objects_v2")
        removed = await call("delete_object", Key="key", VersionId=marker)
        assert (removed["DeleteMarker"], removed["VersionId"]) == (True, marker)
        assert (await call("get_object", Key="key"))["VersionId"] == first

    async def test_a_version_is_removed_for_good_and_the_older_one_is_back(
        self, call: Call, status: Call, double: S3Double
    ) -> None:
        """The ETag of the older version comes back with it: a hazard for every condition on it."""
        first, second = await put(call, b"first"), await put(call, b"second")
        await call("delete_object", Key="key", VersionId=second)
        assert (await call("head_object", Key="key"))["VersionId"] == first
        assert (double.mutations[-1].operation, double.mutations[-1].version_id) == ("DeleteObject", second)
        assert await status("get_object", Key="key", VersionId=second) == (404, "NoSuchVersion")
        before = double.sequence
        assert await status("delete_object", Key="key", VersionId=second) == (204, "")
        assert double.sequence == before
        assert await status("get_object", Key="key", VersionId="no-version") == (400, "InvalidArgument")
        assert await status("put_object", Key="key", Body=b"", IfMatch=quoted(b"first")) == (200, "")

    async def test_conditions_look_at_the_current_version(self, call: Call, status: Call) -> None:
        await put(call, b"first")
        await put(call, b"second")
        assert await status("put_object", Key="key", Body=b"", IfMatch=quoted(b"first")) == (412, "PreconditionFailed")
        assert await status("put_object", Key="key", Body=b"", IfNoneMatch="*") == (412, "PreconditionFailed")
        assert await status("delete_object", Key="key", IfMatch=quoted(b"second")) == (204, "")
        assert await status("put_object", Key="key", Body=b"", IfMatch=quoted(b"second")) == (404, "NoSuchKey")
        assert await status("delete_object", Key="key", IfMatch=quoted(b"second")) == (404, "NoSuchKey")
        assert await status("put_object", Key="key", Body=b"", IfNoneMatch="*") == (200, "")


RETENTION = {"Mode": "GOVERNANCE", "RetainUntilDate": datetime(2030, 1, 1, tzinfo=UTC)}
TAGS = {"TagSet": [{"Key": "color", "Value": "red & blue"}, {"Key": "size", "Value": ""}]}
AMENDMENTS: list[tuple[str, dict[str, Any], str]] = [
    ("put_object_tagging", {"Tagging": TAGS}, "PutObjectTagging"),
    ("delete_object_tagging", {}, "DeleteObjectTagging"),
    ("put_object_acl", {"ACL": "public-read"}, "PutObjectAcl"),
    ("put_object_legal_hold", {"LegalHold": {"Status": "ON"}}, "PutObjectLegalHold"),
    ("put_object_retention", {"Retention": RETENTION}, "PutObjectRetention"),
]


@pytest.mark.parametrize(("operation", "arguments", "name"), AMENDMENTS)
async def test_an_amendment_is_logged_and_leaves_the_object_as_it_is(
    call: Call, status: Call, double: S3Double, operation: str, arguments: dict[str, Any], name: str
) -> None:
    before = double.put("bucket", "key", b"body")
    await call(operation, Key="key", **arguments)
    after = double.objects("bucket")["key"]
    assert (after.etag, after.modified, after.content.body) == (before.etag, before.modified, b"body")
    (amendment,) = double.applied(after=before.sequence)
    assert (amendment.operation, amendment.key, amendment.etag) == (name, "key", before.etag)
    assert await status(operation, Key="absent", **arguments) == (404, "NoSuchKey")
    assert double.mutations[-1] is amendment


async def put(call: Call, body: bytes, key: str = "key", **arguments: Any) -> str:
    return str((await call("put_object", Key=key, Body=body, **arguments))["VersionId"])
