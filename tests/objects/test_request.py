"""Each request is taken for exactly what S3 takes it for, or refused by name. So are its headers, also in a query."""

import itertools
from collections.abc import Callable
from typing import Any

import botocore.session
import pytest

from gateway.errors import RequestMalformed, ResourceMalformed, StoreError, TokenMalformed
from gateway.fencing.headers import FencingHeaders
from gateway.fencing.token import Token
from gateway.objects.s3 import addressing
from gateway.objects.s3.conditions import Expect, WriteCondition
from gateway.objects.s3.operations import Level, Operation, OperationKind, recognise
from gateway.objects.s3.request import (
    S3Request,
    classify,
    forwarded,
    read_fencing,
)
from tests.tiers import first

Headers = list[tuple[bytes, bytes]]


def refusal_of_request(
    method: str, path: bytes, query: bytes = b"", headers: Headers | None = None
) -> tuple[str, int, str]:
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
        assert refusal_of_request(method, path, query)[:2] == ("InvalidArgument", 400)


@pytest.mark.parametrize("method", ["GET", "PUT"])
@pytest.mark.parametrize("lock", ["legal-hold", "retention"])
def test_an_empty_version_of_a_lock_is_the_current_one(method: str, lock: str) -> None:
    request = classify(method, b"/bucket/k", f"{lock}&versionId=".encode(), [])
    assert request.parameters == ((lock, ""),)


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
    code, status, message = refusal_of_request(method, path, query)
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
        assert refusal_of_request("PUT", path)[:2] == (code, 400), path


def test_the_query_is_sent_on_in_one_encoding() -> None:
    request = classify("GET", b"/bucket", b"list-type=2&prefix=a+b%2b%C3%A9&start-after=&x-id=ListObjectsV2&&", [])
    assert request.parameters == (("list-type", "2"), ("prefix", "a b+é"), ("start-after", ""))
    assert request.query == "list-type=2&prefix=a%20b%2B%C3%A9&start-after="


@pytest.mark.parametrize(
    "query", [b"list-type=2&prefix=a&prefix=b", b"list-type=2&list-type=1", b"prefix=a&%70refix=b", b"x-id=a&x-id=b"]
)
def test_a_parameter_that_stands_twice_is_refused(query: bytes) -> None:
    assert refusal_of_request("GET", b"/bucket", query)[:2] == ("InvalidArgument", 400)


def test_a_body_that_is_chunked_has_the_other_encodings_only() -> None:
    for written, left in ((b"aws-chunked", ()), (b"AWS-Chunked,", ()), (b"gzip, aws-chunked", ("gzip",))):
        headers = classify("PUT", b"/bucket/key", b"", [(b"content-encoding", written)]).headers
        assert headers == tuple(("content-encoding", one) for one in left)


@pytest.mark.parametrize("name", [b"content-type", b"if-match", b"x-amz-meta-a", b"cache-control", b"host"])
def test_a_header_that_stands_twice_is_refused(name: bytes) -> None:
    assert refusal_of_request("PUT", b"/bucket/k", b"", [(name, b"a"), (name.upper(), b"a")])[:2] == (
        "InvalidRequest",
        400,
    )


def test_what_is_not_utf8_is_refused() -> None:
    assert refusal_of_request("GET", b"/bucket", b"list-type=2&prefix=%ff")[:2] == ("InvalidURI", 400)
    assert refusal_of_request("PUT", b"/bucket/k", b"", [(b"x-amz-meta-a", b"\xff")])[:2] == ("InvalidRequest", 400)


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


# The headers that go on to the store, by the model that S3's own clients use.


EVALUATED = frozenset({"if-match", "if-none-match"})


OF_THE_BODY = frozenset({"content-length", "content-md5", "x-amz-sdk-checksum-algorithm"})


ENCRYPTED_BY_THE_CLIENT = frozenset(
    f"x-amz-{of}server-side-encryption-customer-{what}"
    for of in ("", "copy-source-")
    for what in ("algorithm", "key", "key-md5")
)


