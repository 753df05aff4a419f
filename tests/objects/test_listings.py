"""Listings show what clients can read, each entry once: no tombstones, and no uploads of the gateway's own."""

import asyncio
import html
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote
from uuid import uuid4
from xml.etree import ElementTree
from xml.sax.saxutils import escape

import pytest
import pytest_asyncio
from hypothesis import given, settings
from hypothesis import strategies as st
from mypy_boto3_s3 import S3Client

from gateway.demo.embedded import EmbeddedPostgres
from gateway.objects.protocol.effects import TOMBSTONE_SIZE, tombstone_body
from gateway.objects.s3 import listing_pages
from gateway.objects.s3.listing_pages import ListingEntry, ListingPage
from gateway.objects.s3.operations import Operation
from tests.doubles.s3 import S3Double
from tests.objects import raw
from tests.objects.clients import call, connect, in_thread, refused
from tests.objects.object_gateway import Stage, entomb, staged
from tests.tiers import first

LISTS = ("list_objects", "list_objects_v2")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def mixed(postgres_server: EmbeddedPostgres) -> AsyncIterator[Stage]:
    """Keys with tombstones between them, in buckets of several kinds."""
    double = S3Double(buckets=["bucket", "clean", "stale", "odd", "uploads", "deep"])
    async with staged(postgres_server, double) as stage:
        for number in range(30):
            key = f"{'pqr'[number % 3]}{number // 6}/ü {number:02}+"
            if number % 3 and number // 6 != 3:
                double.put("bucket", key, b"x")
            else:
                await entomb(stage, key)
        yield stage


def visible_in(stage: Stage, bucket: str = "bucket") -> list[str]:
    found = stage.double.objects(bucket).items()
    keys = [key for key, stored in found if "fencing-tombstone" not in stored.content.metadata]
    return sorted(keys, key=str.encode)


def listed_by(client: S3Client, operation: Any, **arguments: Any) -> tuple[list[str], list[str], list[int]]:
    """Keys, common prefixes and sizes of pages, as boto3's paginator finds them."""
    size = arguments.pop("size")
    pages = list(client.get_paginator(operation).paginate(PaginationConfig={"PageSize": size}, **arguments))
    keys = [one["Key"] for page in pages for one in page.get("Contents", ())]
    prefixes = [one["Prefix"] for page in pages for one in page.get("CommonPrefixes", ())]
    for page in pages:
        assert page.get("KeyCount", 0) in (0, len(page.get("Contents", ())) + len(page.get("CommonPrefixes", ())))
    return keys, prefixes, [len(page.get("Contents", ())) + len(page.get("CommonPrefixes", ())) for page in pages]


