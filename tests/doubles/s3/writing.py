"""The operations that write whole objects: put, copy, delete; and the making of buckets."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from email.utils import parsedate_to_datetime
from urllib.parse import unquote

from tests.doubles.s3 import checksums
from tests.doubles.s3.conditions import bare
from tests.doubles.s3.errors import S3Error
from tests.doubles.s3.messages import Answer, Request, element, iso_date, xml
from tests.doubles.s3.state import Content, Origin, Store, StoredObject

_BUCKET_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
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


def create_bucket(store: Store, request: Request) -> Answer:
    """CreateBucket; making one's own bucket again succeeds, as in us-east-1."""
    name = request.head.bucket or ""
    if not _BUCKET_NAME.fullmatch(name):
        raise S3Error("InvalidBucketName", BucketName=name)
    store.create_bucket(name, request.now)
    return Answer(200, headers={"location": f"/{name}"})


def put_object(store: Store, request: Request) -> Answer:
    """PutObject. A checksum that the request does not bring is computed, as AWS does."""
    content = content_of(request)
    stored = store.put(*request.head.target, content, request.condition, origin_of(request))
    assert content.checksum is not None
    return Answer(200, headers={"etag": f'"{stored.etag}"', **content.checksum.headers()})


def copy_object(store: Store, request: Request) -> Answer:
    """CopyObject; the copy's ETag is the MD5 of the whole, however the source was uploaded."""
    source = source_of(store, request)
    replace = request.head.headers.get("x-amz-metadata-directive", "COPY").upper() == "REPLACE"
    bucket, key = request.head.target
    if not replace and store.bucket(bucket).objects.get(key) is source:
        raise S3Error("InvalidRequest", "An object is copied to itself without a change.")
    properties = properties_of(request.head.headers) if replace else source.content
    algorithm = source.content.checksum.algorithm if source.content.checksum else checksums.DEFAULT
    checksum = checksums.of(source.content.body, algorithm)
    content = Content(source.content.body, properties.headers, properties.metadata, checksum)
    operation = request.head.operation
    stored = store.put(bucket, key, content, request.condition, origin_of(request), operation)
    return xml(
        "CopyObjectResult",
        element("ETag", f'"{stored.etag}"'),
        element("LastModified", iso_date(stored.modified)),
        element(checksum.element, checksum.value),
        element("ChecksumType", checksum.kind),
    )


def delete_object(store: Store, request: Request) -> Answer:
    """DeleteObject; AWS has the other conditional headers for directory buckets only."""
    for header in ("x-amz-if-match-size", "x-amz-if-match-last-modified-time"):
        if header in request.head.headers:
            raise S3Error("NotImplemented", Header=header)
    store.delete(*request.head.target, request.condition, origin_of(request))
    return Answer(204)


def origin_of(request: Request) -> Origin:
    """What the log says about a request's write."""
    return Origin(request.now, request.write_id, request.head.headers.get("x-amz-date"))


def content_of(request: Request) -> Content:
    """The object a PutObject brings, its digests verified."""
    checksum = checksums.verify(request.body, request.head.headers) or checksums.of(request.body)
    properties = properties_of(request.head.headers)
    return Content(request.body, properties.headers, properties.metadata, checksum)


def properties_of(headers: Mapping[str, str]) -> Content:
    """The headers and the metadata to keep, without a body. Raises MetadataTooLarge."""
    kept = {name: headers[name] for name in _KEPT_HEADERS if name in headers}
    metadata = {
        name.removeprefix(_METADATA_PREFIX): value
        for name, value in headers.items()
        if name.startswith(_METADATA_PREFIX)
    }
    size = sum(len(name.encode()) + len(value.encode("utf-8", "surrogateescape")) for name, value in metadata.items())
    if size > _METADATA_LIMIT:
        raise S3Error("MetadataTooLarge", Size=str(size), MaxSizeAllowed=str(_METADATA_LIMIT))
    return Content(b"", kept, metadata)


def source_of(store: Store, request: Request) -> StoredObject:
    """The object named by x-amz-copy-source, if the request's conditions on it hold."""
    path, _, version = request.head.headers["x-amz-copy-source"].partition("?")
    bucket, _, key = unquote(path).removeprefix("/").partition("/")
    if version:
        raise S3Error("NotImplemented", "The double has no versions.")
    stored = store.get(bucket, key)
    _check_source_conditions(stored, request.head.headers)
    return stored


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
