"""Requests and answers: the head as read from ASGI, documents, parameters, and the answer in the form of S3."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from email.utils import format_datetime
from typing import Any
from urllib.parse import quote, unquote
from xml.etree.ElementTree import Element, ParseError
from xml.sax.saxutils import escape

from defusedxml import DefusedXmlException, ElementTree

from tests.doubles.s3.conditions import Condition
from tests.doubles.s3.objects import Body, Origin
from tests.doubles.s3.operations import Operation, S3Error, classify

WRITE_ID = "x-amz-meta-fencing-write-id"
_MAXIMUM_KEY_LENGTH = 1024
_AUTHENTICATION = frozenset(
    {"X-Amz-Algorithm", "X-Amz-Credential", "X-Amz-Date", "X-Amz-Expires", "X-Amz-SignedHeaders", "X-Amz-Signature"}
    | {"X-Amz-Security-Token"}
)
NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"


@dataclass(frozen=True, slots=True)
class Head:
    """A request before its body. Header names are in lower case; the path is kept as it came over the wire.

    `query` is without the parameters of a signature in the query; these are in `authentication`.
    """

    method: str
    raw_path: str
    query_string: str
    headers: Mapping[str, str]
    query: Mapping[str, str]
    bucket: str | None
    key: str | None
    operation: Operation
    authentication: Mapping[str, str] = field(default_factory=dict)

    @property
    def signed_at(self) -> str | None:
        """The time of the signature, as sent."""
        return self.authentication.get("X-Amz-Date") or self.headers.get("x-amz-date")

    @property
    def condition(self) -> Condition:
        """The conditional headers, as sent."""
        return Condition(self.headers.get("if-match"), self.headers.get("if-none-match"))

    @property
    def target(self) -> tuple[str, str]:
        """Bucket and key of a request that has both."""
        assert self.bucket is not None
        assert self.key is not None
        return self.bucket, self.key


@dataclass(frozen=True, slots=True)
class Request:
    """A whole request, at the moment it is applied."""

    head: Head
    body: Body
    condition: Condition
    now: datetime
    write_id: str | None

    @property
    def origin(self) -> Origin:
        """The origin of the request's write, for the log."""
        return Origin(self.now, self.write_id, self.head.signed_at)


@dataclass(frozen=True, slots=True)
class Answer:
    """A response without its transport; `body` of an answer to HEAD gives the length and is not sent.

    `length` is that of a body that is not kept.
    """

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    length: int | None = None


def read_head(scope: Mapping[str, Any]) -> Head:
    """Take an ASGI scope apart. Raises InvalidURI, KeyTooLongError, NotImplemented."""
    raw_path = scope["raw_path"].decode("ascii")
    query_string = scope["query_string"].decode("ascii")
    headers = _headers(scope["headers"])
    bucket, _, raw_key = raw_path.removeprefix("/").partition("/")
    key = _decode(raw_key)
    if len(key.encode()) > _MAXIMUM_KEY_LENGTH:
        raise S3Error("KeyTooLongError")
    parameters = _query(query_string)
    authentication = {name: value for name, value in parameters.items() if name in _AUTHENTICATION}
    query = {name: value for name, value in parameters.items() if name not in _AUTHENTICATION}
    target = (_decode(bucket) or None, key or None)
    operation = classify(scope["method"], *target, query, copies="x-amz-copy-source" in headers)
    return Head(scope["method"], raw_path, query_string, headers, query, *target, operation, authentication)


def document(name: str, *children: str) -> bytes:
    """An S3 answer document with its root element."""
    root = f'<{name} xmlns="{NAMESPACE}">{"".join(children)}</{name}>'
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{root}'.encode()


def element(name: str, content: object) -> str:
    """An element with text; None gives nothing, a boolean is written as S3 does."""
    if content is None:
        return ""
    text = str(content).lower() if isinstance(content, bool) else str(content)
    return f"<{name}>{escape(text)}</{name}>"


def group(name: str, children: Iterable[str]) -> str:
    """An element with elements in it."""
    return f"<{name}>{''.join(children)}</{name}>"


OWNER = group("Owner", [element("ID", "double"), element("DisplayName", "double")])


def xml(name: str, *children: str, headers: Mapping[str, str] | None = None) -> Answer:
    """A 200 with a document."""
    return Answer(200, document(name, *children), {"content-type": "application/xml", **(headers or {})})


def error_answer(error: S3Error, resource: str) -> Answer:
    """S3's error document with the error's status; NotModified has headers in its place."""
    if error.status == 304:
        return Answer(304, headers={"etag": error.details["ETag"], "last-modified": error.details["LastModified"]})
    answer = document_of_error(error, resource)
    return replace(answer, status=error.status, headers={**answer.headers, **error.headers})


def document_of_error(error: S3Error, resource: str) -> Answer:
    """S3's error document under a status of 200, as long operations send it."""
    request_id = secrets.token_hex(8).upper()
    about = {"Resource": resource, "RequestId": request_id}
    fields = {"Code": error.code, "Message": error.message, **error.details, **about}
    children = [element(name, value) for name, value in fields.items()]
    body = f'<?xml version="1.0" encoding="UTF-8"?>\n{group("Error", children)}'.encode()
    return Answer(200, body, {"content-type": "application/xml", "x-amz-request-id": request_id})


def http_date(moment: datetime) -> str:
    """The form of Date and Last-Modified."""
    return format_datetime(moment.replace(microsecond=0), usegmt=True)


def iso_date(moment: datetime) -> str:
    """The form of dates in documents; S3 gives whole seconds."""
    return moment.strftime("%Y-%m-%dT%H:%M:%S.000Z")


def _headers(pairs: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for raw_name, raw_value in pairs:
        name, value = raw_name.decode("latin-1").lower(), raw_value.decode("utf-8", "surrogateescape").strip()
        headers[name] = f"{headers[name]},{value}" if name in headers else value
    return headers


def _query(query_string: str) -> dict[str, str]:
    pairs = (pair.partition("=") for pair in query_string.split("&") if pair)
    return {_decode(name): _decode(value.replace("+", " ")) for name, _, value in pairs}


def _decode(text: str) -> str:
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError as error:
        raise S3Error("InvalidURI") from error


def parse(document: bytes, name: str | None = None) -> Element:
    """The root element; where a name is given, it has to be that. Raises MalformedXML."""
    try:
        root: Element = ElementTree.fromstring(document)
    except (ParseError, DefusedXmlException, ValueError) as error:
        raise S3Error("MalformedXML") from error
    if name is not None and local_name(root) != name:
        raise S3Error("MalformedXML", f"The document is no {name}.")
    return root


def children(parent: Element, name: str) -> list[Element]:
    """The child elements of this name."""
    return [child for child in parent if local_name(child) == name]


def child_text(parent: Element, name: str, *, strip: bool = True) -> str:
    """The text of the first child of this name; nothing where there is none."""
    text = next((child.text or "" for child in children(parent, name)), "")
    return text.strip() if strip else text


def local_name(element: Element) -> str:
    """The element's name; S3 takes documents with its namespace and without."""
    return str(element.tag).rpartition("}")[2]


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
