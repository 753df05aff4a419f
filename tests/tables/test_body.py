"""Bodies: objects or arrays of like objects, and nothing else."""

import pytest

from gateway.errors import DialectError
from gateway.tables.dialect.body import parse, read
from gateway.tables.dialect.media import BodyType


@pytest.mark.parametrize(
    ("body", "columns", "expected_columns", "rows"),
    [
        (b'{"b":1,"a":2}', None, ("a", "b"), 1),
        (b'[{"a":1},{"a":2}]', None, ("a",), 2),
        (b"[]", None, (), 0),
        (b"{}", None, (), 1),
        (b'[{"a":1},{"b":2}]', ("a", "b"), ("a", "b"), 2),
        (b'{"a":1,"ignored":2}', ("a",), ("a",), 1),
        (b"5", None, (), 0),
        (b'"x"', None, (), 0),
        (b"null", ("a",), ("a",), 0),
    ],
)
def test_bodies(body: bytes, columns: tuple[str, ...] | None, expected_columns: tuple[str, ...], rows: int) -> None:
    payload = parse(body, columns)
    assert (payload.columns, len(payload.rows)) == (expected_columns, rows)
    assert payload.text.startswith("[")


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"{'a':1}", b'{"a":NaN}', b'{"a":Infinity}', b"\xff", b"[" * 5000, b'{"a":1}x', b'{"a":"\\ud800"}'],
)
def test_broken_bodies(body: bytes) -> None:
    with pytest.raises(DialectError) as caught:
        parse(body, None)
    assert (caught.value.code, caught.value.status, caught.value.message) == ("PGRST102", 400, "Empty or invalid json")


def test_rows_must_be_alike_unless_columns_are_named() -> None:
    with pytest.raises(DialectError, match="All object keys must match"):
        parse(b'[{"a":1},{"b":2}]', None)


@pytest.mark.parametrize("body", [b"[1]", b"[[]]", b'[{"a":1},null]'])
def test_arrays_of_anything_but_objects(body: bytes) -> None:
    with pytest.raises(DialectError, match="All object keys must match"):
        parse(body, None)


def test_a_form_is_one_row_of_texts() -> None:
    payload = read("urlencoded", b"b=x+y%26&a=&b=z", None)
    assert (payload.text, payload.columns) == ('[{"b":"z","a":""}]', ("a", "b"))
    assert payload.rows == [{"a": "", "b": "z"}]


@pytest.mark.parametrize("content", [b"a=%FF", b"a=\xff", b"&".join(b"a=1" for _ in range(10_001))])
def test_broken_forms(content: bytes) -> None:
    with pytest.raises(DialectError) as caught:
        read("urlencoded", content, None)
    assert (caught.value.code, caught.value.message) == ("PGRST102", "Empty or invalid form")


def test_a_table_of_values() -> None:
    payload = read("csv", b"b,a\n1,NULL\n", None)
    assert (payload.text, payload.columns) == ('[{"b":"1","a":null}]', ("a", "b"))


@pytest.mark.parametrize("kind", ["text", "binary"])
def test_rows_do_not_come_as_anything_else(kind: BodyType) -> None:
    with pytest.raises(DialectError) as caught:
        read(kind, b"x", None)
    assert caught.value.code == "PGRST102"


def test_exact_rows_have_the_digits_that_were_sent() -> None:
    body = b'{"a":18446744073709551616,"b":1.10,"c":-0,"d":1E2,"e":0.1234567890123456789,"f":true,"g":null,"h":"1.0"}'
    (row,) = parse(body, None).exact_rows()
    assert list(row.values()) == [
        "18446744073709551616", "1.10", "-0", "1E2", "0.1234567890123456789", True, None, "1.0",
    ]  # fmt: skip


def test_the_last_of_a_key_that_stands_twice() -> None:
    payload = parse(b'{"id":1,"\\u0069d":2}', None)
    assert payload.rows[0]["id"] == 2
    assert payload.exact_rows()[0]["id"] == "2"
