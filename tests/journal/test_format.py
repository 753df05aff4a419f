"""Objects of the journal, and evidence in metadata: read back as written; each way to spoil or forge them is found."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.fencing.token import Token
from gateway.journal import format as encoding
from gateway.journal.contents import Flaw, Problem
from gateway.journal.evidence import Metadata, Witness
from tests.journal.installation import MARKER, NOW, OURS, THEIRS, WRITER, entry, segment, snapshot

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


def sealed(kind: str, *lines: str | bytes) -> bytes:
    """An object with a checksum that is right, as another program would have written it."""
    rest = b"".join((line.encode(errors="replace") if isinstance(line, str) else line) + b"\n" for line in lines)
    return b"fencing-journal 1 %s %d %s\n" % (kind.encode(), len(rest), encoding._digest(rest)) + rest


def changed(content: bytes, change: dict[str, object]) -> str:
    """The fields of an object, of which some are others."""
    return json.dumps({**json.loads(content.split(b"\n")[1]), **change})


@pytest.mark.parametrize(("content", "read", "name", "value"), CASES)
class TestEachKind:
    def test_is_read_back(self, content: bytes, read: Read, name: str, value: object) -> None:
        assert read(content, name, OURS) == value
        assert read(content, name, None) == value

    def test_of_another_installation_kind_or_version(
        self, content: bytes, read: Read, name: str, value: object
    ) -> None:
        assert problem(read(content, name, THEIRS)) is Problem.FOREIGN
        others = [one.values[0] for one in CASES if one.values[1] is not read]
        assert {problem(read(other, name, OURS)) for other in others} == {Problem.CORRUPT}
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
        assert problem(read(content + b"\n", name, OURS)) is Problem.CORRUPT, "with more behind it"


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
        changed(encoding.write_marker(MARKER), {"term": -1}),
        changed(encoding.write_marker(MARKER), {"base": True}),
        changed(encoding.write_marker(MARKER), {"run": {}}),
        changed(encoding.write_marker(MARKER), {"at": "2026-01-01T00:00:00"}),
        "[" * 100_000,
    ],
    ids=range(9),
)
def test_sealed_contents_that_make_no_sense_are_corrupt(fields: str) -> None:
    assert problem(encoding.read_marker(sealed("marker", fields), "marker", None)) is Problem.CORRUPT


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
    content = sealed("fences", json.dumps({"installation": OURS.hex}), line)
    assert problem(encoding.read_fences(content, "fences/1", OURS)) is Problem.CORRUPT


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("snapshot", {"number": 10**30}),
        ("snapshot", {"position": 2**63}),
        ("snapshot", {"fences": "marker"}),
        ("snapshot", {"fences": "fences/\0"}),
        ("marker", {"term": 2**63}),
        ("marker", {"epoch": 2**31 - 1}),
    ],
    ids=range(6),
)
def test_fields_that_no_database_can_take_are_corrupt(kind: str, change: dict[str, object]) -> None:
    content, read, name, _ = next(one.values for one in CASES if one.id == kind)
    assert problem(read(sealed(kind, changed(content, change)), name, OURS)) is Problem.CORRUPT


@given(st.binary(max_size=300))
def test_no_bytes_crash_it(content: bytes) -> None:
    for read in (encoding.read_marker, encoding.read_segment, encoding.read_snapshot, encoding.read_fences):
        assert isinstance(read(content, "marker", OURS), Flaw)


@given(st.text(max_size=60), st.text(max_size=30))
def test_no_lines_crash_it(first: str, second: str) -> None:
    content = sealed("fences", json.dumps({"installation": OURS.hex}), first, second)
    assert isinstance(encoding.read_fences(content, "fences/1", OURS), Flaw | dict)


WITNESS = Witness(["new key", "old key"])


def written(token: str = "1.5", witness: Witness = WITNESS) -> Metadata:
    signature = witness.sign("bucket", "a key\n", "job/5", token, "write")
    return Metadata("bucket", "a key\n", "job/5", token, "write", signature)


def test_a_signed_token_is_found() -> None:
    assert WITNESS.find(written()) == Token(1, 5)


@pytest.mark.parametrize(
    "forged",
    [
        {"token": "1.6"},
        {"key": "another key"},
        {"bucket": "another"},
        {"write_id": "another"},
        {"signature": "A" * 43},
        {"signature": "\u00e4\ud800"},
        {"signature": ""},
        {"signature": None},
        {"write_id": None},
        {"token": None},
        {"resource": None},
        {"resource": "job/6"},
    ],
    ids=str,
)
def test_forged_and_copied_metadata_prove_nothing(forged: dict[str, Any]) -> None:
    assert WITNESS.find(replace(written(), **forged)) is None


def test_a_signed_token_that_cannot_be_read_proves_nothing() -> None:
    assert WITNESS.find(written("not a token")) is None


def test_keys_can_be_replaced() -> None:
    assert WITNESS.find(written(witness=Witness(["old key"]))) == Token(1, 5)
    assert WITNESS.find(written(witness=Witness(["foreign key"]))) is None


def test_without_a_key_nothing_is_signed_and_nothing_proves() -> None:
    assert Witness().sign("bucket", "key", "job/5", "5", "write") is None
    assert Witness().find(written()) is None


def test_a_write_without_a_token_is_no_evidence() -> None:
    assert WITNESS.sign("bucket", "key", "job/5", "", "write") is None
