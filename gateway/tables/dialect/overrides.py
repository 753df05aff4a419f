"""Answers set by code in the database: by settings of its transaction, or by raising ``PGRST``.

A function or trigger may set ``response.headers`` (a JSON array of objects with one key each) and ``response.status``.
It may also raise an error with SQLSTATE ``PGRST`` whose message and detail are JSON. It cannot set headers that frame a
message, or headers that belong to the gateway.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import orjson

from gateway.errors import DialectError, SqlError

Headers: TypeAlias = list[tuple[bytes, bytes]]

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


@dataclass(frozen=True, slots=True)
class Overrides:
    """The settings for an answer. ``status`` None: it was not set."""

    status: int | None
    headers: Headers


def read(headers: str | None, status: str | None) -> Overrides | None:
    """From the texts of the two settings; None where neither is set. Raises PGRST111 and PGRST112."""
    if not headers and not status:
        return None
    return Overrides(status_of(status), headers_of(headers))


def status_of(text: str | None) -> int | None:
    """Return the status that was set, if any. Raise PGRST112 for an invalid one."""
    if not text:
        return None
    if re.fullmatch(r"[0-9]{3}", text) and 200 <= int(text) <= 599:
        return int(text)
    raise DialectError("PGRST112", 500, "response.status guc must be a valid status code")


def headers_of(text: str | None) -> Headers:
    """Return the headers that were set, without the forbidden ones. Raise PGRST111 for invalid ones."""
    if not text:
        return []
    try:
        document = orjson.loads(text)
        if not isinstance(document, list):
            raise TypeError
        return _allowed([_one_pair(one) for one in document])
    except (TypeError, ValueError) as error:
        raise DialectError(
            "PGRST111", 500,
            "response.headers guc must be a JSON array composed of objects with a single key and a string value",
        ) from error  # fmt: skip


def replaced(headers: Headers, others: Headers) -> Headers:
    """``headers``, in which ``others`` take the place of those of the same names. Several others may have one name."""
    names = {name for name, _ in others}
    return [pair for pair in headers if pair[0] not in names] + others


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


def _one_pair(document: Any) -> tuple[str, str]:
    if not isinstance(document, dict) or len(document) != 1:
        raise TypeError
    ((name, value),) = document.items()
    return name, _text(value)


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
