"""The headers of a request: those that go to the store, and the client's own condition on a write.

On a request that is no read, an unknown ``x-amz-*`` header is refused. The gateway evaluates an If-Match or
If-None-Match on a write and never forwards it: S3 takes one condition.
"""

import re
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import StrEnum

from gateway.errors import StoreError
from gateway.objects.s3 import addressing
from gateway.objects.s3.operations import Operation, OperationKind, not_implemented

METADATA = "x-amz-meta-"
OWN_METADATA = "x-amz-meta-fencing-"
RESOURCE = "x-amz-meta-fencing-resource"
TOKEN = "x-amz-meta-fencing-token"  # noqa: S105  # the name of a header, not a secret
WRITE_ID = "x-amz-meta-fencing-write-id"
SIGNATURE = "x-amz-meta-fencing-signature"
INVOCATION = "x-amz-meta-fencing-invocation"
TOMBSTONE = "x-amz-meta-fencing-tombstone"

# Headers that go with every operation on a bucket. The store answers an Origin with the CORS headers for a browser.
_ALWAYS = frozenset({"origin", "x-amz-expected-bucket-owner", "x-amz-request-payer"})
_GRANTS = frozenset(
    {
        "x-amz-acl",
        "x-amz-grant-full-control",
        "x-amz-grant-read",
        "x-amz-grant-read-acp",
        "x-amz-grant-write",
        "x-amz-grant-write-acp",
    }
)
_NEW_OBJECT = frozenset(
    {
        "cache-control",
        "content-disposition",
        "content-encoding",
        "content-language",
        "content-type",
        "expires",
        "x-amz-object-lock-event-hold",
        "x-amz-object-lock-event-hold-duration-days",
        "x-amz-object-lock-event-hold-duration-years",
        "x-amz-object-lock-legal-hold",
        "x-amz-object-lock-mode",
        "x-amz-object-lock-retain-until-date",
        "x-amz-server-side-encryption",
        "x-amz-server-side-encryption-aws-kms-key-id",
        "x-amz-server-side-encryption-bucket-key-enabled",
        "x-amz-server-side-encryption-context",
        "x-amz-storage-class",
        "x-amz-tagging",
        "x-amz-website-redirect-location",
        *_GRANTS - {"x-amz-grant-write"},
    }
)
_ALGORITHM, _TYPE = "x-amz-checksum-algorithm", "x-amz-checksum-type"
_BYPASS = "x-amz-bypass-governance-retention"
_LOCK_TOKEN = "x-amz-bucket-object-lock-token"  # noqa: S105  # the name of a header, not a secret

_CUSTOMER_KEY = frozenset(
    {
        "x-amz-server-side-encryption-customer-algorithm",
        "x-amz-server-side-encryption-customer-key",
        "x-amz-server-side-encryption-customer-key-md5",
    }
)
_GET_OBJECT = _CUSTOMER_KEY | {
    "if-match",
    "if-modified-since",
    "if-none-match",
    "if-unmodified-since",
    "range",
    "x-amz-checksum-mode",
}
_LIST_OBJECTS = frozenset({"x-amz-optional-object-attributes"})

