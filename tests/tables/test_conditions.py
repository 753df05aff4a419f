"""Fields and filters in SQL: every operator, the type its value is cast to, and where values come from."""

import re
from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

import pytest
import sqlalchemy as sa

from gateway.errors import DialectError
from gateway.tables.catalog.snapshot import Column
from gateway.tables.dialect.request import parse
from gateway.tables.sql.expressions import compiled
from gateway.tables.sql.shape import ReadShape, lower_read
from gateway.tables.sql.where import Conditions
from tests.tables.samples import column, table

HOSTILE = ('x"; DROP TABLE t; --', "a'b", ":x", "%s", "%%", "$1", "a.b", "\\", "x)", "/*", "ü", " ", "{0}", "a%b(c)s")
THINGS = table(
    column("id"),
    column("owner", "text"),
    column("tags", "text[]"),
    column("span", "int4range"),
    column("words", "tsvector"),
    column("extra", "jsonb", is_json=True),
    column("old", "json", is_json=True),
    column("place", "point"),
    Column("mood", "public.feeling", "public.feeling", "public.mood", is_enum=True),
    *(column(name) for name in HOSTILE),
    name="t",
)


def lowered(query: bytes) -> tuple[ReadShape, dict[str, object]]:
    return lower_read(parse("GET", query, {}), counted=False)


def slots(values: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in values.items() if re.fullmatch("v[0-9]+", name)}


def shown(expression: sa.ColumnElement[Any]) -> str:
    """The text of one expression."""
    return " ".join(compiled(sa.select(expression)).text.split()).removeprefix("SELECT ").split(" AS anon")[0]


def condition(query: bytes) -> str:
    shape, _ = lowered(query)
    return shown(Conditions(THINGS).condition(shape.filters[0], "t"))


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (b"id=eq.5", '"t"."id" = CAST($1::VARCHAR AS bigint)'),
        (b"id=neq.5", '"t"."id" <> CAST($1::VARCHAR AS bigint)'),
        (b"id=gt.5", '"t"."id" > CAST($1::VARCHAR AS bigint)'),
        (b"id=gte.5", '"t"."id" >= CAST($1::VARCHAR AS bigint)'),
        (b"id=lt.5", '"t"."id" < CAST($1::VARCHAR AS bigint)'),
        (b"id=lte.5", '"t"."id" <= CAST($1::VARCHAR AS bigint)'),
        (b"id=isdistinct.5", '"t"."id" IS DISTINCT FROM CAST($1::VARCHAR AS bigint)'),
        (b"owner=like.*a*", '"t"."owner" LIKE CAST($1::VARCHAR AS text)'),
        (b"owner=ilike.*a*", '"t"."owner" ILIKE CAST($1::VARCHAR AS text)'),
        (b"owner=match.a", '"t"."owner" ~ CAST($1::VARCHAR AS text)'),
        (b"owner=imatch.a", '"t"."owner" ~* CAST($1::VARCHAR AS text)'),
        (b"id=eq(any).{1}", '"t"."id" = any(CAST($1::VARCHAR AS bigint[]))'),
        (b"id=lt(all).{1}", '"t"."id" < all(CAST($1::VARCHAR AS bigint[]))'),
        (b"owner=ilike(any).{a*}", '"t"."owner" ILIKE any(CAST($1::VARCHAR AS text[]))'),
        (b"id=in.(1,2)", '"t"."id" = any(CAST($1::TEXT[] AS bigint[]))'),
        (b"owner=is.null", '"t"."owner" IS NULL'),
        (b"mood=eq.sad", 'CAST("t"."mood" AS public.mood) = CAST($1::VARCHAR AS public.mood)'),
        (b"mood=in.(sad)", 'CAST("t"."mood" AS public.mood) = any(CAST($1::TEXT[] AS public.mood[]))'),
        (b"mood=is.null", '"t"."mood" IS NULL'),
        (b"owner=is.not_null", '"t"."owner" IS NOT NULL'),
        (b"tags=cs.{a}", '"t"."tags" @> CAST($1::VARCHAR AS text[])'),
        (b"tags=cd.{a}", '"t"."tags" <@ CAST($1::VARCHAR AS text[])'),
        (b"tags=ov.{a}", '"t"."tags" && CAST($1::VARCHAR AS text[])'),
        (b"span=sl.(1,2)", '"t"."span" << CAST($1::VARCHAR AS int4range)'),
        (b"span=sr.(1,2)", '"t"."span" >> CAST($1::VARCHAR AS int4range)'),
        (b"span=nxr.(1,2)", '"t"."span" &< CAST($1::VARCHAR AS int4range)'),
        (b"span=nxl.(1,2)", '"t"."span" &> CAST($1::VARCHAR AS int4range)'),
        (b"span=adj.(1,2)", '"t"."span" -|- CAST($1::VARCHAR AS int4range)'),
        (b"words=fts.cat", '"t"."words" @@ to_tsquery($1::VARCHAR)'),
        (b"words=plfts(english).cat", '"t"."words" @@ plainto_tsquery(CAST($1 AS regconfig), $2::VARCHAR)'),
        (b"owner=phfts.cat", 'to_tsvector("t"."owner") @@ phraseto_tsquery($1::VARCHAR)'),
        (
            b"owner=wfts(english).cat",
            (
                'to_tsvector(CAST($1 AS regconfig), "t"."owner") @@ '
                "websearch_to_tsquery(CAST($1 AS regconfig), $2::VARCHAR)"
            ),
        ),
        (b"extra->a=fts.cat", 'to_tsvector("t"."extra" -> $1::VARCHAR) @@ to_tsquery($2::VARCHAR)'),
        (b"extra->>a=eq.x", '("t"."extra" ->> $1::VARCHAR) = CAST($2::VARCHAR AS text)'),
        (b"extra->0->a=eq.1", '(("t"."extra" -> $1::INTEGER) -> $2::VARCHAR) = CAST($3::VARCHAR AS jsonb)'),
        (b"old->>a=eq.x", '("t"."old" ->> $1::VARCHAR) = CAST($2::VARCHAR AS text)'),
        (b"old->a=eq.1", '(to_jsonb("t"."old") -> $1::VARCHAR) = CAST($2::VARCHAR AS jsonb)'),
        (b"tags->>0=eq.x", '(to_jsonb("t"."tags") ->> $1::INTEGER) = CAST($2::VARCHAR AS text)'),
        (
            b"or=(id.eq.1,not.and(id.gt.2,owner.is.null))",
            (
                '("t"."id" = CAST($1::VARCHAR AS bigint)) OR '
                'NOT (("t"."id" > CAST($2::VARCHAR AS bigint)) AND ("t"."owner" IS NULL))'
            ),
        ),
    ],
)
def test_conditions(query: bytes, expected: str) -> None:
    name, _, value = query.partition(b"=")
    assert condition(query) == expected
    if name != b"or":
        assert condition(name + b"=not." + value).replace("(", "").replace(")", "") in (
            f"NOT {expected}".replace("(", "").replace(")", ""),
            expected.replace("IS NULL", "IS NOT NULL"),
        )


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("{}", "eq.1"),
        ("or", "({}.eq.1)"),
        ("select", "{}"),
        ("select", "{}:id"),
        ("select", "x:{}->a::text"),
        ("order", "{}"),
    ],
)
def test_hostile_names_are_quoted_wherever_they_stand(subtests: pytest.Subtests, key: str, value: str) -> None:
    for name in HOSTILE:
        with subtests.test(name=name):
            written = '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'
            shape, _ = lowered(urlencode({key.format(written): value.format(written)}).encode())
            conditions = Conditions(THINGS)
            selected = conditions.selected(shape.select, "t")
            where = [conditions.condition(one, "t") for one in shape.filters]
            order = [conditions.ordered(one, "t") for one in shape.order]
            text = compiled(sa.select(*selected).where(*where).order_by(*order)).text
            assert '"' + name.replace('"', '""') + '"' in text


