"""Reads of the dialect: every operator in every place where it can stand, orders, counts, and hostile names."""

from urllib.parse import quote

import httpx
import pytest

from gateway.db.database import Database
from tests.tables.asking import answered, change, rows

HOSTILE = (
    'x"; DROP TABLE things; --', "a'b", ":x", "%s", "%%", "$1", "a.b", "back\\slash", "x)", "/*", "ü", "{0}", "a,b",
)  # fmt: skip

THINGS = """
CREATE DOMAIN nick AS text;
CREATE DOMAIN vector AS tsvector;
CREATE TYPE mood AS ENUM ('sad', 'fine', 'happy');
CREATE DOMAIN feeling AS mood;
CREATE DOMAIN verdict AS feeling CHECK (VALUE::mood <> 'fine');
CREATE DOMAIN labels AS text[];
CREATE TYPE spot AS (x int, name text);
CREATE TABLE things (
    id int PRIMARY KEY, name text, nick nick, code varchar(8), initial char(4), mood mood, done boolean,
    price numeric(10,2), day date, at timestamptz, tags text[], numbers int[], span int4range, spans int4multirange,
    days daterange, words tsvector, domained vector, prose text, doc jsonb, old json, spot spot, spots spot[], u uuid,
    feeling feeling, verdict verdict, labels labels
);
INSERT INTO things VALUES
    (1, 'Ann', 'an', 'A-1', 'ab', 'sad', true, 1.50, '2024-01-01', '2024-01-01 12:00+00', '{a,b}', '{1,2}', '[1,5)',
     '{[1,5)}', '[2024-01-01,2024-02-01)', to_tsvector('english', 'the fat cats sat'), 'fat:1 rat:2',
     'The impossible cats', '{"a": {"b": "x"}, "n": [1, 2], "k 1": 5}', '{"a": 1, "b": {"c": "y"}}', '(1,here)',
     '{"(1,here)","(2,there)"}', '11111111-1111-1111-1111-111111111111'),
    (2, 'bob', 'bo', 'B-2', 'cd', 'fine', false, 2.00, '2024-02-02', '2024-02-02 12:00+00', '{b,"c,d"}', '{2,3}',
     '[5,9)', '{[5,9)}', '[2024-02-01,2024-03-01)', to_tsvector('english', 'a dog barks'), 'dog:1', 'Un chien noir',
     '{"a": {"b": "z"}, "n": [3]}', '{"a": 2}', '(2,there)', '{}', '22222222-2222-2222-2222-222222222222');
INSERT INTO things (id) VALUES (3);
CREATE MATERIALIZED VIEW snapshot AS SELECT * FROM users;
UPDATE things SET feeling = mood, labels = tags, verdict = nullif(mood, 'fine') WHERE id < 3;
"""


@pytest.fixture
def dsn(shared_dsn: str) -> str:
    return shared_dsn


@pytest.fixture
async def tables(tables: Database) -> Database:
    """Add a table with a column of every kind, and some whose names are as bad as names can be."""
    ((missing,),) = await rows(tables, "SELECT to_regclass('things') IS NULL")
    if missing:
        names = ", ".join('"' + name.replace('"', '""') + '" text' for name in HOSTILE)
        values = ", ".join("'v'" for _ in HOSTILE)
        hostile = "".join(
            f'CREATE TABLE "{name}" (id int PRIMARY KEY, {names}); INSERT INTO "{name}" VALUES (1, {values});'
            for name in (one.replace('"', '""') for one in HOSTILE)
        )
        await change(tables, THINGS + hostile)
    return tables


async def ids(client: httpx.AsyncClient, target: str, **parameters: str) -> list[int]:
    """The ids of the rows that a read finds."""
    response = await client.get(target, params={"select": "id", "order": "id", **parameters})
    answered(response, 200)
    return [row["id"] for row in response.json()]


