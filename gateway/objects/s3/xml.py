"""S3's error documents, written for refusals of the gateway, and the fields of the store's documents."""

import re
from dataclasses import dataclass
from xml.etree.ElementTree import Element, ParseError  # only the types: defusedxml does the parsing
from xml.sax.saxutils import escape

from defusedxml import DefusedXmlException
from defusedxml.ElementTree import fromstring

from gateway.errors import Fact, GatewayError

MAX_ERROR_BYTES = 64 * 1024

# XML 1.0 does not allow these, not even as a character reference.
_NOT_ALLOWED = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_RESERVED = frozenset({"Code", "Message", "Resource", "RequestId"})
_ELEMENT = re.compile(r"[A-Za-z][A-Za-z0-9]*")


def render(error: GatewayError, *, path: str, request_id: str) -> bytes:
    """Return the error document: code, message with advice, path, request id, and an element for each fact."""
    message = f"{error.message} {error.advice}".strip()
    elements = {"Code": error.s3_code, "Message": message, "Resource": path, "RequestId": request_id, **facts(error)}
    body = "".join(f"<{name}>{escaped(text)}</{name}>" for name, text in elements.items())
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<Error>{body}</Error>'.encode()


def facts(error: GatewayError) -> dict[str, str]:
    """Return the machine-readable particulars of an error, by the names of their elements."""
    elements = {}
    for key, fact in error.facts.items():
        name = "".join(word[:1].upper() + word[1:] for word in re.split(r"[^A-Za-z0-9]+", key))
        if fact is not None and name not in _RESERVED and _ELEMENT.fullmatch(name):
            elements[name] = _text(fact)
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


def _text(fact: Fact) -> str:
    return str(fact).lower() if isinstance(fact, bool) else str(fact)


def escaped(text: str) -> str:
    """Return text for an element, with the characters replaced that XML does not allow."""
    # A carriage return written as such would be read as a line feed.
    return escape(_NOT_ALLOWED.sub("\ufffd", text), {"\r": "&#13;"})


@dataclass(frozen=True, slots=True)
class ErrorDocument:
    """The content of an error document of the store."""

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


def read_versions(body: bytes) -> tuple[tuple[str, str], ...]:
    """Return key and id of each version and delete marker in a ListObjectVersions; ``null`` is an id too."""
    root = parse(body, len(body))
    if root is None or local(root) != "ListVersionsResult":
        return ()
    entries = [child for child in root if local(child) in ("Version", "DeleteMarker")]
    fields = [{local(field): field.text or "" for field in entry} for entry in entries]
    listed = [(entry.get("Key", ""), entry.get("VersionId", "")) for entry in fields]
    return tuple((key, version_id) for key, version_id in listed if version_id)


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
