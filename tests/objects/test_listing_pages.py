"""Pages of a listing without some of their entries: over all pages a client sees the rest, each entry once."""

import asyncio
import html
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from urllib.parse import quote
from xml.etree import ElementTree
from xml.sax.saxutils import escape

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.objects.s3 import listing_pages
from gateway.objects.s3.listing_pages import CONTENTS, ListingEntry, ListingPage
from gateway.objects.s3.operations import Operation

V1, V2, UPLOADS = Operation.LIST_OBJECTS, Operation.LIST_OBJECTS_V2, Operation.LIST_MULTIPART_UPLOADS
S3 = "http://s3.amazonaws.com/doc/2006-03-01/"
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
        return f'<{root} xmlns="{S3}"><EncodingType>url</EncodingType>{"".join(said)}</{root}>'.encode()

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


@pytest.mark.parametrize("operation", [V1, V2, UPLOADS])
@pytest.mark.parametrize("delimiter", ["", "/"])
def test_any_small_mix_of_keys_is_listed_page_by_page(operation: Operation, delimiter: str) -> None:
    for kinds in product([(), ("{}a",), ("{}x",), ("{}/a", "{}/x"), ("{}/x", "{}/y/x")], repeat=3):
        keys = [name.format(number) for number, names in enumerate(kinds) for name in names]
        for size in (1, 2):
            check(keys, operation, size, delimiter)


@settings(max_examples=150, deadline=None)
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


def test_an_answer_is_made_of_so_many_pages_at_most_and_can_be_gone_on_from() -> None:
    count = listing_pages.MOST_PAGES + 10
    bucket = Bucket([*(f"x{number:03}" for number in range(count)), "z"])
    for operation in (V1, V2, UPLOADS):
        seen = pages(bucket, operation, 1, "")
        assert seen == [[], [("z", False)]]


def test_no_keys_are_asked_for() -> None:
    answer = shown(Bucket(["x1", "a2"]), V2, {"max-keys": "0"})
    assert answer.entries == ()


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


def test_a_store_without_a_namespace_gets_none() -> None:
    page = page_of(
        b"<ListBucketResult><IsTruncated>false</IsTruncated><Contents><Key>k</Key></Contents></ListBucketResult>"
    )
    written = listing_pages.written(V1, page, page.entries, page)
    assert written.endswith(
        b"\n<ListBucketResult><IsTruncated>false</IsTruncated><Contents><Key>k</Key></Contents></ListBucketResult>"
    )


@pytest.mark.parametrize("key", ["a b+c%", "\x01\x1f\r\n\uffff", "&<>\"'", "ü/日本"])
def test_names_are_written_as_if_they_had_not_been_encoded(key: str) -> None:
    """As S3 writes them, also where that is no XML."""
    document = (
        f'<ListBucketResult xmlns="{S3}"><Prefix>{quote(key[:1])}</Prefix><EncodingType>url</EncodingType>'
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


def test_a_delete_marker_has_the_elements_of_s3() -> None:
    document = (
        f'<ListVersionsResult xmlns="{S3}"><Version><Key>k</Key><VersionId>v</VersionId><IsLatest>true</IsLatest>'
        "<LastModified>t</LastModified><ETag>e</ETag><Size>45</Size><StorageClass>STANDARD</StorageClass>"
        "<Owner><ID>me</ID></Owner></Version></ListVersionsResult>"
    )
    page = page_of(document.encode())
    (entry,) = page.entries
    assert (entry.kind, entry.size) == (listing_pages.VERSION, 45)
    written = listing_pages.written(
        Operation.LIST_OBJECT_VERSIONS, page, [listing_pages.as_delete_marker(entry)], page
    ).decode()
    assert (
        "<DeleteMarker><Key>k</Key><VersionId>v</VersionId><IsLatest>true</IsLatest><LastModified>t</LastModified>"
        "<Owner><ID>me</ID></Owner></DeleteMarker></ListVersionsResult>"
    ) in written


@pytest.mark.parametrize(("size", "bytes_"), [("<Size>45</Size>", 45), ("", None), ("<Size>many</Size>", None)])
def test_the_size_of_an_object(size: str, bytes_: int | None) -> None:
    (entry,) = page_of(f"<ListBucketResult><Contents><Key>k</Key>{size}</Contents></ListBucketResult>".encode()).entries
    assert entry.kind == CONTENTS
    assert entry.size == bytes_


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
