"""The bucket and key that a request names, by its path or by its host and path, and the source that a copy names.

Nothing is normalised.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import quote, unquote_to_bytes

from gateway.errors import StoreError
from gateway.fencing import resource
from gateway.objects.s3.conditions import CONDITIONS, condition_on_source
from gateway.objects.s3.operations import Operation, not_implemented

MAX_KEY_BYTES = 1024

_PORT = re.compile(r":[0-9]*\Z")
_BROKEN_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")


def bucket_of_host(headers: Iterable[tuple[bytes, bytes]], domains: Iterable[str]) -> str | None:
    """Return the bucket in ``Host: bucket.domain``, None for any other host: the path names the bucket then.

    ``headers`` are raw ASGI headers. Case, port and the dot at the end of a full name do not count. ``read`` checks
    whether the result can be a bucket's name. The longest of ``domains`` that fits decides.
    """
    hosts = [value.decode("latin-1") for name, value in headers if name.lower() == b"host"]
    if len(hosts) != 1:
        return None
    host = _hostname(hosts[0])
    for domain in sorted({_hostname(domain) for domain in domains}, key=len, reverse=True):
        if host == domain:
            return None
        if host.endswith(f".{domain}"):
            return host[: -len(domain) - 1]
    return None


# With several databases, the router reads a path first, and the plane of its database reads it again.
@lru_cache(maxsize=64)
def read(raw_path: bytes, bucket_of_host: str | None = None) -> tuple[str, str]:
    """Return bucket and key; each empty where there is none. ``raw_path`` is without the query, as on the wire.

    ``/b//k`` is the key ``/k``, ``/b/../k`` is the key ``../k``. Raises ``StoreError`` 400 for a path that names
    nothing.
    """
    if not raw_path.startswith(b"/"):
        raise _unreadable()
    if bucket_of_host is None:
        raw_bucket, slash, raw_key = raw_path[1:].partition(b"/")
        bucket, key = text(raw_bucket), text(raw_key)
        named = bool(bucket or slash)
    else:
        bucket, key, named = bucket_of_host, text(raw_path[1:]), True
    if named:
        check(bucket, key)
    return bucket, key


def check(bucket: str, key: str) -> None:
    """Raise ``StoreError`` 400 where the bucket's name is none by S3's rules, or the key is too long."""
    if resource.is_bucket_alias(bucket):
        advice = "It is the alias of an access point. Objects are fenced by the name of their bucket, so use that."
        raise StoreError.known("InvalidBucketName", advice)
    if not resource.is_bucket_name(bucket):
        raise StoreError.known("InvalidBucketName")
    if len(key.encode()) > MAX_KEY_BYTES:
        raise StoreError.known("KeyTooLongError", facts={"size": len(key.encode()), "max_size_allowed": MAX_KEY_BYTES})


def text(raw: bytes) -> str:
    """Return percent-decoded UTF-8; a plus sign stays one. Raises ``StoreError`` 400 ``InvalidURI``."""
    if b"%" in raw and _BROKEN_ESCAPE.search(raw):
        raise _unreadable()
    try:
        decoded = (unquote_to_bytes(raw) if b"%" in raw else raw).decode()
    except UnicodeDecodeError:
        raise _unreadable("The URI must be UTF-8, percent-encoded.") from None
    if "\0" in decoded:  # S3 takes it, but the database that keeps the intents cannot
        raise _unreadable("A NUL character cannot be part of a key.")
    return decoded


def _hostname(host: str) -> str:
    return _PORT.sub("", host.strip()).lower().removesuffix(".")


def _unreadable(reason: str = "") -> StoreError:
    return StoreError.known("InvalidURI", reason=reason)


COPY_SOURCE = "x-amz-copy-source"

_RANGE = re.compile(r"bytes=([0-9]{1,18})-([0-9]{1,18})")
_OWNER = "x-amz-source-expected-bucket-owner"

COPY_HEADERS = frozenset(
    {COPY_SOURCE, f"{COPY_SOURCE}-range", *(f"{COPY_SOURCE}-{name}" for name in CONDITIONS), _OWNER}
    | {"x-amz-metadata-directive", "x-amz-tagging-directive"}
)
"""The headers of a copy that are read here, and not sent on."""


@dataclass(frozen=True, slots=True)
class CopySource:
    """The object a copy reads from. ``raw_key`` is percent-encoded like ``S3Request.raw_key``.

    ``conditions`` are headers for the read of the source, If-* under their own names. If the read gets 304, the copy
    gets 412. ``range`` is first and last byte, both included; None for the whole object. Metadata and tags come from
    the source unless those of the request replace them.
    """

    bucket: str
    key: str
    raw_key: str
    version_id: str | None = None
    conditions: tuple[tuple[str, str], ...] = ()
    range: tuple[int, int] | None = None
    replace_metadata: bool = False
    replace_tags: bool = False

    @property
    def expects_owner(self) -> bool:
        """Whether the request names the owner of the source's bucket."""
        return any(name == "x-amz-expected-bucket-owner" for name, _ in self.conditions)

    @property
    def raw_path(self) -> str:
        return f"/{self.bucket}/{self.raw_key}"

    @property
    def query(self) -> str:
        return "" if self.version_id is None else f"versionId={quote(self.version_id, safe='')}"