# Beside those that go with every operation.
_FORWARDED: dict[Operation, AbstractSet[str]] = {
    Operation.GET_OBJECT: _GET_OBJECT,
    Operation.HEAD_OBJECT: _GET_OBJECT,
    Operation.GET_OBJECT_ANNOTATION: frozenset({"x-amz-checksum-mode"}),
    Operation.GET_OBJECT_ATTRIBUTES: _CUSTOMER_KEY
    | {"x-amz-max-parts", "x-amz-object-attributes", "x-amz-part-number-marker"},
    Operation.LIST_PARTS: _CUSTOMER_KEY,
    Operation.LIST_OBJECTS: _LIST_OBJECTS,
    Operation.LIST_OBJECTS_V2: _LIST_OBJECTS,
    Operation.LIST_OBJECT_VERSIONS: _LIST_OBJECTS,
    Operation.PUT_OBJECT: _NEW_OBJECT,
    Operation.COPY_OBJECT: _NEW_OBJECT | {_ALGORITHM},
    Operation.CREATE_MULTIPART_UPLOAD: _NEW_OBJECT | {_ALGORITHM, _TYPE},
    Operation.COMPLETE_MULTIPART_UPLOAD: frozenset({"x-amz-mp-object-size"}),
    Operation.DELETE_OBJECT: frozenset({_BYPASS}),
    Operation.DELETE_OBJECTS: frozenset({_BYPASS}),
    Operation.PUT_OBJECT_RETENTION: frozenset({_BYPASS}),
    Operation.PUT_OBJECT_ACL: _GRANTS,
    Operation.CREATE_BUCKET: _GRANTS
    | {"x-amz-bucket-namespace", "x-amz-bucket-object-lock-enabled", "x-amz-object-ownership"},
    Operation.PUT_BUCKET_ACL: _GRANTS,
    Operation.PUT_BUCKET_LIFECYCLE_CONFIGURATION: frozenset({"x-amz-transition-default-minimum-object-size"}),
    Operation.PUT_BUCKET_NOTIFICATION_CONFIGURATION: frozenset({"x-amz-skip-destination-validation"}),
    Operation.PUT_BUCKET_POLICY: frozenset({"x-amz-confirm-remove-self-bucket-access"}),
    Operation.PUT_BUCKET_REPLICATION: frozenset({_LOCK_TOKEN}),
    Operation.PUT_OBJECT_LOCK_CONFIGURATION: frozenset({_LOCK_TOKEN}),
}
_WITH_METADATA = frozenset({Operation.PUT_OBJECT, Operation.COPY_OBJECT, Operation.CREATE_MULTIPART_UPLOAD})

# Headers for the gateway itself: signature, framing and checks of the request.
_BOOKKEEPING = frozenset(
    {
        _ALGORITHM,
        "x-amz-content-sha256",
        "x-amz-date",
        "x-amz-decoded-content-length",
        "x-amz-security-token",
        "x-amz-trailer",
        "x-amz-user-agent",
    }
)
# S3 has one version. The AWS SDK for C++ names it in uploads, and with it PyArrow. Another one may mean anything.
_API_VERSION = ("x-amz-api-version", "2006-03-01")
_CHECKSUM = "x-amz-checksum-"
_UNREADABLE = "a write to such an object could not be settled without its key"
_REASONS = {
    "x-amz-mfa": "a code is good for the caller's own device, and the gateway signs with credentials of its own",
    **dict.fromkeys(_CUSTOMER_KEY, _UNREADABLE),
    **dict.fromkeys((name.replace("x-amz-", "x-amz-copy-source-", 1) for name in _CUSTOMER_KEY), _UNREADABLE),
}


