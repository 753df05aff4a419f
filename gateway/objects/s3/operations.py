"""S3's operations: what each does, and what a request for it looks like. An operation outside the table is refused."""

from collections.abc import Set as AbstractSet
from enum import Enum, StrEnum
from typing import Self

from gateway.errors import StoreError


class OperationKind(Enum):
    """The effect of an operation, which decides what the gateway requires of it."""

    READ = "read"
    WRITE = "write"  # changes an object: needs a fencing token
    STAGING = "staging"  # prepares a write, or drops it; no object changes
    ADMINISTRATION = "administration"  # creates, configures or deletes a bucket


class Level(StrEnum):
    """The thing that a path names, as the table below writes it."""

    SERVICE = "/"
    BUCKET = "/bucket"
    OBJECT = "/bucket/key"


READ, WRITE, STAGING, ADMINISTRATION = (
    OperationKind.READ,
    OperationKind.WRITE,
    OperationKind.STAGING,
    OperationKind.ADMINISTRATION,
)

_GET_OBJECT = (
    "partNumber response-cache-control response-content-disposition response-content-encoding "
    "response-content-language response-content-type response-expires versionId"
)


class Operation(StrEnum):
    """The operations the gateway serves: S3's name, kind, request, and the query parameters that may be there too.

    The parameters in the request tell the operation: all of them have to be there. No query fits two operations, as
    stores differ in which of two they take it for.
    """

    kind: OperationKind
    method: str
    level: Level
    markers: frozenset[str]
    optional: frozenset[str]

    def __new__(cls, name: str, kind: OperationKind, request: str, optional: str = "") -> Self:
        """``request`` is ``METHOD path?parameter&parameter``; ``optional`` are names with spaces between."""
        operation = str.__new__(cls, name)
        operation._value_ = name
        operation.method, _, target = request.partition(" ")
        path, _, query = target.partition("?")
        operation.kind, operation.level = kind, Level(path)
        operation.markers = frozenset(query.split("&")) - {""}
        operation.optional = frozenset(optional.split())
        return operation

    LIST_BUCKETS = "ListBuckets", READ, "GET /", "bucket-region continuation-token max-buckets prefix"
    GET_OBJECT = "GetObject", READ, "GET /bucket/key", _GET_OBJECT
    GET_OBJECT_ACL = "GetObjectAcl", READ, "GET /bucket/key?acl", "versionId"
    GET_OBJECT_ANNOTATION = "GetObjectAnnotation", READ, "GET /bucket/key?annotation&annotationName", "versionId"
    GET_OBJECT_ATTRIBUTES = "GetObjectAttributes", READ, "GET /bucket/key?attributes", "versionId"
    GET_OBJECT_LEGAL_HOLD = "GetObjectLegalHold", READ, "GET /bucket/key?legal-hold", "versionId"
    GET_OBJECT_RETENTION = "GetObjectRetention", READ, "GET /bucket/key?retention", "versionId"
    GET_OBJECT_TAGGING = "GetObjectTagging", READ, "GET /bucket/key?tagging", "versionId"
    HEAD_OBJECT = "HeadObject", READ, "HEAD /bucket/key", _GET_OBJECT
    LIST_OBJECT_ANNOTATIONS = (
        "ListObjectAnnotations",
        READ,
        "GET /bucket/key?annotation",
        "annotation-prefix continuation-token max-annotation-results versionId",
    )
    LIST_PARTS = "ListParts", READ, "GET /bucket/key?uploadId", "max-parts part-number-marker"
    GET_BUCKET_ABAC = "GetBucketAbac", READ, "GET /bucket?abac"
    GET_BUCKET_ACCELERATE_CONFIGURATION = "GetBucketAccelerateConfiguration", READ, "GET /bucket?accelerate"
    GET_BUCKET_ACL = "GetBucketAcl", READ, "GET /bucket?acl"
    GET_BUCKET_ANALYTICS_CONFIGURATION = "GetBucketAnalyticsConfiguration", READ, "GET /bucket?analytics&id"
    GET_BUCKET_CORS = "GetBucketCors", READ, "GET /bucket?cors"
    GET_BUCKET_ENCRYPTION = "GetBucketEncryption", READ, "GET /bucket?encryption"
    GET_BUCKET_INTELLIGENT_TIERING_CONFIGURATION = (
        "GetBucketIntelligentTieringConfiguration",
        READ,
        "GET /bucket?intelligent-tiering&id",
    )
    GET_BUCKET_INVENTORY_CONFIGURATION = "GetBucketInventoryConfiguration", READ, "GET /bucket?inventory&id"
    GET_BUCKET_LIFECYCLE_CONFIGURATION = "GetBucketLifecycleConfiguration", READ, "GET /bucket?lifecycle"
    GET_BUCKET_LOCATION = "GetBucketLocation", READ, "GET /bucket?location"
    GET_BUCKET_LOGGING = "GetBucketLogging", READ, "GET /bucket?logging"
    GET_BUCKET_METADATA_CONFIGURATION = "GetBucketMetadataConfiguration", READ, "GET /bucket?metadataConfiguration"
    GET_BUCKET_METADATA_TABLE_CONFIGURATION = "GetBucketMetadataTableConfiguration", READ, "GET /bucket?metadataTable"
    GET_BUCKET_METRICS_CONFIGURATION = "GetBucketMetricsConfiguration", READ, "GET /bucket?metrics&id"
    GET_BUCKET_NOTIFICATION_CONFIGURATION = "GetBucketNotificationConfiguration", READ, "GET /bucket?notification"
    GET_BUCKET_OWNERSHIP_CONTROLS = "GetBucketOwnershipControls", READ, "GET /bucket?ownershipControls"
    GET_BUCKET_POLICY = "GetBucketPolicy", READ, "GET /bucket?policy"
    GET_BUCKET_POLICY_STATUS = "GetBucketPolicyStatus", READ, "GET /bucket?policyStatus"
    GET_BUCKET_REPLICATION = "GetBucketReplication", READ, "GET /bucket?replication"
    GET_BUCKET_REQUEST_PAYMENT = "GetBucketRequestPayment", READ, "GET /bucket?requestPayment"
    GET_BUCKET_TAGGING = "GetBucketTagging", READ, "GET /bucket?tagging"
    GET_BUCKET_VERSIONING = "GetBucketVersioning", READ, "GET /bucket?versioning"
    GET_BUCKET_WEBSITE = "GetBucketWebsite", READ, "GET /bucket?website"
    GET_OBJECT_LOCK_CONFIGURATION = "GetObjectLockConfiguration", READ, "GET /bucket?object-lock"
    GET_PUBLIC_ACCESS_BLOCK = "GetPublicAccessBlock", READ, "GET /bucket?publicAccessBlock"
    HEAD_BUCKET = "HeadBucket", READ, "HEAD /bucket"
    LIST_BUCKET_ANALYTICS_CONFIGURATIONS = (
        "ListBucketAnalyticsConfigurations",
        READ,
        "GET /bucket?analytics",
        "continuation-token",
    )
    LIST_BUCKET_INTELLIGENT_TIERING_CONFIGURATIONS = (
        "ListBucketIntelligentTieringConfigurations",
        READ,
        "GET /bucket?intelligent-tiering",
        "continuation-token",
    )
    LIST_BUCKET_INVENTORY_CONFIGURATIONS = (
        "ListBucketInventoryConfigurations",
        READ,
        "GET /bucket?inventory",
        "continuation-token",
    )
    LIST_BUCKET_METRICS_CONFIGURATIONS = (
        "ListBucketMetricsConfigurations",
        READ,
        "GET /bucket?metrics",
        "continuation-token",
    )
    LIST_MULTIPART_UPLOADS = (
        "ListMultipartUploads",
        READ,
        "GET /bucket?uploads",
        "delimiter encoding-type key-marker max-uploads prefix upload-id-marker",
    )
    LIST_OBJECT_VERSIONS = (
        "ListObjectVersions",
        READ,
        "GET /bucket?versions",
        "delimiter encoding-type key-marker max-keys prefix version-id-marker",
    )
    LIST_OBJECTS = "ListObjects", READ, "GET /bucket", "delimiter encoding-type marker max-keys prefix"
    LIST_OBJECTS_V2 = (
        "ListObjectsV2",
        READ,
        "GET /bucket?list-type",
        "continuation-token delimiter encoding-type fetch-owner max-keys prefix start-after",
    )

    COMPLETE_MULTIPART_UPLOAD = "CompleteMultipartUpload", WRITE, "POST /bucket/key?uploadId"
    COPY_OBJECT = "CopyObject", WRITE, "PUT /bucket/key"
    DELETE_OBJECT = "DeleteObject", WRITE, "DELETE /bucket/key", "versionId"
    DELETE_OBJECT_ANNOTATION = (
        "DeleteObjectAnnotation",
        WRITE,
        "DELETE /bucket/key?annotation&annotationName",
        "versionId",
    )
    DELETE_OBJECT_TAGGING = "DeleteObjectTagging", WRITE, "DELETE /bucket/key?tagging", "versionId"
    PUT_OBJECT = "PutObject", WRITE, "PUT /bucket/key"
    PUT_OBJECT_ACL = "PutObjectAcl", WRITE, "PUT /bucket/key?acl", "versionId"
    PUT_OBJECT_ANNOTATION = "PutObjectAnnotation", WRITE, "PUT /bucket/key?annotation&annotationName", "versionId"
    PUT_OBJECT_LEGAL_HOLD = "PutObjectLegalHold", WRITE, "PUT /bucket/key?legal-hold", "versionId"
    PUT_OBJECT_RETENTION = "PutObjectRetention", WRITE, "PUT /bucket/key?retention", "versionId"
    PUT_OBJECT_TAGGING = "PutObjectTagging", WRITE, "PUT /bucket/key?tagging", "versionId"
    RESTORE_OBJECT = "RestoreObject", WRITE, "POST /bucket/key?restore", "versionId"
    DELETE_OBJECTS = "DeleteObjects", WRITE, "POST /bucket?delete"
    POST_OBJECT = "PostObject", WRITE, "POST /bucket"

    ABORT_MULTIPART_UPLOAD = "AbortMultipartUpload", STAGING, "DELETE /bucket/key?uploadId"
    CREATE_MULTIPART_UPLOAD = "CreateMultipartUpload", STAGING, "POST /bucket/key?uploads"
    UPLOAD_PART = "UploadPart", STAGING, "PUT /bucket/key?partNumber&uploadId"
    UPLOAD_PART_COPY = "UploadPartCopy", STAGING, "PUT /bucket/key?partNumber&uploadId"

    CREATE_BUCKET = "CreateBucket", ADMINISTRATION, "PUT /bucket"
    CREATE_BUCKET_METADATA_CONFIGURATION = (
        "CreateBucketMetadataConfiguration",
        ADMINISTRATION,
        "POST /bucket?metadataConfiguration",
    )
    CREATE_BUCKET_METADATA_TABLE_CONFIGURATION = (
        "CreateBucketMetadataTableConfiguration",
        ADMINISTRATION,
        "POST /bucket?metadataTable",
    )
    DELETE_BUCKET = "DeleteBucket", ADMINISTRATION, "DELETE /bucket"
    DELETE_BUCKET_ANALYTICS_CONFIGURATION = (
        "DeleteBucketAnalyticsConfiguration",
        ADMINISTRATION,
        "DELETE /bucket?analytics&id",
    )
    DELETE_BUCKET_CORS = "DeleteBucketCors", ADMINISTRATION, "DELETE /bucket?cors"
    DELETE_BUCKET_ENCRYPTION = "DeleteBucketEncryption", ADMINISTRATION, "DELETE /bucket?encryption"
    DELETE_BUCKET_INTELLIGENT_TIERING_CONFIGURATION = (
        "DeleteBucketIntelligentTieringConfiguration",
        ADMINISTRATION,
        "DELETE /bucket?intelligent-tiering&id",
    )
    DELETE_BUCKET_INVENTORY_CONFIGURATION = (
        "DeleteBucketInventoryConfiguration",
        ADMINISTRATION,
        "DELETE /bucket?inventory&id",
    )
    DELETE_BUCKET_LIFECYCLE = "DeleteBucketLifecycle", ADMINISTRATION, "DELETE /bucket?lifecycle"
    DELETE_BUCKET_METADATA_CONFIGURATION = (
        "DeleteBucketMetadataConfiguration",
        ADMINISTRATION,
        "DELETE /bucket?metadataConfiguration",
    )
    DELETE_BUCKET_METADATA_TABLE_CONFIGURATION = (
        "DeleteBucketMetadataTableConfiguration",
        ADMINISTRATION,
        "DELETE /bucket?metadataTable",
    )
    DELETE_BUCKET_METRICS_CONFIGURATION = (
        "DeleteBucketMetricsConfiguration",
        ADMINISTRATION,
        "DELETE /bucket?metrics&id",
    )
    DELETE_BUCKET_OWNERSHIP_CONTROLS = (
        "DeleteBucketOwnershipControls",
        ADMINISTRATION,
        "DELETE /bucket?ownershipControls",
    )
    DELETE_BUCKET_POLICY = "DeleteBucketPolicy", ADMINISTRATION, "DELETE /bucket?policy"
    DELETE_BUCKET_REPLICATION = "DeleteBucketReplication", ADMINISTRATION, "DELETE /bucket?replication"
    DELETE_BUCKET_TAGGING = "DeleteBucketTagging", ADMINISTRATION, "DELETE /bucket?tagging"
    DELETE_BUCKET_WEBSITE = "DeleteBucketWebsite", ADMINISTRATION, "DELETE /bucket?website"
    DELETE_PUBLIC_ACCESS_BLOCK = "DeletePublicAccessBlock", ADMINISTRATION, "DELETE /bucket?publicAccessBlock"
    PUT_BUCKET_ABAC = "PutBucketAbac", ADMINISTRATION, "PUT /bucket?abac"
    PUT_BUCKET_ACCELERATE_CONFIGURATION = "PutBucketAccelerateConfiguration", ADMINISTRATION, "PUT /bucket?accelerate"
    PUT_BUCKET_ACL = "PutBucketAcl", ADMINISTRATION, "PUT /bucket?acl"
    PUT_BUCKET_ANALYTICS_CONFIGURATION = "PutBucketAnalyticsConfiguration", ADMINISTRATION, "PUT /bucket?analytics&id"
    PUT_BUCKET_CORS = "PutBucketCors", ADMINISTRATION, "PUT /bucket?cors"
    PUT_BUCKET_ENCRYPTION = "PutBucketEncryption", ADMINISTRATION, "PUT /bucket?encryption"
    PUT_BUCKET_INTELLIGENT_TIERING_CONFIGURATION = (
        "PutBucketIntelligentTieringConfiguration",
        ADMINISTRATION,
        "PUT /bucket?intelligent-tiering&id",
    )
    PUT_BUCKET_INVENTORY_CONFIGURATION = "PutBucketInventoryConfiguration", ADMINISTRATION, "PUT /bucket?inventory&id"
    PUT_BUCKET_LIFECYCLE_CONFIGURATION = "PutBucketLifecycleConfiguration", ADMINISTRATION, "PUT /bucket?lifecycle"
    PUT_BUCKET_LOGGING = "PutBucketLogging", ADMINISTRATION, "PUT /bucket?logging"
    PUT_BUCKET_METRICS_CONFIGURATION = "PutBucketMetricsConfiguration", ADMINISTRATION, "PUT /bucket?metrics&id"
    PUT_BUCKET_NOTIFICATION_CONFIGURATION = (
        "PutBucketNotificationConfiguration",
        ADMINISTRATION,
        "PUT /bucket?notification",
    )
    PUT_BUCKET_OWNERSHIP_CONTROLS = "PutBucketOwnershipControls", ADMINISTRATION, "PUT /bucket?ownershipControls"
    PUT_BUCKET_POLICY = "PutBucketPolicy", ADMINISTRATION, "PUT /bucket?policy"
    PUT_BUCKET_REPLICATION = "PutBucketReplication", ADMINISTRATION, "PUT /bucket?replication"
    PUT_BUCKET_REQUEST_PAYMENT = "PutBucketRequestPayment", ADMINISTRATION, "PUT /bucket?requestPayment"
    PUT_BUCKET_TAGGING = "PutBucketTagging", ADMINISTRATION, "PUT /bucket?tagging"
    PUT_BUCKET_VERSIONING = "PutBucketVersioning", ADMINISTRATION, "PUT /bucket?versioning"
    PUT_BUCKET_WEBSITE = "PutBucketWebsite", ADMINISTRATION, "PUT /bucket?website"
    PUT_OBJECT_LOCK_CONFIGURATION = "PutObjectLockConfiguration", ADMINISTRATION, "PUT /bucket?object-lock"
    PUT_PUBLIC_ACCESS_BLOCK = "PutPublicAccessBlock", ADMINISTRATION, "PUT /bucket?publicAccessBlock"
    UPDATE_BUCKET_METADATA_ANNOTATION_TABLE_CONFIGURATION = (
        "UpdateBucketMetadataAnnotationTableConfiguration",
        ADMINISTRATION,
        "PUT /bucket?metadataAnnotationTable",
    )
    UPDATE_BUCKET_METADATA_INVENTORY_TABLE_CONFIGURATION = (
        "UpdateBucketMetadataInventoryTableConfiguration",
        ADMINISTRATION,
        "PUT /bucket?metadataInventoryTable",
    )
    UPDATE_BUCKET_METADATA_JOURNAL_TABLE_CONFIGURATION = (
        "UpdateBucketMetadataJournalTableConfiguration",
        ADMINISTRATION,
        "PUT /bucket?metadataJournalTable",
    )

    @property
    def writes(self) -> bool:
        """Whether the operation changes an object, and so needs a fencing token."""
        return self.kind is OperationKind.WRITE

    @property
    def copies(self) -> bool:
        """Whether the request names an object to read from, in ``x-amz-copy-source``."""
        return self in (Operation.COPY_OBJECT, Operation.UPLOAD_PART_COPY)

    @property
    def amends(self) -> bool:
        """Whether the operation changes what belongs to an object beside its bytes: S3 does it under no condition.

        DeleteObject of one version is such an operation too, see ``S3Request.amends``.
        """
        return self in _AMENDMENTS


