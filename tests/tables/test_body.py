"""Bodies: JSON, read in pieces where it is large, forms, and tables of values."""

import json
import tracemalloc
from functools import partial
from typing import Any
from unittest import mock
from urllib.parse import parse_qsl

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.errors import BodyTooLarge, DialectError
from gateway.tables.dialect import body as dialect_body
from gateway.tables.dialect.body import MAX_VALUES, PIECE, in_pieces, parse, parse_csv, read, size_as_json
from gateway.tables.dialect.request import BodyType


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"{'a':1}", b'{"a":NaN}', b'{"a":Infinity}', b"\xff", b"[" * 5000, b'{"a":1}x', b'{"a":"\\ud800"}'],
)
def test_broken_bodies(body: bytes) -> None:
    with pytest.raises(DialectError) as caught:
        parse(body, None)
    assert (caught.value.code, caught.value.status, caught.value.message) == ("PGRST102", 400, "Empty or invalid json")


@pytest.mark.parametrize("content", [b"a=%FF", b"a=\xff", b"&".join(b"a=1" for _ in range(10_001))])
def test_broken_forms(content: bytes) -> None:
    with pytest.raises(DialectError) as caught:
        read("urlencoded", content, None)
    assert (caught.value.code, caught.value.message) == ("PGRST102", "Empty or invalid form")


def test_a_form_has_no_more_names_than_a_table_has_columns() -> None:
    content = b"&".join(b"%d=" % number for number in range(1665))
    with pytest.raises(DialectError, match="at most 1664 names"):
        read("urlencoded", content, None)
    assert len(read("urlencoded", content[:-6] + b"&0=1" * 8000, None).columns) == 1664


@pytest.mark.parametrize("kind", ["text", "binary"])
def test_rows_do_not_come_as_anything_else(kind: BodyType) -> None:
    with pytest.raises(DialectError) as caught:
        read(kind, b"x", None)
    assert caught.value.code == "PGRST102"


def test_exact_rows_have_the_digits_that_were_sent() -> None:
    body = b'{"a":18446744073709551616,"b":1.10,"c":-0,"d":1E2,"e":0.1234567890123456789,"f":true,"g":null,"h":"1.0"}'
    payload = parse(body, None)
    assert [payload.exact_column(name)[0] for name in payload.columns] == [
        "18446744073709551616", "1.10", "-0", "1E2", "0.1234567890123456789", True, None, "1.0",
    ]  # fmt: skip


def test_the_last_of_a_key_that_stands_twice() -> None:
    payload = parse(b'{"id":1,"\\u0069d":2}', None)
    assert payload.column("id") == [2]
    assert payload.exact_column("id") == ["2"]


def test_tables_of_values(subtests: pytest.Subtests) -> None:
    for text, rows in (
        ("a,b\n1,2\n", [{"a": "1", "b": "2"}]), ("a,b\r\n1,2\r\n3,4", [{"a": "1", "b": "2"}, {"a": "3", "b": "4"}]),
        ('a,b\nNULL,"NULL"\n', [{"a": None, "b": "NULL"}]), ('a,b\n,""\n', [{"a": "", "b": ""}]),
        ('a,b\n"x ""y"", z","line\none"\n', [{"a": 'x "y", z', "b": "line\none"}]), ("a,b\n1,", [{"a": "1", "b": ""}]),
        ("a\n\n1\n", [{"a": ""}, {"a": "1"}]), ("a,b\n1,2\n\n", [{"a": "1", "b": "2"}]),
        ("\ufeffa\nx\u2028y\n", [{"a": "x\u2028y"}]), ('"first name"\nAnn\n', [{"first name": "Ann"}]), ("a,b", []),
        ('a,b\n"1",', [{"a": "1", "b": ""}]), ('a\n""', [{"a": ""}]),
        ('a\n"x"\n\n"y"\n', [{"a": "x"}, {"a": ""}, {"a": "y"}]), ("a,b\r1,2\r", [{"a": "1", "b": "2"}]),
    ):  # fmt: skip
        with subtests.test(text=text):
            assert list(parse_csv(text.encode())[1]) == rows
            with mock.patch.object(dialect_body, "_CHARACTERS", 3):
                assert list(parse_csv(text.encode())[1]) == rows


@pytest.mark.parametrize(
    ("content", "message"),
    [
        *((text, "Empty or invalid csv") for text in (
            b"", b"\n1,2\n", b"\xff\n1", b'a\n"open', b'a\n"x"y\n', b'a\nx"y\n', b'"', b'""',
        )),
        (b"a\n" + b"\n" * 1_000_001, "A body of this type has at most 1000000 values"),
        (b"a,b\n1\n", "All lines must have same number of fields"),
        (b"a,b\n1,2,3\n", "All lines must have same number of fields"),
        (b"a,a\n1,2\n", "A name stands twice in the first line"),
        (b"," * 1664 + b"a\n", "The first line has more than 1664 names"),
    ],
)  # fmt: skip
def test_broken_tables_of_values(content: bytes, message: str) -> None:
    with pytest.raises(DialectError) as caught:
        list(parse_csv(content)[1])
    assert (caught.value.code, caught.value.status, caught.value.message) == ("PGRST102", 400, message)


