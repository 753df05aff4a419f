"""The operations on buckets: made, removed, versioned, and listed."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable, Sequence
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
    if wanted == "Enabled":
        place.versioning = "Enabled"
    elif wanted == "Suspended":
        place.versioning = "Suspended"
    else:
        raise S3Error("MalformedXML")
    return Answer(200)


# No key sorts behind a prefix followed by this: the highest code point of UTF-8's order.
_BEHIND_ALL = "\U0010ffff"

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class Page:
    """The keys and common prefixes of one page, in S3's order (UTF-8 bytes); no token means it is the last.

    `last` is the last key or prefix of a page that is not the last.
    """

    keys: tuple[str, ...]
    prefixes: tuple[str, ...]
    next_token: str | None
    last: str | None


@dataclass(frozen=True, slots=True)
class RowPage(Generic[Row]):
    """One page of a list that has several rows for a key. `next_key` and `next_id` lead on, None on the last page."""

    rows: tuple[Row, ...]
    prefixes: tuple[str, ...]
    next_key: str | None
    next_id: str | None


def page_of(
    keys: Iterable[str], *, prefix: str, delimiter: str, limit: int, after: str = "", token: str | None = None
) -> Page:
    """Cut one page out of all keys. Raises InvalidArgument for a token that is none."""
    entries = _entries((key for key in keys if key.encode() > after.encode()), prefix, delimiter)
    position = _read_token(token) if token is not None else b""
    remaining = [entry for entry in entries if _sort_key(entry) > position]
    return _page(remaining, limit)


def page_behind(keys: Iterable[str], *, prefix: str, delimiter: str, limit: int, marker: str) -> Page:
    """As `page_of`, but from a marker that may be a common prefix: what stands behind that is behind all its keys."""
    entries = _entries((key for key in keys if key.encode() > marker.encode()), prefix, delimiter)
    return _page([entry for entry in entries if entry != (marker, True)], limit)


def rows_behind(
    rows: Sequence[Row],
    key_of: Callable[[Row], str],
    id_of: Callable[[Row], str],
    *,
    prefix: str,
    delimiter: str,
    limit: int,
    marker: tuple[str, str | None],
) -> RowPage[Row]:
    """Cut one page out of rows in order; the marker is a key (or a common prefix) and within that key an id."""
    entries: list[tuple[str, Row | None]] = []
    for row in _behind(rows, key_of, id_of, marker):
        name = _common_prefix(key_of(row), prefix, delimiter)
        if not key_of(row).startswith(prefix) or name == marker[0]:
            continue
        if name is None:
            entries.append((key_of(row), row))
        elif (name, None) not in entries:
            entries.append((name, None))
    shown = entries[:limit]
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


def _page(remaining: Sequence[tuple[str, bool]], limit: int) -> Page:
    shown = remaining[:limit]
    more = len(remaining) > len(shown) > 0
    return Page(
        tuple(name for name, common in shown if not common),
        tuple(name for name, common in shown if common),
        _write_token(_sort_key(shown[-1])) if more else None,
        shown[-1][0] if more else None,
    )


def _entries(keys: Iterable[str], prefix: str, delimiter: str) -> list[tuple[str, bool]]:
    """Keys and common prefixes (marked True) in order."""
    found: set[tuple[str, bool]] = set()
    for key in keys:
        if key.startswith(prefix):
            common = _common_prefix(key, prefix, delimiter)
            found.add((key, False) if common is None else (common, True))
    return sorted(found, key=_sort_key)


def _common_prefix(key: str, prefix: str, delimiter: str) -> str | None:
    head, separator, _ = key[len(prefix) :].partition(delimiter) if delimiter else (key, "", "")
    return f"{prefix}{head}{separator}" if separator else None


def _sort_key(entry: tuple[str, bool]) -> bytes:
    """A common prefix stands at the place behind every key it covers."""
    name, common = entry
    return (name + _BEHIND_ALL if common else name).encode()


def _write_token(position: bytes) -> str:
    return base64.urlsafe_b64encode(position).decode()


def _read_token(token: str) -> bytes:
    try:
        return base64.urlsafe_b64decode(token)
    except ValueError as error:
        raise S3Error("InvalidArgument", ArgumentName="continuation-token") from error


def list_objects(store: Store, request: Request) -> Answer:
    """ListObjects, the first version; it says where to go on only if there is a delimiter, as on AWS."""
    bucket, query = store.bucket(request.head.bucket or ""), request.head.query
    page = page_behind(
        bucket.objects,
        prefix=query.get("prefix", ""),
        delimiter=query.get("delimiter", ""),
        limit=number(query.get("max-keys"), 1000),
        marker=query.get("marker", ""),
    )
    return xml(
        "ListBucketResult",
        *_limits(bucket, request),
        named(request, "Marker", query.get("marker", "")),
        named(request, "NextMarker", page.last if query.get("delimiter") else None),
        element("IsTruncated", page.last is not None),
        *_contents(bucket, page, request, owner=True),
    )


def list_objects_v2(store: Store, request: Request) -> Answer:
    """ListObjectsV2."""
    bucket, query = store.bucket(request.head.bucket or ""), request.head.query
    if query["list-type"] != "2":
        raise S3Error("NotImplemented", "The double lists with list-type=2.")
    page = page_of(
        bucket.objects,
        prefix=query.get("prefix", ""),
        delimiter=query.get("delimiter", ""),
        limit=number(query.get("max-keys"), 1000),
        after=query.get("start-after", ""),
        token=query.get("continuation-token"),
    )
    return xml(
        "ListBucketResult",
        *_limits(bucket, request),
        named(request, "StartAfter", query.get("start-after")),
        element("ContinuationToken", query.get("continuation-token")),
        element("NextContinuationToken", page.next_token),
        element("KeyCount", len(page.keys) + len(page.prefixes)),
        element("IsTruncated", page.next_token is not None),
        *_contents(bucket, page, request, owner=query.get("fetch-owner") == "true"),
    )


def list_object_versions(store: Store, request: Request) -> Answer:
    """ListObjectVersions: versions and delete markers by key, the newest first."""
    bucket, query = store.bucket(request.head.bucket or ""), request.head.query
    if query.get("version-id-marker") and not query.get("key-marker"):
        raise S3Error("InvalidArgument", "A version-id marker cannot be specified without a key marker.")
    page = rows_behind(
        list(bucket.versions()),
        lambda row: row[0].key,
        lambda row: row[0].version_id,
        prefix=query.get("prefix", ""),
        delimiter=query.get("delimiter", ""),
        limit=number(query.get("max-keys"), 1000),
        marker=(query.get("key-marker", ""), query.get("version-id-marker")),
    )
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


def _limits(bucket: Bucket, request: Request) -> list[str]:
    query = request.head.query
    return [
        element("Name", bucket.name),
        named(request, "Prefix", query.get("prefix", "")),
        named(request, "Delimiter", query.get("delimiter")),
        element("MaxKeys", number(query.get("max-keys"), 1000)),
        element("EncodingType", query.get("encoding-type")),
    ]


def _contents(bucket: Bucket, page: Page, request: Request, *, owner: bool) -> list[str]:
    entries = [group("Contents", [*_entry(bucket.objects[key], request), OWNER if owner else ""]) for key in page.keys]
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
