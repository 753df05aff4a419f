"""From an S3 request's head, path style, to what it asks for. Fails closed: what is not recognised is refused."""

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import parse_qsl, quote, unquote_to_bytes

from gateway.errors import StoreError
from gateway.fencing import headers as fencing
from gateway.fencing.headers import FencingHeaders
from gateway.objects import conditions, forwarding
from gateway.objects.conditions import Condition
from gateway.objects.operations import Level, Operation, not_implemented, recognise

MAX_KEY_BYTES = 1024

_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_BROKEN_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_SESSION = {"fencing-token": fencing.TOKEN, "fencing-holder": fencing.HOLDER}
_TOKEN_METADATA = {b"x-amz-meta-fencing-token": fencing.TOKEN, b"x-amz-meta-fencing-holder": fencing.HOLDER}


@dataclass(frozen=True, slots=True)
class S3Request:
    """A request the gateway serves. ``bucket`` and ``key`` are empty where the operation has none.

    ``raw_key`` is the key as it goes to the store: the same bytes, each percent-encoded in the one way all stores read
    alike (a raw ``+``, say, is a space to some). ``parameters`` are the decoded query, ``headers`` those to send on.
    """

    operation: Operation
    bucket: str
    key: str
    raw_key: str
    parameters: tuple[tuple[str, str], ...]
    headers: tuple[tuple[str, str], ...]
    fencing: FencingHeaders
    condition: Condition | None

    @property
    def raw_path(self) -> str:
        """The path to ask the store for."""
        return f"/{self.bucket}/{self.raw_key}" if self.raw_key else f"/{self.bucket}"

    @property
    def query(self) -> str:
        """The query to ask the store with, encoded."""
        return "&".join(f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in self.parameters)


def classify(method: str, raw_path: bytes, query_string: bytes, headers: Iterable[tuple[bytes, bytes]]) -> S3Request:
    """Read the head of a request. ``raw_path`` is without the query, as on the wire.

    Raises ``StoreError``, 400 for what cannot be read and 501 for what is not served, and the errors of
    ``gateway.fencing.headers.read``.
    """
    received = tuple(headers)
    bucket, key = _path(raw_path)
    parameters = _parameters(query_string)
    level = Level.OBJECT if key else Level.BUCKET if bucket else Level.SERVICE
    copies = any(name.lower().replace(b"_", b"-").startswith(b"x-amz-copy-source") for name, _ in received)
    operation = recognise(method, level, {name for name, _ in parameters}, copies=copies)
    if operation is Operation.LIST_OBJECTS_V2 and ("list-type", "2") not in parameters:
        raise not_implemented("ListObjects with this list-type")
    named = _named(received)
    return S3Request(
        operation,
        bucket,
        key,
        quote(key, safe="/"),
        tuple(pair for pair in parameters if pair[0] != "x-id"),
        forwarding.forwarded(operation, named),
        _fencing(operation, received, named.get("x-amz-security-token")),
        conditions.read(operation, named) if operation.writes else None,
    )


def _path(raw_path: bytes) -> tuple[str, str]:
    """Bucket and key. Nothing is normalised: ``/b//k`` is the key ``/k``, ``/b/../k`` is the key ``../k``."""
    if not raw_path.startswith(b"/") or _BROKEN_ESCAPE.search(raw_path):
        raise StoreError("InvalidURI", 400, "Couldn't parse the specified URI.")
    raw_bucket, slash, raw_key = raw_path[1:].partition(b"/")
    bucket, key = _text(raw_bucket), _text(raw_key)
    if (bucket or slash) and not _is_bucket(bucket):
        raise StoreError("InvalidBucketName", 400, "The specified bucket is not valid.")
    if len(key.encode()) > MAX_KEY_BYTES:
        raise StoreError("KeyTooLongError", 400, f"Your key is too long: a key has at most {MAX_KEY_BYTES} bytes.")
    return bucket, key


def _is_bucket(name: str) -> bool:
    if not _BUCKET.fullmatch(name) or ".." in name:
        return False
    try:
        ipaddress.IPv4Address(name)
    except ValueError:
        return True
    return False


def _text(raw: bytes) -> str:
    try:
        text = unquote_to_bytes(raw).decode()
    except UnicodeDecodeError:
        raise StoreError("InvalidURI", 400, "The URI must be UTF-8, percent-encoded.") from None
    if "\0" in text:  # S3 would take it; the database that keeps the intents cannot
        raise StoreError("InvalidURI", 400, "A NUL character cannot be part of a key.")
    return text


def _parameters(query_string: bytes) -> tuple[tuple[str, str], ...]:
    """The decoded query. A plus sign is a space, as S3 reads it; to send it on, spaces become ``%20``."""
    found: dict[str, str] = {}
    for part in query_string.split(b"&"):
        if not part:
            continue
        name, _, value = (_text(piece) for piece in part.replace(b"+", b" ").partition(b"="))
        if name in found:
            raise StoreError("InvalidArgument", 400, f"The query parameter {name[:64]!a} stands twice.")
        found[name] = value
    return tuple(found.items())


def _named(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Headers by lower-case name, each once."""
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


def _fencing(operation: Operation, headers: tuple[tuple[bytes, bytes], ...], session: str | None) -> FencingHeaders:
    """The fencing headers; where they have no token, what the metadata of a put say, and then the session token.

    Metadata and credentials are all that some clients, the AWS CLI for one, let their users set.
    """
    own = [(name, value) for name, value in headers if name.lower().replace(b"_", b"-") not in _TOKEN_METADATA]
    read = fencing.read(own)
    metadata = fencing.read(
        (_TOKEN_METADATA[name.lower()], value)
        for name, value in headers
        if name.lower() in _TOKEN_METADATA and operation is Operation.PUT_OBJECT
    )
    said = (metadata, FencingHeaders() if session is None else _session(session))
    if read.token is not None:
        return read
    first = next((one for one in said if one.token is not None), FencingHeaders())
    return FencingHeaders(first.token, read.resource, read.holder or first.holder)


def _session(token: str) -> FencingHeaders:
    """What a session token says. It goes with every operation of every client, and is always signed."""
    try:
        pairs = parse_qsl(token, keep_blank_values=True, strict_parsing=True, max_num_fields=2)
    except ValueError:
        pairs = []
    if not pairs or any(name not in _SESSION for name, _ in pairs):
        raise StoreError(
            "InvalidToken", 400, "A session token must read fencing-token=N, and maybe &fencing-holder=NAME."
        )
    return fencing.read((_SESSION[name], value.encode()) for name, value in pairs)