_AMENDMENTS = frozenset(
    {
        Operation.PUT_OBJECT_ACL,
        Operation.PUT_OBJECT_ANNOTATION,
        Operation.PUT_OBJECT_LEGAL_HOLD,
        Operation.PUT_OBJECT_RETENTION,
        Operation.PUT_OBJECT_TAGGING,
        Operation.DELETE_OBJECT_ANNOTATION,
        Operation.DELETE_OBJECT_TAGGING,
        Operation.RESTORE_OBJECT,
    }
)

# Refused like all that is not in the table, but by name.
_UNSERVED: dict[tuple[str, Level, str], str] = {
    ("GET", Level.SERVICE, "max-directory-buckets"): "ListDirectoryBuckets",
    ("GET", Level.BUCKET, "session"): "CreateSession",
    ("GET", Level.OBJECT, "torrent"): "GetObjectTorrent",
    ("POST", Level.OBJECT, "select"): "SelectObjectContent",
    ("POST", Level.OBJECT, "append"): "AppendObject",
    ("PUT", Level.OBJECT, "append"): "AppendObject",
    ("PUT", Level.OBJECT, "encryption"): "UpdateObjectEncryption",
    ("PUT", Level.OBJECT, "renameObject"): "RenameObject",
}


_ALIKE: dict[tuple[str, Level, bool], list[Operation]] = {}
for _operation in Operation:
    _ALIKE.setdefault((_operation.method, _operation.level, _operation.copies), []).append(_operation)


def recognise(method: str, level: Level, parameters: AbstractSet[str], *, copies: bool) -> Operation:
    """Return the operation. Raises ``StoreError`` 501, which names the operation that is not served.

    ``parameters`` are the names in the query; ``copies`` says that the request names a source to copy from.
    """
    alike = _ALIKE.get((method, level, copies), [])
    for operation in alike:
        if operation.markers <= parameters <= operation.markers | operation.optional:
            return operation
    for parameter in sorted(parameters):
        if name := _UNSERVED.get((method, level, parameter)):
            raise not_implemented(name)
    called = max((one for one in alike if one.markers <= parameters), key=lambda one: len(one.markers), default=None)
    if called is None:
        raise not_implemented(f"{method} on this path{' with a source to copy from' if copies else ''}")
    unknown = min(parameters - called.markers - called.optional)
    raise not_implemented(f"{called} with the query parameter {unknown[:64]!a}")


def not_implemented(what: str, because: str = "") -> StoreError:
    """Return S3's error for an operation that is not served. ``because`` is a clause, if there is a reason."""
    reason = f": {because}" if because else ""
    return StoreError("NotImplemented", 501, f"{what} is not implemented by this gateway{reason}.")
