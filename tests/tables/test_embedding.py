"""Related tables inside the rows of a read: what a name and hint mean, and what PostgreSQL answers."""

import json
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import httpx
import pytest
from postgrest import APIError, AsyncPostgrestClient

from gateway.db.database import Database
from gateway.tables.pipeline import Exposure, TablePlane
from tests.guard.stage import logging_in_as
from tests.tables.asking import answered, change, client_of, over_asgi, rows

SCHEMA = """
CREATE SCHEMA other;
CREATE TABLE directors (id int PRIMARY KEY, name text, born int, extra jsonb);
CREATE TABLE films (
    id int PRIMARY KEY, title text, year int, director_id int CONSTRAINT films_director REFERENCES directors,
    "odd ""name" text
);
CREATE TABLE technical (film_id int PRIMARY KEY REFERENCES films, minutes int);
CREATE TABLE actors (id int PRIMARY KEY, name text);
CREATE TABLE roles (
    film_id int REFERENCES films, actor_id int REFERENCES actors, part text, PRIMARY KEY (film_id, actor_id)
);
CREATE TABLE places (id int PRIMARY KEY, name text);
CREATE TABLE orders (
    id int PRIMARY KEY, billing_id int CONSTRAINT orders_billing REFERENCES places,
    shipping_id int CONSTRAINT orders_shipping REFERENCES places
);
CREATE TABLE persons (id int PRIMARY KEY, name text, boss_id int CONSTRAINT persons_boss REFERENCES persons);
CREATE TABLE halls (city text, number int, seats int, PRIMARY KEY (city, number));
CREATE TABLE shows (
    id int PRIMARY KEY, city text, number int, film_id int REFERENCES films,
    CONSTRAINT shows_hall FOREIGN KEY (city, number) REFERENCES halls
);
CREATE TABLE other.hidden (id int PRIMARY KEY, film_id int REFERENCES films);
CREATE TABLE stray (id int PRIMARY KEY, hidden_id int REFERENCES other.hidden);
CREATE TABLE likes (film_id int REFERENCES films, director_id int REFERENCES directors);
CREATE TABLE "x""; DROP TABLE films; --" (
    id int PRIMARY KEY, "%s" int CONSTRAINT "a'b:c" REFERENCES films, "; --" text
);
CREATE VIEW recent AS SELECT * FROM films WHERE year > 1990;
INSERT INTO directors VALUES (1, 'Kubrick', 1928, '{"n": 2}'), (2, 'Lynch', 1946, '{"n": 1}'),
    (3, 'Nobody', 1900, NULL);
INSERT INTO films VALUES (1, 'Shining', 1980, 1), (2, 'Lolita', 1962, 1), (3, 'Dune', 1984, 2), (4, 'Anon', 1999, NULL);
INSERT INTO technical VALUES (1, 144), (3, 137);
INSERT INTO actors VALUES (1, 'Jack'), (2, 'Shelley'), (3, 'Kyle');
INSERT INTO roles VALUES (1, 1, 'Jack T'), (1, 2, 'Wendy'), (3, 3, 'Paul');
INSERT INTO places VALUES (1, 'Rome'), (2, 'Oslo');
INSERT INTO orders VALUES (1, 1, 2), (2, 2, NULL);
INSERT INTO persons VALUES (1, 'Ada', NULL), (2, 'Ben', 1), (3, 'Cyd', 1);
INSERT INTO halls VALUES ('Rome', 1, 100), ('Rome', 2, 50);
INSERT INTO shows VALUES (1, 'Rome', 2, 1), (2, NULL, 1, 3);
INSERT INTO "x""; DROP TABLE films; --" VALUES (1, 1, 'v');
"""


@pytest.fixture
def dsn(shared_dsn: str) -> str:
    return shared_dsn


@pytest.fixture
async def films(database: Database, plane: TablePlane) -> AsyncIterator[httpx.AsyncClient]:
    ((missing,),) = await rows(database, "SELECT to_regclass('films') IS NULL")
    if missing:
        await change(database, SCHEMA)
    async with over_asgi(plane) as opened:
        yield opened


async def got(client: httpx.AsyncClient, target: str) -> Any:
    response = await client.get(target)
    answered(response, 200)
    return response.json()


