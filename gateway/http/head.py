"""The head of a request as one frozen value that authentication, planning and recipes all read.

A client repeats its method, path and headers to the letter, while its query and body change. The digest of what it
repeats leads to what the serving app has prepared for such requests, so that nothing parses them again. Only a packet
that is exactly one request in its plainest form is looked up. All other bytes go to the parser, and so do new heads.
"""

import re
from collections.abc import Callable, MutableMapping
from hashlib import blake2b
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

Headers: TypeAlias = tuple[tuple[bytes, bytes], ...]
Scope: TypeAlias = MutableMapping[str, Any]

MOST = 4096
"""Heads that are kept."""
LARGEST = 16 * 1024
"""Bytes of a packet."""

_LINE = re.compile(rb"((?:GET|POST|PATCH|PUT|DELETE) /[!-\"$->@-~]*)(?:\?([A-Za-z0-9_.:=&,*()~-]*))? HTTP/1\.1\r\n")
REQUEST_ID = b"x-request-id"

# The request ids that a client may choose. The gateway only logs them.
_SANE = re.compile(rb"[!-~]{1,128}")
_LENGTH = re.compile(rb"\r\n[Cc]ontent-[Ll]ength: ([0-9]{1,5})\r\n")

Prepared = TypeVar("Prepared")


class Head(NamedTuple):
    """A request without its body. ``path`` is decoded, ``raw_path`` as sent; names of headers are in lower case."""

    method: str
    path: str
    raw_path: bytes
    query_string: bytes
    headers: Headers

    @classmethod
    def of(cls, scope: MutableMapping[str, Any]) -> "Head":
        """Return the head of the request of an ASGI scope. The first call makes it, later calls return the same one.

        A server may append trailers to the list of headers while a body arrives; this copy does not see them.
        """
        state: dict[str, Any] = scope.setdefault("state", {})
        head: Head | None = state.get("head")
        if head is None:
            path = scope["path"]
            raw_path = scope.get("raw_path") or path.encode()
            head = state["head"] = cls(scope["method"], path, raw_path, scope["query_string"], tuple(scope["headers"]))
        return head

    def value(self, name: bytes) -> bytes | None:
        """Return the first value of a header; None if the header is absent."""
        return next((value for found, value in self.headers if found == name), None)


def client_request_id(value: bytes | None) -> str | None:
    """Return the client's own id of a request, if it may be logged."""
    return value.decode() if value is not None and _SANE.fullmatch(value) else None


class Packet(NamedTuple):
    """One request. ``head`` identifies its head without the query and the value of ``Content-Length``.

    ``missing``: the bytes of the body that are still to come.
    """

    head: bytes
    query_string: bytes
    content: bytes
    missing: int = 0

    @property
    def has_length(self) -> bool:
        """Return whether the head has a ``Content-Length``."""
        return self.head.startswith(b"+")


def read(data: bytes) -> Packet | None:
    """Return bytes that begin a request as a packet. None if they are not exactly one request in its plainest form."""
    line, end = _LINE.match(data), data.find(b"\r\n\r\n")
    if line is None or end < 0 or len(data) > LARGEST:
        return None
    start = line.end()
    method_and_path, query_string = line.groups(b"")
    length = _LENGTH.search(data, start - 2, end + 2)
    if length is None:
        if len(data) != end + 4:
            return None
        return Packet(b"-%b\0%b" % (method_and_path, data[start:end]), query_string, b"")
    missing = end + 4 + int(length[1]) - len(data)
    if missing < 0 or end + int(length[1]) > LARGEST:
        return None
    # No head that the parser accepts has a zero byte, so these mark where the header was.
    head = b"+%b\0%b\0%b" % (method_and_path, data[start : length.start()], data[length.end() : end])
    return Packet(head, query_string, data[end + 4 :], missing)


class KnownHeads(Generic[Prepared]):
    """All that an app has prepared for heads that it has seen, by their digests: headers may have secrets."""

    def __init__(self, prepare: Callable[[Scope], Prepared | None], key: bytes) -> None:
        """``prepare`` returns None for a head whose requests always need a task. It gets the scope of one of them.

        ``key``: random bytes for the digests.
        """
        self._prepare = prepare
        self._digest = blake2b(digest_size=16, key=key)
        self._known: dict[bytes, Prepared] = {}
        self._marks: set[int] = set()
        self._seen: set[int] = set()

    def find(self, packet: Packet) -> Prepared | None:
        """Return the thing that was prepared for requests with this head."""
        # The hash rules out nearly all other heads. It costs less than a digest, but could be that of two heads.
        return self._known.get(self._of(packet)) if hash(packet.head) in self._marks else None

    def learn(self, packet: Packet, scope: Scope) -> None:
        """Prepare for further requests with this head. ``scope`` is what the parser has made of the packet."""
        mark = hash(packet.head)
        if mark not in self._seen:  # preparing is not worth it for a head that is seen once
            if len(self._seen) >= MOST:
                self._seen.clear()
            self._seen.add(mark)
            return
        # The framing was read off the packet, so no other header may have a say in it.
        framing = [name for name, _ in Head.of(scope).headers if name in (b"content-length", b"transfer-encoding")]
        prepared = self._prepare(scope) if framing == [b"content-length"] * packet.has_length else None
        if prepared is not None:
            if len(self._known) >= MOST:
                self._known.clear()
                self._marks.clear()
            self._known[self._of(packet)] = prepared
            self._marks.add(mark)

    def _of(self, packet: Packet) -> bytes:
        digest = self._digest.copy()
        digest.update(packet.head)
        return digest.digest()
