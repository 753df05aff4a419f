"""Each request is taken for exactly what S3 takes it for, or refused."""

import pytest

from gateway.errors import StoreError
from gateway.objects.s3.operations import Operation
from gateway.objects.s3.request import S3Request, classify

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
        ("DELETE", b"/bucket/k", b"versionId=3", Operation.DELETE_OBJECT, "bucket", "k"),
        ("GET", b"/bucket", b"", Operation.LIST_OBJECTS, "bucket", ""),
        ("GET", b"/bucket", b"prefix=a&marker=b", Operation.LIST_OBJECTS, "bucket", ""),
        ("GET", b"/bucket", b"uploads", Operation.LIST_MULTIPART_UPLOADS, "bucket", ""),
        ("GET", b"/bucket", b"versions", Operation.LIST_OBJECT_VERSIONS, "bucket", ""),
        ("GET", b"/bucket", b"versioning", Operation.GET_BUCKET_VERSIONING, "bucket", ""),
        ("PUT", b"/bucket", b"", Operation.CREATE_BUCKET, "bucket", ""),
        ("PUT", b"/bucket/", b"", Operation.CREATE_BUCKET, "bucket", ""),
        ("DELETE", b"/bucket", b"", Operation.DELETE_BUCKET, "bucket", ""),
        ("PUT", b"/bucket", b"lifecycle", Operation.PUT_BUCKET_LIFECYCLE_CONFIGURATION, "bucket", ""),
        ("PUT", b"/bucket", b"policy", Operation.PUT_BUCKET_POLICY, "bucket", ""),
        ("DELETE", b"/bucket", b"publicAccessBlock", Operation.DELETE_PUBLIC_ACCESS_BLOCK, "bucket", ""),
        ("POST", b"/bucket", b"", Operation.POST_OBJECT, "bucket", ""),
        ("POST", b"/bucket", b"delete", Operation.DELETE_OBJECTS, "bucket", ""),
        ("POST", b"/bucket/k", b"uploads", Operation.CREATE_MULTIPART_UPLOAD, "bucket", "k"),
        ("PUT", b"/bucket/k", b"partNumber=1&uploadId=x", Operation.UPLOAD_PART, "bucket", "k"),
        ("POST", b"/bucket/k", b"uploadId=x", Operation.COMPLETE_MULTIPART_UPLOAD, "bucket", "k"),
        ("DELETE", b"/bucket/k", b"uploadId=x", Operation.ABORT_MULTIPART_UPLOAD, "bucket", "k"),
        ("GET", b"/bucket/k", b"uploadId=x", Operation.LIST_PARTS, "bucket", "k"),
        ("POST", b"/bucket/k", b"restore", Operation.RESTORE_OBJECT, "bucket", "k"),
        ("GET", b"/bucket/k", b"acl", Operation.GET_OBJECT_ACL, "bucket", "k"),
        ("GET", b"/bucket/k", b"attributes", Operation.GET_OBJECT_ATTRIBUTES, "bucket", "k"),
        ("PUT", b"/bucket/k", b"acl", Operation.PUT_OBJECT_ACL, "bucket", "k"),
        ("PUT", b"/bucket/k", b"tagging", Operation.PUT_OBJECT_TAGGING, "bucket", "k"),
        ("PUT", b"/bucket/k", b"tagging=", Operation.PUT_OBJECT_TAGGING, "bucket", "k"),
        ("PUT", b"/bucket/k", b"%74agging", Operation.PUT_OBJECT_TAGGING, "bucket", "k"),
        ("PUT", b"/bucket/k", b"tagging&versionId=3", Operation.PUT_OBJECT_TAGGING, "bucket", "k"),
        ("DELETE", b"/bucket/k", b"tagging", Operation.DELETE_OBJECT_TAGGING, "bucket", "k"),
        ("PUT", b"/bucket/k", b"retention", Operation.PUT_OBJECT_RETENTION, "bucket", "k"),
        ("PUT", b"/bucket/k", b"legal-hold", Operation.PUT_OBJECT_LEGAL_HOLD, "bucket", "k"),
    ],
)
def test_the_served_operations_are_recognised(
    method: str, path: bytes, query: bytes, operation: Operation, bucket: str, key: str
) -> None:
    request = classify(method, path, query, [])
    assert (request.operation, request.bucket, request.key) == (operation, bucket, key)
    assert (request.operation.method, request.source, request.hoisted) == (method, None, ())


