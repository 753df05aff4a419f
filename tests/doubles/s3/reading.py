"""The operations that read objects, with ranges and conditions."""

from __future__ import annotations

import re

from tests.doubles.s3.conditions import bare
from tests.doubles.s3.messages import Answer, Request, http_date
from tests.doubles.s3.objects import StoredObject
from tests.doubles.s3.operations import S3Error
from tests.doubles.s3.state import Store
from tests.doubles.s3.writing import version_headers

_RANGE = re.compile(r"bytes=(\d*)-(\d*)")


def get_object(store: Store, request: Request) -> Answer:
    """GetObject, whole or a range of it; HeadObject: the same answer, whose body is not sent."""
    stored = store.get(*request.head.target, request.head.query.get("versionId"))
    _check_read_conditions(stored, request)
    headers = _object_headers(stored, request) | version_headers(store, request, stored.version_id)
    size = stored.content.size
    span = _span(request.head.headers.get("range"), size)
    start, stop = span or (0, size)
    piece = stored.content.whole.cut(start, stop)
    if request.head.method == "GET" and piece.size and not piece.kept:
        raise S3Error("NotImplemented", "The double has not kept this body.")
    if span is None:
        return Answer(200, piece.data, headers | _checksum_headers(stored, request), piece.size)
    return Answer(206, piece.data, headers | {"content-range": f"bytes {start}-{stop - 1}/{size}"}, piece.size)


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
        **({"x-amz-tagging-count": str(len(stored.content.tags))} if stored.content.tags else {}),
        **overrides,
    }


def _checksum_headers(stored: StoredObject, request: Request) -> dict[str, str]:
    wanted = request.head.headers.get("x-amz-checksum-mode", "").upper() == "ENABLED"
    return stored.content.checksum.headers() if wanted and stored.content.checksum else {}


def _check_read_conditions(stored: StoredObject, request: Request) -> None:
    condition = request.head.condition
    if condition.if_match is not None and not _names(condition.if_match, stored.etag):
        raise S3Error("PreconditionFailed", Condition="If-Match")
    if condition.if_none_match is not None and _names(condition.if_none_match, stored.etag):
        raise S3Error("NotModified", ETag=f'"{stored.etag}"', LastModified=http_date(stored.modified))


def _names(value: str, etag: str) -> bool:
    return value == "*" or etag in {bare(each.strip().removeprefix("W/")) for each in value.split(",")}


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
