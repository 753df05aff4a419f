"""The transactions that a database has committed, in the order of their commits: its write-ahead log, decoded.

PostgreSQL's own plugin ``pgoutput`` (protocol 1) sends it, in messages that this module reads:
https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

PUBLICATION = SLOT = "soak"
CHANGES = f"SELECT data FROM pg_logical_slot_get_binary_changes('{SLOT}', NULL, NULL, 'proto_version', '1', 'publication_names', '{PUBLICATION}')"  # noqa: E501 - one statement

Row: TypeAlias = dict[str, str | None]


@dataclass(frozen=True, slots=True)
class Change:
    """A row that was inserted (``old`` None), changed, or deleted (``new`` None)."""

    table: str
    old: Row | None
    new: Row | None


@dataclass(slots=True)
class Commit:
    """One transaction: what it changed in the published tables, in order."""

    changes: list[Change] = field(default_factory=list)


def commits(messages: Iterable[bytes]) -> Iterator[Commit]:
    """The transactions that the messages tell of. Old rows of a table show with REPLICA IDENTITY FULL."""
    tables: dict[int, tuple[str, list[str]]] = {}
    commit = Commit()
    for message in messages:
        reader = _Reader(message[1:])
        match chr(message[0]):
            case "B":
                commit = Commit()
            case "C":
                if commit.changes:
                    yield commit
            case "R":
                number = reader.number("I")
                schema, name = reader.text(), reader.text()
                reader.number("B")
                tables[number] = f"{schema}.{name}", [reader.column() for _ in range(reader.number("H"))]
            case "I" | "U" | "D":
                name, columns = tables[reader.number("I")]
                rows = {}
                while (kind := reader.kind()) is not None:
                    rows["new" if kind == "N" else "old"] = dict(zip(columns, reader.values(), strict=True))
                commit.changes.append(Change(name, rows.get("old"), rows.get("new")))


class _Reader:
    """Goes through one message."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def number(self, form: str) -> int:
        (value,) = struct.unpack_from(f">{form}", self._data, self._at)
        self._at += struct.calcsize(f">{form}")
        return int(value)

    def text(self) -> str:
        end = self._data.index(0, self._at)
        text = self._data[self._at : end].decode()
        self._at = end + 1
        return text

    def column(self) -> str:
        self.number("B")
        name = self.text()
        self.number("I")
        self.number("i")
        return name

    def kind(self) -> str | None:
        """N, O or K before the next row; None at the end."""
        return chr(self.number("B")) if self._at < len(self._data) else None

    def values(self) -> Iterator[str | None]:
        for _ in range(self.number("H")):
            if chr(self.number("B")) == "t":
                length = self.number("I")
                yield self._data[self._at : self._at + length].decode()
                self._at += length
            else:
                yield None
