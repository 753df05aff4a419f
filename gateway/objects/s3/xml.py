"""S3's documents: those of clients are read strictly, the fields of the store's are read, and answers are written."""

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias
from xml.etree.ElementTree import Element, ParseError  # only the types: defusedxml does the parsing
from xml.sax.saxutils import escape

from defusedxml import DefusedXmlException
from defusedxml.ElementTree import fromstring

from gateway.errors import GatewayError, StoreError
from gateway.objects.s3.body import Algorithm

MAX_ERROR_BYTES = 64 * 1024

# XML 1.0 does not allow these, not even as a character reference.
_NOT_ALLOWED = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_RESERVED = frozenset({"Code", "Message", "Resource", "RequestId"})
_ELEMENT = re.compile(r"[A-Za-z][A-Za-z0-9]*")


def render(error: GatewayError, *, path: str, request_id: str) -> bytes:
    """Return the error document: code, message with advice, path, request id, and an element for each fact."""
    elements = {
        "Code": error.s3_code,
        "Message": told(error),
        "Resource": path,
        "RequestId": request_id,
        **facts(error),
    }
    body = "".join(f"<{name}>{escaped(text)}</{name}>" for name, text in elements.items())
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<Error>{body}</Error>'.encode()


def told(error: GatewayError) -> str:
    """Return the message of an error, and the advice behind it. Some messages of S3 have no full stop."""
    stop = "." if error.advice and error.message and error.message[-1] not in ".!?" else ""
    return f"{error.message}{stop} {error.advice}".strip()


def facts(error: GatewayError) -> dict[str, str]:
    """Return the machine-readable particulars of an error, by the names of their elements."""
    elements = {}
    for key, fact in error.facts.items():
        name = "".join(word[:1].upper() + word[1:] for word in re.split(r"[^A-Za-z0-9]+", key))
        if fact is not None and name not in _RESERVED and _ELEMENT.fullmatch(name):
            elements[name] = str(fact).lower() if isinstance(fact, bool) else str(fact)
    return elements


def answer(
    error: GatewayError, *, method: str, path: str, request_id: str
) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
    """Return status, headers and body of the answer to a failed request. The answer to HEAD has no body."""
    body = b"" if method == "HEAD" else render(error, path=path, request_id=request_id)
    headers = [(b"x-amz-request-id", request_id.encode("latin-1", "replace"))]
    if method != "HEAD":
        headers += [(b"content-type", b"application/xml"), (b"content-length", str(len(body)).encode())]
    return error.status, headers + error.retry_headers, body


def escaped(text: str) -> str:
    """Return text for an element, with the characters replaced that XML does not allow."""
    # A carriage return written as such would be read as a line feed.
    return escape(_NOT_ALLOWED.sub("\ufffd", text), {"\r": "&#13;"})


@dataclass(frozen=True, slots=True)
class ErrorDocument:
    code: str
    message: str


def read_error(body: bytes) -> ErrorDocument | None:
    """Return the error in an answer's body, whatever the status: S3 may begin with 200 and end with ``<Error>``."""
    root = parse(body)
    if root is None or local(root) != "Error":
        return None
    fields = {local(child): (child.text or "").strip() for child in root}
    return ErrorDocument(fields.get("Code", ""), fields.get("Message", ""))


def read_field(body: bytes, document: str, field: str) -> str | None:
    """Return the text of one top-level field; None if it is not there."""
    root = parse(body)
    if root is None or local(root) != document:
        return None
    return next(((child.text or "").strip() for child in root if local(child) == field), None)


def read_checksums(body: bytes) -> tuple[tuple[str, str], ...]:
    """Return the checksums in a document, such as ``("ChecksumCRC32", "…")``."""
    root = parse(body)
    fields = () if root is None else root
    return tuple((local(child), (child.text or "").strip()) for child in fields if local(child).startswith("Checksum"))


def read_buckets(body: bytes) -> tuple[str, ...]:
    """Return the names in the answer to ListBuckets; none where it is something else, or too long."""
    root = parse(body)
    if root is None or local(root) != "ListAllMyBucketsResult":
        return ()
    return tuple((element.text or "").strip() for element in root.iter() if local(element) == "Name")


