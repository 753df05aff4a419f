"""Uploads in parts, and copies within the store."""

from typing import Any

from tests.conformance.cases.objects import FUTURE, OTHER, PAST
from tests.conformance.observer import Observer, case, each

LEAST = 5 * 1024 * 1024
"""Bytes that every part but the last one must have."""


def start(s3: Observer, key: str = "k", **given: Any) -> str:
    return str(s3.create_multipart_upload(Key=key, **given).get("UploadId", ""))


def put(s3: Observer, upload: str, number: int, body: bytes, key: str = "k", **given: Any) -> dict[str, Any]:
    """A part, as completion wants it named."""
    etag = s3.upload_part(Key=key, UploadId=upload, PartNumber=number, Body=body, **given).get("ETag", "")
    return {"PartNumber": number, "ETag": etag}


def complete(s3: Observer, upload: str, parts: list[dict[str, Any]], key: str = "k", **given: Any) -> None:
    s3.complete_multipart_upload(Key=key, UploadId=upload, MultipartUpload={"Parts": parts}, **given)
    s3.head_object(Key=key)


@case
def one_part(s3: Observer) -> None:
    upload = start(s3)
    parts = [put(s3, upload, 1, b"hello")]
    s3.list_parts(Key="k", UploadId=upload)
    s3.list_multipart_uploads()
    s3.head_object(Key="k")
    complete(s3, upload, parts)
    s3.get_object(Key="k")
    s3.list_multipart_uploads()
    s3.list_parts(Key="k", UploadId=upload)


@case
def two_parts(s3: Observer) -> None:
    upload = start(s3, ContentType="text/plain", Metadata={"a": "1"}, CacheControl="no-cache")
    complete(s3, upload, [put(s3, upload, 1, b"a" * LEAST), put(s3, upload, 2, b"b")])
    s3.get_object(Key="k")
    s3.get_object(Key="k", Range=f"bytes={LEAST - 2}-{LEAST}")
    s3.head_object(Key="k", PartNumber=2)
    s3.get_object(Key="k", PartNumber=2)


@case
def gaps_in_the_numbers_and_another_order(s3: Observer) -> None:
    upload = start(s3)
    last = put(s3, upload, 70, b"b")
    complete(s3, upload, [put(s3, upload, 3, b"a" * LEAST), last])
    s3.get_object(Key="k")


@case
def parts_named_in_the_wrong_order(s3: Observer) -> None:
    upload = start(s3)
    first, second = put(s3, upload, 1, b"a" * LEAST), put(s3, upload, 2, b"b")
    complete(s3, upload, [second, first])


@case
def not_all_parts_are_named(s3: Observer) -> None:
    upload = start(s3)
    parts = [put(s3, upload, number, b"a" * LEAST) for number in (1, 2)]
    complete(s3, upload, parts[:1])
    s3.list_multipart_uploads()


@case
def a_part_that_is_too_small(s3: Observer) -> None:
    upload = start(s3)
    complete(s3, upload, [put(s3, upload, 1, b"a"), put(s3, upload, 2, b"b")])


@case
def a_part_sent_again(s3: Observer) -> None:
    upload = start(s3)
    put(s3, upload, 1, b"first")
    parts = [put(s3, upload, 1, b"second")]
    s3.list_parts(Key="k", UploadId=upload)
    complete(s3, upload, parts)
    s3.get_object(Key="k")


@each(
    {
        "no-such-part": [{"PartNumber": 9, "ETag": OTHER}],
        "wrong-etag": [{"PartNumber": 1, "ETag": OTHER}],
        "nothing": [],
    }
)
def a_completion_that_names_the_wrong_parts(s3: Observer, parts: list[dict[str, Any]]) -> None:
    upload = start(s3)
    put(s3, upload, 1, b"hello")
    complete(s3, upload, parts)


@case
def a_part_named_without_quotation_marks(s3: Observer) -> None:
    upload = start(s3)
    part = put(s3, upload, 1, b"hello")
    complete(s3, upload, [part | {"ETag": part["ETag"].strip('"')}])


@each({"malformed": b"<Complete", "empty": b"", "other": b"<Delete></Delete>"})
def a_completion_that_is_no_document(s3: Observer, body: bytes) -> None:
    upload = start(s3)
    put(s3, upload, 1, b"hello")
    s3.request("POST", f"/{{bucket}}/k?uploadId={upload}", {}, body)
    s3.head_object(Key="k")


@case
def completed_twice(s3: Observer) -> None:
    upload = start(s3)
    parts = [put(s3, upload, 1, b"hello")]
    complete(s3, upload, parts)
    complete(s3, upload, parts)


@case
def aborted(s3: Observer) -> None:
    upload = start(s3)
    parts = [put(s3, upload, 1, b"hello")]
    s3.abort_multipart_upload(Key="k", UploadId=upload)
    s3.list_multipart_uploads()
    s3.list_parts(Key="k", UploadId=upload)
    put(s3, upload, 2, b"late")
    complete(s3, upload, parts)
    s3.abort_multipart_upload(Key="k", UploadId=upload)