@dataclass(frozen=True, slots=True)
class PartSource:
    """The object that a part is copied from. ``key`` is not encoded; ``span`` is first and last byte, both included.

    With ``etag`` the store refuses the copy (412) where the source is another object by now.
    """

    bucket: str
    key: str
    etag: str | None = None
    version_id: str | None = None
    span: tuple[int, int] | None = None

    @property
    def headers(self) -> Sequence[tuple[str, str]]:
        """The headers that name the source to the store.

        Encoded here: a client's own spelling may mean another key to the store than it does to the gateway.
        """
        named = quote(f"{self.bucket}/{self.key}", safe="/")
        version = "" if self.version_id is None else f"?versionId={quote(self.version_id, safe='')}"
        headers = [(COPY_SOURCE, named + version)]
        if self.etag is not None:
            headers.append((f"{COPY_SOURCE}-if-match", f'"{self.etag}"'))
        if self.span is not None:
            headers.append((f"{COPY_SOURCE}-range", f"bytes={self.span[0]}-{self.span[1]}"))
        return headers


def read_copy_source(operation: Operation, headers: Mapping[str, str]) -> CopySource:
    """Return the source of a copy, given its headers by lower-case name. Raises ``StoreError``, 400 or 501."""
    if COPY_SOURCE not in headers:
        raise _invalid_source(f"A copy names its source in {COPY_SOURCE}.")
    bucket, key, version_id = _source_object(headers[COPY_SOURCE])
    conditions = [
        (name, condition_on_source(name, headers[f"{COPY_SOURCE}-{name}"]))
        for name in CONDITIONS
        if f"{COPY_SOURCE}-{name}" in headers
    ]
    if _OWNER in headers:
        conditions.append(("x-amz-expected-bucket-owner", headers[_OWNER]))
    if f"{COPY_SOURCE}-range" in headers and operation is not Operation.UPLOAD_PART_COPY:
        raise not_implemented(f"{operation} with the header {COPY_SOURCE}-range")
    return CopySource(
        bucket,
        key,
        quote(key, safe="/"),
        version_id,
        tuple(conditions),
        _span(headers.get(f"{COPY_SOURCE}-range")),
        _replaces(operation, headers, "x-amz-metadata-directive"),
        _replaces(operation, headers, "x-amz-tagging-directive"),
    )


def _replaces(operation: Operation, headers: Mapping[str, str], directive: str) -> bool:
    value = headers.get(directive)
    if value is not None and operation is not Operation.COPY_OBJECT:
        raise not_implemented(f"{operation} with the header {directive}")
    if value not in (None, "COPY", "REPLACE"):
        kind = directive.removeprefix("x-amz-").removesuffix("-directive")
        raise _invalid_source(f"Unknown {kind} directive.", "It must be COPY or REPLACE.")
    return value == "REPLACE"


def _source_object(source: str) -> tuple[str, str, str | None]:
    """Return bucket, key and version. The whole path is decoded before it is split: some clients encode its slash."""
    path, question, query = source.partition("?")
    if "+" in path:
        # AWS reads a space here and others a plus sign: guessing could copy another object than the client means.
        raise _invalid_source(f"A plus sign in {COPY_SOURCE} is ambiguous: write %2B for a plus sign, %20 for a space.")
    name, _, version = query.partition("=")
    if question and (name != "versionId" or not version):
        raise _invalid_source(
            f"After the question mark of {COPY_SOURCE} there is only versionId=; one in a key is %3F."
        )
    decoded, version_id = _decoded_source(path).removeprefix("/"), _decoded_source(version) if question else None
    if decoded.startswith("arn:"):
        raise not_implemented("Copying from an access point")
    bucket, _, key = decoded.partition("/")
    if not key:
        raise _invalid_source("Invalid copy source object key", f"{COPY_SOURCE} must be a bucket, a slash and a key.")
    if not resource.is_bucket_name(bucket) and not resource.is_bucket_alias(bucket):
        raise _invalid_source("Invalid copy source bucket name")
    check(bucket, key)
    return bucket, key, version_id


def _decoded_source(encoded: str) -> str:
    try:
        return text(encoded.encode())
    except StoreError as error:
        reason = f"{COPY_SOURCE} must be percent-encoded UTF-8 without NUL."
        raise _invalid_source("Invalid copy source encoding", reason) from error


def _span(value: str | None) -> tuple[int, int] | None:
    if value is None:
        return None
    match = _RANGE.fullmatch(value)
    if match is None or int(match[1]) > int(match[2]):
        raise _invalid_source(
            f"The {COPY_SOURCE}-range value must be of the form bytes=first-last where first and last are the "
            "zero-based offsets of the first and last bytes to copy"
        )
    return int(match[1]), int(match[2])


def _invalid_source(message: str, reason: str | None = None) -> StoreError:
    return StoreError("InvalidArgument", 400, message, facts={"reason": reason})