def read_acl(body: bytes) -> tuple[str | None, list[tuple[str, str]]]:
    """Return the owner's id in an AccessControlPolicy, and its grants: the id or address of each, and its right."""
    root = parse(body)
    if root is None or local(root) != "AccessControlPolicy":
        return None, []

    def text(element: Element, *names: str) -> str | None:
        found = (one.text for one in element.iter() if local(one) in names and one.text)
        return next((one.strip() for one in found), None)

    owner = next((text(element, "ID") for element in root if local(element) == "Owner"), None)
    grants = [(text(grant, "ID", "URI", "EmailAddress"), text(grant, "Permission")) for grant in root.iter()
              if local(grant) == "Grant"]  # fmt: skip
    return owner, [(who, right) for who, right in grants if who is not None and right is not None]


@dataclass(frozen=True, slots=True)
class UploadsPage:
    """A page of ListMultipartUploads. Its markers stand as they came: with encoding-type=url they are encoded."""

    upload_ids: frozenset[str]
    truncated: bool
    next_key: str
    next_upload_id: str


def read_uploads(body: bytes) -> UploadsPage | None:
    """Return a page of ListMultipartUploads; None where the body is something else."""
    root = parse(body, len(body))
    if root is None or local(root) != "ListMultipartUploadsResult":
        return None
    fields = {local(child): (child.text or "").strip() for child in root}
    ids = [field.text for child in root if local(child) == "Upload" for field in child if local(field) == "UploadId"]
    return UploadsPage(
        frozenset((text or "").strip() for text in ids),
        fields.get("IsTruncated", "").lower() == "true",
        fields.get("NextKeyMarker", ""),
        fields.get("NextUploadIdMarker", ""),
    )


def read_tags(body: bytes) -> list[tuple[str, str]] | None:
    """Return the pairs of a Tagging document; None where the body is something else."""
    root = parse(body)
    if root is None or local(root) != "Tagging":
        return None
    tags = [{local(field): field.text or "" for field in tag} for tag in root.iter() if local(tag) == "Tag"]
    return [(tag.get("Key", ""), tag.get("Value", "")) for tag in tags]


def parse(body: bytes, limit: int = MAX_ERROR_BYTES) -> Element | None:
    """Return the document, None where the body is none. S3 keeps a connection alive with white space ahead of it."""
    text = body[:limit].strip()
    if not text.startswith(b"<"):
        return None
    try:
        root: Element = fromstring(text, forbid_dtd=True)
    except (ParseError, DefusedXmlException, ValueError, LookupError):  # LookupError: an unknown encoding
        return None
    return root


def local(element: Element) -> str:
    """Return the name of an element without its namespace: not all stores give one."""
    return str(element.tag).rpartition("}")[2]


MAX_KEYS = 1000
MAX_PARTS = 10_000
MAX_DOCUMENT = 4 * 1024 * 1024
"""Bytes that a document in a request may have: ten thousand parts with checksums, or a thousand of the longest keys."""
_TAGS_OF_A_KEY, _TAGS_OF_A_PART = 24, 26
"""Start and end tags, each of which costs a few microseconds to read. A part has a checksum of each kind at most."""

_NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
_CHECKSUMS = frozenset(f"Checksum{each.name}" for each in Algorithm)


@dataclass(frozen=True, slots=True)
class ObjectToDelete:
    """One object of a DeleteObjects. ``etag`` as it was written, None where it has no condition."""

    key: str
    version_id: str | None = None
    etag: str | None = None


@dataclass(frozen=True, slots=True)
class Part:
    """A part as a completion names it: its ETag without quotes, its checksums by the names of their elements."""

    number: int
    etag: str
    checksums: tuple[tuple[str, str], ...] = ()


DeletedFacts: TypeAlias = Mapping[str, str | None]
"""The answer of the store about an object that it deleted, by the names of the elements."""


