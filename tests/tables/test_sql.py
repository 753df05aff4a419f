"""Statement text: values are always parameters, identifiers always quoted, one text for one shape."""

import pytest

from gateway.errors import DialectError
from gateway.fencing.resource import Template
from gateway.tables.dialect.request import parse
from gateway.tables.naming.plan import Rule, naming
from gateway.tables.sql.expressions import Statement
from gateway.tables.sql.shape import lower_read, lower_write
from gateway.tables.sql.statements import Statements, name_expression
from tests.tables.samples import ACCOUNTS, column, table

HOSTILE = 'x"; DROP TABLE accounts; --'
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
    assert [one for one in statement.arrange(values) if one is not True] == sent


def test_one_text_for_one_shape() -> None:
    assert read(b"id=eq.5")[0] is read(b"id=eq.6")[0]
    assert read(b"id=in.(1,2,3)")[0] is read(b"id=in.(4)")[0]
    assert write("PATCH", b"id=eq.1", "note")[0] is write("PATCH", b"id=eq.2", "note")[0]


def test_aliases_are_quoted() -> None:
    statement, _ = read(b'select="x%5C%22; DROP TABLE accounts; --":id')
    assert 'AS "x""; DROP TABLE accounts; --"' in statement.text


def test_hostile_identifiers_of_the_catalog_are_quoted() -> None:
    odd = table(column(HOSTILE), name=HOSTILE, key=(HOSTILE,))
    statements = Statements(odd, naming(odd, Rule()))
    request = parse("DELETE", b"", {})
    shape, _ = lower_write(request, odd, (), default_row=False, fenced=True)
    assert 'DELETE FROM "public"."x""; DROP TABLE accounts; --"' in statements.write(shape).text


def test_a_placeholder_in_an_alias_is_refused() -> None:
    with pytest.raises(DialectError) as caught:
        read(b'select="%25(v0)s":id&id=eq.1')
    assert caught.value.code == "PGRST127"


@pytest.mark.parametrize("query", [b"nope=eq.1", b"select=nope", b"order=nope", b"or=(nope.is.null)"])
def test_unknown_columns(query: bytes) -> None:
    with pytest.raises(DialectError) as caught:
        read(query)
    assert (caught.value.code, caught.value.status) == ("42703", 400)
    assert caught.value.message == "column accounts.nope does not exist"


def test_the_fenced_statement_touches_nothing_without_its_fence_row() -> None:
    for method, query in (("PATCH", b"id=eq.1"), ("DELETE", b"id=eq.1"), ("POST", b""), ("PUT", b"id=eq.1")):
        text = " ".join(
            write(method, query, *(() if method == "DELETE" else ("id", "note")), fenced=True)[0].text.split()
        )
        assert "FOR SHARE OF fence" in text
        assert "EXISTS (SELECT gw_fence.resource FROM gw_fence)" in text
        assert "fencing.refuse_mismatch_v1" in text
        assert "FROM fencing.intent" in text


def test_an_upsert_overwrites_neither_the_columns_in_conflict_nor_those_of_the_name() -> None:
    text = " ".join(
        write("POST", b"on_conflict=owner", "id", "note", "owner", prefer="resolution=merge-duplicates")[0].text.split()
    )
    assert 'ON CONFLICT ("owner") DO UPDATE SET "note" = excluded."note" RETURNING' in text


def test_an_upsert_of_nothing_but_its_key_still_touches_the_row() -> None:
    text = " ".join(write("POST", b"", "id", prefer="resolution=merge-duplicates")[0].text.split())
    assert 'DO UPDATE SET "id" = "accounts"."id"' in text


def test_the_name_of_a_row_is_compared_byte_by_byte() -> None:
    named = naming(ACCOUNTS, Rule(Template.parse("it's/{owner}/x/{id}")))
    assert name_expression(named) == (
        '(\'it\'\'s/\' || fencing.escape_v1("accounts"."owner"::text) || \'/x/\' || "accounts"."id"::bigint::text)'
        ' COLLATE "C"'
    )
