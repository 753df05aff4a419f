"""Calls of functions: their arguments, the one form that is meant, and what they may change."""

import httpx
import pytest

from gateway.db.database import Database
from gateway.errors import DialectError
from gateway.fencing.decision import Enforcement
from gateway.observe.events import Event
from gateway.tables import schema_cache
from gateway.tables.dialect.body import arguments_from_query
from gateway.tables.dialect.request import BodyType
from gateway.tables.functions import Choice, Function, Functions, Parameter
from gateway.tables.naming import Rule
from gateway.tables.pipeline import Exposure
from tests.tables.asking import answered, change, client_of, rows


def test_arguments_and_filters_in_a_query(subtests: pytest.Subtests) -> None:
    for query, names, rest in (
        (b"", set(), b""), (b"a=1&b=x%20y", {"a", "b"}, b""),
        (b"a=1&id=eq.5&select=x&limit=2", {"a"}, b"id=eq.5&select=x&limit=2"), (b"a=not.eq.5", set(), b"a=not.eq.5"),
        (b"a=eq(any).{1}", set(), b"a=eq(any).{1}"), (b"a=fts(english).x", set(), b"a=fts(english).x"),
        (b"a=in.(1)", set(), b"a=in.(1)"), (b"a=inside.x", {"a"}, b""), (b"a=1.5", {"a"}, b""),
        (b"or=(a.eq.1)", set(), b"or=(a.eq.1)"), (b"apikey=k&a=1", {"a"}, b"apikey=k"), (b"a", set(), b""),
    ):  # fmt: skip
        with subtests.test(query=query):
            given, left = arguments_from_query(query)
            assert given.names is not None
            assert (set(given.names), left) == (set(names), rest)


def function(*parameters: Parameter, name: str = "f") -> Function:
    return Function("public", name, "i", returns_set=False, type="integer", composite=False, parameters=parameters)


def known(*functions: Function) -> Functions:
    return Functions({("public", functions[0].name): functions})


A, B = Parameter("a", "integer"), Parameter("b", "integer", required=False)
JSON = Parameter("", "json")
SEARCHED, IN_VAIN = "Searched for the function public.f", "but no matches were found in the schema cache."


def test_named_arguments_come_before_the_whole_body() -> None:
    named, whole = function(A), function(JSON)
    both = known(named, whole)
    assert both.choose("public", "f", {"a"}, "json") == Choice(named)
    assert both.choose("public", "f", {"z"}, "json") == Choice(whole, whole=True)
    assert both.choose("public", "f", None, "json") == Choice(whole, whole=True)
    with pytest.raises(DialectError):
        both.choose("public", "f", {"z"}, None)


def test_a_name_that_is_empty_means_the_one_argument_without_a_name() -> None:
    text, other, none = function(Parameter("", "text")), function(Parameter("", "bytea")), function()
    assert known(text, none).choose("public", "f", {""}, "json") == Choice(text, whole=True)
    assert known(text, none).choose("public", "f", set(), "json") == Choice(none)
    document = function(Parameter("", "jsonb"))
    assert known(document, none).choose("public", "f", {"", "x"}, "json") == Choice(document, whole=True)
    refused: tuple[tuple[tuple[Function, ...], BodyType | None], ...] = (
        ((text, none), None),
        ((other,), "json"),
        ((text,), "urlencoded"),
    )
    for forms, kind in refused:
        with pytest.raises(DialectError, match="Could not find the function"):
            known(*forms).choose("public", "f", {""}, kind)


