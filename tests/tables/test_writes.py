"""Writes of the dialect under a token: what they change, what they answer, and which resource they claim."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import asyncpg
import httpx
import pytest

from gateway.changes.naming import naming_changes
from gateway.db import fences
from gateway.db.database import SHARED_SESSIONS, Database
from gateway.fencing.token import Token
from gateway.observe.events import Event, StepReached
from tests.running import API_KEY, config, running
from tests.tables.asking import Send, answered, change, row, rows
from tests.tiers import first
from tests.waiting import PATIENCE


async def test_insert_many(write: Send, tables: Database) -> None:
    rows_ = [{"id": 11, "owner": "x"}, {"id": 10, "owner": None}]
    response = await write(
        "POST", "/accounts?select=id,owner", rows_, token=5, prefer="return=representation,count=exact"
    )
    answered(response, 201)
    assert response.json() == rows_
    assert response.headers["content-range"] == "*/2"
    assert response.headers["fencing-resource"] == "public.accounts/10, public.accounts/11"
    for number in (10, 11):
        fence = await fences.read(tables, f"public.accounts/{number}")
        assert fence is not None
        assert fence.token == Token(0, 5)


async def test_a_write_that_matches_no_row_keeps_its_raise(write: Send) -> None:
    response = await write("PATCH", "/accounts?id=eq.1&balance=gt.1000", {"note": "x"}, token=9)
    assert (response.status_code, response.headers["content-range"]) == (204, "*/*")
    answered(await write("PATCH", "/accounts?id=eq.1", {"note": "x"}, token=8), 412, "token-stale")


async def test_an_empty_update_changes_nothing(client: httpx.AsyncClient, tables: Database) -> None:
    before = await rows(tables, "SELECT * FROM accounts ORDER BY id")
    for body in ("5", '"x"', "null", "[]", "{}", "[{}]"):
        answer = await client.patch("/accounts?id=eq.1", headers={"fencing-token": "9"}, content=body)
        answered(answer, 204)
        assert answer.headers["content-range"] == "*/*"
    assert await rows(tables, "SELECT * FROM accounts ORDER BY id") == before
    assert await rows(tables, "SELECT value FROM fencing.fence") == [(9,)]


async def test_put(write: Send) -> None:
    prefer = "return=representation"
    response = await write(
        "PUT", "/accounts?id=eq.10&select=id,owner", {"id": 10, "owner": "p"}, token=5, prefer=prefer
    )
    assert (response.status_code, response.json()) == (201, [{"id": 10, "owner": "p"}])
    response = await write(
        "PUT", "/accounts?id=eq.10&select=id,owner", {"id": 10, "owner": "q"}, token=5, prefer=prefer
    )
    assert (response.status_code, response.json()) == (200, [{"id": 10, "owner": "q"}])
    for token in (5, 6):  # the fast path, and the transaction
        answered(await write("PUT", "/accounts?id=eq.11", {"id": 10}, token=token), 400, "PGRST115")
    answered(await write("PUT", "/accounts?owner=eq.q", {"id": 10}, token=5), 405, "PGRST105")
    answered(await write("PUT", "/accounts?id=eq.10&limit=1", {"id": 10}, token=5), 400, "PGRST114")


OBJECT = {"accept": "application/vnd.pgrst.object+json"}
MOST_ONE = {"prefer": "handling=strict,max-affected=1"}


async def test_one_object_is_one_row_or_nothing_is_written(write: Send, tables: Database) -> None:
    both = {**OBJECT, "prefer": "return=representation"}
    response = await write("PATCH", "/accounts?id=eq.1&select=id", {"note": "one"}, token=5, **both)
    assert (response.status_code, response.json()) == (200, {"id": 1})
    for token in (5, 6):
        response = await write("DELETE", "/accounts?id=in.(1,2)", token=token, **OBJECT)
        answered(response, 406, "PGRST116")
        assert response.json()["details"] == "The result contains 2 rows"
        answered(await write("PATCH", "/accounts?id=eq.77", {"note": "x"}, token=token, **OBJECT), 406, "PGRST116")
        answered(await write("DELETE", "/accounts?id=in.(1,2)", token=token, **MOST_ONE), 400, "PGRST124")
    assert await rows(tables, "SELECT id, note FROM accounts WHERE id < 3 ORDER BY id") == [(1, "one"), (2, None)]
    assert await rows(tables, "SELECT resource, value FROM fencing.fence") == [("public.accounts/1", 5)]
    answered(await write("PATCH", "/accounts?id=eq.1", {"note": "x"}, token=6, **OBJECT), 204)
    answered(await write("DELETE", "/accounts?id=eq.1", token=6, **MOST_ONE), 204)


async def test_what_must_be_undone_never_takes_the_fast_path(write: Send, tables: Database) -> None:
    """One autocommitted statement cannot be taken back once its answer turns out to be a refusal."""
    answered(await write("POST", "/settings", {"name": "a"}, token=5), 201)
    answered(await write("DELETE", "/settings?name=neq.none", token=5, **OBJECT), 406, "PGRST116")
    answered(await write("DELETE", "/settings?name=neq.none", token=5, **MOST_ONE), 400, "PGRST124")
    assert (await row(tables, "SELECT count(*) FROM settings"))[0] == 2


async def test_a_template_over_another_column(write: Send) -> None:
    for token in (5, 5):  # the transaction first, then the fast path
        response = await write("PATCH", "/shipments?order_id=eq.7", {"state": "sent"}, token=token)
        assert (response.status_code, response.headers["content-range"]) == (204, "0-1/*")
        assert response.headers["fencing-resource"] == "order/7"
    response = await write("POST", "/shipments", {"order_id": 7}, token=5, prefer="return=representation")
    assert response.json() == [{"id": 4, "order_id": 7, "state": "new"}]
    answered(await write("PATCH", "/shipments?order_id=eq.7", {"state": "late"}, token=4), 412, "token-stale")


async def test_a_constant_template_fences_the_table(write: Send) -> None:
    answered(await write("POST", "/settings", {"name": "a", "value": "b"}, token=5), 201)
    response = await write("PATCH", "/settings?value=neq.zzz", {"value": "c"}, token=5)
    assert (response.headers["content-range"], response.headers["fencing-resource"]) == ("0-1/*", "settings")
    answered(await write("DELETE", "/settings?name=eq.a", token=4), 412, "token-stale")


async def test_values_are_brought_into_canonical_form(write: Send) -> None:
    """One row has one fence, however its key is written."""
    for written in ("1", "01", "%2B1", "%201"):
        response = await write("PATCH", f"/accounts?id=eq.{written}", {"note": "x"}, token=5)
        assert response.headers["fencing-resource"] == "public.accounts/1"
    answered(await write("PATCH", "/accounts?id=eq.0001", {"note": "x"}, token=4), 412, "token-stale")
    response = await write("PATCH", "/dated?day=eq.2024-1-2", {"v": 2}, token=5)
    assert (response.headers["fencing-resource"], response.headers["content-range"]) == (
        "public.dated/2024-01-02",
        "0-0/*",
    )
    answered(await write("PATCH", "/accounts?id=eq.x", {"note": "x"}, token=5), 400, "22P02")


async def test_strict_tokens_write_once(write: Send) -> None:
    for token, status, code in ((5, 204, None), (5, 412, "token-used"), (6, 204, None)):
        answered(await write("PATCH", "/strict?id=eq.1", {"v": token}, token=token), status, code)


async def test_two_holders_of_one_token(write: Send) -> None:
    for holder, status, code in (("ann", 204, None), ("bob", 412, "token-duplicate"), (None, 204, None)):
        answered(await write("PATCH", "/accounts?id=eq.1", {"note": "x"}, token=5, holder=holder), status, code)


async def test_epochs(write: Send) -> None:
    answered(await write("PATCH", "/accounts?id=eq.1", {"note": "x"}, token="1.0"), 204)
    answered(await write("PATCH", "/accounts?id=eq.1", {"note": "x"}, token=999), 412, "token-stale")


async def test_one_row_of_defaults(write: Send, tables: Database) -> None:
    await change(tables, "ALTER TABLE shipments ALTER order_id SET DEFAULT 7")
    answered(await write("POST", "/shipments", {}, token=5, resource="order/7"), 201)
    answered(await write("POST", "/shipments", [{}, {}], token=5, resource="order/7"), 400, "PGRST127")
    assert (await row(tables, "SELECT count(*) FROM shipments"))[0] == 4


async def test_the_steps_are_announced(write: Send, events: list[Event]) -> None:
    async def steps(token: int, prefer: str | None = None) -> list[str]:
        events.clear()
        await write("PATCH", "/accounts?id=eq.1", {"note": "x"}, token=token, prefer=prefer)
        return [event.name.removeprefix("tables.") for event in events if isinstance(event, StepReached)]

    claimed = ["raise.before", "raise.after"]
    assert await steps(5) == ["fast.before", "fast.after", *claimed]
    assert await steps(5) == ["fast.before", "fast.after"]
    assert await steps(4) == [*claimed, "reject.before", "reject.after"]
    assert await steps(4) == ["reject.before", "reject.after"], "it is known that the fence is higher"
    assert await steps(6) == claimed, "at once, because fences have risen lately"
    assert await steps(7, "handling=strict, max-affected=1") == ["claim.after", "write.after", "commit.after"]


COMPUTED = """
CREATE TABLE numbered (id serial PRIMARY KEY, v int);
CREATE TABLE counted (id bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, v int);
CREATE TABLE random (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), v int);
CREATE TABLE fixed (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, v int);
CREATE TABLE constant (id text PRIMARY KEY DEFAULT 'first', v int);
"""


@pytest.fixture
async def owner(dsn: str) -> AsyncIterator[asyncpg.Connection]:
    """A session of a person with rights on the tables."""
    connection = await asyncpg.connect(dsn)
    await connection.execute(COMPUTED)
    yield connection
    await connection.close()


@asynccontextmanager
async def gateway(dsn: str, **sections: Any) -> AsyncIterator[httpx.AsyncClient]:
    async with running(config(dsn, **sections)) as origin:
        headers = {"Authorization": f"Bearer {API_KEY}"}
        async with httpx.AsyncClient(base_url=origin, headers=headers, timeout=PATIENCE) as client:
            yield client


async def lock(client: httpx.AsyncClient, resource: str) -> dict[str, str]:
    """Acquire a lock, as a writer does; the header with its token."""
    lease = await client.post(f"/v1/leases/{resource}", json={"holder": "ann", "ttl": 60})
    assert lease.status_code == 201, lease.text
    return {"Fencing-Token": lease.json()["token"]}


async def insert(client: httpx.AsyncClient, table: str, row: Any, headers: dict[str, str]) -> httpx.Response:
    return await client.post(f"/v1/tables/{table}", json=row, headers=headers)


def hint(refused: httpx.Response, code: str) -> str:
    assert (refused.status_code, refused.json()["code"]) == (422, code), refused.text
    found: str = refused.json()["hint"]
    return found


async def chosen(owner: asyncpg.Connection, told: str) -> str:
    """Choose a value of the key as a hint says."""
    if "id (a new UUID)" in told:
        return str(uuid4())
    asked = re.search(r"id \((SELECT .+?\))\)\.", told)
    assert asked, told
    return str(await owner.fetchval(asked[1]))


@pytest.mark.parametrize("table", first(["numbered", "counted", "random"]))
async def test_a_key_that_the_writer_can_choose(dsn: str, owner: asyncpg.Connection, table: str) -> None:
    async with gateway(dsn) as client:
        # A writer does not know the key, so it has locked the table, and follows the hint from there.
        other = await lock(client, f"public.{table}")
        told = hint(await insert(client, table, {"v": 1}, other), "resource-underivable")
        named = {**other, "Fencing-Resource": f"public.{table}"}
        assert hint(await insert(client, table, {"v": 1}, named), "resource-mismatch") == told
        barrier = await client.post(f"/v1/fences/public.{table}/barrier", json={"token": other["Fencing-Token"]})
        assert barrier.status_code == 200, barrier.text
        # The fence now carries the token, so one statement is the whole write.
        assert hint(await insert(client, table, {"v": 1}, named), "resource-mismatch") == told
        key = await chosen(owner, told)
        held = await lock(client, f"public.{table}/{key}")
        made = await insert(client, table, {"id": key, "v": 1}, held)
        assert made.status_code == 201, made.text
        assert made.headers["fencing-resource"] == f"public.{table}/{key}"
        rows = [{"id": await chosen(owner, told), "v": 2}, {"v": 3}]
        incomplete = await insert(client, f"{table}?columns=id,v", rows, {**held, "Prefer": "missing=default"})
        assert hint(incomplete, "resource-underivable") == told
        writes = [{"method": "POST", "table": table, "body": {"v": 1}}]
        listed = await client.post("/v1/transaction", json={"writes": writes}, headers=named)
        assert (listed.status_code, listed.json()["advice"]) == (422, told), listed.text
    assert [str(row["id"]) for row in await owner.fetch(f"SELECT id FROM {table}")] == [key]


@pytest.mark.parametrize("table", first(["fixed", "numbered"]))
async def test_the_operator_gives_the_table_one_resource(dsn: str, owner: asyncpg.Connection, table: str) -> None:
    async with gateway(dsn, tables=[{"name": "public.constant"}]) as client:
        told = hint(await insert(client, table, {"v": 1}, {"Fencing-Token": "1"}), "resource-underivable")
    rule = re.search(r'resource = "(\S+)" in its rule, \[\[tables\]\] with name = "(\S+)"', told)
    assert rule, told
    assert ("SELECT" in told) is (table == "numbered")
    tables = [{"name": rule[2], "resource": rule[1]}]
    assert "'gateway naming apply'" in told
    async with naming_changes(config(dsn, tables=tables).default) as changes:
        for one in await changes.planned():
            await changes.apply(one)
    async with gateway(dsn, tables=tables) as client:
        made = await insert(client, table, {"v": 1}, await lock(client, rule[1]))
    assert made.status_code == 201, made.text
    assert await owner.fetchval(f"SELECT v FROM {table}") == 1


async def test_a_constant_default_can_be_named(dsn: str, owner: asyncpg.Connection) -> None:
    async with gateway(dsn) as client:
        told = hint(await insert(client, "constant", {"v": 1}, {"Fencing-Token": "1"}), "resource-underivable")
        assert told == "Send id in every row, or name the resource in Fencing-Resource."
        held = await lock(client, "public.constant/first")
        made = await insert(client, "constant", {"v": 1}, {**held, "Fencing-Resource": "public.constant/first"})
        assert made.status_code == 201, made.text


MOMENT = "2024-01-02 03:00:00+00"

MOMENT_NAME = "public.moments/2024-01-02%2003:00:00+00"

LASTING = """
    PERFORM set_config('TimeZone', 'Asia/Tokyo', false), set_config('DateStyle', 'German', false),
        set_config('bytea_output', 'escape', false), set_config('synchronous_commit', 'off', false),
        set_config('search_path', 'fencing', false), set_config('lock_timeout', '7', false);
