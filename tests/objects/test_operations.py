"""Every operation of S3, by the model its own clients are made from: served as what it is, or refused by name."""

import itertools
from typing import Any

import botocore.session
import pytest

from gateway.errors import StoreError
from gateway.objects.s3.operations import Level, Operation, OperationKind, recognise
from gateway.objects.s3.request import S3Request, classify

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

WRITES = {
    "CompleteMultipartUpload",
    "CopyObject",
    "DeleteObject",
    "DeleteObjects",
    "PostObject",
    "PutObject",
}
AMENDMENTS = {
    "DeleteObjectAnnotation",
    "DeleteObjectTagging",
    "PutObjectAcl",
    "PutObjectAnnotation",
    "PutObjectLegalHold",
    "PutObjectRetention",
    "PutObjectTagging",
    "RestoreObject",
}
STAGING = {"AbortMultipartUpload", "CreateMultipartUpload", "UploadPart", "UploadPartCopy"}


def kind_of(name: str) -> OperationKind:
    if name in WRITES | AMENDMENTS:
        return OperationKind.WRITE
    if name in STAGING:
        return OperationKind.STAGING
    return OperationKind.READ if name.startswith(("Get", "Head", "List")) else OperationKind.ADMINISTRATION


def requests(name: str) -> list[S3Request]:
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
            for request in requests(name):
                assert request.operation.value == OLD_NAMES.get(name, name)
                assert request.operation.kind is kind_of(request.operation)
                assert request.operation.writes == (request.operation in WRITES | AMENDMENTS)


@pytest.mark.parametrize("name", sorted(UNSERVED))
def test_an_operation_that_is_not_served_is_refused_by_name(name: str) -> None:
    with pytest.raises(StoreError) as caught:
        requests(name)
    assert (caught.value.s3_code, caught.value.status) == ("NotImplemented", 501)
    assert caught.value.message.startswith(f"{name} is not implemented")


def test_operations_that_go_to_other_hosts() -> None:
    with pytest.raises(StoreError) as caught:
        requests("ListDirectoryBuckets")
    assert caught.value.message.startswith("ListDirectoryBuckets is not implemented")
    with pytest.raises(StoreError) as caught:
        requests("WriteGetObjectResponse")
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
@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "POST", "DELETE"])
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


def test_markers_are_read_by_their_exact_name(subtests: pytest.Subtests) -> None:
    for operation in Operation:
        with subtests.test(operation=operation):
            for marker in operation.markers:
                misspelt = {marker.swapcase()} | (operation.markers - {marker})
                with pytest.raises(StoreError):
                    recognise(operation.method, operation.level, misspelt, copies=operation.copies)
