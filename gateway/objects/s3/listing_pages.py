"""Pages of a listing: read strictly, and written again without some of their entries.

All else stays as the store wrote it: markers of the next page, owners, checksums, unknown elements.
"""

import re
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias
from urllib.parse import unquote_plus
from xml.etree.ElementTree import Element  # parsing is left to defusedxml, behind xml.py
from xml.sax.saxutils import escape, quoteattr

from gateway.objects.s3 import xml
from gateway.objects.s3.operations import Operation

COMMON_PREFIXES = "CommonPrefixes"
CONTENTS = "Contents"
UPLOAD = "Upload"
VERSION = "Version"
MOST_PAGES = 100
"""The most pages of the store in one answer. It may then be shorter than was asked for, as S3's may."""

_ROOTS = frozenset({"ListBucketResult", "ListVersionsResult", "ListMultipartUploadsResult"})
_ENTRIES = frozenset({COMMON_PREFIXES, CONTENTS, UPLOAD, VERSION, "DeleteMarker"})
_NEXT_PAGE = frozenset(
    {
        "IsTruncated",
        "NextContinuationToken",
        "NextKeyMarker",
        "NextMarker",
        "NextUploadIdMarker",
        "NextVersionIdMarker",
    }
)
# The elements that encoding-type=url encodes.
_ENCODED = frozenset({"Delimiter", "Key", "KeyMarker", "Marker", "NextKeyMarker", "NextMarker", "Prefix", "StartAfter"})
_OF_A_DELETE_MARKER = ("Key", "VersionId", "IsLatest", "LastModified", "Owner")
# XML 1.0 does not allow these. S3 writes them as character references all the same.
_NOT_ALLOWED = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")
# Characters of a private plane take their place while the document is parsed.
_PLANE = 0xF0000
_STANDING_IN = re.compile("[\U000f0000-\U000fffff]")
_CHARACTER = re.compile(
    rb"([\x00-\x08\x0b\x0c\x0e-\x1f]|\xef\xbf[\xbe\xbf]|\xf3[\xb0-\xbf][\x80-\xbf]{2})"
    rb"|&#(?:x([0-9A-Fa-f]{1,6})|([0-9]{1,7}));"
)


@dataclass(frozen=True, slots=True, eq=False)
class ListingEntry:
    """A key, a version, an upload or a common prefix. ``name`` is the key or prefix, decoded."""

    kind: str
    name: str
    element: Element

    def text(self, field: str) -> str:
        """Return the text of one of its elements; empty where it has none of that name."""
        return _text(self.element, field) or ""

    @property
    def size(self) -> int | None:
        """The size of the object in bytes; None where the store does not say."""
        size = self.text("Size").strip()
        return int(size) if size.isascii() and size.isdecimal() else None


@dataclass(frozen=True, slots=True, eq=False)
class ListingPage:
    """One page as the store sent it. ``encoded``: its names stand there percent-encoded."""

    root: Element
    entries: tuple[ListingEntry, ...]
    encoded: bool

    @property
    def is_truncated(self) -> bool:
        return self._field("IsTruncated").strip().lower() == "true"

    def following(self, operation: Operation) -> Mapping[str, str] | None:
        """Return the query parameters that lead to the next page; None on the last one."""
        if not self.is_truncated:
            return None
        if operation is Operation.LIST_OBJECTS_V2:
            token = self._field("NextContinuationToken")
            return {"continuation-token": token} if token else None
        if operation is Operation.LIST_MULTIPART_UPLOADS:
            marker = self._decoded(self._field("NextKeyMarker"))
            return {"key-marker": marker, "upload-id-marker": self._field("NextUploadIdMarker")} if marker else None
        marker = self._decoded(self.next_marker)
        return {"marker": marker} if marker else None

    @property
    def next_marker(self) -> str:
        """The key after which ListObjects goes on. Without a delimiter S3 leaves it out: it is the last."""
        last = max(self.entries, key=lambda entry: _bytes(entry.name), default=None)
        return self._field("NextMarker") or ("" if last is None else _name(last.element) or "")

    def _field(self, name: str) -> str:
        return _text(self.root, name) or ""

    def _decoded(self, text: str) -> str:
        return _decoded(text) if self.encoded else text


