"""What is kept of the payloads of refused writes: their beginning, without the values of redacted columns. No I/O.

A payload of a table that names columns to be redacted is read before it is cut: what is cut first cannot be read any
more. What cannot be read is not kept at all.
"""

import csv
import io
import json
from collections.abc import Callable, Collection, Iterable
from urllib.parse import parse_qsl, unquote_plus, urlencode

from gateway.fencing.record import Captured
from gateway.fencing.redaction import REDACTED

MOST_READ = 1024 * 1024
"""Bytes of a payload that is read to redact it. Meanwhile everybody else waits."""

_LOGIC = frozenset(("and", "or"))


class Capture:
    """What an operator wants kept.

    ``most``: bytes of a payload; 0 keeps none. ``redact``: columns whose values are never kept of what is sent to
    tables, as ``schema.table.column``, or ``column`` for any table. They are matched byte by byte, at any depth.
    """

    def __init__(self, most: int = 0, redact: Iterable[str] = ()) -> None:
        self.most = most
        self._everywhere: set[str] = set()
        self._of_table: dict[str, set[str]] = {}
        for name in redact:
            table, _, column = name.rpartition(".")
            (self._of_table.setdefault(table, set()) if table else self._everywhere).add(column)
        self._redacts = bool(self._everywhere or self._of_table)

    def of_table(self, content: bytes, media_type: str, table: str) -> Captured | None:
        """What is kept of a body that is sent to ``table``, ``schema.name`` (or a function). None: nothing."""
        if not self.most or not content:
            return None
        columns = self._columns(table)
        kind = media_type.partition(";")[0].strip().lower() or "application/json"
        if not columns:
            return self.of_object(content, kind)
        if len(content) > MOST_READ:
            return Captured(kind, left_out=f"more than {MOST_READ} bytes, too many to be redacted")
        try:
            kept, redacted = _READERS[kind](content, columns)
        except KeyError:
            return Captured(kind, left_out="columns of this type of body cannot be told apart, to be redacted")
        except (ValueError, RecursionError, csv.Error):
            return Captured(kind, left_out="it could not be read, to be redacted")
        return Captured(kind, kept[: self.most], truncated=len(kept) > self.most, redacted=redacted)

    def of_object(self, content: bytes, media_type: str, *, more: bool = False) -> Captured | None:
        """What is kept of ``content``, the beginning of something; ``more``: there was more of it. None: nothing."""
        if not self.most or not content:
            return None
        return Captured(media_type, content[: self.most], truncated=more or len(content) > self.most)

    def query(self, query: str, table: str) -> str:
        """The query string of a request to ``table``, without the values that filters compare redacted columns with."""
        columns = self._columns(table)
        if not columns or not query:
            return query
        return "&".join(_filter(part, columns) for part in query.split("&"))

    def _columns(self, table: str) -> Collection[str]:
        if not self._redacts:
            return ()
        return self._everywhere | self._of_table.get(table, set())


NOTHING = Capture()
"""Keeps none of a payload, and redacts nothing."""


def _filter(part: str, columns: Collection[str]) -> str:
    """One parameter. It may be of a column of a related table: ``related.column=…``, and of what is inside of it."""
    written, equals, value = part.partition("=")
    name = unquote_plus(written).partition("->")[0].strip()
    last = name.rpartition(".")[2]
    if last in _LOGIC:
        # Such a filter is a tree. Where it speaks of such a column at all, none of it is kept.
        meant = unquote_plus(value)
        hit = any(column in meant for column in columns)
    else:
        hit = any(name == column or name.endswith((f".{column}", f'"{column}"')) for column in columns)
    return f"{written}{equals}{REDACTED}" if hit and equals else part


def _json(content: bytes, columns: Collection[str]) -> tuple[bytes, bool]:
    """Written anew in any case: of a key that stands twice only the last one would be looked at otherwise."""
    redacted = False

    def members(pairs: list[tuple[str, object]]) -> dict[str, object]:
        nonlocal redacted
        redacted = redacted or any(name in columns for name, _ in pairs)
        return {name: REDACTED if name in columns else value for name, value in pairs}

    document = json.loads(content.decode(), object_pairs_hook=members)
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode(), redacted


def _csv(content: bytes, columns: Collection[str]) -> tuple[bytes, bool]:
    lines = [line for line in csv.reader(io.StringIO(content.decode("utf-8-sig"), newline=""), strict=True) if line]
    if not lines or any(len(line) != len(lines[0]) for line in lines):
        raise ValueError("no table")
    places = {place for place, name in enumerate(lines[0]) if name in columns}
    rows = [[REDACTED if place in places else value for place, value in enumerate(line)] for line in lines[1:]]
    written = io.StringIO(newline="")
    csv.writer(written, lineterminator="\n").writerows([lines[0], *rows])
    return written.getvalue().encode(), bool(places and rows)


def _form(content: bytes, columns: Collection[str]) -> tuple[bytes, bool]:
    pairs = parse_qsl(content.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=10_000)
    kept = [(name, REDACTED if name in columns else value) for name, value in pairs]
    return urlencode(kept, safe="[]").encode(), any(name in columns for name, _ in pairs)


_READERS: dict[str, Callable[[bytes, Collection[str]], tuple[bytes, bool]]] = {
    "application/json": _json,
    "text/csv": _csv,
    "application/x-www-form-urlencoded": _form,
}