SHAPES: dict[str, list[dict[str, Any]]] = {
    # many-to-one: an object, or null
    "/films?select=id,directors(name)&order=id": [
        {"id": 1, "directors": {"name": "Kubrick"}}, {"id": 2, "directors": {"name": "Kubrick"}},
        {"id": 3, "directors": {"name": "Lynch"}}, {"id": 4, "directors": None},
    ],
    "/films?id=eq.1&select=id,by:directors(name)": [{"id": 1, "by": {"name": "Kubrick"}}],
    "/films?id=eq.1&select=by:director_id(name)": [{"by": {"name": "Kubrick"}}],
    "/films?id=eq.1&select=films_director(name)": [{"films_director": {"name": "Kubrick"}}],
    "/films?id=eq.1&select=directors!films_director(name)": [{"directors": {"name": "Kubrick"}}],
    "/films?id=eq.1&select=directors!director_id(name)": [{"directors": {"name": "Kubrick"}}],
    "/films?id=eq.1&select=directors!id(name)": [{"directors": {"name": "Kubrick"}}],
    "/films?id=eq.1&select=directors(*),id::text": [
        {"id": "1", "directors": {"id": 1, "name": "Kubrick", "born": 1928, "extra": {"n": 2}}},
    ],
    "/films?id=eq.1&select=directors(n:extra->n,born::text)": [{"directors": {"n": 2, "born": "1928"}}],
    # one-to-many: an array
    "/directors?select=id,films(id)&films.order=id&order=id": [
        {"id": 1, "films": [{"id": 1}, {"id": 2}]}, {"id": 2, "films": [{"id": 3}]}, {"id": 3, "films": []},
    ],
    # one-to-one: an object from both sides
    "/films?id=eq.1&select=technical(minutes)": [{"technical": {"minutes": 144}}],
    "/films?id=eq.2&select=technical(minutes)": [{"technical": None}],
    "/technical?film_id=eq.1&select=films(title)": [{"films": {"title": "Shining"}}],
    # many-to-many, through a table whose key holds both
    "/films?id=eq.1&select=actors(id)&actors.order=name.desc": [{"actors": [{"id": 2}, {"id": 1}]}],
    "/actors?id=eq.3&select=films(title)": [{"films": [{"title": "Dune"}]}],
    "/actors?id=eq.3&select=films!roles(title)": [{"films": [{"title": "Dune"}]}],
    # several at once, and one table twice
    "/films?id=eq.3&select=id,directors(id),technical(minutes),actors(id)": [
        {"id": 3, "directors": {"id": 2}, "technical": {"minutes": 137}, "actors": [{"id": 3}]},
    ],
    "/orders?select=billing:places!orders_billing(id),shipping:places!shipping_id(id)&order=id": [
        {"billing": {"id": 1}, "shipping": {"id": 2}}, {"billing": {"id": 2}, "shipping": None},
    ],
    # a table related to itself: many by its name, one by the column
    "/persons?select=id,boss_id(id),persons(id)&persons.order=id&order=id": [
        {"id": 1, "boss_id": None, "persons": [{"id": 2}, {"id": 3}]},
        *({"id": one, "boss_id": {"id": 1}, "persons": []} for one in (2, 3)),
    ],
    "/persons?id=eq.1&select=n:persons!boss_id(id)&n.order=id": [{"n": [{"id": 2}, {"id": 3}]}],
    # a key of several columns
    "/shows?select=id,halls(seats)&order=id": [{"id": 1, "halls": {"seats": 50}}, {"id": 2, "halls": None}],
    # nothing shown
    "/films?select=id,directors!inner()&directors.name=eq.Lynch": [{"id": 3}],
}  # fmt: skip


async def test_shapes(films: httpx.AsyncClient) -> None:
    for target, expected in SHAPES.items():
        assert await got(films, target) == expected, target


