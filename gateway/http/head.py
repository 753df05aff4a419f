"""The head of a request as one frozen value that authentication, planning and recipes all read.

A client repeats its method, path and most headers to the letter, while its query, body and token change, and the name
of its lock. The digest of what it repeats leads to what the serving app has prepared for such requests, so that nothing
parses them again. Only a packet that is exactly one request in its plainest form is looked up. All other bytes go to
the parser, and so do new heads.
"""

import re
from collections.abc import Callable, Mapping, MutableMapping
from hashlib import blake2b
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, Protocol, Self, TypeAlias, TypeVar

from gateway.auth.principal import ClientCertificate
from gateway.bounded import Bounded
from gateway.http.origins import Sender, sender

Headers: TypeAlias = tuple[tuple[bytes, bytes], ...]
Scope: TypeAlias = MutableMapping[str, Any]

MOST = 4096
"""Heads that are kept."""
LARGEST = 16 * 1024
"""Bytes of a packet."""
LONGEST = 4 * 1024
"""Bytes of a head, or of the form of a request, that is kept. Memory is not for a caller to fill."""

NAMING = "/v1/leases/"
"""How paths begin whose rest is a name that changes from request to request: that of a lock."""
_NAME = rb"[A-Za-z0-9._~!$&'()*+;:@/-]++"
# Each part takes all that it can, and gives nothing back: a long line that does not fit is not tried in many ways.
_LINE = re.compile(
    rb"((?:GET|POST|PATCH|PUT|DELETE) (?:%b(?=%b[? ])|/[!-\"$->@-~]*+))(%b)?"
    rb"(?:\?([A-Za-z0-9_.:=&,*()~-]*+))? HTTP/1\.1\r\n" % (NAMING.encode(), _NAME, _NAME)
)
REQUEST_ID = b"x-request-id"

# The request ids that a client may choose. The gateway only logs them.
_SANE = re.compile(rb"[!-~]{1,128}")
# Headers whose values change while the rest of a head does not: from body to body, and from holder to holder.
_CHANGING = re.compile(rb"\r\n([Cc]ontent-[Ll]ength|[Ff]encing-[Tt]oken|[Ff]encing-[Hh]older): ([!-~]{1,256})(?=\r\n)")
_LENGTH = b"content-length"
_FRAMING = (_LENGTH, b"transfer-encoding")
_END = b"\r\n\r\n"
_NONE: Mapping[bytes, bytes] = MappingProxyType({})


class Preparation(Protocol):
    """All that is prepared for requests with one head, but for the values of its ``changing`` headers."""

    def with_values(self, changing: Mapping[bytes, bytes]) -> Self:
        """Return what is prepared for those with these values."""


Prepared = TypeVar("Prepared", bound=Preparation)


class Head(NamedTuple):
    """A request without its body. ``path`` is decoded, ``raw_path`` as sent; names of headers are in lower case.

    ``certificate``: that of the connection. A request that a page of another origin sends has none.
    """

    method: str
    path: str
    raw_path: bytes
    query_string: bytes
    headers: Headers
    certificate: ClientCertificate | None = None

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
            headers, certificate = tuple(scope["headers"]), state.get("certificate")
            # A browser shows the certificate of its user with the requests of any page.
            if certificate is not None and sender(headers) is Sender.FOREIGN:
                certificate = None
            head = cls(scope["method"], path, raw_path, scope["query_string"], headers, certificate)
            state["head"] = head
        return head

    def value(self, name: bytes) -> bytes | None:
        """Return the first value of a header; None if the header is absent."""
        return next((value for found, value in self.headers if found == name), None)

    @property
    def program(self) -> str | None:
        """The name that the program has given itself. Nothing proves it."""
        return (self.value(b"user-agent") or b"").decode("latin-1") or None


def client_request_id(value: bytes | None) -> str | None:
    """Return the client's own id of a request, if it may be logged."""
    return value.decode() if value is not None and _SANE.fullmatch(value) else None


class Packet(NamedTuple, Generic[Prepared]):
    """One request. ``head`` identifies its head without ``name``, the query and the values of ``changing`` headers.

    It also identifies the client's certificate, because the same bytes under another certificate are another caller's.
    ``changing``: the headers whose values clients change, by lower-case name. ``missing``: the bytes of the body that
    are still to come. ``name``: the rest of a path after ``NAMING``, which has no encoded character. ``prepared`` is
    there for a known head, and has these values then.
    """

    head: bytes
    query_string: bytes
    content: bytes
    changing: Mapping[bytes, bytes]
    missing: int = 0
    name: bytes = b""
    prepared: Prepared | None = None


