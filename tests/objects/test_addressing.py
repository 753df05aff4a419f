"""Requests name bucket and key by the path, by the host, or as the source of a copy. Keys stay as they come."""

from urllib.parse import quote

import pytest

from gateway.errors import StoreError
from gateway.objects.s3.addressing import CopySource, bucket_of_host
from gateway.objects.s3.operations import Operation
from gateway.objects.s3.request import S3Request, classify

DOMAINS = ("s3.example.com", "eu.s3.example.com", "localhost")


def classify_hosted(method: str, path: bytes, query: bytes, headers: list[tuple[bytes, bytes]]) -> S3Request:
    return classify(method, path, query, headers, bucket_of_host(headers, DOMAINS))


HOSTS: dict[str | None, list[bytes]] = {
    "bucket": [
        *(b"bucket.s3.example.com", b"bucket.s3.example.com:8080", b"bucket.s3.example.com.", b"Bucket.S3.Example.COM"),
        *(b"bucket.s3.example.com.:443", b" bucket.s3.example.com ", b"bucket.eu.s3.example.com"),
        b"bucket.localhost:9000",
    ],
    "dotted.bucket": [b"dotted.bucket.s3.example.com", b"dotted.bucket.eu.s3.example.com"],
    "": [b".s3.example.com"],
    "buc_ket": [b"buc_ket.s3.example.com"],
    None: [
        *(b"s3.example.com", b"localhost", b"bucket.s3.example.com.evil", b"bucket.s3.example.com.evil.org"),
        *(b"buckets3.example.com", b"bucket.s3.example.com@evil", b"bucket.s3.example.com:80:80", b"[::1]:8080"),
        *(b"bucket.s3.example.com/x", b"bucket.s3.example.com:http", b"example.com", b"127.0.0.1:8080", b""),
        "bücket.example".encode(),
    ],
}


@pytest.mark.parametrize("bucket", HOSTS)
def test_the_bucket_in_a_host(bucket: str | None) -> None:
    for host in HOSTS[bucket]:
        assert bucket_of_host([(b"HOST", host)], DOMAINS) == bucket, host


@pytest.mark.parametrize(
    "alias", ["orders-a1b2c3-s3alias", "orders--op-s3", "orders--ol-s3", "o--az1--xa-s3", "m1.mrap"]
)
def test_the_alias_of_an_access_point_is_another_name_of_a_bucket(alias: str) -> None:
    """A caller that is refused for the bucket could otherwise write its objects by the other name."""
    for path, headers in ((f"/{alias}/key", []), ("/key", [(b"host", f"{alias}.localhost".encode())])):
        with pytest.raises(StoreError) as raised:
            classify_hosted("PUT", path.encode(), b"", headers)
        assert "alias of an access point" in raised.value.advice
        assert (raised.value.s3_code, raised.value.status) == ("InvalidBucketName", 400)


def test_no_domain_no_host_or_two_hosts() -> None:
    assert bucket_of_host([(b"host", b"bucket.s3.example.com")], ()) is None
    assert bucket_of_host([(b"x-forwarded-host", b"bucket.s3.example.com")], DOMAINS) is None
    assert bucket_of_host([(b"host", b"bucket.localhost"), (b"host", b"other.localhost")], DOMAINS) is None


def test_a_domain_is_compared_without_case_port_and_last_dot() -> None:
    assert bucket_of_host([(b"host", b"bucket.s3.local:1")], ["S3.Local.:8080"]) == "bucket"


@pytest.mark.parametrize(
    ("method", "path", "operation", "key"),
    [
        ("GET", b"/", Operation.LIST_OBJECTS, ""),
        ("PUT", b"/", Operation.CREATE_BUCKET, ""),
        ("PUT", b"/key", Operation.PUT_OBJECT, "key"),
        ("PUT", b"//key", Operation.PUT_OBJECT, "/key"),
        ("PUT", b"/../key", Operation.PUT_OBJECT, "../key"),
        ("PUT", b"/a%2Fb+c%20", Operation.PUT_OBJECT, "a/b+c "),
        ("PUT", b"/" + b"a" * 1024, Operation.PUT_OBJECT, "a" * 1024),
    ],
)
def test_the_whole_path_is_the_key_where_the_host_names_the_bucket(
    method: str, path: bytes, operation: Operation, key: str
) -> None:
    request = classify_hosted(method, path, b"", [(b"host", b"dotted.bucket.localhost:8080")])
    assert (request.operation, request.bucket, request.key) == (operation, "dotted.bucket", key)
    assert request.raw_path.startswith("/dotted.bucket")
    again = classify(method, request.raw_path.encode(), b"", [])
    assert (again.bucket, again.key) == (request.bucket, request.key)