Fetch: TypeAlias = Callable[[Mapping[str, str]], Awaitable[ListingPage]]
"""Asks the store for the page that these parameters lead to. They replace those of the request."""
Hidden: TypeAlias = Callable[[Sequence[ListingEntry]], Awaitable[Collection[ListingEntry]]]
"""Which entries must not be shown."""


def read(document: bytes) -> ListingPage | None:
    """Return a page of a listing; None where the document is something else, or no XML."""
    root = xml.parse(document, len(document))
    if root is None:
        root = _parsed_leniently(document)
    if root is None or xml.local(root) not in _ROOTS:
        return None
    encoded = _is_encoded(root)
    entries = []
    for element in root:
        kind = xml.local(element)
        if kind in _ENTRIES:
            name = _name(element)
            if name is None:
                return None
            entries.append(ListingEntry(kind, _decoded(name) if encoded else name, element))
    return ListingPage(root, tuple(entries), encoded)


def buckets(document: bytes, shown: Callable[[str], bool]) -> bytes | None:
    """Return an answer to ListBuckets with the buckets that are to be shown; None where it is something else."""
    root = xml.parse(document, len(document))
    if root is None or xml.local(root) != "ListAllMyBucketsResult":
        return None
    for group in root:
        for element in list(group):
            if xml.local(element) == "Bucket" and not shown((_text(element, "Name") or "").strip()):
                group.remove(element)
    return "".join(('<?xml version="1.0" encoding="UTF-8"?>\n', *_written(root, "", decode=False))).encode()


async def filled(
    operation: Operation, first: ListingPage, fetch: Fetch, hidden: Hidden
) -> tuple[list[ListingEntry], ListingPage]:
    """Return the visible entries of a page, filled up from later pages; and the last of these, which leads on.

    A later page is asked for with just as many entries as are missing. So the store's own marker is always the right
    one to go on from.
    """
    limit = "max-uploads" if operation is Operation.LIST_MULTIPART_UPLOADS else "max-keys"
    shown: list[ListingEntry] = []
    page = first
    for _ in range(MOST_PAGES):
        last, unseen = page, await hidden(page.entries)
        shown += [entry for entry in page.entries if entry not in unseen]
        missing, following = len(first.entries) - len(shown), page.following(operation)
        if not missing or following is None:
            break
        page = await fetch({**following, limit: str(missing)})
    return shown, last


def as_delete_marker(entry: ListingEntry) -> ListingEntry:
    element = Element(_qualified(entry.element, "DeleteMarker"))
    element.extend(child for child in entry.element if xml.local(child) in _OF_A_DELETE_MARKER)
    return ListingEntry("DeleteMarker", entry.name, element)


def written(
    operation: Operation,
    first: ListingPage,
    entries: Sequence[ListingEntry],
    last: ListingPage,
    *,
    decode: bool = False,
) -> bytes:
    """Return the document of a page that shows ``entries``, asked for like ``first``, which leads on after ``last``.

    ``decode``: the client has not asked for encoded names, so they are written as S3 writes them then.
    """
    root = first.root
    out = ['<?xml version="1.0" encoding="UTF-8"?>\n', f"<{xml.local(root)}{_declared(root, '')}>"]
    head = [child for child in root if xml.local(child) not in _ENTRIES | _NEXT_PAGE]
    next_page = [child for child in last.root if xml.local(child) in _NEXT_PAGE]
    # Prefixes come last, as S3 has them.
    listed = sorted(entries, key=lambda entry: entry.kind == COMMON_PREFIXES)
    for element in (*head, *next_page):
        if xml.local(element) == "KeyCount":
            out.append(f"<KeyCount>{len(entries)}</KeyCount>")
        else:
            out += _written(element, _namespace(root), decode=decode)
    if operation is Operation.LIST_OBJECTS and last.following(operation) and not _text(last.root, "NextMarker"):
        # Without it, the client would go on from the last key that it sees.
        marker = Element(_qualified(root, "NextMarker"))
        marker.text = last.next_marker
        out += _written(marker, _namespace(root), decode=decode)
    for entry in listed:
        out += _written(entry.element, _namespace(root), decode=decode)
    out.append(f"</{xml.local(root)}>")
    return "".join(out).encode("utf-8", "surrogateescape")


