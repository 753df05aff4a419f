"""Each request is taken for exactly what S3 takes it for, or refused by name.

Operations are those of the model that S3's own clients are made from; requests, those that boto3 really sends.
"""

import io
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Any
from urllib.parse import urlsplit

import boto3
import botocore.session
import pytest
from botocore import xform_name
from botocore.awsrequest import AWSResponse
from botocore.compat import HTTPHeaders
from botocore.config import Config

from gateway.auth.principal import Principal
from gateway.auth.sigv4 import PayloadMode, RequestHead, VerifiedSignature, verify
from gateway.errors import StoreError
from gateway.fencing.token import Token
from gateway.objects.body.intake import Inspection, VerifiedBody, whole
from gateway.objects.s3.addressing import bucket_of_host
from gateway.objects.s3.operations import Level, Operation, OperationKind, recognise
from gateway.objects.s3.request import S3Request, classify
from tests.tiers import first

Headers = list[tuple[bytes, bytes]]


def refusal(method: str, path: bytes, query: bytes = b"", headers: Headers | None = None) -> tuple[str, int, str]:
    with pytest.raises(StoreError) as caught:
        classify(method, path, query, headers or [])
    return caught.value.s3_code, caught.value.status, caught.value.message


@pytest.mark.parametrize(
    ("method", "path", "query", "operation", "bucket", "key"),
    [
        ("GET", b"/", b"x-id=ListBuckets&max-buckets=5", Operation.LIST_BUCKETS, "", ""),
        ("HEAD", b"/bucket/", b"", Operation.HEAD_BUCKET, "bucket", ""),
        ("GET", b"/bucket/", b"list-type=2&delimiter=%2F", Operation.LIST_OBJECTS_V2, "bucket", ""),
        ("GET", b"/bucket", b"prefix=a&marker=b", Operation.LIST_OBJECTS, "bucket", ""),
        ("GET", b"/bucket/k", b"response-content-type=text%2Fplain&partNumber=1", Operation.GET_OBJECT, "bucket", "k"),
        ("PUT", b"/bucket/", b"", Operation.CREATE_BUCKET, "bucket", ""),
        ("POST", b"/bucket", b"", Operation.POST_OBJECT, "bucket", ""),
        ("PUT", b"/bucket/a/b", b"x-id=PutObject", Operation.PUT_OBJECT, "bucket", "a/b"),
        ("PUT", b"/bucket/k", b"tagging=", Operation.PUT_OBJECT_TAGGING, "bucket", "k"),
        ("PUT", b"/bucket/k", b"%74agging", Operation.PUT_OBJECT_TAGGING, "bucket", "k"),
        ("PUT", b"/bucket/k", b"tagging&versionId=3", Operation.PUT_OBJECT_TAGGING, "bucket", "k"),
    ],
)
def test_other_ways_to_write_an_operation_are_recognised(
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
    ("method", "path", "queries"),
    [
        ("PUT", b"/bucket/k", [b"uploadId=&partNumber=1", b"uploadId=x&partNumber", b"annotation&annotationName="]),
        ("DELETE", b"/bucket/k", [b"uploadId", b"versionId="]),
        ("POST", b"/bucket/k", [b"uploadId="]),
        ("PUT", b"/bucket", [b"analytics&id="]),
        ("GET", b"/bucket", [b"list-type="]),
        ("GET", b"/bucket/k", [b"partNumber=1x"]),
        (
            "PUT",
            b"/bucket/k",
            [f"uploadId=x&partNumber={one}".encode() for one in ("0", "01", "-1", "10001", "%D9%A1")],
        ),
    ],
)
def test_a_store_could_take_an_empty_value_for_none(method: str, path: bytes, queries: list[bytes]) -> None:
    for query in queries:
        assert refusal(method, path, query)[:2] == ("InvalidArgument", 400)


