"""The S3 API: the operation that a request is, and the errors that it is answered with."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

_CODES = {
    304: "NotModified",
    400: (
        "AuthorizationHeaderMalformed AuthorizationQueryParametersError BadDigest EntityTooSmall "
        "InvalidArgument InvalidBucketName InvalidDigest InvalidPart InvalidPartOrder InvalidRequest "
        "InvalidTag InvalidURI KeyTooLongError MalformedXML MetadataTooLarge XAmzContentSHA256Mismatch"
    ),
    403: "AccessDenied InvalidAccessKeyId RequestTimeTooSkewed SignatureDoesNotMatch",
    404: "NoSuchBucket NoSuchKey NoSuchObjectLockConfiguration NoSuchUpload NoSuchVersion",
    405: "MethodNotAllowed",
    409: "BucketAlreadyOwnedByYou BucketNotEmpty ConditionalRequestConflict",
    411: "MissingContentLength",
    412: "PreconditionFailed",
    416: "InvalidRange",
    500: "InternalError",
    501: "NotImplemented",
    503: "SlowDown",
}
STATUS: Mapping[str, int] = {code: status for status, codes in _CODES.items() for code in codes.split()}


class S3Error(Exception):
    """One S3 error. `details` become elements of the answer, e.g. Key or Condition; `headers` are sent with it."""

    def __init__(
        self,
        code: str,
        message: str = "",
        *,
        status: int | None = None,
        headers: Mapping[str, str] | None = None,
        **details: str,
    ) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message or f"The double refuses the request: {code}."
        self.status = status or STATUS[code]
        self.headers = headers or {}
        self.details = details


class Operation(StrEnum):
    """The operations of the double, by their names in the S3 API."""

    LIST_BUCKETS = "ListBuckets"
    CREATE_BUCKET = "CreateBucket"
    DELETE_BUCKET = "DeleteBucket"
    HEAD_BUCKET = "HeadBucket"
    GET_BUCKET_LOCATION = "GetBucketLocation"
    GET_BUCKET_VERSIONING = "GetBucketVersioning"
    PUT_BUCKET_VERSIONING = "PutBucketVersioning"
    LIST_OBJECTS = "ListObjects"
    LIST_OBJECTS_V2 = "ListObjectsV2"
    LIST_OBJECT_VERSIONS = "ListObjectVersions"
    GET_OBJECT = "GetObject"
    HEAD_OBJECT = "HeadObject"
    PUT_OBJECT = "PutObject"
    COPY_OBJECT = "CopyObject"
    DELETE_OBJECT = "DeleteObject"
    DELETE_OBJECTS = "DeleteObjects"
    GET_TAGGING = "GetObjectTagging"
    PUT_TAGGING = "PutObjectTagging"
    DELETE_TAGGING = "DeleteObjectTagging"
    GET_ACL = "GetObjectAcl"
    PUT_ACL = "PutObjectAcl"
    GET_LEGAL_HOLD = "GetObjectLegalHold"
    PUT_LEGAL_HOLD = "PutObjectLegalHold"
    GET_RETENTION = "GetObjectRetention"
    PUT_RETENTION = "PutObjectRetention"
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
_SELECTORS = frozenset(
    {"location", "versioning", "list-type", "versions", "delete", "uploads", "uploadId", "partNumber"}
    | {"tagging", "acl", "legal-hold", "retention"}
)
_ARGUMENTS = frozenset(
    {"x-id", "prefix", "delimiter", "max-keys", "continuation-token", "start-after", "encoding-type", "fetch-owner"}
    | {"marker", "key-marker", "version-id-marker", "upload-id-marker", "max-uploads", "part-number-marker"}
    | {"max-parts", "max-buckets", "versionId"}
)

_TABLE: Mapping[tuple[str, str, frozenset[str]], Operation] = {
    ("GET", "service", frozenset()): Operation.LIST_BUCKETS,
    ("PUT", "bucket", frozenset()): Operation.CREATE_BUCKET,
    ("HEAD", "bucket", frozenset()): Operation.HEAD_BUCKET,
    ("GET", "bucket", frozenset({"location"})): Operation.GET_BUCKET_LOCATION,
    ("DELETE", "bucket", frozenset()): Operation.DELETE_BUCKET,
    ("GET", "bucket", frozenset({"versioning"})): Operation.GET_BUCKET_VERSIONING,
    ("PUT", "bucket", frozenset({"versioning"})): Operation.PUT_BUCKET_VERSIONING,
    ("GET", "bucket", frozenset()): Operation.LIST_OBJECTS,
    ("GET", "bucket", frozenset({"list-type"})): Operation.LIST_OBJECTS_V2,
    ("GET", "bucket", frozenset({"versions"})): Operation.LIST_OBJECT_VERSIONS,
    ("POST", "bucket", frozenset({"delete"})): Operation.DELETE_OBJECTS,
    ("GET", "bucket", frozenset({"uploads"})): Operation.LIST_UPLOADS,
    ("GET", "object", frozenset()): Operation.GET_OBJECT,
    ("HEAD", "object", frozenset()): Operation.HEAD_OBJECT,
    ("PUT", "object", frozenset()): Operation.PUT_OBJECT,
    ("DELETE", "object", frozenset()): Operation.DELETE_OBJECT,
    ("GET", "object", frozenset({"tagging"})): Operation.GET_TAGGING,
    ("PUT", "object", frozenset({"tagging"})): Operation.PUT_TAGGING,
    ("DELETE", "object", frozenset({"tagging"})): Operation.DELETE_TAGGING,
    ("GET", "object", frozenset({"acl"})): Operation.GET_ACL,
    ("PUT", "object", frozenset({"acl"})): Operation.PUT_ACL,
    ("GET", "object", frozenset({"legal-hold"})): Operation.GET_LEGAL_HOLD,
    ("PUT", "object", frozenset({"legal-hold"})): Operation.PUT_LEGAL_HOLD,
    ("GET", "object", frozenset({"retention"})): Operation.GET_RETENTION,
    ("PUT", "object", frozenset({"retention"})): Operation.PUT_RETENTION,
    ("POST", "object", frozenset({"uploads"})): Operation.CREATE_UPLOAD,
    ("PUT", "object", frozenset({"uploadId", "partNumber"})): Operation.UPLOAD_PART,
    ("POST", "object", frozenset({"uploadId"})): Operation.COMPLETE_UPLOAD,
    ("DELETE", "object", frozenset({"uploadId"})): Operation.ABORT_UPLOAD,
    ("GET", "object", frozenset({"uploadId"})): Operation.LIST_PARTS,
}

_WITH_VERSION = frozenset(
    {Operation.GET_OBJECT, Operation.HEAD_OBJECT, Operation.DELETE_OBJECT}
    | {Operation.GET_TAGGING, Operation.PUT_TAGGING, Operation.DELETE_TAGGING, Operation.GET_ACL, Operation.PUT_ACL}
    | {Operation.GET_LEGAL_HOLD, Operation.PUT_LEGAL_HOLD, Operation.GET_RETENTION, Operation.PUT_RETENTION}
)

_COPIES: Mapping[Operation, Operation] = {
    Operation.PUT_OBJECT: Operation.COPY_OBJECT,
    Operation.UPLOAD_PART: Operation.COPY_PART,
}


def classify(method: str, bucket: str | None, key: str | None, query: Mapping[str, str], *, copies: bool) -> Operation:
    """Name the operation; `copies` says whether the request carries x-amz-copy-source. Raises NotImplemented."""
    target = "service" if bucket is None else "bucket" if key is None else "object"
    unknown = [name for name in query if name not in _SELECTORS | _ARGUMENTS and not name.startswith("response-")]
    operation = _TABLE.get((method, target, _SELECTORS.intersection(query)))
    misplaced = "versionId" in query and operation not in _WITH_VERSION
    if unknown or misplaced or operation is None:
        raise S3Error("NotImplemented", f"The double has no {method} of a {target} with {sorted(query)}.")
    return _COPIES.get(operation, operation) if copies else operation
