"""The gateway reads the source of a copy as clients write it, and refuses an ambiguous one."""

from urllib.parse import quote

import pytest

from gateway.errors import StoreError
from gateway.objects.s3.addressing import CopySource
from gateway.objects.s3.operations import Operation, OperationKind
from gateway.objects.s3.request import S3Request, classify

Headers = list[tuple[bytes, bytes]]
SOURCE = (b"x-amz-copy-source", b"bucket/key")


def copy(*headers: tuple[bytes, bytes], query: bytes = b"") -> S3Request:
    return classify("PUT", b"/target/k", query, headers)


def part(*headers: tuple[bytes, bytes]) -> S3Request:
    return copy(*headers, query=b"partNumber=1&uploadId=u")


def read(value: bytes) -> CopySource:
    source = copy((b"x-amz-copy-source", value)).source
    assert source is not None
    return source


def refusal(*headers: tuple[bytes, bytes], query: bytes = b"") -> tuple[str, int, str]:
    with pytest.raises(StoreError) as caught:
        copy(*headers, query=query)
    return caught.value.s3_code, caught.value.status, caught.value.message


@pytest.mark.parametrize(
    ("value", "bucket", "key", "version"),
    [
        (b"bucket/key", "bucket", "key", None),
        (b"/bucket/key", "bucket", "key", None),
        (b"bucket%2Fkey", "bucket", "key", None),
        (b"%2Fbucket%2Fa%2Fb", "bucket", "a/b", None),
        (b"bucket/a%20b", "bucket", "a b", None),
        (b"bucket/a b", "bucket", "a b", None),
        (b"bucket/a%2Bb", "bucket", "a+b", None),
        (b"bucket/100%25", "bucket", "100%", None),
        (b"bucket/a%252Fb", "bucket", "a%2Fb", None),
        (b"bucket/%C3%A9", "bucket", "é", None),
        ("bucket/é".encode(), "bucket", "é", None),
        (b"bucket//key", "bucket", "/key", None),
        (b"bucket/../key", "bucket", "../key", None),
        (b"bucket/tail/", "bucket", "tail/", None),
        (b"bucket/a%3FversionId=1", "bucket", "a?versionId=1", None),
        (b"bucket/key?versionId=v1", "bucket", "key", "v1"),
        (b"bucket/key?versionId=a%2Bb", "bucket", "key", "a+b"),
        (b"bucket/key?versionId=a+b=", "bucket", "key", "a+b="),
        (b"bucket/key?versionId=null", "bucket", "key", "null"),
        (b"bucket/" + b"a" * 1024, "bucket", "a" * 1024, None),
    ],
)
def test_sources(value: bytes, bucket: str, key: str, version: str | None) -> None:
    source = read(value)
    assert (source.bucket, source.key, source.version_id) == (bucket, key, version)
    assert source.raw_path == f"/{bucket}/{quote(key, safe='/')}"
    assert source.query == ("" if version is None else f"versionId={quote(version, safe='')}")
    asked = classify("GET", source.raw_path.encode(), source.query.encode(), [])
    assert (asked.bucket, asked.key, asked.parameter("versionId")) == (bucket, key, version)


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (b"", "InvalidArgument"),
        (b"/", "InvalidArgument"),
        (b"bucket", "InvalidArgument"),
        (b"bucket/", "InvalidArgument"),
        (b"/bucket/", "InvalidArgument"),
        (b"bucket?versionId=1", "InvalidArgument"),
        (b"bucket/a+b", "InvalidArgument"),
        (b"bucket/%", "InvalidArgument"),
        (b"bucket/%zz", "InvalidArgument"),
        (b"bucket/%ff", "InvalidArgument"),
        (b"bucket/a%00b", "InvalidArgument"),
        (b"bucket/key?", "InvalidArgument"),
        (b"bucket/key?versionId", "InvalidArgument"),
        (b"bucket/key?versionId=", "InvalidArgument"),
        (b"bucket/key?versionId=%zz", "InvalidArgument"),
        (b"bucket/key?acl", "InvalidArgument"),
        (b"bucket/a?b?versionId=1", "InvalidArgument"),
        (b"//bucket/key", "InvalidBucketName"),
        (b"Bucket/key", "InvalidBucketName"),
        (b"../bucket/key", "InvalidBucketName"),
        (b"192.168.0.1/key", "InvalidBucketName"),
        (b"bucket/" + b"a" * 1025, "KeyTooLongError"),
    ],
)
def test_sources_that_name_nothing(value: bytes, code: str) -> None:
    assert refusal((b"x-amz-copy-source", value))[:2] == (code, 400)


@pytest.mark.parametrize(
    "value",
    [
        b"arn:aws:s3:us-west-2:123456789012:accesspoint/name/object/key",
        b"arn%3Aaws%3As3%3Aus-west-2%3A123456789012%3Aaccesspoint%2Fname%2Fobject%2Fkey",
        b"/arn:aws:s3-outposts:us-west-2:123456789012:outpost/o/object/key",
    ],
)
def test_access_points_are_not_served(value: bytes) -> None:
    assert refusal((b"x-amz-copy-source", value))[:2] == ("NotImplemented", 501)


