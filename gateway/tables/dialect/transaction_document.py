"""The documents of ``POST /v1/transaction``: several writes, each with the parts of its own request; the answers.

Pure. The rules of a write are not here: each becomes a request like any other, and is judged like one.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote

import orjson

from gateway.errors import GatewayError, RequestMalformed, ResourceMalformed
from gateway.fencing import headers as fencing_headers
from gateway.fencing.headers import FencingHeaders
from gateway.tables.dialect.body import in_pieces
from gateway.tables.dialect.request import JSON, WRITES, digest
from gateway.tables.dialect.response import Response

MOST_WRITES = 100

LONGEST = {
    "method": 10, "table": 255, "schema": 255, "query": 65536, "token": 65536, "resource": 1024, "holder": 1024,
    "prefer": 4096, "sequencer": 65536, "if_match": 16384, "if_none_match": 16384,
}  # fmt: skip
"""The longest text of each field, in characters."""
_FIELDS = frozenset((*LONGEST, "body"))
_REQUIRED = ("method", "table")
_OF_THE_LOCK = {
    "token": fencing_headers.TOKEN, "resource": fencing_headers.RESOURCE, "holder": fencing_headers.HOLDER,
    "sequencer": fencing_headers.SEQUENCER,
}  # fmt: skip
_OF_THE_DIALECT = {"prefer": b"prefer", "if_match": b"if-match", "if_none_match": b"if-none-match"}
# They tell how a body is framed, which in a list it is not.
_OF_A_MESSAGE = frozenset((b"content-length", b"content-type"))
_SPACE = re.compile(r"[ \t\r\n]*")
# Only where a value ends is asked of it, so numbers need not be made.
_DECODER = json.JSONDecoder(parse_int=len, parse_float=len)


@dataclass(frozen=True, slots=True)
class Entry:
    """One write of the list, as the parts of a request. ``body`` is its JSON text to the letter, as it was sent.

    ``headers`` are those of the dialect by lower-case name. ``schema`` None: the first that is exposed.
    """

    method: str
    table: str
    schema: str | None
    query: bytes
    body: bytes
    shown: FencingHeaders
    headers: Mapping[bytes, str]


def parse(content: bytes, shown: FencingHeaders) -> tuple[Entry, ...]:
    """Read the document. ``shown`` is what the request's own headers say, for writes that say nothing of their own.

    Raises ``RequestMalformed``, ``TokenMalformed`` or ``ResourceMalformed``; where it is about one write, its number
    is among the facts.
    """
    try:
        document = in_pieces(content, orjson.loads)
        if not isinstance(document, dict) or document.keys() != {"writes"}:
            raise _malformed("The body must be an object with the one member 'writes'.")
        writes = document["writes"]
        if not isinstance(writes, list) or not 1 <= len(writes) <= MOST_WRITES:
            raise _malformed(f"'writes' must be an array of 1 to {MOST_WRITES} writes.")
        bodies = _bodies(content.decode(), writes)
    except (orjson.JSONDecodeError, RecursionError) as error:
        raise _malformed("The body is not JSON, or too deeply nested.") from error
    entries = []
    for number, (fields, body) in enumerate(zip(writes, bodies, strict=True)):
        with of_write(number):
            entries.append(_entry(fields, body, shown))
    return tuple(entries)


@contextmanager
def of_write(number: int | None) -> Iterator[None]:
    """Errors raised in here are about this write of the list, counted from 0: their facts say so. None: no list."""
    try:
        yield
    except GatewayError as error:
        if number is not None:
            error.facts.setdefault("write", number)
        raise


def fingerprint(entries: tuple[Entry, ...]) -> bytes:
    """Return the fingerprint of this list of writes, independent of its tokens: 32 bytes."""
    return digest([
        part
        for one in entries
        for part in (
            one.method.encode(), one.table.encode(), (one.schema or "").encode(), one.query, one.body,
            *(one.headers.get(name, "").encode() for name in _OF_THE_DIALECT.values()),
        )
    ])  # fmt: skip


def combined(answers: Sequence[Response]) -> Response:
    """One answer for all. Bodies go in as they are: what they say in numbers must not be rounded on the way."""
    results = [
        {
            "status": answer.status,
            "headers": {
                name.decode(): value.decode("latin-1") for name, value in answer.headers if name not in _OF_A_MESSAGE
            },
            "body": orjson.Fragment(answer.body or b"null"),
        }
        for answer in answers
    ]
    body = orjson.dumps({"results": results})
    return Response(200, [JSON.content_type, (b"content-length", str(len(body)).encode())], body)


def _entry(fields: Any, body: str, shown: FencingHeaders) -> Entry:
    if not isinstance(fields, dict):
        raise _malformed("A write must be an object.")
    unknown = sorted(fields.keys() - _FIELDS)
    if unknown:
        raise _malformed(f"A write has no field {unknown[0][:100]!r}.")
    texts = {name: _text(name, value) for name, value in fields.items() if name != "body" and value is not None}
    for name in _REQUIRED:
        if name not in texts:
            raise _malformed(f"A write needs the field {name!r}.")
    if texts["method"] not in WRITES:
        raise _malformed(f"The method of a write is one of {', '.join(sorted(WRITES))}.")
    if not texts["table"] or "/" in texts["table"] or "\0" in texts["table"]:
        raise _malformed("'table' must be the name of one table.")
    return Entry(
        method=texts["method"],
        table=texts["table"],
        schema=texts.get("schema"),
        query=quote(texts.get("query", ""), safe=_ASCII).encode(),
        body=body.encode(),
        shown=_shown(texts, shown),
        headers={header: texts[name] for name, header in _OF_THE_DIALECT.items() if name in texts},
    )


# Characters that a query string may already contain: only characters that a URL cannot contain are encoded.
_ASCII = "".join(map(chr, range(0x21, 0x7F)))


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise _malformed(f"{name!r} must be a string.")
    if len(value) > LONGEST[name]:
        raise _malformed(f"{name!r} has at most {LONGEST[name]} characters.")
    return value


def _shown(texts: Mapping[str, str], default: FencingHeaders) -> FencingHeaders:
    """Return the lock of a write, and the request's own headers for a write that names none."""
    pairs = [(header, texts[name].encode()) for name, header in _OF_THE_LOCK.items() if name in texts]
    own = fencing_headers.read(pairs, pairs=True)
    holder = own.holder or default.holder
    if own.token is not None or own.pairs:
        return replace(own, holder=holder, sequencers=own.sequencers or default.sequencers)
    if own.resource is not None and default.pairs:
        raise ResourceMalformed(
            "The pairs in Fencing-Token name their resources themselves.", advice="Give the write a token of its own."
        )
    return replace(default, resource=own.resource or default.resource, holder=holder)


