"""The operations on buckets: made, removed, versioned, and listed."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from tests.doubles.s3.messages import (
    OWNER,
    Answer,
    Request,
    child_text,
    element,
    group,
    iso_date,
    named,
    number,
    parse,
    xml,
)
from tests.doubles.s3.objects import DeleteMarker, StoredObject, Version
from tests.doubles.s3.operations import S3Error
from tests.doubles.s3.state import Bucket, Store

_BUCKET_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")


def list_buckets(store: Store, _: Request) -> Answer:
    """ListBuckets."""
    names = sorted(store.buckets)
    buckets = [
        group("Bucket", [element("Name", name), element("CreationDate", iso_date(store.buckets[name].created))])
        for name in names
    ]
    return xml("ListAllMyBucketsResult", OWNER, group("Buckets", buckets))


def create_bucket(store: Store, request: Request) -> Answer:
    """CreateBucket; making one's own bucket again succeeds, as in us-east-1."""
    name = request.head.bucket or ""
    if not _BUCKET_NAME.fullmatch(name):
        raise S3Error("InvalidBucketName", BucketName=name)
    store.create_bucket(name, request.now)
    return Answer(200, headers={"location": f"/{name}"})


def delete_bucket(store: Store, request: Request) -> Answer:
    """DeleteBucket."""
    store.delete_bucket(request.head.bucket or "")
    return Answer(204)


def head_bucket(store: Store, request: Request) -> Answer:
    """HeadBucket."""
    store.bucket(request.head.bucket or "")
    return Answer(200)


def get_bucket_location(store: Store, request: Request) -> Answer:
    """GetBucketLocation; the default region has an empty answer."""
    store.bucket(request.head.bucket or "")
    return xml("LocationConstraint")


def get_bucket_versioning(store: Store, request: Request) -> Answer:
    """GetBucketVersioning; a bucket that never had versions has an empty answer."""
    state = store.versioning(request.head.bucket or "")
    return xml("VersioningConfiguration", element("Status", state or None))


def put_bucket_versioning(store: Store, request: Request) -> Answer:
    """PutBucketVersioning; there is no way back to a bucket that never had versions."""
    wanted = child_text(parse(request.body.data, "VersioningConfiguration"), "Status")
    place = store.bucket(request.head.bucket or "")
    if wanted != "Enabled":
        raise S3Error("NotImplemented", "The double does not suspend versions.")
    place.versioning = "Enabled"
    return Answer(200)


Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class RowPage(Generic[Row]):
    """One page of a list, which may have several rows for a key. `next_key` and `next_id` lead on, None at the end."""

    rows: tuple[Row, ...]
    prefixes: tuple[str, ...]
    next_key: str | None
    next_id: str | None


def rows_behind(
    request: Request,
    rows: Sequence[Row],
    key_of: Callable[[Row], str],
    id_of: Callable[[Row], str],
    *,
    marker: tuple[str, str | None],
    limit: str = "max-keys",
) -> RowPage[Row]:
    """Cut the page of a request out of ordered rows. The marker is a key (or a common prefix) and within it an id.

    ``limit`` is the parameter for the most rows of a page.
    """
    query = request.head.query
    prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
    entries: list[tuple[str, Row | None]] = []
    for row in _behind(rows, key_of, id_of, marker):
        name = _common_prefix(key_of(row), prefix, delimiter)
        if not key_of(row).startswith(prefix) or name == marker[0]:
            continue
        if name is None:
            entries.append((key_of(row), row))
        elif entries[-1:] != [(name, None)]:
            entries.append((name, None))
    shown = entries[: number(query.get(limit), 1000)]
    rest = len(entries) > len(shown) > 0
    last = shown[-1][1] if rest else None
    return RowPage(
        tuple(row for _, row in shown if row is not None),
        tuple(name for name, row in shown if row is None),
        shown[-1][0] if rest else None,
        id_of(last) if last is not None else None,
    )


def _behind(
    rows: Sequence[Row], key_of: Callable[[Row], str], id_of: Callable[[Row], str], marker: tuple[str, str | None]
) -> list[Row]:
    """S3 pages by key, and by id only within the marker's key."""
    key, identity = marker
    if not key:
        return list(rows)
    same = [row for row in rows if key_of(row) == key]
    position = next((place for place, row in enumerate(same) if id_of(row) == identity), len(same))
    return same[position + 1 :] + [row for row in rows if key_of(row).encode() > key.encode()]


def _common_prefix(key: str, prefix: str, delimiter: str) -> str | None:
    head, separator, _ = key[len(prefix) :].partition(delimiter) if delimiter else (key, "", "")
    return f"{prefix}{head}{separator}" if separator else None


def _write_token(last: str) -> str:
    return base64.urlsafe_b64encode(last.encode()).decode()


def _read_token(token: str) -> str:
    try:
        return base64.urlsafe_b64decode(token).decode()
    except ValueError as error:
        raise S3Error("InvalidArgument", ArgumentName="continuation-token") from error