@pytest.mark.parametrize(
    ("names", "kind", "message", "details"),
    [
        (
            {"z"}, "json", "Could not find the function public.f(z) in the schema cache",
            f"{SEARCHED} with parameter z or with a single unnamed json/jsonb parameter, {IN_VAIN}",
        ),
        (
            {"z", "y"}, None, "Could not find the function public.f(y, z) in the schema cache",
            f"{SEARCHED} with parameters y, z, {IN_VAIN}",
        ),
        (
            set(), None, "Could not find the function public.f without parameters in the schema cache",
            f"{SEARCHED} without parameters, {IN_VAIN}",
        ),
        (
            None, "text", "Could not find the function public.f in the schema cache",
            f"{SEARCHED} with a single unnamed text parameter, {IN_VAIN}",
        ),
    ],
)  # fmt: skip
def test_a_call_that_no_form_takes_is_refused(
    names: set[str] | None, kind: BodyType | None, message: str, details: str
) -> None:
    with pytest.raises(DialectError) as caught:
        known(function(A, B)).choose("public", "f", names, kind)
    error = caught.value
    assert (error.code, error.status, error.message, error.details) == ("PGRST202", 404, message, details)
    assert error.hint == "Perhaps you meant to call the function public.f(a, b)"


def test_an_unknown_function_gets_no_suggestion() -> None:
    with pytest.raises(DialectError) as caught:
        known(function(A)).choose("public", "g", set(), None)
    assert caught.value.hint is None


def test_a_call_that_several_forms_take_is_refused() -> None:
    with pytest.raises(DialectError) as caught:
        known(function(Parameter("a", "text")), function(A)).choose("public", "f", {"a"}, None)
    assert (caught.value.code, caught.value.status) == ("PGRST203", 300)
    assert caught.value.message == (
        "Could not choose the best candidate function between: public.f(a => integer), public.f(a => text)"
    )


FUNCTIONS = """
CREATE FUNCTION add(a int, b int DEFAULT 10) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT a + b';
CREATE FUNCTION evens(most int) RETURNS SETOF int LANGUAGE sql STABLE
    AS 'SELECT n FROM generate_series(2, most, 2) AS n';
CREATE FUNCTION rich_users(floor bigint) RETURNS SETOF accounts LANGUAGE sql STABLE
    AS 'SELECT * FROM accounts WHERE balance >= floor ORDER BY id';
CREATE FUNCTION pair(OUT x int, OUT y text) LANGUAGE sql IMMUTABLE AS $$SELECT 1, 'a'$$;
CREATE FUNCTION listed() RETURNS TABLE (x int, y text) LANGUAGE sql IMMUTABLE AS $$VALUES (1, 'a'), (2, NULL)$$;
CREATE FUNCTION total(VARIADIC v int[]) RETURNS bigint LANGUAGE sql IMMUTABLE AS 'SELECT sum(n) FROM unnest(v) AS n';
CREATE FUNCTION echo(json) RETURNS json LANGUAGE sql IMMUTABLE AS 'SELECT $1';
CREATE FUNCTION shout(text) RETURNS text LANGUAGE sql IMMUTABLE AS 'SELECT upper($1)';
CREATE FUNCTION size(bytea) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT length($1)';
CREATE FUNCTION unnamed(int) RETURNS text LANGUAGE sql IMMUTABLE AS $$SELECT 'a number'$$;
CREATE FUNCTION unnamed(int, text) RETURNS text LANGUAGE sql IMMUTABLE AS $$SELECT 'two'$$;
CREATE FUNCTION unnamed(text) RETURNS text LANGUAGE sql IMMUTABLE AS 'SELECT $1';
CREATE FUNCTION unnamed() RETURNS text LANGUAGE sql IMMUTABLE AS $$SELECT 'none'$$;
CREATE FUNCTION numbered(int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT $1';
CREATE FUNCTION vague(a int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT 1';
CREATE FUNCTION vague(a text) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT 2';
CREATE FUNCTION pay(account bigint, amount bigint) RETURNS bigint LANGUAGE sql
    AS 'UPDATE accounts SET balance = balance - amount WHERE id = account RETURNING balance';
CREATE FUNCTION lying() RETURNS void LANGUAGE plpgsql STABLE AS $$BEGIN PERFORM pay(1, 1); END$$;
CREATE FUNCTION touch_all() RETURNS SETOF users LANGUAGE sql AS 'UPDATE users SET name = name RETURNING *';
CREATE FUNCTION failing() RETURNS void LANGUAGE plpgsql
    AS $$BEGIN UPDATE users SET name = 'x'; RAISE SQLSTATE 'PT402' USING message = 'pay'; END$$;
CREATE FUNCTION full_control() RETURNS void LANGUAGE plpgsql STABLE AS $$BEGIN RAISE SQLSTATE 'PGRST'
    USING message = '{"code":"C","message":"M","hint":"H"}', detail = '{"status":451,"headers":{"X-Why":"law"}}'; END$$;
CREATE FUNCTION unlisted() RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT 1';
CREATE FUNCTION lasting() RETURNS text LANGUAGE sql VOLATILE AS $$
    SELECT set_config('TimeZone', 'Asia/Tokyo', false); SELECT set_config('synchronous_commit', 'off', false);
    SELECT set_config('search_path', 'fencing', false)$$;
CREATE FUNCTION lasting_read() RETURNS text LANGUAGE sql STABLE AS $$
    SELECT set_config('TimeZone', 'Asia/Tokyo', false)$$;
CREATE FUNCTION now_shown() RETURNS text LANGUAGE sql STABLE AS $$SELECT current_setting('TimeZone')$$;
"""
NAMES = (
    "add", "evens", "rich_users", "pair", "listed", "total", "echo", "shout", "size", "vague", "unnamed", "numbered",
    "pay", "lying", "touch_all", "failing", "full_control", "now_shown", "later", "lasting", "lasting_read",
)  # fmt: skip
LOCK = {"fencing-token": "5", "fencing-resource": "account/1"}


