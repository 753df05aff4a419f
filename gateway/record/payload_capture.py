"""Captures the beginning of the payloads of refused writes, without the values of redacted columns. No I/O.

If a table has redacted columns, its payload is parsed before it is cut, because a cut payload cannot be parsed. A
payload that cannot be parsed is not kept at all.
"""

import csv
import io
import json
from collections.abc import Callable, Collection, Iterable
from urllib.parse import parse_qsl, unquote_plus, urlencode

from gateway.fencing.credential_redaction import REDACTED
from gateway.fencing.record import CapturedPayload

MOST_READ = 1024 * 1024
"""Bytes of a payload that is parsed to redact it. Other requests wait meanwhile."""

_LOGIC = frozenset(("and", "or"))


class Capture:
    """The configured capture of payloads.

    ``most``: bytes of a payload; 0 keeps none. ``redact``: columns of tables whose values are never kept, as
    ``schema.table.column``, or ``column`` for any table. They are matched byte by byte, at any depth.
    """

    def __init__(self, most: int = 0, redact: Iterable[str] = ()) -> None:
        self.most = most
        self._everywhere: set[str] = set()
        self._of_table: dict[str, set[str]] = {}
        for name in redact:
            table, _, column = name.rpartition(".")
            (self._of_table.setdefault(table, set()) if table else self._everywhere).add(column)
        self._redacts = bool(self._everywhere or self._of_table)

    def of_table(self, content: bytes, media_type: str, table: str) -> CapturedPayload | None:
        """Return the part to keep of a body sent to a table or function, ``schema.name``; None for nothing."""
        if not self.most or not content:
            return None
        columns = self._columns(table)
        kind = media_type.partition(";")[0].strip().lower() or "application/json"
        if not columns:
            return self.of_object(content, kind)
        if len(content) > MOST_READ:
            return CapturedPayload(kind, left_out=f"more than {MOST_READ} bytes, too many to redact")
        try:
            kept, redacted = _READERS[kind](content, columns)
        except KeyError:
            return CapturedPayload(kind, left_out="columns of this media type cannot be redacted")
        except (ValueError, RecursionError, csv.Error):
            return CapturedPayload(kind, left_out="it could not be parsed, which redaction needs")
        return CapturedPayload(kind, kept[: self.most], truncated=len(kept) > self.most, redacted=redacted)

    def of_object(self, content: bytes, media_type: str, *, more: bool = False) -> CapturedPayload | None:
        """Return the part to keep of ``content``, None for nothing. ``more``: the body had more than ``content``."""
        if not self.most or not content:
            return None
        return CapturedPayload(media_type, content[: self.most], truncated=more or len(content) > self.most)

    def query(self, query: str, table: str) -> str:
        """Return the query string of a request to ``table`` without the filter values of redacted columns."""
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
    """Redact one parameter. It may name a column of a related table, ``related.column=…``, or a path inside one."""
    written, equals, value = part.partition("=")
    name = unquote_plus(written).partition("->")[0].strip()
    last = name.rpartition(".")[2]
    if last in _LOGIC:
        # Such a filter is a tree. If it names such a column at all, none of it is kept.
        meant = unquote_plus(value)
        hit = any(column in meant for column in columns)
    else:
        hit = any(name == column or name.endswith((f".{column}", f'"{column}"')) for column in columns)
    return f"{written}{equals}{REDACTED}" if hit and equals else part


def _json(content: bytes, columns: Collection[str]) -> tuple[bytes, bool]:
    """Serialise the document again in any case: of a duplicate key, only the last value would be checked otherwise."""
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