@pytest.mark.parametrize(
    ("host", "path", "code"),
    [
        *(
            (host, b"/key", "InvalidBucketName")
            for host in (b".localhost", b"ab.localhost", b"a..b.localhost", b"192.168.0.1.localhost", b"a/b.localhost")
        ),
        (b"buc_ket.localhost", b"/key", "InvalidBucketName"),
        (b"bucket%2E.localhost", b"/key", "InvalidBucketName"),
        (b"b\xc3\xbccket.localhost", b"/key", "InvalidBucketName"),
        (b"bucket.localhost", b"*", "InvalidURI"),
    ],
)
def test_hosts_and_paths_that_name_nothing(host: bytes, path: bytes, code: str) -> None:
    with pytest.raises(StoreError) as caught:
        classify_hosted("PUT", path, b"", [(b"host", host)])
    assert (caught.value.s3_code, caught.value.status) == (code, 400)


# The source of a copy is read as clients write it, and an ambiguous one is refused.

Headers = list[tuple[bytes, bytes]]


SOURCE = (b"x-amz-copy-source", b"bucket/key")


def copy(*headers: tuple[bytes, bytes], query: bytes = b"") -> S3Request:
    return classify("PUT", b"/target/k", query, headers)


def part(*headers: tuple[bytes, bytes]) -> S3Request:
    return copy(*headers, query=b"partNumber=1&uploadId=u")


def source_of(value: bytes) -> CopySource:
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
        (b"%2Fbucket%2Fa%2Fb", "bucket", "a/b", None),
        (b"bucket/a%20b", "bucket", "a b", None),
        (b"bucket/a%2Bb", "bucket", "a+b", None),
        (b"bucket/a%252Fb", "bucket", "a%2Fb", None),
        (b"bucket/%C3%A9", "bucket", "é", None),
        ("bucket/é".encode(), "bucket", "é", None),
        (b"bucket//key", "bucket", "/key", None),
        (b"bucket/a%3FversionId=1", "bucket", "a?versionId=1", None),
        (b"bucket/key?versionId=v1", "bucket", "key", "v1"),
        (b"bucket/key?versionId=a%2Bb", "bucket", "key", "a+b"),
        (b"bucket/key?versionId=a+b=", "bucket", "key", "a+b="),
        (b"bucket/" + b"a" * 1024, "bucket", "a" * 1024, None),
    ],
)
def test_sources(value: bytes, bucket: str, key: str, version: str | None) -> None:
    source = source_of(value)
    assert (source.bucket, source.key, source.version_id) == (bucket, key, version)
    assert source.raw_path == f"/{bucket}/{quote(key, safe='/')}"
    assert source.query == ("" if version is None else f"versionId={quote(version, safe='')}")
    asked = classify("GET", source.raw_path.encode(), source.query.encode(), [])
    assert (asked.bucket, asked.key, asked.parameter("versionId")) == (bucket, key, version)


NAMELESS = {
    ("InvalidArgument", 400): [
        *(b"", b"/", b"bucket", b"bucket/", b"/bucket/", b"bucket?versionId=1", b"bucket/a+b", b"bucket/%"),
        *(b"bucket/%zz", b"bucket/%ff", b"bucket/a%00b", b"bucket/key?", b"bucket/key?versionId"),
        *(b"//bucket/key", b"Bucket/key", b"../bucket/key", b"192.168.0.1/key"),
        *(b"bucket/key?versionId=", b"bucket/key?versionId=%zz", b"bucket/key?acl", b"bucket/a?b?versionId=1"),
    ],
    ("KeyTooLongError", 400): [b"bucket/" + b"a" * 1025],
    ("NotImplemented", 501): [
        b"arn:aws:s3:us-west-2:123456789012:accesspoint/name/object/key",
        b"arn%3Aaws%3As3%3Aus-west-2%3A123456789012%3Aaccesspoint%2Fname%2Fobject%2Fkey",
        b"/arn:aws:s3-outposts:us-west-2:123456789012:outpost/o/object/key",
    ],
}


@pytest.mark.parametrize("error", NAMELESS, ids=str)
def test_sources_that_name_nothing_or_an_access_point(error: tuple[str, int]) -> None:
    for value in NAMELESS[error]:
        assert refusal((b"x-amz-copy-source", value))[:2] == error, value


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


@pytest.mark.parametrize("name", [b"x-amz-metadata-directive", b"x-amz-tagging-directive"])
def test_unknown_directives_are_refused(name: bytes) -> None:
    assert refusal(SOURCE, (name, b"replace"))[:2] == ("InvalidArgument", 400)
    assert refusal(SOURCE, (name, b""))[:2] == ("InvalidArgument", 400)
    assert refusal(SOURCE, (name, b"COPY"), query=b"partNumber=1&uploadId=u")[:2] == ("NotImplemented", 501)
    assert refusal((name, b"COPY"))[:2] == ("NotImplemented", 501)


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