def forwarded(operation: Operation, headers: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return the headers to send on, given a request's headers by lower-case name.

    Checksums of the body are left out: they are sent on once they are verified. Checksums of a CompleteMultipartUpload
    are the object's, and go on. Raises ``StoreError`` 501 for an ``x-amz-*`` header that would get lost, unless on a
    read.
    """
    kept = []
    for name, value in headers.items():
        if name in _ALWAYS or name in _FORWARDED.get(operation, ()) or _is_of_the_object(operation, name):
            kept.append((name, value))
        elif (
            operation.kind is not OperationKind.READ
            and _is_amazon(name)
            and not _consumed(operation, name)
            and (name, value) != _API_VERSION
        ):
            raise not_implemented(f"{operation} with the header {name}", _REASONS.get(name, ""))
    # A header without a value has no effect, but metadata may be empty.
    return tuple(pair for pair in map(_without_framing, kept) if pair[1] or pair[0].startswith(METADATA))


def own_metadata(resource: str, token: str, write_id: str, *, tombstone: bool = False) -> tuple[tuple[str, str], ...]:
    """Return the metadata that the gateway gives each of its objects: whose write it is, and with which token."""
    headers = ((RESOURCE, resource), (TOKEN, token), (WRITE_ID, write_id))
    return (*headers, (TOMBSTONE, "true")) if tombstone else headers


def is_own(name: str) -> bool:
    """Return whether the header is metadata that only the gateway writes, in any spelling."""
    return name.replace("_", "-").startswith(OWN_METADATA)


def _is_amazon(name: str) -> bool:
    return name.replace("_", "-").startswith("x-amz-")


def _is_of_the_object(operation: Operation, name: str) -> bool:
    if operation is Operation.COMPLETE_MULTIPART_UPLOAD:
        return name.startswith(_CHECKSUM) and name != _ALGORITHM
    return operation in _WITH_METADATA and name.startswith(METADATA) and not is_own(name)


def _consumed(operation: Operation, name: str) -> bool:
    if name in _BOOKKEEPING or name.startswith("x-amz-sdk-"):
        return True
    if operation.copies:
        return name in addressing.COPY_HEADERS or (operation in _WITH_METADATA and is_own(name))
    has_body = operation.method in ("PUT", "POST")
    return (has_body and name.startswith(_CHECKSUM)) or (operation in _WITH_METADATA and is_own(name))


def _without_framing(header: tuple[str, str]) -> tuple[str, str]:
    """Remove aws-chunked, which tells how the body came here and not how it is stored."""
    name, value = header
    if name != "content-encoding" or "aws-chunked" not in value.lower():
        return header
    codings = [coding.strip() for coding in value.split(",")]
    return name, ",".join(coding for coding in codings if coding and coding.lower() != "aws-chunked")


_ETAG = re.compile(r'"[^",\s]+"|[^",\s]+')
_CREATE = frozenset({Operation.PUT_OBJECT, Operation.COPY_OBJECT, Operation.COMPLETE_MULTIPART_UPLOAD})


class Expect(StrEnum):
    """The state of the object on which the client's write depends."""

    ABSENT = "absent"
    EXISTS = "exists"
    ETAG = "etag"


@dataclass(frozen=True, slots=True)
class WriteCondition:
    """A client's condition. ``etag`` (without quotes) is set for ``Expect.ETAG`` only."""

    expect: Expect
    etag: str | None = None

    def broken(self, current: str | None) -> StoreError | None:
        """Return S3's error for the object's ETag (None: no object); None where the condition holds."""
        if self.expect is not Expect.ABSENT and current is None:
            return StoreError("NoSuchKey", 404, "The specified key does not exist.")
        holds = {Expect.ABSENT: current is None, Expect.EXISTS: True, Expect.ETAG: current == self.etag}
        if holds[self.expect]:
            return None
        header = "If-None-Match" if self.expect is Expect.ABSENT else "If-Match"
        return StoreError(
            "PreconditionFailed",
            412,
            "At least one of the pre-conditions you specified did not hold",
            facts={"condition": header},
        )


def read_condition(operation: Operation, headers: Mapping[str, str]) -> WriteCondition | None:
    """Return the condition of a write, given its headers by lower-case name. Raises 501 for one that S3 does not have.

    On reads these headers go to the store.
    """
    if_match, if_none_match = headers.get("if-match"), headers.get("if-none-match")
    if "if-modified-since" in headers or "if-unmodified-since" in headers:
        raise not_implemented(f"{operation} with a condition on the time of modification")
    if if_match is not None and if_none_match is not None:
        raise not_implemented(f"{operation} with both If-Match and If-None-Match")
    if if_none_match is not None:
        if if_none_match != "*" or operation not in _CREATE:
            raise not_implemented(f"{operation} with this form of If-None-Match")
        return WriteCondition(Expect.ABSENT)
    if if_match is None:
        return None
    if operation not in _CREATE | {Operation.DELETE_OBJECT}:
        raise not_implemented(f"{operation} with If-Match")
    if if_match == "*" and operation is not Operation.DELETE_OBJECT:
        raise not_implemented(f"{operation} with If-Match: *")
    return _matching(if_match, f"{operation} with this form of If-Match")


def condition_of_entry(etag: str) -> WriteCondition:
    """Return the condition in the ``<ETag>`` of one object of a DeleteObjects: the same as If-Match of a
    DeleteObject.
    """
    return _matching(etag.strip(), f"{Operation.DELETE_OBJECTS} with this form of ETag")


def _matching(value: str, what: str) -> WriteCondition:
    if value == "*":
        return WriteCondition(Expect.EXISTS)
    if value.startswith("W/") or not _ETAG.fullmatch(value):
        raise not_implemented(what)
    return WriteCondition(Expect.ETAG, value.strip('"'))
