"""What the caller gets: statuses, headers and bodies of the dialect, for successes and for every error."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias
from urllib.parse import quote

import orjson

from gateway.errors import DialectError, GatewayError, ResourceMismatch, SqlError
from gateway.fencing.token import Token
from gateway.tables.catalog import Table
from gateway.tables.request import Preferences, Request, range_error

Headers: TypeAlias = list[tuple[bytes, bytes]]

_CONTENT_TYPE = (b"content-type", b"application/json; charset=utf-8")
_OBJECT_TYPE = (b"content-type", b"application/vnd.pgrst.object+json; charset=utf-8")
_MAX_RESOURCES_HEADER = 4096

# PostgREST's statuses by SQLSTATE; the longest prefix wins, and whatever is not here is 400.
_STATUS_OF_SQLSTATE = {
    "23503": 409, "23505": 409, "42501": 403, "42P01": 404, "42883": 404, "25006": 405, "21000": 500,
    "08": 503, "53": 503, "57P01": 503, "53400": 500,
    "09": 500, "25": 500, "2D": 500, "38": 500, "39": 500, "3B": 500, "40": 500, "54": 500, "55": 500, "57": 500,
    "58": 500, "F0": 500, "HV": 500, "XX": 500, "P0": 500, "P0001": 400, "42P17": 500, "0L": 403, "0P": 403, "28": 403,
}  # fmt: skip


class Row(Protocol):
    """A row of a result, whatever brought it here."""

    def __getitem__(self, name: str, /) -> Any: ...


@dataclass(frozen=True, slots=True)
class Response:
    """One answer, finished."""

    status: int
    headers: Headers = field(default_factory=list)
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Written:
    """What a write did: rows touched, those of them that are new, and what was asked back, as JSON texts."""

    touched: int
    inserted: int = 0
    body: str | None = None
    location: str | None = None

    @classmethod
    def from_row(cls, row: Row) -> "Written":
        return cls(row["touched"], row["inserted"], row["body"], row["location"])


@dataclass(frozen=True, slots=True)
class Accepted:
    """Under which fence a write was accepted. Empty where nothing was claimed (observe mode)."""

    token: Token | None = None
    resources: Sequence[str] = ()


def read(request: Request, row: Row, path: str, query_string: bytes) -> Response:
    """The answer to GET and HEAD. Raises PGRST103 for an offset beyond the end, PGRST116 where not one row is there."""
    touched, total, offset = row["touched"], row["total"], request.query.offset
    if total is not None and offset > total:
        raise range_error(f"An offset of {offset} was requested, but there are only {total} rows.")
    body: str = row["body"]
    headers: Headers = [
        _OBJECT_TYPE if request.singular else _CONTENT_TYPE,
        (b"content-range", _range(offset, touched, "*" if total is None else str(total))),
        (b"content-location", _content_location(path, query_string)),
    ]
    if request.singular:
        body = single(body, touched)
    encoded = body.encode()
    headers.append((b"content-length", str(len(encoded)).encode()))
    _add_applied(headers, request)
    status = 206 if total is not None and touched < total else 200
    return Response(status, headers, b"" if request.method == "HEAD" else encoded)


def write(request: Request, table: Table, written: Written, accepted: Accepted, path: str) -> Response:
    """The answer to a write that is durable."""
    headers: Headers = []
    if accepted.token is not None:
        headers.append((b"fencing-token", str(accepted.token).encode()))
    if accepted.resources:
        headers.append((b"fencing-resource", _bounded(accepted.resources)))
    if request.method != "PUT":
        headers.append((b"content-range", _write_range(request, written.touched)))
    if written.location is not None and written.touched == 1:
        headers.append((b"location", location(path, table, orjson.loads(written.location))))
    _add_applied(headers, request)
    status = _status(request, written)
    if not request.wants_rows:
        if request.method == "POST":
            headers.append((b"content-length", b"0"))
        return Response(status, headers)
    body = written.body or "[]"
    encoded = (single(body, written.touched) if request.singular else body).encode()
    headers += (_OBJECT_TYPE if request.singular else _CONTENT_TYPE, (b"content-length", str(len(encoded)).encode()))
    return Response(status, headers, encoded)


def options(table: Table) -> Response:
    """What the table permits. PUT needs a primary key."""
    writes = [] if table.kind in ("m", "f") else ["POST", *(["PUT"] if table.primary_key else []), "PATCH", "DELETE"]
    allow = ",".join(["OPTIONS", "GET", "HEAD", *writes])
    return Response(200, [(b"allow", allow.encode()), (b"content-length", b"0")])


def single(body: str, touched: int) -> str:
    """The one element of a JSON array of one row; PGRST116 where it is not one."""
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


def location(path: str, table: Table, keys: Sequence[Any]) -> bytes:
    """Where the one new row is, as a path with filters on its primary key."""
    filters = (
        f"{quote(name)}={'is.null' if key is None else 'eq.' + quote(key, safe='')}"
        for name, key in zip(table.primary_key, keys, strict=True)
    )
    return f"{quote(path)}?{'&'.join(filters)}".encode()


def sql_error(error: SqlError) -> GatewayError:
    """An error of the database as PostgREST answers it: the SQLSTATE is the code."""
    if error.sqlstate == "FN422":
        return mismatch(error.message or None)
    return DialectError(
        error.sqlstate, _sqlstate_status(error.sqlstate, error.message), error.message,
        details=error.detail, hint=error.hint,
    )  # fmt: skip


def mismatch(touched: str | None) -> ResourceMismatch:
    """A row was touched that no claimed resource covers. ``touched`` is its name; None where it has no name."""
    if not touched:
        return ResourceMismatch("The write touches a row whose columns do not make up a resource name.")
    return ResourceMismatch(f"The write touches {touched}, which its token does not cover.", facts={"touched": touched})


def error(failure: GatewayError) -> Response:
    """Any error as the dialect's body: always four keys, each a string or null."""
    headers: Headers = [_CONTENT_TYPE]
    if failure.retry_after is not None:
        headers.append((b"retry-after", str(failure.retry_after).encode()))
    if failure.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    body = orjson.dumps({
        "code": failure.code,
        "message": failure.message,
        "details": failure.details if isinstance(failure, DialectError) else _details(failure),
        "hint": failure.hint if isinstance(failure, DialectError) else failure.advice or None,
    })  # fmt: skip
    headers.append((b"content-length", str(len(body)).encode()))
    return Response(failure.status, headers, body)


