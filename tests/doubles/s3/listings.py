"""The operations that list objects and their versions."""

from __future__ import annotations

from tests.doubles.s3.errors import S3Error
from tests.doubles.s3.listing import Page, page_behind, page_of, rows_behind
from tests.doubles.s3.messages import OWNER, Answer, Request, element, group, iso_date, xml
from tests.doubles.s3.objects import DeleteMarker, StoredObject, Version
from tests.doubles.s3.parameters import named, number
from tests.doubles.s3.state import Store
from tests.doubles.s3.versions import Bucket


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