@case
def an_upload_that_never_was(s3: Observer) -> None:
    put(s3, "no-such-upload", 1, b"x")
    s3.list_parts(Key="k", UploadId="no-such-upload")
    s3.abort_multipart_upload(Key="k", UploadId="no-such-upload")
    complete(s3, "no-such-upload", [{"PartNumber": 1, "ETag": OTHER}])


@case
def an_upload_of_another_key(s3: Observer) -> None:
    upload = start(s3)
    put(s3, upload, 1, b"x", key="other")


@each({"nought": "0", "too-high": "10001", "negative": "-1", "word": "one", "absent": None})
def a_part_number(s3: Observer, number: str | None) -> None:
    upload = start(s3)
    named = f"partNumber={number}&" if number is not None else ""
    s3.request("PUT", f"/{{bucket}}/k?{named}uploadId={upload}", {}, b"x")


@case
def a_part_with_a_wrong_hash(s3: Observer) -> None:
    upload = start(s3)
    s3.request(
        "PUT", f"/{{bucket}}/k?partNumber=1&uploadId={upload}", {"Content-MD5": "YWJjZGVmZ2hpamtsbW5vcA=="}, b"x"
    )
    s3.list_parts(Key="k", UploadId=upload)


@each({"two": {"MaxParts": 2}, "after": {"PartNumberMarker": 2}, "page": {"MaxParts": 1, "PartNumberMarker": 1}})
def list_parts(s3: Observer, given: dict[str, Any]) -> None:
    upload = start(s3)
    for number in (1, 2, 5):
        put(s3, upload, number, b"%d" % number)
    s3.list_parts(Key="k", UploadId=upload, **given)


@each(
    {
        "everything": {},
        "prefix": {"Prefix": "a/"},
        "delimiter": {"Delimiter": "/"},
        "one": {"MaxUploads": 1},
        "marker": {"KeyMarker": "a/1"},
        "encoded": {"EncodingType": "url"},
    }
)
def list_uploads(s3: Observer, given: dict[str, Any]) -> None:
    for key in ("a/1", "a/2", "b c", "é"):
        start(s3, key)
    s3.list_multipart_uploads(**given)


@case
def two_uploads_of_one_key(s3: Observer) -> None:
    first, second = start(s3), start(s3)
    one, two = put(s3, first, 1, b"first"), put(s3, second, 1, b"second")
    complete(s3, second, [two])
    complete(s3, first, [one])
    s3.get_object(Key="k")


@case
def put_while_an_upload_is_open(s3: Observer) -> None:
    upload = start(s3)
    parts = [put(s3, upload, 1, b"in parts")]
    s3.put_object(Key="k", Body=b"at once")
    s3.get_object(Key="k")
    complete(s3, upload, parts)
    s3.get_object(Key="k")
    s3.delete_object(Key="k")
    s3.head_object(Key="k")


@case
def parts_that_are_copied(s3: Observer) -> None:
    s3.put_object(Key="source", Body=b"s" * (LEAST + 10))
    s3.put_object(Bucket=s3.other, Key="source", Body=b"elsewhere")
    upload = start(s3)
    parts = []
    for number, (bucket, given) in enumerate(
        [(s3.bucket, {"CopySourceRange": f"bytes=0-{LEAST - 1}"}), (s3.bucket, {}), (s3.other, {})], 1
    ):
        source = {"Bucket": bucket, "Key": "source"}
        answer = s3.upload_part_copy(Key="k", UploadId=upload, PartNumber=number, CopySource=source, **given)
        parts.append({"PartNumber": number, "ETag": answer.get("CopyPartResult", {}).get("ETag", "")})
    complete(s3, upload, parts)
    s3.get_object(Key="k")


@each({"past-the-end": "bytes=0-100", "nonsense": "bytes=x", "open": "bytes=1-"})
def a_part_copied_from_a_range(s3: Observer, given: str) -> None:
    s3.put_object(Key="source", Body=b"0123456789")
    upload = start(s3)
    source = {"Bucket": s3.bucket, "Key": "source"}
    s3.upload_part_copy(Key="k", UploadId=upload, PartNumber=1, CopySource=source, CopySourceRange=given)


@case
def a_part_copied_from_nothing(s3: Observer) -> None:
    upload = start(s3)
    s3.upload_part_copy(Key="k", UploadId=upload, PartNumber=1, CopySource={"Bucket": s3.bucket, "Key": "none"})
    missing = {"Bucket": "no-such-bucket-anywhere-here", "Key": "none"}
    s3.upload_part_copy(Key="k", UploadId=upload, PartNumber=1, CopySource=missing)


@case
def tags_and_checksums_of_an_upload(s3: Observer) -> None:
    upload = start(s3, Tagging="a=1", ChecksumAlgorithm="CRC32")
    part = s3.upload_part(Key="k", UploadId=upload, PartNumber=1, Body=b"hello", ChecksumAlgorithm="CRC32")
    named = {"PartNumber": 1, "ETag": part.get("ETag", ""), "ChecksumCRC32": part.get("ChecksumCRC32", "NhCmhg==")}
    complete(s3, upload, [named])
    s3.get_object_tagging(Key="k")
    s3.head_object(Key="k", ChecksumMode="ENABLED")


