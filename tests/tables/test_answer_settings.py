"""The configuration decides about answers: other origins, verbosity, the description, code in the database."""

from functools import partial

import asyncpg
import httpx
import pytest

from gateway.auth.principal import Principal
from gateway.db.database import Database
from gateway.errors import Unauthenticated
from gateway.observe.events import Event
from gateway.tables.pipeline import Exposure, TablePlane
from tests.callers import ANYBODY, known
from tests.tables.asking import Send, answered, change, over_asgi, rows
from tests.tables.conftest import RULES

APP = "https://app.example"
CODE = """
CREATE FUNCTION greet() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM set_config('response.headers', '[{"X-Row": "' || NEW.id || '"}, {"Content-Length": "9"}]', true);
    IF NEW.name = 'accepted' THEN PERFORM set_config('response.status', '202', true); END IF;
    IF NEW.name = 'broken' THEN PERFORM set_config('response.status', 'x', true); END IF;
    IF NEW.name = 'empty' THEN PERFORM set_config('response.status', '204', true); END IF;
    IF NEW.name = 'raised' THEN
        RAISE SQLSTATE 'PGRST' USING
            message = '{"code":"C","message":"M"}', detail = '{"status":402,"headers":{"X-A":"b"}}';
    END IF;
    RETURN NEW;
END$$;
CREATE TRIGGER greet AFTER INSERT OR UPDATE ON users FOR EACH ROW EXECUTE FUNCTION greet();
CREATE FUNCTION told() RETURNS text LANGUAGE sql
    AS $$SELECT set_config('response.headers', '[{"X-View": "1"}]', true)$$;
CREATE VIEW telling AS SELECT 1 AS n, told() AS t;
"""


class TestPages:
    @pytest.fixture
    def exposure(self) -> Exposure:
        return Exposure(rules=RULES, origins=(APP,))

    async def test_a_preflight_request_is_answered(self, tables: Database, events: list[Event]) -> None:
        def nobody(_: object) -> Principal:
            raise Unauthenticated("no key")

        plane = TablePlane(tables, Exposure(origins=(APP,)), authenticate=nobody, observe=events.append)
        asks = {
            "origin": APP,
            "access-control-request-method": "PATCH",
            "access-control-request-headers": "fencing-token",
        }
        async with over_asgi(plane) as client:
            answer = await client.options("/users", headers=asks)
            assert (answer.status_code, answer.content) == (200, b"")
            assert answer.headers["access-control-allow-origin"] == APP
            assert answer.headers["access-control-allow-headers"] == "fencing-token"
            assert answer.headers["access-control-max-age"] == "86400"
            answer = await client.options("/users", headers={**asks, "origin": "https://evil.example"})
            answered(answer, 401, "unauthenticated")
            assert "access-control-allow-origin" not in answer.headers

    async def test_a_page_may_read_the_headers_it_needs(self, client: httpx.AsyncClient, write: Send) -> None:
        for _ in range(2):
            answer = await client.patch(
                "/users?id=eq.1", json={"name": "x"}, headers={"fencing-token": "5", "origin": APP}
            )
            answered(answer, 204)
            assert answer.headers["access-control-allow-origin"] == APP
            assert "Fencing-Token" in answer.headers["access-control-expose-headers"]
            assert answer.headers["vary"] == "Origin"
        answer = await client.patch("/users?id=eq.1", json={}, headers={"fencing-token": "4", "origin": APP})
        answered(answer, 412, "token-stale")
        assert answer.headers["access-control-allow-origin"] == APP
        assert "access-control-allow-credentials" not in answer.headers
        assert (await client.get("/users")).headers["vary"] == "Origin"


class TestReserve:
    @pytest.fixture
    def exposure(self) -> Exposure:
        return Exposure(rules=RULES, verbose_errors=False, openapi=False)

    async def test_errors_leave_out_details(self, client: httpx.AsyncClient, write: Send) -> None:
        answer = await write("POST", "/accounts", {"id": 9, "balance": None}, token=1)
        document = answer.json()
        assert (document["code"], document["details"], document["hint"]) == ("23502", None, None)
        answer = await client.get("/users", headers={"accept-profile": "other"})
        assert (answer.json()["code"], answer.json()["hint"]) == ("PGRST106", None)
        answer = await write(
            "PATCH", "/users?id=eq.9", {"name": "x"}, token=1, accept="application/vnd.pgrst.object+json"
        )
        assert answer.json()["details"] == "The result contains 0 rows"
        answer = await write("PATCH", "/users?id=eq.1", {"name": "x"})
        assert (answer.json()["code"], answer.json()["hint"] is None) == ("token-required", False)

    async def test_the_root_is_not_described(self, client: httpx.AsyncClient) -> None:
        answered(await client.get("/"), 404, "PGRST126")
        assert (await client.head("/")).status_code == 404


