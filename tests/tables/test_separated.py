"""Comma-separated values."""

import pytest

from gateway.errors import DialectError
from gateway.tables.dialect.body import parse_csv


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("a,b\n1,2\n", [{"a": "1", "b": "2"}]),
        ("a,b\r\n1,2\r\n3,4", [{"a": "1", "b": "2"}, {"a": "3", "b": "4"}]),
        ('a,b\nNULL,"NULL"\n', [{"a": None, "b": "NULL"}]),
        ('a,b\n,""\n', [{"a": "", "b": ""}]),
        ('a,b\n"x ""y"", z","line\none"\n', [{"a": 'x "y", z', "b": "line\none"}]),
        ("a,b\n1,", [{"a": "1", "b": ""}]),
        ("a\n\n1\n", [{"a": ""}, {"a": "1"}]),
        ("a,b\n1,2\n\n", [{"a": "1", "b": "2"}]),
        ("\ufeffa\nx\u2028y\n", [{"a": "x\u2028y"}]),
        ('"first name"\nAnn\n', [{"first name": "Ann"}]),
        ("a,b", []),
        ('a,b\n"1",', [{"a": "1", "b": ""}]),
        ('a\n""', [{"a": ""}]),
        ('a\n"x"\n\n"y"\n', [{"a": "x"}, {"a": ""}, {"a": "y"}]),
        ("a,b\r1,2\r", [{"a": "1", "b": "2"}]),
    ],
)
def test_rows(text: str, rows: list[dict[str, str | None]]) -> None:
    assert parse_csv(text.encode())[1] == rows


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "Empty or invalid csv"),
        (b"\n1,2\n", "Empty or invalid csv"),
        (b"\xff\n1", "Empty or invalid csv"),
        (b'a\n"open', "Empty or invalid csv"),
        (b'a\n"x"y\n', "Empty or invalid csv"),
        (b'a\nx"y\n', "Empty or invalid csv"),
        (b'"', "Empty or invalid csv"),
        (b'""', "Empty or invalid csv"),
        (b"a\n" + b"\n" * 1_000_001, "A body of this type has at most 1000000 values"),
        (b"a,b\n1\n", "All lines must have same number of fields"),
        (b"a,b\n1,2,3\n", "All lines must have same number of fields"),
        (b"a,a\n1,2\n", "A name stands twice in the first line"),
    ],
)
def test_what_is_no_table(content: bytes, message: str) -> None:
    with pytest.raises(DialectError) as caught:
        parse_csv(content)
    assert (caught.value.code, caught.value.status, caught.value.message) == ("PGRST102", 400, message)