def test_the_largest_part_number_and_the_longest_key() -> None:
    request = classify("PUT", b"/bucket/" + b"a" * 1024, b"uploadId=x&partNumber=10000", [])
    assert (request.parameter("partNumber"), request.parameter("uploadId")) == ("10000", "x")
    assert (request.parameter("versionId"), len(request.key)) == (None, 1024)


@pytest.mark.parametrize(
    ("method", "path", "query", "name"),
    [
        ("GET", b"/bucket", b"prefix=a&other=b", "ListObjects with the query parameter 'other'"),
        ("GET", b"/bucket", b"list-type=3", "ListObjects"),
        ("GET", b"/bucket", b"list-type=2&marker=a", "ListObjectsV2 with the query parameter 'marker'"),
        ("GET", b"/bucket", b"uploads&versions", "ListMultipartUploads with the query parameter 'versions'"),
        ("PUT", b"/bucket", b"other", "CreateBucket with the query parameter 'other'"),
        ("POST", b"/bucket/k", b"uploads&uploadId=x", "CompleteMultipartUpload with the query parameter 'uploads'"),
        ("PUT", b"/bucket/k", b"uploadId=x", "PutObject with the query parameter 'uploadId'"),
        ("PUT", b"/bucket/k", b"tagging&uploadId=x&partNumber=1", "UploadPart with the query parameter 'tagging'"),
        ("DELETE", b"/bucket/k", b"tagging&uploadId=x", "DeleteObjectTagging with the query parameter 'uploadId'"),
        ("DELETE", b"/bucket/k", b"acl", "DeleteObject with the query parameter 'acl'"),
        ("PUT", b"/bucket/k", b"Tagging", "PutObject with the query parameter 'Tagging'"),
        ("PUT", b"/bucket/k", b"append", "AppendObject"),
        ("HEAD", b"/bucket/k", b"tagging", "HeadObject with the query parameter 'tagging'"),
        ("PUT", b"/bucket/k", b"versionId=3", "PutObject with the query parameter 'versionId'"),
        ("PUT", b"/bucket/k", b"If-Match=x", "PutObject with the query parameter 'If-Match'"),
        ("PUT", b"/bucket/k", b"X-Id=PutObject", "PutObject with the query parameter 'X-Id'"),
        ("POST", b"/bucket/k", b"", "POST on this path"),
        ("POST", b"/", b"delete", "POST on this path"),
        ("PATCH", b"/bucket/k", b"", "PATCH on this path"),
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


NAMELESS = {
    "InvalidURI": [
        *(b"/bucket/%ff", b"/bucket/%ED%A0%80", b"/bucket/%C0%AF", b"/bucket/a%00b", b"/bucket/a%zz", b"/bucket/a%2"),
        *(b"/bucket/a%", b"bucket/a", b"*", b""),
    ],
    "InvalidBucketName": [
        *(b"//key", b"/ab/key", b"/" + b"a" * 64 + b"/key", b"/Bucket/key", b"/buc_ket/key", b"/-bucket/key"),
        *(b"/bucket./key", b"/buc..ket/key", b"/../key", b"/.../key", b"/192.168.0.1/key", b"/bucket%2Fkey"),
        "/bückét/key".encode(),
    ],
    "KeyTooLongError": [b"/bucket/" + b"a" * 1025, b"/bucket/" + b"%C3%A9" * 513],
}


@pytest.mark.parametrize("code", NAMELESS)
def test_paths_that_name_nothing(code: str) -> None:
    for path in NAMELESS[code]:
        assert refusal("PUT", path)[:2] == (code, 400), path


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


def test_a_body_that_is_chunked_has_the_other_encodings_only() -> None:
    for written, left in ((b"aws-chunked", ()), (b"AWS-Chunked,", ()), (b"gzip, aws-chunked", ("gzip",))):
        headers = classify("PUT", b"/bucket/key", b"", [(b"content-encoding", written)]).headers
        assert headers == tuple(("content-encoding", one) for one in left)


def test_the_forwarded_headers_of_a_read() -> None:
    headers = [(b"range", b"bytes=0-9"), (b"if-none-match", b'"e"'), (b"x-amz-checksum-mode", b"ENABLED")]
    ignored = [(b"fencing-token", b"5"), (b"x-amz-anything-new", b"1"), (b"accept-encoding", b"gzip")]
    request = classify("GET", b"/bucket/k", b"", headers + ignored)
    assert request.headers == tuple((name.decode(), value.decode()) for name, value in headers)
    assert request.condition is None


@pytest.mark.parametrize("name", [b"content-type", b"if-match", b"x-amz-meta-a", b"cache-control"])
def test_a_header_that_stands_twice_is_refused(name: bytes) -> None:
    assert refusal("PUT", b"/bucket/k", b"", [(name, b"a"), (name.upper(), b"a")])[:2] == ("InvalidRequest", 400)


def test_what_is_not_utf8_is_refused() -> None:
    assert refusal("GET", b"/bucket", b"list-type=2&prefix=%ff")[:2] == ("InvalidURI", 400)
    assert refusal("PUT", b"/bucket/k", b"", [(b"x-amz-meta-a", b"\xff")])[:2] == ("InvalidRequest", 400)


MODEL = botocore.session.get_session().get_service_model("s3")


OLD_NAMES = {
    "GetBucketLifecycle": "GetBucketLifecycleConfiguration",
    "GetBucketNotification": "GetBucketNotificationConfiguration",
    "PutBucketLifecycle": "PutBucketLifecycleConfiguration",
    "PutBucketNotification": "PutBucketNotificationConfiguration",
}
"""Two names of one request."""


UNSERVED = {
    "CreateSession": "credentials of the store's own, for directory buckets",
    "GetObjectTorrent": "no store does it any more",
    "RenameObject": "directory buckets only",
    "SelectObjectContent": "closed to new customers of AWS; few other stores have it",
    "UpdateObjectEncryption": "may give an object another ETag, beside all conditions",
}


NOT_TOLD_APART = {
    "ListDirectoryBuckets": "ListBuckets of another endpoint, told from it by max-directory-buckets at most",
    "WriteGetObjectResponse": "sent to a host of its own, with a path that no bucket can have",
}


WRITES = {"CompleteMultipartUpload", "CopyObject", "DeleteObject", "DeleteObjects", "PostObject", "PutObject"}


AMENDMENTS = {
    *("DeleteObjectAnnotation", "DeleteObjectTagging", "PutObjectAcl", "PutObjectAnnotation", "PutObjectLegalHold"),
    *("PutObjectRetention", "PutObjectTagging", "RestoreObject"),
}


STAGING = {"AbortMultipartUpload", "CreateMultipartUpload", "UploadPart", "UploadPartCopy"}


def kind_of(name: str) -> OperationKind:
    if name in WRITES | AMENDMENTS:
        return OperationKind.WRITE
    if name in STAGING:
        return OperationKind.STAGING
    return OperationKind.READ if name.startswith(("Get", "Head", "List")) else OperationKind.ADMINISTRATION


def requests_of(name: str) -> list[S3Request]:
    """The operation with the parameters it has to have, then with all it may have; path style."""
    operation = MODEL.operation_model(name)
    path, _, markers = operation.http["requestUri"].partition("?")
    shape = operation.input_shape
    members: dict[str, Any] = {} if shape is None else shape.members
    required: list[str] = [] if shape is None else shape.required_members
    query = [marker if "=" in marker else f"{marker}=" for marker in markers.split("&") if marker]
    needed, possible = list(query), list(query)
    for member, of in members.items():
        if of.serialization.get("location") == "querystring":
            pair = f"{of.serialization['name']}=1"
            possible.append(pair)
            if member in required:
                needed.append(pair)
    raw_path = path.replace("{Bucket}", "bucket").replace("{Key+}", "key").encode()
    headers = [(b"x-amz-copy-source", b"bucket/other")] if name.endswith("Copy") or name == "CopyObject" else []
    return [
        classify(operation.http["method"], raw_path, "&".join(each).encode(), headers) for each in (needed, possible)
    ]


def test_every_operation_of_the_model_is_served_as_what_it_is(subtests: pytest.Subtests) -> None:
    for name in set(MODEL.operation_names) - UNSERVED.keys() - NOT_TOLD_APART.keys():
        with subtests.test(name=name):
            for request in requests_of(name):
                assert request.operation.value == OLD_NAMES.get(name, name)
                assert request.operation.kind is kind_of(request.operation)
                assert request.operation.writes == (request.operation in WRITES | AMENDMENTS)


@pytest.mark.parametrize("name", sorted(UNSERVED))
def test_an_operation_that_is_not_served_is_refused_by_name(name: str) -> None:
    with pytest.raises(StoreError) as caught:
        requests_of(name)
    assert (caught.value.s3_code, caught.value.status) == ("NotImplemented", 501)
    assert caught.value.message.startswith(f"{name} is not implemented")


def test_operations_that_go_to_other_hosts() -> None:
    with pytest.raises(StoreError) as caught:
        requests_of("ListDirectoryBuckets")
    assert caught.value.message.startswith("ListDirectoryBuckets is not implemented")
    with pytest.raises(StoreError) as caught:
        requests_of("WriteGetObjectResponse")
    assert (caught.value.s3_code, caught.value.status) == ("InvalidBucketName", 400)


def test_the_table_has_nothing_that_s3_has_not() -> None:
    assert {one.value for one in Operation} - set(MODEL.operation_names) == {"PostObject"}
    assert {one.value for one in Operation if one.amends} == AMENDMENTS


def test_no_query_fits_two_operations() -> None:
    for one, other in itertools.combinations(Operation, 2):
        if (one.method, one.level, one.copies) == (other.method, other.level, other.copies):
            both = one.markers | other.markers
            assert not (both <= one.markers | one.optional and both <= other.markers | other.optional), (one, other)


@pytest.mark.parametrize("level", [Level.BUCKET, Level.OBJECT])
@pytest.mark.parametrize("method", first(["PUT", "GET", "HEAD", "POST", "DELETE"]))
def test_two_markers_are_never_taken_for_either(method: str, level: Level) -> None:
    markers = {marker for one in Operation for marker in one.markers} | {"select", "torrent", "session", "renameObject"}
    together = {frozenset(one.markers) for one in Operation if len(one.markers) > 1}
    for pair in itertools.combinations(sorted(markers), 2):
        for copies in (False, True):
            if frozenset(pair) in together:
                continue
            with pytest.raises(StoreError) as caught:
                recognise(method, level, set(pair), copies=copies)
            assert caught.value.status == 501


@pytest.mark.parametrize(
    ("method", "level"),
    [
        (method, level)
        for method in ("GET", "HEAD", "PUT", "POST", "DELETE", "PATCH")
        for level in Level
        if (method, level) != ("PUT", Level.OBJECT)
    ],
)
def test_only_a_put_of_an_object_copies(method: str, level: Level) -> None:
    markers = {marker for one in Operation for marker in one.markers}
    for query in [set(), *({marker} for marker in markers), {"uploadId", "partNumber"}]:
        with pytest.raises(StoreError) as caught:
            recognise(method, level, query, copies=True)
        assert caught.value.status == 501


def test_markers_are_read_by_their_exact_name() -> None:
    for operation in Operation:
        for marker in operation.markers:
            misspelt = {marker.swapcase()} | (operation.markers - {marker})
            with pytest.raises(StoreError):
                recognise(operation.method, operation.level, misspelt, copies=operation.copies)


KEYS = [
    *("k", "a//b", "/lead", "tail/", "a/../b", "..", "./a", "a+b", "a b", "100%", "a%2Fb", "é", "e\u0301"),
    *("a?b#c&d=e", "~!*'()"),
]


class _Answer(io.BytesIO):
    def stream(self, **_: Any) -> list[bytes]:
        return [b"<Answer/>"]


@dataclass
class Sent:
    """A request as boto3 hands it to the network."""

    head: RequestHead
    body: bytes

    @property
    def classified(self) -> S3Request:
        return classify(self.head.method, self.head.raw_path, self.head.query_string, self.head.headers)

    def verified(self) -> VerifiedSignature:
        signed = dict(self.head.headers)[b"x-amz-date"].decode()
        now = datetime.strptime(signed, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
        return verify(self.head, lambda *_: (Principal("worker"), "sk"), now)


@cache
def client(scheme: str, style: str, **settings: Any) -> Any:
    """A boto3 client with the fencing token 7; to build one takes long."""
    config = Config(signature_version="s3v4", s3={"addressing_style": style}, **settings)
    url = f"{scheme}://gateway:8080"
    keys = {"aws_access_key_id": "AK", "aws_secret_access_key": "sk"}
    made = boto3.client("s3", region_name="us-east-1", endpoint_url=url, config=config, **keys)

    def add_token(params: dict[str, Any], **_: Any) -> None:
        params["headers"]["Fencing-Token"] = "7"

    made.meta.events.register("before-call.s3", add_token)
    return made


def send(call: Callable[[Any], object], scheme: str = "http", style: str = "path", **settings: Any) -> Sent:
    """The one request that ``call`` makes of a boto3 client with the fencing token 7."""
    sent: list[Sent] = []

    def capture(request: Any, **_: Any) -> Any:
        parts = urlsplit(request.url)
        body = request.body.read() if hasattr(request.body, "read") else request.body or b""
        headers = [] if "host" in request.headers else [(b"host", parts.netloc.encode())]
        for name, value in request.headers.items():
            headers.append((name.lower().encode(), value if isinstance(value, bytes) else value.encode()))
        head = RequestHead(request.method, parts.path.encode(), parts.query.encode(), headers)
        sent.append(Sent(head, bytes(body)))
        return AWSResponse(request.url, 200, HTTPHeaders(), _Answer())

    s3 = client(scheme, style, **settings)
    s3.meta.events.register("before-send.s3", capture)
    call(s3)
    s3.meta.events.unregister("before-send.s3", capture)
    (only,) = sent
    return only


def take(sent: Sent, wire: bytes) -> VerifiedBody:
    verified = sent.verified()
    body = Inspection(sent.head.headers, sha256=verified.sha256, signatures=verified.chunks, max_size=10_000)
    body.request_digests(md5=True, sha256=True)
    return whole([body.feed(wire)], body.finish())


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize(("scheme", "mode"), [("http", PayloadMode.EXACT), ("https", PayloadMode.UNSIGNED_TRAILER)])
def test_a_put(scheme: str, mode: PayloadMode, key: str) -> None:
    content = bytes(range(256)) * 10
    sent = send(
        lambda s3: s3.put_object(Bucket="bucket", Key=key, Body=content, ContentType="a/b", Metadata={"my_key": "1"}),
        scheme,
    )
    verified, request = sent.verified(), sent.classified
    assert (verified.principal.name, verified.mode) == ("worker", mode)
    assert (request.operation, request.bucket, request.key) == (Operation.PUT_OBJECT, "bucket", key)
    assert request.fencing.token == Token(0, 7)
    assert dict(request.headers) == {"content-type": "a/b", "x-amz-meta-my_key": "1"}

    taken = take(sent, sent.body)
    assert taken.content == content
    assert [name for name, _ in taken.digests.headers] == ["x-amz-checksum-crc32"]

    for wrong in (sent.body[:-1], sent.body.replace(b"\x01", b"\x02", 1)):
        with pytest.raises(StoreError):
            take(sent, wrong)


@pytest.mark.parametrize("algorithm", ["CRC32", "CRC32C", "CRC64NVME", "SHA1", "SHA256"])
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_every_checksum(scheme: str, algorithm: str) -> None:
    sent = send(lambda s3: s3.put_object(Bucket="bucket", Key="k", Body=b"hello", ChecksumAlgorithm=algorithm), scheme)
    assert [name for name, _ in take(sent, sent.body).digests.headers] == [f"x-amz-checksum-{algorithm.lower()}"]


def test_a_put_without_any_checksum() -> None:
    sent = send(
        lambda s3: s3.put_object(Bucket="bucket", Key="k", Body=b"hello"),
        "https",
        request_checksum_calculation="when_required",
    )
    assert take(sent, sent.body).content == b"hello"


CALLS: list[tuple[Operation, dict[str, Any]]] = [
    (Operation.LIST_OBJECTS_V2, {"Prefix": "a +/é", "Delimiter": "/"}),
    (Operation.LIST_OBJECTS, {"Marker": "a b"}),
    (Operation.GET_OBJECT, {"Key": "k", "Range": "bytes=0-1"}),
    (Operation.COPY_OBJECT, {"Key": "k", "CopySource": "bucket/other"}),
    (Operation.UPLOAD_PART, {"Key": "k", "UploadId": "u", "PartNumber": 1, "Body": b"x"}),
    (Operation.UPLOAD_PART_COPY, {"Key": "k", "UploadId": "u", "PartNumber": 1, "CopySource": "bucket/k"}),
    (
        Operation.COMPLETE_MULTIPART_UPLOAD,
        {"Key": "k", "UploadId": "u", "MultipartUpload": {"Parts": []}, "IfNoneMatch": "*"},
    ),
    (Operation.ABORT_MULTIPART_UPLOAD, {"Key": "k", "UploadId": "u"}),
    (Operation.DELETE_OBJECTS, {"Delete": {"Objects": [{"Key": "k"}]}}),
    (Operation.DELETE_OBJECT, {"Key": "k", "IfMatch": '"e"'}),
    (Operation.DELETE_OBJECT, {"Key": "k", "VersionId": "v"}),
    (Operation.PUT_OBJECT_TAGGING, {"Key": "k", "Tagging": {"TagSet": []}}),
    (Operation.PUT_BUCKET_VERSIONING, {"VersioningConfiguration": {"Status": "Enabled"}}),
    (Operation.CREATE_BUCKET, {}),
]


@pytest.mark.parametrize(("operation", "arguments"), CALLS)
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_the_other_operations_of_boto3(scheme: str, operation: Operation, arguments: dict[str, Any]) -> None:
    name = xform_name(operation.value)
    sent = send(lambda s3: getattr(s3, name)(Bucket="bucket", **arguments), scheme)
    sent.verified()
    request = sent.classified
    assert request.operation is operation
    assert dict(request.parameters).get("prefix") in (None, "a +/é")
    assert operation.kind is OperationKind.READ or request.fencing.token == Token(0, 7)


@pytest.mark.parametrize("key", KEYS)
def test_the_source_of_a_copy(key: str) -> None:
    source = {"Bucket": "bucket", "Key": key, "VersionId": "v+1"}
    request = send(lambda s3: s3.copy_object(Bucket="bucket", Key="k", CopySource=source)).classified
    assert request.source is not None
    assert (request.source.bucket, request.source.key, request.source.version_id) == ("bucket", key, "v+1")


@pytest.mark.parametrize("key", KEYS)
def test_virtual_hosts(key: str) -> None:
    sent = send(lambda s3: s3.put_object(Bucket="bucket", Key=key, Body=b"x"), style="virtual")
    sent.verified()
    head = sent.head
    bucket = bucket_of_host(head.headers, ["gateway"])
    request = classify(head.method, head.raw_path, head.query_string, head.headers, bucket)
    assert (request.operation, request.bucket, request.key) == (Operation.PUT_OBJECT, "bucket", key)