OPERATORS = [
    ("id=eq.2", [2]), ("id=neq.2", [1, 3]), ("id=gt.1", [2, 3]), ("id=gte.2", [2, 3]), ("id=lt.2", [1]),
    ("id=lte.2", [1, 2]), ("price=eq.2", [2]), ("mood=eq.fine", [2]), ("mood=gt.sad", [2]), ("day=lt.2024-01-31", [1]),
    ("at=gte.2024-02-02T13:00:00+01:00", [2]), ("u=eq.11111111-1111-1111-1111-111111111111", [1]),
    ("initial=eq.ab", [1]), ("nick=eq.an", [1]), ("done=eq.t", [1]), ("numbers=eq.{1,2}", [1]),
    ("name=isdistinct.Ann", [2, 3]), ("name=like.A*", [1]), ("name=like.A%", [1]), ("name=eq.A*", []),
    ("name=match.An*", [1]), ("name=ilike.B*", [2]), ("code=like.A-_", [1]), ("nick=like.*n", [1]),
    ("name=match.^[Ab]", [1, 2]), ("name=imatch.^B", [2]), ("id=eq(any).{1,3}", [1, 3]), ("id=eq(all).{1,1}", [1]),
    ("id=gt(any).{1,2}", [2, 3]), ("id=gt(all).{1,2}", [3]), ("id=gte(all).{1,2}", [2, 3]),
    ("id=lt(any).{2,3}", [1, 2]), ("id=lte(all).{2,3}", [1, 2]), ("name=like(any).{A*,*ob}", [1, 2]),
    ("name=like(all).{A*,*n}", [1]), ("name=ilike(any).{a*,x}", [1]), ('name=match(any).{"^A","^b"}', [1, 2]),
    ("name=imatch(all).{^B,B$}", [2]), ("mood=eq(any).{sad,fine}", [1, 2]), ("id=in.(1,3)", [1, 3]),
    ("id=in.( 1 , 3 )", [1, 3]), ("id=in.()", []), ('name=in.("Ann","x,y")', [1]), ("mood=in.(sad,happy)", [1]),
    ("name=is.null", [3]), ("name=is.not_null", [1, 2]), ("done=is.TRUE", [1]), ("done=is.false", [2]),
    ("done=is.unknown", [3]), ("tags=cs.{b}", [1, 2]), ('tags=cs.{"c,d"}', [2]), ("tags=cd.{a,b,c}", [1]),
    ("numbers=ov.{3,4}", [2]), ("span=ov.[4,6]", [1, 2]), ("span=cs.[1,2]", [1]), ("span=cd.[0,6]", [1]),
    ("span=sl.(6,9)", [1]), ("span=sr.[0,4]", [2]), ("span=nxr.[0,5]", [1]), ("span=nxl.[2,9]", [2]),
    ("span=adj.[9,10)", [2]), ("spans=ov.{[1,2]}", [1]), ("days=cs.[2024-02-01,2024-02-03)", [2]),
    ('doc=cs.{"n":[3]}', [2]), ('doc=cd.{"a":{"b":"z"},"n":[3],"m":1}', [2]), ("words=fts.cat", [1]),
    ("words=fts(english).cats", [1]), ("words=fts.cat | dog", [1, 2]), ("words=plfts(english).cats sat", [1]),
    ("words=phfts(english).fat cats", [1]), ("words=wfts(english).dog -cat", [2]), ("domained=fts.rats", [1]),
    ("prose=fts.impossible", [1]), ("prose=fts(english).imposs", [1]), ("prose=fts(french).chien", [2]),
    ("prose=plfts(simple).impossible cats", [1]), ("prose=phfts(english).impossible cats", [1]),
    ("prose=wfts(english).dog or cat", [1]), ("code=plfts(simple).A-1", [1]), ("doc->a=plfts(simple).x", [1]),
    ("doc->a->>b=fts(simple).z", [2]), ("doc->a->>b=eq.x", [1]), ("doc->n=eq.[3]", [2]), ("doc->n->0=gt.1", [2]),
    ("doc->n->>-1=eq.2", [1]), ('doc->>"k 1"=eq.5', [1]), ("doc->a=not.is.null", [1, 2]),
    ('doc->a->>b=in.("x","y")', [1]), ("doc->a->>b=like(any).{x*,y*}", [1]), ("old->>a=eq.1", [1]),
    ("old->b=eq.{\"c\":\"y\"}", [1]), ("spot->>name=eq.here", [1]), ("spot->x=gt.1", [2]),
    ("spots->1->>name=eq.there", [1]), ("numbers->>0=eq.2", [2]), ("feeling=eq.fine", [2]), ("feeling=gt.sad", [2]),
    ("feeling=isdistinct.fine", [1, 3]), ("feeling=in.(sad,happy)", [1]), ("feeling=eq(any).{sad,fine}", [1, 2]),
    ("feeling=is.null", [3]), ("verdict=eq.sad", [1]), ("verdict=neq.fine", [1]), ("labels=cs.{b}", [1, 2]),
    ('"id"=eq.1', [1]),
]  # fmt: skip


