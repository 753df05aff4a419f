"""Which S3 operation a request is, by method and query. What is not in these tables is not passed on."""

from collections.abc import Set as AbstractSet
from enum import StrEnum

from gateway.errors import StoreError


class Operation(StrEnum):
    """The operations the gateway serves, by S3's names."""

    LIST_BUCKETS = "ListBuckets"
    HEAD_BUCKET = "HeadBucket"
    GET_BUCKET_LOCATION = "GetBucketLocation"
    LIST_OBJECTS_V2 = "ListObjectsV2"
    GET_OBJECT = "GetObject"
    HEAD_OBJECT = "HeadObject"
    PUT_OBJECT = "PutObject"
    DELETE_OBJECT = "DeleteObject"

    @property
    def writes(self) -> bool:
        """Whether the operation changes an object, and so needs a fencing token."""
        return self in (Operation.PUT_OBJECT, Operation.DELETE_OBJECT)


class Level(StrEnum):
    """What a path names."""

    SERVICE = ""
    BUCKET = "Bucket"
    OBJECT = "Object"


_SERVED: dict[tuple[str, Level], Operation] = {
    ("GET", Level.SERVICE): Operation.LIST_BUCKETS,
    ("HEAD", Level.BUCKET): Operation.HEAD_BUCKET,
    ("GET", Level.OBJECT): Operation.GET_OBJECT,
    ("HEAD", Level.OBJECT): Operation.HEAD_OBJECT,
    ("PUT", Level.OBJECT): Operation.PUT_OBJECT,
    ("DELETE", Level.OBJECT): Operation.DELETE_OBJECT,
}

_OBJECT_READ = frozenset(
    {
        "partNumber",
        "response-cache-control",
        "response-content-disposition",
        "response-content-encoding",
        "response-content-language",
        "response-content-type",
        "response-expires",
        "versionId",
    }
)
_PARAMETERS: dict[Operation, frozenset[str]] = {
    Operation.LIST_BUCKETS: frozenset({"bucket-region", "continuation-token", "max-buckets", "prefix"}),
    Operation.HEAD_BUCKET: frozenset(),
    Operation.GET_BUCKET_LOCATION: frozenset({"location"}),
    Operation.LIST_OBJECTS_V2: frozenset(
        {
            "continuation-token",
            "delimiter",
            "encoding-type",
            "fetch-owner",
            "list-type",
            "max-keys",
            "prefix",
            "start-after",
        }
    ),
    Operation.GET_OBJECT: _OBJECT_READ,
    Operation.HEAD_OBJECT: _OBJECT_READ,
    Operation.PUT_OBJECT: frozenset(),
    Operation.DELETE_OBJECT: frozenset(),
}

# Refused, but by name. The rest of a name follows from method and level: PUT ?acl on a bucket is PutBucketAcl.
_NAMED: dict[tuple[str, Level, str], str] = {
    ("POST", Level.OBJECT, "uploads"): "CreateMultipartUpload",
    ("PUT", Level.OBJECT, "uploadId"): "UploadPart",
    ("POST", Level.OBJECT, "uploadId"): "CompleteMultipartUpload",
    ("DELETE", Level.OBJECT, "uploadId"): "AbortMultipartUpload",
    ("GET", Level.OBJECT, "uploadId"): "ListParts",
    ("GET", Level.BUCKET, "uploads"): "ListMultipartUploads",
    ("POST", Level.BUCKET, "delete"): "DeleteObjects",
    ("GET", Level.BUCKET, "versions"): "ListObjectVersions",
    ("GET", Level.BUCKET, "session"): "CreateSession",
    ("POST", Level.OBJECT, "restore"): "RestoreObject",
    ("POST", Level.OBJECT, "select"): "SelectObjectContent",
    ("PUT", Level.OBJECT, "append"): "AppendObject",
    ("PUT", Level.OBJECT, "renameObject"): "RenameObject",
    ("PUT", Level.OBJECT, "encryption"): "UpdateObjectEncryption",
    ("DELETE", Level.OBJECT, "versionId"): "DeleteObject of a version",
}
_LIST_OBJECTS = frozenset({"delimiter", "encoding-type", "marker", "max-keys", "prefix"})
_BARE: dict[tuple[str, Level], str] = {
    ("PUT", Level.BUCKET): "CreateBucket",
    ("DELETE", Level.BUCKET): "DeleteBucket",
    ("POST", Level.BUCKET): "PostObject",
}
_VERBS = {"GET": "Get", "PUT": "Put", "DELETE": "Delete"}
_SUBRESOURCES = {
    "abac": "Abac",
    "accelerate": "Accelerate",
    "acl": "Acl",
    "analytics": "Analytics",
    "annotation": "Annotation",
    "attributes": "Attributes",
    "cors": "Cors",
    "encryption": "Encryption",
    "intelligent-tiering": "IntelligentTiering",
    "inventory": "Inventory",
    "legal-hold": "LegalHold",
    "lifecycle": "Lifecycle",
    "logging": "Logging",
    "metrics": "Metrics",
    "notification": "Notification",
    "object-lock": "ObjectLock",
    "ownershipControls": "OwnershipControls",
    "policy": "Policy",
    "policyStatus": "PolicyStatus",
    "publicAccessBlock": "PublicAccessBlock",
    "replication": "Replication",
    "requestPayment": "RequestPayment",
    "retention": "Retention",
    "tagging": "Tagging",
    "torrent": "Torrent",
    "versioning": "Versioning",
    "website": "Website",
}


def recognise(method: str, level: Level, parameters: AbstractSet[str], *, copies: bool) -> Operation:
    """The operation, or ``StoreError`` 501 naming the one that is not served.

    ``parameters`` are the names in the query; ``copies`` says that the request names a source to copy from.
    """
    if copies:
        raise not_implemented("UploadPartCopy" if "uploadId" in parameters else "CopyObject")
    parameters = parameters - {"x-id"}  # the operation's name again, as some SDKs add it
    operation = _SERVED.get((method, level))
    if (method, level) == ("GET", Level.BUCKET):
        if "location" in parameters:
            operation = Operation.GET_BUCKET_LOCATION
        elif "list-type" in parameters:
            operation = Operation.LIST_OBJECTS_V2
        elif parameters <= _LIST_OBJECTS:
            raise not_implemented("ListObjects without list-type=2")
    allowed = _PARAMETERS[operation] if operation is not None else frozenset()
    if unknown := sorted(parameters - allowed):
        raise not_implemented(_name(method, level, unknown))
    if operation is None:
        raise not_implemented(_BARE.get((method, level), f"{method} on this path"))
    return operation


def _name(method: str, level: Level, parameters: list[str]) -> str:
    """The best name there is for an operation told by one of these parameters."""
    for parameter in parameters:
        if name := _NAMED.get((method, level, parameter)):
            return name
    for parameter in parameters:
        if parameter in _SUBRESOURCES and method in _VERBS:
            return f"{_VERBS[method]}{level.value}{_SUBRESOURCES[parameter]}"
    return f"{method} with the query parameter {parameters[0][:64]!a}"


def not_implemented(what: str) -> StoreError:
    """S3's answer for what it could do and this gateway does not."""
    return StoreError("NotImplemented", 501, f"{what} is not implemented by this gateway.")
