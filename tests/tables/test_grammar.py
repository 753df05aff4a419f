"""Names, JSON paths and quoted texts: what is read, where reading stops, and how errors are worded."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import DialectError
from gateway.tables.dialect.grammar import MAX_STEPS, Cursor, Field, read_field, read_name, read_quoted


@pytest.mark.parametrize(
    ("text", "name", "left"),
    [
        ("id", "id", ""),
        ("id,x", "id", ",x"),
        ("123", "123", ""),
        ("_", "_", ""),
        ("$", "$", ""),
        ("größe", "größe", ""),
        (" no spaces around ", "no spaces around", ""),
        ("with-dashes-inside", "with-dashes-inside", ""),
        ("data->a", "data", "->a"),
        ('":"', ":", ""),
        ('" kept "', " kept ", ""),
        ('"a\\"b\\\\c"', 'a"b\\c', ""),
        ('"a"b', "a", "b"),
    ],
)
def test_names(text: str, name: str, left: str) -> None:
    cursor = Cursor(text, "name")
    assert read_name(cursor) == name
    assert text[cursor.position :] == left


@pytest.mark.parametrize("text", ["", ":", "-a", "(", '""', '"a', "  ", ";", "%"])
def test_no_names(text: str) -> None:
    with pytest.raises(DialectError, match="failed to parse name"):
        read_name(Cursor(text, "name"))


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("c->text", (("->", "text"),)),
        ("c->>text", (("->>", "text"),)),
        ("c->!@#$%^&*_a", (("->", "!@#$%^&*_a"),)),
        ("c->1", (("->", 1),)),
        ("c->>-1", (("->>", -1),)),
        ("c->0->>b", (("->", 0), ("->>", "b"))),
        ("c->1a", (("->", "1a"),)),
        ('c->"a.b, c"->>"->"', (("->", "a.b, c"), ("->>", "->"))),
        ("c->a-b", (("->", "a-b"),)),
        ("c->a' OR true", (("->", "a' OR true"),)),
    ],
)
def test_paths(text: str, path: tuple[tuple[str, str | int], ...]) -> None:
    cursor = Cursor(text, "field")
    assert read_field(cursor) == Field("c", path)  # type: ignore[arg-type]  # arrows are literals there
    assert cursor.at_end


@pytest.mark.parametrize("text", ["c->", "c->>", "c->->a", "c->a->", "c->)"])
def test_unreadable_paths(text: str) -> None:
    with pytest.raises(DialectError, match="failed to parse field"):
        read_field(Cursor(text, "field"))


def test_a_path_has_a_limit() -> None:
    read_field(Cursor("c" + "->a" * MAX_STEPS, "field"))
    with pytest.raises(DialectError) as caught:
        read_field(Cursor("c" + "->a" * (MAX_STEPS + 1), "field"))
    assert caught.value.details == f"at most {MAX_STEPS} steps of a JSON path are taken"


def test_an_error_tells_where_and_what() -> None:
    cursor = Cursor("id!", "select parameter")
    read_name(cursor)
    with pytest.raises(DialectError) as caught:
        cursor.finish()
    assert caught.value.message == '"failed to parse select parameter (id!)" (line 1, column 3)'
    assert caught.value.details == "unexpected '!' expecting end of input"


@given(name=st.text(min_size=1).filter(lambda name: "\0" not in name))
def test_any_name_can_be_quoted(name: str) -> None:
    quoted = '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'
    cursor = Cursor(quoted, "name")
    assert read_name(cursor) == name
    assert cursor.at_end
    assert read_quoted(Cursor(quoted, "name")) == name
