"""How requests are framed, well and badly, put behind one another, cut into pieces and broken off.

A conversation is what goes over one connection.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import pairwise
from random import Random

from tests.fuzz import deeds, reading
from tests.fuzz.deeds import AUDITOR_KEY, FIRST_MARK, HOST, OTHER_KEY, Choices, Deed
from tests.fuzz.reading import Fields, Message
from tests.running import API_KEY


class End(Enum):
    """The end of a conversation, once a client has sent everything."""

    READ = "reads until everything is answered"
    HALF_CLOSE = "shuts down its side, and reads"
    ABORT = "resets the connection"


@dataclass(slots=True)
class Conversation:
    """The bytes that a client sends on one connection: pieces, each with the pause in seconds that comes before it.

    ``deeds`` are those that it was made of, and others that are hidden in their bodies, by request id. ``parts`` are
    the requests as bytes, so that a failing conversation can be made shorter.
    """

    name: str
    port: str
    parts: list[bytes]
    cuts: list[int]
    pauses: list[float]
    end: End
    deeds: dict[str, Deed] = field(default_factory=dict)

    @property
    def sent(self) -> bytes:
        return b"".join(self.parts)

    def pieces(self) -> list[tuple[float, bytes]]:
        sent = self.sent
        bounds = [0, *sorted({cut for cut in self.cuts if 0 < cut < len(sent)}), len(sent)]
        return [
            (self.pauses[number % len(self.pauses)], sent[start:end])
            for number, (start, end) in enumerate(pairwise(bounds))
        ]

    def messages(self) -> list[Message]:
        return reading.requests(self.sent)


def conversation(seed: int, number: int, cookie: str) -> Conversation:
    """Make the conversation of this number. The seed decides everything but the time of signatures."""
    random = Random(f"{seed}/{number}")
    marks = iter(range(FIRST_MARK + number * 32, FIRST_MARK + number * 32 + 32))
    choices = Choices(random, lambda: next(marks), cookie)
    made: dict[str, Deed] = {}

    def deed() -> Deed:
        name = f"fz-{number}-{len(made)}"
        made[name] = _deed(name, choices)
        return made[name]

    count = random.choice((1, 1, 1, 2, 3, 5))
    kinds = [random.choices(list(FRAMINGS), list(FRAMINGS.values()))[0] for _ in range(count)]
    parts, endless = [], False
    for kind in kinds:
        one = deed()
        # A body may look like a request; a reader that loses its place would serve it.
        hidden = framed(deed(), random, by_length) if random.random() < 0.1 else None
        if hidden is not None and one.effect is None and not one.endless:
            one.body += hidden
        parts.append(framed(one, random, kind))
        endless = one.endless
        if endless:
            break
    end = random.choices(list(End), (8, 1, 1))[0]
    if endless:
        end = End.ABORT
    elif end is End.READ:
        name = f"fz-{number}-marker"
        made[name] = Deed(name, "GET", "/v1/ready")
        parts.append(framed(made[name], random, by_length))
    data = b"".join(parts)
    if end is End.ABORT and random.random() < 0.7:
        parts = [data[: random.randrange(len(data) + 1)]]
    if (
        random.random() < 0.15
        and not any(secret.encode() in data for secret in (API_KEY, OTHER_KEY, AUDITOR_KEY, cookie))
        and not any(one.known for one in made.values())
    ):
        # A request that proves a caller could become another one, which may write.
        parts = [_damaged(random, b"".join(parts))]
    cuts = [random.randrange(len(data) + 1) for _ in range(random.choice((0, 0, 1, 2, 5)))]
    if random.random() < 0.3:  # the rest of a body comes once its request is under way
        cuts.append(data.rfind(b"\r\n0\r\n") + 2)
    slow = random.random() < 0.05
    pauses = [0.0] + [random.choice((0.0, 0.0, 0.002, 0.03, 0.3 if slow else 0.0)) for _ in range(4)]
    port = "small" if random.random() < 0.25 else "usual"
    return Conversation(f"{seed}/{number}", port, parts, cuts, pauses, end, made)


_DEEDS = (
    *[deeds.update] * 3, deeds.insert, deeds.transaction, deeds.read_rows, deeds.odd_rows,
    deeds.barrier, deeds.lease, deeds.any_route, deeds.watching, deeds.page, deeds.page_form,
    *[deeds.write_object] * 2, deeds.read_object, deeds.object_form,
)  # fmt: skip
_UNCERTAIN = (
    "If-Match", "If-None-Match", "Idempotency-Key", "Accept", "Prefer", "Range", "Origin", "Fencing-Holder",
    "Content-Encoding",
)  # fmt: skip
"""With one of these a write may succeed and change nothing."""


def _deed(name: str, choices: Choices) -> Deed:
    """Make a deed of any plane, some with a further header."""
    deed = choices.one(*_DEEDS)(name, choices)
    if choices.often(0.1):
        nasty = choices.nasty_header()
        names = ("Accept", "Prefer", "If-Match", "Idempotency-Key", "Traceparent", "Fencing-Holder")
        header, value = choices.one(
            *((one, nasty) for one in names),
            ("If-None-Match", "*"), ("Range", "bytes=5-2,-1"), ("Origin", "http://evil"), ("Content-Encoding", "gzip"),
            ("X-Junk", "a" * choices.one(10, 3000, 30_000)), ("Cookie", f"gateway_session={nasty}"),
            ("X-Forwarded-For", "1.2.3.4"), ("X-HTTP-Method-Override", "DELETE"), ("Accept-Encoding", "gzip"),
        )  # fmt: skip
        deed.headers.append((header, value))
        if deed.effect is not None and header in _UNCERTAIN:
            deed.effect = replace(deed.effect, certain=False)
    return deed


def _damaged(random: Random, data: bytes) -> bytes:
    """Return the same with a few bytes changed, added or left out."""
    damaged = bytearray(data)
    for _ in range(random.choice((1, 2, 8))):
        if not damaged:
            break
        at = random.randrange(len(damaged))
        damaged[at : at + random.choice((0, 1, 3))] = random.choice(
            (b"", b"\0", b"\r", b"\n", b"\r\n\r\n", b":", b" ", b"\xff", b"0", bytes([random.randrange(256)]))
        )
    return bytes(damaged)


# How one request is framed --------------------------------------------------------------------------------


def framed(deed: Deed, random: Random, kind: Callable[[Random, Deed, Fields], bytes]) -> bytes:
    """Return the request as bytes."""
    fields: Fields = [(name, value) for name, value in deed.headers if name.lower() != "host"]
    fields.append(("X-Request-Id", deed.id))
    random.shuffle(fields)
    fields.insert(random.choice((0, len(fields))), ("Host", HOST))
    return kind(random, deed, fields)


def _head(start: str, fields: Fields, end: str = "\r\n") -> bytes:
    return (end.join([start, *(f"{name}: {value}" for name, value in fields)]) + 2 * end).encode("latin-1")


def _start(deed: Deed, version: str = "HTTP/1.1") -> str:
    return f"{deed.method} {deed.target} {version}"


def by_length(_: Random, deed: Deed, fields: Fields) -> bytes:
    length = [("Content-Length", str(len(deed.body)))] if deed.body or deed.method not in ("GET", "HEAD") else []
    return _head(_start(deed), [*fields, *length]) + deed.body


def _chunked(random: Random, deed: Deed, fields: Fields) -> bytes:
    return _head(_start(deed), [*fields, ("Transfer-Encoding", random.choice(("chunked", "Chunked")))]) + _in_chunks(
        random, deed
    )


def _in_chunks(random: Random, deed: Deed, *, trailers: bool = True) -> bytes:
    pieces: list[bytes] = []
    at = 0
    while at < len(deed.body):
        piece = deed.body[at : at + random.choice((1, 7, 100, 100_000))]
        if len(pieces) > 40:
            piece = deed.body[at:]
        at += len(piece)
        size = random.choice((f"{len(piece):x}", f"{len(piece):X}", f"000{len(piece):x}"))
        extension = random.choice(("", "", "", ";a=b", ';a="b;c"', "; x", " ;x", ";" + "e" * 300))
        pieces.append(f"{size}{extension}\r\n".encode() + piece + b"\r\n")
    fields = deed.trailers if trailers else []
    ending = "".join(f"{name}: {value}\r\n" for name, value in fields)
    return b"".join(pieces) + b"0\r\n" + ending.encode("latin-1") + b"\r\n"


def _expecting(random: Random, deed: Deed, fields: Fields) -> bytes:
    return random.choice((by_length, _chunked))(random, deed, [*fields, ("Expect", "100-continue")])


def _wrong_length(random: Random, deed: Deed, fields: Fields) -> bytes:
    size = len(deed.body)
    wrong = (
        str(max(0, size - 5)), str(size + 7), "-1", f"+{size}", f"{size}, {size}", f"{size} {size}", "0x5", "", "1e2",
        "9" * 30, str(2**63), str(2**64 + size), f"{size}.0", f"{size};", "٣",
    )  # fmt: skip
    return _raw(deed, [*fields, ("Content-Length", random.choice(wrong))]) + deed.body


def _two_lengths(random: Random, deed: Deed, fields: Fields) -> bytes:
    size = len(deed.body)
    other = random.choice((size, 0, size + 10))
    return _head(_start(deed), [*fields, ("Content-Length", str(size)), ("Content-Length", str(other))]) + deed.body


def _both(random: Random, deed: Deed, fields: Fields) -> bytes:
    """Give a length and chunks."""
    body = _in_chunks(random, deed)
    both = [("Content-Length", str(random.choice((len(body), len(deed.body), 0)))), ("Transfer-Encoding", "chunked")]
    random.shuffle(both)
    return _head(_start(deed), [*fields, *both]) + body


def _coding(random: Random, deed: Deed, fields: Fields) -> bytes:
    """Name codings that are not chunked, or not only, or not quite."""
    codings = (
        "gzip", "chunked, gzip", "gzip, chunked", "xchunked", "chunked ,", "chunked, chunked", "identity", "",
        "\x0bchunked", '"chunked"',
    )  # fmt: skip
    named = random.choice(("Transfer-Encoding", "Transfer-Encoding", "Transfer_Encoding", "Transfer-Encoding "))
    return _raw(deed, [*fields, (named, random.choice(codings))]) + _in_chunks(random, deed)


def _odd_chunks(random: Random, deed: Deed, fields: Fields) -> bytes:
    """Send chunks with wrong sizes or ends."""
    body = _in_chunks(random, deed)
    sizes = (
        b"-1", b"0x5", b"", b" 5", b"5 5", b"FFFFFFFFFFFFFFFF", b"F" * 40, b"5;\x00", b"g", b"+5", b"5\r", b"5;a\nb",
    )  # fmt: skip
    broken = random.choice(
        (
            random.choice(sizes) + b"\r\n" + deed.body + b"\r\n" + body,
            body.replace(b"\r\n", b"\n"),
            body.replace(b"\r\n", b"\r", 1),
            b"5\r\nhello!!\r\n" + body,
            b"5\r\nhello" + body,
            body[:-2] + b"bad trailer\r\n\r\n",
            body[:-2] + b" fold: x\r\n\r\n",
            body[:-2] + b"a: " + b"b" * 70_000 + b"\r\n\r\n",
            body[:-2] + b"a: b\r\n" * 12_000 + b"\r\n",
        )
    )
    return _head(_start(deed), [*fields, ("Transfer-Encoding", "chunked")]) + broken


def _raw(deed: Deed, fields: Fields, start: str | None = None) -> bytes:
    lines = [start or _start(deed), *(f"{name}: {value}" for name, value in fields)]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("utf-8", "surrogateescape")


def _odd_head(random: Random, deed: Deed, fields: Fields) -> bytes:
    """Send a head that a server may or must refuse."""
    start, fields = _start(deed), [*fields, ("Content-Length", str(len(deed.body)))]
    no_host = [one for one in fields if one[0] != "Host"]
    version = random.choice(("HTTP/1.1", "HTTP/0.9", "HTTP/2.0", "HTTP/1.2", "HTTP/11", "http/1.1", "HTTP/1.1\0"))
    method = random.choice(("CONNECT", "TRACE", "PROPFIND", "get", "G@T", "", "x" * 3000))
    further = (
        ("Host", "other"), ("X-Fold", "a\r\n b\r\n\tc"), ("X-Nul", "a\0b"), ("X-Return", "a\rb"), ("X-Space ", "a"),
        ("X(Odd)", "a"), ("", "a"), ("X-Latin", "\xe4\xff"), ("X-Large", "a" * 70_000),
    )  # fmt: skip
    heads = (
        *(_head(start, [*fields, one]) for one in further),
        _head(start, fields, "\n"),
        _head(start, no_host),
        _head(start, [("X-Fold", "a\r\n Authorization: x"), *fields]),
        _head(start + "\r\n Folded: x", fields),
        _head(start, [*fields, *[("X-Many", "a")] * 3000]),
        _head(start, [*fields, *[("X-Too-Many", "a")] * 8000]),
        _head(start + " x", fields),
        _head(start.replace(" ", "  ", 1), fields),
        _head(start.replace(" ", "\t", 1), fields),
        _head(_start(deed, version), fields),
        _head(f"{deed.method} {deed.target}", []),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        _head(f"{method} {deed.target} HTTP/1.1", fields),
        b"\r\n" * random.choice((1, 5)) + _head(start, fields),
        b"\0\x16\x03\x01\x02\0\x01" + _head(start, fields),
    )
    return random.choice(heads) + deed.body


def _odd_target(random: Random, deed: Deed, fields: Fields) -> bytes:
    """Send a target in another form than that of a path."""
    own = deed.target
    targets = (
        *(f"http://{HOST}{own}", f"http://other:99{own}", f"https://u:p@{HOST}{own}", "http://", "http://[::1"),
        *(f"//{HOST}{own}", f"/.{own}", f"/x/..{own}", f"{own}/%", f"{own}%zz", f"{own}ä", f"{own}#fragment", own[1:]),
        *("/" + "a" * 3000, f"{own}?{'a=b&' * 3000}", "/%ff%fe", "/v1/%2e%2e/ui", "///", "?"),
    )
    target = random.choice(targets)
    method = deed.method
    if random.random() < 0.1:
        target, method = random.choice(("*", f"{HOST}:80")), random.choice((deed.method, "OPTIONS", "CONNECT"))
    if target.startswith(("/.", "/x/", "//")):
        deed.effect = None  # it is for another place
    start = f"{method} {target} HTTP/1.1"
    return _raw(deed, [*fields, ("Content-Length", str(len(deed.body)))], start) + deed.body


def _old(random: Random, deed: Deed, fields: Fields) -> bytes:
    """Speak HTTP/1.0, or say whether the connection is to be closed or kept."""
    start = _start(deed, random.choice(("HTTP/1.0", "HTTP/1.0", "HTTP/1.1")))
    said = random.choice((None, "close", "keep-alive", "close, keep-alive", "Close"))
    connection = [] if said is None else [("Connection", said)]
    if random.random() < 0.2:
        return _head(start, [*fields, *connection, ("Transfer-Encoding", "chunked")]) + _in_chunks(random, deed)
    return _head(start, [*fields, *connection, ("Content-Length", str(len(deed.body)))]) + deed.body


def _upgrade(random: Random, deed: Deed, fields: Fields) -> bytes:
    """Ask for another protocol."""
    websocket = [("Sec-WebSocket-Key", "x3JJHMbDL1EzLkh9GBhXDw=="), ("Sec-WebSocket-Version", "13")]
    asked = random.choice(
        (
            [("Connection", "Upgrade, HTTP2-Settings"), ("Upgrade", "h2c"), ("HTTP2-Settings", "AAMAAABkAAQAAP__")],
            [("Connection", "Upgrade"), ("Upgrade", "websocket"), *websocket],
            [("Connection", "upgrade"), ("Upgrade", "TLS/1.0")],
            [("Upgrade", "h2c")],
            [("Connection", "upgrade")],
        )
    )
    return random.choice((by_length, _chunked))(random, deed, [*fields, *asked])


FRAMINGS = {
    by_length: 30, _chunked: 24, _expecting: 4, _wrong_length: 4, _two_lengths: 2, _both: 3, _coding: 3, _odd_chunks: 4,
    _odd_head: 8, _odd_target: 4, _old: 4, _upgrade: 3,
}  # fmt: skip
"""With how often each is chosen."""
