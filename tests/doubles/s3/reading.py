"""The operations that read: objects with ranges and conditions, and the lists of buckets and objects."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from urllib.parse import quote

from tests.doubles.s3.conditions import bare
from tests.doubles.s3.errors import S3Error
from tests.doubles.s3.listing import Page, page_of
from tests.doubles.s3.messages import Answer, Request, element, group, http_date, iso_date, xml
from tests.doubles.s3.state import Bucket, Store, StoredObject

_RANGE = re.compile(r"bytes=(\d*)-(\d*)")
_OWNER = group("Owner", [element("ID", "double"), element("DisplayName", "double")])


def list_buckets(store: Store, _: Request) -> Answer:
    """ListBuckets."""
    names = sorted(store.buckets)
    buckets = [
        group("Bucket", [element("Name", name), element("CreationDate", iso_date(store.buckets[name].created))])
        for name in names
    ]
    return xml("ListAllMyBucketsResult", _OWNER, group("Buckets", buckets))


def head_bucket(store: Store, request: Request) -> Answer:
    """HeadBucket."""
    _bucket(store, request)
    return Answer(200)


def get_bucket_location(store: Store, request: Request) -> Answer:
    """GetBucketLocation; the default region has an empty answer."""
    _bucket(store, request)
    return xml("LocationConstraint")


def list_objects(store: Store, request: Request) -> Answer:
    """ListObjectsV2."""
    bucket, query = _bucket(store, request), request.head.query
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
    return xml("ListBucketResult", *_listing(bucket, page, request))


def get_object(store: Store, request: Request) -> Answer:
    """GetObject, whole or a range of it."""
    stored = store.get(*request.head.target)
    _check_read_conditions(stored, request)
    headers = _object_headers(stored, request)
    size = len(stored.content.body)
    span = _span(request.head.headers.get("range"), size)
    if span is None:
        return Answer(200, stored.content.body, headers | _checksum_headers(stored, request))
    start, stop = span
    content_range = {"content-range": f"bytes {start}-{stop - 1}/{size}"}
    return Answer(206, stored.content.body[start:stop], headers | content_range)


def head_object(store: Store, request: Request) -> Answer:
    """HeadObject: the answer of GetObject, whose body is not sent."""
    return get_object(store, request)


def number(text: str | None, default: int, most: int = 1000) -> int:
    """A page size or a marker, cut off at `most`. Raises InvalidArgument."""
    if text is None:
        return default
    if not re.fullmatch(r"\d{1,9}", text, re.ASCII):
        raise S3Error("InvalidArgument", ArgumentValue=text)
    return min(int(text), most)


def named(request: Request, name: str, value: str | None) -> str:
    """An element with a key in it, URL-encoded if the request asks for that."""
    if value is not None and request.head.query.get("encoding-type") == "url":
        value = quote(value, safe="/-_.~*")
    return element(name, value)


def _bucket(store: Store, request: Request) -> Bucket:
    assert request.head.bucket is not None
    return store.bucket(request.head.bucket)


def _listing(bucket: Bucket, page: Page, request: Request) -> list[str]:
    query = request.head.query
    return [
        element("Name", bucket.name),
        named(request, "Prefix", query.get("prefix", "")),
        named(request, "Delimiter", query.get("delimiter")),
        named(request, "StartAfter", query.get("start-after")),
        element("ContinuationToken", query.get("continuation-token")),
        element("NextContinuationToken", page.next_token),
        element("MaxKeys", number(query.get("max-keys"), 1000)),
        element("KeyCount", len(page.keys) + len(page.prefixes)),
        element("EncodingType", query.get("encoding-type")),
        element("IsTruncated", page.next_token is not None),
        *(_entry(bucket.objects[key], request) for key in page.keys),
        *(group("CommonPrefixes", [named(request, "Prefix", prefix)]) for prefix in page.prefixes),
    ]


def _entry(stored: StoredObject, request: Request) -> str:
    checksum = stored.content.checksum
    return group(
        "Contents",
        [
            named(request, "Key", stored.key),
            element("LastModified", iso_date(stored.modified)),
            element("ETag", f'"{stored.etag}"'),
            element("ChecksumAlgorithm", checksum and checksum.algorithm.upper()),
            element("ChecksumType", checksum and checksum.kind),
            element("Size", len(stored.content.body)),
            element("StorageClass", stored.content.headers.get("x-amz-storage-class", "STANDARD")),
            _OWNER if request.head.query.get("fetch-owner") == "true" else "",
        ],
    )


def _object_headers(stored: StoredObject, request: Request) -> dict[str, str]:
    overrides = {
        name.removeprefix("response-"): value
        for name, value in request.head.query.items()
        if name.startswith("response-")
    }
    return {
        "accept-ranges": "bytes",
        "etag": f'"{stored.etag}"',
        "last-modified": http_date(stored.modified),
        "content-type": "binary/octet-stream",
        **stored.content.headers,
        **{f"x-amz-meta-{name}": value for name, value in stored.content.metadata.items()},
        **overrides,
    }


def _checksum_headers(stored: StoredObject, request: Request) -> dict[str, str]:
    wanted = request.head.headers.get("x-amz-checksum-mode", "").upper() == "ENABLED"
    return stored.content.checksum.headers() if wanted and stored.content.checksum else {}


def _check_read_conditions(stored: StoredObject, request: Request) -> None:
    """RFC 9110 section 13.2.2: an ETag condition takes the place of the date condition beside it."""
    headers, condition = request.head.headers, request.head.condition
    if condition.if_match is not None:
        if not _names(condition.if_match, stored.etag):
            raise S3Error("PreconditionFailed", Condition="If-Match")
    elif _modified_after(stored, headers.get("if-unmodified-since")) is True:
        raise S3Error("PreconditionFailed", Condition="If-Unmodified-Since")
    if condition.if_none_match is not None:
        unchanged = _names(condition.if_none_match, stored.etag)
    else:
        unchanged = _modified_after(stored, headers.get("if-modified-since")) is False
    if unchanged:
        raise S3Error("NotModified", ETag=f'"{stored.etag}"', LastModified=http_date(stored.modified))


def _names(value: str, etag: str) -> bool:
    return value == "*" or etag in {bare(each.strip().removeprefix("W/")) for each in value.split(",")}


def _modified_after(stored: StoredObject, value: str | None) -> bool | None:
    """None where there is no usable date; a date that is no HTTP date is ignored."""
    if value is None:
        return None
    try:
        moment = parsedate_to_datetime(value)
    except ValueError:
        return None
    return stored.modified.replace(microsecond=0) > _aware(moment)


def _aware(moment: datetime) -> datetime:
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def _span(value: str | None, size: int) -> tuple[int, int] | None:
    """Start and stop of a range; None for the whole object. Raises InvalidRange."""
    match = _RANGE.fullmatch(value or "")
    if match is None or match.groups() == ("", ""):
        return None
    first, last = match.groups()
    start = int(first) if first else max(0, size - int(last))
    stop = min(int(last) + 1, size) if first and last else size
    if first and last and int(last) < int(first):
        return None
    if start >= size:
        raise S3Error("InvalidRange", RangeRequested=value or "", ActualObjectSize=str(size))
    return start, stop
