"""Pages of keys: order, prefix, delimiter, markers, and the token that leads to the next page."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from tests.doubles.s3.errors import S3Error

# No key sorts behind a prefix followed by this: the highest code point of UTF-8's order.
_BEHIND_ALL = "\U0010ffff"

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class Page:
    """The keys and common prefixes of one page, in S3's order (UTF-8 bytes); no token means it is the last.

    `last` is the last key or prefix of a page that is not the last.
    """

    keys: tuple[str, ...]
    prefixes: tuple[str, ...]
    next_token: str | None
    last: str | None


@dataclass(frozen=True, slots=True)
class RowPage(Generic[Row]):
    """One page of a list that has several rows for a key. `next_key` and `next_id` lead on, None on the last page."""

    rows: tuple[Row, ...]
    prefixes: tuple[str, ...]
    next_key: str | None
    next_id: str | None


def page_of(
    keys: Iterable[str], *, prefix: str, delimiter: str, limit: int, after: str = "", token: str | None = None
) -> Page:
    """Cut one page out of all keys. Raises InvalidArgument for a token that is none."""
    entries = _entries((key for key in keys if key.encode() > after.encode()), prefix, delimiter)
    position = _read_token(token) if token is not None else b""
    remaining = [entry for entry in entries if _sort_key(entry) > position]
    return _page(remaining, limit)


def page_behind(keys: Iterable[str], *, prefix: str, delimiter: str, limit: int, marker: str) -> Page:
    """As `page_of`, but from a marker that may be a common prefix: what stands behind that is behind all its keys."""
    entries = _entries((key for key in keys if key.encode() > marker.encode()), prefix, delimiter)
    return _page([entry for entry in entries if entry != (marker, True)], limit)


def rows_behind(
    rows: Sequence[Row],
    key_of: Callable[[Row], str],
    id_of: Callable[[Row], str],
    *,
    prefix: str,
    delimiter: str,
    limit: int,
    marker: tuple[str, str | None],
) -> RowPage[Row]:
    """Cut one page out of rows in order; the marker is a key (or a common prefix) and within that key an id."""
    entries: list[tuple[str, Row | None]] = []
    for row in _behind(rows, key_of, id_of, marker):
        name = _common_prefix(key_of(row), prefix, delimiter)
        if not key_of(row).startswith(prefix) or name == marker[0]:
            continue
        if name is None:
            entries.append((key_of(row), row))
        elif (name, None) not in entries:
            entries.append((name, None))
    shown = entries[:limit]
    rest = len(entries) > len(shown) > 0
    last = shown[-1][1] if rest else None
    return RowPage(
        tuple(row for _, row in shown if row is not None),
        tuple(name for name, row in shown if row is None),
        shown[-1][0] if rest else None,
        id_of(last) if last is not None else None,
    )


def _behind(
    rows: Sequence[Row], key_of: Callable[[Row], str], id_of: Callable[[Row], str], marker: tuple[str, str | None]
) -> list[Row]:
    """S3 pages by key, and by id only within the marker's key."""
    key, identity = marker
    if not key:
        return list(rows)
    same = [row for row in rows if key_of(row) == key]
    position = next((place for place, row in enumerate(same) if id_of(row) == identity), len(same))
    return same[position + 1 :] + [row for row in rows if key_of(row).encode() > key.encode()]


def _page(remaining: Sequence[tuple[str, bool]], limit: int) -> Page:
    shown = remaining[:limit]
    more = len(remaining) > len(shown) > 0
    return Page(
        tuple(name for name, common in shown if not common),
        tuple(name for name, common in shown if common),
        _write_token(_sort_key(shown[-1])) if more else None,
        shown[-1][0] if more else None,
    )


def _entries(keys: Iterable[str], prefix: str, delimiter: str) -> list[tuple[str, bool]]:
    """Keys and common prefixes (marked True) in order."""
    found: set[tuple[str, bool]] = set()
    for key in keys:
        if key.startswith(prefix):
            common = _common_prefix(key, prefix, delimiter)
            found.add((key, False) if common is None else (common, True))
    return sorted(found, key=_sort_key)


def _common_prefix(key: str, prefix: str, delimiter: str) -> str | None:
    head, separator, _ = key[len(prefix) :].partition(delimiter) if delimiter else (key, "", "")
    return f"{prefix}{head}{separator}" if separator else None


def _sort_key(entry: tuple[str, bool]) -> bytes:
    """A common prefix stands at the place behind every key it covers."""
    name, common = entry
    return (name + _BEHIND_ALL if common else name).encode()


def _write_token(position: bytes) -> str:
    return base64.urlsafe_b64encode(position).decode()


def _read_token(token: str) -> bytes:
    try:
        return base64.urlsafe_b64decode(token)
    except ValueError as error:
        raise S3Error("InvalidArgument", ArgumentName="continuation-token") from error
