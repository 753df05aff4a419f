"""The head of an S3 request: its operation, fencing token and condition, and the headers to send on.

All of it fails closed. An unrecognised request is refused, and so is an unknown ``x-amz-*`` header, unless on a read.
Not every client lets its user set a header. So the token may also stand in the metadata, in the query of a presigned
request, or in the session token.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import parse_qsl, quote

from gateway.errors import RequestMalformed, ResourceMalformed, StoreError, TokenMalformed
from gateway.fencing import headers as fencing
from gateway.fencing.headers import FencingHeaders
from gateway.objects.s3 import addressing
from gateway.objects.s3.addressing import CopySource
from gateway.objects.s3.conditions import CONDITIONS, WriteCondition, read_condition
from gateway.objects.s3.operations import Level, Operation, OperationKind, not_implemented, recognise

METADATA = "x-amz-meta-"
MAX_METADATA = 2048
"""Bytes of all names and values that a client may give an object. It is S3's limit."""
DESCRIPTION = frozenset(
    {
        "cache-control",
        "content-disposition",
        "content-encoding",
        "content-language",
        "content-type",
        "expires",
    }
)
"""The headers that describe the bytes of an object."""


class Mark(StrEnum):
    """The names of the metadata in which the gateway keeps whose write an object is."""

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
        *DESCRIPTION,
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
_GET_OBJECT = _CUSTOMER_KEY | {*CONDITIONS, "range", "x-amz-checksum-mode"}
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
# Answers alone have these. s3cmd sends them back when it copies an object with other metadata, and S3 passes over them.
_OF_ANSWERS = frozenset(
    {
        "x-amz-archive-status",
        "x-amz-bucket-region",
        "x-amz-delete-marker",
        "x-amz-expiration",
        "x-amz-id-2",
        "x-amz-missing-meta",
        "x-amz-mp-parts-count",
        "x-amz-replication-status",
        "x-amz-request-charged",
        "x-amz-request-id",
        "x-amz-restore",
        "x-amz-tagging-count",
        "x-amz-version-id",
    }
)
# S3 has one version. The AWS SDK for C++ names it in uploads, and with it PyArrow. Another one may mean anything.
_API_VERSION = ("x-amz-api-version", "2006-03-01")
# Headers with several values, which the AWS SDK for Go writes on a line each.
_LISTS = frozenset({"x-amz-object-attributes", "x-amz-optional-object-attributes"})
_CHECKSUM, _SDK_ALGORITHM = "x-amz-checksum-", "x-amz-sdk-checksum-algorithm"
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
    _check_metadata(kept)
    # A header without a value has no effect, but metadata may be empty.
    return tuple(pair for pair in map(_without_framing, kept) if pair[1] or pair[0].startswith(METADATA))


def _check_metadata(headers: Iterable[tuple[str, str]]) -> None:
    """Refuse more metadata than an object can have. The gateway's own comes on top, and the store counts that too."""
    metadata = [(name.removeprefix(METADATA), value) for name, value in headers if name.startswith(METADATA)]
    size = sum(len(name.encode()) + len(value.encode()) for name, value in metadata)
    if size > MAX_METADATA:
        raise StoreError.known("MetadataTooLarge", facts={"size": size, "max_size_allowed": MAX_METADATA})


def combined(headers: Sequence[tuple[bytes, bytes]]) -> Sequence[tuple[bytes, bytes]]:
    """Return headers with each list on one line, its values joined by commas: S3 signs and reads repeated lines so.

    Other headers that are repeated stay, to be refused. So does the metadata in which a writer shows its token.
    """
    names = [name for name, _ in headers]
    if len(set(names)) == len(names):
        return headers
    joined: dict[bytes, list[bytes]] = {}
    rest = []
    for name, value in headers:
        if _is_list(name.decode("latin-1").lower()):
            joined.setdefault(name.lower(), []).append(value.strip())
        else:
            rest.append((name, value))
    return [*rest, *((name, b",".join(values)) for name, values in joined.items())]


def _is_list(name: str) -> bool:
    return name in _LISTS or (name.startswith(METADATA) and not is_own(name))


def own_metadata(resource: str, token: str, write_id: str, *, tombstone: bool = False) -> tuple[tuple[str, str], ...]:
    """Return the metadata that the gateway gives each of its objects: whose write it is, and with which token."""
    headers = ((Mark.RESOURCE, resource), (Mark.TOKEN, token), (Mark.WRITE_ID, write_id))
    return (*headers, (Mark.TOMBSTONE, "true")) if tombstone else headers