def _source(s3: Observer, key: str = "source", **given: Any) -> dict[str, str]:
    s3.put_object(Key=key, Body=b"bytes", Metadata={"a": "1"}, ContentType="text/plain", **given)
    return {"Bucket": s3.bucket, "Key": key}


@each(
    {
        "as-it-is": {},
        "replaced": {"MetadataDirective": "REPLACE", "Metadata": {"b": "2"}, "ContentType": "text/x-other"},
        "replaced-by-nothing": {"MetadataDirective": "REPLACE"},
        "nonsense": {"MetadataDirective": "NONSENSE"},
        "tags-replaced": {"TaggingDirective": "REPLACE", "Tagging": "b=2"},
    }
)
def to_another_key(s3: Observer, given: dict[str, Any]) -> None:
    s3.copy_object(Key="k", CopySource=_source(s3, Tagging="a=1"), **given)
    s3.get_object(Key="k")
    s3.get_object_tagging(Key="k")


@each({"as-it-is": {}, "replaced": {"MetadataDirective": "REPLACE", "Metadata": {"b": "2"}}})
def onto_itself(s3: Observer, given: dict[str, Any]) -> None:
    source = _source(s3)
    s3.copy_object(Key="source", CopySource=source, **given)
    s3.get_object(Key="source")


@case
def over_an_object(s3: Observer) -> None:
    s3.put_object(Key="k", Body=b"old", Metadata={"old": "1"})
    s3.copy_object(Key="k", CopySource=_source(s3))
    s3.get_object(Key="k")


@case
def across_buckets(s3: Observer) -> None:
    source = _source(s3)
    s3.copy_object(Bucket=s3.other, Key="k", CopySource=source)
    s3.get_object(Bucket=s3.other, Key="k")


@each({"unicode": "é ü+%", "slashes": "a//b/../c", "plus": "a+b", "percent": "a%2Fb"})
def from_an_odd_key(s3: Observer, key: str) -> None:
    s3.copy_object(Key="k", CopySource=_source(s3, key))
    s3.get_object(Key="k")


@each({"slash-first": "/{bucket}/source", "encoded-slash": "{bucket}%2Fsource", "no-key": "{bucket}", "empty": "/"})
def a_source_written_by_hand(s3: Observer, source: str) -> None:
    _source(s3)
    s3.request("PUT", "/{bucket}/k", {"x-amz-copy-source": source.format(bucket=s3.bucket)})
    s3.head_object(Key="k")


@each(
    {
        "match": {"CopySourceIfMatch": "{etag}"},
        "match-other": {"CopySourceIfMatch": OTHER},
        "none-match": {"CopySourceIfNoneMatch": "{etag}"},
        "none-match-other": {"CopySourceIfNoneMatch": OTHER},
        "modified": {"CopySourceIfModifiedSince": PAST},
        "not-modified": {"CopySourceIfModifiedSince": FUTURE},
        "unmodified": {"CopySourceIfUnmodifiedSince": FUTURE},
        "not-unmodified": {"CopySourceIfUnmodifiedSince": PAST},
    }
)
def on_a_condition_of_the_source(s3: Observer, given: dict[str, Any]) -> None:
    source = _source(s3)
    etag = s3.head_object(Key="source").get("ETag", "")
    filled = {name: one.format(etag=etag) if isinstance(one, str) else one for name, one in given.items()}
    s3.copy_object(Key="k", CopySource=source, **filled)
    s3.head_object(Key="k")


@each({"none-match-any": {"IfNoneMatch": "*"}, "match-other": {"IfMatch": OTHER}})
def on_a_condition_of_the_destination(s3: Observer, given: dict[str, Any]) -> None:
    source = _source(s3)
    s3.put_object(Key="there", Body=b"old")
    for key in ("there", "new"):
        s3.copy_object(Key=key, CopySource=source, **given)
        s3.get_object(Key=key)


@case
def from_nothing(s3: Observer) -> None:
    s3.copy_object(Key="k", CopySource={"Bucket": s3.bucket, "Key": "none"})
    s3.copy_object(Key="k", CopySource={"Bucket": "no-such-bucket-anywhere-here", "Key": "none"})
    s3.head_object(Key="k")


@case
def of_nothing_at_all(s3: Observer) -> None:
    s3.put_object(Key="empty", Body=b"")
    s3.copy_object(Key="k", CopySource={"Bucket": s3.bucket, "Key": "empty"})
    s3.get_object(Key="k")


@case
def of_what_was_uploaded_in_parts(s3: Observer) -> None:
    upload = s3.create_multipart_upload(Key="source", Metadata={"a": "1"}).get("UploadId", "")
    part = s3.upload_part(Key="source", UploadId=upload, PartNumber=1, Body=b"part").get("ETag", "")
    parts = {"Parts": [{"PartNumber": 1, "ETag": part}]}
    s3.complete_multipart_upload(Key="source", UploadId=upload, MultipartUpload=parts)
    s3.copy_object(Key="k", CopySource={"Bucket": s3.bucket, "Key": "source"})
    s3.get_object(Key="k")
