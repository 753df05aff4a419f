"""The answers to errors: PostgREST's four keys and its status for each error.

Code in the database can raise an error with SQLSTATE ``PGRST``. Its message and detail are JSON, and all of the answer.
It cannot set headers that frame a message, or headers that belong to the gateway.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from gateway.errors import BodyTooLarge, DialectError, GatewayError, ResourceMismatch, RowChanged, SqlError
from gateway.tables.dialect.request import JSON
from gateway.tables.dialect.response import BODILESS, Headers, Response

# PostgREST's statuses by SQLSTATE; the longest prefix wins, and whatever is not here is 400. They differ about 54001:
# what is nested too deeply for the database was so in the request. Errors of the server itself are not here: the
# door to it (gateway.db.database) has made an ``Unavailable`` of them.
_STATUS_OF_SQLSTATE = {
    "23503": 409, "23505": 409, "42501": 403, "42P01": 404, "42883": 404, "25006": 405, "21000": 500,
    "54001": 400, "09": 500, "25": 500, "2D": 500, "38": 500, "39": 500, "3B": 500, "54": 500, "55": 500, "58": 500,
    "F0": 500, "HV": 500, "XX": 500, "P0": 500, "P0001": 400, "42P17": 500, "0L": 403, "0P": 403, "28": 403,
}  # fmt: skip
# Their details or hints tell what else there is in the schema.
_REVEALING = frozenset(("PGRST106", "PGRST200", "PGRST201", "PGRST202", "PGRST203", "PGRST204", "PGRST205"))
MISMATCH = "FN422"
"""The SQLSTATE with which a statement refuses a touched row without a claim."""
ANSWER = "#answer"
"""A statement refuses this in place of a row: its own answer, which is too large."""
_CODE = re.compile(r"[A-Za-z0-9_.-]{1,64}")

_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
# Visible characters of Latin-1, spaces and tabs; above all no end of line.
_VALUE = re.compile(r"[\t\x20-\x7e\xa0-\xff]{0,8000}")
_OURS = frozenset((
    "connection", "content-length", "content-range", "date", "etag", "keep-alive", "preference-applied", "proxy-status",
    "server", "te", "trailer", "transfer-encoding", "upgrade", "www-authenticate", "x-request-id",
))  # fmt: skip
_OUR_STARTS = ("access-control-", "fencing-", "proxy-", "x-fencing-")
_MESSAGE_HINT = (
    "MESSAGE must be a JSON object with obligatory keys: 'code', 'message' and optional keys: 'details', 'hint'."
)
_DETAIL_HINT = "DETAIL must be a JSON object with obligatory keys: 'status', 'headers' and optional key: 'status_text'."


def of_database(error: SqlError, *, known_caller: bool, verbose: bool) -> GatewayError:
    """Return an error of the database as PostgREST answers it: the SQLSTATE is the code.

    ``known_caller``: whether a missing privilege is final, or credentials could help. Without ``verbose`` the
    database's details and hints are left out, because they may quote rows. An error raised as ``PGRST`` is meant for
    the caller.
    """
    if is_of_answer(error):
        return too_large(None)
    if error.sqlstate == MISMATCH and error.detail:
        # From the guard of a table that a cascade or a trigger of the write has reached.
        return ResourceMismatch(error.message, advice=error.hint or "")
    if error.sqlstate == MISMATCH:
        return mismatch(error.message or None, error.hint)
    if error.sqlstate == "PGRST":
        return raised(error)
    status = _status(error.sqlstate, error.message)
    return DialectError(
        error.sqlstate, 401 if error.sqlstate == "42501" and not known_caller else status, error.message,
        details=error.detail if verbose else None, hint=error.hint if verbose else None,
    )  # fmt: skip


def is_of_answer(error: SqlError) -> bool:
    """Return whether a statement was undone because its answer would be too large."""
    return error.sqlstate == MISMATCH and error.message == ANSWER


def too_large(most: int | None) -> BodyTooLarge:
    limit = "the gateway answers with" if most is None else f"{most:,} bytes"
    return BodyTooLarge(
        f"The answer has more than {limit}. Nothing was written.",
        advice="Ask for fewer rows at one time, with limit and offset, or for fewer columns, with select.",
    )


def mismatch(touched: str | None, advice: str | None = None) -> ResourceMismatch:
    """Return the error for a touched row without a claim. ``touched`` is its name, None without a name."""
    if not touched:
        return ResourceMismatch("The write touches a row whose columns do not make up a resource name.", advice=advice)
    message = f"The write touches {touched}, which its token does not cover."
    return ResourceMismatch(message, advice=advice, facts={"touched": touched})


def answer(failure: GatewayError, *, verbose: bool = True) -> Response:
    """Any error as the dialect's body: always four keys, each a string or null."""
    headers: Headers = []
    if _CODE.fullmatch(failure.code):  # one that was raised may be any text
        # postgrest-py looks for the code under this name where an answer has no body, as those to HEAD.
        headers.append((b"proxy-status", f"PostgREST; error={failure.code}".encode()))
    headers += failure.retry_headers
    if failure.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if isinstance(failure, RowChanged) and failure.facts["etag"] is not None:
        headers.append((b"etag", str(failure.facts["etag"]).encode("latin-1")))
    if isinstance(failure, DialectError):
        own = {name for name, _ in failure.headers}
        headers = [pair for pair in (JSON.content_type, *headers) if pair[0] not in own] + list(failure.headers)
    else:
        headers.append(JSON.content_type)
    if failure.status in BODILESS:
        # A raised error may set such a status. A client would read a body as the beginning of the next answer.
        return Response(failure.status, [pair for pair in headers if pair[0] != b"content-type"], code=failure.code)
    body = orjson.dumps(_document(failure, verbose=verbose))
    headers.append((b"content-length", str(len(body)).encode()))
    return Response(failure.status, headers, body, failure.code)