async def test_which_rows_are_left(films: httpx.AsyncClient) -> None:
    for query, ids in (
        ("directors(*)&directors.name=eq.Lynch", [1, 2, 3, 4]), ("directors!inner(*)", [1, 2, 3]),
        ("directors!inner(*)&directors.name=eq.Lynch", [3]), ("d:directors!inner(*)&d.name=eq.Lynch", [3]),
        ("d:directors!inner(*)&directors.name=eq.Lynch", [3]),
        ("directors!inner(*)&directors.or=(name.eq.Lynch,born.lt.1930)", [1, 2, 3]),
        ("directors!inner(*)&directors.not.or=(name.eq.Lynch,born.gt.1930)", [1, 2]),
        ("directors!inner(*)&directors.name=in.(Lynch,Kubrick)&year=gt.1970", [1, 3]),
        ("directors!inner(*)&directors.extra->n=eq.1", [3]), ("actors!inner(*)", [1, 3]),
        ("actors!inner(*)&actors.name=like.S*", [1]), ("technical!inner(*)", [1, 3]),
        ("directors(*)&directors=is.null", [4]), ("directors(*)&directors=not.is.null", [1, 2, 3]),
        ("directors(*)&directors=is.not_null", [1, 2, 3]), ("directors()&directors=not.is.null", [1, 2, 3]),
        ("d:directors()&d.name=eq.Lynch&d=not.is.null", [3]),
        ("directors(),actors()&or=(directors.is.null,actors.not.is.null)", [1, 3, 4]),
        ("actors()&actors.name=eq.Jack&actors=is.null", [2, 3, 4]), ("actors!inner(*)&actors.limit=0", []),
        ("actors!inner(*)&actors.offset=1", [1]),
    ):  # fmt: skip
        response = await films.get(f"/films?select=id,{query}&order=id", headers={"prefer": "count=exact"})
        answered(response, 200)
        assert [row["id"] for row in response.json()] == ids, query
        assert response.headers["content-range"].rpartition("/")[2] == str(len(ids))
    assert await got(films, "/films?select=directors!inner()") == [{}, {}, {}], "rows without columns are rows, too"


async def test_order_by_a_related_row(films: httpx.AsyncClient) -> None:
    for query, ids in (
        ("select=id,directors(name)&order=directors(name).desc.nullslast,id", [3, 1, 2, 4]),
        ("select=id,d:directors(name)&order=d(born),id.desc", [2, 1, 3, 4]),
        ("select=id,directors()&order=directors(extra->n).nullsfirst,id", [4, 3, 1, 2]),
        ("select=id,directors(name)&directors.name=eq.Lynch&order=directors(name),id", [3, 1, 2, 4]),
        ("select=id,technical(*)&order=technical(minutes)&limit=1", [3]),
    ):
        assert [row["id"] for row in await got(films, f"/films?{query}")] == ids


async def test_what_cannot_be_embedded(films: httpx.AsyncClient) -> None:
    for target, status, code in (
        ("films?select=nowhere(*)", 400, "PGRST200"), ("films?select=places(*)", 400, "PGRST200"),
        ("films?select=hidden(*)", 400, "PGRST200"), ("films?select=directors!nothing(*)", 400, "PGRST200"),
        ("recent?select=directors(*)", 400, "PGRST200"), ("orders?select=places(*)", 300, "PGRST201"),
        ("places?select=orders(*)", 300, "PGRST201"), ("films?directors.name=eq.x", 400, "PGRST108"),
        ("films?order=directors(name)", 400, "PGRST108"),
        ("films?select=*,actors(*)&order=actors(name)", 400, "PGRST118"),
        ("films?select=directors(nope)", 400, "42703"), ("films?select=directors(*)&directors.nope=eq.1", 400, "42703"),
        ("films?select=directors(*)&directors.order=nope", 400, "42703"),
        ("films?select=directors(*)&directors.id=eq.x", 400, "22P02"),
        ("films?select=directors(*)&directors.limit=-1", 416, "PGRST103"),
        ("films?select=directors(films(*))", 400, "PGRST127"), ("films?select=...directors(name)", 400, "PGRST127"),
        ("films?select=directors(count())", 400, "PGRST123"), ("films?select=directors(*", 400, "PGRST100"),
        ("films?select=director_id!director_id(*)", 400, "PGRST200"), ("stray?select=hidden(*)", 400, "PGRST200"),
        ("directors?select=likes!films(*)", 400, "PGRST200"), ("persons?select=persons_boss(*)", 400, "PGRST200"),
        ("persons?select=persons!persons_boss(*)", 400, "PGRST200"), ("actors?select=directors(*)", 400, "PGRST200"),
        ("films?select=directors!likes(*)", 400, "PGRST200"),
    ):  # fmt: skip
        response = await films.get(f"/{target}")
        answered(response, status, code)
        if code == "PGRST200":
            assert ("using the hint" in response.json()["details"]) == ("!" in target)


