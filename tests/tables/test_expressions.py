"""The pieces of SQL: quoting, and how many statements are kept."""

import pytest

from gateway.errors import DialectError
from gateway.tables.sql import expressions
from gateway.tables.sql.expressions import Statement, kept, quote, reference, string


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("id", '"id"'),
        ('a"b', '"a""b"'),
        ("a'b", '"a\'b"'),
        ("a.b", '"a.b"'),
        ("%s", '"%s"'),
        (":x", '":x"'),
        ("a\\", '"a\\"'),
        ("; --", '"; --"'),
    ],
)
def test_names_are_quoted(name: str, expected: str) -> None:
    assert quote(name) == expected
    assert reference(name, name) == f"{expected}.{expected}"


def test_texts_are_quoted() -> None:
    assert string("it's") == "'it''s'"


@pytest.mark.parametrize("name", ["%(x)s", "a\0b"])
def test_what_cannot_be_quoted_is_refused(name: str) -> None:
    for piece in (quote, string):
        with pytest.raises(DialectError) as caught:
            piece(name)
        assert caught.value.code == "PGRST127"


def test_a_statement_is_made_once_for_a_shape_as_long_as_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expressions, "MOST_KEPT", 3)
    monkeypatch.setattr(expressions, "MOST_KEPT_TEXT", 100)
    asked: list[int] = []

    def make(size: int) -> Statement:
        asked.append(size)
        return Statement("x" * size, ())

    read = kept(make)
    assert read(1) is read(1)
    for size in (2, 3, 2, 3, 1):
        read(size)
    assert asked == [1, 2, 3]
    read(4)  # the fourth: the oldest goes
    read(1)
    assert asked == [1, 2, 3, 4, 1]
    read(99)  # hardly anything else fits beside it
    read(1)
    read(4)
    assert asked == [1, 2, 3, 4, 1, 99, 4]