def list_objects(store: Store, request: Request) -> Answer:
    """ListObjects, the first version; it says where to go on only if there is a delimiter, as on AWS."""
    bucket, query = store.bucket(request.head.bucket or ""), request.head.query
    page = _keys_behind(bucket, request, marker=query.get("marker", ""))
    return xml(
        "ListBucketResult",
        *_limits(bucket, request),
        named(request, "Marker", query.get("marker", "")),
        named(request, "NextMarker", page.next_key if query.get("delimiter") else None),
        element("IsTruncated", page.next_key is not None),
        *_contents(bucket, page, request, owner=True),
    )


def list_objects_v2(store: Store, request: Request) -> Answer:
    """ListObjectsV2."""
    bucket, query = store.bucket(request.head.bucket or ""), request.head.query
    if query["list-type"] != "2":
        raise S3Error("NotImplemented", "The double lists with list-type=2.")
    token = query.get("continuation-token")
    marker = "" if token is None else _read_token(token)
    page = _keys_behind(bucket, request, marker=marker, after=query.get("start-after", ""))
    return xml(
        "ListBucketResult",
        *_limits(bucket, request),
        named(request, "StartAfter", query.get("start-after")),
        element("ContinuationToken", token),
        element("NextContinuationToken", None if page.next_key is None else _write_token(page.next_key)),
        element("KeyCount", len(page.rows) + len(page.prefixes)),
        element("IsTruncated", page.next_key is not None),
        *_contents(bucket, page, request, owner=query.get("fetch-owner") == "true"),
    )


def list_object_versions(store: Store, request: Request) -> Answer:
    """ListObjectVersions: versions and delete markers by key, the newest first."""
    bucket, query = store.bucket(request.head.bucket or ""), request.head.query
    if query.get("version-id-marker") and not query.get("key-marker"):
        raise S3Error("InvalidArgument", "A version-id marker cannot be specified without a key marker.")
    marker = query.get("key-marker", ""), query.get("version-id-marker")
    versions = list(bucket.versions())
    page = rows_behind(request, versions, lambda row: row[0].key, lambda row: row[0].version_id, marker=marker)
    return xml(
        "ListVersionsResult",
        *_limits(bucket, request),
        named(request, "KeyMarker", query.get("key-marker", "")),
        element("VersionIdMarker", query.get("version-id-marker", "")),
        named(request, "NextKeyMarker", page.next_key),
        element("NextVersionIdMarker", page.next_id),
        element("IsTruncated", page.next_key is not None),
        *(_version_entry(version, request, latest=latest) for version, latest in page.rows),
        *_common_prefixes(page.prefixes, request),
    )


def _keys_behind(bucket: Bucket, request: Request, *, marker: str, after: str = "") -> RowPage[str]:
    """Return a page of keys. A common prefix is shown again behind ``after``, and never behind the marker."""
    keys = sorted((key for key in bucket.objects if key.encode() > after.encode()), key=str.encode)
    return rows_behind(request, keys, str, str, marker=(marker, None))


def _limits(bucket: Bucket, request: Request) -> list[str]:
    query = request.head.query
    return [
        element("Name", bucket.name),
        named(request, "Prefix", query.get("prefix", "")),
        named(request, "Delimiter", query.get("delimiter")),
        element("MaxKeys", number(query.get("max-keys"), 1000)),
        element("EncodingType", query.get("encoding-type")),
    ]


def _contents(bucket: Bucket, page: RowPage[str], request: Request, *, owner: bool) -> list[str]:
    entries = [group("Contents", [*_entry(bucket.objects[key], request), OWNER if owner else ""]) for key in page.rows]
    return entries + _common_prefixes(page.prefixes, request)


def _common_prefixes(prefixes: tuple[str, ...], request: Request) -> list[str]:
    return [group("CommonPrefixes", [named(request, "Prefix", prefix)]) for prefix in prefixes]


def _entry(stored: StoredObject, request: Request) -> list[str]:
    checksum = stored.content.checksum
    return [
        named(request, "Key", stored.key),
        element("LastModified", iso_date(stored.modified)),
        element("ETag", f'"{stored.etag}"'),
        element("ChecksumAlgorithm", checksum and checksum.algorithm.upper()),
        element("ChecksumType", checksum and checksum.kind),
        element("Size", stored.content.size),
        element("StorageClass", stored.content.headers.get("x-amz-storage-class", "STANDARD")),
    ]


def _version_entry(version: Version, request: Request, *, latest: bool) -> str:
    identity = [element("VersionId", version.version_id), element("IsLatest", latest), OWNER]
    if isinstance(version, DeleteMarker):
        fields = [named(request, "Key", version.key), element("LastModified", iso_date(version.modified))]
        return group("DeleteMarker", [*fields, *identity])
    return group("Version", [*_entry(version, request), *identity])