@pytest.fixture
def exposure() -> Exposure:
    names = frozenset(f"public.{name}" for name in NAMES)
    return Exposure(functions=names)


@pytest.fixture
async def tables(tables: Database) -> Database:
    await change(tables, FUNCTIONS)
    return tables


async def test_calls_that_read(client: httpx.AsyncClient) -> None:
    calls: list[tuple[str, object]] = [
        ("add?a=1&b=2", 3), ("add?a=1", 11), ("evens?most=6", [2, 4, 6]), ("pair", {"x": 1, "y": "a"}),
        ("listed", [{"x": 1, "y": "a"}, {"x": 2, "y": None}]), ("listed?x=eq.2&select=y", [{"y": None}]),
        ("listed?order=x.desc&limit=1&select=z:x", [{"z": 2}]), ("total?v=1&v=2&v=3", 6), ("total?v=4", 4),
        ("rich_users?floor=20&select=id", [{"id": 2}, {"id": 3}]),
        ("rich_users?floor=0&select=id,b:extra->a->>b&extra=not.is.null", [{"id": 1, "b": "x"}]),
        ("now_shown", "UTC"),
    ]  # fmt: skip
    for target, expected in calls:
        answer = await client.get(f"/rpc/{target}")
        answered(answer, 200)
        assert answer.json() == expected, target
        head = await client.head(f"/rpc/{target}")
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-length"] == answer.headers["content-length"]


async def test_a_function_that_only_reads_needs_no_token(client: httpx.AsyncClient) -> None:
    calls: list[tuple[str, object, object]] = [
        ("add", {"a": 1, "b": 2}, 3), ("add", {"a": "1"}, 11), ("total", {"v": [1, 2]}, 3),
        ("echo", [1, {"a": 2}], [1, {"a": 2}]), ("echo", {"any": "thing"}, {"any": "thing"}),
        ("evens", {"most": 4}, [2, 4]),
        ("rich_users", {"floor": 30}, [{"id": 3, "owner": "cid", "balance": 30, "note": "third", "extra": None}]),
    ]  # fmt: skip
    for name, body, expected in calls:
        answer = await client.post(f"/rpc/{name}", json=body)
        answered(answer, 200)
        assert answer.json() == expected, name


