"""The bytes of a journal's objects, in both directions (docs/journal.md). Pure.

Each object has a first line: ``fencing-journal``, the version, the kind, the number of bytes that follow, and their
SHA-256. JSON follows. Segments and fences have one line for each raise behind that.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar
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


def write_marker(marker: Marker) -> bytes:
    """Return the bytes of the marker."""
    run = {
        "system": marker.run.system,
        "timeline": marker.run.timeline,
        "started": marker.run.started.isoformat(),
        "database": marker.run.database,
    }
    fields = {"installation": marker.installation.hex, "term": marker.term, "base": marker.base, "run": run}
    return _sealed("marker", {**fields, "at": marker.at.isoformat(), "epoch": marker.epoch})


def read_marker(content: bytes, name: str, installation: UUID | None) -> Marker | Flaw:
    """Return the marker, or the reason why it cannot be used. ``installation``: whose it must be; None for any."""

    def build(fields: Mapping[str, Any], _: list[str]) -> Marker:
        run = fields["run"]
        made_for = Run(str(run["system"]), _number(run["timeline"]), _time(run["started"]), str(run["database"]))
        term, base = _number(fields["term"]), _number(fields["base"])
        if (epoch := _number(fields["epoch"])) >= MAX_EPOCH:
            raise ValueError("it is no epoch that another one can follow")
        return Marker(UUID(fields["installation"]), term, base, made_for, _time(fields["at"]), epoch)

    return _read(content, name, "marker", installation, build)


def write_segment(segment: Segment) -> bytes:
    """Return the bytes of a segment."""
    fields = {
        "installation": segment.installation.hex,
        "writer": segment.writer.hex,
        "sequence": segment.sequence,
        "follows": segment.follows,
        "term": segment.term,
        "position": segment.position,
        "at": segment.at.isoformat(),
    }
    return _sealed("segment", fields, segment.entries)


def read_segment(content: bytes, name: str, installation: UUID | None) -> Segment | Flaw:
    """Return the segment, or the reason why it cannot be used."""

    def build(fields: Mapping[str, Any], lines: list[str]) -> Segment:
        segment = Segment(
            UUID(fields["installation"]),
            UUID(fields["writer"]),
            _number(fields["sequence"]),
            _number(fields["follows"]),
            _number(fields["term"]),
            _number(fields["position"]),
            _time(fields["at"]),
            tuple(_entry(line) for line in lines),
        )
        if segment.name != name:
            raise ValueError("it is a copy of another object")
        return segment

    return _read(content, name, "segment", installation, build)


def write_snapshot(snapshot: Snapshot) -> bytes:
    """Return the bytes of the index of a snapshot."""
    fields = {
        "installation": snapshot.installation.hex,
        "number": snapshot.number,
        "complete_from": snapshot.complete_from,
        "began": snapshot.began,
        "position": snapshot.position,
        "at": snapshot.at.isoformat(),
        "fences": snapshot.fences,
        "covers": sorted(snapshot.covers),
        "reached": {writer.hex: [last, at.isoformat()] for writer, (last, at) in sorted(snapshot.reached.items())},
    }
    return _sealed("snapshot", fields)


def read_snapshot(content: bytes, name: str, installation: UUID | None) -> Snapshot | Flaw:
    """Return the index of a snapshot, or the reason why it cannot be used."""

    def build(fields: Mapping[str, Any], _: list[str]) -> Snapshot:
        snapshot = Snapshot(
            UUID(fields["installation"]),
            _number(fields["number"]),
            _number(fields["complete_from"]),
            _number(fields["position"]),
            _time(fields["at"]),
            _name_of_fences(fields["fences"]),
            _number(fields["began"]),
            frozenset(map(str, fields["covers"])),
            {UUID(writer): (_number(last), _time(at)) for writer, (last, at) in fields["reached"].items()},
        )
        if snapshot.name != name:
            raise ValueError("it is a copy of another object")
        return snapshot

    return _read(content, name, "snapshot", installation, build)


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


def _number(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _LARGEST:
        raise ValueError("it is no number")
    return value


def _time(value: str) -> datetime:
    moment = datetime.fromisoformat(value)
    if moment.tzinfo is None:
        raise ValueError("it has no time zone")
    return moment.astimezone(UTC)


def _name_of_fences(value: object) -> str:
    if not isinstance(value, str) or not value.startswith(FENCES) or _NAME.fullmatch(value) is None:
        raise ValueError("it is no name of fences")
    return value
