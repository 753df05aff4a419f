"""Each request is taken for exactly what S3 takes it for, or refused."""

import pytest

from gateway.errors import GatewayError, StoreError, TokenMalformed
from gateway.fencing.headers import FencingHeaders
from gateway.fencing.token import Token
from gateway.objects.operations import Operation
from gateway.objects.request import S3Request, classify

Headers = list[tuple[bytes, bytes]]


def put(*headers: tuple[bytes, bytes]) -> S3Request:
    return classify("PUT", b"/bucket/key", b"", headers)


def refusal(method: str, path: bytes, query: bytes = b"", headers: Headers | None = None) -> tuple[str, int, str]:
    with pytest.raises(StoreError) as caught:
        classify(method, path, query, headers or [])
    return caught.value.s3_code, caught.value.status, caught.value.message


@pytest.mark.parametrize(
    ("method", "path", "query", "operation", "bucket", "key"),
    [
        ("GET", b"/", b"", Operation.LIST_BUCKETS, "", ""),
        ("GET", b"/", b"x-id=ListBuckets&max-buckets=5", Operation.LIST_BUCKETS, "", ""),
        ("HEAD", b"/bucket", b"", Operation.HEAD_BUCKET, "bucket", ""),
        ("HEAD", b"/bucket/", b"", Operation.HEAD_BUCKET, "bucket", ""),
        ("GET", b"/bucket", b"location", Operation.GET_BUCKET_LOCATION, "bucket", ""),
        ("GET", b"/bucket", b"list-type=2&prefix=a%2Fb&encoding-type=url", Operation.LIST_OBJECTS_V2, "bucket", ""),
        ("GET", b"/bucket/", b"list-type=2&delimiter=%2F", Operation.LIST_OBJECTS_V2, "bucket", ""),
        ("GET", b"/bucket/a/b", b"", Operation.GET_OBJECT, "bucket", "a/b"),
        ("GET", b"/bucket/k", b"response-content-type=text%2Fplain&partNumber=1", Operation.GET_OBJECT, "bucket", "k"),
        ("HEAD", b"/bucket/k", b"versionId=3", Operation.HEAD_OBJECT, "bucket", "k"),
        ("PUT", b"/bucket/k", b"x-id=PutObject", Operation.PUT_OBJECT, "bucket", "k"),
        ("DELETE", b"/bucket/k", b"x-id=DeleteObject", Operation.DELETE_OBJECT, "bucket", "k"),
    ],
)
def test_what_is_served(method: str, path: bytes, query: bytes, operation: Operation, bucket: str, key: str) -> None:
    request = classify(method, path, query, [])
    assert (request.operation, request.bucket, request.key) == (operation, bucket, key)
    assert request.operation.writes == (method in ("PUT", "DELETE"))