async def test_other_bodies(client: httpx.AsyncClient) -> None:
    async def asked(target: str, kind: str, content: bytes) -> httpx.Response:
        return await client.post(f"/rpc/{target}", content=content, headers={"content-type": kind})

    assert (await asked("shout", "text/plain", b"caf\xc3\xa9")).json() == "CAFÉ"
    assert (await asked("size", "application/octet-stream", b"\x00\xff\x01")).json() == 3
    assert (await asked("add", "application/x-www-form-urlencoded", b"a=1&b=2")).json() == 3
    assert (await asked("total", "application/x-www-form-urlencoded", b"v=1&v=2")).json() == 3
    assert (await asked("add?columns=a", "application/json", b'{"a": 1, "b": 2, "c": 3}')).json() == 11
    assert (await asked("listed", "application/json", b"")).json()[0] == {"x": 1, "y": "a"}
    assert (await asked("unnamed", "application/json", b'{"": "x"}')).json() == '{"": "x"}'
    assert (await asked("echo", "application/json", b'{"": 1, "x": 2}')).json() == {"": 1, "x": 2}
    assert (await asked("unnamed", "application/json", b"{}")).json() == "none"
    answered(await asked("numbered", "application/json", b'{"": 1}'), 404, "PGRST202")
    answered(await asked("add", "text/csv", b"a\n1\n"), 400, "PGRST102")
    answered(await asked("add", "application/json", b"{"), 400, "PGRST102")
    answered(await asked("add", "application/json", b"[1]"), 404, "PGRST202")
    answered(await asked("add", "text/plain", b"1"), 404, "PGRST202")
    answered(await asked("shout", "text/plain", b"\xff"), 400, "PGRST102")


async def test_preferences_and_forms_hold_for_calls(client: httpx.AsyncClient) -> None:
    stripped = {"accept": "application/vnd.pgrst.array+json;nulls=stripped"}
    assert (await client.get("/rpc/listed", headers=stripped)).json() == [{"x": 1, "y": "a"}, {"x": 2}]
    one = {"accept": "application/vnd.pgrst.object+json"}
    assert (await client.get("/rpc/pair", headers=one)).json() == {"x": 1, "y": "a"}
    answer = await client.get("/rpc/now_shown", headers={"prefer": "timezone=Asia/Tokyo"})
    assert answer.json() == "Asia/Tokyo"


async def test_calls_that_are_refused(client: httpx.AsyncClient, tables: Database) -> None:
    for method, target, status, code in (
        ("GET", "missing", 404, "PGRST202"), ("GET", "add", 404, "PGRST202"), ("GET", "add?a=1&c=2", 404, "PGRST202"),
        ("GET", "unlisted", 404, "PGRST202"), ("OPTIONS", "unlisted", 404, "PGRST202"),
        ("GET", "vague?a=1", 300, "PGRST203"), ("PUT", "add", 405, "PGRST101"), ("DELETE", "add?a=1", 405, "PGRST101"),
        ("PATCH", "missing", 405, "PGRST101"), ("GET", "add?a=x", 400, "22P02"), ("GET", "lying", 405, "25006"),
        ("GET", "pay?account=1&amount=1", 405, "25006"), ("GET", "add/more", 404, "PGRST125"),
        ("GET", "listed?z=eq.1", 400, "42703"), ("GET", "pg_sleep?seconds=1", 404, "PGRST202"),
        ("GET", "listed?select=accounts(*)", 400, "PGRST127"),
    ):  # fmt: skip
        answer = await client.request(method, f"/rpc/{target}")
        assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text
    assert await rows(tables, "SELECT count(*) FROM users") == [(2,)]