@pytest.mark.parametrize("name", ["%(v0)s", "%(", "a%(b)s"])
@pytest.mark.parametrize(
    "where",
    [
        lambda c, n: c.selected(((None, "*", None), (("id", ()), n, None)), "t"),
        lambda c, n: c.field((n, ()), "t"),
        lambda c, n: c.field(("id", ()), n),
    ],
)
def test_what_the_compiler_would_take_for_a_placeholder_is_refused(
    name: str, where: Callable[[Conditions, str], object]
) -> None:
    with pytest.raises(DialectError) as caught:
        where(Conditions(table(column("id"), column(name))), name)
    assert caught.value.code == "PGRST127"


@pytest.mark.parametrize("query", [b"nope=eq.1", b"or=(nope.is.null)", b"nope->a=eq.1", b"nope=fts.x", b"nope=in.(1)"])
def test_unknown_columns(query: bytes) -> None:
    with pytest.raises(DialectError) as caught:
        condition(query)
    assert (caught.value.code, caught.value.status) == ("42703", 400)
    assert caught.value.message == "column t.nope does not exist"


def test_values_can_come_from_elsewhere() -> None:
    asked: list[tuple[int, str]] = []

    def bind(slot: int, type_: sa.types.TypeEngine[Any]) -> sa.ColumnElement[Any]:
        asked.append((slot, str(type_)))
        return sa.literal_column(f"listed.v{slot}")

    shape, values = lowered(b"extra->>a=eq.x&id=in.(1)&owner=fts(simple).y&extra->0=eq.1")
    made = [Conditions(THINGS, bind).condition(one, "alias") for one in shape.filters]
    assert [shown(one) for one in made] == [
        '("alias"."extra" ->> listed.v0) = CAST(listed.v1 AS text)',
        '"alias"."id" = any(CAST(listed.v2 AS bigint[]))',
        (
            'to_tsvector(CAST(listed.v4 AS regconfig), "alias"."owner") @@ '
            "to_tsquery(CAST(listed.v4 AS regconfig), listed.v3)"
        ),
        '("alias"."extra" -> listed.v5) = CAST(listed.v6 AS jsonb)',
    ]
    assert slots(values) == {"v0": "a", "v1": "x", "v2": ["1"], "v3": "y", "v4": "simple", "v5": 0, "v6": "1"}
    assert {slot for slot, _ in asked} == set(range(7))


def test_stars_are_wildcards_only_where_patterns_are() -> None:
    query = b"owner=like.a*&owner=ilike(any).{*b}&owner=match.c*&owner=eq.d*"
    assert list(slots(lowered(query)[1]).values()) == ["a%", "{%b}", "c*", "d*"]
