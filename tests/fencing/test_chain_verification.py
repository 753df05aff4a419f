"""The verifier finds what was done to an export, says where, and needs no memory for it."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.fencing.chain_verification import FIELDS, START, Flaw, Unreadable, Verifier, canonical, next_hash, parse

EMPTY = dict.fromkeys(FIELDS)


def line(position: int, before: str, **fields: Any) -> str:
    """An entry that follows on this hash."""
    entry = EMPTY | {"position": position, "kind": "rejection", "holder": f"holder {position}"} | fields
    text = canonical(parse(json.dumps({**entry, "hash": ""})))
    return text.decode()[:-1] + f',"hash":"{next_hash(bytes.fromhex(before), text).hex()}"}}'


def record(count: int, special: Mapping[int, dict[str, Any]] | None = None) -> list[str]:
    """So many entries in a chain; ``special``: fields of some, by position."""
    lines: list[str] = []
    for position in range(1, count + 1):
        before = hash_of(lines[-1]) if lines else START.hex()
        lines.append(line(position, before, **(special or {}).get(position, {})))
    return lines


def hash_of(text: str) -> str:
    return str(json.loads(text)["hash"])


def verified(lines: list[str], **given: Any) -> tuple[list[tuple[Flaw, int, int]], Verifier]:
    verifier = Verifier(**given)
    found = [finding for text in lines for finding in verifier.take(text)]
    return [(one.flaw, one.position, one.last) for one in (*found, *verifier.finish())], verifier


WHOLE = record(8)
WITNESSES = {position: hash_of(text) for position, text in enumerate(WHOLE, 1)}


def test_a_whole_record_is_whole() -> None:
    found, verifier = verified(WHOLE, witnesses=WITNESSES, after=0)
    assert found == []
    assert (verifier.first, verifier.last, verifier.head) == (1, 8, WITNESSES[8])
    assert (verifier.lines, verifier.anchored) == (8, True)


def test_nothing_is_whole_unless_something_was_seen() -> None:
    assert verified([], after=0)[0] == []
    assert verified([], witnesses={5: WITNESSES[5]})[0] == [(Flaw.MISSING, 1, 5)]


@given(st.integers(0, 7), st.sampled_from(sorted(set(FIELDS) - {"position"})))
def test_a_change_is_found_where_it_is(index: int, field: str) -> None:
    lines = [*WHOLE]
    lines[index] = json.dumps(json.loads(lines[index]) | {field: "another"})
    assert verified(lines)[0] == [(Flaw.CHANGED, index + 1, index + 1)]


@given(st.sets(st.integers(1, 8), min_size=1, max_size=7))
def test_entries_that_are_gone_are_found_as_far_as_their_neighbours_or_witnesses_tell(gone: set[int]) -> None:
    lines = [text for position, text in enumerate(WHOLE, 1) if position not in gone]
    found, _ = verified(lines, witnesses={8: WITNESSES[8]}, after=0)
    missing = {position for flaw, first, last in found if flaw is Flaw.MISSING for position in range(first, last + 1)}
    leading = set(range(1, min(set(range(1, 9)) - gone)))
    assert missing == gone - leading
    assert ((Flaw.START, len(leading) + 1, len(leading) + 1) in found) == bool(leading)


@given(st.permutations(range(8)))
def test_another_order_is_found(order: list[int]) -> None:
    found, _ = verified([WHOLE[index] for index in order], after=0)
    assert (found == []) == (order == sorted(order))
    assert not [one for one in found if one[0] in (Flaw.MISSING, Flaw.DOUBLED, Flaw.CHANGED)], "they are all there"


@given(st.integers(0, 7), st.integers(0, 7))
def test_a_line_that_comes_twice_is_found(index: int, later: int) -> None:
    place = max(index, later) + 1
    found, _ = verified([*WHOLE[:place], WHOLE[index], *WHOLE[place:]])
    assert found == [(Flaw.DOUBLED, index + 1, index + 1)]


@given(st.integers(1, 8), st.integers(1, 8))
def test_a_history_written_anew_is_found_by_a_witness_from_there_on(changed: int, seen: int) -> None:
    anew = record(8, {changed: {"holder": "somebody else"}})
    found, _ = verified(anew, witnesses={seen: WITNESSES[seen]})
    assert found == ([(Flaw.WITNESS, seen, seen)] if seen >= changed else [])


class TestBeginnings:
    def test_one_that_is_not_what_was_said(self) -> None:
        assert verified(WHOLE[3:], after=0)[0] == [(Flaw.START, 4, 4)]
        assert verified(WHOLE, after=3)[0] == [(Flaw.START, 1, 1)]

    def test_one_that_nobody_vouches_for(self) -> None:
        found, verifier = verified(WHOLE[3:], after=3)
        assert (found, verifier.anchored) == ([], False)

    def test_one_that_follows_on_a_witness(self) -> None:
        found, verifier = verified(WHOLE[3:], witnesses={3: WITNESSES[3]}, after=3)
        assert (found, verifier.anchored) == ([], True)
        assert verified(WHOLE[3:], witnesses={3: WITNESSES[4]}, after=3)[0] == [(Flaw.CHANGED, 4, 4)]

    def test_one_behind_days_that_somebody_has_removed(self) -> None:
        """Of the whole record: then the record itself must say that they were dropped. A witness does not say so."""
        assert verified(WHOLE, whole=True)[0] == []
        assert verified(WHOLE[3:], whole=True)[0] == [(Flaw.MISSING, 1, 3)]
        assert verified(WHOLE[3:], whole=True, witnesses={3: WITNESSES[3]})[0] == [(Flaw.MISSING, 1, 3)]
        dropped = record(8, {7: {"kind": "retention", "details": {"last": 3, "hash": WITNESSES[3]}}})
        assert verified(dropped[3:], whole=True)[0] == []
        assert verified(dropped[3:], whole=True, witnesses={3: WITNESSES[3]})[0] == []
        assert verified(dropped[5:], whole=True)[0] == [(Flaw.MISSING, 1, 5)], "more is gone than was dropped"

    def test_one_that_follows_on_days_that_were_dropped(self) -> None:
        lines = record(8, {7: {"kind": "retention", "details": {"last": 3, "hash": WITNESSES[3]}}})[3:]
        found, verifier = verified(lines, after=3)
        assert (found, verifier.anchored) == ([], True)
        lines[0] = json.dumps(json.loads(lines[0]) | {"holder": "another"})
        assert verified(lines, after=3)[0] == [(Flaw.CHANGED, 4, 4)]

    @pytest.mark.parametrize(
        "details", [None, {}, {"last": 2, "hash": "ab" * 32}, {"last": 3, "hash": "x"}, {"last": "3"}, [3]]
    )
    def test_one_for_which_an_entry_vouches_badly(self, details: Any) -> None:
        dropped = {"kind": "retention", "details": details}
        found, verifier = verified(record(8, {7: dropped})[3:], after=3)
        assert (found, verifier.anchored) == ([], False)


LINE = json.loads(WHOLE[0])
NO_ENTRIES = [
    *("", "{", "[]", "null", '"x"', "{}", "\xff", "[" * 100_000),
    *(json.dumps({**LINE, "hash": value}) for value in ("ab", None, LINE["hash"].upper())),
    *(json.dumps({**LINE, "position": value}) for value in ("1", True, 0, 1.0, 10**30)),
    *(json.dumps({**LINE, **other}) for other in ({"more": 1}, {"payload_size": float("nan")}, {"holder": "\ud800"})),
    json.dumps({key: LINE[key] for key in LINE if key != "holder"}),
    WHOLE[0].replace('"holder":', '"holder":"another","holder":'),
    WHOLE[0] + WHOLE[1],
]


@pytest.mark.parametrize("text", NO_ENTRIES)
def test_what_is_no_entry_is_said_to_be_none_and_the_rest_goes_on(text: str) -> None:
    found, _ = verified([*WHOLE[:2], text, *WHOLE[2:]])
    assert found == [(Flaw.UNREADABLE, 0, 0)]
    assert Verifier().take(text)[0].line == 1
    with pytest.raises(Unreadable):
        parse(b"\xff\xfe")  # bytes that are no text


@pytest.mark.parametrize("size", ["0.0", "00", "-0", "1e2", '"0"', "false"])
def test_a_number_is_its_digits(size: str) -> None:
    """A number in the record has one spelling, even if a reader takes others for the same."""
    lines = record(1, {1: {"payload_size": 0}})
    lines[0] = lines[0].replace('"payload_size":0', f'"payload_size":{size}')
    assert verified(lines)[0] != []


def test_however_much_is_missing_no_memory_is_needed() -> None:
    lines = record(1)
    verifier = Verifier()
    found = verifier.take(lines[0])
    for position in range(3, 24_000, 2):
        found += verifier.take(WHOLE[1].replace('"position":2', f'"position":{position}'))
    assert len(verifier._gaps) <= 10_000
    assert len([*found, *verifier.finish()]) == len(range(3, 24_000, 2))


def test_a_witness_is_a_hash() -> None:
    with pytest.raises(ValueError, match="64 hex digits"):
        Verifier({1: "abc"})