@pytest.mark.asyncio(loop_scope="module")
class TestObjects:
    @pytest.mark.parametrize("operation", LISTS)
    @pytest.mark.parametrize("size", first([3, 1, 7, 1000]))
    async def test_tombstones_are_left_out_and_pages_are_full(self, mixed: Stage, operation: str, size: int) -> None:
        """So are prefixes with nothing but tombstones."""
        asked: dict[str, Any] = {"client": connect(mixed.origin), "operation": operation, "size": size}
        keys, _, sizes = await in_thread(listed_by, **asked, Bucket="bucket")
        assert keys == visible_in(mixed)
        assert set(sizes[:-1]) <= {size}
        keys, prefixes, sizes = await in_thread(listed_by, **asked, Bucket="bucket", Delimiter="/")
        assert keys == []
        assert prefixes == sorted({key.partition("/")[0] + "/" for key in visible_in(mixed)})
        assert "q3/" not in prefixes
        assert set(sizes[:-1]) <= {size}

    async def test_within_a_prefix_and_from_a_key_on(self, mixed: Stage) -> None:
        keys = visible_in(mixed)
        listing = connect(mixed.origin).list_objects_v2
        answer = await call(listing, Prefix="q1/", FetchOwner=True)
        assert [one["Key"] for one in answer["Contents"]] == [key for key in keys if key.startswith("q1/")]
        assert answer["Contents"][0]["Owner"]["ID"]
        assert answer["Contents"][0]["ETag"]
        assert answer["Prefix"] == "q1/"
        answer = await call(listing, StartAfter=keys[3], MaxKeys=2)
        assert [one["Key"] for one in answer["Contents"]] == keys[4:6]
        assert (answer["KeyCount"], answer["MaxKeys"], answer["IsTruncated"]) == (2, 2, True)

    async def test_without_tombstones_the_stores_answer_passes_as_it_is(self, mixed: Stage) -> None:
        mixed.double.put("clean", "a", b"1")
        mixed.double.put("clean", "b\x01", b"2")
        since = len(mixed.double.requests)
        answer = await raw.ask(mixed.origin, raw.head(mixed.origin, "GET", "/clean?list-type=2&prefix=b"))
        assert b"<Key>b\x01</Key>" in answer.body
        assert [each.operation for each in mixed.double.requests[since:]] == ["ListObjectsV2"]

    async def test_a_key_that_may_be_a_tombstone_and_is_none_is_shown(self, mixed: Stage) -> None:
        await entomb(mixed, "rewritten", "as-large", "gone", bucket="stale")
        mixed.double.put("stale", "rewritten", b"x")
        mixed.double.put("stale", "as-large", b"x" * TOMBSTONE_SIZE)
        since = len(mixed.double.requests)
        answer = await call(connect(mixed.origin).list_objects_v2, Bucket="stale")
        assert [one["Key"] for one in answer["Contents"]] == ["as-large", "rewritten"]
        looked_at = [each.key for each in mixed.double.requests[since:] if each.operation == "HeadObject"]
        assert sorted(looked_at, key=str) == ["as-large", "gone"], "one of another size needs no look"

    async def test_an_error_of_the_store_is_passed_on_or_is_an_error(self, mixed: Stage) -> None:
        client = connect(mixed.origin)
        assert (await refused(client.list_objects_v2, Bucket="absent"))[:2] == (404, "NoSuchBucket")
        mixed.double.fail(503, operation="ListObjectsV2", times=1)
        assert (await refused(client.list_objects_v2))[:2] == (503, "SlowDown")
        mixed.double.fail(500, operation="HeadObject", times=1)
        assert (await refused(client.list_objects_v2))[:2] == (503, "ServiceUnavailable")
        mixed.double.fail(403, operation="ListObjectsV2", times=1, code="SignatureDoesNotMatch")
        assert (await refused(client.list_objects_v2))[:2] == (503, "ServiceUnavailable")
        mixed.double.fail(500, operation="ListObjectsV2", nth=2, times=1)
        assert (await refused(client.list_objects_v2, MaxKeys=2))[:2] == (503, "ServiceUnavailable")

    async def test_keys_with_characters_that_xml_forbids(self, mixed: Stage) -> None:
        """Encoded they are listed; else they stand there as S3 writes them, less the tombstones."""
        for key in ("a\x01+ %", "c\r"):
            mixed.double.put("odd", key, b"x")
        await entomb(mixed, "b", bucket="odd")
        answer = await call(connect(mixed.origin).list_objects_v2, Bucket="odd", MaxKeys=2)
        assert [one["Key"] for one in answer["Contents"]] == ["a\x01+ %", "c\r"]
        for query in ("list-type=2", "max-keys=2", "list-type=2&max-keys=2"):
            reply = await raw.ask(mixed.origin, raw.head(mixed.origin, "GET", f"/odd?{query}"))
            assert reply.status == 200
            assert b"<Key>a&#x1;+ %</Key>" in reply.body
            assert b"<Key>c&#13;</Key>" in reply.body
            assert b"<Key>b</Key>" not in reply.body
            assert b"EncodingType" not in reply.body


@pytest.mark.asyncio(loop_scope="module")
async def test_a_bucket_that_never_had_versions_shows_no_delete_markers(mixed: Stage) -> None:
    mixed.double.put("deep", "a", b"x")
    await entomb(mixed, "b", bucket="deep")
    versions = await call(connect(mixed.origin).list_object_versions, Bucket="deep")
    assert [one["Key"] for one in versions["Versions"]] == ["a"]
    assert "DeleteMarkers" not in versions


