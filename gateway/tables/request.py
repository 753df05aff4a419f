"""What the caller wants: one HTTP request of the dialect as one frozen value."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal
from urllib.parse import unquote_plus

from gateway.errors import DialectError
from gateway.tables.grammar import (
    Condition,
    Field,
    Node,
    Order,
    Selected,
    not_implemented,
    parse_error,
    parse_filter,
    parse_names,
    parse_order,
    parse_select,
    parse_tree,
)

READS = frozenset(("GET", "HEAD"))
WRITES = frozenset(("POST", "PATCH", "PUT", "DELETE"))
JSON = "application/json"
OBJECT = "application/vnd.pgrst.object+json"
MAX_FILTERS = 500

_WANTED = frozenset((
    b"prefer", b"accept", b"accept-profile", b"content-profile", b"content-type", b"content-length", b"range",
))  # fmt: skip
_TREES = frozenset(("and", "or", "not.and", "not.or"))
_RANGE = re.compile(r"([0-9]{1,18})-([0-9]{1,18})?")
_INTEGER = re.compile(r"-?[0-9]{1,18}")
_MEDIA_TYPES = {
    JSON: JSON, "application/*": JSON, "*/*": JSON, OBJECT: OBJECT, "application/vnd.pgrst.object": OBJECT,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Preferences:
    """The ``Prefer`` header, reduced to what is honoured."""

    returns: Literal["minimal", "headers-only", "representation"] | None = None
    resolution: Literal["merge-duplicates", "ignore-duplicates"] | None = None
    missing: Literal["default", "null"] | None = None
    count: Literal["exact", "planned", "estimated"] | None = None
    strict: bool | None = None
    max_affected: int | None = None


@dataclass(frozen=True, slots=True)
class Query:
    """The query string. ``select`` empty stands for all columns; ``columns`` and ``on_conflict`` are sorted."""

    filters: tuple[Node, ...] = ()
    select: tuple[Selected, ...] = ()
    order: tuple[Order, ...] = ()
    limit: int | None = None
    offset: int = 0
    columns: tuple[str, ...] | None = None
    on_conflict: tuple[str, ...] = ()
    is_limited: bool = False
    """Whether ``limit`` or ``offset`` was sent at all."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request for one table. ``profile`` is the schema the caller named, ``singular`` that it wants one object."""

    method: str
    query: Query
    preferences: Preferences
    profile: str | None
    singular: bool
    content_length: int | None = None

    @property
    def wants_rows(self) -> bool:
        return self.preferences.returns == "representation"


def headings(headers: Iterable[tuple[bytes, bytes]]) -> dict[bytes, str]:
    """The headers of the dialect by lower-case name; those that may be repeated are joined by commas."""
    found: dict[bytes, str] = {}
    for raw_name, raw_value in headers:
        name = raw_name.lower()
        if name in _WANTED:
            value = raw_value.decode("latin-1")
            found[name] = f"{found[name]},{value}" if name in found else value
    return found


def profile_of(method: str, headers: Mapping[bytes, str]) -> str | None:
    """The schema the caller names: Accept-Profile on reads, Content-Profile on writes."""
    return headers.get(b"accept-profile" if method in READS else b"content-profile")


def parse(method: str, query_string: bytes, headers: Mapping[bytes, str]) -> Request:
    """Read one request. Raises ``DialectError`` with PostgREST's code for whatever cannot be read or is not served."""
    query = parse_query(query_string)
    if method == "GET" and b"range" in headers:
        query = _ranged(query, headers[b"range"])
    return Request(
        method=method,
        query=query,
        preferences=parse_preferences(headers.get(b"prefer", "")),
        profile=profile_of(method, headers),
        singular=media_type(headers.get(b"accept", "")) == OBJECT,
        content_length=content_length(headers),
    )


def content_length(headers: Mapping[bytes, str]) -> int | None:
    """The announced size of the body in bytes, if it is announced."""
    text = headers.get(b"content-length", "")
    return int(text) if text.isascii() and text.isdigit() else None


