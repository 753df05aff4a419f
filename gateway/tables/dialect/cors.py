"""Cross-origin requests: which pages in a browser may use the tables, and what they get to see of an answer.

Callers prove themselves with a key they put into a header, never with something a browser adds on its own. So no
answer allows credentials, and a foreign page can do nothing that its own visitor has not given it the key for. Which
pages may write is checked before any plane, in ``gateway/http/origins.py``.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from gateway.http import origins
from gateway.tables.dialect.response import Headers, Response

MAX_AGE = 86_400

_EXPOSED = (
    b"Content-Encoding, Content-Location, Content-Profile, Content-Range, Content-Type, Date, ETag, Fencing-Resource, "
    b"Fencing-Token, Fencing-Would-Refuse, Idempotency-Replayed, Location, Preference-Applied, Proxy-Status, "
    b"Retry-After, X-Request-Id"
)
_METHODS = b"GET, HEAD, POST, PATCH, PUT, DELETE, OPTIONS"
_REQUESTED = re.compile(rb"[A-Za-z0-9!#$%&'*+.^_`|~, -]{1,2000}")


@dataclass(frozen=True, slots=True)
class Origins:
    """The origins whose pages are allowed: exact ones, or ``*`` for all. None by default."""

    allowed: tuple[str, ...] = ()

    def admits(self, origin: bytes) -> bool:
        return origins.admits(self.allowed, origin)

    def preflight(self, method: str, headers: Iterable[tuple[bytes, bytes]]) -> Response | None:
        """Return the answer to a browser's preflight request; None for any other request.

        A preflight carries no key, so it is answered before authentication, and tells nothing about tables. The other
        headers come from ``headers``.
        """
        found = _single(headers)
        origin = found.get(b"origin")
        asks = method == "OPTIONS" and b"access-control-request-method" in found
        if not asks or origin is None or not self.admits(origin):
            return None
        answer: Headers = [
            (b"access-control-allow-methods", _METHODS),
            (b"access-control-max-age", str(MAX_AGE).encode()),
            (b"content-length", b"0"),
        ]
        asked = found.get(b"access-control-request-headers")
        if asked is not None and _REQUESTED.fullmatch(asked):
            answer.append((b"access-control-allow-headers", asked))
        return Response(200, answer)

    def headers(self, origin: bytes | None) -> Headers:
        """Return the headers of every answer, for any origin, so that no cache mixes them up."""
        if not self.allowed:
            return []
        every = "*" in self.allowed
        vary = [] if every else [(b"vary", b"Origin")]
        if origin is None or not self.admits(origin):
            return vary
        return [
            *vary,
            (b"access-control-allow-origin", b"*" if every else origin),
            (b"access-control-expose-headers", _EXPOSED),
        ]


def _single(headers: Iterable[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    twice: set[bytes] = set()
    for name, value in headers:
        lower = name.lower()
        if lower in found:
            twice.add(lower)
        found[lower] = value
    return {name: value for name, value in found.items() if name not in twice}
