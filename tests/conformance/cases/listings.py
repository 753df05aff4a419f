"""Listings: prefixes, delimiters, pages, encodings, in both versions of the operation."""

from typing import Any

from tests.conformance.observer import Observer, case, each

KEYS = ("a", "a b", "a/1", "a/2", "a/b/1", "b%2Fc", "b+c", "c/", "c/d", "z_1", "é/ü")

LISTINGS: dict[str, dict[str, Any]] = {
    "everything": {},
    "prefix": {"Prefix": "a/"},
    "prefix-empty": {"Prefix": ""},
    "prefix-of-nothing": {"Prefix": "nothing"},
    "prefix-percent": {"Prefix": "b%2F"},
    "prefix-unicode": {"Prefix": "é"},
    "delimiter": {"Delimiter": "/"},
    "delimiter-empty": {"Delimiter": ""},
    "delimiter-percent": {"Delimiter": "%"},
    "delimiter-space": {"Delimiter": " "},
    "delimiter-absent": {"Delimiter": "@"},
    "delimiter-long": {"Delimiter": "b/"},
    "prefix-and-delimiter": {"Prefix": "a/", "Delimiter": "/"},
    "prefix-without-slash": {"Prefix": "a", "Delimiter": "/"},
    "encoded": {"EncodingType": "url"},
    "encoded-delimiter": {"EncodingType": "url", "Delimiter": "/"},
    "at-most-one": {"MaxKeys": 1},
    "at-most-none": {"MaxKeys": 0},
    "at-most-many": {"MaxKeys": 5000},
    "at-most-negative": {"MaxKeys": -1},
    "pages-of-groups": {"MaxKeys": 2, "Delimiter": "/"},
}


def _fill(s3: Observer) -> None:
    for key in KEYS:
        s3.put_object(Key=key, Body=key.encode())


@each(LISTINGS)
def list_v2(s3: Observer, given: dict[str, Any]) -> None:
    _fill(s3)
    s3.list_objects_v2(**given)


@each(LISTINGS)
def list_v1(s3: Observer, given: dict[str, Any]) -> None:
    _fill(s3)
    s3.list_objects(**given)


@each({"one": 1, "five": 5})
def pages_v2(s3: Observer, size: int) -> None:
    _fill(s3)
    page = s3.list_objects_v2(MaxKeys=size)
    while token := page.get("NextContinuationToken"):
        page = s3.list_objects_v2(MaxKeys=size, ContinuationToken=token)


@each({"one": {"MaxKeys": 1}, "five": {"MaxKeys": 5}, "groups": {"MaxKeys": 2, "Delimiter": "/"}})
def pages_v1(s3: Observer, given: dict[str, Any]) -> None:
    _fill(s3)
    page = s3.list_objects(**given)
    while page.get("IsTruncated"):
        marker = page.get("NextMarker") or page["Contents"][-1]["Key"]
        page = s3.list_objects(Marker=marker, **given)


@each({"within": "a/1", "between": "a/1x", "after": "~", "empty": "", "unicode": "é"})
def start_after(s3: Observer, marker: str) -> None:
    _fill(s3)
    s3.list_objects_v2(StartAfter=marker)
    s3.list_objects(Marker=marker)


@each({"owner": {"FetchOwner": True}, "token": {"ContinuationToken": "nonsense"}, "type": {"EncodingType": "other"}})
def odd_listing(s3: Observer, given: dict[str, Any]) -> None:
    s3.put_object(Key="a", Body=b"x")
    s3.list_objects_v2(**given)


@each({"max-keys": "?max-keys=many", "list-type": "?list-type=3", "unordered": "?list-type=2&max-keys="})
def malformed_listing(s3: Observer, query: str) -> None:
    s3.request("GET", "/{bucket}" + query)


@case
def an_empty_bucket(s3: Observer) -> None:
    s3.list_objects_v2()
    s3.list_objects()
    s3.list_object_versions()
    s3.list_multipart_uploads()


@case
def what_was_deleted_is_not_listed(s3: Observer) -> None:
    _fill(s3)
    s3.delete_object(Key="a/1")
    s3.list_objects_v2(Prefix="a/")
    s3.list_objects(Prefix="a/")
    s3.list_object_versions(Prefix="a/")


@case
def a_key_that_xml_cannot_say(s3: Observer) -> None:
    s3.put_object(Key="a\nb\x02", Body=b"x")
    s3.request("GET", "/{bucket}?list-type=2&encoding-type=url")