def is_own(name: str) -> bool:
    """Return whether the header is metadata that only the gateway writes, in any spelling."""
    return name.replace("_", "-").startswith(f"{METADATA}fencing-")


def _is_amazon(name: str) -> bool:
    return name.replace("_", "-").startswith("x-amz-")


def _is_of_the_object(operation: Operation, name: str) -> bool:
    if operation is Operation.COMPLETE_MULTIPART_UPLOAD:
        return name.startswith(_CHECKSUM) and name != _ALGORITHM
    return operation in _WITH_METADATA and name.startswith(METADATA) and not is_own(name)


def _is_checksum(name: str) -> bool:
    return name.startswith((_CHECKSUM, _SDK_ALGORITHM))


def _consumed(operation: Operation, name: str) -> bool:
    if name in _BOOKKEEPING or name in _OF_ANSWERS or name.startswith("x-amz-sdk-"):
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


FENCING_PARAMETERS = frozenset({"fencing-token", "fencing-holder", "fencing-resource", "fencing-sequencer"})
"""The names in the query of a presigned request."""

FENCED_CREDENTIALS = "fc1."
"""How the session tokens begin that the gateway issues itself: what they say is the authentication's to read."""

_METADATA = {
    b"x-amz-meta-fencing-token": fencing.TOKEN,
    b"x-amz-meta-fencing-holder": fencing.HOLDER,
    b"x-amz-meta-fencing-sequencer": fencing.SEQUENCER,
}
_SESSION = {
    "fencing-token": fencing.TOKEN,
    "fencing-holder": fencing.HOLDER,
    "fencing-sequencer": fencing.SEQUENCER,
}


def read_fencing(
    operation: Operation,
    headers: Iterable[tuple[bytes, bytes]],
    query: Iterable[tuple[str, str]] = (),
    session: str | None = None,
) -> FencingHeaders:
    """Return the writer that a request names. All of headers, metadata, query and session token must name one token.

    ``headers`` are raw. They include headers in the query of a presigned request, or the fields of a form. ``query``
    are parameters with names in ``FENCING_PARAMETERS``. Raises ``TokenMalformed`` where two differ. s3cmd sends headers
    of an answer back: the token of a newer holder there must not hide the client's own. Raises also the errors of
    ``gateway.fencing.headers.read``, and ``StoreError`` 400 for a session token that says something else.
    """
    received = tuple(headers)
    own = fencing.read(pair for pair in received if not _is_metadata(pair[0]))
    metadata = fencing.read(
        (_METADATA[name.lower()], value)
        for name, value in received
        if name.lower() in _METADATA and operation in _WITH_METADATA | {Operation.POST_OBJECT}
    )
    signed = fencing.read((name.encode(), value.encode()) for name, value in query)
    if None not in (own.resource, signed.resource) and own.resource != signed.resource:
        raise ResourceMalformed("The request names two fencing resources.")
    sources = (own, metadata, signed, _of_session(session))
    named = [one for one in sources if one.token is not None]
    if len({one.token for one in named}) > 1:
        raise TokenMalformed(
            "The request names different fencing tokens in its headers, metadata, query or session token.",
            advice="Send your own alone. A client that sends headers of an answer back must leave Fencing-Token out.",
        )
    first = next(iter(named), FencingHeaders())
    resource = own.resource or signed.resource or first.resource
    writer = FencingHeaders(first.token, resource, own.holder or first.holder)
    # The proof of the token may come another way than the token itself. It must be about the same token.
    sequencers = next((one.sequencers for one in sources if one.sequencers), ())
    return fencing.add_sequencers(writer, sequencers) if sequencers else writer


def _is_metadata(name: bytes) -> bool:
    return name.lower().replace(b"_", b"-") in _METADATA


def _of_session(token: str | None) -> FencingHeaders:
    """Return the writer in a session token, which clients send with every operation, and sign."""
    if token is None or token.startswith(FENCED_CREDENTIALS):
        return FencingHeaders()
    try:
        pairs = parse_qsl(token, keep_blank_values=True, strict_parsing=True, max_num_fields=3)
    except ValueError:
        pairs = []
    if not pairs or any(name not in _SESSION for name, _ in pairs):
        raise StoreError.known(
            "InvalidToken",
            "A session token must read fencing-token=N, and maybe &fencing-holder=NAME or &fencing-sequencer=….",
        )
    return fencing.read((_SESSION[name], value.encode()) for name, value in pairs)


Pairs = tuple[tuple[str, str], ...]

_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9a-z-]+")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_PART_NUMBER = re.compile(r"[1-9][0-9]{0,3}|10000")