@pytest.mark.parametrize(
    ("method", "path", "query", "name"),
    [
        ("GET", b"/bucket", b"", "ListObjects"),
        ("GET", b"/bucket", b"prefix=a&marker=b", "ListObjects"),
        ("GET", b"/bucket", b"prefix=a&other=b", "GET with the query parameter 'other'"),
        ("GET", b"/bucket", b"list-type=3", "ListObjects"),
        ("PUT", b"/bucket", b"", "CreateBucket"),
        ("DELETE", b"/bucket", b"", "DeleteBucket"),
        ("POST", b"/bucket", b"", "PostObject"),
        ("POST", b"/bucket", b"delete", "DeleteObjects"),
        ("GET", b"/bucket", b"uploads", "ListMultipartUploads"),
        ("GET", b"/bucket", b"versions", "ListObjectVersions"),
        ("GET", b"/bucket", b"versioning", "GetBucketVersioning"),
        ("PUT", b"/bucket", b"lifecycle", "PutBucketLifecycle"),
        ("PUT", b"/bucket", b"policy", "PutBucketPolicy"),
        ("DELETE", b"/bucket", b"publicAccessBlock", "DeleteBucketPublicAccessBlock"),
        ("POST", b"/bucket/k", b"uploads", "CreateMultipartUpload"),
        ("PUT", b"/bucket/k", b"partNumber=1&uploadId=x", "UploadPart"),
        ("POST", b"/bucket/k", b"uploadId=x", "CompleteMultipartUpload"),
        ("DELETE", b"/bucket/k", b"uploadId=x", "AbortMultipartUpload"),
        ("GET", b"/bucket/k", b"uploadId=x", "ListParts"),
        ("POST", b"/bucket/k", b"restore", "RestoreObject"),
        ("POST", b"/bucket/k", b"select&select-type=2", "SelectObjectContent"),
        ("GET", b"/bucket/k", b"acl", "GetObjectAcl"),
        ("PUT", b"/bucket/k", b"acl", "PutObjectAcl"),
        ("PUT", b"/bucket/k", b"tagging", "PutObjectTagging"),
        ("PUT", b"/bucket/k", b"tagging=", "PutObjectTagging"),
        ("PUT", b"/bucket/k", b"%74agging", "PutObjectTagging"),
        ("DELETE", b"/bucket/k", b"tagging", "DeleteObjectTagging"),
        ("PUT", b"/bucket/k", b"retention", "PutObjectRetention"),
        ("PUT", b"/bucket/k", b"legal-hold", "PutObjectLegalHold"),
        ("PUT", b"/bucket/k", b"encryption", "UpdateObjectEncryption"),
        ("PUT", b"/bucket/k", b"renameObject", "RenameObject"),
        ("GET", b"/bucket/k", b"attributes", "GetObjectAttributes"),
        ("DELETE", b"/bucket/k", b"versionId=3", "DeleteObject of a version"),
        ("PUT", b"/bucket/k", b"versionId=3", "PUT with the query parameter 'versionId'"),
        ("PUT", b"/bucket/k", b"If-Match=x", "PUT with the query parameter 'If-Match'"),
        ("GET", b"/bucket/k", b"anything", "GET with the query parameter 'anything'"),
        ("PATCH", b"/bucket/k", b"", "PATCH on this path"),
        ("OPTIONS", b"/bucket/k", b"", "OPTIONS on this path"),
        ("put", b"/bucket/k", b"", "put on this path"),
        ("PUT", b"/", b"", "PUT on this path"),
        ("HEAD", b"/", b"", "HEAD on this path"),
    ],
)
def test_everything_else_is_refused_by_name(method: str, path: bytes, query: bytes, name: str) -> None:
    code, status, message = refusal(method, path, query)
    assert (code, status) == ("NotImplemented", 501)
    assert message.startswith(name)


@pytest.mark.parametrize(
    "header", [b"x-amz-copy-source", b"X-Amz-Copy-Source", b"x_amz_copy_source", b"x-amz-copy-source-if-match"]
)
def test_a_copy_is_never_taken_for_a_put(header: bytes) -> None:
    code, status, message = refusal("PUT", b"/bucket/k", b"", [(header, b"other/key")])
    assert (code, status) == ("NotImplemented", 501)
    assert message.startswith("CopyObject")
    assert refusal("PUT", b"/bucket/k", b"uploadId=x", [(header, b"other/key")])[2].startswith("UploadPartCopy")