"""

SETTINGS = ("TimeZone", "DateStyle", "bytea_output", "synchronous_commit", "search_path", "lock_timeout")

PINNED = f"SELECT {', '.join(f'current_setting($${name}$$)' for name in SETTINGS)}"

SETTING = f"""
CREATE TABLE moments (at timestamptz PRIMARY KEY, v int);
INSERT INTO moments VALUES ('{MOMENT}', 0);
CREATE FUNCTION careless() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN {LASTING} RETURN NEW; END$$;
CREATE FUNCTION lasting() RETURNS int LANGUAGE plpgsql AS $$BEGIN {LASTING} RETURN 1; END$$;
"""


CARELESS = {
    "a trigger before a row": "CREATE TRIGGER t BEFORE UPDATE ON settings FOR EACH ROW EXECUTE FUNCTION careless()",
    "a trigger after a row": "CREATE TRIGGER t AFTER UPDATE ON settings FOR EACH ROW EXECUTE FUNCTION careless()",
    "a trigger after a statement": "CREATE TRIGGER t AFTER UPDATE ON settings EXECUTE FUNCTION careless()",
    "a trigger at the end of the transaction": (
        "CREATE CONSTRAINT TRIGGER t AFTER UPDATE ON settings DEFERRABLE INITIALLY DEFERRED "
        "FOR EACH ROW EXECUTE FUNCTION careless()"
    ),
    "a partition's trigger": (
        "DROP TABLE settings; CREATE TABLE settings (name text PRIMARY KEY, value text) PARTITION BY LIST (name); "
        "CREATE TABLE one PARTITION OF settings DEFAULT; INSERT INTO settings VALUES ('colour', 'red'); "
        "CREATE TRIGGER t AFTER UPDATE ON one FOR EACH ROW EXECUTE FUNCTION careless()"
    ),
    "a view": ("ALTER TABLE settings RENAME TO below; CREATE VIEW settings AS SELECT * FROM below WHERE lasting() = 1"),
}


@pytest.mark.thorough
@pytest.mark.parametrize("code", CARELESS)
async def test_settings_of_code_end_with_its_write(write: Send, tables: Database, code: str) -> None:
    await change(tables, SETTING + CARELESS[code])
    pinned = await rows(tables, PINNED)
    target = f"/moments?at=eq.{MOMENT.replace('+', '%2B')}"
    # With one token, so that all but the first could take the fast path.
    for _ in range(SHARED_SESSIONS + 1):
        answered(await write("PATCH", "/settings?name=eq.colour", {"value": "x"}, token=5), 204)
        assert await rows(tables, PINNED) == pinned
        answer = await write("PATCH", target, {"v": 1}, token=5)
        answered(answer, 204)
        assert answer.headers["fencing-resource"] == MOMENT_NAME


async def test_unknown_code_that_changes_settings_costs_the_session(write: Send, tables: Database) -> None:
    """A default is no trigger, and may call anything all the same."""
    await change(tables, f"{SETTING}ALTER TABLE shipments ALTER state SET DEFAULT 'new' || public.lasting()")
    for _ in range(SHARED_SESSIONS + 1):
        answered(await write("POST", "/shipments", {"order_id": 7}, token=5), 201)
        assert (await row(tables, "SELECT current_setting('TimeZone')"))[0] == "UTC"
        answered(await write("PATCH", f"/moments?at=eq.{MOMENT.replace('+', '%2B')}", {"v": 1}, token=5), 204)
