"""The operations that write and delete objects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from urllib.parse import unquote

from tests.doubles.s3 import amendments
from tests.doubles.s3.conditions import Condition, bare
from tests.doubles.s3.messages import (
    Answer,
    Request,
    child_text,
    children,
    element,
    group,
    iso_date,
    local_name,
    parse,
    xml,
)
from tests.doubles.s3.objects import DEFAULT_CHECKSUM, Content, DeleteMarker, StoredObject, verify_digests
from tests.doubles.s3.operations import Operation, S3Error
from tests.doubles.s3.state import Store

_METADATA_LIMIT = 2048
_METADATA_PREFIX = "x-amz-meta-"
_SOURCE_CONDITION = "x-amz-copy-source-if-match"
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
    algorithm = source.content.checksum.algorithm if source.content.checksum else DEFAULT_CHECKSUM
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
    checksum = verify_digests(body.digest, request.head.headers) or body.checksum(DEFAULT_CHECKSUM)
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
    """The object named by x-amz-copy-source, if the request's condition on it holds."""
    bucket, key, version_id = _source_target(request)
    stored = store.get(bucket, key, version_id)
    expected = request.head.headers.get(_SOURCE_CONDITION)
    if expected is not None and bare(expected) not in ("*", stored.etag):
        raise S3Error("PreconditionFailed", Condition=_SOURCE_CONDITION)
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


_MOST_KEYS = 1000


@dataclass(frozen=True, slots=True)
class _Entry:
    """One object of a DeleteObjects."""

    key: str
    version_id: str | None
    condition: Condition


def delete_object(store: Store, request: Request) -> Answer:
    """DeleteObject; AWS has the other conditional headers for directory buckets only."""
    for header in ("x-amz-if-match-size", "x-amz-if-match-last-modified-time"):
        if header in request.head.headers:
            raise S3Error("NotImplemented", Header=header)
    bucket, key = request.head.target
    version_id = request.head.query.get("versionId")
    if version_id is None:
        marker = store.delete(bucket, key, request.condition, request.origin)
        return Answer(204, headers=_marker_headers(marker))
    if request.condition:
        raise S3Error("NotImplemented", "A condition on one version is not known to mean anything.", Header="If-Match")
    removed = store.delete_version(bucket, key, version_id, request.origin)
    marked = {"x-amz-delete-marker": "true"} if isinstance(removed, DeleteMarker) else {}
    return Answer(204, headers={"x-amz-version-id": version_id, **marked})


def delete_objects(store: Store, request: Request) -> Answer:
    """DeleteObjects: each entry on its own, in one step; an ETag in an entry is its condition."""
    if verify_digests(request.body.digest, request.head.headers) is None and "content-md5" not in request.head.headers:
        raise S3Error("InvalidRequest", "Missing required header for this request: Content-MD5 OR x-amz-checksum-*.")
    store.bucket(request.head.bucket or "")
    quiet, entries = _entries(request.body.data)
    results = [_delete(store, request, entry, quiet=quiet) for entry in entries]
    return xml("DeleteResult", *results)


def _delete(store: Store, request: Request, entry: _Entry, *, quiet: bool) -> str:
    named = [element("Key", entry.key), element("VersionId", entry.version_id)]
    try:
        marks = _marks(store, request, entry)
    except S3Error as error:
        return group("Error", [*named, element("Code", error.code), element("Message", error.message)])
    return "" if quiet else group("Deleted", [*named, *marks])


def _marks(store: Store, request: Request, entry: _Entry) -> list[str]:
    """Delete, and say which delete marker was made or removed by it."""
    bucket, operation = request.head.bucket or "", Operation.DELETE_OBJECTS
    if entry.version_id is not None:
        removed = store.delete_version(bucket, entry.key, entry.version_id, request.origin, operation)
        marker = removed if isinstance(removed, DeleteMarker) else None
    else:
        condition = store.behaviour.effective(operation, entry.condition, entry.key)
        marker = store.delete(bucket, entry.key, condition, request.origin, operation)
    if marker is None:
        return []
    return [element("DeleteMarker", "true"), element("DeleteMarkerVersionId", marker.version_id)]


def _marker_headers(marker: DeleteMarker | None) -> dict[str, str]:
    return {"x-amz-delete-marker": "true", "x-amz-version-id": marker.version_id} if marker else {}


def _entries(document: bytes) -> tuple[bool, list[_Entry]]:
    root = parse(document, "Delete")
    entries = [
        _Entry(
            child_text(each, "Key", strip=False),
            child_text(each, "VersionId") or None,
            Condition(if_match=child_text(each, "ETag") or None),
        )
        for each in children(root, "Object")
    ]
    unknown = {local_name(field) for each in children(root, "Object") for field in each} - {"Key", "VersionId", "ETag"}
    if unknown:
        raise S3Error("NotImplemented", f"The double has no {sorted(unknown)} in DeleteObjects.")
    if not 1 <= len(entries) <= _MOST_KEYS or not all(entry.key for entry in entries):
        raise S3Error("MalformedXML")
    return child_text(root, "Quiet").lower() == "true", entries