@pytest.mark.parametrize(
    ("method", "query", "amends"),
    [
        ("PUT", b"", False),
        ("PUT", b"tagging", True),
        ("DELETE", b"", False),
        ("DELETE", b"versionId=3", True),
        ("DELETE", b"uploadId=x", False),
        ("POST", b"uploadId=x", False),
        ("POST", b"restore&versionId=3", True),
        ("GET", b"versionId=3", False),
    ],
)
def test_amendments_are_under_no_condition(method: str, query: bytes, *, amends: bool) -> None:
    assert classify(method, b"/bucket/k", query, []).amends == amends


@pytest.mark.parametrize(
    ("method", "path", "query"),
    [
        ("PUT", b"/bucket/k", b"uploadId=&partNumber=1"),
        ("PUT", b"/bucket/k", b"uploadId=x&partNumber"),
        ("DELETE", b"/bucket/k", b"uploadId"),
        ("DELETE", b"/bucket/k", b"versionId="),
        ("POST", b"/bucket/k", b"uploadId="),
        ("PUT", b"/bucket/k", b"annotation&annotationName="),
        ("PUT", b"/bucket", b"analytics&id="),
        ("GET", b"/bucket", b"list-type="),
        ("PUT", b"/bucket/k", b"uploadId=x&partNumber=0"),
        ("PUT", b"/bucket/k", b"uploadId=x&partNumber=01"),
        ("PUT", b"/bucket/k", b"uploadId=x&partNumber=-1"),
        ("PUT", b"/bucket/k", b"uploadId=x&partNumber=10001"),
        ("PUT", b"/bucket/k", b"uploadId=x&partNumber=one"),
        ("PUT", b"/bucket/k", b"uploadId=x&partNumber=%D9%A1"),
        ("GET", b"/bucket/k", b"partNumber=1x"),
    ],
)
def test_a_store_could_take_an_empty_value_for_none(method: str, path: bytes, query: bytes) -> None:
    assert refusal(method, path, query)[:2] == ("InvalidArgument", 400)


@pytest.mark.parametrize("number", [b"1", b"10", b"9999", b"10000"])
def test_part_numbers(number: bytes) -> None:
    request = classify("PUT", b"/bucket/k", b"uploadId=x&partNumber=" + number, [])
    assert (request.parameter("partNumber"), request.parameter("uploadId")) == (number.decode(), "x")
    assert request.parameter("versionId") is None


