"""The body of a write: JSON text, checked and brought into one shape, an array of objects."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from gateway.errors import DialectError


@dataclass(frozen=True, slots=True)
class Payload:
    """The rows of a body. ``text`` is the same rows as the text of one JSON array, as the caller sent them.

    ``columns`` are the keys that are written, sorted.
    """

    text: str
    rows: Sequence[Mapping[str, Any]]
    columns: tuple[str, ...]


def parse(body: bytes, columns: tuple[str, ...] | None) -> Payload:
    """Read a body. ``columns`` (from the query) names the keys to use; without it all rows must have the same keys.

    Raises PGRST102 for what is no JSON object or array of objects.
    """
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise DialectError("PGRST102", 400, "Empty or invalid json") from error
    if isinstance(document, dict):
        return Payload(f"[{body.decode()}]", (document,), _sorted(document) if columns is None else columns)
    if not isinstance(document, list) or not all(isinstance(row, dict) for row in document):
        raise DialectError("PGRST102", 400, "Empty or invalid json", details="Send an object or an array of objects.")
    return Payload(body.decode(), document, _common_keys(document) if columns is None else columns)


def _common_keys(rows: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    if not rows:
        return ()
    keys = rows[0].keys()
    if any(row.keys() != keys for row in rows):
        raise DialectError("PGRST102", 400, "All object keys must match")
    return _sorted(rows[0])


def _sorted(row: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(sorted(row)) if len(row) > 1 else tuple(row)
