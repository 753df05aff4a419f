"""The chain of the record: the hash of an entry, and the check of a sequence of entries. No I/O.

The hash of an entry is the SHA-256 of the previous hash and of the entry's canonical text. That text is also its line
in the export, without the hash. The functions ``fencing.line_v1`` and ``fencing.next_hash_v1`` of the database do the
same, to the byte.
"""

import json
import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from typing import Any, Never

START = sha256(b"fencing-gateway record v1").digest()
"""Stands for the hash before the first entry."""

_FIELDS = """
position id at kind plane rule resource reason enforced token holder caller method target client request_id payload_size
payload_sha256 fence fence_holder fence_caller fence_raised_at details
"""
FIELDS = tuple(_FIELDS.split())
"""Of an entry, in the order of its line; the last of all is ``hash``."""

_LINE = frozenset((*FIELDS, "hash"))
_POSITION = re.compile(r"[1-9][0-9]{0,18}")
_HASH = re.compile(r"[0-9a-f]{64}")
_MOST_GAPS = 10_000


class Number(str):
    """A number as it was written: ``1.0`` is not ``1`` here."""

    __slots__ = ()


class Unreadable(ValueError):
    """A text that is no entry of the record."""


def parse(line: str | bytes) -> dict[str, Any]:
    """One line of an NDJSON export. Raises ``Unreadable`` where it is no JSON object that has each key but once."""
    try:
        parsed = json.loads(
            line, object_pairs_hook=_unique, parse_int=Number, parse_float=Number, parse_constant=_refuse
        )
    except (ValueError, RecursionError) as error:
        raise Unreadable("not a line of JSON") from error
    if not isinstance(parsed, dict):
        raise Unreadable("not a JSON object")
    return parsed


def canonical(entry: Mapping[str, Any]) -> bytes:
    """Return the hashed text of an entry as ``parse`` has read it. Raise ``Unreadable``.

    The text is as PostgreSQL writes it: compact, but with spaces inside ``details``.
    """
    if entry.keys() != _LINE:
        raise Unreadable("its fields are not those of an entry")
    try:
        return ("{" + ",".join(f'"{name}":{written(entry[name])}' for name in FIELDS) + "}").encode()
    except (UnicodeEncodeError, RecursionError) as error:
        raise Unreadable("it holds what no entry can hold") from error


def next_hash(before: bytes, text: bytes) -> bytes:
    """Return the hash of the entry with this canonical text, behind an entry with that hash."""
    return sha256(before + text).digest()


class Flaw(StrEnum):
    """The flaws that a sequence of entries can have."""

    UNREADABLE = "unreadable"
    """The line is no entry."""
    START = "start"
    """The first entry is not the one it was said to be."""
    CHANGED = "changed"
    """The hash does not follow from the entry and the one before it: one of the two is not as it was sealed."""
    MISSING = "missing"
    REORDERED = "reordered"
    DOUBLED = "doubled"
    WITNESS = "witness"
    """It is not what was seen at this position at another time: something up to it has been written anew."""


@dataclass(frozen=True, slots=True)
class ChainFinding:
    """Something is wrong with the entries from ``position`` to ``last``, which are 0 where it is not known which.

    ``line`` is where that was noticed, counted from 1.
    """

    flaw: Flaw
    position: int
    last: int
    line: int


