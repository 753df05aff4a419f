"""Requests under roles of the database: its privileges, column rights and policies hold, and so do the fences."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from gateway.db import rights
from tests.guard.stage import session
from tests.postgres import GATEWAY
from tests.running import GRANTS, config, running
from tests.waiting import PATIENCE

pytestmark = pytest.mark.asyncio(loop_scope="module")


# Policies as PostgREST's documentation and Supabase's write them.
SCHEMA = f"""
CREATE ROLE tenant;
CREATE ROLE clerk;
CREATE ROLE unreachable;
CREATE ROLE unprepared;
GRANT tenant, clerk, unprepared TO {GATEWAY};
CREATE FUNCTION uid() RETURNS text LANGUAGE sql STABLE AS
    $$ SELECT nullif(current_setting('request.jwt.claims', true), '')::json ->> 'sub' $$;
CREATE TABLE notes (id bigint PRIMARY KEY, owner text NOT NULL DEFAULT uid(), text text);
INSERT INTO notes VALUES (1, 'ann', 'of ann'), (2, 'bob', 'of bob');
ALTER TABLE notes ENABLE ROW LEVEL SECURITY;
CREATE POLICY own ON notes FOR ALL TO tenant USING (owner = uid()) WITH CHECK (owner = uid());
CREATE POLICY whole ON notes FOR ALL TO {GATEWAY} USING (true);
GRANT SELECT, INSERT, UPDATE, DELETE ON notes TO tenant;
CREATE TABLE orders (id bigint PRIMARY KEY, state text, price numeric, by text DEFAULT current_user);
INSERT INTO orders VALUES (1, 'new', 10), (2, 'new', 20);
GRANT SELECT ON orders TO tenant;
GRANT SELECT, INSERT (id, state), UPDATE (state), DELETE ON orders TO clerk;
CREATE TABLE lines (id bigint PRIMARY KEY, order_id bigint REFERENCES orders ON DELETE CASCADE);
INSERT INTO lines VALUES (21, 2);
CREATE TABLE log (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, entry text);
CREATE FUNCTION seen() RETURNS json LANGUAGE sql STABLE AS $$
    SELECT json_build_object(
        'role', current_user, 'claims', nullif(current_setting('request.jwt.claims', true), '')::json,
        'headers', nullif(current_setting('request.headers', true), '')::json,
        'cookies', nullif(current_setting('request.cookies', true), '')::json,
        'method', current_setting('request.method', true), 'path', current_setting('request.path', true))
$$;
CREATE FUNCTION mischief() RETURNS text LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM set_config('request.jwt.claims', '{{"sub": "bob"}}', false);
    PERFORM set_config('role', 'tenant', false);
    RETURN current_user;