_AUTHENTICATION = frozenset(
    {
        "X-Amz-Algorithm",
        "X-Amz-Content-Sha256",
        "X-Amz-Credential",
        "X-Amz-Date",
        "X-Amz-Expires",
        "X-Amz-Security-Token",
        "X-Amz-SignedHeaders",
        "X-Amz-Signature",
    }
)
_NEVER_HOISTED = frozenset(name.lower() for name in _AUTHENTICATION)

# Stores differ in whether an empty one of these is there: to some, PUT ?uploadId= is a PutObject.
_NEED_A_VALUE = frozenset({"annotationName", "id", "list-type", "partNumber", "uploadId", "versionId"})
_NO_VERSION = "Version id cannot be the empty string"
# Here clients send an empty version for the current one. Other operations would read or delete another than was meant.
_OF_LOCKS = frozenset(
    {
        Operation.GET_OBJECT_LEGAL_HOLD,
        Operation.GET_OBJECT_RETENTION,
        Operation.PUT_OBJECT_LEGAL_HOLD,
        Operation.PUT_OBJECT_RETENTION,
    }
)


@dataclass(frozen=True, slots=True)
class S3Request:
    """A request the gateway serves. ``bucket`` and ``key`` are empty where the operation has none.

    ``raw_key`` is the key as it goes to the store: the same bytes, percent-encoded in the one way that all stores read
    alike. Some read a raw ``+`` as a space. ``parameters`` are the decoded query, ``headers`` those to send on.
    ``hoisted`` are the headers (lower-case names) in the query of a presigned request; those to send on are among
    ``headers``. ``source`` is set for a copy only.
    """

    operation: Operation
    bucket: str
    key: str
    raw_key: str
    parameters: Pairs
    headers: Pairs
    fencing: FencingHeaders
    condition: WriteCondition | None
    source: CopySource | None = None
    hoisted: Pairs = ()

    @property
    def amends(self) -> bool:
        """Whether S3 has no condition for this write: an operation that amends, or a delete of one version."""
        deletes = self.operation is Operation.DELETE_OBJECT
        return self.operation.amends or (deletes and self.parameter("versionId") is not None)

    @property
    def raw_path(self) -> str:
        return f"/{self.bucket}/{self.raw_key}" if self.raw_key else f"/{self.bucket}"

    @property
    def query(self) -> str:
        return "&".join(f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in self.parameters)

    def parameter(self, name: str) -> str | None:
        return next((value for given, value in self.parameters if given == name), None)

    def headers_of_body(self, received: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        """Return the headers that were received, and those of the query, without checksums of anything but the body.

        The checksums of a CompleteMultipartUpload are the object's. A checksum in a query was computed before the body
        was known, mostly of an empty one; S3 ignores it.
        """
        of_object = self.operation is Operation.COMPLETE_MULTIPART_UPLOAD
        kept = [pair for pair in received if not (of_object and _is_checksum(pair[0].decode("latin-1").lower()))]
        return kept + [(name.encode(), value.encode()) for name, value in self.hoisted if not _is_checksum(name)]


def classify(
    method: str,
    raw_path: bytes,
    query_string: bytes,
    headers: Iterable[tuple[bytes, bytes]],
    host_bucket: str | None = None,
) -> S3Request:
    """Read the head of a request. ``raw_path`` is without the query, as on the wire.

    ``host_bucket``: the bucket that the host names, if it names one. Raises ``StoreError``, 400 for a head that cannot
    be read and 501 for one that the gateway does not serve, and the errors of ``gateway.fencing.headers.read``.
    """
    received = tuple(headers)
    bucket, key = addressing.read(raw_path, host_bucket)
    named = _named(received)
    parameters, hoisted, writer, session = _sorted(_parameters(query_string), named)
    for name, value in hoisted:
        if name in named:
            raise StoreError("InvalidRequest", 400, f"{name[:64]!a} stands in the query and among the headers.")
        named[name] = value
    level = Level.OBJECT if key else Level.BUCKET if bucket else Level.SERVICE
    copies = any(name.replace("_", "-").startswith(addressing.COPY_SOURCE) for name in named)
    operation = recognise(method, level, {name for name, _ in parameters}, copies=copies)
    if operation in _OF_LOCKS:
        parameters = tuple(pair for pair in parameters if pair != ("versionId", ""))
    _check_values(operation, dict(parameters))
    session = named.get("x-amz-security-token") if session is None else session
    carried = (*received, *((name.encode(), value.encode()) for name, value in hoisted))
    writes = operation.kind is not OperationKind.READ
    request = S3Request(
        operation,
        bucket,
        key,
        quote(key, safe="/"),
        parameters,
        forwarded(operation, named),
        read_fencing(operation, carried, writer, session),
        read_condition(operation, named) if writes and named.keys() & CONDITIONS else None,
        addressing.read_copy_source(operation, named) if operation.copies else None,
        hoisted,
    )
    if request.amends and request.condition is not None:
        raise not_implemented(f"{operation} of a version with If-Match")
    return request


def _parameters(query_string: bytes) -> Pairs:
    """Return the decoded query. A plus sign is a space, as S3 reads it; to send it on, spaces become ``%20``."""
    found: dict[str, str] = {}
    for part in query_string.split(b"&"):
        if not part:
            continue
        name, _, value = (addressing.text(piece) for piece in part.replace(b"+", b" ").partition(b"="))
        if name in found:
            raise StoreError("InvalidArgument", 400, f"The query parameter {name[:64]!a} stands twice.")
        found[name] = value
    return tuple(found.items())


def _sorted(parameters: Pairs, headers: Mapping[str, str]) -> tuple[Pairs, Pairs, Pairs, str | None]:
    """Return the parameters, headers by lower-case name, those that name a writer, and the session token of a query.

    Only the query of a presigned request, which is signed, may carry headers.
    """
    given = dict(parameters)
    writer = tuple(pair for pair in parameters if pair[0] in FENCING_PARAMETERS)
    rest = tuple(
        pair for pair in parameters if pair[0] not in FENCING_PARAMETERS | {"x-id"}
    )  # x-id: the operation again
    if "X-Amz-Algorithm" not in given or "authorization" in headers:
        if writer:
            name = writer[0][0]
            message = f"The query parameter {name} is for presigned requests only."
            raise RequestMalformed(message, advice=f"Send it as the header {name.title()}.")
        return rest, (), (), None
    session = given.get("X-Amz-Security-Token")
    if session is not None and "x-amz-security-token" in headers:
        raise StoreError("InvalidRequest", 400, "The session token stands in the query and among the headers.")
    rest = tuple(pair for pair in rest if pair[0] not in _AUTHENTICATION)
    hoisted = tuple(pair for pair in rest if _is_header(pair[0]))
    return tuple(pair for pair in rest if not _is_header(pair[0])), _hoisted(hoisted), writer, session


def _is_header(name: str) -> bool:
    lower = name.lower()
    return lower in CONDITIONS or (lower.startswith("x-amz-") and lower not in _NEVER_HOISTED)


def _hoisted(parameters: Pairs) -> Pairs:
    """Return headers out of a query, by lower-case name. A query may have characters that a header cannot."""
    found: dict[str, str] = {}
    for given, value in parameters:
        name = given.lower()
        if name in found:
            raise StoreError("InvalidArgument", 400, f"The query parameter {name[:64]!a} stands twice.")
        if not can_be_header(name, value):
            raise StoreError("InvalidArgument", 400, f"The query parameter {name[:64]!a} cannot be a header.")
        found[name] = value.strip()
    return tuple(found.items())


def can_be_header(name: str, value: str) -> bool:
    """Return whether a parameter or a field has only characters that a header can have. ``name`` is in lower case."""
    return _HEADER_NAME.fullmatch(name) is not None and _CONTROL.search(value) is None


def _check_values(operation: Operation, parameters: Mapping[str, str]) -> None:
    for name in sorted(_NEED_A_VALUE & parameters.keys()):
        if not parameters[name]:
            message = _NO_VERSION if name == "versionId" else f"The query parameter {name} has no value."
            raise StoreError("InvalidArgument", 400, message)
    if operation is Operation.LIST_OBJECTS_V2 and parameters["list-type"] != "2":
        raise not_implemented("ListObjects with this list-type")
    if "partNumber" in parameters and not _PART_NUMBER.fullmatch(parameters["partNumber"]):
        raise StoreError("InvalidArgument", 400, "Part number must be an integer between 1 and 10000, inclusive")


def _named(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Return headers by lower-case name. Raises ``StoreError`` for a header that is there twice."""
    found: dict[str, str] = {}
    for raw_name, raw_value in headers:
        name = raw_name.decode("latin-1").lower()
        try:
            value = raw_value.decode().strip()
        except UnicodeDecodeError:
            raise StoreError("InvalidRequest", 400, f"The header {name} must be ASCII or UTF-8.") from None
        if name in found:
            raise StoreError("InvalidRequest", 400, f"The header {name} stands twice.")
        found[name] = value
    return found