REFUSED = ENCRYPTED_BY_THE_CLIENT | {
    *("x-amz-if-match-initiated-time", "x-amz-if-match-last-modified-time", "x-amz-if-match-size", "x-amz-mfa"),
    *("x-amz-object-annotation-directive", "x-amz-object-if-match", "x-amz-write-offset-bytes"),
}


def refusal_of_headers(attempt: Callable[..., object], *arguments: Any, **named: Any) -> tuple[str, int]:
    with pytest.raises(StoreError) as caught:
        attempt(*arguments, **named)
    return caught.value.s3_code, caught.value.status


def headers_of(operation: Operation) -> list[str]:
    shape = MODEL.operation_model(operation.value).input_shape
    members = [] if shape is None else shape.members.values()
    return [one.serialization["name"].lower() for one in members if one.serialization.get("location") == "header"]


def test_every_header_of_the_model_goes_on_or_is_accounted_for(subtests: pytest.Subtests) -> None:
    for operation in set(Operation) - {Operation.POST_OBJECT}:
        with subtests.test(operation=operation):
            for name in headers_of(operation):
                if operation.kind is not OperationKind.READ and name in REFUSED:
                    with pytest.raises(StoreError, match=name) as caught:
                        forwarded(operation, {name: "1"})
                    assert (caught.value.s3_code, caught.value.status) == ("NotImplemented", 501)
                    continue
                of_the_copy = operation.copies and name in addressing.COPY_HEADERS
                checksum = name.startswith("x-amz-checksum-") and operation in (
                    *(Operation.PUT_OBJECT, Operation.PUT_OBJECT_ANNOTATION, Operation.UPLOAD_PART),
                )
                evaluated = name in EVALUATED and operation.kind is not OperationKind.READ
                kept_here = of_the_copy or checksum or evaluated or name in OF_THE_BODY
                assert forwarded(operation, {name: "1"}) == (() if kept_here else ((name, "1"),)), name


def test_an_unknown_header_is_dropped_on_a_read_and_refused_else(subtests: pytest.Subtests) -> None:
    for operation in Operation:
        with subtests.test(operation=operation):
            for name in ("x-amz-anything-new", "x_amz_acl", "x-amz_acl", "x-amz-meta_a"):
                if operation.kind is OperationKind.READ:
                    assert forwarded(operation, {name: "1"}) == ()
                else:
                    assert refusal_of_headers(forwarded, operation, {name: "1"})[1] == 501


def test_metadata_go_with_what_makes_an_object_and_the_gateways_own_never(subtests: pytest.Subtests) -> None:
    for operation in Operation:
        with subtests.test(operation=operation):
            makes = operation in (Operation.PUT_OBJECT, Operation.COPY_OBJECT, Operation.CREATE_MULTIPART_UPLOAD)
            own = {"x-amz-meta-fencing-write-id": "forged", "x-amz-meta-fencing_tombstone": "true"}
            if makes:
                assert forwarded(operation, {"x-amz-meta-a": "1", **own}) == (("x-amz-meta-a", "1"),)
            elif operation.kind is OperationKind.READ:
                assert forwarded(operation, {"x-amz-meta-a": "1", **own}) == ()
            else:
                for name in ("x-amz-meta-a", *own):
                    with pytest.raises(StoreError):
                        forwarded(operation, {name: "1"})


SAID_TO_THE_GATEWAY = (
    *("authorization", "fencing-token", "host", "x-amz-content-sha256", "x-amz-date", "x-amz-decoded-content-length"),
    *("x-amz-sdk-checksum-algorithm", "x-amz-security-token", "x-amz-trailer", "x-amz-user-agent"),
    *("amz-sdk-invocation-id", "amz-sdk-request", "x-forwarded-for"),
)


def test_what_is_said_to_the_gateway_never_goes_on() -> None:
    for operation in Operation:
        assert forwarded(operation, dict.fromkeys(SAID_TO_THE_GATEWAY, "1")) == (), operation


ANSWERED = {"x-amz-bucket-region": "us-east-1", "x-amz-tagging-count": "1", "x-amz-request-id": "1", "x-amz-id-2": "1"}