def test_conditions_become_those_of_the_read_of_the_source() -> None:
    request = copy(
        SOURCE,
        (b"x-amz-copy-source-if-match", b'"e"'),
        (b"x-amz-copy-source-if-none-match", b'"f"'),
        (b"x-amz-copy-source-if-modified-since", b"Fri, 24 May 2013 00:00:00 GMT"),
        (b"x-amz-copy-source-if-unmodified-since", b"Sat, 25 May 2013 00:00:00 GMT"),
        (b"x-amz-source-expected-bucket-owner", b"123456789012"),
        (b"x-amz-expected-bucket-owner", b"210987654321"),
    )
    assert request.source is not None
    assert request.source.conditions == (
        ("if-match", '"e"'),
        ("if-none-match", '"f"'),
        ("if-modified-since", "Fri, 24 May 2013 00:00:00 GMT"),
        ("if-unmodified-since", "Sat, 25 May 2013 00:00:00 GMT"),
        ("x-amz-expected-bucket-owner", "123456789012"),
    )
    assert request.condition is None
    assert request.headers == (("x-amz-expected-bucket-owner", "210987654321"),)


@pytest.mark.parametrize(("value", "read"), [(b"e", '"e"'), (b'"e"', '"e"'), (b"*", "*"), (b'"e", "f"', '"e", "f"')])
def test_an_etag_of_the_source_may_come_without_quotation_marks(value: bytes, read: str) -> None:
    request = part(SOURCE, (b"x-amz-copy-source-if-match", value))
    assert request.source is not None
    assert request.source.conditions == (("if-match", read),)


def test_a_range_of_the_source() -> None:
    request = part(SOURCE, (b"x-amz-copy-source-range", b"bytes=0-1023"))
    assert request.operation is Operation.UPLOAD_PART_COPY
    assert request.source is not None
    assert request.source.range == (0, 1023)
    assert request.headers == ()
    whole = part(SOURCE).source
    assert whole is not None
    assert whole.range is None


@pytest.mark.parametrize(
    "value",
    [b"", b"0-5", b"bytes=5-", b"bytes=-5", b"bytes=5-4", b"bytes=0-1,3-4", b"bytes=a-b", b"bytes=0-" + b"9" * 19],
)
def test_ranges_that_cannot_be_read(value: bytes) -> None:
    with pytest.raises(StoreError) as caught:
        part(SOURCE, (b"x-amz-copy-source-range", value))
    assert (caught.value.s3_code, caught.value.status) == ("InvalidArgument", 400)


def test_a_range_is_for_parts_only() -> None:
    assert refusal(SOURCE, (b"x-amz-copy-source-range", b"bytes=0-5"))[:2] == ("NotImplemented", 501)


def test_directives() -> None:
    replaced = copy(SOURCE, (b"x-amz-metadata-directive", b"REPLACE"), (b"x-amz-tagging-directive", b"REPLACE"))
    copied = copy(SOURCE, (b"x-amz-metadata-directive", b"COPY"), (b"x-amz-tagging-directive", b"COPY"))
    assert replaced.source is not None
    assert copied.source is not None
    assert (replaced.source.replace_metadata, replaced.source.replace_tags) == (True, True)
    assert (copied.source.replace_metadata, copied.source.replace_tags) == (False, False)
    assert (replaced.headers, copied.headers) == ((), ())
    assert copied.source == read(b"bucket/key")


@pytest.mark.parametrize("name", [b"x-amz-metadata-directive", b"x-amz-tagging-directive"])
def test_unknown_directives_are_refused(name: bytes) -> None:
    assert refusal(SOURCE, (name, b"replace"))[:2] == ("InvalidArgument", 400)
    assert refusal(SOURCE, (name, b""))[:2] == ("InvalidArgument", 400)
    assert refusal(SOURCE, (name, b"COPY"), query=b"partNumber=1&uploadId=u")[:2] == ("NotImplemented", 501)
    assert refusal((name, b"COPY"))[:2] == ("NotImplemented", 501)


@pytest.mark.parametrize(
    "name",
    [
        b"x-amz-copy-source-server-side-encryption-customer-algorithm",
        b"x-amz-copy-source-server-side-encryption-customer-key",
        b"x-amz-copy-source-server-side-encryption-customer-key-md5",
    ],
)
def test_sources_with_keys_of_their_own_are_refused(name: bytes) -> None:
    code, status, message = refusal(SOURCE, (name, b"1"))
    assert (code, status) == ("NotImplemented", 501)
    assert "without its key" in message


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([(b"X-Amz-Copy-Source", b"bucket/key"), (b"x-amz-copy-source", b"bucket/other")], 400),
        ([(b"x-amz-copy-source-if-match", b"e")], 400),
        ([(b"x_amz_copy_source", b"bucket/key")], 501),
        ([SOURCE, (b"x_amz_copy_source", b"bucket/other")], 501),
        ([SOURCE, (b"x-amz-copy-source-anything-new", b"1")], 501),
    ],
)
def test_a_copy_is_never_taken_for_a_put(headers: Headers, status: int) -> None:
    for query in (b"", b"partNumber=1&uploadId=u"):
        assert refusal(*headers, query=query)[1] == status


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "DELETE"])
@pytest.mark.parametrize("path", [b"/", b"/bucket", b"/bucket/k"])
def test_nothing_else_has_a_source(method: str, path: bytes) -> None:
    with pytest.raises(StoreError) as caught:
        classify(method, path, b"", [SOURCE])
    assert (caught.value.s3_code, caught.value.status) == ("NotImplemented", 501)


def test_kinds_of_copies() -> None:
    assert copy(SOURCE).operation is Operation.COPY_OBJECT
    assert copy(SOURCE).operation.kind is OperationKind.WRITE
    assert part(SOURCE).operation.kind is OperationKind.STAGING
    assert classify("PUT", b"/bucket/k", b"", []).source is None
