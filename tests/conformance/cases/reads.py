"""Reads: ranges, conditions, overrides of the answer's headers."""

from datetime import UTC, datetime
from typing import Any

from tests.conformance.observer import Observer, case, each

PAST, FUTURE = datetime(2001, 1, 1, tzinfo=UTC), datetime(2099, 1, 1, tzinfo=UTC)
BODY = b"0123456789"


@each(
    {
        "first": "bytes=0-0",
        "middle": "bytes=3-6",
        "open": "bytes=7-",
        "suffix": "bytes=-3",
        "suffix-of-nothing": "bytes=-0",
        "suffix-too-long": "bytes=-100",
        "past-the-end": "bytes=5-100",
        "outside": "bytes=10-20",
        "backwards": "bytes=6-3",
        "several": "bytes=0-1,3-4",
        "other-unit": "lines=0-1",
        "nonsense": "bytes=a-b",
    }
)
def a_range(s3: Observer, given: str) -> None:
    s3.put_object(Key="k", Body=BODY)
    s3.get_object(Key="k", Range=given)
    s3.head_object(Key="k", Range=given)


@case
def a_range_of_nothing(s3: Observer) -> None:
    s3.put_object(Key="k", Body=b"")
    s3.get_object(Key="k", Range="bytes=0-0")
    s3.get_object(Key="k", Range="bytes=0-")


@each(
    {
        "match": {"IfMatch": "{etag}"},
        "match-unquoted": {"IfMatch": "{bare}"},
        "match-other": {"IfMatch": '"00000000000000000000000000000000"'},
        "match-any": {"IfMatch": "*"},
        "none-match": {"IfNoneMatch": "{etag}"},
        "none-match-other": {"IfNoneMatch": '"00000000000000000000000000000000"'},
        "none-match-any": {"IfNoneMatch": "*"},
        "modified": {"IfModifiedSince": PAST},
        "not-modified": {"IfModifiedSince": FUTURE},
        "unmodified": {"IfUnmodifiedSince": FUTURE},
        "not-unmodified": {"IfUnmodifiedSince": PAST},
        "match-and-not-unmodified": {"IfMatch": "{etag}", "IfUnmodifiedSince": PAST},
        "none-match-and-modified": {"IfNoneMatch": "{etag}", "IfModifiedSince": PAST},
        "range-and-match-other": {"Range": "bytes=0-1", "IfMatch": '"00000000000000000000000000000000"'},
    }
)
def a_conditional_read(s3: Observer, given: dict[str, Any]) -> None:
    etag = s3.put_object(Key="k", Body=BODY).get("ETag", "")
    filled = {
        name: value.format(etag=etag, bare=etag.strip('"')) if isinstance(value, str) else value
        for name, value in given.items()
    }
    s3.get_object(Key="k", **filled)
    s3.head_object(Key="k", **filled)


@case
def a_conditional_read_of_nothing(s3: Observer) -> None:
    s3.get_object(Key="none", IfMatch='"00000000000000000000000000000000"')
    s3.get_object(Key="none", IfNoneMatch="*")


@each(
    {
        "content-type": {"ResponseContentType": "text/x-other"},
        "content-disposition": {"ResponseContentDisposition": 'attachment; filename="b c"'},
        "cache-control": {"ResponseCacheControl": "no-cache"},
        "content-language": {"ResponseContentLanguage": "fr"},
        "content-encoding": {"ResponseContentEncoding": "identity"},
        "expires": {"ResponseExpires": FUTURE},
    }
)
def a_response_override(s3: Observer, given: dict[str, Any]) -> None:
    s3.put_object(Key="k", Body=BODY, ContentType="text/plain")
    s3.get_object(Key="k", **given)


@case
def a_part_by_its_number(s3: Observer) -> None:
    s3.put_object(Key="k", Body=BODY)
    s3.get_object(Key="k", PartNumber=1)
    s3.head_object(Key="k", PartNumber=1)
    s3.get_object(Key="k", PartNumber=2)


@case
def a_compressed_object_stays_compressed(s3: Observer) -> None:
    s3.put_object(Key="k", Body=b"\x1f\x8bnot really", ContentEncoding="gzip")
    s3.request("GET", "/{bucket}/k", {"Accept-Encoding": "gzip"})
    s3.request("GET", "/{bucket}/k", {"Accept-Encoding": "identity"})
