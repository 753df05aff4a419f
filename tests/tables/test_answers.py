"""Preferences, media types and headers of requests and answers, and what the configuration says about answers."""

import asyncpg
import httpx
import pytest

from gateway.auth.principal import Principal
from gateway.db.database import Database
from gateway.errors import Unauthenticated
from gateway.observe.events import Event
from gateway.tables.pipeline import Exposure, TablePlane
from tests.callers import ANYBODY, known
from tests.tables.asking import Send, answered, change, client_of, over_asgi, rows
from tests.tables.conftest import RULES


@pytest.fixture
def exposure() -> Exposure:
    return Exposure(rules=RULES, max_body=100_000, max_rows=1000)


async def test_csv_out_and_in_again(client: httpx.AsyncClient, write: Send, tables: Database) -> None:
    awkward = 'a "quoted", \\ back\\\\slash\nline'
    answered(await write("POST", "/pairs", {"a": awkward, "b": "", "v": None}, token=1), 201)
    line = (await client.get("/pairs?v=is.null&select=a,b", headers={"accept": "text/csv"})).text
    answered(
        await write(
            "DELETE", "/pairs?v=is.null&a=eq." + httpx.QueryParams({"x": awkward}).__str__()[2:] + "&b=eq.", token=1
        ),
        204,
    )
    back = {"content-type": "text/csv", "fencing-token": "1"}
    answered(await client.post("/pairs", content=line, headers=back), 201)
    assert (awkward, "", None) in await rows(tables, "SELECT a, b, v FROM pairs")


async def test_a_write_is_fenced_by_the_value_that_is_written(client: httpx.AsyncClient, tables: Database) -> None:
    for body, written in (
        ('{"id": 5, "id": 6}', 6), ('{"id": 5, "\\u0069d": 6}', 6),
        ('[{"id": 6, "id": 5, "name": "a", "name": "b"}]', 5), ('{"id": -0}', 0), ('{"id": "7"}', 7),
        ('{"id": " 07 "}', 7), ('{"id": 9223372036854775807}', 9223372036854775807), ('{"id": null, "id": 8}', 8),
    ):  # fmt: skip
        for _ in range(2):  # by the whole way, then by the fast one
            answer = await client.post("/users", headers={"fencing-token": "1"}, content=body)
            answered(answer, 201)
            assert answer.headers["fencing-resource"] == f"public.users/{written}"
            assert (written,) in await rows(tables, "SELECT id FROM users")
            await client.delete(f"/users?id=eq.{written}", headers={"fencing-token": "1"})


async def test_values_that_name_no_row(client: httpx.AsyncClient, tables: Database) -> None:
    for body, code in (
        ('{"id": 1.5}', "22P02"), ('{"id": 9223372036854775808}', "22003"), ('{"id": 99999999999999999999}', "22003"),
        ('{"id": 1e2}', "22P02"), ('{"id": NaN}', "PGRST102"), ('{"id": Infinity}', "PGRST102"),
        ('{"id": "\\u0000"}', "22021"), ('{"id": 8, "id": null}', "resource-underivable"),
        ('{"id": {"a": 1}}', "resource-underivable"),
    ):  # fmt: skip
        answer = await client.post("/users", headers={"fencing-token": "1"}, content=body)
        assert answer.json()["code"] == code, answer.text
    assert len(await rows(tables, "SELECT id FROM users")) == 2
    assert await rows(tables, "SELECT resource FROM fencing.fence") == []


async def test_numbers_are_taken_to_the_last_digit(client: httpx.AsyncClient, tables: Database) -> None:
    await change(tables, "CREATE TABLE exact (x numeric(30, 5) PRIMARY KEY, t text)")
    for number, shown in [
        ("18446744073709551617", "18446744073709551617.00000"),
        ("1.10", "1.10000"),
        ("0.12345", "0.12345"),
        ("1E2", "100.00000"),
    ]:
        answer = await client.post("/exact", headers={"fencing-token": "1"}, content=f'{{"x": {number}}}')
        answered(answer, 201)
        assert answer.headers["fencing-resource"] == f"public.exact/{shown}"
        assert (shown,) in await rows(tables, "SELECT x::text FROM exact")


async def test_a_write_that_asks_for_a_rollback_is_committed_or_refused(write: Send, tables: Database) -> None:
    answer = await write("POST", "/users", {"id": 5}, token=5, prefer="tx=rollback,return=minimal")
    answered(answer, 201)
    assert answer.headers["preference-applied"] == "return=minimal"
    strict = await write("POST", "/users", {"id": 6}, token=5, prefer="tx=rollback,handling=strict")
    answered(strict, 400, "PGRST122")
    assert await rows(tables, "SELECT id FROM users WHERE id > 4") == [(5,)]


