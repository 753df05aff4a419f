"""Each object is read back as it was written, and each way to spoil it has a verdict of its own."""

import json
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.journal import format as encoding
from gateway.journal.contents import Flaw, Problem
from tests.journal.examples import MARKER, NOW, OURS, THEIRS, WRITER, entry, segment, snapshot

SEGMENT = segment(3, entry("order/5", 34), entry("s3/bucket/a%20b", 2, objects=NOW), follows=2)
SNAPSHOT = snapshot(4, complete_from=2, position=9, covers=frozenset({SEGMENT.name}), reached={WRITER: (3, NOW)})
FENCES = {one.resource: one for one in (entry("order/5", 34, since=4), entry("stock/1", 1, objects=NOW, since=1))}

Read = Callable[[bytes, str, UUID | None], Any]
CASES: list[Any] = [
    pytest.param(encoding.write_marker(MARKER), encoding.read_marker, "marker", MARKER, id="marker"),
    pytest.param(encoding.write_segment(SEGMENT), encoding.read_segment, SEGMENT.name, SEGMENT, id="segment"),
    pytest.param(encoding.write_snapshot(SNAPSHOT), encoding.read_snapshot, SNAPSHOT.name, SNAPSHOT, id="snapshot"),
    pytest.param(
        encoding.write_fences(OURS, FENCES.values()), encoding.read_fences, "fences/000000000004-x", FENCES, id="fences"
    ),
]


def problem(found: object) -> Problem:
    assert isinstance(found, Flaw), found
    assert str(found)
    return found.problem


@pytest.mark.parametrize(("content", "read", "name", "value"), CASES)
class TestEachKind:
    def test_is_read_back(self, content: bytes, read: Read, name: str, value: object) -> None:
        assert read(content, name, OURS) == value
        assert read(content, name, None) == value

    def test_of_another_installation(self, content: bytes, read: Read, name: str, value: object) -> None:
        assert problem(read(content, name, THEIRS)) is Problem.FOREIGN

    def test_of_a_newer_version(self, content: bytes, read: Read, name: str, value: object) -> None:
        newer = content.replace(b"fencing-journal 1 ", b"fencing-journal 2 ", 1)
        assert problem(read(newer, name, OURS)) is Problem.NEWER
        assert problem(read(b"fencing-journal 17 something else entirely\n", name, OURS)) is Problem.NEWER

    def test_truncated_at_each_byte(self, content: bytes, read: Read, name: str, value: object) -> None:
        assert {problem(read(content[:length], name, OURS)) for length in range(len(content))} == {Problem.TRUNCATED}

    def test_changed_at_each_byte(self, content: bytes, read: Read, name: str, value: object) -> None:
        for place in range(len(content)):
            changed = bytearray(content)
            changed[place] ^= 0x41
            assert isinstance(read(bytes(changed), name, OURS), Flaw), place

    def test_with_more_behind_it(self, content: bytes, read: Read, name: str, value: object) -> None:
        assert problem(read(content + b"\n", name, OURS)) is Problem.CORRUPT

    def test_of_another_kind(self, content: bytes, read: Read, name: str, value: object) -> None:
        others = [one.values[0] for one in CASES if one.values[1] is not read]
        assert {problem(read(other, name, OURS)) for other in others} == {Problem.CORRUPT}


@pytest.mark.parametrize("read", [encoding.read_segment, encoding.read_snapshot])
def test_a_copy_under_another_name_is_no_object_of_the_journal(read: Read) -> None:
    content = encoding.write_segment(SEGMENT) if read is encoding.read_segment else encoding.write_snapshot(SNAPSHOT)
    assert problem(read(content, "segments/x/000000000009", OURS)) is Problem.CORRUPT


@pytest.mark.parametrize(
    "fields",
    [
        "[]",
        "{}",
        "nothing",
        '{"installation": 5}',
        json.dumps({"installation": OURS.hex, "term": -1}),
        json.dumps({"installation": OURS.hex, "term": 1, "base": True, "run": {}, "at": "2026-01-01T00:00:00+00:00"}),
        json.dumps(
            {
                "installation": OURS.hex,
                "term": 1,
                "base": 0,
                "run": {"system": "1", "timeline": 1, "started": "2026-01-01T00:00:00", "database": ""},
                "at": "2026-01-01T00:00:00",
                "epoch": 0,
            }
        ),
        "[" * 100_000,
    ],
    ids=range(8),
)
def test_sealed_contents_that_make_no_sense_are_corrupt(fields: str) -> None:
    """The checksum is right, so another program wrote them."""
    rest = f"{fields}\n".encode()
    content = b"fencing-journal 1 marker %d %s\n" % (len(rest), encoding._digest(rest)) + rest
    assert problem(encoding.read_marker(content, "marker", None)) is Problem.CORRUPT


@pytest.mark.parametrize(
    "line",
    [
        "1 999999999999999999 - 0 order/5",
        "1 1 - 99999999999999999999 order/5",
        "1 1 - -1 order/5",
        "1 1 - 0 order/\0",
        "1 1 - 0 order/5 0.7,order/6",
        "1 1 - 0 ",
    ],
)
def test_raises_that_no_database_can_take_are_corrupt(line: str) -> None:
    rest = json.dumps({"installation": OURS.hex}).encode() + f"\n{line}\n".encode()
    content = b"fencing-journal 1 fences %d %s\n" % (len(rest), encoding._digest(rest)) + rest
    assert problem(encoding.read_fences(content, "fences/1", OURS)) is Problem.CORRUPT


@pytest.mark.parametrize(
    "change", [{"number": 10**30}, {"position": 2**63}, {"fences": "marker"}, {"fences": "fences/\0"}], ids=range(4)
)
def test_snapshots_that_no_database_can_take_are_corrupt(change: dict[str, object]) -> None:
    _, first, _ = encoding.write_snapshot(SNAPSHOT).split(b"\n")
    rest = json.dumps({**json.loads(first), **change}).encode() + b"\n"
    content = b"fencing-journal 1 snapshot %d %s\n" % (len(rest), encoding._digest(rest)) + rest
    assert problem(encoding.read_snapshot(content, SNAPSHOT.name, OURS)) is Problem.CORRUPT


@pytest.mark.parametrize("change", [{"term": 2**63}, {"epoch": 2**31 - 1}], ids=range(2))
def test_markers_that_no_database_can_take_are_corrupt(change: dict[str, object]) -> None:
    _, first, _ = encoding.write_marker(MARKER).split(b"\n")
    rest = json.dumps({**json.loads(first), **change}).encode() + b"\n"
    content = b"fencing-journal 1 marker %d %s\n" % (len(rest), encoding._digest(rest)) + rest
    assert problem(encoding.read_marker(content, "marker", OURS)) is Problem.CORRUPT


@given(st.binary(max_size=300))
def test_no_bytes_crash_it(content: bytes) -> None:
    for read in (encoding.read_marker, encoding.read_segment, encoding.read_snapshot, encoding.read_fences):
        assert isinstance(read(content, "marker", OURS), Flaw)


@given(st.text(max_size=60), st.text(max_size=30))
def test_no_lines_crash_it(first: str, second: str) -> None:
    rest = json.dumps({"installation": OURS.hex}).encode() + f"\n{first}\n{second}\n".encode(errors="replace")
    content = b"fencing-journal 1 fences %d %s\n" % (len(rest), encoding._digest(rest)) + rest
    assert isinstance(encoding.read_fences(content, "fences/1", OURS), Flaw | dict)
