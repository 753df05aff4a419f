"""Copies within the store."""

from datetime import UTC, datetime
from typing import Any

from tests.conformance.observer import Observer, case, each

OTHER = '"00000000000000000000000000000000"'
PAST, FUTURE = datetime(2001, 1, 1, tzinfo=UTC), datetime(2099, 1, 1, tzinfo=UTC)


def _source(s3: Observer, key: str = "source", **given: Any) -> dict[str, str]:
    s3.put_object(Key=key, Body=b"bytes", Metadata={"a": "1"}, ContentType="text/plain", **given)
    return {"Bucket": s3.bucket, "Key": key}


@each(
    {
        "as-it-is": {},
        "copied": {"MetadataDirective": "COPY", "Metadata": {"b": "2"}},
        "replaced": {"MetadataDirective": "REPLACE", "Metadata": {"b": "2"}, "ContentType": "text/x-other"},
        "replaced-by-nothing": {"MetadataDirective": "REPLACE"},
        "nonsense": {"MetadataDirective": "NONSENSE"},
        "tags-copied": {"TaggingDirective": "COPY"},
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