async def test_times_in_the_zone_of_the_caller(client: httpx.AsyncClient, write: Send, tables: Database) -> None:
    await change(
        tables,
        "CREATE TABLE visits (id bigint PRIMARY KEY, at timestamptz);"
        "INSERT INTO visits VALUES (1, '2024-01-02 12:00:00+00');"
        "CREATE TABLE slots (at timestamptz PRIMARY KEY, v int)",
    )
    zone = {"prefer": "timezone=America/Los_Angeles"}
    answer = await client.get("/visits", headers=zone)
    assert answer.json() == [{"id": 1, "at": "2024-01-02T04:00:00-08:00"}]
    assert answer.headers["preference-applied"] == "timezone=America/Los_Angeles"
    assert (await client.get("/visits")).json() == [{"id": 1, "at": "2024-01-02T12:00:00+00:00"}]
    for _ in range(2):
        answer = await write(
            "PATCH", "/visits?id=eq.1", {"at": "2024-01-02 06:00:00"}, token=1,
            prefer="timezone=America/Los_Angeles,return=representation",
        )  # fmt: skip
        assert answer.json() == [{"id": 1, "at": "2024-01-02T06:00:00-08:00"}]
    answer = await write(
        "PATCH", "/visits?id=eq.1", {"at": "2024-01-02 06:00:00"}, token=1, prefer="return=representation"
    )
    assert answer.json() == [{"id": 1, "at": "2024-01-02T06:00:00+00:00"}]
    answer = await client.get("/visits", headers={"prefer": "timezone=Mars/Base"})
    assert (answer.status_code, "preference-applied" in answer.headers) == (200, False)
    strict = "timezone=Mars/Base,handling=strict"
    answered(await write("PATCH", "/visits?id=eq.1", {"id": 1}, token=2, prefer=strict), 400, "PGRST122")
    refused = await write("POST", "/slots", {"at": "2024-01-02 06:00:00"}, token=1, prefer="timezone=Asia/Tokyo")
    answered(refused, 400, "PGRST127")
    assert await rows(tables, "SELECT value FROM fencing.fence") == [(1,)]


async def test_counts(client: httpx.AsyncClient, tables: Database) -> None:
    await change(
        tables,
        "CREATE TABLE many AS SELECT generate_series(1, 3000) AS n; ANALYZE many;"
        "CREATE TABLE few AS SELECT generate_series(1, 30) AS n; ANALYZE few",
    )

    async def asked(table: str, count: str) -> tuple[int, str]:
        answer = await client.get(f"/{table}?n=gt.0&limit=5", headers={"prefer": f"count={count}"})
        assert answer.headers["preference-applied"] == f"count={count}"
        return answer.status_code, answer.headers["content-range"]

    for count in ("exact", "planned", "estimated"):
        assert await asked("few", count) == (206, "0-4/30")
        assert await asked("many", count) == (206, "0-4/3000")
    await change(tables, "DELETE FROM many WHERE n > 2000")
    assert (await asked("many", "exact"))[1] == "0-4/2000"
    guessed = int((await asked("many", "estimated"))[1].removeprefix("0-4/"))
    assert guessed >= 1001
    answer = await client.get("/many", headers={"prefer": "count=exact"})
    assert (answer.status_code, len(answer.json()), answer.headers["content-range"]) == (206, 1000, "0-999/2000")


async def test_counts_of_writes(write: Send) -> None:
    for count, total in {"exact": "1", "estimated": "1", "planned": "*"}.items():
        answer = await write("PATCH", "/users?id=eq.1", {"name": "x"}, token=1, prefer=f"count={count}")
        assert answer.headers["content-range"] == f"0-0/{total}"
        assert answer.headers["preference-applied"] == f"count={count}"


async def test_content_location_leaves_out_the_api_key(client: httpx.AsyncClient) -> None:
    answer = await client.get("/users?order=id&apikey=secret&id=gt.0")
    assert answer.headers["content-location"] == "/v1/tables/users?id=gt.0&order=id"
    answer = await client.get("/users?apikey=secret")
    assert answer.headers["content-location"] == "/v1/tables/users"


APP = "https://app.example"
CODE = """
CREATE FUNCTION greet() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM set_config('response.headers', '[{"X-Row": "1"}]', true);
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

    async def test_a_page_may_read_the_headers_it_needs(self, client: httpx.AsyncClient) -> None:
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


async def test_code_sets_nothing_of_an_answer_but_by_an_error(
    write: Send, client: httpx.AsyncClient, tables: Database
) -> None:
    await change(tables, CODE)
    assert "x-row" not in (await write("PATCH", "/users?id=eq.1", {"name": "accepted"}, token=1)).headers
    assert "x-view" not in (await client.get("/telling")).headers
    answer = await write("PATCH", "/users?id=eq.1", {"name": "raised"}, token=1)
    assert (answer.status_code, answer.headers["x-a"], answer.json()["code"]) == (402, "b", "C")
    assert await rows(tables, "SELECT name FROM users WHERE id = 1") == [("accepted",)]


async def test_a_missing_privilege_is_401_without_a_key_and_403_with_one(
    tables: Database, stranger: asyncpg.Connection
) -> None:
    denied = "CREATE FUNCTION denied() RETURNS int LANGUAGE plpgsql AS $$BEGIN RAISE insufficient_privilege; END$$"
    await stranger.execute(f"{denied}; CREATE VIEW secret AS SELECT denied() AS n")
    for caller, status in {ANYBODY: 401, known("tester"): 403}.items():
        async with client_of(tables, Exposure(), caller=caller) as client:
            answered(await client.get("/secret"), status, "42501")


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