def check_content_type(headers: Mapping[bytes, str]) -> None:
    """Only JSON bodies are read. Raises PGRST127 for PostgREST's other types, PGRST102 for the rest."""
    content_type = headers.get(b"content-type", JSON).partition(";")[0].strip().lower()
    if content_type in ("", JSON):
        return
    if content_type in ("text/csv", "application/x-www-form-urlencoded"):
        raise not_implemented(f"A body of type {content_type}")
    raise DialectError("PGRST102", 400, f"Content-Type not acceptable: {content_type[:100]}")


@dataclass(slots=True)
class _Parameters:
    filters: list[Node] = field(default_factory=list)
    reserved: dict[str, str] = field(default_factory=dict)


_RESERVED = frozenset(("select", "columns", "on_conflict", "order", "limit", "offset"))


def parse_query(query_string: bytes) -> Query:
    """Read the query string. A key without ``=`` is dropped, as PostgREST does: it is no filter."""
    if not query_string:
        return Query()
    found = _Parameters()
    for part in query_string.split(b"&"):
        raw_key, equals, raw_value = part.partition(b"=")
        if equals:
            _take(found, _decoded(raw_key), _decoded(raw_value))
    if len(found.filters) > MAX_FILTERS:
        raise parse_error("filter", "…", 0, f"at most {MAX_FILTERS} filters are taken")
    if not found.reserved:
        return Query(filters=tuple(found.filters))
    return _with_reserved(found)


def _take(found: _Parameters, key: str, value: str) -> None:
    if key in _RESERVED:
        found.reserved.setdefault(key, value)
    elif key in _TREES:
        found.filters.append(parse_tree(key, value))
    elif key != "apikey":  # supabase clients repeat their key there; its place is a header
        found.filters.append(parse_filter(key, value))


def _with_reserved(found: _Parameters) -> Query:
    reserved = found.reserved
    limit, offset = _integer(reserved.get("limit")), _integer(reserved.get("offset"))
    if limit is not None and limit < 0:
        raise range_error("Limit should be greater than or equal to zero.")
    return Query(
        filters=tuple(found.filters),
        select=parse_select(reserved.get("select", "")),
        order=parse_order(reserved["order"]) if reserved.get("order") else (),
        limit=limit,
        offset=max(0, offset or 0),
        columns=parse_names(reserved["columns"], "columns parameter") if reserved.get("columns") else None,
        on_conflict=parse_names(reserved["on_conflict"], "on_conflict parameter")
        if reserved.get("on_conflict")
        else (),
        is_limited="limit" in reserved or "offset" in reserved,
    )


def range_error(details: str) -> DialectError:
    """PGRST103: the rows asked for do not exist."""
    return DialectError("PGRST103", 416, "Requested range not satisfiable", details=details)


def _decoded(raw: bytes) -> str:
    if b"%" not in raw and b"+" not in raw and raw.isascii():
        return raw.decode("ascii")
    try:
        text = unquote_plus(raw.decode("ascii"), errors="strict")
    except UnicodeDecodeError as error:
        raise parse_error("query string", ascii(raw)[2:-1], 0, "expecting percent-encoded UTF-8") from error
    if "\0" in text:
        raise parse_error("query string", ascii(raw)[2:-1], 0, "unexpected NUL character")
    return text


def _integer(text: str | None) -> int | None:
    """Values that are no integers are ignored, as PostgREST does."""
    return int(text) if text is not None and _INTEGER.fullmatch(text) else None


def _ranged(query: Query, header: str) -> Query:
    """``Range: 0-9`` narrows limit and offset; another form of the header is not meant for us."""
    match = _RANGE.fullmatch(header.strip())
    if match is None:
        return query
    first = int(match[1])
    if match[2] is not None and int(match[2]) < first:
        raise range_error("The lower boundary must be lower than or equal to the upper boundary in the Range header.")
    span = None if match[2] is None else int(match[2]) - first + 1
    limits = [limit for limit in (None if query.limit is None else query.limit - first, span) if limit is not None]
    return Query(
        query.filters, query.select, query.order, max(0, min(limits)) if limits else None, query.offset + first,
        query.columns, query.on_conflict, is_limited=True,
    )  # fmt: skip


