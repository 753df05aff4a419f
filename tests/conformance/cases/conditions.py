"""Conditional writes, as far as the store has them."""

from typing import Any

from tests.conformance.observer import Observer, case, each

OTHER = '"00000000000000000000000000000000"'

CONDITIONS: dict[str, dict[str, Any]] = {
    "none-match-any": {"IfNoneMatch": "*"},
    "none-match-own": {"IfNoneMatch": "{etag}"},
    "none-match-other": {"IfNoneMatch": OTHER},
    "match-own": {"IfMatch": "{etag}"},
    "match-bare": {"IfMatch": "{bare}"},
    "match-other": {"IfMatch": OTHER},
    "match-any": {"IfMatch": "*"},
    "both": {"IfMatch": "{etag}", "IfNoneMatch": "*"},
}


def _filled(given: dict[str, str], etag: str) -> dict[str, str]:
    return {name: value.format(etag=etag, bare=etag.strip('"')) for name, value in given.items()}


@each(CONDITIONS)
def put_over_an_object(s3: Observer, given: dict[str, str]) -> None:
    etag = s3.put_object(Key="k", Body=b"old").get("ETag", "")
    s3.put_object(Key="k", Body=b"new", **_filled(given, etag))
    s3.get_object(Key="k")


@each(CONDITIONS)
def put_where_nothing_is(s3: Observer, given: dict[str, str]) -> None:
    s3.put_object(Key="k", Body=b"new", **_filled(given, '"5d41402abc4b2a76b9719d911017c592"'))
    s3.get_object(Key="k")


@case
def put_after_a_delete(s3: Observer) -> None:
    etag = s3.put_object(Key="k", Body=b"old").get("ETag", "")
    s3.delete_object(Key="k")
    s3.put_object(Key="k", Body=b"new", IfMatch=etag)
    s3.put_object(Key="k", Body=b"new", IfNoneMatch="*")
    s3.get_object(Key="k")


@each({"own": {"IfMatch": "{etag}"}, "other": {"IfMatch": OTHER}, "any": {"IfMatch": "*"}})
def conditional_delete(s3: Observer, given: dict[str, str]) -> None:
    etag = s3.put_object(Key="k", Body=b"x").get("ETag", "")
    s3.delete_object(Key="k", **_filled(given, etag))
    s3.head_object(Key="k")
    s3.delete_object(Key="none", **_filled(given, etag))


@each(
    {
        "none-match-any": {"IfNoneMatch": "*"},
        "match-own": {"IfMatch": "{etag}"},
        "match-other": {"IfMatch": OTHER},
    }
)
def conditional_completion(s3: Observer, given: dict[str, str]) -> None:
    for key in ("new", "there"):
        etag = s3.put_object(Key="there", Body=b"old").get("ETag", "")
        upload = s3.create_multipart_upload(Key=key).get("UploadId", "")
        part = s3.upload_part(Key=key, UploadId=upload, PartNumber=1, Body=b"part").get("ETag", "")
        parts = {"Parts": [{"PartNumber": 1, "ETag": part}]}
        s3.complete_multipart_upload(Key=key, UploadId=upload, MultipartUpload=parts, **_filled(given, etag))
        s3.get_object(Key=key)
