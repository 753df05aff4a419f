"""From an S3 request's head to what it asks for, and to where its fencing token stands. Fails closed: an unrecognised
request is refused.

Not every client lets its user set a header. So the token may also stand in the metadata, in the query of a presigned
request, or in the session token.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl, quote

from gateway.errors import RequestMalformed, ResourceMalformed, StoreError
from gateway.fencing import headers as fencing
from gateway.fencing.headers import FencingHeaders
from gateway.objects.s3 import addressing, request_headers
from gateway.objects.s3.addressing import CopySource
from gateway.objects.s3.operations import Level, Operation, OperationKind, not_implemented, recognise
from gateway.objects.s3.request_headers import WriteCondition

FENCING_PARAMETERS = frozenset({"fencing-token", "fencing-holder", "fencing-resource", "fencing-sequencer"})
"""The names in the query of a presigned request."""

FENCED_CREDENTIALS = "fc1."
"""How the session tokens begin that the gateway issues itself: what they say is the authentication's to read."""

_METADATA = {
    b"x-amz-meta-fencing-token": fencing.TOKEN,
    b"x-amz-meta-fencing-holder": fencing.HOLDER,
    b"x-amz-meta-fencing-sequencer": fencing.SEQUENCER,
}
_WITH_METADATA = frozenset(
    {Operation.PUT_OBJECT, Operation.COPY_OBJECT, Operation.CREATE_MULTIPART_UPLOAD, Operation.POST_OBJECT}
)
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
    """Return the writer that a request names: the first token of headers, metadata, query, session token.

    ``headers`` are raw. They include headers in the query of a presigned request, or the fields of a form. ``query``
    are parameters with names in ``FENCING_PARAMETERS``. All sources are read: an unreadable one is an error even where
    another one counts. Raises the errors of ``gateway.fencing.headers.read``, and ``StoreError`` 400 for a session
    token that says something else.
    """
    received = tuple(headers)
    own = fencing.read(pair for pair in received if not _is_metadata(pair[0]))
    metadata = fencing.read(
        (_METADATA[name.lower()], value)
        for name, value in received
        if name.lower() in _METADATA and operation in _WITH_METADATA
    )
    signed = fencing.read((name.encode(), value.encode()) for name, value in query)
    if None not in (own.resource, signed.resource) and own.resource != signed.resource:
        raise ResourceMalformed("The request names two fencing resources.")
    sources = (own, metadata, signed, _of_session(session))
    first = next((one for one in sources if one.token is not None), FencingHeaders())
    resource = own.resource or signed.resource or first.resource
    writer = FencingHeaders(first.token, resource, own.holder or first.holder)
    # The proof of the token may come another way than the token itself. It must be about the same token.
    sequencers = next((one.sequencers for one in sources if one.sequencers), ())
    return fencing.add_sequencers(writer, sequencers) if sequencers else writer


def refuse_unsigned(query: Iterable[tuple[str, str]]) -> None:
    """Raise ``RequestMalformed`` where the query of a request that is not presigned names a writer."""
    for name, _ in query:
        raise RequestMalformed(
            f"The query parameter {name} is for presigned requests only.",
            advice=f"Send it as the header {name.title()}.",
        )


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
        raise StoreError(
            "InvalidToken",
            400,
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
_CONDITIONS = frozenset({"if-match", "if-none-match", "if-modified-since", "if-unmodified-since"})

# Stores differ in whether an empty one of these is there: to some, PUT ?uploadId= is a PutObject.
_NEED_A_VALUE = frozenset({"annotationName", "id", "list-type", "partNumber", "uploadId", "versionId"})


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


@dataclass(frozen=True, slots=True)
class _Query:
    """The query, sorted by the purpose of its parameters. ``headers`` are named in lower case."""

    parameters: Pairs
    headers: Pairs
    fencing: Pairs
    session: str | None


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
    query = _sorted(_parameters(query_string), named)
    for name, value in query.headers:
        if name in named:
            raise StoreError("InvalidRequest", 400, f"{name[:64]!a} stands in the query and among the headers.")
        named[name] = value
    level = Level.OBJECT if key else Level.BUCKET if bucket else Level.SERVICE
    copies = any(name.replace("_", "-").startswith(addressing.COPY_SOURCE) for name in named)
    operation = recognise(method, level, {name for name, _ in query.parameters}, copies=copies)
    _check_values(operation, dict(query.parameters))
    session = named.get("x-amz-security-token") if query.session is None else query.session
    carried = (*received, *((name.encode(), value.encode()) for name, value in query.headers))
    writes = operation.kind is not OperationKind.READ
    request = S3Request(
        operation,
        bucket,
        key,
        quote(key, safe="/"),
        query.parameters,
        request_headers.forwarded(operation, named),
        read_fencing(operation, carried, query.fencing, session),
        request_headers.read_condition(operation, named) if writes and _CONDITIONS & named.keys() else None,
        addressing.read_copy_source(operation, named) if operation.copies else None,
        query.headers,
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


def _sorted(parameters: Pairs, headers: Mapping[str, str]) -> _Query:
    """Sort the parameters by purpose. Only the query of a presigned request, which is signed, may carry headers."""
    given = dict(parameters)
    writer = tuple(pair for pair in parameters if pair[0] in FENCING_PARAMETERS)
    rest = tuple(
        pair for pair in parameters if pair[0] not in FENCING_PARAMETERS | {"x-id"}
    )  # x-id: the operation again
    if "X-Amz-Algorithm" not in given or "authorization" in headers:
        refuse_unsigned(writer)
        return _Query(rest, headers=(), fencing=(), session=None)
    session = given.get("X-Amz-Security-Token")
    if session is not None and "x-amz-security-token" in headers:
        raise StoreError("InvalidRequest", 400, "The session token stands in the query and among the headers.")
    rest = tuple(pair for pair in rest if pair[0] not in _AUTHENTICATION)
    hoisted = tuple(pair for pair in rest if _is_header(pair[0]))
    return _Query(
        parameters=tuple(pair for pair in rest if not _is_header(pair[0])),
        headers=_hoisted(hoisted),
        fencing=writer,
        session=session,
    )


def _is_header(name: str) -> bool:
    lower = name.lower()
    return lower in _CONDITIONS or (lower.startswith("x-amz-") and lower not in _NEVER_HOISTED)


def _hoisted(parameters: Pairs) -> Pairs:
    """Return headers out of a query, by lower-case name. A query may have characters that a header cannot."""
    found: dict[str, str] = {}
    for given, value in parameters:
        name = given.lower()
        if name in found:
            raise StoreError("InvalidArgument", 400, f"The query parameter {name[:64]!a} stands twice.")
        if not _HEADER_NAME.fullmatch(name) or _CONTROL.search(value):
            raise StoreError("InvalidArgument", 400, f"The query parameter {name[:64]!a} cannot be a header.")
        found[name] = value.strip()
    return tuple(found.items())


def _check_values(operation: Operation, parameters: Mapping[str, str]) -> None:
    for name in sorted(_NEED_A_VALUE & parameters.keys()):
        if not parameters[name]:
            raise StoreError("InvalidArgument", 400, f"The query parameter {name} has no value.")
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