END $$;
CREATE FUNCTION shared() RETURNS text LANGUAGE sql VOLATILE AS 'SELECT current_user::text';
CREATE FUNCTION kept_for_tenants() RETURNS text LANGUAGE sql STABLE AS 'SELECT 1::text';
REVOKE ALL ON FUNCTION kept_for_tenants FROM public;
GRANT EXECUTE ON FUNCTION kept_for_tenants TO tenant;
"""
NAMES = ["ann", "bob", "clerk", "plain", "nobody-in-particular", "stranded", "unprepared"]
ROLES = [
    {"callers": ["clerk"], "role": "clerk"},
    {"callers": ["plain"], "role": "none"},
    {"callers": ["stranded"], "role": "unreachable"},
    {"callers": ["unprepared"], "role": "unprepared"},
    {"callers": ["group:tenants"], "role": "tenant"},
]
FUNCTIONS = ["public.seen", "public.mischief", "public.shared", "public.kept_for_tenants"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def origin(shared_dsn: str) -> AsyncIterator[str]:
    await execute(shared_dsn, SCHEMA)
    await rights.let_act(shared_dsn, ["tenant", "clerk"])
    settings = config(
        shared_dsn,
        grants=[*GRANTS, {"callers": ["anonymous"], "actions": ["read"], "tables": ["public.notes"]}],
        callers=[
            {"name": name, "api_key": f"key-of-{name}", "groups": ["tenants"] if name in ("ann", "bob") else []}
            for name in NAMES
        ],
        # One session: whatever one request leaves behind, the next one meets.
        postgres={"pool_size": 1, "roles": ROLES, "functions": FUNCTIONS},
    )
    try:
        async with running(settings) as origin:
            async with asyncio.timeout(PATIENCE):
                while (await ask(origin, "plain", "GET", "notes")).status_code != 200:
                    await asyncio.sleep(0.05)
            yield origin
    finally:
        await execute(shared_dsn, "DROP OWNED BY tenant, clerk, unreachable, unprepared")
        await execute(shared_dsn, "DROP ROLE tenant, clerk, unreachable, unprepared")


async def query(dsn: str, sql: str) -> list[tuple[Any, ...]]:
    """Return the rows of a statement of the owner."""
    async with session(dsn) as owner:
        return [tuple(row) for row in await owner.fetch(sql)]


async def execute(dsn: str, script: str) -> None:
    async with session(dsn) as owner:
        await owner.execute(script)


async def ask(origin: str, caller: str, method: str, path: str, body: Any = None, **headers: str) -> httpx.Response:
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    async with httpx.AsyncClient(timeout=PATIENCE) as client:
        return await client.request(
            method,
            f"{origin}/v1/tables/{path}",
            json=body,
            headers={"Authorization": f"Bearer key-of-{caller}", **sent},
        )


async def test_policies_show_each_caller_its_own_rows(origin: str) -> None:
    assert [one["owner"] for one in (await ask(origin, "ann", "GET", "notes")).json()] == ["ann"]
    assert [one["owner"] for one in (await ask(origin, "bob", "GET", "notes?id=gt.0")).json()] == ["bob"]
    assert len((await ask(origin, "plain", "GET", "notes")).json()) == 2
    assert (await ask(origin, "bob", "GET", "notes?id=eq.1")).json() == []


async def test_policies_bind_writes_and_so_do_fences(origin: str) -> None:
    foreign = await ask(origin, "bob", "PATCH", "notes?id=eq.1", {"text": "x"}, fencing_token="5", prefer="count=exact")
    assert (foreign.status_code, foreign.headers["content-range"]) == (204, "*/0")
    inserted = await ask(origin, "bob", "POST", "notes", {"id": 3, "owner": "ann"}, fencing_token="5")
    assert (inserted.status_code, inserted.json()["code"]) == (403, "42501")
    for _ in range(3):
        own = await ask(origin, "ann", "PATCH", "notes?id=eq.1", {"text": "mine"}, fencing_token="7")
        assert own.status_code == 204, own.text
    stale = await ask(origin, "ann", "PATCH", "notes?id=eq.1", {"text": "late"}, fencing_token="6")
    assert (stale.status_code, stale.json()["code"]) == (412, "token-stale")
    assert (await ask(origin, "ann", "GET", "notes?id=eq.1&select=text")).json() == [{"text": "mine"}]
    by_default = await ask(origin, "ann", "POST", "notes", {"id": 4}, fencing_token="1", prefer="return=representation")
    assert by_default.json()[0]["owner"] == "ann"


async def test_columns_without_a_right_are_not_written(origin: str, shared_dsn: str) -> None:
    allowed = await ask(origin, "clerk", "PATCH", "orders?id=eq.1", {"state": "paid"}, fencing_token="2")
    assert allowed.status_code == 204, allowed.text
    refused = await ask(origin, "clerk", "PATCH", "orders?id=eq.1", {"price": 1}, fencing_token="3")
    assert (refused.status_code, refused.json()["code"]) == (403, "42501")
    assert (await query(shared_dsn, "SELECT value FROM fencing.fence WHERE resource = 'public.orders/1'")) == [(2,)]
    inserted = await ask(origin, "clerk", "POST", "orders", {"id": 9, "state": "new"}, fencing_token="1")
    assert inserted.status_code == 201, inserted.text
    assert await query(shared_dsn, "SELECT by FROM orders WHERE id = 9") == [("clerk",)]


async def test_a_delete_reaches_rows_that_the_role_cannot_see(origin: str, shared_dsn: str) -> None:
    refused = await ask(origin, "clerk", "DELETE", "orders?id=eq.2", fencing_token="3")
    assert (refused.status_code, refused.json()["code"]) == (422, "side-effect-refused"), refused.text
    assert await query(shared_dsn, "SELECT count(*) FROM lines WHERE order_id = 2") == [(1,)]
    gone = await ask(origin, "clerk", "DELETE", "orders?id=eq.9", fencing_token="4")
    assert gone.status_code == 204, gone.text


async def test_functions_see_the_request_but_no_proof_of_the_caller(origin: str) -> None:
    answer = await ask(origin, "ann", "POST", "rpc/seen", {}, x_tenant="7", cookie="theme=dark", apikey="key-of-ann")
    seen = answer.json()
    assert (seen["role"], seen["claims"]) == ("tenant", {"sub": "ann", "role": "tenant"})
    assert (seen["method"], seen["path"], seen["cookies"]) == ("POST", "/rpc/seen", {"theme": "dark"})
    assert seen["headers"]["x-tenant"] == "7"
    assert "key-of-ann" not in answer.text
    most = "; ".join(f"c{number}=x" for number in range(180))
    for cookies, read in ((most, 180), (f"{most}; one=more", 0)):
        answer = await ask(origin, "ann", "POST", "rpc/seen", {}, cookie=cookies)
        assert len(answer.json()["cookies"]) == read, "no browser has so many, and reading them takes long"
    unset = (await ask(origin, "plain", "POST", "rpc/seen", {})).json()
    assert (unset["role"], unset["claims"], unset["headers"]) == (GATEWAY, None, None)
    assert (await ask(origin, "clerk", "POST", "rpc/kept_for_tenants", {})).status_code == 403
    assert (await ask(origin, "bob", "GET", "rpc/kept_for_tenants")).json() == "1"


async def test_nothing_leaks_to_the_next_request_of_the_session(origin: str) -> None:
    for caller in ("ann", "plain", "clerk"):
        acted = await ask(origin, caller, "POST", "rpc/mischief", {}, fencing_token="9", fencing_resource="job")
        assert acted.status_code == 200, acted.text
        seen = (await ask(origin, "plain", "POST", "rpc/seen", {})).json()
        assert (seen["role"], seen["claims"]) == (GATEWAY, None)
        assert [one["owner"] for one in (await ask(origin, "ann", "GET", "notes?id=lt.3")).json()] == ["ann"]
        assert len((await ask(origin, "plain", "GET", "notes?id=lt.3")).json()) == 2


async def test_a_list_of_writes_runs_under_the_role(origin: str, shared_dsn: str) -> None:
    async def both(price: dict[str, Any]) -> httpx.Response:
        writes = [
            {"method": "PATCH", "table": "orders", "query": "id=eq.1", "body": {"state": "sent"}},
            {"method": "PATCH", "table": "orders", "query": "id=eq.2", "body": price or {"state": "sent"}},
        ]
        async with httpx.AsyncClient(timeout=PATIENCE) as client:
            headers = {"Authorization": "Bearer key-of-clerk", "Fencing-Token": "30"}
            return await client.post(f"{origin}/v1/transaction", json={"writes": writes}, headers=headers)

    refused = await both({"price": 1})
    assert refused.status_code == 403, refused.text
    assert await query(shared_dsn, "SELECT count(*) FROM orders WHERE state = 'sent'") == [(0,)]
    assert (await both({})).status_code == 200
    assert await query(shared_dsn, "SELECT count(*) FROM orders WHERE state = 'sent'") == [(2,)]


async def test_a_kept_answer_is_shown_again_under_the_same_role(origin: str) -> None:
    for status in ("201", "201"):
        answer = await ask(origin, "ann", "POST", "notes", {"id": 40}, fencing_token="1", idempotency_key="forty")
        assert str(answer.status_code) == status, answer.text


async def test_a_caller_without_a_role_is_denied_and_the_denial_is_on_record(origin: str, shared_dsn: str) -> None:
    for method, path in (("GET", "orders"), ("PATCH", "orders?id=eq.1"), ("POST", "rpc/seen"), ("OPTIONS", "rpc/seen")):
        answer = await ask(origin, "nobody-in-particular", method, path, {}, fencing_token="99")
        assert (answer.status_code, answer.json()["code"]) == (403, "denied"), answer.text
        assert "postgres.roles" in answer.json()["message"]
        assert "docs/database-roles.md" in answer.json()["hint"]
    async with httpx.AsyncClient(timeout=PATIENCE) as client:
        # A missing grant is told before a missing role.
        for table, told in (("orders", "lack the grant read"), ("notes", "postgres.roles")):
            answer = await client.get(f"{origin}/v1/tables/{table}")
            assert (answer.status_code, told in answer.json()["message"]) == (401, True), answer.text
    denied = "SELECT count(*) FROM fencing.rejection WHERE reason = 'denied' AND caller = 'nobody-in-particular'"
    assert await query(shared_dsn, denied) == [(4,)]


@pytest.mark.parametrize(
    ("caller", "advice"),
    [("stranded", "GRANT unreachable TO"), ("unprepared", "GRANT USAGE ON SCHEMA fencing TO unprepared")],
)
async def test_a_role_that_cannot_be_taken_is_named_with_what_to_do(origin: str, caller: str, advice: str) -> None:
    for method, body in (("GET", None), ("PATCH", {"state": "x"})):
        answer = await ask(origin, caller, method, "orders?id=eq.1", body, fencing_token="60")
        assert (answer.status_code, answer.json()["code"]) == (503, "right-missing"), answer.text
        assert advice in answer.json()["hint"]