@pytest.mark.thorough
@pytest.mark.asyncio(loop_scope="module")
async def test_uploads_of_the_gateways_own_are_left_out(mixed: Stage) -> None:
    client, store = connect(mixed.origin, "1"), mixed.beside()
    ids: dict[str, str] = {}
    for key in ("a", "b/1", "c/1", "c/2", "d"):
        opened = client if key in ("b/1", "c/2") else store
        ids[key] = (await call(opened.create_multipart_upload, Bucket="uploads", Key=key))["UploadId"]
    for key in ("a", "c/1", "d"):
        await mixed.rows(
            "INSERT INTO fencing.upload (resource, bucket, key, upload_id, write_id, caller, staged)"
            " VALUES ($1, 'uploads', $1, $2, $3, 'writer', true)",
            key, ids[key], uuid4(),
        )  # fmt: skip

    def pages(**arguments: Any) -> list[dict[str, Any]]:
        paginator: Any = client.get_paginator("list_multipart_uploads")
        return list(paginator.paginate(Bucket="uploads", **arguments))

    for size in (1, 2, 1000):
        found = await in_thread(pages, PaginationConfig={"PageSize": size})
        assert [one["Key"] for page in found for one in page.get("Uploads", ())] == ["b/1", "c/2"]
        assert all(len(page["Uploads"]) == size for page in found[:-1])
    (page,) = await in_thread(pages, Delimiter="/")
    assert [one["Prefix"] for one in page["CommonPrefixes"]] == ["b/", "c/"]
    assert "Uploads" not in page
    for marker, expected in (("0", ["b/1", "c/2"]), ("b/0", ["b/1", "c/2"]), ("b/2", ["c/2"]), ("x", [])):
        page = await call(client.list_multipart_uploads, Bucket="uploads", KeyMarker=marker)
        assert [one["Key"] for one in page.get("Uploads", ())] == expected, "a marker need not be in the list"


async def test_a_tombstone_is_shown_as_a_delete_marker(postgres_server: EmbeddedPostgres) -> None:
    """Wherever it stands in the history, and whether or not Postgres still knows of it."""
    double = S3Double(buckets=["bucket"])
    double.store.bucket("bucket").versioning = "Enabled"
    async with staged(postgres_server, double) as stage:
        marks = {"fencing-tombstone": "true"}
        double.put("bucket", "k", b"first")
        double.put("bucket", "k", tombstone_body(uuid4()), marks)
        double.put("bucket", "k", b"second")
        double.put("bucket", "other", b"x" * TOMBSTONE_SIZE)
        double.put("bucket", "z +", tombstone_body(uuid4()), marks)
        ids = {
            key: [each.version_id for each in versions]
            for key, versions in double.store.bucket("bucket").history.items()
        }
        client = connect(stage.origin, "1")
        answer = await call(client.list_object_versions)
        assert [(one["Key"], one["VersionId"], one["IsLatest"]) for one in answer["DeleteMarkers"]] == [
            ("k", ids["k"][1], False),
            ("z +", ids["z +"][0], True),
        ]
        assert [(one["Key"], one["VersionId"]) for one in answer["Versions"]] == [
            ("k", ids["k"][0]),
            ("k", ids["k"][2]),
            ("other", ids["other"][0]),
        ]
        assert "DeleteMarkers" not in await call(client.list_object_versions, Prefix="oth")


# Pages without some of their entries, over a store of the test's own: over all pages a client sees the rest once.

V1, V2, UPLOADS = Operation.LIST_OBJECTS, Operation.LIST_OBJECTS_V2, Operation.LIST_MULTIPART_UPLOADS


NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"


BEHIND_ALL = "\U0010ffff"