async def test_an_ambiguous_name_lists_the_choices(films: httpx.AsyncClient) -> None:
    error = (await films.get("/orders?select=places(*)")).json()
    assert error["message"] == "Could not embed because more than one relationship was found for 'orders' and 'places'"
    assert error["details"] == (
        '[{"cardinality": "many-to-one", "embedding": "orders with places", '
        '"relationship": "orders_billing using orders(billing_id) and places(id)"}, '
        '{"cardinality": "many-to-one", "embedding": "orders with places", '
        '"relationship": "orders_shipping using orders(shipping_id) and places(id)"}]'
    )
    assert error["hint"] == (
        "Try changing 'places' to one of the following: 'places!orders_billing', 'places!orders_shipping'. "
        "Find the desired relationship in the 'details' key."
    )


async def test_only_a_similar_name_is_suggested(films: httpx.AsyncClient) -> None:
    for name, hint in (
        ("director", "Perhaps you meant 'directors' instead of 'director'."),
        ("zebras", None),
        ("directors" * 5000, None),
    ):
        error = (await films.get(f"/films?select={name}(*)")).json()
        assert error["hint"] == hint
        assert len(error["message"]) < 300
        if hint:
            told = "Could not find a relationship between 'films' and 'director' in the schema cache"
            assert error["message"] == told
            assert error["details"] == (
                "Searched for a foreign key relationship between 'films' and 'director' in the schema 'public', "
                "but no matches were found."
            )


async def test_the_python_client(films: httpx.AsyncClient, origin: str) -> None:
    async with AsyncPostgrestClient(f"{origin}/v1/tables") as client:
        found = client.from_("directors").select("name", "films!inner(title)").eq("films.year", 1984)
        assert (await found.execute()).data == [{"name": "Lynch", "films": [{"title": "Dune"}]}]
        ordered = client.from_("directors").select("films(id)").eq("id", 1)
        ordered = ordered.order("id", desc=True, foreign_table="films").limit(1, foreign_table="films")
        assert (await ordered.execute()).data == [{"films": [{"id": 2}]}]
        with pytest.raises(APIError) as caught:
            await client.from_("orders").select("places(name)").execute()
        assert caught.value.code == "PGRST201"
        assert json.loads(caught.value.details or "")[0]["cardinality"] == "many-to-one"


async def test_hostile_names(films: httpx.AsyncClient) -> None:
    name = "%22x%5C%22; DROP TABLE films; --%22"
    for target, expected in (
        (f"/films?id=eq.1&select=%22%25s;--%22:{name}(%22; --%22)", {"%s;--": [{"; --": "v"}]}),
        (f"/films?id=eq.1&select=a:{name}!%22%25s%22(id)&a.%22; --%22=eq.v&a.order=%22%25s%22", {"a": [{"id": 1}]}),
        (f"/films?id=eq.1&select=a:{name}!%22a'b:c%22!inner(id)&{name}.or=(%22; --%22.eq.v)", {"a": [{"id": 1}]}),
        ("/films?id=eq.1&select=%22odd%20%5C%22name%22,directors()", {'odd "name': None}),
    ):
        assert await got(films, target) == [expected]
    path = "/x%22%3B%20DROP%20TABLE%20films%3B%20--"
    assert await got(films, f"{path}?select=%22%25s%22(id)") == [{"%s": {"id": 1}}]
    assert await got(films, f"{path}?select=%22a'b:c%22(id)&order=%22a'b:c%22(id)") == [{"a'b:c": {"id": 1}}]


async def test_nothing_is_embedded_in_writes(films: httpx.AsyncClient, database: Database) -> None:
    """PostgREST changes every row there: neither an inner join nor a condition on a related table narrows a write."""
    before = await rows(database, "SELECT * FROM films ORDER BY id")
    headers = {"fencing-token": "1", "fencing-resource": "x", "prefer": "return=representation"}
    for query, code in (
        ("select=*,directors!inner(*)&directors.name=eq.Lynch&id=gt.0", "PGRST127"),
        ("select=*,directors!inner(*)&directors.or=(name.eq.Lynch)", "PGRST127"),
        ("directors.name=eq.Lynch", "PGRST108"),
        ("directors.and=(name.eq.Lynch)", "PGRST108"),
        ("directors.limit=1", "PGRST108"),
    ):
        for method in ("PATCH", "DELETE", "POST", "PUT"):
            answer = await films.request(method, f"/films?{query}", json={"title": "gone"}, headers=headers)
            answered(answer, 400, code)
    assert await rows(database, "SELECT * FROM films ORDER BY id") == before


