"""What the caller wants: one HTTP request of the dialect as one frozen value."""

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, replace

from gateway.errors import DialectError
from gateway.tables.grammar import not_implemented
from gateway.tables.media import JSON, Media, accepted, not_acceptable
from gateway.tables.preferences import Preferences, honoured, parse_preferences
from gateway.tables.query import Query, narrowed, parse_query
from gateway.tables.versions import NO_PRECONDITIONS, Preconditions, parse_preconditions

READS = frozenset(("GET", "HEAD"))
WRITES = frozenset(("POST", "PATCH", "PUT", "DELETE"))

HEADERS = frozenset((
    b"prefer", b"accept", b"accept-profile", b"content-profile", b"content-type", b"content-length", b"range",
    b"if-match", b"if-none-match", b"idempotency-key",
))  # fmt: skip


@dataclass(frozen=True, slots=True)
class Request:
    """One request for one table. ``profile`` is the schema the caller named; ``media`` the form of answer it wants."""

    method: str
    query: Query
    preferences: Preferences
    profile: str | None
    media: Media = JSON
    content_length: int | None = None
    preconditions: Preconditions = NO_PRECONDITIONS

    @property
    def singular(self) -> bool:
        return self.media.singular

    @property
    def wants_rows(self) -> bool:
        return self.preferences.returns == "representation"


def headings(headers: Iterable[tuple[bytes, bytes]]) -> dict[bytes, str]:
    """The headers of the dialect by lower-case name; those that may be repeated are joined by commas."""
    found: dict[bytes, str] = {}
    for raw_name, raw_value in headers:
        name = raw_name.lower()
        if name in HEADERS:
            value = raw_value.decode("latin-1")
            found[name] = f"{found[name]},{value}" if name in found else value
    return found


def profile_of(method: str, headers: Mapping[bytes, str]) -> str | None:
    """The schema the caller names: Content-Profile on writes, Accept-Profile on everything else."""
    return headers.get(b"content-profile" if method in WRITES else b"accept-profile")


def parse(method: str, query_string: bytes, headers: Mapping[bytes, str]) -> Request:
    """Read one request. Raises ``DialectError`` with PostgREST's code for whatever cannot be read or is not served."""
    query = parse_query(query_string)
    if query.embeds and method not in READS:
        raise not_implemented("Embedding on a write")
    if method == "GET" and b"range" in headers:
        query = narrowed(query, headers[b"range"])
    return Request(
        method=method,
        query=query,
        preferences=parse_preferences(headers.get(b"prefer", "")),
        profile=profile_of(method, headers),
        media=accepted(headers.get(b"accept", "")) or JSON,
        content_length=content_length(headers),
        preconditions=parse_preconditions(headers.get(b"if-match"), headers.get(b"if-none-match")),
    )


def settled(request: Request, headers: Mapping[bytes, str], *, tx_override: bool, zones: Container[str]) -> Request:
    """The request with what can be honoured of its preferences. ``zones`` are the time zones there are.

    Raises PGRST122 for preferences that strict handling refuses, PGRST107 where no form of answer is acceptable.
    """
    preferences = honoured(request.preferences, tx_override=tx_override, zones=zones)
    accept = headers.get(b"accept", "")
    if accepted(accept) is None:
        raise not_acceptable(accept)
    return request if preferences is request.preferences else replace(request, preferences=preferences)


def unsupported(method: str) -> DialectError:
    """PGRST117: a method that means nothing here."""
    return DialectError("PGRST117", 405, f"Unsupported HTTP method: {method[:20]}")


def content_length(headers: Mapping[bytes, str]) -> int | None:
    """The announced size of the body in bytes, if it is announced."""
    text = headers.get(b"content-length", "")
    return int(text) if text.isascii() and text.isdigit() else None
