"""Large JSON is read in pieces, to the same result, and no piece is more than a parser reads in a moment."""

import json
from functools import partial
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import BodyTooLarge
from gateway.tables.dialect import body
from gateway.tables.dialect.body import MAX_VALUES, PIECE, in_pieces

VALUES = st.recursive(
    st.one_of(st.none(), st.integers(-5, 5), st.sampled_from(['},{"', '"', "\\", "\\\\", "[{", "é"])),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(["a", '},{"']), inner)),
    max_leaves=12,
)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body, "PIECE", 16)


@pytest.mark.usefixtures("small")
@given(st.lists(VALUES, max_size=12), st.sampled_from([None, 1]))
def test_the_pieces_are_the_whole(document: list[Any], indent: int | None) -> None:
    text = json.dumps(document, indent=indent, ensure_ascii=False).encode()
    assert in_pieces(text, orjson.loads) == document


@pytest.mark.usefixtures("small")
@given(st.lists(VALUES, min_size=3, max_size=12), st.integers(0, 500), st.sampled_from([b"", b",", b"}", b"]", b'"']))
def test_what_is_no_json_is_none_in_pieces_either(document: list[Any], place: int, damage: bytes) -> None:
    text = json.dumps(document).encode()
    place %= len(text)
    damaged = text[:place] + damage + text[place + 1 :]
    results = []
    for read in (orjson.loads, partial(in_pieces, loads=orjson.loads)):
        try:
            results.append(read(damaged))
        except ValueError:
            results.append("no JSON")
    assert results[0] == results[1]


def test_each_piece_is_small() -> None:
    sizes: list[int] = []

    def loads(text: bytes) -> Any:
        sizes.append(len(text))
        return orjson.loads(text)

    document = [{"id": number, "tags": [{"a": 1}, {"b": 2}], "text": "},{"} for number in range(50_000)]
    assert in_pieces(orjson.dumps(document), loads) == document
    assert max(sizes) <= 2 * PIECE + 2
    assert sum(sizes) < 8 * len(orjson.dumps(document))


@pytest.mark.parametrize(
    "text",
    [
        b"[" + b"[]," * 2_000_000 + b"[]]",
        b'{"a":[' + b"1," * 2_000_000 + b"1]}",
        b'[{"a":[' + b"{}," * 2_000_000 + b"{}]}]",
        b'[{"id":1},{"a":[' + b"1," * 2_000_000 + b"1]}]",
    ],
    ids=["lists", "one object", "one row", "one row of two"],
)
def test_what_cannot_be_cut_has_a_limit_of_values(text: bytes) -> None:
    parsed: list[int] = []

    def loads(piece: bytes) -> Any:
        parsed.append(piece.count(b","))
        return orjson.loads(piece)

    with pytest.raises(BodyTooLarge):
        in_pieces(text, loads)
    assert max(parsed, default=0) <= MAX_VALUES


def test_commas_in_a_string_are_no_values() -> None:
    row = {"csv": "1,2,[{\n" * 500_000, "quoted": '\\"' * 100_000}
    assert in_pieces(orjson.dumps([row]), orjson.loads) == [row]