@pytest.mark.parametrize(
    ("wire", "key", "raw_key"),
    [
        (b"a//b", "a//b", "a//b"),
        (b"/lead", "/lead", "/lead"),
        (b"tail/", "tail/", "tail/"),
        (b"a/../b", "a/../b", "a/../b"),
        (b"..", "..", ".."),
        (b"../other/k", "../other/k", "../other/k"),
        (b"%2E%2E/k", "../k", "../k"),
        (b"./a/.", "./a/.", "./a/."),
        (b"a%2Fb", "a/b", "a/b"),
        (b"a+b", "a+b", "a%2Bb"),
        (b"a%2Bb", "a+b", "a%2Bb"),
        (b"a%20b", "a b", "a%20b"),
        (b"%20", " ", "%20"),
        (b"100%25", "100%", "100%25"),
        (b"a%252Fb", "a%2Fb", "a%252Fb"),
        (b"%c3%a9", "é", "%C3%A9"),
        (b"e%CC%81", "e\u0301", "e%CC%81"),
        ("é".encode(), "é", "%C3%A9"),
        (b"a%3Fb%23c", "a?b#c", "a%3Fb%23c"),
        (b"a;b=c&d", "a;b=c&d", "a%3Bb%3Dc%26d"),
        (b"~user", "~user", "~user"),
        (b"line%0Abreak", "line\nbreak", "line%0Abreak"),
    ],
)
def test_keys_are_kept_byte_for_byte(wire: bytes, key: str, raw_key: str) -> None:
    request = classify("PUT", b"/bucket/" + wire, b"", [])
    assert (request.key, request.raw_key, request.raw_path) == (key, raw_key, f"/bucket/{raw_key}")
    again = classify("PUT", request.raw_path.encode(), b"", [])
    assert again.key == key


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (b"/bucket/%ff", ("InvalidURI", 400)),
        (b"/bucket/%ED%A0%80", ("InvalidURI", 400)),
        (b"/bucket/%C0%AF", ("InvalidURI", 400)),
        (b"/bucket/a%00b", ("InvalidURI", 400)),
        (b"/bucket/a%zz", ("InvalidURI", 400)),
        (b"/bucket/a%2", ("InvalidURI", 400)),
        (b"/bucket/a%", ("InvalidURI", 400)),
        (b"bucket/a", ("InvalidURI", 400)),
        (b"*", ("InvalidURI", 400)),
        (b"", ("InvalidURI", 400)),
        (b"//key", ("InvalidBucketName", 400)),
        (b"/ab/key", ("InvalidBucketName", 400)),
        (b"/" + b"a" * 64 + b"/key", ("InvalidBucketName", 400)),
        (b"/Bucket/key", ("InvalidBucketName", 400)),
        (b"/buc_ket/key", ("InvalidBucketName", 400)),
        (b"/-bucket/key", ("InvalidBucketName", 400)),
        (b"/bucket./key", ("InvalidBucketName", 400)),
        (b"/buc..ket/key", ("InvalidBucketName", 400)),
        (b"/../key", ("InvalidBucketName", 400)),
        (b"/.../key", ("InvalidBucketName", 400)),
        (b"/192.168.0.1/key", ("InvalidBucketName", 400)),
        (b"/bucket%2Fkey", ("InvalidBucketName", 400)),
        ("/bückét/key".encode(), ("InvalidBucketName", 400)),
        (b"/bucket/" + b"a" * 1025, ("KeyTooLongError", 400)),
        (b"/bucket/" + b"%C3%A9" * 513, ("KeyTooLongError", 400)),
    ],
)
def test_paths_that_name_nothing(path: bytes, expected: tuple[str, int]) -> None:
    assert refusal("PUT", path)[:2] == expected


def test_the_longest_key() -> None:
    assert len(classify("PUT", b"/bucket/" + b"a" * 1024, b"", []).key) == 1024


def test_the_query_is_sent_on_in_one_encoding() -> None:
    request = classify("GET", b"/bucket", b"list-type=2&prefix=a+b%2b%C3%A9&start-after=&x-id=ListObjectsV2", [])
    assert request.parameters == (("list-type", "2"), ("prefix", "a b+é"), ("start-after", ""))
    assert request.query == "list-type=2&prefix=a%20b%2B%C3%A9&start-after="


@pytest.mark.parametrize(
    "query", [b"list-type=2&prefix=a&prefix=b", b"list-type=2&list-type=1", b"prefix=a&%70refix=b"]
)
def test_a_parameter_that_stands_twice_is_refused(query: bytes) -> None:
    assert refusal("GET", b"/bucket", query)[:2] == ("InvalidArgument", 400)