async def test_other_schemas_are_out_of_reach(films: httpx.AsyncClient, database: Database) -> None:
    """Each table is related to those of its own schema, whichever schemas are exposed."""
    async with client_of(database, Exposure(schemas=("public", "other"))) as client:
        answered(await client.get("/films?select=hidden(*)"), 400, "PGRST200")
        answered(await client.get("/hidden?select=films(*)", headers={"accept-profile": "other"}), 400, "PGRST200")


async def test_policies_of_a_related_table_cannot_write(dsn: str, database: Database, films: httpx.AsyncClient) -> None:
    """A read may execute code that an owner has put behind a table. None of its writes may take effect."""
    looker = f"looker_{uuid4().hex}"  # roles are the server's, not the database's
    await change(database, f"""
            CREATE ROLE {looker} LOGIN;
            CREATE TABLE secrets (id int PRIMARY KEY, film_id int REFERENCES films);
            CREATE TABLE trace (n int);
            INSERT INTO secrets VALUES (1, 1);
            CREATE FUNCTION looked() RETURNS boolean LANGUAGE plpgsql AS
                $$ BEGIN INSERT INTO trace VALUES (1); RETURN true; END $$;
            ALTER TABLE secrets ENABLE ROW LEVEL SECURITY;
            CREATE POLICY look ON secrets USING (looked());
            GRANT USAGE ON SCHEMA fencing TO {looker};
            GRANT SELECT ON films, secrets TO {looker};
            GRANT INSERT ON trace TO {looker};
        """)  # fmt: skip
    # Policies do not bind a table's owner or a superuser. A gateway's role should be neither.
    as_looker = Database(logging_in_as(looker, dsn))
    try:
        async with client_of(as_looker, Exposure()) as client:
            answered(await client.get("/films?id=eq.1&select=id"), 200)
            answered(await client.get("/films?id=eq.1&select=id,secrets(id)"), 405, "25006")
            answered(await client.get("/films?id=eq.1&select=id,secrets!inner()"), 405, "25006")
        assert await rows(database, "SELECT n FROM trace") == []
    finally:
        await as_looker.close()
        await change(
            database, f"DROP TABLE secrets, trace; DROP FUNCTION looked; DROP OWNED BY {looker}; DROP ROLE {looker}"
        )


async def test_a_related_table_that_has_become_something_else(films: httpx.AsyncClient, database: Database) -> None:
    """The gateway knows of the table only; what stands under its name by now must not run as part of a plain read."""
    await change(database, """
            CREATE TABLE notes (id int PRIMARY KEY, film_id int REFERENCES films);
            CREATE TABLE marks (n int);
            CREATE FUNCTION mark() RETURNS int LANGUAGE sql AS 'INSERT INTO marks VALUES (1) RETURNING 1';
        """)  # fmt: skip
    target = "/films?id=eq.1&select=id,notes(id)"
    assert await got(films, target) == [{"id": 1, "notes": []}]
    await change(database, "DROP TABLE notes; CREATE VIEW notes AS SELECT mark() AS id, 1 AS film_id")
    answered(await films.get(target), 400, "PGRST200")
    assert await rows(database, "SELECT n FROM marks") == []


async def test_a_new_foreign_key_is_found(
    films: httpx.AsyncClient, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the request that needs it, unless the catalog has been read a moment ago."""
    monkeypatch.setattr("gateway.tables.schema_cache._PAUSE_BETWEEN_RELOADS", 0)
    target = "/films?id=eq.1&select=id,comments(id)"
    answered(await films.get(target), 400, "PGRST200")
    await change(database, "CREATE TABLE comments (id int PRIMARY KEY, film_id int)")
    answered(await films.get("/comments?select=films(id)"), 400, "PGRST200")
    await change(database, "ALTER TABLE comments ADD FOREIGN KEY (film_id) REFERENCES films")
    assert await got(films, "/comments?select=films(id)") == []
    assert await got(films, target) == [{"id": 1, "comments": []}]