def test_headers_of_an_answer_may_be_sent_back() -> None:
    """`s3cmd modify` sends those of a HeadObject."""
    for operation in Operation:
        assert forwarded(operation, ANSWERED) == (), operation
    kept = {"x-amz-storage-class": "STANDARD", "x-amz-meta-colour": "red"}
    assert forwarded(Operation.COPY_OBJECT, {**ANSWERED, **kept}) == tuple(kept.items())


def test_the_one_version_of_s3_may_be_named() -> None:
    """The AWS SDK for C++ names it when it begins an upload."""
    for operation in Operation:
        assert forwarded(operation, {"x-amz-api-version": "2006-03-01"}) == (), operation
    with pytest.raises(StoreError, match="x-amz-api-version"):
        forwarded(Operation.CREATE_MULTIPART_UPLOAD, {"x-amz-api-version": "2027-01-01"})


# A presigned request says in its query what others say in headers. All of it is signed.


AUTHENTICATION = (
    b"X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AK%2F20130524%2Fus-east-1%2Fs3%2Faws4_request"
    b"&X-Amz-Date=20130524T000000Z&X-Amz-Expires=600&X-Amz-SignedHeaders=host&X-Amz-Signature=00"
)


def presigned(query: bytes, *headers: tuple[bytes, bytes], method: str = "PUT") -> S3Request:
    return classify(method, b"/bucket/k", AUTHENTICATION + b"&" + query, headers)


def test_authentication_in_the_query_is_not_sent_on() -> None:
    request = presigned(b"versionId=3&x-id=GetObject&response-content-type=text%2Fplain", method="GET")
    assert request.operation is Operation.GET_OBJECT
    assert request.parameters == (("versionId", "3"), ("response-content-type", "text/plain"))


