"""Pages of keys: order, prefix, delimiter, and the token that leads to the next page."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from dataclasses import dataclass

from tests.doubles.s3.errors import S3Error

# No key sorts behind a prefix followed by this: the highest code point of UTF-8's order.
_BEHIND_ALL = "\U0010ffff"


@dataclass(frozen=True, slots=True)
class Page:
    """The keys and common prefixes of one page, in S3's order (UTF-8 bytes); no token means it is the last."""

    keys: tuple[str, ...]
    prefixes: tuple[str, ...]
    next_token: str | None


def page_of(keys: Iterable[str], *, prefix: str, delimiter: str, limit: int, after: str, token: str | None) -> Page:
    """Cut one page out of all keys. Raises InvalidArgument for a token that is none."""
    entries = _entries((key for key in keys if key.encode() > after.encode()), prefix, delimiter)
    position = _read_token(token) if token is not None else b""
    remaining = [entry for entry in entries if _sort_key(entry) > position]
    shown = remaining[:limit]
    more = len(remaining) > len(shown) > 0
    return Page(
        tuple(name for name, common in shown if not common),
        tuple(name for name, common in shown if common),
        _write_token(_sort_key(shown[-1])) if more else None,
    )


def _entries(keys: Iterable[str], prefix: str, delimiter: str) -> list[tuple[str, bool]]:
    """Keys and common prefixes (marked True) in order."""
    found: set[tuple[str, bool]] = set()
    for key in keys:
        if not key.startswith(prefix):
            continue
        head, separator, _ = key[len(prefix) :].partition(delimiter) if delimiter else (key, "", "")
        found.add((f"{prefix}{head}{separator}", True) if separator else (key, False))
    return sorted(found, key=_sort_key)


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