def test_a_query_that_is_not_utf8() -> None:
    assert refusal("GET", b"/bucket", b"list-type=2&prefix=%ff")[:2] == ("InvalidURI", 400)


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ([], FencingHeaders()),
        ([(b"fencing-token", b"2.7"), (b"fencing-holder", b"w1")], FencingHeaders(Token(2, 7), None, "w1")),
        ([(b"x-amz-meta-fencing-token", b"7")], FencingHeaders(Token(0, 7))),
        (
            [(b"X-Amz-Meta-Fencing-Token", b"7"), (b"x-amz-meta-fencing-holder", b"w1")],
            FencingHeaders(Token(0, 7), None, "w1"),
        ),
        (
            [(b"x-amz-meta-fencing-token", b"7"), (b"fencing-resource", b"s3/bucket/key")],
            FencingHeaders(Token(0, 7), "s3/bucket/key"),
        ),
        ([(b"fencing-token", b"9"), (b"x-amz-meta-fencing-token", b"7")], FencingHeaders(Token(0, 9))),
        (
            [(b"fencing-token", b"9"), (b"x-amz-meta-fencing-token", b"7"), (b"x-amz-meta-fencing-holder", b"old")],
            FencingHeaders(Token(0, 9)),
        ),
        ([(b"x-amz-meta-fencing-token", b"7"), (b"fencing-holder", b"w1")], FencingHeaders(Token(0, 7), None, "w1")),
    ],
)
def test_the_token_comes_by_header_or_by_metadata(headers: Headers, expected: FencingHeaders) -> None:
    request = put(*headers)
    assert request.fencing == expected
    assert request.headers == ()


@pytest.mark.parametrize(
    "headers",
    [
        [(b"fencing-token", b"5"), (b"fencing-token", b"6")],
        [(b"fencing-token", b"5"), (b"x-fencing-token", b"5")],
        [(b"fencing-token", b"5"), (b"fencing_token", b"5")],
        [(b"fencing-token", b"05")],
        [(b"fencing-token", b"-5")],
        [(b"x-amz-meta-fencing-token", b"five")],
        [(b"x-amz-meta-fencing-token", b"5"), (b"X-Amz-Meta-Fencing-Token", b"6")],
    ],
)
def test_tokens_that_cannot_be_read(headers: Headers) -> None:
    with pytest.raises(GatewayError) as caught:
        put(*headers)
    assert caught.value.status == 400
    assert isinstance(caught.value, TokenMalformed | StoreError)


def test_metadata_are_no_token_on_other_operations() -> None:
    assert classify("GET", b"/bucket/k", b"", [(b"x-amz-meta-fencing-token", b"7")]).fencing == FencingHeaders()
    assert refusal("DELETE", b"/bucket/k", b"", [(b"x-amz-meta-fencing-token", b"7")])[0] == "NotImplemented"


def test_what_goes_to_the_store_with_a_put() -> None:
    request = put(
        (b"Host", b"gateway"),
        (b"Authorization", b"secret"),
        (b"Content-Type", b"text/plain"),
        (b"Cache-Control", b"no-cache"),
        (b"Content-Encoding", b"gzip, aws-chunked"),
        (b"Content-Length", b"5"),
        (b"x-amz-meta-owner", "é".encode()),
        (b"x-amz-meta-my_key", b"1"),
        (b"x-amz-meta-fencing-write-id", b"forged"),
        (b"x-amz-meta-fencing-tombstone", b"true"),
        (b"x-amz-storage-class", b"STANDARD_IA"),
        (b"x-amz-tagging", b"a=b"),
        (b"x-amz-date", b"20130524T000000Z"),
        (b"x-amz-content-sha256", b"UNSIGNED-PAYLOAD"),
        (b"x-amz-sdk-checksum-algorithm", b"CRC32"),
        (b"x-amz-checksum-crc32", b"AAAAAA=="),
        (b"x-amz-decoded-content-length", b"5"),
        (b"amz-sdk-invocation-id", b"1"),
        (b"User-Agent", b"boto3"),
        (b"X-Forwarded-For", b"10.0.0.1"),
    )
    assert request.headers == (
        ("content-type", "text/plain"),
        ("cache-control", "no-cache"),
        ("content-encoding", "gzip"),
        ("x-amz-meta-owner", "é"),
        ("x-amz-meta-my_key", "1"),
        ("x-amz-storage-class", "STANDARD_IA"),
        ("x-amz-tagging", "a=b"),
    )


