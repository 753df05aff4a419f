"""The bytes of a journal's objects, in both directions (docs/journal.md). Pure.

Each object has a first line: ``fencing-journal``, the version, the kind, the number of bytes that follow, and their
SHA-256. JSON follows. Segments and fences have one line for each raise behind that.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, TypeAlias, TypeVar
from uuid import UUID

from gateway.errors import GatewayError
from gateway.fencing.token import MAX_EPOCH, Token
from gateway.journal.contents import FENCES, Entry, Flaw, Problem, Segment, Snapshot
from gateway.journal.trust import Marker, Run

VERSION = 1

Value = TypeVar("Value")

_MAGIC = b"fencing-journal "
_FIRST_LINE = re.compile(rb"fencing-journal ([1-9][0-9]{0,8}) (.*)")
_REST = re.compile(rb"([a-z]+) (0|[1-9][0-9]{0,17}) ([0-9a-f]{64})")
_LONGEST_FIRST_LINE = 256
# The database takes no other numbers and names. Names of resources have neither commas nor spaces.
_LARGEST = 2**62
_NAME = re.compile(r"[!-+\--~]+")


def _number(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _LARGEST:
        raise ValueError("it is no number")
    return value


def _epoch(value: object) -> int:
    if (epoch := _number(value)) >= MAX_EPOCH:
        raise ValueError("it is no epoch that another one can follow")
    return epoch


def _time(value: str) -> datetime:
    moment = datetime.fromisoformat(value)
    if moment.tzinfo is None:
        raise ValueError("it has no time zone")
    return moment.astimezone(UTC)


def _name_of_fences(value: object) -> str:
    if not isinstance(value, str) or not value.startswith(FENCES) or _NAME.fullmatch(value) is None:
        raise ValueError("it is no name of fences")
    return value


Field: TypeAlias = tuple[Callable[[Any], object], Callable[[Any], Any]]
"""A field of JSON: how its value is written, and how it is read."""

_ID: Field = (lambda value: value.hex, UUID)
_NUMBER: Field = (int, _number)
_TEXT: Field = (str, str)
_TIME: Field = (lambda value: value.isoformat(), _time)
_RUN = {"system": _TEXT, "timeline": _NUMBER, "started": _TIME, "database": _TEXT}
_MARKER: dict[str, Field] = {
    "installation": _ID,
    "term": _NUMBER,
    "base": _NUMBER,
    "run": (lambda run: _fields(run, _RUN), lambda fields: Run(**_values(fields, _RUN))),
    "at": _TIME,
    "epoch": (int, _epoch),
}
_SEGMENT = {
    "installation": _ID,
    "writer": _ID,
    **dict.fromkeys(("sequence", "follows", "term", "position"), _NUMBER),
    "at": _TIME,
}
_SNAPSHOT: dict[str, Field] = {
    "installation": _ID,
    **dict.fromkeys(("number", "complete_from", "began", "position"), _NUMBER),
    "at": _TIME,
    "fences": (str, _name_of_fences),
    "covers": (sorted, lambda names: frozenset(map(str, names))),
    "reached": (
        lambda reached: {writer.hex: [last, at.isoformat()] for writer, (last, at) in sorted(reached.items())},
        lambda reached: {UUID(writer): (_number(last), _time(at)) for writer, (last, at) in reached.items()},
    ),
}


def _fields(value: object, kind: Mapping[str, Field]) -> dict[str, object]:
    return {name: write(getattr(value, name)) for name, (write, _) in kind.items()}


def _values(fields: Mapping[str, Any], kind: Mapping[str, Field]) -> dict[str, Any]:
    return {name: read(fields[name]) for name, (_, read) in kind.items()}


def write_marker(marker: Marker) -> bytes:
    """Return the bytes of the marker."""
    return _sealed("marker", _fields(marker, _MARKER))


def read_marker(content: bytes, name: str, installation: UUID | None) -> Marker | Flaw:
    """Return the marker, or the reason why it cannot be used. ``installation``: whose it must be; None for any."""
    return _read(content, name, "marker", installation, lambda fields, _: Marker(**_values(fields, _MARKER)))


def write_segment(segment: Segment) -> bytes:
    """Return the bytes of a segment."""
    return _sealed("segment", _fields(segment, _SEGMENT), segment.entries)


def read_segment(content: bytes, name: str, installation: UUID | None) -> Segment | Flaw:
    """Return the segment, or the reason why it cannot be used."""

    def build(fields: Mapping[str, Any], lines: list[str]) -> Segment:
        return _own(name, Segment(**_values(fields, _SEGMENT), entries=tuple(map(_entry, lines))))

    return _read(content, name, "segment", installation, build)


def write_snapshot(snapshot: Snapshot) -> bytes:
    """Return the bytes of the index of a snapshot."""
    return _sealed("snapshot", _fields(snapshot, _SNAPSHOT))


def read_snapshot(content: bytes, name: str, installation: UUID | None) -> Snapshot | Flaw:
    """Return the index of a snapshot, or the reason why it cannot be used."""

    def build(fields: Mapping[str, Any], _: list[str]) -> Snapshot:
        return _own(name, Snapshot(**_values(fields, _SNAPSHOT)))

    return _read(content, name, "snapshot", installation, build)


Named = TypeVar("Named", Segment, Snapshot)


def _own(name: str, found: Named) -> Named:
    if found.name != name:
        raise ValueError("it is a copy of another object")
    return found


def write_fences(installation: UUID, entries: Iterable[Entry]) -> bytes:
    """Return the bytes of a snapshot's fences."""
    return _sealed("fences", {"installation": installation.hex}, entries)


