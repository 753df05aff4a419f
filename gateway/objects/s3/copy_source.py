"""What a copy reads from, and what it takes over: ``x-amz-copy-source`` and its companions."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote

from gateway.errors import StoreError
from gateway.objects.s3 import addressing
from gateway.objects.s3.operations import Operation, not_implemented

COPY_SOURCE = "x-amz-copy-source"

_RANGE = re.compile(r"bytes=([0-9]{1,18})-([0-9]{1,18})")
_COPY_CONDITIONS = ("if-match", "if-none-match", "if-modified-since", "if-unmodified-since")
_OWNER = "x-amz-source-expected-bucket-owner"

COPY_HEADERS = frozenset(
    {COPY_SOURCE, f"{COPY_SOURCE}-range", *(f"{COPY_SOURCE}-{name}" for name in _COPY_CONDITIONS), _OWNER}
    | {"x-amz-metadata-directive", "x-amz-tagging-directive"}
)
"""The headers of a copy that are read here, and not sent on."""


@dataclass(frozen=True, slots=True)
class CopySource:
    """The object a copy reads from. ``raw_key`` is percent-encoded like ``S3Request.raw_key``.

    ``conditions`` are headers for the read of the source, If-* under their own names. What a read answers with 304 is
    412 for a copy. ``range`` is first and last byte, both included; None for the whole object. Metadata and tags come
    from the source unless they are replaced by those of the request.
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
    def raw_path(self) -> str:
        """The path to ask the store for."""
        return f"/{self.bucket}/{self.raw_key}"

    @property
    def query(self) -> str:
        """The query to ask the store with, encoded."""
        return "" if self.version_id is None else f"versionId={quote(self.version_id, safe='')}"


def read_copy_source(operation: Operation, headers: Mapping[str, str]) -> CopySource:
    """The source of a copy, given its headers by lower-case name. Raises ``StoreError``, 400 or 501."""
    if COPY_SOURCE not in headers:
        raise _invalid_source(f"A copy names its source in {COPY_SOURCE}.")
    bucket, key, version_id = _source_object(headers[COPY_SOURCE])
    conditions = [
        (name, _condition(name, headers[f"{COPY_SOURCE}-{name}"]))
        for name in _COPY_CONDITIONS
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
        raise _invalid_source(f"The header {directive} must be COPY or REPLACE.")
    return value == "REPLACE"


def _condition(name: str, value: str) -> str:
    """A condition as every store reads it: S3 takes ETags without their quotation marks too, and clients send such."""
    bare = name in ("if-match", "if-none-match") and value != "*" and '"' not in value
    return f'"{value}"' if bare else value


def _source_object(source: str) -> tuple[str, str, str | None]:
    """Bucket, key and version. The whole path is decoded before it is split: some clients encode its slash too."""
    path, question, query = source.partition("?")
    if "+" in path:
        # AWS reads a space here and others a plus sign: guessing would copy an object nobody named.
        raise _invalid_source(f"A plus sign in {COPY_SOURCE} is ambiguous: write %2B for a plus sign, %20 for a space.")
    name, _, version = query.partition("=")
    if question and (name != "versionId" or not version):
        raise _invalid_source(f"After the question mark of {COPY_SOURCE} there is only versionId=; one in a key is %3F.")
    decoded, version_id = _decoded_source(path).removeprefix("/"), _decoded_source(version) if question else None
    if decoded.startswith("arn:"):
        raise not_implemented("Copying from an access point")
    bucket, _, key = decoded.partition("/")
    if not key:
        raise _invalid_source(f"{COPY_SOURCE} must be a bucket, a slash and a key.")
    addressing.check(bucket, key)
    return bucket, key, version_id


def _decoded_source(encoded: str) -> str:
    try:
        return addressing.text(encoded.encode())
    except StoreError as error:
        raise _invalid_source(f"{COPY_SOURCE} must be percent-encoded UTF-8 without NUL.") from error


def _span(value: str | None) -> tuple[int, int] | None:
    if value is None:
        return None
    match = _RANGE.fullmatch(value)
    if match is None or int(match[1]) > int(match[2]):
        raise _invalid_source(f"{COPY_SOURCE}-range must read bytes=first-last.")
    return int(match[1]), int(match[2])


def _invalid_source(message: str) -> StoreError:
    return StoreError("InvalidArgument", 400, message)