class TestCode:
    @pytest.fixture
    def exposure(self) -> Exposure:
        return Exposure(rules=RULES, overrides=True)

    @pytest.fixture
    async def tables(self, tables: Database) -> Database:
        await change(tables, CODE)
        return tables

    async def test_a_trigger_may_set_status_and_headers(self, write: Send, tables: Database) -> None:
        for number in (5, 6, 5):
            method, target = ("POST", "/users") if number == 6 else ("PATCH", "/users?id=eq.1")
            answer = await write(method, target, {"id": number} if number == 6 else {"name": "accepted"}, token=1)
            assert answer.headers["x-row"] == ("6" if number == 6 else "1")
            assert answer.status_code == (201 if number == 6 else 202)
            assert answer.headers["content-length"] == "0"
        answer = await write("PATCH", "/users?id=eq.1", {"name": "empty"}, token=1, prefer="return=representation")
        assert (answer.status_code, answer.content) == (204, b"")
        answer = await write("PATCH", "/users?id=eq.1", {"name": "raised"}, token=1)
        assert (answer.status_code, answer.headers["x-a"], answer.json()["code"]) == (402, "b", "C")
        answered(await write("PATCH", "/users?id=eq.1", {"name": "broken"}, token=1), 500, "PGRST112")
        assert await rows(tables, "SELECT name FROM users WHERE id = 1") == [("empty",)]

    async def test_settings_of_one_request_do_not_reach_the_next(self, write: Send, client: httpx.AsyncClient) -> None:
        assert "x-row" in (await write("PATCH", "/users?id=eq.1", {"name": "y"}, token=1)).headers
        for _ in range(20):
            answer = await write("PATCH", "/accounts?id=eq.1", {"note": "y"}, token=1)
            assert "x-row" not in answer.headers
        assert (await client.get("/telling")).headers["x-view"] == "1"
        assert "x-view" not in (await client.get("/users")).headers


async def test_code_sets_nothing_of_an_answer_by_default(
    write: Send, client: httpx.AsyncClient, tables: Database
) -> None:
    await change(tables, CODE)
    assert "x-row" not in (await write("PATCH", "/users?id=eq.1", {"name": "broken"}, token=1)).headers
    assert "x-view" not in (await client.get("/telling")).headers


async def test_a_missing_privilege_is_401_without_a_key_and_403_with_one(
    tables: Database, stranger: asyncpg.Connection, events: list[Event]
) -> None:
    denied = "CREATE FUNCTION denied() RETURNS int LANGUAGE plpgsql AS $$BEGIN RAISE insufficient_privilege; END$$"
    await stranger.execute(f"{denied}; CREATE VIEW secret AS SELECT denied() AS n")
    for caller, status in {ANYBODY: 401, known("tester"): 403}.items():
        plane = TablePlane(tables, Exposure(), authenticate=partial(_always, caller), observe=events.append)
        async with over_asgi(plane) as client:
            answered(await client.get("/secret"), status, "42501")


def _always(caller: Principal, _: object) -> Principal:
    return caller


async def test_the_root_describes_all_tables(client: httpx.AsyncClient, tables: Database) -> None:
    await change(tables, "COMMENT ON TABLE users IS E'Our users\\nAll of them'")
    answer = await client.get("/")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/openapi+json; charset=utf-8")
    document = answer.json()
    assert document["swagger"] == "2.0"
    assert document["paths"]["/users"]["patch"]["summary"] == "Our users"
    assert set(document["paths"]["/users"]) == {"get", "post", "put", "patch", "delete"}
    assert set(document["definitions"]["users"]["properties"]) == {"id", "email", "name"}
    assert {"412", "422", "428"} < set(document["paths"]["/users"]["patch"]["responses"])
    head = await client.head("/")
    assert (head.content, head.headers["content-length"]) == (b"", answer.headers["content-length"])
    assert (await client.options("/")).headers["allow"] == "OPTIONS,GET,HEAD"
    answered(await client.get("/", headers={"accept": "text/csv"}), 406, "PGRST107")
    answered(await client.post("/", json={}), 405, "PGRST117")
