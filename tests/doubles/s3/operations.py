"""Which S3 operation a request is, by method, target and query. Anything not in the table is refused, never guessed."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from tests.doubles.s3.errors import S3Error


class Operation(StrEnum):
    """The operations of the double, by their names in the S3 API."""

    LIST_BUCKETS = "ListBuckets"
    CREATE_BUCKET = "CreateBucket"
    HEAD_BUCKET = "HeadBucket"
    GET_BUCKET_LOCATION = "GetBucketLocation"
    LIST_OBJECTS = "ListObjectsV2"
    GET_OBJECT = "GetObject"
    HEAD_OBJECT = "HeadObject"
    PUT_OBJECT = "PutObject"
    COPY_OBJECT = "CopyObject"
    DELETE_OBJECT = "DeleteObject"
    CREATE_UPLOAD = "CreateMultipartUpload"
    UPLOAD_PART = "UploadPart"
    COPY_PART = "UploadPartCopy"
    COMPLETE_UPLOAD = "CompleteMultipartUpload"
    ABORT_UPLOAD = "AbortMultipartUpload"
    LIST_UPLOADS = "ListMultipartUploads"
    LIST_PARTS = "ListParts"


CONDITIONAL_WRITES = frozenset(
    {Operation.PUT_OBJECT, Operation.COPY_OBJECT, Operation.COMPLETE_UPLOAD, Operation.DELETE_OBJECT}
)

# The query parameters that choose an operation; every other one that S3 would read as a subresource is refused.
_SELECTORS = frozenset({"location", "list-type", "uploads", "uploadId", "partNumber"})
_ARGUMENTS = frozenset(
    {"x-id", "prefix", "delimiter", "max-keys", "continuation-token", "start-after", "encoding-type", "fetch-owner"}
    | {"key-marker", "upload-id-marker", "max-uploads", "part-number-marker", "max-parts", "max-buckets"}
)

_TABLE: Mapping[tuple[str, str, frozenset[str]], Operation] = {
    ("GET", "service", frozenset()): Operation.LIST_BUCKETS,
    ("PUT", "bucket", frozenset()): Operation.CREATE_BUCKET,
    ("HEAD", "bucket", frozenset()): Operation.HEAD_BUCKET,
    ("GET", "bucket", frozenset({"location"})): Operation.GET_BUCKET_LOCATION,
    ("GET", "bucket", frozenset({"list-type"})): Operation.LIST_OBJECTS,
    ("GET", "bucket", frozenset({"uploads"})): Operation.LIST_UPLOADS,
    ("GET", "object", frozenset()): Operation.GET_OBJECT,
    ("HEAD", "object", frozenset()): Operation.HEAD_OBJECT,
    ("PUT", "object", frozenset()): Operation.PUT_OBJECT,
    ("DELETE", "object", frozenset()): Operation.DELETE_OBJECT,
    ("POST", "object", frozenset({"uploads"})): Operation.CREATE_UPLOAD,
    ("PUT", "object", frozenset({"uploadId", "partNumber"})): Operation.UPLOAD_PART,
    ("POST", "object", frozenset({"uploadId"})): Operation.COMPLETE_UPLOAD,
    ("DELETE", "object", frozenset({"uploadId"})): Operation.ABORT_UPLOAD,
    ("GET", "object", frozenset({"uploadId"})): Operation.LIST_PARTS,
}

_COPIES: Mapping[Operation, Operation] = {
    Operation.PUT_OBJECT: Operation.COPY_OBJECT,
    Operation.UPLOAD_PART: Operation.COPY_PART,
}


def classify(method: str, bucket: str | None, key: str | None, query: Mapping[str, str], *, copies: bool) -> Operation:
    """Name the operation; `copies` says whether the request carries x-amz-copy-source. Raises NotImplemented."""
    target = "service" if bucket is None else "bucket" if key is None else "object"
    unknown = [name for name in query if name not in _SELECTORS | _ARGUMENTS and not name.startswith("response-")]
    operation = _TABLE.get((method, target, _SELECTORS.intersection(query)))
    if unknown or operation is None:
        raise S3Error("NotImplemented", f"The double has no {method} of a {target} with {sorted(query)}.")
    return _COPIES.get(operation, operation) if copies else operation