def seal(certificate: ClientCertificate | None) -> bytes:
    """Return the beginning of ``Packet.head`` on a connection with this certificate.

    Its first byte is not that of any method, and its length is always the same. So no bytes of a client can pass for
    another seal, or for none.
    """
    return b"" if certificate is None else b"\0" + certificate.digest


def _read(data: bytes, line: "re.Match[bytes]", end: int, seal: bytes) -> Packet[Any] | None:
    """Return bytes whose head ends there as a packet. None if they are not exactly one request in its plainest form."""
    method_and_path, named, query_string = line.groups(b"")
    # A zero byte marks where a value was. A head that has one itself could pass for a known head with other values.
    if data.find(b"\0", line.end(), end) >= 0:
        return None
    pieces, begin = [seal, method_and_path, b"\0"], line.end()
    changing: dict[bytes, bytes] = {}
    for header in _CHANGING.finditer(data, begin - 2, end + 2):
        name = header[1].lower()
        if name in changing:
            return None
        changing[name] = header[2]
        pieces += (data[begin : header.start(2)], b"\0")
        begin = header.end()
    pieces.append(data[begin:end])
    head, length = b"".join(pieces), changing.get(_LENGTH, b"0")
    if len(length) > 5 or not length.isdigit():
        return None
    missing = _missing(data, end, int(length))
    return None if missing is None else Packet(head, query_string, data[end + 4 :], changing, missing, named)


def _missing(data: bytes, end: int, length: int) -> int | None:
    """Return how many bytes of a body are still to come. None if there are more than that, or too many."""
    missing = end + 4 + length - len(data)
    return None if missing < 0 or end + length > LARGEST else missing


class KnownHeads(Generic[Prepared]):
    """All that an app has prepared for heads that it has seen, by their digests: headers may have secrets.

    A head is known by its digest without the values of ``changing`` headers. In the ordinary case these are the same as
    well. Then it is known by the digest of its very bytes, and not even taken apart.
    """

    def __init__(self, prepare: Callable[[Scope], Prepared | None], key: bytes) -> None:
        """``prepare`` returns None for a head whose requests always need a task. It gets the scope of one of them.

        ``key``: random bytes for the digests.
        """
        self._prepare = prepare
        self._digest = blake2b(digest_size=16, key=key)
        # With the length of the body.
        self._repeated: Bounded[bytes, tuple[Prepared, int]] = Bounded(MOST)
        # By the hash of a head, which costs less than a digest, but could be that of two heads.
        self._known: Bounded[int, tuple[bytes, Prepared]] = Bounded(MOST)
        self._seen: Bounded[int, None] = Bounded(MOST)

    def read(self, data: bytes, seal: bytes = b"") -> Packet[Prepared] | None:
        """Return bytes that begin a request as a packet, with what was prepared for its head, if that is known.

        None if they are not exactly one request in its plainest form. ``seal``: that of the connection.
        """
        line, end = _LINE.match(data), data.find(_END)
        if line is None or end < 0 or len(data) > LARGEST:
            return None
        # A path has no zero byte. So these bytes are no other seal, path and headers.
        mark = self._of(b"%b%b\0%b" % (seal, line[1], data[line.end() : end]))
        repeated = self._repeated.get(mark)
        if repeated is not None:
            prepared, length = repeated
            missing = _missing(data, end, length)
            if missing is None:
                return None
            return Packet(b"", line[3] or b"", data[end + 4 :], _NONE, missing, line[2] or b"", prepared)
        packet: Packet[Prepared] | None = _read(data, line, end, seal)
        known = None if packet is None else self._known.get(hash(packet.head))
        if packet is None or known is None or known[0] != self._of(packet.head):
            return packet
        prepared = known[1].with_values(packet.changing)
        self._repeated.remember(mark, (prepared, int(packet.changing.get(_LENGTH, b"0"))))
        return packet._replace(prepared=prepared)

    def learn(self, packet: Packet[Prepared], scope: Scope) -> None:
        """Prepare for further requests with this head. ``scope`` is what the parser has made of the packet."""
        if len(packet.head) > LONGEST:
            return
        mark = hash(packet.head)
        if mark not in self._seen:  # preparing is not worth it for a head that is seen once
            self._seen.remember(mark, None)
            return
        # These headers were read off the packet, so the parser must have read the same. No other may have a say in the
        # framing.
        read_off = (*packet.changing, *_FRAMING)
        parsed = sorted(header for header in Head.of(scope).headers if header[0] in read_off)
        prepared = self._prepare(scope) if parsed == sorted(packet.changing.items()) else None
        if prepared is not None:
            self._known.remember(mark, (self._of(packet.head), prepared))

    def _of(self, head: bytes) -> bytes:
        digest = self._digest.copy()
        digest.update(head)
        return digest.digest()