def _bodies(text: str, writes: list[Any]) -> list[str]:
    """Return the text of each write's body, empty if it has none. ``text`` is known to be JSON of this structure.

    A number that was parsed and written again can be another number, so the database gets the text that was sent.
    """
    members = list(_members(text, _space(text, 0)))
    if len(members) != 1:
        raise _malformed("'writes' stands twice in the body.")
    bodies, at = [], _space(text, members[0][1] + 1)
    for fields in writes:
        bodies.append(_body(text, at) if isinstance(fields, dict) else "")
        _, end = _DECODER.raw_decode(text, at)
        at = _space(text, _space(text, end) + 1)
    return bodies


def _body(text: str, at: int) -> str:
    """Return the text of the body of the write that begins at ``at``."""
    found: dict[str, str] = {}
    for name, begin, end in _members(text, at):
        if name in found:
            raise _malformed(f"The field {name[:100]!r} stands twice in one write.")
        found[name] = text[begin:end]
    return found.get("body", "")


def _members(text: str, at: int) -> Iterator[tuple[str, int, int]]:
    """Yield the members of the object that begins at ``at``: name, and the begin and end of the value."""
    at = _space(text, at + 1)
    while text[at] != "}":
        name, at = _DECODER.raw_decode(text, at)
        begin = _space(text, _space(text, at) + 1)
        _, end = _DECODER.raw_decode(text, begin)
        yield name, begin, end
        at = _space(text, end)
        if text[at] == ",":
            at = _space(text, at + 1)


def _space(text: str, at: int) -> int:
    """Return the position behind the white space at ``at``."""
    space = _SPACE.match(text, at)
    assert space is not None
    return space.end()


def _malformed(message: str) -> RequestMalformed:
    return RequestMalformed(message, advice="POST /v1/transaction in /v1/docs shows what a write looks like.")
