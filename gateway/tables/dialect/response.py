"""The answers to successful requests: statuses, headers and bodies of the dialect."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple, Protocol, TypeAlias
from urllib.parse import quote

import orjson

from gateway.errors import DialectError
from gateway.fencing.decision import Fence
from gateway.fencing.headers import would_refuse
from gateway.fencing.token import Token
from gateway.http import origins
from gateway.tables.catalog import Table
from gateway.tables.dialect.etags import Preconditions, row_changed
from gateway.tables.dialect.query import range_error
from gateway.tables.dialect.request import WRITES, Preferences, Request

Headers: TypeAlias = list[tuple[bytes, bytes]]

# These statuses go without a body: one would be taken for the beginning of the next answer.
BODILESS = frozenset((204, 205, 304))

_MAX_RESOURCES_HEADER = 4096

# One path has one ETag, but an answer in several forms, and in several schemas.
_VARY = (b"vary", b"Accept, Accept-Profile")
_OF_NOTHING_NEW = frozenset((b"etag", b"vary", b"content-location"))


class Row(Protocol):
    """A row of a result, whatever brought it here."""

    def __getitem__(self, name: str, /) -> Any: ...


class Response(NamedTuple):
    """An answer. ``code``: of the error that it tells, if any."""

    status: int
    headers: Headers
    body: bytes = b""
    code: str | None = None


@dataclass(frozen=True, slots=True)
class Written:
    """The result of a write: the touched rows, the new ones among them, and the returned rows, as texts.

    ``total``: for a call, the number of rows beyond this page, if they were counted. ``etag``: of the one row written,
    if asked for.
    """

    touched: int
    inserted: int = 0
    body: str | None = None
    location: str | None = None
    total: int | None = None
    etag: str | None = None

    @classmethod
    def from_row(cls, row: Row) -> "Written":
        return cls(row["touched"], row["inserted"], row["body"], row["location"], etag=row["etag"])


@dataclass(frozen=True, slots=True)
class Accepted:
    """Under which fences a write was accepted. Empty where nothing was claimed (observe mode).

    ``pairs``: the fence of each resource, where the caller showed a token for each. ``would_refuse``: the reasons, with
    their fences, for which an enforcing rule would have refused the write.
    """

    token: Token | None = None
    resources: Sequence[str] = ()
    pairs: Sequence[tuple[str, Token]] = ()
    would_refuse: Sequence[tuple[str, Fence | None]] = ()


def read(request: Request, row: Row, path: str, query_string: bytes) -> Response:
    """Return the answer to GET and HEAD. Raise PGRST103 beyond the end, PGRST116 unless there is one row."""
    touched, total, body = row["touched"], row["total"], row["body"]
    headers: Headers = [
        request.media.content_type,
        (b"content-range", _page(request.query.offset, touched, total)),
        (b"content-location", _content_location(path, query_string)),
    ]
    if request.media.singular:
        body = single(body, touched)
    etag = row["etag"] if touched == 1 else None
    if etag is not None:
        headers += (etag_header(etag), _VARY)
    if request.preconditions is not None and not request.preconditions.met_by(etag):
        return _not_as_expected(request.preconditions, etag, headers)
    encoded = body.encode()
    headers.append((b"content-length", str(len(encoded)).encode()))
    _add_applied(headers, applied(request.method, request.preferences))
    return Response(_read_status(touched, total), headers, b"" if request.method == "HEAD" else encoded)


def _not_as_expected(wanted: Preconditions, etag: str | None, headers: Headers) -> Response:
    """Return the answer to a read whose condition fails: nothing new, or (``If-Match``) another version."""
    if wanted.match is not None and not wanted.match.match_strongly(etag):
        raise row_changed(etag)
    return Response(304, [pair for pair in headers if pair[0] in _OF_NOTHING_NEW])


def call(request: Request, written: Written, accepted: Accepted, *, sets: bool, nothing: bool) -> Response:
    """Return the answer to the call of a function. ``sets``: it returns rows; ``nothing``: it returns nothing.

    Raise PGRST103 for an offset beyond the end, PGRST116 unless there is one row.
    """
    headers, total = fences(accepted), written.total
    headers.append((b"content-range", _page(request.query.offset, written.touched, total)))
    _add_applied(headers, applied("RPC", request.preferences))
    if nothing:
        return Response(204, headers)
    body = written.body or ""
    encoded = (single(body, written.touched) if request.media.singular and sets else body).encode()
    headers += (request.media.content_type, (b"content-length", str(len(encoded)).encode()))
    status = _read_status(written.touched, total)
    return Response(status, headers, b"" if request.method == "HEAD" else encoded)


def _page(offset: int, touched: int, total: int | None) -> bytes:
    """Return which rows an answer has. Raise PGRST103, with the number of rows there are, for an offset beyond them."""
    if total is not None and offset > total:
        error = range_error(f"An offset of {offset} was requested, but there are only {total} rows.")
        error.headers = ((b"content-range", f"*/{total}".encode()),)
        raise error
    shown = "*" if total is None else total
    return f"{offset}-{offset + touched - 1}/{shown}".encode() if touched else f"*/{shown}".encode()


def fences(accepted: Accepted) -> Headers:
    headers: Headers = []
    if accepted.pairs:
        headers.append((b"fencing-token", _bounded([f"{resource}={token}" for resource, token in accepted.pairs])))
    elif accepted.token is not None:
        headers.append((b"fencing-token", str(accepted.token).encode()))
    if accepted.resources:
        headers.append((b"fencing-resource", _bounded(accepted.resources)))
    if accepted.would_refuse:
        headers += would_refuse(accepted.would_refuse)
    return headers


def fence(token: Token, resource: str) -> Headers:
    """Return what ``fences`` returns for a write that was accepted under one fence."""
    return [(b"fencing-token", str(token).encode()), (b"fencing-resource", resource.encode())]


def write(request: Request, table: Table, written: Written, accepted: Accepted, path: str) -> Response:
    headers = fences(accepted)
    if request.method != "PUT":
        headers.append((b"content-range", _write_range(request, written.touched)))
    if written.location is not None and written.touched == 1 and table.primary_key:
        headers.append((b"location", location(path, table, orjson.loads(written.location))))
    if written.etag is not None:
        headers.append(etag_header(written.etag))
    _add_applied(headers, applied(request.method, _without_resolution(request, table)))
    status = _status(request, written)
    if not request.wants_rows:
        if request.method == "POST":
            headers.append((b"content-length", b"0"))
        return Response(status, headers)
    body = written.body
    if body is None:  # no rows: PostgREST's CSV has a line of names that are not there
        body = "\n" if request.media.form == "csv" else "[]"
    encoded = (single(body, written.touched) if request.media.singular else body).encode()
    headers += (request.media.content_type, (b"content-length", str(len(encoded)).encode()))
    return Response(status, headers, encoded)


def etag_header(etag: str) -> tuple[bytes, bytes]:
    return (b"etag", f'"{etag}"'.encode("latin-1"))


def single(body: str, touched: int) -> str:
    """Return the one element of a JSON array of one row; raise PGRST116 for any other number."""
    check_single(touched)
    return body.strip()[1:-1]


def check_single(touched: int) -> None:
    """PGRST116, unless exactly one row is there for a caller that asked for one object."""
    if touched != 1:
        raise DialectError(
            "PGRST116",
            406,
            "Cannot coerce the result to a single JSON object",
            details=f"The result contains {touched} rows",
        )


def check_affected(request: Request, touched: int) -> None:
    """PGRST124, where more rows are affected than the caller allows."""
    limit = request.preferences.max_affected
    if limit is not None and touched > limit:
        raise DialectError(
            "PGRST124",
            400,
            "Query result exceeds max-affected preference constraint",
            details=f"The query affects {touched} rows",
        )


def check_put(request: Request, touched: int) -> None:
    """PGRST115, where a PUT has found that its body is another row than its URL."""
    if request.method == "PUT" and touched != 1:
        raise DialectError("PGRST115", 400, "Payload values do not match URL in primary key column(s)")


def location(path: str, table: Table, keys: Sequence[Any]) -> bytes:
    """Return the address of the one new row, as a path with filters on its primary key."""
    filters = (
        f"{quote(name)}={'is.null' if key is None else 'eq.' + quote(key, safe='')}"
        for name, key in zip(table.primary_key, keys, strict=True)
    )
    return f"{quote(path)}?{'&'.join(filters)}".encode()


def _read_status(touched: int, total: int | None) -> int:
    return 206 if total is not None and touched < total else 200


def _status(request: Request, written: Written) -> int:
    if request.method == "POST":
        merges = request.preferences.resolution == "merge-duplicates"
        return 200 if merges and not written.inserted else 201
    if not request.wants_rows:
        return 204
    return 201 if request.method == "PUT" and written.inserted else 200


def _write_range(request: Request, touched: int) -> bytes:
    total = touched if request.preferences.count in ("exact", "estimated") else None
    if request.method == "PATCH":
        return _page(0, touched, total)
    return f"*/{'*' if total is None else total}".encode()


def _without_resolution(request: Request, table: Table) -> Preferences:
    """Return the preferences. A resolution of conflicts is applied only if there can be any."""
    if request.preferences.resolution is None or request.query.on_conflict or table.primary_key:
        return request.preferences
    return replace(request.preferences, resolution=None)


def _add_applied(headers: Headers, preferences: Sequence[str]) -> None:
    if preferences:
        headers.append((b"preference-applied", ", ".join(preferences).encode()))


def applied(method: str, preferences: Preferences) -> Sequence[str]:
    """Return the honoured preferences, in PostgREST's fixed order. ``method`` RPC: a call."""
    writes, names = method in WRITES, list[str]()
    if preferences.resolution is not None and method == "POST":
        names.append(f"resolution={preferences.resolution}")
    if preferences.missing is not None and method in ("POST", "PATCH"):
        names.append(f"missing={preferences.missing}")
    if preferences.returns is not None and writes:
        names.append(f"return={preferences.returns}")
    if preferences.count is not None:
        names.append(f"count={preferences.count}")
    if preferences.strict is not None:
        names.append("handling=strict" if preferences.strict else "handling=lenient")
    if preferences.timezone is not None:
        names.append(f"timezone={preferences.timezone}")
    if preferences.max_affected is not None and method in ("PATCH", "DELETE", "RPC"):
        names.append(f"max-affected={preferences.max_affected}")
    return names


def _bounded(resources: Sequence[str]) -> bytes:
    """All names, or as many as a header can hold, with an ellipsis: names never contain a comma."""
    joined = ", ".join(resources)
    if len(joined) > _MAX_RESOURCES_HEADER:
        joined = joined[: joined.rindex(",", 0, _MAX_RESOURCES_HEADER)] + ", ..."
    return joined.encode()


def _content_location(path: str, query_string: bytes) -> bytes:
    """Return one address for all orders of its parameters, and without the key that some clients repeat there."""
    if b"&" in query_string or b"apikey" in query_string:
        parts = sorted(part for part in query_string.split(b"&") if part and not part.startswith(b"apikey="))
        query_string = b"&".join(parts)
    return b"%b?%b" % (_quoted(path), query_string) if query_string else _quoted(path)


@lru_cache
def _quoted(path: str) -> bytes:
    return quote(path).encode()


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
    """The origins whose pages in a browser may read answers: exact ones, or ``*`` for all. None by default.

    Callers prove themselves by a header, never by what a browser adds on its own. So no answer allows credentials.
    ``gateway/http/origins.py`` checks which pages may write.
    """

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