def _document(failure: GatewayError, *, verbose: bool) -> dict[str, str | None]:
    if isinstance(failure, DialectError):
        details, hint = failure.details, failure.hint
    else:
        details, hint = _details(failure), failure.advice or None
    if not verbose and failure.code in _REVEALING:
        details = hint = None
    return {"code": failure.code, "message": failure.message, "details": details, "hint": hint}


def _details(failure: GatewayError) -> str | None:
    """Return the facts of an error as one sentence: postgrest clients show their users only text."""
    facts = failure.facts
    if "raised_by" not in facts:
        return ", ".join(f"{name}: {value}" for name, value in facts.items()) or None
    return (
        f"Resource {facts['resource']}: the write presented token {facts['token']}, the fence is {facts['fence']}, "
        f"raised by {facts['raised_by']} at {facts['raised_at']}; rejection {facts['rejection']}."
    )


def _status(sqlstate: str, message: str) -> int:
    if sqlstate == "21000" and message.endswith("requires a WHERE clause"):
        return 400
    if sqlstate == "22023" and message.startswith("role") and message.endswith("does not exist"):
        return 401
    if sqlstate.startswith("PT"):
        return int(sqlstate[2:]) if sqlstate[2:].isdigit() and 200 <= int(sqlstate[2:]) <= 599 else 500
    for prefix in (sqlstate, sqlstate[:2]):
        if prefix in _STATUS_OF_SQLSTATE:
            return _STATUS_OF_SQLSTATE[prefix]
    return 400


def raised(error: SqlError) -> DialectError:
    """Return the answer of an error with SQLSTATE ``PGRST``: its message and detail, or else PGRST121."""
    try:
        message = _object(error.message)
        code, text = _text(message["code"]), _text(message["message"])
        details, hint = _optional(message.get("details")), _optional(message.get("hint"))
    except (KeyError, TypeError, ValueError):
        return _unreadable(f"Invalid JSON value for MESSAGE: '{error.message[:500]}'", _MESSAGE_HINT)
    if error.detail is None:
        return _unreadable("DETAIL is missing in the RAISE statement", _DETAIL_HINT)
    try:
        detail = _object(error.detail)
        status = detail["status"]
        if type(status) is not int or not 200 <= status <= 599 or not isinstance(detail["headers"], dict):
            raise TypeError
        headers = _allowed([(name, _text(value)) for name, value in detail["headers"].items()])
    except (KeyError, TypeError, ValueError):
        return _unreadable(f"Invalid JSON value for DETAIL: '{error.detail[:500]}'", _DETAIL_HINT)
    return DialectError(code, status, text, details=details, hint=hint, headers=headers)


def _allowed(pairs: Iterable[tuple[str, str]]) -> Headers:
    found: Headers = []
    for name, value in pairs:
        if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
            raise ValueError(name)
        lower = name.lower()
        if lower not in _OURS and not lower.startswith(_OUR_STARTS):
            found.append((lower.encode(), value.encode("latin-1")))
    return found


def _object(text: str) -> Mapping[str, Any]:
    document = orjson.loads(text)
    if not isinstance(document, dict):
        raise TypeError
    return document


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _optional(value: Any) -> str | None:
    return None if value is None else _text(value)


def _unreadable(details: str, hint: str) -> DialectError:
    return DialectError(
        "PGRST121", 500, "Could not parse JSON in the \"RAISE SQLSTATE 'PGRST'\" error", details=details, hint=hint
    )
