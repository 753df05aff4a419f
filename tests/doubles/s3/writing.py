"""The operations that write whole objects: put and copy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from email.utils import parsedate_to_datetime
from urllib.parse import unquote

from tests.doubles.s3 import amendments, checksums
from tests.doubles.s3.conditions import bare
from tests.doubles.s3.errors import S3Error
from tests.doubles.s3.messages import Answer, Request, element, iso_date, xml
from tests.doubles.s3.objects import Content, StoredObject
from tests.doubles.s3.state import Store

_METADATA_LIMIT = 2048
_METADATA_PREFIX = "x-amz-meta-"
_SOURCE_CONDITION = "x-amz-copy-source-if-"
_KEPT_HEADERS = (
    "cache-control",
    "content-disposition",
    "content-encoding",
    "content-language",
    "content-type",
    "expires",
    "x-amz-server-side-encryption",
    "x-amz-storage-class",
    "x-amz-website-redirect-location",
)


def put_object(store: Store, request: Request) -> Answer:
    """PutObject. A checksum that the request does not bring is computed, as AWS does."""
    content = content_of(request)
    stored = store.put(*request.head.target, content, request.condition, request.origin)
    assert content.checksum is not None
    versions = version_headers(store, request, stored.version_id)
    return Answer(200, headers={"etag": f'"{stored.etag}"', **content.checksum.headers(), **versions})


def copy_object(store: Store, request: Request) -> Answer:
    """CopyObject; the copy's ETag is the MD5 of the whole, however the source was uploaded."""
    source = source_of(store, request)
    bucket, key = request.head.target
    replaces = _replaces(request, "x-amz-metadata-directive")
    if not replaces and store.bucket(bucket).objects.get(key) is source:
        raise S3Error("InvalidRequest", "An object is copied to itself without a change.")
    brought = properties_of(request.head.headers)
    properties = brought if replaces else source.content
    tags = brought.tags if _replaces(request, "x-amz-tagging-directive") else source.content.tags
    algorithm = source.content.checksum.algorithm if source.content.checksum else checksums.DEFAULT
    checksum = source.content.whole.checksum(algorithm)
    kept = (properties.headers, properties.metadata, checksum, tags, brought.documents)
    content = Content(source.content.body, *kept, source.content.unkept)
    operation = request.head.operation
    stored = store.put(bucket, key, content, request.condition, request.origin, operation)
    return xml(
        "CopyObjectResult",
        element("ETag", f'"{stored.etag}"'),
        element("LastModified", iso_date(stored.modified)),
        element(checksum.element, checksum.value),
        element("ChecksumType", checksum.kind),
        headers=version_headers(store, request, stored.version_id) | source_headers(store, request, source),
    )


def content_of(request: Request) -> Content:
    """The object a PutObject brings, its digests verified."""
    body = request.body
    checksum = checksums.verify(body.digest, request.head.headers) or body.checksum(checksums.DEFAULT)
    properties = properties_of(request.head.headers)
    return replace(properties, body=body.data, checksum=checksum, unkept=None if body.kept else body)


def properties_of(headers: Mapping[str, str]) -> Content:
    """The headers, the metadata, the tags and the ACL to keep, without a body. Raises MetadataTooLarge, InvalidTag."""
    kept = {name: headers[name] for name in _KEPT_HEADERS if name in headers}
    metadata = {
        name.removeprefix(_METADATA_PREFIX): value
        for name, value in headers.items()
        if name.startswith(_METADATA_PREFIX)
    }
    size = sum(len(name.encode()) + len(value.encode("utf-8", "surrogateescape")) for name, value in metadata.items())
    if size > _METADATA_LIMIT:
        raise S3Error("MetadataTooLarge", Size=str(size), MaxSizeAllowed=str(_METADATA_LIMIT))
    documents = {"acl": amendments.canned_acl(headers["x-amz-acl"])} if "x-amz-acl" in headers else {}
    return Content(
        b"", kept, metadata, tags=amendments.tags_of_header(headers.get("x-amz-tagging", "")), documents=documents
    )


def version_headers(store: Store, request: Request, version_id: str) -> dict[str, str]:
    """The version an answer is about; nothing for a bucket that never had versions."""
    return {"x-amz-version-id": version_id} if store.versioning(request.head.bucket or "") else {}


def source_headers(store: Store, request: Request, source: StoredObject) -> dict[str, str]:
    """Which version was copied."""
    bucket, _, _ = _source_target(request)
    return {"x-amz-copy-source-version-id": source.version_id} if store.versioning(bucket) else {}


def source_of(store: Store, request: Request) -> StoredObject:
    """The object named by x-amz-copy-source, if the request's conditions on it hold."""
    bucket, key, version_id = _source_target(request)
    stored = store.get(bucket, key, version_id)
    _check_source_conditions(stored, request.head.headers)
    return stored


def _replaces(request: Request, directive: str) -> bool:
    return request.head.headers.get(directive, "COPY").upper() == "REPLACE"


def _source_target(request: Request) -> tuple[str, str, str | None]:
    path, _, version = request.head.headers["x-amz-copy-source"].partition("?")
    bucket, _, key = unquote(path).removeprefix("/").partition("/")
    name, _, version_id = version.partition("=")
    if version and name != "versionId":
        raise S3Error("InvalidArgument", ArgumentName="x-amz-copy-source")
    return bucket, key, version_id or None


def _check_source_conditions(stored: StoredObject, headers: Mapping[str, str]) -> None:
    modified = stored.modified.replace(microsecond=0)
    conditions: Mapping[str, Callable[[str], bool]] = {
        "match": lambda value: bare(value) in ("*", stored.etag),
        "none-match": lambda value: bare(value) not in ("*", stored.etag),
        "modified-since": lambda value: modified > parsedate_to_datetime(value),
        "unmodified-since": lambda value: modified <= parsedate_to_datetime(value),
    }
    for name, holds in conditions.items():
        value = headers.get(_SOURCE_CONDITION + name)
        if value is not None and not holds(value):
            raise S3Error("PreconditionFailed", Condition=_SOURCE_CONDITION + name)