@dataclass
class Bucket:
    """A store that lists like S3. Keys with an ``x`` are hidden."""

    keys: Sequence[str]
    asked: list[Mapping[str, str]] = field(default_factory=list)

    def document(self, operation: Operation, query: Mapping[str, str]) -> bytes:
        self.asked.append(query)
        limit = int(query.get("max-uploads" if operation is UPLOADS else "max-keys", "1000"))
        entries = self._entries(query.get("delimiter", ""))
        after = self._after(operation, query)
        rest = [each for each in entries if place(each) > after]
        page, more = rest[:limit], len(rest) > limit > 0
        said = [f"<MaxKeys>{limit}</MaxKeys><IsTruncated>{str(more).lower()}</IsTruncated>"]
        if operation is V2:
            said.append(f"<KeyCount>{len(page)}</KeyCount>")
            said += [f"<NextContinuationToken>{place(page[-1])}</NextContinuationToken>"] if more else []
        elif operation is UPLOADS:
            said += [f"<NextKeyMarker>{quote(place(page[-1]))}</NextKeyMarker>"] if more else []
        elif more and query.get("delimiter"):
            said.append(f"<NextMarker>{quote(page[-1][0])}</NextMarker>")
        for name, common in page:
            if common:
                said.append(f"<CommonPrefixes><Prefix>{quote(name)}</Prefix></CommonPrefixes>")
            else:
                kind = "Upload" if operation is UPLOADS else "Contents"
                said.append(f"<{kind}><Key>{quote(name)}</Key><Size>1</Size></{kind}>")
        root = {UPLOADS: "ListMultipartUploadsResult"}.get(operation, "ListBucketResult")
        return f'<{root} xmlns="{NAMESPACE}"><EncodingType>url</EncodingType>{"".join(said)}</{root}>'.encode()

    def visible(self, delimiter: str) -> list[tuple[str, bool]]:
        return [each for each in self._entries(delimiter) if not self._is_hidden(each)]

    async def hidden(self, entries: Sequence[ListingEntry]) -> Collection[ListingEntry]:
        return [each for each in entries if self._is_hidden((each.name, each.kind == listing_pages.COMMON_PREFIXES))]

    def _is_hidden(self, entry: tuple[str, bool]) -> bool:
        name, common = entry
        below = [key for key in self.keys if key.startswith(name)] if common else [name]
        return all("x" in key for key in below)

    def _entries(self, delimiter: str) -> list[tuple[str, bool]]:
        found = set()
        for key in self.keys:
            head, separator, _ = key.partition(delimiter) if delimiter else (key, "", "")
            found.add((head + separator, bool(separator)))
        return sorted(found, key=place)

    def _after(self, operation: Operation, query: Mapping[str, str]) -> str:
        if operation is not V1:
            return query.get("continuation-token" if operation is V2 else "key-marker", "")
        marker, delimiter = query.get("marker", ""), query.get("delimiter", "")
        return place((marker, bool(delimiter) and marker.endswith(delimiter)))


def place(entry: tuple[str, bool]) -> str:
    name, common = entry
    return name + BEHIND_ALL if common else name


def pages(bucket: Bucket, operation: Operation, size: int, delimiter: str) -> list[list[tuple[str, bool]]]:
    """Return the pages that a client sees: each request goes on where the last answer says."""
    limit = "max-uploads" if operation is UPLOADS else "max-keys"
    query = {limit: str(size), "delimiter": delimiter}
    seen = []
    for _ in range(100):
        answer = shown(bucket, operation, query)
        seen.append([(entry.name, entry.kind == listing_pages.COMMON_PREFIXES) for entry in answer.entries])
        following = answer.following(operation)
        if following is None:
            return seen
        query = {**query, **following}
    raise AssertionError("the listing has no end")


def shown(bucket: Bucket, operation: Operation, query: Mapping[str, str]) -> ListingPage:
    async def fetch(following: Mapping[str, str]) -> ListingPage:
        return page_of(bucket.document(operation, {**query, **following}))

    async def answer() -> bytes:
        first = await fetch({})
        entries, last = await listing_pages.filled(operation, first, fetch, bucket.hidden)
        return listing_pages.written(operation, first, entries, last)

    return page_of(asyncio.run(answer()))


def page_of(document: bytes) -> ListingPage:
    page = listing_pages.read(document)
    assert page is not None, document
    return page


