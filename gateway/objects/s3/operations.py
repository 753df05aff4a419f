"""S3's operations: what each does, and what a request for it looks like. An operation outside the table is refused.

A header that the gateway does not serve is refused in ``request.py``.
"""

from collections.abc import Set as AbstractSet
from enum import Enum, StrEnum, auto
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

    @staticmethod
    def _generate_next_value_(name: str, *_: object) -> str:
        """Return S3's name of a member, which is the same in another spelling."""
        return name.title().replace("_", "")

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

    LIST_BUCKETS = auto(), READ, "GET /", "bucket-region continuation-token max-buckets prefix"
    GET_OBJECT = auto(), READ, "GET /bucket/key", _GET_OBJECT
    GET_OBJECT_ACL = auto(), READ, "GET /bucket/key?acl", "versionId"
    GET_OBJECT_ANNOTATION = auto(), READ, "GET /bucket/key?annotation&annotationName", "versionId"
    GET_OBJECT_ATTRIBUTES = auto(), READ, "GET /bucket/key?attributes", "versionId"
    GET_OBJECT_LEGAL_HOLD = auto(), READ, "GET /bucket/key?legal-hold", "versionId"
    GET_OBJECT_RETENTION = auto(), READ, "GET /bucket/key?retention", "versionId"
    GET_OBJECT_TAGGING = auto(), READ, "GET /bucket/key?tagging", "versionId"
    HEAD_OBJECT = auto(), READ, "HEAD /bucket/key", _GET_OBJECT
    LIST_OBJECT_ANNOTATIONS = (
        auto(),
        READ,
        "GET /bucket/key?annotation",
        "annotation-prefix continuation-token max-annotation-results versionId",
    )
    LIST_PARTS = auto(), READ, "GET /bucket/key?uploadId", "max-parts part-number-marker"
    GET_BUCKET_ABAC = auto(), READ, "GET /bucket?abac"
    GET_BUCKET_ACCELERATE_CONFIGURATION = auto(), READ, "GET /bucket?accelerate"
    GET_BUCKET_ACL = auto(), READ, "GET /bucket?acl"
    GET_BUCKET_ANALYTICS_CONFIGURATION = auto(), READ, "GET /bucket?analytics&id"
    GET_BUCKET_CORS = auto(), READ, "GET /bucket?cors"
    GET_BUCKET_ENCRYPTION = auto(), READ, "GET /bucket?encryption"
    GET_BUCKET_INTELLIGENT_TIERING_CONFIGURATION = auto(), READ, "GET /bucket?intelligent-tiering&id"
    GET_BUCKET_INVENTORY_CONFIGURATION = auto(), READ, "GET /bucket?inventory&id"
    GET_BUCKET_LIFECYCLE_CONFIGURATION = auto(), READ, "GET /bucket?lifecycle"
    GET_BUCKET_LOCATION = auto(), READ, "GET /bucket?location"
    GET_BUCKET_LOGGING = auto(), READ, "GET /bucket?logging"
    GET_BUCKET_METADATA_CONFIGURATION = auto(), READ, "GET /bucket?metadataConfiguration"
    GET_BUCKET_METADATA_TABLE_CONFIGURATION = auto(), READ, "GET /bucket?metadataTable"
    GET_BUCKET_METRICS_CONFIGURATION = auto(), READ, "GET /bucket?metrics&id"
    GET_BUCKET_NOTIFICATION_CONFIGURATION = auto(), READ, "GET /bucket?notification"
    GET_BUCKET_OWNERSHIP_CONTROLS = auto(), READ, "GET /bucket?ownershipControls"
    GET_BUCKET_POLICY = auto(), READ, "GET /bucket?policy"
    GET_BUCKET_POLICY_STATUS = auto(), READ, "GET /bucket?policyStatus"
    GET_BUCKET_REPLICATION = auto(), READ, "GET /bucket?replication"
    GET_BUCKET_REQUEST_PAYMENT = auto(), READ, "GET /bucket?requestPayment"
    GET_BUCKET_TAGGING = auto(), READ, "GET /bucket?tagging"
    GET_BUCKET_VERSIONING = auto(), READ, "GET /bucket?versioning"
    GET_BUCKET_WEBSITE = auto(), READ, "GET /bucket?website"
    GET_OBJECT_LOCK_CONFIGURATION = auto(), READ, "GET /bucket?object-lock"
    GET_PUBLIC_ACCESS_BLOCK = auto(), READ, "GET /bucket?publicAccessBlock"
    HEAD_BUCKET = auto(), READ, "HEAD /bucket"
    LIST_BUCKET_ANALYTICS_CONFIGURATIONS = auto(), READ, "GET /bucket?analytics", "continuation-token"
    LIST_BUCKET_INTELLIGENT_TIERING_CONFIGURATIONS = (
        auto(),
        READ,
        "GET /bucket?intelligent-tiering",
        "continuation-token",
    )
    LIST_BUCKET_INVENTORY_CONFIGURATIONS = auto(), READ, "GET /bucket?inventory", "continuation-token"
    LIST_BUCKET_METRICS_CONFIGURATIONS = auto(), READ, "GET /bucket?metrics", "continuation-token"
    LIST_MULTIPART_UPLOADS = (
        auto(),
        READ,
        "GET /bucket?uploads",
        "delimiter encoding-type key-marker max-uploads prefix upload-id-marker",
    )
    LIST_OBJECT_VERSIONS = (
        auto(),
        READ,
        "GET /bucket?versions",
        "delimiter encoding-type key-marker max-keys prefix version-id-marker",
    )
    LIST_OBJECTS = auto(), READ, "GET /bucket", "delimiter encoding-type marker max-keys prefix"
    LIST_OBJECTS_V2 = (
        auto(),
        READ,
        "GET /bucket?list-type",
        "continuation-token delimiter encoding-type fetch-owner max-keys prefix start-after",
    )

    COMPLETE_MULTIPART_UPLOAD = auto(), WRITE, "POST /bucket/key?uploadId"
    COPY_OBJECT = auto(), WRITE, "PUT /bucket/key"
    DELETE_OBJECT = auto(), WRITE, "DELETE /bucket/key", "versionId"
    DELETE_OBJECT_ANNOTATION = auto(), WRITE, "DELETE /bucket/key?annotation&annotationName", "versionId"
    DELETE_OBJECT_TAGGING = auto(), WRITE, "DELETE /bucket/key?tagging", "versionId"
    PUT_OBJECT = auto(), WRITE, "PUT /bucket/key"
    PUT_OBJECT_ACL = auto(), WRITE, "PUT /bucket/key?acl", "versionId"
    PUT_OBJECT_ANNOTATION = auto(), WRITE, "PUT /bucket/key?annotation&annotationName", "versionId"
    PUT_OBJECT_LEGAL_HOLD = auto(), WRITE, "PUT /bucket/key?legal-hold", "versionId"
    PUT_OBJECT_RETENTION = auto(), WRITE, "PUT /bucket/key?retention", "versionId"
    PUT_OBJECT_TAGGING = auto(), WRITE, "PUT /bucket/key?tagging", "versionId"
    RESTORE_OBJECT = auto(), WRITE, "POST /bucket/key?restore", "versionId"
    DELETE_OBJECTS = auto(), WRITE, "POST /bucket?delete"
    POST_OBJECT = auto(), WRITE, "POST /bucket"

    ABORT_MULTIPART_UPLOAD = auto(), STAGING, "DELETE /bucket/key?uploadId"
    CREATE_MULTIPART_UPLOAD = auto(), STAGING, "POST /bucket/key?uploads"
    UPLOAD_PART = auto(), STAGING, "PUT /bucket/key?partNumber&uploadId"
    UPLOAD_PART_COPY = auto(), STAGING, "PUT /bucket/key?partNumber&uploadId"

    CREATE_BUCKET = auto(), ADMINISTRATION, "PUT /bucket"
    CREATE_BUCKET_METADATA_CONFIGURATION = auto(), ADMINISTRATION, "POST /bucket?metadataConfiguration"
    CREATE_BUCKET_METADATA_TABLE_CONFIGURATION = auto(), ADMINISTRATION, "POST /bucket?metadataTable"
    DELETE_BUCKET = auto(), ADMINISTRATION, "DELETE /bucket"
    DELETE_BUCKET_ANALYTICS_CONFIGURATION = auto(), ADMINISTRATION, "DELETE /bucket?analytics&id"
    DELETE_BUCKET_CORS = auto(), ADMINISTRATION, "DELETE /bucket?cors"
    DELETE_BUCKET_ENCRYPTION = auto(), ADMINISTRATION, "DELETE /bucket?encryption"
    DELETE_BUCKET_INTELLIGENT_TIERING_CONFIGURATION = auto(), ADMINISTRATION, "DELETE /bucket?intelligent-tiering&id"
    DELETE_BUCKET_INVENTORY_CONFIGURATION = auto(), ADMINISTRATION, "DELETE /bucket?inventory&id"
    DELETE_BUCKET_LIFECYCLE = auto(), ADMINISTRATION, "DELETE /bucket?lifecycle"
    DELETE_BUCKET_METADATA_CONFIGURATION = auto(), ADMINISTRATION, "DELETE /bucket?metadataConfiguration"
    DELETE_BUCKET_METADATA_TABLE_CONFIGURATION = auto(), ADMINISTRATION, "DELETE /bucket?metadataTable"
    DELETE_BUCKET_METRICS_CONFIGURATION = auto(), ADMINISTRATION, "DELETE /bucket?metrics&id"
    DELETE_BUCKET_OWNERSHIP_CONTROLS = auto(), ADMINISTRATION, "DELETE /bucket?ownershipControls"
    DELETE_BUCKET_POLICY = auto(), ADMINISTRATION, "DELETE /bucket?policy"
    DELETE_BUCKET_REPLICATION = auto(), ADMINISTRATION, "DELETE /bucket?replication"
    DELETE_BUCKET_TAGGING = auto(), ADMINISTRATION, "DELETE /bucket?tagging"
    DELETE_BUCKET_WEBSITE = auto(), ADMINISTRATION, "DELETE /bucket?website"
    DELETE_PUBLIC_ACCESS_BLOCK = auto(), ADMINISTRATION, "DELETE /bucket?publicAccessBlock"
    PUT_BUCKET_ABAC = auto(), ADMINISTRATION, "PUT /bucket?abac"
    PUT_BUCKET_ACCELERATE_CONFIGURATION = auto(), ADMINISTRATION, "PUT /bucket?accelerate"
    PUT_BUCKET_ACL = auto(), ADMINISTRATION, "PUT /bucket?acl"
    PUT_BUCKET_ANALYTICS_CONFIGURATION = auto(), ADMINISTRATION, "PUT /bucket?analytics&id"
    PUT_BUCKET_CORS = auto(), ADMINISTRATION, "PUT /bucket?cors"
    PUT_BUCKET_ENCRYPTION = auto(), ADMINISTRATION, "PUT /bucket?encryption"
    PUT_BUCKET_INTELLIGENT_TIERING_CONFIGURATION = auto(), ADMINISTRATION, "PUT /bucket?intelligent-tiering&id"
    PUT_BUCKET_INVENTORY_CONFIGURATION = auto(), ADMINISTRATION, "PUT /bucket?inventory&id"
    PUT_BUCKET_LIFECYCLE_CONFIGURATION = auto(), ADMINISTRATION, "PUT /bucket?lifecycle"
    PUT_BUCKET_LOGGING = auto(), ADMINISTRATION, "PUT /bucket?logging"
    PUT_BUCKET_METRICS_CONFIGURATION = auto(), ADMINISTRATION, "PUT /bucket?metrics&id"
    PUT_BUCKET_NOTIFICATION_CONFIGURATION = auto(), ADMINISTRATION, "PUT /bucket?notification"
    PUT_BUCKET_OWNERSHIP_CONTROLS = auto(), ADMINISTRATION, "PUT /bucket?ownershipControls"
    PUT_BUCKET_POLICY = auto(), ADMINISTRATION, "PUT /bucket?policy"
    PUT_BUCKET_REPLICATION = auto(), ADMINISTRATION, "PUT /bucket?replication"
    PUT_BUCKET_REQUEST_PAYMENT = auto(), ADMINISTRATION, "PUT /bucket?requestPayment"
    PUT_BUCKET_TAGGING = auto(), ADMINISTRATION, "PUT /bucket?tagging"
    PUT_BUCKET_VERSIONING = auto(), ADMINISTRATION, "PUT /bucket?versioning"
    PUT_BUCKET_WEBSITE = auto(), ADMINISTRATION, "PUT /bucket?website"
    PUT_OBJECT_LOCK_CONFIGURATION = auto(), ADMINISTRATION, "PUT /bucket?object-lock"
    PUT_PUBLIC_ACCESS_BLOCK = auto(), ADMINISTRATION, "PUT /bucket?publicAccessBlock"
    UPDATE_BUCKET_METADATA_ANNOTATION_TABLE_CONFIGURATION = (
        auto(),
        ADMINISTRATION,
        "PUT /bucket?metadataAnnotationTable",
    )
    UPDATE_BUCKET_METADATA_INVENTORY_TABLE_CONFIGURATION = auto(), ADMINISTRATION, "PUT /bucket?metadataInventoryTable"
    UPDATE_BUCKET_METADATA_JOURNAL_TABLE_CONFIGURATION = auto(), ADMINISTRATION, "PUT /bucket?metadataJournalTable"

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