@given(st.text("a,\r\n", max_size=40), st.integers(1, 9))
def test_the_pieces_of_a_table_of_values_are_the_whole(text: str, characters: int) -> None:
    content, results = f"a,a\n{text}".encode(), []
    for size in (characters, 1000):
        with mock.patch.object(dialect_body, "_CHARACTERS", size):
            results.append(list(dialect_body._lines(content.decode())))
    assert results[0] == results[1]


@given(st.text("a=&%+4cC3é", max_size=60), st.integers(1, 9))
def test_a_form_is_read_as_by_the_library(text: str, characters: int) -> None:
    content = text.encode().replace("é".encode(), b"%C3%A9")
    try:
        expected = parse_qsl(content.decode(), keep_blank_values=True, errors="strict")
    except ValueError:
        expected = None
    with mock.patch.object(dialect_body, "_CHARACTERS", characters):
        try:
            assert list(dialect_body._form(content)) == expected
        except DialectError:
            assert expected is None


@pytest.mark.parametrize("kind", ["json", "csv"])
def test_columns_of_large_bodies_are_those_of_their_rows(kind: BodyType) -> None:
    rows = [{"id": number, "name": f"n{number}", "tags": [1]} for number in range(5000)]
    content = orjson.dumps(rows)
    if kind == "csv":
        content = b"id,name,tags\n" + b"".join(b"%d,n%d,x\n" % (number, number) for number in range(5000))
    ids = list(range(5000)) if kind == "json" else list(map(str, range(5000)))
    for picked in ((), ("id", "name")):
        payload = read(kind, content, None, picked)
        assert (payload.number, payload.columns, payload.rows) == (5000, ("id", "name", "tags"), None)
        assert payload.column("id") == ids
        assert payload.exact_column("id") == list(map(str, ids))
        assert payload.column("name")[4999] == "n4999"
        assert orjson.loads(payload.text)[4999]["name"] == "n4999"
    if kind == "json":
        assert payload.column("tags") == [None] * 5000
        with pytest.raises(DialectError, match="keys must match"):
            read(kind, content[:-1] + b',{"id":1}]', None)
        with pytest.raises(DialectError, match="keys must match"):
            read(kind, content[:-1] + b",1]", None)


_PARTS = st.text(alphabet='a1,;=&%"\\\x01\n\r\té', max_size=40)


@given(st.sampled_from(["csv", "urlencoded"]), st.lists(_PARTS, min_size=1, max_size=6))
@example("csv", ["\x01" * 40, "\n", "1\n" * 20])
@example("urlencoded", ["a=%01%02%03\x01"])
def test_the_size_of_rows_as_json_is_known_before_they_are_made(kind: BodyType, parts: list[str]) -> None:
    content = "".join(parts).encode()
    try:
        payload = read(kind, content, None)
    except DialectError:
        return
    assert len(payload.text.encode()) <= size_as_json(kind, content)


def test_what_stays_in_memory_of_a_body_is_its_text() -> None:
    for content in (b'[{"a":[' + b"{}," * 20_000 + b"{}]}]", b"[" + b'{"a":[]},' * 8000 + b'{"a":[]}]'):
        tracemalloc.start()
        try:
            payload = read("json", content, None, ("a",))
            kept = tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
        assert payload.number in (1, 8001)
        assert kept < 4 * len(content)


VALUES = st.recursive(
    st.one_of(st.none(), st.integers(-5, 5), st.sampled_from(['},{"', '"', "\\", "\\\\", "[{", "é"])),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(["a", '},{"']), inner)),
    max_leaves=12,
)


@given(st.lists(VALUES, max_size=12), st.sampled_from([None, 1]))
def test_the_pieces_are_the_whole(document: list[Any], indent: int | None) -> None:
    text = json.dumps(document, indent=indent, ensure_ascii=False).encode()
    with mock.patch.object(dialect_body, "PIECE", 16):
        assert in_pieces(text, orjson.loads) == document


@given(st.lists(VALUES, min_size=3, max_size=12), st.integers(0, 500), st.sampled_from([b"", b",", b"}", b"]", b'"']))
def test_what_is_no_json_is_none_in_pieces_either(document: list[Any], place: int, damage: bytes) -> None:
    text = json.dumps(document).encode()
    place %= len(text)
    damaged = text[:place] + damage + text[place + 1 :]
    results = []
    for loads in (orjson.loads, partial(in_pieces, loads=orjson.loads)):
        try:
            with mock.patch.object(dialect_body, "PIECE", 16):
                results.append(loads(damaged))
        except ValueError:
            results.append("no JSON")
    assert results[0] == results[1]


def test_each_piece_is_small() -> None:
    sizes: list[int] = []

    def loads(text: bytes) -> Any:
        sizes.append(len(text))
        return orjson.loads(text)

    document = [{"id": number, "tags": [{"a": 1}, {"b": 2}], "text": "},{"} for number in range(20_000)]
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
