"""Reads bytes as HTTP/1.1, strictly by RFC 9112 and independently of the gateway: requests, and answers.

A message is ``doubtful`` if the standard lets a server choose: the gateway may serve or refuse it. It has a ``fault``
if the standard calls its framing an error: nothing in it or behind it may take effect.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

Fields: TypeAlias = list[tuple[str, str]]
"""Names in lower case."""

MAX_HEAD = 64 * 1024
"""Bytes of a head that the gateway takes."""

_TOKEN = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_TARGET = re.compile(rb"[\x21-\x7e]+")
_FORBIDDEN = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(;[\t\x20-\x7e\x80-\xff]*)?")
_FRAMING = ("content-length", "transfer-encoding")
_METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"))


class Faulty(Exception):
    """The bytes are no message."""


class Incomplete(Exception):
    """The bytes end inside a message."""


@dataclass(slots=True)
class Message:
    """One request. ``last``: the standard says that nothing is served on this connection behind it.

    ``begun``: its head is whole, and says how long its body is. ``end`` is where it ends in what was sent.
    """

    method: str = ""
    target: str = ""
    headers: Fields = field(default_factory=list)
    body: bytes = b""
    begun: bool = False
    complete: bool = False
    fault: str | None = None
    doubtful: bool = False
    last: bool = False
    end: int = 0

    @property
    def whole(self) -> bool:
        """Tell whether it is a request that may take effect."""
        return self.complete and self.fault is None

    def header(self, name: str) -> str | None:
        return next((value for given, value in self.headers if given == name), None)

    def values(self, name: str) -> list[str]:
        return [one.strip().lower() for given, value in self.headers if given == name for one in value.split(",")]


@dataclass(slots=True)
class Answer:
    """One final answer. ``status`` is 0 where the bytes are no answer; ``fault`` then says why."""

    status: int = 0
    headers: Fields = field(default_factory=list)
    body: bytes = b""
    complete: bool = False
    fault: str | None = None

    @property
    def succeeded(self) -> bool:
        return 200 <= self.status < 300

    def header(self, name: str) -> str | None:
        return next((value for given, value in self.headers if given == name), None)


def requests(data: bytes) -> list[Message]:
    """Return the requests in these bytes of a client, up to the first that is faulty, incomplete or the last one."""
    found, at, upgraded = [], 0, False
    while at < len(data):
        # Behind a request for another protocol a server may expect that other one.
        message = Message(doubtful=upgraded)
        source = _Source(data, at)
        try:
            if not _read_request(source, message):
                break
            message.complete = True
        except Faulty as fault:
            message.fault = str(fault)
        except Incomplete:
            pass
        found.append(message)
        message.end = at = source.at
        upgraded |= "upgrade" in message.values("connection")
        if not message.whole or message.last:
            break
    return found


def answers(data: bytes, methods: Sequence[str]) -> list[Answer]:
    """Return the final answers in the bytes that a server sent to requests of these methods."""
    found: list[Answer] = []
    source = _Source(data, 0)
    while source.at < len(data):
        answer = Answer()
        try:
            _read_answer(source, answer, methods[len(found)] if len(found) < len(methods) else "GET")
            answer.complete = True
        except Faulty as fault:
            answer.fault = str(fault)
        except Incomplete:
            pass
        if answer.complete and 100 <= answer.status < 200:
            continue
        found.append(answer)
        if not answer.complete:
            break
    return found


class _Source:
    """A place in the bytes."""

    def __init__(self, data: bytes, at: int) -> None:
        self.data, self.at = data, at
        self.bare = False
        """Whether a line ended with LF alone."""

    def line(self) -> bytes:
        end = self.data.find(b"\n", self.at)
        if end < 0:
            raise Incomplete
        line, self.at = self.data[self.at : end], end + 1
        if line.endswith(b"\r"):
            return line[:-1]
        self.bare = True
        return line

    def take(self, size: int) -> bytes:
        piece = self.data[self.at : self.at + size]
        self.at += len(piece)
        if len(piece) < size:
            raise Incomplete
        return piece


def _read_request(source: _Source, message: Message) -> bool:
    """Fill in the message. False: nothing but empty lines is left."""
    began = source.at
    while (line := source.line()) == b"":
        message.doubtful = True
        if source.at >= len(source.data):
            return False
    # A reader may split at any run of spaces.
    parts = line.split()
    message.doubtful |= line != b" ".join(parts)
    if len(parts) == 2:
        parts.append(b"HTTP/0.9")
    if len(parts) != 3 or not _TOKEN.fullmatch(parts[0]) or not _TARGET.fullmatch(parts[1]):
        raise Faulty("request line")
    if not re.fullmatch(rb"HTTP/[0-9]\.[0-9]", parts[2]):
        raise Faulty("version")
    message.doubtful |= parts[2] not in (b"HTTP/1.1", b"HTTP/1.0")
    message.method, message.target = parts[0].decode(), parts[1].decode()
    message.headers, folded = _fields(source)
    if source.at - began > MAX_HEAD:
        raise Faulty("the head is too large")
    old = parts[2] in (b"HTTP/1.0", b"HTTP/0.9")
    message.last = old or "close" in message.values("connection")
    message.doubtful |= source.bare or folded or _is_doubtful(message, old=old)
    if message.method == "CONNECT":
        raise Faulty("CONNECT")
    size = _size(message)
    message.begun = True
    if size is None:
        message.body, odd = _chunks(source)
        message.doubtful |= odd
    else:
        message.body = source.take(size)
    message.doubtful |= source.bare
    return True


def _is_doubtful(message: Message, *, old: bool) -> bool:
    hosts = sum(name == "host" for name, _ in message.headers)
    return (
        (hosts != 1 and not old)
        or message.method not in _METHODS
        or not message.target.startswith("/")
        or "#" in message.target
        or "upgrade" in message.values("connection")
        or message.values("transfer-encoding") not in ([], ["chunked"])
        or (old and bool(message.values("transfer-encoding")))
    )


def _size(message: Message) -> int | None:
    """Return the length of the body in bytes; None: it comes in chunks."""
    codings, lengths = message.values("transfer-encoding"), message.values("content-length")
    if codings:
        if lengths or codings[-1] != "chunked" or "chunked" in codings[:-1]:
            raise Faulty("transfer-encoding")
        return None
    if not lengths:
        return 0
    if len(lengths) > 1 or not re.fullmatch("[0-9]{1,20}", lengths[0]) or int(lengths[0]) >= 2**64:
        raise Faulty("content-length")
    return int(lengths[0])


def _chunks(source: _Source) -> tuple[bytes, bool]:
    """Return the data, and whether a server may refuse it: odd extensions, framing among the trailers."""
    pieces, odd = [], False
    while True:
        before, source.bare = source.bare, False
        found = _SIZE.fullmatch(source.line())
        if found is None or source.bare:
            raise Faulty("chunk size")
        source.bare = before
        odd |= bool(re.search(rb"[^\x21-\x7e]", found[0]))
        size = int(found[1], 16)
        if size == 0:
            break
        pieces.append(source.take(size))
        if source.take(2) != b"\r\n":
            raise Faulty("chunk end")
    began = source.at
    trailers, folded = _fields(source)
    if source.at - began > MAX_HEAD:
        raise Faulty("the trailers are too large")
    odd |= folded or any(name in _FRAMING for name, _ in trailers)
    return b"".join(pieces), odd


def _fields(source: _Source) -> tuple[Fields, bool]:
    """Return the fields up to the empty line, and whether one of them was folded."""
    fields: Fields = []
    folded = False
    while line := source.line():
        if line[:1] in (b" ", b"\t"):
            if not fields:
                raise Faulty("fold")
            name, value = fields[-1]
            fields[-1], folded = (name, f"{value} {line.strip().decode('latin-1')}".strip()), True
            continue
        given, colon, said = line.partition(b":")
        if not colon or not _TOKEN.fullmatch(given) or _FORBIDDEN.search(said):
            raise Faulty("field")
        fields.append((given.decode().lower(), said.strip(b" \t").decode("latin-1")))
    return fields, folded


def _read_answer(source: _Source, answer: Answer, method: str) -> None:
    found = re.fullmatch(rb"HTTP/1\.1 ([1-5][0-9]{2}) [\t\x20-\x7e\x80-\xff]*", source.line())
    if found is None:
        raise Faulty("status line")
    answer.status = int(found[1])
    answer.headers, folded = _fields(source)
    if source.bare or folded:
        raise Faulty("line of the answer's head")
    coding, length = answer.header("transfer-encoding"), answer.header("content-length")
    if coding is not None and length is not None:
        raise Faulty("two lengths of the answer")
    if method == "HEAD" or answer.status < 200 or answer.status in (204, 304):
        return
    if coding is not None:
        answer.body, _ = _chunks(source)
    elif length is not None:
        answer.body = source.take(int(length))
    elif answer.status != 101:
        answer.body = source.take(len(source.data) - source.at)