@pytest.mark.parametrize(
    ("method", "path", "query", "name"),
    [
        ("GET", b"/bucket", b"prefix=a&other=b", "ListObjects with the query parameter 'other'"),
        ("GET", b"/bucket", b"list-type=3", "ListObjects"),
        ("GET", b"/bucket", b"list-type=1", "ListObjects"),
        ("GET", b"/bucket", b"list-type=2&marker=a", "ListObjectsV2 with the query parameter 'marker'"),
        ("GET", b"/bucket", b"uploads&versions", "ListMultipartUploads with the query parameter 'versions'"),
        ("POST", b"/bucket", b"delete&uploads", "DeleteObjects with the query parameter 'uploads'"),
        ("PUT", b"/bucket", b"acl&policy", "PutBucketAcl with the query parameter 'policy'"),
        ("PUT", b"/bucket", b"other", "CreateBucket with the query parameter 'other'"),
        ("POST", b"/bucket/k", b"select&select-type=2", "SelectObjectContent"),
        ("POST", b"/bucket/k", b"uploads&uploadId=x", "CompleteMultipartUpload with the query parameter 'uploads'"),
        ("PUT", b"/bucket/k", b"uploadId=x", "PutObject with the query parameter 'uploadId'"),
        ("PUT", b"/bucket/k", b"partNumber=1", "PutObject with the query parameter 'partNumber'"),
        ("PUT", b"/bucket/k", b"tagging&uploadId=x&partNumber=1", "UploadPart with the query parameter 'tagging'"),
        ("DELETE", b"/bucket/k", b"tagging&uploadId=x", "DeleteObjectTagging with the query parameter 'uploadId'"),
        (
            "DELETE",
            b"/bucket/k",
            b"uploadId=x&versionId=3",
            "AbortMultipartUpload with the query parameter 'versionId'",
        ),
        ("DELETE", b"/bucket/k", b"acl", "DeleteObject with the query parameter 'acl'"),
        ("PUT", b"/bucket/k", b"Tagging", "PutObject with the query parameter 'Tagging'"),
        ("PUT", b"/bucket/k", b"encryption", "UpdateObjectEncryption"),
        ("PUT", b"/bucket/k", b"renameObject", "RenameObject"),
        ("PUT", b"/bucket/k", b"append", "AppendObject"),
        ("GET", b"/bucket/k", b"torrent", "GetObjectTorrent"),
        ("HEAD", b"/bucket/k", b"tagging", "HeadObject with the query parameter 'tagging'"),
        ("PUT", b"/bucket/k", b"versionId=3", "PutObject with the query parameter 'versionId'"),
        ("PUT", b"/bucket/k", b"If-Match=x", "PutObject with the query parameter 'If-Match'"),
        ("PUT", b"/bucket/k", b"X-Id=PutObject", "PutObject with the query parameter 'X-Id'"),
        ("GET", b"/bucket/k", b"anything", "GetObject with the query parameter 'anything'"),
        ("POST", b"/bucket/k", b"", "POST on this path"),
        ("POST", b"/", b"delete", "POST on this path"),
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
    request = classify("GET", b"/bucket", b"list-type=2&prefix=a+b%2b%C3%A9&start-after=&x-id=ListObjectsV2&&", [])
    assert request.parameters == (("list-type", "2"), ("prefix", "a b+é"), ("start-after", ""))
    assert request.query == "list-type=2&prefix=a%20b%2B%C3%A9&start-after="


@pytest.mark.parametrize(
    "query",
    [b"list-type=2&prefix=a&prefix=b", b"list-type=2&list-type=1", b"prefix=a&%70refix=b", b"x-id=a&x-id=b"],
)
def test_a_parameter_that_stands_twice_is_refused(query: bytes) -> None:
    assert refusal("GET", b"/bucket", query)[:2] == ("InvalidArgument", 400)


def test_a_query_that_is_not_utf8() -> None:
    assert refusal("GET", b"/bucket", b"list-type=2&prefix=%ff")[:2] == ("InvalidURI", 400)


def test_the_forwarded_headers_of_a_put() -> None:
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
        b"x-amz-rename-source",
        b"x-amz-anything-new",
    ],
)
@pytest.mark.parametrize("method", ["PUT", "DELETE"])
def test_no_header_of_a_write_is_dropped_silently(method: str, header: bytes) -> None:
    code, status, message = refusal(method, b"/bucket/k", b"", [(header, b"1")])
    assert (code, status) == ("NotImplemented", 501)
    assert header.decode() in message


def test_the_forwarded_headers_of_a_read() -> None:
    headers = [(b"range", b"bytes=0-9"), (b"if-none-match", b'"e"'), (b"x-amz-checksum-mode", b"ENABLED")]
    ignored = [(b"fencing-token", b"5"), (b"x-amz-anything-new", b"1"), (b"accept-encoding", b"gzip")]
    request = classify("GET", b"/bucket/k", b"", headers + ignored)
    assert request.headers == tuple((name.decode(), value.decode()) for name, value in headers)
    assert request.condition is None


@pytest.mark.parametrize("name", [b"content-type", b"if-match", b"x-amz-meta-a", b"cache-control"])
def test_a_header_that_stands_twice_is_refused(name: bytes) -> None:
    assert refusal("PUT", b"/bucket/k", b"", [(name, b"a"), (name.upper(), b"a")])[:2] == ("InvalidRequest", 400)


def test_a_header_that_is_not_utf8_is_refused() -> None:
    assert refusal("PUT", b"/bucket/k", b"", [(b"x-amz-meta-a", b"\xff")])[:2] == ("InvalidRequest", 400)
