"""A presigned request says in its query what others say in headers. All of it is signed."""

import pytest

from gateway.errors import StoreError
from gateway.objects.s3.conditions import Expect, WriteCondition
from gateway.objects.s3.operations import Operation
from gateway.objects.s3.request import S3Request, classify

Headers = list[tuple[bytes, bytes]]

AUTHENTICATION = (
    b"X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AK%2F20130524%2Fus-east-1%2Fs3%2Faws4_request"
    b"&X-Amz-Date=20130524T000000Z&X-Amz-Expires=600&X-Amz-SignedHeaders=host&X-Amz-Signature=00"
)


def presigned(method: str, query: bytes, *headers: tuple[bytes, bytes]) -> S3Request:
    return classify(method, b"/bucket/k", AUTHENTICATION + b"&" + query, headers)


def test_authentication_in_the_query_is_not_sent_on() -> None:
    request = presigned("GET", b"versionId=3&x-id=GetObject&response-content-type=text%2Fplain")
    assert request.operation is Operation.GET_OBJECT
    assert request.parameters == (("versionId", "3"), ("response-content-type", "text/plain"))


def test_headers_in_the_query_of_a_presigned_request_are_headers() -> None:
    request = presigned(
        "PUT",
        b"x-amz-acl=private&X-Amz-Meta-Owner=a+b&x-amz-tagging=a%3Db&X-Amz-Storage-Class=STANDARD_IA"
        b"&x-amz-server-side-encryption=AES256&x-amz-checksum-crc32=AAAAAA%3D%3D&x-amz-sdk-checksum-algorithm=CRC32"
        b"&X-Amz-Content-Sha256=UNSIGNED-PAYLOAD&x-amz-meta-fencing-write-id=forged&If-None-Match=*",
        (b"content-type", b"text/plain"),
    )
    assert request.headers == (
        ("content-type", "text/plain"),
        ("x-amz-acl", "private"),
        ("x-amz-meta-owner", "a b"),
        ("x-amz-tagging", "a=b"),
        ("x-amz-storage-class", "STANDARD_IA"),
        ("x-amz-server-side-encryption", "AES256"),
    )
    assert dict(request.hoisted)["x-amz-checksum-crc32"] == "AAAAAA=="
    assert request.condition == WriteCondition(Expect.ABSENT)
    assert request.parameters == ()


def test_a_copy_can_be_presigned() -> None:
    request = presigned("PUT", b"x-amz-copy-source=bucket%2Fa%252Fb&x-amz-metadata-directive=REPLACE")
    assert request.operation is Operation.COPY_OBJECT
    assert request.source is not None
    assert (request.source.key, request.source.replace_metadata) == ("a/b", True)
    with pytest.raises(StoreError):
        presigned("GET", b"x-amz-copy-source=bucket%2Fk")


@pytest.mark.parametrize("name", ["if-match", "If-None-Match", "If-Modified-Since", "if-unmodified-since"])
def test_conditions_of_a_presigned_read_go_to_the_store(name: str) -> None:
    assert presigned("GET", f"{name}=%22e%22".encode()).headers == ((name.lower(), '"e"'),)


@pytest.mark.parametrize(
    "query",
    [
        b"x-amz-acl=private",
        b"X-Amz-Meta-Owner=a",
        b"x-amz-copy-source=bucket%2Fother",
        b"x-amz-meta-fencing-token=9",
        b"If-Match=%22e%22",
        b"if-none-match=*",
        b"X-Amz-Date=20130524T000000Z",
        b"X-Amz-Signature=00",
        b"X-Amz-Security-Token=fencing-token%3D9",
        b"x-amz-algorithm=AWS4-HMAC-SHA256&x-amz-acl=private",
    ],
)
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
def test_no_other_request_has_headers_in_its_query(method: str, query: bytes) -> None:
    with pytest.raises(StoreError) as caught:
        classify(method, b"/bucket/k", query, [])
    assert (caught.value.s3_code, caught.value.status) == ("NotImplemented", 501)


def test_a_request_signed_in_its_headers_is_not_presigned() -> None:
    with pytest.raises(StoreError) as caught:
        presigned("PUT", b"x-amz-acl=private", (b"Authorization", b"AWS4-HMAC-SHA256 Credential=..."))
    assert caught.value.status == 501


@pytest.mark.parametrize(
    ("query", "headers"),
    [
        (b"x-amz-acl=private", [(b"X-Amz-Acl", b"public-read")]),
        (b"X-AMZ-ACL=private", [(b"x-amz-acl", b"private")]),
        (b"If-Match=a", [(b"if-match", b"a")]),
        (b"x-amz-meta-fencing-token=5", [(b"x-amz-meta-fencing-token", b"5")]),
        (b"x-amz-acl=private&X-Amz-Acl=private", []),
        (b"x-amz-meta-a=1&x-amz-meta-%61=1", []),
        (b"If-Match=a&if-match=a", []),
    ],
)
def test_a_header_in_the_query_and_in_the_head_is_refused(query: bytes, headers: Headers) -> None:
    with pytest.raises(StoreError) as caught:
        presigned("PUT", query, *headers)
    assert caught.value.status == 400


@pytest.mark.parametrize(
    "query",
    [
        b"x-amz-meta-a=1%0D%0AHost:%20other",
        b"x-amz-meta-a=1%0A",
        b"x-amz-meta-a=%7F",
        b"x-amz-meta-a%0D%0AHost:other%0D%0Ab=1",
        b"x-amz-meta-a:b=1",
        b"x-amz-meta-%C3%A9=1",
        b"x-amz-meta-a%20b=1",
        b"If-Match=%0D%0Aa",
    ],
)
@pytest.mark.parametrize("method", ["GET", "PUT"])
def test_a_parameter_that_cannot_be_a_header_is_refused(method: str, query: bytes) -> None:
    with pytest.raises(StoreError) as caught:
        presigned(method, query)
    assert (caught.value.s3_code, caught.value.status) == ("InvalidArgument", 400)


@pytest.mark.parametrize(
    "query",
    [
        b"x-amz-signature=00",
        b"x-amz-expires=1",
        b"X-AMZ-DATE=20130524T000000Z",
        b"x-amz-security-token=fencing-token%3D9",
        b"x-amz-content-sha256=UNSIGNED-PAYLOAD",
        b"X-Amz-Anything-New=1",
        b"x_amz_acl=private",
        b"x-amz-mfa=1",
        b"content-type=text%2Fplain",
        b"Content-MD5=x",
        b"Host=other",
        b"AWSAccessKeyId=AK&Signature=s&Expires=1",
    ],
)
def test_headers_that_a_presigned_write_cannot_have(query: bytes) -> None:
    with pytest.raises(StoreError) as caught:
        presigned("PUT", query)
    assert (caught.value.s3_code, caught.value.status) == ("NotImplemented", 501)