def test_a_body_that_is_only_chunked_has_no_encoding() -> None:
    assert put((b"content-encoding", b"aws-chunked")).headers == ()
    assert put((b"content-encoding", b"AWS-Chunked,")).headers == ()


@pytest.mark.parametrize(
    "header",
    [
        b"x-amz-if-match-size",
        b"x-amz-if-match-last-modified-time",
        b"x-amz-write-offset-bytes",
        b"x-amz-server-side-encryption-customer-key",
        b"x-amz-mfa",
        b"x-amz-bypass-governance-retention",
        b"x-amz-request-payer",
        b"x-amz-anything-new",
    ],
)
@pytest.mark.parametrize("method", ["PUT", "DELETE"])
def test_no_header_of_a_write_is_dropped_silently(method: str, header: bytes) -> None:
    code, status, message = refusal(method, b"/bucket/k", b"", [(header, b"1")])
    assert (code, status) == ("NotImplemented", 501)
    assert header.decode() in message


def test_what_goes_to_the_store_with_a_read() -> None:
    headers = [(b"range", b"bytes=0-9"), (b"if-none-match", b'"e"'), (b"x-amz-checksum-mode", b"ENABLED")]
    ignored = [(b"fencing-token", b"5"), (b"x-amz-anything-new", b"1"), (b"accept-encoding", b"gzip")]
    request = classify("GET", b"/bucket/k", b"", headers + ignored)
    assert request.headers == tuple((name.decode(), value.decode()) for name, value in headers)
    assert request.condition is None


@pytest.mark.parametrize("method", ["PUT", "DELETE"])
@pytest.mark.parametrize(
    ("headers", "token", "holder"),
    [
        ([(b"x-amz-security-token", b"fencing-token=34")], 34, None),
        ([(b"x-amz-security-token", b"fencing-token=34&fencing-holder=host%207")], 34, "host 7"),
        ([(b"x-amz-security-token", b"fencing-token=34&fencing-holder=a"), (b"fencing-token", b"35")], 35, None),
    ],
)
def test_a_session_token_can_carry_the_fencing_token(
    method: str, headers: list[tuple[bytes, bytes]], token: int, holder: str | None
) -> None:
    fencing = classify(method, b"/bucket/k", b"", headers).fencing
    assert fencing.token is not None
    assert (fencing.token.value, fencing.holder) == (token, holder)


def test_metadata_come_before_the_session_token() -> None:
    headers = [(b"x-amz-security-token", b"fencing-token=34"), (b"x-amz-meta-fencing-token", b"35")]
    fencing = classify("PUT", b"/bucket/k", b"", headers).fencing
    assert fencing.token is not None
    assert fencing.token.value == 35


@pytest.mark.parametrize(
    "token", [b"t", b"", b"fencing-token", b"fencing-token=1&fencing-token=2&x=3", b"fencing-token=1&role=admin"]
)
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
def test_other_session_tokens_are_refused(method: str, token: bytes) -> None:
    assert refusal(method, b"/bucket/k", b"", [(b"x-amz-security-token", token)])[:2] == ("InvalidToken", 400)


@pytest.mark.parametrize("name", [b"content-type", b"if-match", b"x-amz-meta-a", b"cache-control"])
def test_a_header_that_stands_twice_is_refused(name: bytes) -> None:
    assert refusal("PUT", b"/bucket/k", b"", [(name, b"a"), (name.upper(), b"a")])[:2] == ("InvalidRequest", 400)


def test_a_header_that_is_not_utf8_is_refused() -> None:
    assert refusal("PUT", b"/bucket/k", b"", [(b"x-amz-meta-a", b"\xff")])[:2] == ("InvalidRequest", 400)