def _details(failure: GatewayError) -> str | None:
    """The facts of an error as one sentence: postgrest clients show their users nothing but text."""
    facts = failure.facts
    if "rejection" not in facts:
        return ", ".join(f"{name}: {value}" for name, value in facts.items()) or None
    return (
        f"Resource {facts['resource']}: the write presented token {facts['token']}, the fence is {facts['fence']}, "
        f"raised by {facts['raised_by']} at {facts['raised_at']}; rejection {facts['rejection']}."
    )


def _sqlstate_status(sqlstate: str, message: str) -> int:
    if sqlstate == "21000" and message.endswith("requires a WHERE clause"):
        return 400
    if sqlstate.startswith("PT") and sqlstate[2:].isdigit() and 200 <= int(sqlstate[2:]) <= 599:
        return int(sqlstate[2:])
    for prefix in (sqlstate, sqlstate[:2]):
        if prefix in _STATUS_OF_SQLSTATE:
            return _STATUS_OF_SQLSTATE[prefix]
    return 400


def _status(request: Request, written: Written) -> int:
    if request.method == "POST":
        merges = request.preferences.resolution == "merge-duplicates"
        return 200 if merges and not written.inserted else 201
    if not request.wants_rows:
        return 204
    return 201 if request.method == "PUT" and written.inserted else 200


def _write_range(request: Request, touched: int) -> bytes:
    total = "*" if request.preferences.count is None else str(touched)
    if request.method == "PATCH":
        return _range(0, touched, total)
    return f"*/{total}".encode()


def _range(offset: int, touched: int, total: str) -> bytes:
    if touched == 0:
        return f"*/{total}".encode()
    return f"{offset}-{offset + touched - 1}/{total}".encode()


def _add_applied(headers: Headers, request: Request) -> None:
    applied = ", ".join(_applied(request.method, request.preferences))
    if applied:
        headers.append((b"preference-applied", applied.encode()))


def _applied(method: str, preferences: Preferences) -> Iterable[str]:
    """The honoured preferences, in PostgREST's fixed order."""
    writes = method not in ("GET", "HEAD")
    if preferences.resolution is not None and method == "POST":
        yield f"resolution={preferences.resolution}"
    if preferences.missing is not None and method in ("POST", "PATCH"):
        yield f"missing={preferences.missing}"
    if preferences.returns is not None and writes:
        yield f"return={preferences.returns}"
    if preferences.count == "exact":
        yield "count=exact"
    if preferences.strict is not None:
        yield "handling=strict" if preferences.strict else "handling=lenient"
    if preferences.max_affected is not None and method in ("PATCH", "DELETE"):
        yield f"max-affected={preferences.max_affected}"


def _bounded(resources: Sequence[str]) -> bytes:
    """All names, or as many as a header can hold, with an ellipsis: names never contain a comma."""
    joined = ", ".join(resources)
    if len(joined) > _MAX_RESOURCES_HEADER:
        joined = joined[: joined.rindex(",", 0, _MAX_RESOURCES_HEADER)] + ", ..."
    return joined.encode()


def _content_location(path: str, query_string: bytes) -> bytes:
    if not query_string:
        return quote(path).encode()
    return quote(path).encode() + b"?" + b"&".join(sorted(query_string.split(b"&")))