async def test_operators(client: httpx.AsyncClient) -> None:
    for query, found in OPERATORS:
        key, _, value = query.partition("=")
        assert await ids(client, "/things", **{key: value}) == found, query


async def test_operators_inside_trees(client: httpx.AsyncClient) -> None:
    """The same inside a tree, where values are quoted: all but lists, which have parentheses, and words."""
    for query, found in OPERATORS:
        key, _, value = query.partition("=")
        operator, dot, operand = value.removeprefix("not.").partition(".")
        operator = f"not.{operator}" if value.startswith("not.") else operator
        if not operator.endswith(("in", "is")):
            operand = '"' + operand.replace("\\", "\\\\").replace('"', '\\"') + '"'
        tree = f"(and({key}.{operator}{dot}{operand},id.gt.0),id.eq.99)"
        assert await ids(client, "/things", **{"or": tree}) == found, tree


async def test_bad_reads(client: httpx.AsyncClient) -> None:
    for target, status, code in (
        ("nowhere", 404, "PGRST205"), ("things/1", 404, "PGRST125"), ("things?nope=eq.1", 400, "42703"),
        ("things?select=nope", 400, "42703"), ("things?order=nope", 400, "42703"),
        ("things?or=(nope.is.null)", 400, "42703"), ("things?id=huh.1", 400, "PGRST100"),
        ("things?limit=-1", 416, "PGRST103"), ("things?id=eq.x", 400, "22P02"), ("things?id=eq(any).1", 400, "22P02"),
        ("things?id=in.(1,x)", 400, "22P02"), ("things?id=fts.x", 404, "42883"), ("things?id=like.1", 404, "42883"),
        ("things?words=fts.a b", 400, "42601"), ("things?words=fts(klingon).a", 400, "42704"),
        ("things?span=cs.5", 400, "22P02"), ("things?name=match.(", 400, "2201B"), ("things?id=is.true", 400, "42804"),
        ("things?mood=eq.angry", 400, "22P02"), ("things?select=id::nonsense", 400, "42704"),
        ("things?select=doc.count()", 400, "PGRST123"), ("things?select=...other(id)", 400, "PGRST127"),
        ("things?select=other(id)", 400, "PGRST200"), ("things?other.id=eq.1", 400, "PGRST108"),
    ):  # fmt: skip
        response = await client.get(f"/{target}")
        answered(response, status, code)
        if code == "42703":
            assert response.json()["message"] == "column things.nope does not exist"


async def test_hostile_names(client: httpx.AsyncClient) -> None:
    """As a table, a column, an alias, an order, inside a tree, and as a value or a JSON key."""
    for name in HOSTILE:
        written = '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'
        for parameters in (
            {written: "eq.v"},
            {"or": f"({written}.eq.v,{written}.in.({written}))"},
            {"order": f"{written}.desc", "select": f"{written}::text"},
            {"select": f"{written}:id"},
            {written + "->>a": "is.null", "id": "eq.1"},
            {f"{written}->{written}->>{written}": "is.null"},
        ):
            if "/" not in name:
                response = await client.get("/" + quote(name, safe=""), params={"select": "id", **parameters})
                answered(response, 200)
                assert len(response.json()) == 1, parameters
        for key, value in (("name", f"eq.{name}"), (f"doc->>{written}", f"eq.{name}"), ("or", f"(name.eq.{written})")):
            assert await ids(client, "/things", **{key: value}) == []


async def test_a_path_into_json_keeps_its_own_text(client: httpx.AsyncClient) -> None:
    """json, unlike jsonb, is passed on as it was stored."""
    response = await client.get("/things?id=eq.1&select=old,b:old->b")
    assert '"old":{"a": 1, "b": {"c": "y"}},"b":{"c": "y"}' in response.text.replace('"old" :', '"old":')


async def test_a_materialized_view_is_only_read(client: httpx.AsyncClient) -> None:
    assert (await client.options("/snapshot")).headers["allow"] == "OPTIONS,GET,HEAD"