def _parsed_leniently(document: bytes) -> Element | None:
    """Parse a document with characters that XML does not allow. None where its names are not encoded.

    With encoded names, some stores still write such characters: in parameters that they repeat, and in markers of the
    next page.
    """
    speakable = _CHARACTER.sub(_stand_in, document)
    root = xml.parse(speakable, len(speakable))
    if root is None or not _is_encoded(root):
        return None
    for element in root.iter():
        element.text = _STANDING_IN.sub(lambda found: chr(ord(found[0]) - _PLANE), element.text or "")
    return root


def _is_encoded(root: Element) -> bool:
    return (_text(root, "EncodingType") or "").strip() == "url"


def _stand_in(found: re.Match[bytes]) -> bytes:
    raw, hexadecimal, decimal = found.groups()
    code = ord(raw.decode()) if raw else int(hexadecimal, 16) if hexadecimal else int(decimal)
    if code >> 16 == _PLANE >> 16:
        return b"\0"  # it could not be told from a stand-in, so the document is refused
    return chr(_PLANE + code).encode() if code < _PLANE and _NOT_ALLOWED.fullmatch(chr(code)) else found[0]


def _written(element: Element, namespace: str, *, decode: bool) -> Iterator[str]:
    """Yield an element within ``namespace``."""
    name, text = xml.local(element), element.text or ""
    if decode and name == "EncodingType":
        return
    if decode and name in _ENCODED:
        text = _decoded(text)
    yield f"<{name}{_declared(element, namespace)}{_attributes(element)}>{_escaped(text)}"
    for child in element:
        yield from _written(child, _namespace(element), decode=decode)
        yield _escaped(child.tail or "")
    yield f"</{name}>"


def _declared(element: Element, namespace: str) -> str:
    own = _namespace(element)
    return "" if own == namespace else f" xmlns={quoteattr(own)}"


def _attributes(element: Element) -> str:
    written = []
    for number, (qualified, value) in enumerate(element.items()):
        namespace, _, name = qualified.rpartition("}")
        if namespace:
            written.append(f" xmlns:n{number}={quoteattr(namespace[1:])} n{number}:{name}={quoteattr(value)}")
        else:
            written.append(f" {name}={quoteattr(value)}")
    return "".join(written)


def _escaped(text: str) -> str:
    # A carriage return written as such would be read as a line feed.
    return _NOT_ALLOWED.sub(lambda found: f"&#x{ord(found[0]):X};", escape(text, {"\r": "&#13;"}))


def _namespace(element: Element) -> str:
    return str(element.tag).rpartition("}")[0].removeprefix("{")


def _qualified(beside: Element, name: str) -> str:
    namespace = _namespace(beside)
    return f"{{{namespace}}}{name}" if namespace else name


def _name(element: Element) -> str | None:
    """Return the key or prefix of an entry, as it stands in the document."""
    return _text(element, "Prefix" if xml.local(element) == COMMON_PREFIXES else "Key")


def _text(element: Element, name: str) -> str | None:
    return next((child.text or "" for child in element if xml.local(child) == name), None)


def _decoded(text: str) -> str:
    """Decode a name of encoding-type=url. A plus sign is a space; bytes that are no UTF-8 are kept."""
    return unquote_plus(text, errors="surrogateescape")


def _bytes(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")