def check(keys: Sequence[str], operation: Operation, size: int, delimiter: str) -> None:
    bucket = Bucket(keys)
    seen = pages(bucket, operation, size, delimiter)
    entries = [each for page in seen for each in page]
    assert sorted(entries, key=place) == bucket.visible(delimiter), "each that is visible, once"
    assert all(len(page) == size for page in seen[:-1]), "no page but the last is short"
    assert len(seen[-1]) <= size


@settings(deadline=None)
@given(
    keys=st.lists(st.from_regex(r"(p[0-3]/|q /|ü/)?[0-9+ ü]{1,2}[ax]", fullmatch=True), unique=True, max_size=40),
    operation=st.sampled_from([V1, V2, UPLOADS]),
    size=st.integers(1, 12),
    delimiter=st.sampled_from(["", "/"]),
)
def test_any_mix_of_keys_is_listed_page_by_page(
    keys: list[str], operation: Operation, size: int, delimiter: str
) -> None:
    check(keys, operation, size, delimiter)


def test_later_pages_have_only_the_missing_entries() -> None:
    bucket = Bucket(["1a", "2a", "3x", "4x", "5a", "6x", "7a", "8a"])
    answer = shown(bucket, V2, {"max-keys": "4"})
    assert [entry.name for entry in answer.entries] == ["1a", "2a", "5a", "7a"]
    assert [query["max-keys"] for query in bucket.asked] == ["4", "2", "1"]
    assert shown(bucket, V2, {"max-keys": "0"}).entries == ()


def test_an_answer_is_made_of_so_many_pages_at_most_and_can_be_gone_on_from() -> None:
    count = listing_pages.MOST_PAGES + 10
    bucket = Bucket([*(f"x{number:03}" for number in range(count)), "z"])
    for operation in (V1, V2, UPLOADS):
        seen = pages(bucket, operation, 1, "")
        assert seen == [[], [("z", False)]]


RICH = """<?xml version="1.0" encoding="UTF-8"?>
<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>b</Name><Prefix></Prefix>\
<StartAfter> &amp;</StartAfter><KeyCount>3</KeyCount><MaxKeys>3</MaxKeys><IsTruncated>true</IsTruncated>\
<NextContinuationToken>1/+=&lt;</NextContinuationToken><New xmlns="urn:new" a="&quot;"><b>1</b></New>\
<Contents><Key> a&amp;&lt;&#13;
\t"ü\U0001f511 </Key><LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>&quot;e&quot;</ETag>\
<ChecksumAlgorithm>CRC32</ChecksumAlgorithm><ChecksumAlgorithm>SHA256</ChecksumAlgorithm><Size>5</Size>\
<Owner xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" xsi:type="CanonicalUser"><ID>me</ID></Owner>\
<RestoreStatus><IsRestoreInProgress>false</IsRestoreInProgress></RestoreStatus><StorageClass>GLACIER</StorageClass>\
</Contents><Contents><Key>x</Key><Size>45</Size></Contents><CommonPrefixes><Prefix>p/</Prefix></CommonPrefixes>\
</ListBucketResult>"""


def tree(document: bytes) -> object:
    def node(element: ElementTree.Element) -> object:
        return element.tag, element.text or "", sorted(element.items()), [node(child) for child in element]

    return node(ElementTree.fromstring(document))


def test_everything_else_stays_as_the_store_said_it() -> None:
    page = page_of(RICH.encode())
    assert [entry.name for entry in page.entries] == [' a&<\r\n\t"ü\U0001f511 ', "x", "p/"]
    everything = listing_pages.written(V2, page, page.entries, page)
    assert sorted(map(repr, tree(everything)[3])) == sorted(map(repr, tree(RICH.encode())[3]))  # type: ignore[index]
    without = listing_pages.written(V2, page, [page.entries[0], page.entries[2]], page).decode()
    expected = RICH.replace("<Contents><Key>x</Key><Size>45</Size></Contents>", "").replace(
        "<KeyCount>3</KeyCount>", "<KeyCount>2</KeyCount>"
    )
    assert sorted(map(repr, tree(without.encode())[3])) == sorted(map(repr, tree(expected.encode())[3]))  # type: ignore[index]
    assert ' a&amp;&lt;&#13;\n\t"ü\U0001f511 ' in without