def test_headers_in_the_query_of_a_presigned_request_are_headers() -> None:
    request = presigned(
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


@pytest.mark.parametrize("added", [(b"if-none-match", b"*"), (b"if-none-match", b'"e"'), (b"if-match", b'"e"')])
def test_a_header_does_not_replace_the_condition_of_a_presigned_request(added: tuple[bytes, bytes]) -> None:
    with pytest.raises(StoreError, match=r"stands in the query|is not implemented"):
        presigned(b"If-None-Match=*", added)


def test_a_checksum_in_the_query_was_computed_before_the_body_was_known() -> None:
    """The JavaScript SDK presigns that of an empty one."""
    request = presigned(b"x-amz-checksum-crc32=AAAAAA%3D%3D&x-amz-sdk-checksum-algorithm=CRC32&x-amz-acl=private")
    received = [(b"x-amz-checksum-sha1", b"...")]
    assert request.headers_of_body(received) == [*received, (b"x-amz-acl", b"private")]
    assert request.headers == (("x-amz-acl", "private"),)


def test_a_copy_can_be_presigned() -> None:
    request = presigned(b"x-amz-copy-source=bucket%2Fa%252Fb&x-amz-metadata-directive=REPLACE")
    assert request.operation is Operation.COPY_OBJECT
    assert request.source is not None
    assert (request.source.key, request.source.replace_metadata) == ("a/b", True)
    with pytest.raises(StoreError):
        presigned(b"x-amz-copy-source=bucket%2Fk", method="GET")


@pytest.mark.parametrize("name", ["if-match", "If-None-Match", "If-Modified-Since", "if-unmodified-since"])
def test_conditions_of_a_presigned_read_go_to_the_store(name: str) -> None:
    assert presigned(f"{name}=%22e%22".encode(), method="GET").headers == ((name.lower(), '"e"'),)


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
def test_no_other_request_has_headers_in_its_query(method: str) -> None:
    for query in (
        *(b"x-amz-acl=private", b"X-Amz-Meta-Owner=a", b"x-amz-copy-source=bucket%2Fother"),
        *(b"x-amz-meta-fencing-token=9", b"If-Match=%22e%22", b"if-none-match=*", b"X-Amz-Date=20130524T000000Z"),
        *(b"X-Amz-Signature=00", b"X-Amz-Security-Token=fencing-token%3D9"),
        b"x-amz-algorithm=AWS4-HMAC-SHA256&x-amz-acl=private",
    ):
        assert refusal_of_headers(classify, method, b"/bucket/k", query, []) == ("NotImplemented", 501), query


def test_a_request_signed_in_its_headers_is_not_presigned() -> None:
    assert (
        refusal_of_headers(presigned, b"x-amz-acl=private", (b"Authorization", b"AWS4-HMAC-SHA256 Credential=..."))[1]
        == 501
    )


def test_a_header_in_the_query_and_in_the_head_is_refused() -> None:
    acl, token = b"x-amz-acl=private", b"x-amz-meta-fencing-token"
    session = b"fencing-token=4"
    for query, *headers in (
        *((b"fencing-token=5&" * 2,), (b"X-Amz-Security-Token=" + session, (b"x-amz-security-token", session))),
        *((acl, (b"X-Amz-Acl", b"public-read")), (acl.upper(), (b"x-amz-acl", b"private"))),
        *((b"If-Match=a", (b"if-match", b"a")), (token + b"=5", (token, b"5"))),
        *((acl + b"&X-Amz-Acl=private",), (b"x-amz-meta-a=1&x-amz-meta-%61=1",), (b"If-Match=a&if-match=a",)),
    ):
        assert refusal_of_headers(presigned, query, *headers)[1] == 400, query


UNSENDABLE = {
    ("InvalidArgument", 400): [
        *(b"x-amz-meta-a=1%0D%0AHost:%20other", b"x-amz-meta-a=1%0A", b"x-amz-meta-a=%7F", b"If-Match=%0D%0Aa"),
        *(b"x-amz-meta-a%0D%0AHost:other%0D%0Ab=1", b"x-amz-meta-a:b=1", b"x-amz-meta-%C3%A9=1", b"x-amz-meta-a%20b=1"),
    ],
    ("NotImplemented", 501): [
        *(b"x-amz-signature=00", b"x-amz-expires=1", b"X-AMZ-DATE=20130524T000000Z", b"x-amz-mfa=1", b"Host=other"),
        *(b"x-amz-security-token=fencing-token%3D9", b"x-amz-content-sha256=UNSIGNED-PAYLOAD"),
        *(b"X-Amz-Anything-New=1", b"x_amz_acl=private", b"content-type=text%2Fplain", b"Content-MD5=x"),
        *(b"Fencing-Token=5", b"fencing_token=5", b"x-fencing-token=5", b"AWSAccessKeyId=AK&Signature=s&Expires=1"),
    ],
}


@pytest.mark.parametrize("error", UNSENDABLE, ids=str)
def test_parameters_that_cannot_be_headers_of_a_presigned_write(error: tuple[str, int]) -> None:
    for query in UNSENDABLE[error]:
        assert refusal_of_headers(presigned, query) == error, query


# A token is found wherever a client can put it; of two, the one said most clearly counts.


META = b"x-amz-meta-fencing-token"


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE"])
def test_the_query_of_a_presigned_request_can_carry_the_token(method: str) -> None:
    request = presigned(b"fencing-token=3.4&fencing-holder=host+7&fencing-resource=job%2F7", method=method)
    assert request.fencing == FencingHeaders(Token(3, 4), "job/7", "host 7")
    assert (request.parameters, request.headers, request.hoisted) == ((), (), ())


@pytest.mark.parametrize("name", ["fencing-token", "fencing-holder", "fencing-resource"])
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
def test_the_query_of_any_other_request_cannot(method: str, name: str) -> None:
    with pytest.raises(RequestMalformed) as caught:
        classify(method, b"/bucket/key", f"{name}=5".encode(), [])
    assert name.title() in caught.value.advice
    with pytest.raises(RequestMalformed):
        presigned(f"{name}=5".encode(), (b"authorization", b"AWS4-HMAC-SHA256 Credential=..."), method=method)


SAID = {
    "header": (b"fencing-token", b"3"),
    "metadata": (b"x-amz-meta-fencing-token", b"3"),
    "session": (b"x-amz-security-token", b"fencing-token=3&fencing-holder=four"),
}


@pytest.mark.parametrize(
    ("said", "query", "holder"),
    [
        (["header", "metadata", "session"], b"fencing-token=3&fencing-holder=three", None),
        (["metadata", "session"], b"fencing-token=3&fencing-holder=three", None),
        (["session"], b"fencing-token=3&fencing-holder=three", "three"),
        (["session"], b"fencing-token=3", None),
        (["session"], b"fencing-holder=three", "four"),
        (["session"], b"", "four"),
        ([], b"x-amz-meta-fencing-token=3&x-amz-meta-fencing-holder=two&fencing-token=3", "two"),
        ([], b"X-Amz-Meta-Fencing-Token=3", None),
        (["header"], b"X-Amz-Meta-Fencing-Token=3", None),
        ([], b"X-Amz-Security-Token=fencing-token%3D3%26fencing-holder%3Dfour", "four"),
        ([], b"X-Amz-Security-Token=fc1.opaque&fencing-token=3", None),
    ],
)
def test_the_holder_beside_the_first_of_header_metadata_query_and_session_counts(
    said: list[str], query: bytes, holder: str | None
) -> None:
    fencing = presigned(query, *(SAID[one] for one in said)).fencing
    assert fencing == FencingHeaders(Token(0, 3), None, holder)


@pytest.mark.parametrize(
    ("said", "query"),
    [
        (["header"], b"fencing-token=4"),
        (["metadata"], b"fencing-token=4"),
        (["session"], b"fencing-token=4"),
        (["header"], b"X-Amz-Meta-Fencing-Token=4"),
        (["session"], b"X-Amz-Meta-Fencing-Token=4"),
        (["header"], b"X-Amz-Security-Token=fencing-token%3D4"),
    ],
)
def test_different_tokens_are_refused(said: list[str], query: bytes) -> None:
    """The newer one may be that of an answer, which a client has sent back, and not its own."""
    with pytest.raises(TokenMalformed, match="different fencing tokens"):
        presigned(query, *(SAID[one] for one in said))


def test_a_holder_beside_a_token_from_elsewhere() -> None:
    request = presigned(b"fencing-token=3&fencing-holder=three", (b"fencing-holder", b"mine"))
    assert request.fencing == FencingHeaders(Token(0, 3), None, "mine")


@pytest.mark.parametrize(
    ("said", "query"),
    [
        (b"five", b"fencing-token=5"),
        (b"5", b"fencing-token=05"),
        (b"5", b"fencing-token=%D9%A5"),
        (b"5", b"x-amz-meta-fencing-token=five"),
        (b"5", b"X-Amz-Security-Token=fencing-token%3Dfive"),
    ],
)
def test_an_unreadable_token_is_an_error_in_every_location(said: bytes, query: bytes) -> None:
    with pytest.raises(TokenMalformed):
        presigned(query, (b"fencing-token", said))


def test_one_resource_only() -> None:
    same = presigned(b"fencing-resource=job%2F7", (b"fencing-resource", b"job/7"), (b"fencing-token", b"5"))
    assert same.fencing.resource == "job/7"
    with pytest.raises(ResourceMalformed):
        presigned(b"fencing-resource=job%2F8", (b"fencing-resource", b"job/7"))


@pytest.mark.parametrize("token", [b"opaque", b"", b"fencing-token%3D1%26role%3Dadmin", b"FC1.x", b"fc2.x"])
def test_other_session_tokens_in_a_query_are_refused(token: bytes) -> None:
    assert refusal_of_headers(presigned, b"X-Amz-Security-Token=" + token) == ("InvalidToken", 400)


def test_metadata_speak_where_an_object_is_made_with_them() -> None:
    makes = {Operation.PUT_OBJECT, Operation.COPY_OBJECT, Operation.CREATE_MULTIPART_UPLOAD, Operation.POST_OBJECT}
    said = FencingHeaders(Token(0, 7))
    for operation in Operation:
        fencing = read_fencing(operation, [(META, b"7")])
        assert fencing == (said if operation in makes else FencingHeaders()), operation
        if operation.kind in (OperationKind.WRITE, OperationKind.STAGING):
            assert read_fencing(operation, [(b"Fencing-Token", b"7")]) == said, operation
