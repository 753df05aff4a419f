"""Which headers of a request go to the store. A write's unknown ``x-amz-*`` header is refused, never dropped."""

from collections.abc import Mapping

from gateway.objects.operations import Operation, not_implemented

METADATA = "x-amz-meta-"
OWN_METADATA = "x-amz-meta-fencing-"
RESOURCE = "x-amz-meta-fencing-resource"
TOKEN = "x-amz-meta-fencing-token"  # noqa: S105  # the name of a header, not a secret
WRITE_ID = "x-amz-meta-fencing-write-id"
TOMBSTONE = "x-amz-meta-fencing-tombstone"

_WRITE = frozenset(
    {
        "cache-control",
        "content-disposition",
        "content-encoding",
        "content-language",
        "content-type",
        "expires",
        "x-amz-acl",
        "x-amz-expected-bucket-owner",
        "x-amz-grant-full-control",
        "x-amz-grant-read",
        "x-amz-grant-read-acp",
        "x-amz-grant-write-acp",
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
    }
)
_READ = frozenset(
    {
        "if-match",
        "if-modified-since",
        "if-none-match",
        "if-unmodified-since",
        "range",
        "x-amz-checksum-mode",
        "x-amz-expected-bucket-owner",
        "x-amz-request-payer",
        "x-amz-server-side-encryption-customer-algorithm",
        "x-amz-server-side-encryption-customer-key",
        "x-amz-server-side-encryption-customer-key-md5",
    }
)
_LISTING = frozenset({"x-amz-expected-bucket-owner", "x-amz-optional-object-attributes", "x-amz-request-payer"})

_FORWARDED: dict[Operation, frozenset[str]] = {
    Operation.LIST_BUCKETS: frozenset(),
    Operation.HEAD_BUCKET: _LISTING,
    Operation.GET_BUCKET_LOCATION: _LISTING,
    Operation.LIST_OBJECTS_V2: _LISTING,
    Operation.GET_OBJECT: _READ,
    Operation.HEAD_OBJECT: _READ,
    Operation.PUT_OBJECT: _WRITE,
    Operation.DELETE_OBJECT: frozenset({"x-amz-expected-bucket-owner"}),
}

# Said to the gateway and done with here: the hop's own signature, framing and checks.
_BOOKKEEPING = frozenset(
    {
        "x-amz-checksum-algorithm",
        "x-amz-content-sha256",
        "x-amz-date",
        "x-amz-decoded-content-length",
        "x-amz-security-token",
        "x-amz-trailer",
        "x-amz-user-agent",
    }
)
_CHECKSUM = "x-amz-checksum-"


def forwarded(operation: Operation, headers: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """The headers to send on, given a request's headers by lower-case name, each once.

    Checksums of the body are left out: they are sent on once they are verified.
    """
    kept = []
    for name, value in headers.items():
        if name in _FORWARDED[operation] or _is_metadata(operation, name):
            kept.append((name, value))
        elif operation.writes and name.startswith("x-amz-") and not _consumed(operation, name):
            raise not_implemented(f"{operation} with the header {name}")
    return tuple(pair for pair in map(_without_framing, kept) if pair[1])


def own_metadata(resource: str, token: str, write_id: str, *, tombstone: bool = False) -> tuple[tuple[str, str], ...]:
    """What the gateway writes into the metadata of each of its objects: whose write it is, and by which right."""
    headers = ((RESOURCE, resource), (TOKEN, token), (WRITE_ID, write_id))
    return (*headers, (TOMBSTONE, "true")) if tombstone else headers


def is_own(name: str) -> bool:
    """Whether the header is metadata that only the gateway writes, in any spelling."""
    return name.replace("_", "-").startswith(OWN_METADATA)


def _is_metadata(operation: Operation, name: str) -> bool:
    return operation is Operation.PUT_OBJECT and name.startswith(METADATA) and not is_own(name)


def _consumed(operation: Operation, name: str) -> bool:
    if name in _BOOKKEEPING or name.startswith("x-amz-sdk-"):
        return True
    return operation is Operation.PUT_OBJECT and (is_own(name) or name.startswith(_CHECKSUM))


def _without_framing(header: tuple[str, str]) -> tuple[str, str]:
    """aws-chunked is how the body came here, not how it is stored."""
    name, value = header
    if name != "content-encoding":
        return header
    codings = [coding.strip() for coding in value.split(",")]
    return name, ",".join(coding for coding in codings if coding and coding.lower() != "aws-chunked")
