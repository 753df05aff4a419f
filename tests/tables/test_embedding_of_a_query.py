"""Embedded tables in SQL: one subquery each, values as parameters, names quoted."""

import re

import pytest

from gateway.errors import DialectError
from gateway.tables.catalog.relations import Relations
from gateway.tables.catalog.snapshot import Table
from gateway.tables.dialect.request import parse
from gateway.tables.sql.shape import lower_read
from gateway.tables.sql.statements import Statements
from tests.tables.test_relations import BY_NAME, TABLES, key
from tests.tables.test_relations import table as related

HOSTILE = related('x"; --', key("k", "films", "a'b"))
POLICED = related("policed", key("p", "films", "film_id"))


def statement(query: bytes, *more: Table, origin: str = "films") -> tuple[str, dict[str, object]]:
    relations = Relations({(one.schema, one.name): one for one in (*TABLES, *more)})
    shape, values = lower_read(parse("GET", query, {}), counted=True)
    made = Statements(BY_NAME[origin], None, relations).read(shape)
    assert set(made.names) <= set(values)
    # Parameters are numbered through the whole statement, which has others too.
    return re.sub(r"\$[0-9]+", "$", " ".join(made.text.split())), values


def test_one_related_row() -> None:
    text, _ = statement(b"select=id,d:directors(id)&directors.id=gt.5")
    assert (
        '(SELECT row_to_json(gw_rows.*) AS row_to_json_1 FROM (SELECT "gw_target"."id" AS "id" '
        'FROM "public"."directors" AS gw_target WHERE ("films"."director_id" = "gw_target"."id") '
        'AND ("gw_target"."id" > CAST($::VARCHAR AS bigint))) AS gw_rows) AS "d"'
    ) in text


def test_many_related_rows() -> None:
    text, values = statement(b"select=films(id)&films.order=id.desc&films.limit=3&films.offset=2", origin="directors")
    assert "coalesce(json_agg(gw_rows.*), '[]'::json)" in text
    assert 'ORDER BY "gw_target"."id" DESC LIMIT $::BIGINT OFFSET $::BIGINT' in text
    assert (values["v0"], values["v1"]) == (3, 2)


def test_a_junction() -> None:
    text, _ = statement(b"select=actors(id)")
    assert (
        'FROM "public"."actors" AS gw_target, "public"."roles" AS gw_junction '
        'WHERE ("films"."id" = "gw_junction"."film_id") AND ("gw_target"."id" = "gw_junction"."actor_id")'
    ) in text


def test_an_inner_join_narrows_the_page_and_the_count() -> None:
    text, _ = statement(b"select=id,directors!inner(id)&directors.id=gt.5")
    condition = (
        'WHERE EXISTS (SELECT 1 FROM "public"."directors" AS gw_target '
        'WHERE ("films"."director_id" = "gw_target"."id") AND ("gw_target"."id" > CAST($::VARCHAR AS bigint)))'
    )
    assert text.count(condition) == 2


def test_values_and_names_stay_what_they_are() -> None:
    query = b"select=%22l%5C%22;%22:%22x%5C%22; --%22!%22a'b%22!inner(%22n;%22:%22a'b%22)&%22l%5C%22;%22.id=eq.HOSTILE"
    text, values = statement(query, HOSTILE)
    assert '"public"."x""; --" AS gw_target' in text
    assert 'AS "l"";"' in text
    assert '"gw_target"."a\'b" AS "n;"' in text
    assert "HOSTILE" not in text
    assert values["v0"] == "HOSTILE"


def test_the_same_shape_is_the_same_statement() -> None:
    relations = Relations({(one.schema, one.name): one for one in TABLES})
    statements = Statements(BY_NAME["films"], None, relations)
    first, second = (
        statements.read(lower_read(parse("GET", query, {}), counted=False)[0])
        for query in (b"select=directors(id)&directors.id=eq.1", b"select=directors(id)&directors.id=eq.2")
    )
    assert first is second


def test_policies_of_related_tables_count() -> None:
    policed = Table(
        "public", "policed", "r", POLICED.columns, ("id",), foreign_keys=POLICED.foreign_keys, row_security=True
    )
    relations = Relations({(one.schema, one.name): one for one in (*TABLES, policed)})
    statements = Statements(BY_NAME["films"], None, relations)
    for query, runs_code in ((b"select=policed(id)", True), (b"select=directors(id)", False), (b"", False)):
        shape, _ = lower_read(parse("GET", query, {}), counted=False)
        assert statements.read(shape).runs_code is runs_code


@pytest.mark.parametrize(
    ("query", "code"),
    [
        (b"select=actors(id)&order=actors(id)", "PGRST118"),
        (b"select=nothing(id)", "PGRST200"),
        (b"select=directors(nope)", "42703"),
    ],
)
def test_what_cannot_be(query: bytes, code: str) -> None:
    with pytest.raises(DialectError) as caught:
        statement(query)
    assert caught.value.code == code
