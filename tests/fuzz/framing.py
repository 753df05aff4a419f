"""How a request is framed: well, in all ways there are, and badly."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from tests.fuzz.deeds import HOST, Deed
from tests.fuzz.reading import Fields


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
        *(
            str(max(0, size - 5)),
            str(size + 7),
            "-1",
            f"+{size}",
            f"{size}, {size}",
            f"{size} {size}",
            "0x5",
            "",
            "1e2",
        ),
        *("9" * 30, str(2**63), str(2**64 + size), f"{size}.0", f"{size};", "٣"),
    )
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
        "gzip",
        "chunked, gzip",
        "gzip, chunked",
        "xchunked",
        "chunked ,",
        "chunked, chunked",
        "identity",
        "",
        "\x0bchunked",
        '"chunked"',
    )
    named = random.choice(("Transfer-Encoding", "Transfer-Encoding", "Transfer_Encoding", "Transfer-Encoding "))
    return _raw(deed, [*fields, (named, random.choice(codings))]) + _in_chunks(random, deed)


def _odd_chunks(random: Random, deed: Deed, fields: Fields) -> bytes:
    """Send chunks with wrong sizes or ends."""
    body = _in_chunks(random, deed)
    sizes = (
        b"-1",
        b"0x5",
        b"",
        b" 5",
        b"5 5",
        b"FFFFFFFFFFFFFFFF",
        b"F" * 40,
        b"5;\x00",
        b"g",
        b"+5",
        b"5\r",
        b"5;a\nb",
    )
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
    size = ("Content-Length", str(len(deed.body)))
    no_host = [one for one in fields if one[0] != "Host"]
    heads: tuple[Callable[[], bytes], ...] = (
        lambda: _head(_start(deed), [*fields, size], "\n"),
        lambda: _head(_start(deed), [*no_host, size]),
        lambda: _head(_start(deed), [*fields, ("Host", "other"), size]),
        lambda: _head(_start(deed), [*fields, ("X-Fold", "a\r\n b\r\n\tc"), size]),
        lambda: _head(_start(deed), [("X-Fold", "a\r\n Authorization: x"), *fields, size]),
        lambda: _head(_start(deed) + "\r\n Folded: x", [*fields, size]),
        lambda: _head(_start(deed), [*fields, ("X-Nul", "a\0b"), size]),
        lambda: _head(_start(deed), [*fields, ("X-Return", "a\rb"), size]),
        lambda: _head(_start(deed), [*fields, ("X-Space ", "a"), size]),
        lambda: _head(_start(deed), [*fields, ("X(Odd)", "a"), size]),
        lambda: _head(_start(deed), [*fields, ("", "a"), size]),
        lambda: _head(_start(deed), [*fields, ("X-Latin", "\xe4\xff"), size]),
        lambda: _head(_start(deed), [*fields, ("X-Large", "a" * 70_000), size]),
        lambda: _head(_start(deed), [*fields, *[("X-Many", "a")] * 3000, size]),
        lambda: _head(_start(deed), [*fields, *[("X-Too-Many", "a")] * 8000, size]),
        lambda: _head(_start(deed) + " x", [*fields, size]),
        lambda: _head(_start(deed).replace(" ", "  ", 1), [*fields, size]),
        lambda: _head(_start(deed).replace(" ", "\t", 1), [*fields, size]),
        lambda: _head(
            _start(
                deed,
                random.choice(("HTTP/1.1", "HTTP/0.9", "HTTP/2.0", "HTTP/1.2", "HTTP/11", "http/1.1", "HTTP/1.1\0")),
            ),
            [*fields, size],
        ),
        lambda: _head(f"{deed.method} {deed.target}", []),
        lambda: b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        lambda: _head(
            f"{random.choice(('CONNECT', 'TRACE', 'PROPFIND', 'get', 'G@T', '', 'x' * 3000))} {deed.target} HTTP/1.1",
            [*fields, size],
        ),
        lambda: b"\r\n" * random.choice((1, 5)) + _head(_start(deed), [*fields, size]),
        lambda: b"\0\x16\x03\x01\x02\0\x01" + _head(_start(deed), [*fields, size]),
    )
    return random.choice(heads)() + deed.body


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
    connection = random.choice(
        (
            [],
            [("Connection", "close")],
            [("Connection", "keep-alive")],
            [("Connection", "close, keep-alive")],
            [("Connection", "Close")],
        )
    )
    if random.random() < 0.2:
        return _head(start, [*fields, *connection, ("Transfer-Encoding", "chunked")]) + _in_chunks(random, deed)
    return _head(start, [*fields, *connection, ("Content-Length", str(len(deed.body)))]) + deed.body


def _upgrade(random: Random, deed: Deed, fields: Fields) -> bytes:
    """Ask for another protocol."""
    asked = random.choice(
        (
            [("Connection", "Upgrade, HTTP2-Settings"), ("Upgrade", "h2c"), ("HTTP2-Settings", "AAMAAABkAAQAAP__")],
            [
                ("Connection", "Upgrade"),
                ("Upgrade", "websocket"),
                ("Sec-WebSocket-Key", "x3JJHMbDL1EzLkh9GBhXDw=="),
                ("Sec-WebSocket-Version", "13"),
            ],
            [("Connection", "upgrade"), ("Upgrade", "TLS/1.0")],
            [("Upgrade", "h2c")],
            [("Connection", "upgrade")],
        )
    )
    return random.choice((by_length, _chunked))(random, deed, [*fields, *asked])


FRAMINGS = (
    by_length,
    _chunked,
    _expecting,
    _wrong_length,
    _two_lengths,
    _both,
    _coding,
    _odd_chunks,
    _odd_head,
    _odd_target,
    _old,
    _upgrade,
)
WEIGHTS = (30, 24, 4, 4, 2, 3, 3, 4, 8, 4, 4, 3)