@pytest.mark.parametrize("key", ["a b+c%", "\x01\x1f\r\n\uffff", "&<>\"'", "ü/日本"])
def test_names_are_written_as_if_they_had_not_been_encoded(key: str) -> None:
    """As S3 writes them, also where that is no XML."""
    document = (
        f'<ListBucketResult xmlns="{NAMESPACE}"><Prefix>{quote(key[:1])}</Prefix><EncodingType>url</EncodingType>'
        f"<NextContinuationToken>%41</NextContinuationToken><Contents><Key>{quote(key)}</Key><ETag>%41</ETag></Contents>"
        "</ListBucketResult>"
    )
    page = page_of(document.encode())
    assert [entry.name for entry in page.entries] == [key]
    written = listing_pages.written(V2, page, page.entries, page, decode=True).decode()
    spoken = "".join(f"&#x{ord(one):X};" if one in "\x01\x1f\uffff" else escape(one, {"\r": "&#13;"}) for one in key)
    assert f"<Key>{spoken}</Key>" in written
    assert "EncodingType" not in written
    assert "<NextContinuationToken>%41<" in written
    assert "<ETag>%41<" in written


def test_bytes_that_are_no_utf_8_stay_what_they_are() -> None:
    document = (
        b"<ListBucketResult><EncodingType>url</EncodingType><Contents><Key>a%FFb</Key></Contents></ListBucketResult>"
    )
    page = page_of(document)
    assert b"<Key>a%FFb</Key>" in listing_pages.written(V2, page, page.entries, page)
    assert b"<Key>a\xffb</Key>" in listing_pages.written(V2, page, page.entries, page, decode=True)


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"no xml",
        b"<ListBucketResult><Contents>",
        b"<ListBucketResult><Contents><Key>&#x1;</Key></Contents></ListBucketResult>",
        b"<ListBucketResult><Contents><Size>1</Size></Contents></ListBucketResult>",
        b'<!DOCTYPE a [<!ENTITY e "x">]><ListBucketResult><Contents><Key>&e;</Key></Contents></ListBucketResult>',
        b"<Error><Code>NoSuchBucket</Code></Error>",
    ],
)
def test_a_document_that_is_no_listing_is_refused(document: bytes) -> None:
    assert listing_pages.read(document) is None


MEANT = {"x&#x1;y": "x\x01y", "x&#x01;y": "x\x01y", "x&#1;y": "x\x01y", "&#xFFFF;": "\uffff"}


ENCODED = "<EncodingType>url</EncodingType><IsTruncated>true</IsTruncated>"


@pytest.mark.parametrize(
    "said", ["x\x01y", "x&#x1;y", "x&#x01;y", "x&#1;y", "x\x1fy", "\ufffe", "&#xFFFF;", "x&#xD;y", "&amp;#x1;"]
)
def test_markers_with_characters_that_xml_forbids_lead_on(said: str) -> None:
    """Encoding-type=url does not keep Ceph from writing them where it says where to go on."""
    document = f"<ListBucketResult>{ENCODED}<NextContinuationToken>{said}</NextContinuationToken></ListBucketResult>"
    page = listing_pages.read(document.encode())
    assert page is not None
    meant = html.unescape(said) if said in ("x&#xD;y", "&amp;#x1;") else MEANT.get(said, said)
    assert page.following(V2) == {"continuation-token": meant}
    again = listing_pages.read(listing_pages.written(V2, page, page.entries, page))
    assert again is not None
    assert again.following(V2) == page.following(V2)


@pytest.mark.parametrize("mistakable", ["\U000f0001", "&#xF0001;", "&#983041;"])
def test_no_name_is_invented_for_characters_that_xml_forbids(mistakable: str) -> None:
    document = f"<ListBucketResult>{ENCODED}<StartAfter>\x01{mistakable}</StartAfter></ListBucketResult>"
    assert listing_pages.read(document.encode()) is None
