"""A bucket is named by the path or, for the configured domains, by the host. Keys are kept as they come."""

import pytest

from gateway.errors import StoreError
from gateway.objects.s3.addressing import bucket_of_host
from gateway.objects.s3.operations import Operation
from gateway.objects.s3.request import S3Request, classify

DOMAINS = ("s3.example.com", "eu.s3.example.com", "localhost")


def classify_hosted(method: str, path: bytes, query: bytes, headers: list[tuple[bytes, bytes]]) -> S3Request:
    return classify(method, path, query, headers, bucket_of_host(headers, DOMAINS))


@pytest.mark.parametrize(
    ("host", "bucket"),
    [
        (b"bucket.s3.example.com", "bucket"),
        (b"bucket.s3.example.com:8080", "bucket"),
        (b"bucket.s3.example.com.", "bucket"),
        (b"bucket.s3.example.com.:443", "bucket"),
        (b"Bucket.S3.Example.COM", "bucket"),
        (b" bucket.s3.example.com ", "bucket"),
        (b"dotted.bucket.s3.example.com", "dotted.bucket"),
        (b"bucket.eu.s3.example.com", "bucket"),
        (b"dotted.bucket.eu.s3.example.com", "dotted.bucket"),
        (b"bucket.localhost:9000", "bucket"),
        (b".s3.example.com", ""),
        (b"buc_ket.s3.example.com", "buc_ket"),
        (b"s3.example.com", None),
        (b"s3.example.com:8080", None),
        (b"eu.s3.example.com", None),
        (b"localhost", None),
        (b"bucket.s3.example.com.evil", None),
        (b"bucket.s3.example.com.evil.org", None),
        (b"buckets3.example.com", None),
        (b"bucket.s3.example.com@evil", None),
        (b"bucket.s3.example.com:80:80", None),
        (b"bucket.s3.example.com/x", None),
        (b"bucket.s3.example.com:http", None),
        (b"example.com", None),
        (b"127.0.0.1:8080", None),
        (b"[::1]:8080", None),
        (b"", None),
        ("bücket.example".encode(), None),
    ],
)
def test_the_bucket_in_a_host(host: bytes, bucket: str | None) -> None:
    assert bucket_of_host([(b"HOST", host)], DOMAINS) == bucket


@pytest.mark.parametrize(
    "alias", ["orders-a1b2c3-s3alias", "orders--op-s3", "orders--ol-s3", "o--az1--xa-s3", "m1.mrap"]
)
def test_the_alias_of_an_access_point_is_another_name_of_a_bucket(alias: str) -> None:
    """A caller that is refused for the bucket could otherwise write its objects by the other name."""
    for path, headers in ((f"/{alias}/key", []), ("/key", [(b"host", f"{alias}.localhost".encode())])):
        with pytest.raises(StoreError, match="alias of an access point") as raised:
            classify_hosted("PUT", path.encode(), b"", headers)
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
        ("PUT", b"//", Operation.PUT_OBJECT, "/"),
        ("PUT", b"/other/key", Operation.PUT_OBJECT, "other/key"),
        ("PUT", b"/../key", Operation.PUT_OBJECT, "../key"),
        ("PUT", b"/.", Operation.PUT_OBJECT, "."),
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


@pytest.mark.parametrize("host", [b"gateway:8080", b"localhost", b"bucket.localhost.evil", b"127.0.0.1"])
def test_the_path_names_the_bucket_for_every_other_host(host: bytes) -> None:
    request = classify_hosted("PUT", b"/bucket/key", b"", [(b"host", host)])
    assert (request.bucket, request.key) == ("bucket", "key")


@pytest.mark.parametrize(
    ("host", "path", "code"),
    [
        (b".localhost", b"/key", "InvalidBucketName"),
        (b"ab.localhost", b"/key", "InvalidBucketName"),
        (b"a..b.localhost", b"/key", "InvalidBucketName"),
        (b"192.168.0.1.localhost", b"/key", "InvalidBucketName"),
        (b"buc_ket.localhost", b"/key", "InvalidBucketName"),
        (b"a/b.localhost", b"/key", "InvalidBucketName"),
        (b"bucket%2E.localhost", b"/key", "InvalidBucketName"),
        (b"b\xc3\xbccket.localhost", b"/key", "InvalidBucketName"),
        (b"bucket.localhost", b"/a%00b", "InvalidURI"),
        (b"bucket.localhost", b"/%zz", "InvalidURI"),
        (b"bucket.localhost", b"/%ff", "InvalidURI"),
        (b"bucket.localhost", b"*", "InvalidURI"),
        (b"bucket.localhost", b"/" + b"a" * 1025, "KeyTooLongError"),
    ],
)
def test_hosts_and_paths_that_name_nothing(host: bytes, path: bytes, code: str) -> None:
    with pytest.raises(StoreError) as caught:
        classify_hosted("PUT", path, b"", [(b"host", host)])
    assert (caught.value.s3_code, caught.value.status) == (code, 400)


def test_two_hosts_are_refused() -> None:
    with pytest.raises(StoreError) as caught:
        classify_hosted("PUT", b"/k", b"", [(b"host", b"bucket.localhost"), (b"host", b"other.localhost")])
    assert caught.value.status == 400