def read_fences(content: bytes, name: str, installation: UUID | None) -> dict[str, Entry] | Flaw:
    """Return the fences of a snapshot by resource, or the reason why they cannot be used."""

    def build(_: Mapping[str, Any], lines: list[str]) -> dict[str, Entry]:
        return {entry.resource: entry for entry in map(_entry, lines)}

    return _read(content, name, "fences", installation, build)


def _sealed(kind: str, fields: Mapping[str, object], entries: Iterable[Entry] = ()) -> bytes:
    lines = [json.dumps(fields, separators=(",", ":")), *map(_line, entries), ""]
    rest = "\n".join(lines).encode()
    return b"%s%d %s %d %s\n" % (_MAGIC, VERSION, kind.encode(), len(rest), _digest(rest)) + rest


def _read(
    content: bytes,
    name: str,
    kind: str,
    installation: UUID | None,
    build: Callable[[Mapping[str, Any], list[str]], Value],
) -> Value | Flaw:
    rest = _unsealed(content, kind)
    if isinstance(rest, Flaw):
        return Flaw(rest.problem, rest.detail, name)
    try:
        first, *lines = rest.decode().removesuffix("\n").split("\n")
        fields = json.loads(first)
        owner = UUID(fields["installation"])
        if installation is not None and owner != installation:
            return Flaw(Problem.FOREIGN, f"belongs to the installation {owner}", name)
        return build(fields, lines)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError, OSError, GatewayError):
        return Flaw(Problem.CORRUPT, "has contents that cannot be read", name)


def _unsealed(content: bytes, kind: str) -> bytes | Flaw:
    """Return the bytes behind the first line, if they are those that were written."""
    line, end, rest = content.partition(b"\n")
    if not end and (line.startswith(_MAGIC) or _MAGIC.startswith(line)) and len(line) < _LONGEST_FIRST_LINE:
        return Flaw(Problem.TRUNCATED, "ends within its first line")
    if (first := _FIRST_LINE.fullmatch(line)) is None:
        return Flaw(Problem.CORRUPT, "is no object of a journal")
    if int(first[1]) > VERSION:
        return Flaw(Problem.NEWER, f"has version {int(first[1])} of the format, and this gateway knows {VERSION}")
    if (sealed := _REST.fullmatch(first[2])) is None or sealed[1] != kind.encode():
        return Flaw(Problem.CORRUPT, f"is not of the kind {kind}")
    if len(rest) < int(sealed[2]):
        return Flaw(Problem.TRUNCATED, f"ends after {len(rest)} of {int(sealed[2])} bytes")
    if len(rest) > int(sealed[2]) or _digest(rest) != sealed[3]:
        return Flaw(Problem.CORRUPT, "does not have its checksum")
    return rest


def _digest(rest: bytes) -> bytes:
    return hashlib.sha256(rest).hexdigest().encode()


def _line(entry: Entry) -> str:
    objects = "-" if entry.objects is None else _seconds(entry.objects)
    return f"{entry.token} {_seconds(entry.at)} {objects} {entry.since} {entry.resource}"


def _entry(line: str) -> Entry:
    token, at, objects, since, resource = line.split(" ", 4)
    announced = None if objects == "-" else _at(objects)
    if _NAME.fullmatch(resource) is None:
        raise ValueError("it is no name of a resource")
    return Entry(resource, Token.parse(token), _at(at), announced, _number(int(since)))


def _seconds(moment: datetime) -> int:
    return int(moment.timestamp())


def _at(seconds: str) -> datetime:
    return datetime.fromtimestamp(int(seconds), UTC)
