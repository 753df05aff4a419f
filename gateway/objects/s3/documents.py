"""S3's documents: the documents that clients send are read strictly, and the answers are written here."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from xml.etree.ElementTree import Element  # only the type: xml.py does the parsing

from gateway.errors import GatewayError, StoreError
from gateway.objects.s3 import xml

MAX_KEYS = 1000
MAX_PARTS = 10_000
MAX_DOCUMENT = 4 * 1024 * 1024
"""Bytes that a document in a request may have: ten thousand parts with checksums, or a thousand of the longest keys."""
_TAGS_OF_A_KEY, _TAGS_OF_A_PART = 24, 20
"""Start and end tags, each of which costs a few microseconds to read. A part has a checksum of each kind at most."""

_NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
_CHECKSUMS = frozenset({"ChecksumCRC32", "ChecksumCRC32C", "ChecksumCRC64NVME", "ChecksumSHA1", "ChecksumSHA256"})


@dataclass(frozen=True, slots=True)
class ObjectToDelete:
    """One object of a DeleteObjects. ``etag`` as it was written, None where it has no condition."""

    key: str
    version_id: str | None = None
    etag: str | None = None


@dataclass(frozen=True, slots=True)
class Deletion:
    """The content of a DeleteObjects. ``quiet``: answer only the errors."""

    objects: tuple[ObjectToDelete, ...]
    quiet: bool


@dataclass(frozen=True, slots=True)
class Part:
    """A part as a completion names it: its ETag without quotes, its checksums by the names of their elements."""

    number: int
    etag: str
    checksums: tuple[tuple[str, str], ...] = ()


def deletion(body: bytes) -> Deletion:
    """Read the document of a DeleteObjects. Raises ``StoreError`` MalformedXML."""
    root = _root(body, "Delete", MAX_KEYS * _TAGS_OF_A_KEY)
    objects = [_object_to_delete(element) for element in root if xml.local(element) == "Object"]
    if not 1 <= len(objects) <= MAX_KEYS:
        raise _malformed(f"A DeleteObjects names 1 to {MAX_KEYS} objects.")
    return Deletion(tuple(objects), (_text(root, "Quiet") or "").strip().lower() == "true")


def _object_to_delete(element: Element) -> ObjectToDelete:
    for name in ("LastModifiedTime", "Size"):
        if _text(element, name):
            raise StoreError("NotImplemented", 501, f"DeleteObjects with a condition on {name} is not implemented.")
    # White space belongs to a key.
    key = _text(element, "Key")
    if not key:
        raise _malformed("An object of the DeleteObjects has no key.")
    version, etag = ((_text(element, name) or "").strip() or None for name in ("VersionId", "ETag"))
    return ObjectToDelete(key, version, etag)


def completion(body: bytes) -> tuple[Part, ...]:
    """Read the document of a CompleteMultipartUpload. Raises ``StoreError`` MalformedXML or InvalidPartOrder."""
    root = _root(body, "CompleteMultipartUpload", MAX_PARTS * _TAGS_OF_A_PART)
    parts = tuple(_part(element) for element in root if xml.local(element) == "Part")
    if not 1 <= len(parts) <= MAX_PARTS:
        raise _malformed(f"An upload is completed with 1 to {MAX_PARTS} parts.")
    numbers = [part.number for part in parts]
    if any(one >= following for one, following in pairwise(numbers)):
        raise StoreError(
            "InvalidPartOrder",
            400,
            "The list of parts was not in ascending order. Parts must be ordered by part number.",
        )
    return parts


def _part(element: Element) -> Part:
    number, etag = (_text(element, "PartNumber") or "").strip(), (_text(element, "ETag") or "").strip()
    if not (number.isascii() and number.isdecimal() and len(number) <= 5 and 1 <= int(number) <= MAX_PARTS):
        raise StoreError("InvalidArgument", 400, f"A part number is between 1 and {MAX_PARTS}, inclusive.")
    bare = etag.removeprefix('"').removesuffix('"')
    if not bare or '"' in bare:
        raise _malformed(f"Part {int(number)} has no ETag.")
    checksums = [(xml.local(child), (child.text or "").strip()) for child in element if xml.local(child) in _CHECKSUMS]
    return Part(int(number), bare, tuple(checksums))


def complete(parts: Iterable[Part]) -> bytes:
    """Return the document that completes an upload of these parts."""
    listed = []
    for part in parts:
        number, etag = f"<PartNumber>{part.number}</PartNumber>", f"<ETag>&quot;{xml.escaped(part.etag)}&quot;</ETag>"
        listed.append(f"<Part>{number}{etag}{_fields(dict(part.checksums))}</Part>")
    return f'<CompleteMultipartUpload xmlns="{_NAMESPACE}">{"".join(listed)}</CompleteMultipartUpload>'.encode()


def etag_of_parts(parts: Iterable[Part]) -> str | None:
    """Return the ETag that an upload of these parts gets.

    None where the store's ETags are no hashes: those never come back.
    """
    try:
        digests = [bytes.fromhex(part.etag) for part in parts]
    except ValueError:
        return None
    return f"{hashlib.md5(b''.join(digests), usedforsecurity=False).hexdigest()}-{len(digests)}"


def deleted(results: Iterable[tuple[ObjectToDelete, "GatewayError | DeletedObject"]], *, quiet: bool) -> bytes:
    """Return the answer to a DeleteObjects: the outcome for each object."""
    elements = []
    for entry, result in results:
        if isinstance(result, GatewayError):
            # The rejection's id, the fence and the like: what the answer to a single delete would have said.
            facts = {"Key": entry.key, "VersionId": entry.version_id, "Code": result.s3_code}
            message = f"{result.message} {result.advice}".strip()
            elements.append(_element("Error", {**facts, "Message": message, **xml.facts(result)}))
        elif not quiet:
            elements.append(_element("Deleted", {"Key": entry.key, "VersionId": entry.version_id, **result.facts}))
    return _document("DeleteResult", "".join(elements))


@dataclass(frozen=True, slots=True)
class DeletedObject:
    """The store's answer about an object that it deleted."""

    delete_marker: str | None = None
    marker_version_id: str | None = None

    @property
    def facts(self) -> dict[str, str | None]:
        return {"DeleteMarker": self.delete_marker, "DeleteMarkerVersionId": self.marker_version_id}


