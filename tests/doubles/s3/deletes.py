"""The operations that delete: an object, a version of it, or many at once."""

from __future__ import annotations

from dataclasses import dataclass

from tests.doubles.s3 import checksums
from tests.doubles.s3.conditions import Condition
from tests.doubles.s3.documents import child_text, children, local_name, parse
from tests.doubles.s3.errors import S3Error
from tests.doubles.s3.messages import Answer, Request, element, group, xml
from tests.doubles.s3.objects import DeleteMarker
from tests.doubles.s3.operations import Operation
from tests.doubles.s3.state import Store

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
    if (
        checksums.verify(request.body.digest, request.head.headers) is None
        and "content-md5" not in request.head.headers
    ):
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
        condition = store.behaviour.effective(operation, entry.condition)
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
