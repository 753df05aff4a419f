"""The body of a write, checked and brought into one shape: rows, and the same rows as the text of a JSON array.

The resource of a row is derived from what is read here, and the row is written from what the database reads in the
text. Both take the last of a key that stands twice; where a number has no exact form here, ``exact_rows`` has its
digits.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn
from urllib.parse import parse_qsl

import orjson

from gateway.errors import BodyTooLarge, DialectError
from gateway.tables.dialect import csv
from gateway.tables.dialect.json_pieces import in_pieces
from gateway.tables.dialect.media import BodyType, type_not_acceptable

MAX_ROWS = 100_000
"""Rows of one body."""


@dataclass(frozen=True, slots=True)
class Payload:
    """The rows of a body. ``text`` is the same rows as the text of one JSON array, as the caller sent them.

    ``columns`` are the keys that are written, sorted.
    """

    text: str
    rows: Sequence[Mapping[str, Any]]
    columns: tuple[str, ...]

    def exact_rows(self) -> Sequence[Mapping[str, Any]]:
        """Return the rows with every number as the text that stands in the body, which is what the database reads."""
        loads = partial(json.loads, parse_int=str, parse_float=str, parse_constant=_no_constant)
        try:
            rows: list[Mapping[str, Any]] = in_pieces(self.text.encode(), loads)
        except (ValueError, RecursionError) as error:
            raise _invalid() from error
        return rows


def read(kind: BodyType, content: bytes, columns: tuple[str, ...] | None) -> Payload:
    """Read a body of any type that rows can come in. Raises PGRST102 for what cannot be read."""
    if kind == "json":
        return parse(content, columns)
    if kind == "csv":
        names, lines = csv.parse(content)
        _check_count(lines)
        return _made(lines, names if columns is None else columns)
    if kind == "urlencoded":
        row = _urlencoded(content)
        return _made([row], tuple(row) if columns is None else columns)
    raise type_not_acceptable("text/plain" if kind == "text" else "application/octet-stream")


def parse(body: bytes, columns: tuple[str, ...] | None) -> Payload:
    """Read a JSON body. ``columns`` (from the query) names the keys to use; without it all rows must have the same.

    A scalar stands for no row at all. Raises PGRST102 for what is no JSON, or an array of anything but like objects,
    ``BodyTooLarge`` for too many of them.
    """
    try:
        document = in_pieces(body, orjson.loads)
    except orjson.JSONDecodeError as error:
        raise _invalid() from error
    if isinstance(document, dict):
        return Payload(f"[{body.decode()}]", (document,), _sorted(document) if columns is None else columns)
    if not isinstance(document, list):
        return Payload("[]", (), columns or ())
    _check_count(document)
    if not all(isinstance(row, dict) for row in document):
        raise DialectError("PGRST102", 400, "All object keys must match")
    return Payload(body.decode(), document, _common_keys(document) if columns is None else columns)


def _urlencoded(content: bytes) -> dict[str, str]:
    try:
        return dict(parse_qsl(content.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=10_000))
    except ValueError as error:
        raise DialectError("PGRST102", 400, "Empty or invalid form") from error


def _made(rows: Sequence[Mapping[str, str | None]], columns: Sequence[str]) -> Payload:
    """Return a payload of rows that did not come as JSON."""
    return Payload(orjson.dumps(rows).decode(), rows, tuple(sorted(columns)))


def _check_count(rows: Sequence[object]) -> None:
    if len(rows) > MAX_ROWS:
        raise BodyTooLarge(f"The body has more than {MAX_ROWS} rows.", advice="Split the write.")


def _common_keys(rows: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    if not rows:
        return ()
    keys = rows[0].keys()
    if any(row.keys() != keys for row in rows):
        raise DialectError("PGRST102", 400, "All object keys must match")
    return _sorted(rows[0])


def _sorted(row: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(sorted(row)) if len(row) > 1 else tuple(row)


def _invalid() -> DialectError:
    return DialectError("PGRST102", 400, "Empty or invalid json")


def _no_constant(_: str) -> NoReturn:
    raise ValueError("NaN and Infinity are no JSON")
