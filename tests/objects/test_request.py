"""Each request is taken for exactly what S3 takes it for, or refused by name."""

import itertools
from typing import Any

import botocore.session
import pytest

from gateway.errors import StoreError
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
        ("GET", b"/bucket/k", b"response-content-type=text%2Fplain&partNumber=1", Operation.GET_OBJECT, "bucket", "k"),
        ("PUT", b"/bucket/", b"", Operation.CREATE_BUCKET, "bucket", ""),
        ("POST", b"/bucket", b"", Operation.POST_OBJECT, "bucket", ""),
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
        ("PUT", b"/bucket", b"other", "CreateBucket with the query parameter 'other'"),
        ("POST", b"/bucket/k", b"uploads&uploadId=x", "CompleteMultipartUpload with the query parameter 'uploads'"),
        ("PUT", b"/bucket/k", b"uploadId=x", "PutObject with the query parameter 'uploadId'"),
        ("PUT", b"/bucket/k", b"tagging&uploadId=x&partNumber=1", "UploadPart with the query parameter 'tagging'"),
        ("DELETE", b"/bucket/k", b"tagging&uploadId=x", "DeleteObjectTagging with the query parameter 'uploadId'"),
        ("PUT", b"/bucket/k", b"If-Match=x", "PutObject with the query parameter 'If-Match'"),
        ("PUT", b"/bucket/k", b"X-Id=PutObject", "PutObject with the query parameter 'X-Id'"),
        ("POST", b"/bucket/k", b"", "POST on this path"),
        ("GET", b"/", b"max-directory-buckets=1", "ListDirectoryBuckets is not implemented"),
        ("PATCH", b"/bucket/k", b"", "PATCH on this path"),
        ("PUT", b"/", b"", "PUT on this path"),
    ],
)
def test_everything_else_is_refused_by_name(method: str, path: bytes, query: bytes, name: str) -> None:
    code, status, message = refusal(method, path, query)
    assert (code, status) == ("NotImplemented", 501)
    assert message.startswith(name)


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
    "query", [b"list-type=2&prefix=a&prefix=b", b"list-type=2&list-type=1", b"prefix=a&%70refix=b", b"x-id=a&x-id=b"]
)
def test_a_parameter_that_stands_twice_is_refused(query: bytes) -> None:
    assert refusal("GET", b"/bucket", query)[:2] == ("InvalidArgument", 400)


def test_a_body_that_is_chunked_has_the_other_encodings_only() -> None:
    for written, left in ((b"aws-chunked", ()), (b"AWS-Chunked,", ()), (b"gzip, aws-chunked", ("gzip",))):
        headers = classify("PUT", b"/bucket/key", b"", [(b"content-encoding", written)]).headers
        assert headers == tuple(("content-encoding", one) for one in left)


@pytest.mark.parametrize("name", [b"content-type", b"if-match", b"x-amz-meta-a", b"cache-control", b"host"])
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


def test_every_operation_of_the_model_is_served_as_what_it_is() -> None:
    for name in set(MODEL.operation_names) - UNSERVED.keys() - NOT_TOLD_APART.keys():
        for request in requests_of(name):
            assert request.operation.value == OLD_NAMES.get(name, name)
            assert request.operation.kind is kind_of(request.operation), name
            assert request.operation.writes == (request.operation in WRITES | AMENDMENTS), name


@pytest.mark.parametrize("name", sorted(UNSERVED))
def test_an_operation_that_is_not_served_is_refused_by_name(name: str) -> None:
    with pytest.raises(StoreError) as caught:
        requests_of(name)
    assert (caught.value.s3_code, caught.value.status) == ("NotImplemented", 501)
    assert caught.value.message.startswith(f"{name} is not implemented")


def test_the_table_has_nothing_that_s3_has_not() -> None:
    assert {one.value for one in Operation} - set(MODEL.operation_names) == {"PostObject"}
    assert {one.value for one in Operation if one.amends} == AMENDMENTS


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