class Verifier:
    """Checks the lines of an export one after the other, in constant memory.

    ``witnesses``: hashes (64 hex digits) by position, noted down outside the database at other times. A change of any
    entry up to one of them is detected, and so is a record cut off before it. ``after``: the position behind which the
    export claims to begin; 0 for the whole record, None without a claim. ``whole``: the export claims to be complete.
    Then entries missing before its first one must be those that the record says were dropped.
    """

    def __init__(
        self, witnesses: Mapping[int, str] | None = None, after: int | None = None, *, whole: bool = False
    ) -> None:
        self._witnesses = {position: noted.lower() for position, noted in (witnesses or {}).items()}
        if not all(_HASH.fullmatch(noted) for noted in self._witnesses.values()):
            raise ValueError("a witness is a hash of 64 hex digits")
        self._after, self._whole = after, whole
        self._accounted = False
        self._hash = b""
        self._beginning: tuple[bytes, bytes] | None = None
        self._gaps: list[tuple[int, int]] = []
        self.lines = 0
        self.first = 0
        """The position of the first entry; 0 as long as there is none."""
        self.last = 0
        """The highest position there was."""
        self.anchored = False
        """Whether the predecessor of the first entry is known: nothing, a witness, or days that the record says were
        dropped. Otherwise the first entry cannot be checked.
        """

    @property
    def head(self) -> str:
        """The hash (hex) at ``last``: a witness for later."""
        return self._hash.hex()

    def take(self, line: str | bytes) -> list[ChainFinding]:
        """Return the flaws of the next line."""
        self.lines += 1
        try:
            entry = parse(line)
            position, claimed = _place(entry)
            text = canonical(entry)
        except Unreadable:
            return [ChainFinding(Flaw.UNREADABLE, 0, 0, self.lines)]
        findings = list(self._taken(position, claimed, text))
        if entry["kind"] == "retention" and not self._accounted:
            findings += self._vouched(entry["details"])
        if self._witnesses.get(position, claimed.hex()) != claimed.hex():
            findings.append(self._finding(Flaw.WITNESS, position))
        return findings

    def finish(self) -> list[ChainFinding]:
        """There are no more lines: what is missing, at the end as far as witnesses tell."""
        newest = max(self._witnesses, default=0)
        removed = [(1, self.first - 1)] if self._whole and self.first > 1 and not self._accounted else []
        gaps = [*removed, *self._gaps, *([(self.last + 1, newest)] if newest > self.last else [])]
        return [self._finding(Flaw.MISSING, start, end) for start, end in gaps]

    def _taken(self, position: int, claimed: bytes, text: bytes) -> Iterator[ChainFinding]:
        if self.first and position <= self.last:
            yield self._finding(self._misplaced(position), position)
            return
        if not self.first:
            yield from self._begun(position, claimed, text)
        elif position == self.last + 1:
            yield from self._linked(self._hash, position, claimed, text)
        else:
            # The predecessor of this entry is missing, so its hash cannot be checked.
            yield from self._skipped(self.last + 1, position - 1)
        self.last, self._hash = position, claimed

    def _begun(self, position: int, claimed: bytes, text: bytes) -> Iterator[ChainFinding]:
        self.first = position
        if self._after is not None and position != self._after + 1:
            yield self._finding(Flaw.START, position)
        before = START if position == 1 else bytes.fromhex(self._witnesses.get(position - 1, ""))
        if before:
            self.anchored = True
            yield from self._linked(before, position, claimed, text)
        else:
            self._beginning = (claimed, text)

    def _vouched(self, details: Any) -> Iterator[ChainFinding]:
        """Note that a later entry reports days before the first one as dropped."""
        match details:
            case {"last": Number() as last, "hash": str() as before} if last == str(self.first - 1) and _HASH.fullmatch(
                before
            ):
                self._accounted = self.anchored = True
                if self._beginning:
                    yield from self._linked(bytes.fromhex(before), self.first, *self._beginning)

    def _linked(self, before: bytes, position: int, claimed: bytes, text: bytes) -> Iterator[ChainFinding]:
        if next_hash(before, text) != claimed:
            yield self._finding(Flaw.CHANGED, position)

    def _skipped(self, start: int, end: int) -> Iterator[ChainFinding]:
        self._gaps.append((start, end))
        if len(self._gaps) > _MOST_GAPS:
            yield self._finding(Flaw.MISSING, *self._gaps.pop(0))

    def _misplaced(self, position: int) -> Flaw:
        """Whether an entry that does not come after all others has come before, or closes a gap."""
        if position < self.first:
            return Flaw.REORDERED
        place = bisect_left(self._gaps, position, key=lambda gap: gap[1])
        if place == len(self._gaps) or self._gaps[place][0] > position:
            return Flaw.DOUBLED
        start, end = self._gaps[place]
        rest = [(start, position - 1), (position + 1, end)]
        self._gaps[place : place + 1] = [gap for gap in rest if gap[0] <= gap[1]]
        return Flaw.REORDERED

    def _finding(self, flaw: Flaw, position: int, last: int | None = None) -> ChainFinding:
        return ChainFinding(flaw, position, position if last is None else last, self.lines)


def _place(entry: Mapping[str, Any]) -> tuple[int, bytes]:
    match entry:
        case {"position": Number() as position, "hash": str() as claimed} if _POSITION.fullmatch(
            position
        ) and _HASH.fullmatch(claimed):
            return int(position), bytes.fromhex(claimed)
    raise Unreadable("without position or hash")


def written(value: Any) -> str:
    """Return a value of an entry as PostgreSQL writes JSON. Raise ``Unreadable``.

    Only ``details`` has other values than strings, numbers, booleans and null in it.
    """
    match value:
        case Number():
            return value
        case None | bool() | str():
            return json.dumps(value, ensure_ascii=False)
        case dict():
            return f"{{{', '.join(f'{written(key)}: {written(each)}' for key, each in value.items())}}}"
        case list():
            return f"[{', '.join(map(written, value))}]"
    raise Unreadable("it holds what no JSON can hold")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key comes twice")
    return found


def _refuse(constant: str) -> Never:
    raise ValueError(f"{constant} is no JSON")