def deletion(body: bytes) -> tuple[tuple[ObjectToDelete, ...], bool]:
    """Return the objects of a DeleteObjects, and whether only errors are wanted. Raises ``StoreError`` MalformedXML."""
    root = _root(body, "Delete", MAX_KEYS * _TAGS_OF_A_KEY)
    objects = [_object_to_delete(element) for element in root if local(element) == "Object"]
    if not 1 <= len(objects) <= MAX_KEYS:
        raise _malformed(f"A DeleteObjects names 1 to {MAX_KEYS} objects.")
    return tuple(objects), (_text(root, "Quiet") or "").strip().lower() == "true"


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
    parts = tuple(_part(element) for element in root if local(element) == "Part")
    if not 1 <= len(parts) <= MAX_PARTS:
        raise _malformed(f"An upload is completed with 1 to {MAX_PARTS} parts.")
    numbers = [part.number for part in parts]
    if any(one >= following for one, following in pairwise(numbers)):
        raise StoreError.known("InvalidPartOrder")
    return parts


def _part(element: Element) -> Part:
    number, etag = (_text(element, "PartNumber") or "").strip(), (_text(element, "ETag") or "").strip()
    if not number:
        raise _malformed("A part has no number.")
    if not (number.isascii() and number.isdecimal() and len(number) <= 5 and 1 <= int(number) <= MAX_PARTS):
        low = number.startswith("-") or not number.strip("0")
        message = (
            "PartNumber must be >= 1" if low else f"Part number must be an integer between 1 and {MAX_PARTS}, inclusive"
        )
        raise StoreError("InvalidArgument", 400, message)
    bare = etag.removeprefix('"').removesuffix('"')
    if not bare or '"' in bare:
        raise _malformed(f"Part {int(number)} has no ETag.")
    checksums = [(local(child), (child.text or "").strip()) for child in element if local(child) in _CHECKSUMS]
    return Part(int(number), bare, tuple(checksums))


def complete(parts: Iterable[Part]) -> bytes:
    listed = []
    for part in parts:
        number, etag = f"<PartNumber>{part.number}</PartNumber>", f"<ETag>&quot;{escaped(part.etag)}&quot;</ETag>"
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


def deleted(results: Iterable[tuple[ObjectToDelete, GatewayError | DeletedFacts]], *, quiet: bool) -> bytes:
    elements = []
    for entry, result in results:
        if isinstance(result, GatewayError):
            # The rejection's id, the fence and the like: what the answer to a single delete would have said.
            named = {"Key": entry.key, "VersionId": entry.version_id, "Code": result.s3_code}
            elements.append(_element("Error", {**named, "Message": told(result), **facts(result)}))
        elif not quiet:
            elements.append(_element("Deleted", {"Key": entry.key, "VersionId": entry.version_id, **result}))
    return _document("DeleteResult", "".join(elements))


def copied(etag: str, modified: str, checksums: Iterable[tuple[str, str]] = ()) -> bytes:
    """Return the answer to a CopyObject. ``modified`` is a time as S3 writes it, ``checksums`` by their elements."""
    return _document("CopyObjectResult", _fields({"LastModified": modified, "ETag": f'"{etag}"', **dict(checksums)}))


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
    root = parse(body, len(body))
    if root is None or local(root) != name:
        raise _malformed("")
    return root


def _text(element: Element, name: str) -> str | None:
    found = [child.text or "" for child in element if local(child) == name]
    if len(found) > 1:
        raise _malformed(f"The element {name} stands twice.")
    return found[0] if found else None


def _malformed(reason: str) -> StoreError:
    return StoreError.known("MalformedXML", reason=reason)


def _document(name: str, content: str) -> bytes:
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<{name} xmlns="{_NAMESPACE}">{content}</{name}>'.encode()


def _element(name: str, fields: dict[str, str | None]) -> str:
    return f"<{name}>{_fields(fields)}</{name}>"


def _fields(fields: dict[str, str | None] | dict[str, str]) -> str:
    return "".join(f"<{name}>{escaped(text)}</{name}>" for name, text in fields.items() if text is not None)
