"""Requests without their framing, each with the change that it may make.

A request that writes carries a mark, a number that no other request has. A mark found in a table, in a key or in a
fence says which request took effect.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import TypeVar
from urllib.parse import quote, urlencode

from tests.fuzz.reading import Fields
from tests.running import API_KEY

HOST = "fuzz.example"
BUCKET = "bucket"
WRONG_KEY, OTHER_KEY, AUDITOR_KEY = "a-key-nobody-has", "mallory-api-key", "auditor-api-key"
ACCOUNTS = range(1, 13)
STALE_ACCOUNT = 99
HELD, NEWEST = 7, 1000
"""The token that writers hold, and the one of the newer holder of what is stale."""
FIRST_MARK = 10_000_000

PROVEN = frozenset(("bearer", "apikey", "auditor", "other"))
"""The ways to show a key by which a caller is known."""

SINGULAR = ("Accept", "application/vnd.pgrst.object+json")
LIMITED = ("Prefer", "handling=strict, max-affected=1")
DRY = ("Prefer", "tx=rollback, handling=strict")
ELSEWHERE = ("Content-Profile", "other")
JSON = ("Content-Type", "application/json")

_NASTY = (
    *(
        "",
        "0",
        "-1",
        "1e999",
        "NaN",
        "9" * 40,
        "\0",
        "a\0b",
        "ä",
        "\u202e",
        "\U0001f600",
        "\ud800",
        "%",
        "%2F",
        "..",
        ".",
    ),
    *(
        "a/b",
        "a b",
        "a+b",
        "'",
        '"',
        "';--",
        "{}",
        "[]",
        "null",
        "true",
        "$(id)",
        "<x>",
        "a,b",
        "a=b",
        "x" * 600,
        "x" * 5000,
    ),
    *(
        "0001-01-01T00:00:00Z",
        "9999-12-31T23:59:59.999999Z",
        "2026-02-30",
        "infinity",
        "\\",
        "*",
        "eq.",
        "in.(",
        "not.",
    ),
)
_NONSENSE = (
    *(b"", b"{", b"null", b"[]", b"[" * 5000, b"[[],[]]" * 50, b'{"a": ' * 500 + b"1" + b"}" * 500, b"\xff\xfe", b"\0"),
    *(
        b'"\\ud800"',
        b'{"mark": 1e400}',
        b'{"token": "7", "token": "8"}',
        b"NaN",
        b"1" * 5000,
        b"x=1&y=2",
        b"id,mark\n1",
    ),
    *(b'{"id": "\\u0000"}', b"{}" * 3, b" " * 3000),
)
_IN_TRAILERS = (
    *(ELSEWHERE, LIMITED, DRY, SINGULAR, ("Authorization", f"Bearer {API_KEY}"), ("apikey", API_KEY)),
    *(("Fencing-Token", str(HELD)), ("Fencing-Token", str(NEWEST * 2)), ("x-amz-meta-fencing-token", str(HELD))),
    *(
        ("Prefer", "return=representation"),
        ("Content-Length", "5"),
        ("Transfer-Encoding", "chunked"),
        ("Host", "other"),
    ),
    *(("Fencing-Resource", "fz/trailer"), ("x-amz-content-sha256", "UNSIGNED-PAYLOAD"), ("Expect", "100-continue")),
    *(("X-Junk", "a" * 30_000), ("Content-Encoding", "gzip")),
)
_ITEM = TypeVar("_ITEM")


@dataclass(frozen=True, slots=True)
class Effect:
    """The change that a request would make. ``allowed``: it may, if all of it arrives.

    ``certain``: a success means that it has.

    ``place`` is the table, ``object``, ``fence`` or ``lease``; ``name`` the key or resource; ``rows`` how many at most.
    ``token`` is what a fence may be raised to; None: to any. ``bodiless``: its body means nothing, and is not awaited.
    """

    mark: int
    place: str
    allowed: bool
    certain: bool = False
    name: str = ""
    token: int | None = HELD
    rows: int = 1
    bodiless: bool = False


@dataclass(slots=True)
class Deed:
    """A request without framing. ``known``: its head proves a caller. ``endless``: its answer may have no end."""

    id: str
    method: str
    target: str
    headers: Fields = field(default_factory=list)
    body: bytes = b""
    trailers: Fields = field(default_factory=list)
    known: bool = False
    effect: Effect | None = None
    endless: bool = False


class Choices:
    """Chance, and what is chosen from on every plane.

    ``mark`` makes the next mark; ``cookie`` is a session of the page.
    """

    def __init__(self, random: Random, mark: Callable[[], int], cookie: str) -> None:
        self.random, self.mark, self.cookie = random, mark, cookie

    def one(self, *items: _ITEM) -> _ITEM:
        return self.random.choice(items)

    def often(self, share: float) -> bool:
        return self.random.random() < share

    def key(self) -> str:
        """Choose a way to show an API key, or none."""
        return self.one(*["bearer"] * 4, "apikey", "other", "none", "wrong", "twice", "two callers", "malformed")

    def authorization(self, key: str) -> Fields:
        good = ("Authorization", f"Bearer {API_KEY}")
        malformed = self.one("Bearer", "Basic eDp5", API_KEY, "Bearer  ", self.nasty_header())
        shown: dict[str, Fields] = {
            "bearer": [good],
            "apikey": [("apikey", API_KEY)],
            "auditor": [("Authorization", f"Bearer {AUDITOR_KEY}")],
            "other": [("Authorization", f"Bearer {OTHER_KEY}")],
            "none": [],
            "wrong": [("Authorization", f"Bearer {WRONG_KEY}")],
            "twice": [good, good],
            "two callers": [good, ("apikey", OTHER_KEY)],
            "malformed": [("Authorization", malformed)],
        }
        return list(shown[key])

    def token(self) -> str:
        """Choose a way to show a fencing token, or none. ``stale``: the place has a newer holder."""
        return self.one(*["held"] * 4, "stale", "none", "twice", "alias twice", "malformed")

    def tokens(self, token: str) -> Fields:
        held = ("Fencing-Token", str(HELD))
        shown: dict[str, Fields] = {
            "held": [held],
            "stale": [held],
            "none": [],
            "twice": [held, held],
            "alias twice": [held, ("Fencing_Token", str(NEWEST * 2))],
            "malformed": [("Fencing-Token", "07")],
        }
        return list(shown[token])

    def trailers(self, name: str) -> Fields:
        """Choose fields that would change everything, were they in the head."""
        palette = (*_IN_TRAILERS, ("X-Request-Id", f"{name}-trailer"), ("X-Request-Id", f"{name}-trailer"))
        return self.random.sample(palette, self.one(0, 0, 1, 1, 2, 4))

    def nasty(self) -> str:
        """Choose a text that programs stumble over."""
        return self.one(*_NASTY)

    def nasty_header(self) -> str:
        """Choose the same, as far as it can stand in a header."""
        return self.nasty().replace("\0", "\x80").encode("utf-8", "surrogatepass").decode("latin-1")

    def nasty_segment(self, safe: str = "") -> str:
        """Choose the same, as it stands in a path."""
        return quote(self.nasty(), safe=safe, errors="surrogatepass")

    def nasty_query(self, names: str, least: int = 0) -> str:
        """Choose some of these parameters, separated by spaces, with such values."""
        chosen = [self.one(*names.split()) for _ in range(self.random.randint(least, 4))]
        return urlencode([(name, self.nasty()) for name in chosen], errors="surrogatepass")

    def nonsense(self) -> bytes:
        """Choose a body that hardly means anything."""
        return self.one(*_NONSENSE, self.random.randbytes(50))
