"""Statement text: values are always parameters, identifiers always quoted, one text for one shape.

The check inside each write asks for all that matters, and for nothing that a table has anyway.
"""

from dataclasses import replace

import pytest

from gateway.errors import DialectError, SqlError
from gateway.fencing.resource import Template
from gateway.tables.catalog import Trigger
from gateway.tables.dialect.request import parse
from gateway.tables.naming import Rule, naming
from gateway.tables.sql import expressions
from gateway.tables.sql.expressions import (
    Statement,
    kept,
    quote,
    reference,
    string,
    tells_of_change,
    unchanged,
)
from gateway.tables.sql.shape import MOST, lower_read, lower_write
from gateway.tables.sql.statements import Statements, name_expression
from tests.tables.asking import ACCOUNTS, column, table


def test_names_are_quoted() -> None:
    for name in ("id", "a'b", "a.b", "%s", ":x", "a\\", "; --"):
        assert (quote(name), reference(name, name)) == (f'"{name}"', f'"{name}"."{name}"')
    assert quote('a"b') == '"a""b"'
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
    read(4)  # the fourth: the others go
    read(1)
    assert asked == [1, 2, 3, 4, 1]
    read(99)  # hardly anything else fits beside it
    read(99)
    read(4)
    assert asked == [1, 2, 3, 4, 1, 99, 4]


STATEMENTS = Statements(ACCOUNTS, naming(ACCOUNTS, Rule()))


def read(query: bytes, *, counted: bool = False) -> tuple[Statement, dict[str, object]]:
    shape, values = lower_read(parse("GET", query, {}), counted=counted)
    return STATEMENTS.read(shape), values


def write(
    method: str, query: bytes, *columns: str, prefer: str = "", fenced: bool = False, default_row: bool = False
) -> tuple[Statement, dict[str, object]]:
    request = parse(method, query, {b"prefer": prefer})
    shape, values = lower_write(request, ACCOUNTS, columns, default_row=default_row, fenced=fenced)
    return STATEMENTS.write(shape), values


def test_values_never_enter_the_text() -> None:
    query = b"owner=eq.HOSTILE&extra->>HOSTILE=eq.HOSTILE&owner=in.(HOSTILE)&or=(owner.like.HOSTILE)"
    statement, values = read(query)
    assert "HOSTILE" not in statement.text
    sent = [values[f"v{number}"] for number in range(5)]
    assert sent == ["HOSTILE", "HOSTILE", "HOSTILE", ["HOSTILE"], "HOSTILE"]
    assert [one for one in statement.arrange(values | {MOST: True}) if one is not True] == sent


def test_one_text_for_one_shape() -> None:
    assert read(b"id=eq.5")[0] is read(b"id=eq.6")[0]
    assert read(b"id=in.(1,2,3)")[0] is read(b"id=in.(4)")[0]
    assert write("PATCH", b"id=eq.1", "note")[0] is write("PATCH", b"id=eq.2", "note")[0]


def test_the_fenced_statement_touches_nothing_without_its_fence_row() -> None:
    for method, query in (("PATCH", b"id=eq.1"), ("DELETE", b"id=eq.1"), ("POST", b""), ("PUT", b"id=eq.1")):
        text = " ".join(
            write(method, query, *(() if method == "DELETE" else ("id", "note")), fenced=True)[0].text.split()
        )
        assert "FOR SHARE OF fence" in text
        assert "EXISTS (SELECT gw_fence.resource FROM gw_fence)" in text
        assert "fencing.refuse_mismatch_v1" in text
        assert "FROM fencing.intent" in text


def test_only_inserts_that_give_all_of_their_name_share_a_statement() -> None:
    for columns, shared in (("id",), True), (("id", "note"), True), (("note",), False):
        statement, _ = write("POST", b"", *columns, fenced=True)
        assert (statement.together is not None) is shared
        assert statement.size == len(statement.text) + (len(statement.together.text) if statement.together else 0)


def test_the_name_of_a_row_is_compared_byte_by_byte() -> None:
    named = naming(ACCOUNTS, Rule(Template.parse("it's/{owner}/x/{id}")))
    assert name_expression(named) == (
        '(\'it\'\'s/\' || fencing.escape_v1("accounts"."owner"::text) || \'/x/\' || "accounts"."id"::bigint::text)'
        ' COLLATE "C"'
    )


KNOWN = replace(ACCOUNTS, oid=1234, primary_key_index=1240, column_versions="{7,7,8}")

EACH_STATEMENT = Trigger("t", "after", each_row=False)


def test_where_others_carry_out_its_writes_foreign_tables_are_asked_for() -> None:
    for known in (KNOWN, replace(KNOWN, triggers=(EACH_STATEMENT,))):
        assert "foreign" not in unchanged(known, None)
    for change in ({"kind": "p"}, {"kind": "v"}, {"has_children": True}, {"has_rules": True}):
        for reaches in (True, False):
            known = replace(KNOWN, reaches_foreign=reaches, **change)
            assert unchanged(known, None).endswith(f" AND fencing.check_foreign_v1(1234, {str(reaches).lower()})")


def test_hostile_names_stay_names() -> None:
    text = unchanged(table(column("id"), name="o'); DROP TABLE \"x"), None)
    assert """'"public"."o''); DROP TABLE ""x"', 'r'""" in text


def test_what_tells_of_a_change(subtests: pytest.Subtests) -> None:
    for sqlstate, message, tells in (
        ("42P01", "fencing.a_table_that_has_changed", True), ("42P01", 'relation "accounts" does not exist', False),
        ("P0001", "fencing.a_table_that_has_changed", False),
    ):  # fmt: skip
        with subtests.test(sqlstate=sqlstate):
            assert tells_of_change(SqlError(sqlstate, message)) is tells