@lru_cache(maxsize=256)
def media_type(accept: str) -> str:
    """The best of the two media types that the caller accepts; PGRST107 where it accepts neither."""
    if not accept:
        return JSON
    offers: list[tuple[float, int, str]] = []
    for position, item in enumerate(accept.split(",")):
        name, *parameters = (part.strip().lower() for part in item.split(";"))
        served = _MEDIA_TYPES.get(name)
        if served is not None and "nulls=stripped" not in parameters:
            offers.append((-_quality(parameters), position, served))
    if not offers:
        raise DialectError("PGRST107", 406, f"None of these media types are available: {accept[:200]}")
    return min(offers)[2]


def _quality(parameters: list[str]) -> float:
    for parameter in parameters:
        if re.fullmatch(r"q=[01](?:\.[0-9]{0,3})?", parameter):
            return float(parameter[2:])
    return 1.0


_CHOICES: dict[str, tuple[str, frozenset[str]]] = {
    "return": ("returns", frozenset(("minimal", "headers-only", "representation"))),
    "resolution": ("resolution", frozenset(("merge-duplicates", "ignore-duplicates"))),
    "missing": ("missing", frozenset(("default", "null"))),
    "count": ("count", frozenset(("exact", "planned", "estimated"))),
    "handling": ("strict", frozenset(("strict", "lenient"))),
}


@lru_cache(maxsize=256)
def parse_preferences(header: str) -> Preferences:
    """Read ``Prefer``; the first of a kind wins. Raises PGRST122 where handling is strict and one is not known."""
    chosen: dict[str, object] = {}
    unknown: list[str] = []
    for item in filter(None, (part.strip() for part in header.split(","))):
        kind, _, value = (part.strip() for part in item.partition("="))
        name, values = _CHOICES.get(kind, ("", frozenset()))
        if value in values:
            chosen.setdefault(name, value == "strict" if name == "strict" else value)
        elif kind == "max-affected" and re.fullmatch(r"[0-9]{1,9}", value):
            chosen.setdefault("max_affected", int(value))
        else:
            unknown.append(item)
    if chosen.get("strict") and unknown:
        raise DialectError(
            "PGRST122", 400, "Invalid preferences given with handling=strict",
            details=f"Invalid preferences: {', '.join(unknown)[:200]}",
        )  # fmt: skip
    if not chosen.get("strict"):
        chosen.pop("max_affected", None)
    return Preferences(**chosen)  # type: ignore[arg-type]  # the table above pairs every name with its values


def pins(filters: tuple[Node, ...]) -> dict[str, tuple[str, ...]]:
    """Columns that root filters pin to values: to one by a plain ``eq``, to several by a plain ``in``.

    The first of a name wins, but an ``eq`` wins over an ``in`` on the same column, because it says more.
    """
    found: dict[str, tuple[str, ...]] = {}
    for node in filters:
        if not isinstance(node, Condition) or node.negated or node.field.path:
            continue
        if node.operator == "eq" and isinstance(node.value, str):
            if len(found.get(node.field.name, ())) != 1:
                found[node.field.name] = (node.value,)
        elif node.operator == "in" and isinstance(node.value, tuple):
            found.setdefault(node.field.name, node.value)
    return found


def pins_exactly(filters: tuple[Node, ...], columns: tuple[str, ...]) -> bool:
    """Whether the filters are one plain ``eq`` for each of ``columns`` and nothing else: what PUT asks for."""
    plain = [
        node.field.name
        for node in filters
        if isinstance(node, Condition)
        and node.operator == "eq"
        and not node.negated
        and node.field == Field(node.field.name)
    ]
    return len(plain) == len(filters) and sorted(plain) == sorted(columns)