async def test_a_function_that_may_write_needs_tokens_and_names(client: httpx.AsyncClient, tables: Database) -> None:
    body = {"account": 1, "amount": 3}
    answered(await client.post("/rpc/pay", json=body), 428, "token-required")
    answered(await client.post("/rpc/pay", json=body, headers={"fencing-token": "5"}), 422, "resource-underivable")
    answer = await client.post("/rpc/pay", json=body, headers=LOCK)
    answered(answer, 200)
    assert answer.json() == 7
    assert (answer.headers["fencing-token"], answer.headers["fencing-resource"]) == ("5", "account/1")
    answered(await client.post("/rpc/pay", json=body, headers={**LOCK, "fencing-token": "6"}), 200)
    answered(await client.post("/rpc/pay", json=body, headers=LOCK), 412, "token-stale")
    assert await rows(tables, "SELECT balance FROM accounts WHERE id = 1") == [(4,)]
    assert await rows(tables, "SELECT resource, reason FROM fencing.rejection") == [("account/1", "token-stale")]
    answered(await client.post("/rpc/pay", json=body, headers={"fencing-token": "stock/9=12, account/1=7"}), 200)
    fences = await rows(tables, "SELECT resource, value FROM fencing.fence ORDER BY 1")
    assert fences == [("account/1", 7), ("stock/9", 12)]


async def test_a_call_that_fails_leaves_nothing_behind(client: httpx.AsyncClient, tables: Database) -> None:
    answer = await client.post("/rpc/failing", headers=LOCK)
    assert (answer.status_code, answer.json()["code"]) == (402, "PT402")
    one = {"accept": "application/vnd.pgrst.object+json"}
    answered(await client.post("/rpc/touch_all", headers={**LOCK, **one}), 406, "PGRST116")
    limited, pay = {"prefer": "handling=strict,max-affected=1"}, {"account": 1, "amount": 1}
    answered(await client.post("/rpc/touch_all", headers={**LOCK, **limited}), 400, "PGRST124")
    answered(await client.post("/rpc/pay", json=pay, headers={**LOCK, **limited}), 400, "PGRST128")
    assert await rows(tables, "SELECT resource FROM fencing.fence") == []
    assert ("x",) not in await rows(tables, "SELECT name FROM users")
    answer = await client.post("/rpc/touch_all", headers={**LOCK, "prefer": "handling=strict,max-affected=2"})
    assert answer.headers["preference-applied"] == "handling=strict, max-affected=2"


async def test_a_function_may_raise_an_answer(client: httpx.AsyncClient) -> None:
    answer = await client.get("/rpc/full_control")
    assert (answer.status_code, answer.headers["x-why"]) == (451, "law")
    assert answer.json() == {"code": "C", "message": "M", "details": None, "hint": "H"}


async def test_a_call_follows_a_changed_function(
    client: httpx.AsyncClient, tables: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema_cache, "_PAUSE_BETWEEN_RELOADS", 0)
    answered(await client.get("/rpc/later"), 404, "PGRST202")
    create = "CREATE FUNCTION later() RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT 1'"
    await change(tables, create)
    assert (await client.get("/rpc/later")).json() == 1
    await change(tables, "DROP FUNCTION later()")
    answered(await client.get("/rpc/later"), 404, "PGRST202")


async def test_a_function_cannot_change_the_session_for_the_next_request(
    client: httpx.AsyncClient, tables: Database
) -> None:
    pinned = "SELECT current_setting('TimeZone'), current_setting('search_path'), current_setting('synchronous_commit')"
    before = await rows(tables, pinned)
    for prefer in ("timezone=Europe/Paris", ""):
        answered(await client.get("/rpc/lasting_read", headers={"prefer": prefer}), 200)
        answered(await client.post("/rpc/lasting", headers={**LOCK, "prefer": prefer}), 200)
        assert await rows(tables, pinned) == before
        assert (await client.get("/rpc/now_shown")).json() == "UTC"


async def test_observe_mode_records_a_call_and_lets_it_pass(tables: Database, events: list[Event]) -> None:
    exposure = Exposure(functions=frozenset(("public.pay",)), default_rule=Rule(mode=Enforcement.OBSERVE))
    body = {"account": 1, "amount": 1}
    async with client_of(tables, exposure, observe=events.append) as client:
        answered(await client.post("/rpc/pay", json=body), 200)
        answered(await client.post("/rpc/pay", json=body, headers={"fencing-token": "5"}), 200)
    assert await rows(tables, "SELECT resource, reason FROM fencing.rejection ORDER BY at") == [
        ("public.pay", "token-required"),
        ("public.pay", "resource-underivable"),
    ]