def copied(etag: str, modified: str) -> bytes:
    """Return the answer to a CopyObject. ``modified`` is a time as S3 writes it."""
    return _document("CopyObjectResult", _fields({"LastModified": modified, "ETag": f'"{etag}"'}))


def initiated(bucket: str, key: str, upload_id: str) -> bytes:
    fields = {"Bucket": bucket, "Key": key, "UploadId": upload_id}
    return _document("InitiateMultipartUploadResult", _fields(fields))


def completed(location: str, bucket: str, key: str, etag: str, checksums: Iterable[tuple[str, str]] = ()) -> bytes:
    """Return the answer to a CompleteMultipartUpload. ``checksums`` by the names of their elements."""
    fields = {"Location": location, "Bucket": bucket, "Key": key, "ETag": f'"{etag}"', **dict(checksums)}
    return _document("CompleteMultipartUploadResult", _fields(fields))


def posted(location: str, bucket: str, key: str, etag: str) -> bytes:
    """Return the answer to a form upload that asks for 201."""
    fields = {"Location": location, "Bucket": bucket, "Key": key, "ETag": f'"{etag}"'}
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<PostResponse>{_fields(fields)}</PostResponse>'.encode()


def _root(body: bytes, name: str, most_tags: int) -> Element:
    if body.count(b"<") > most_tags:
        raise _malformed(f"The document has more than {most_tags:,} tags.")
    root = xml.parse(body, len(body))
    if root is None or xml.local(root) != name:
        raise _malformed("The XML you provided was not well-formed or did not validate against our published schema.")
    return root


def _text(element: Element, name: str) -> str | None:
    found = [child.text or "" for child in element if xml.local(child) == name]
    if len(found) > 1:
        raise _malformed(f"The element {name} stands twice.")
    return found[0] if found else None


def _malformed(message: str) -> StoreError:
    return StoreError("MalformedXML", 400, message)


def _document(name: str, content: str) -> bytes:
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<{name} xmlns="{_NAMESPACE}">{content}</{name}>'.encode()


def _element(name: str, fields: dict[str, str | None]) -> str:
    return f"<{name}>{_fields(fields)}</{name}>"


def _fields(fields: dict[str, str | None] | dict[str, str]) -> str:
    return "".join(f"<{name}>{xml.escaped(text)}</{name}>" for name, text in fields.items() if text is not None)
