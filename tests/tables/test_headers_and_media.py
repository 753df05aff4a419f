"""Preferences, media types and headers of requests and answers."""

import httpx
import pytest

from gateway.db.database import Database
from gateway.tables.pipeline import Exposure
from tests.tables.asking import Send, answered, change, rows
from tests.tables.conftest import RULES

CSV = {"accept": "text/csv"}


@pytest.fixture
def exposure() -> Exposure:
    return Exposure(rules=RULES, max_body=100_000, tx_override=True, max_rows=1000)


async def test_csv_out(client: httpx.AsyncClient) -> None:
    answer = await client.get("/accounts?select=id,owner,note,extra->n&order=id&limit=2", headers=CSV)
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    assert answer.text == 'id,owner,note,n\n1,ann,first,"[1, 2]"\n2,bob,,'
    assert (await client.get("/accounts?id=eq.9", headers=CSV)).text == "\n"


async def test_csv_out_and_in_again(client: httpx.AsyncClient, write: Send, tables: Database) -> None:
    awkward = 'a "quoted", \\ back\\\\slash\nline'
    answered(await write("POST", "/pairs", {"a": awkward, "b": "", "v": None}, token=1), 201)
    line = (await client.get("/pairs?v=is.null&select=a,b", headers=CSV)).text
    answered(
        await write(
            "DELETE", "/pairs?v=is.null&a=eq." + httpx.QueryParams({"x": awkward}).__str__()[2:] + "&b=eq.", token=1
        ),
        204,
    )
    back = {"content-type": "text/csv", "fencing-token": "1"}
    answered(await client.post("/pairs", content=line, headers=back), 201)
    assert (awkward, "", None) in await rows(tables, "SELECT a, b, v FROM pairs")


async def test_csv_of_what_was_written(write: Send) -> None:
    answer = await write(
        "POST", "/users?select=name,id&order=id.desc", [{"id": 7, "name": "x"}, {"id": 8, "name": None}],
        token=1, prefer="return=representation", accept="text/csv",
    )  # fmt: skip
    assert (answer.status_code, answer.text) == (201, "name,id\n,8\nx,7")
    answer = await write(
        "PATCH", "/users?id=eq.99", {"name": "x"}, token=1, prefer="return=representation", accept="text/csv"
    )
    assert (answer.status_code, answer.text) == (200, "\n")
    answer = await write("PATCH", "/users?id=eq.7", [], token=1, prefer="return=representation", accept="text/csv")
    assert (answer.status_code, answer.text) == (200, "\n")


async def test_nulls_can_be_left_out(client: httpx.AsyncClient, write: Send) -> None:
    array, one = "application/vnd.pgrst.array+json;nulls=stripped", "application/vnd.pgrst.object+json;nulls=stripped"
    answer = await client.get("/accounts?id=eq.2", headers={"accept": array})
    assert answer.json() == [{"id": 2, "owner": "bob", "balance": 20}]
    assert answer.headers["content-type"] == f"{array}; charset=utf-8"
    answer = await client.get("/accounts?id=eq.2", headers={"accept": one})
    assert answer.json() == {"id": 2, "owner": "bob", "balance": 20}
    answer = await write(
        "PATCH", "/accounts?id=eq.3", {"note": None}, token=1, prefer="return=representation", accept=one
    )
    assert answer.json() == {"id": 3, "owner": "cid", "balance": 30}


@pytest.mark.parametrize("prefer", ["return=minimal", "return=representation"])
async def test_a_write_of_several_rows_is_undone_if_one_object_is_wanted(
    write: Send, tables: Database, prefer: str
) -> None:
    one = "application/vnd.pgrst.object+json"
    answer = await write("PATCH", "/users?id=in.(1,2)", {"name": "x"}, token=5, prefer=prefer, accept=one)
    answered(answer, 406, "PGRST116")
    assert answer.json()["details"] == "The result contains 2 rows"
    assert ("x",) not in await rows(tables, "SELECT name FROM users")
    assert await rows(tables, "SELECT resource FROM fencing.fence") == []
    answered(await write("DELETE", "/users?id=eq.77", token=5, prefer=prefer, accept=one), 406, "PGRST116")
    answered(
        await write("PATCH", "/users?id=eq.1", {"name": "x"}, token=5, prefer=prefer, accept=one),
        200 if "rep" in prefer else 204,
    )


async def test_a_write_with_an_unacceptable_media_type_is_refused(
    write: Send, client: httpx.AsyncClient, tables: Database
) -> None:
    answered(await write("PATCH", "/users?id=eq.1", {"name": "x"}, token=5, accept="text/html"), 406, "PGRST107")
    answered(await client.get("/users", headers={"accept": "text/html"}), 406, "PGRST107")
    assert ("x",) not in await rows(tables, "SELECT name FROM users")


@pytest.mark.parametrize(
    ("method", "target", "headers", "content", "code"),
    [
        ("GET", "/nowhere?a=b.c", {"prefer": "handling=strict,x"}, b"", "PGRST100"),
        ("GET", "/nowhere", {"prefer": "handling=strict,x", "range": "9-1"}, b"", "PGRST103"),
        ("GET", "/nowhere", {"prefer": "handling=strict,x", "accept": "text/html"}, b"", "PGRST205"),
        ("GET", "/users", {"prefer": "handling=strict,x", "accept": "text/html"}, b"", "PGRST122"),
        ("GET", "/users", {"prefer": "x", "accept": "text/html"}, b"", "PGRST107"),
        ("BREW", "/nowhere", {}, b"", "PGRST117"),
        ("BREW", "/nowhere", {"content-profile": "other", "accept-profile": "other"}, b"", "PGRST106"),
        ("GET", "/a/b", {"accept-profile": "other"}, b"", "PGRST125"),
        ("POST", "/nowhere", {"fencing-token": "1"}, b"{", "PGRST102"),
        ("POST", "/nowhere", {"fencing-token": "1", "content-type": "text/html"}, b"{}", "PGRST102"),
        ("POST", "/nowhere", {"fencing-token": "1"}, b'{"x":1}', "PGRST205"),
        ("POST", "/users", {"fencing-token": "1", "prefer": "handling=strict,x"}, b'{"x":1}', "PGRST204"),
        ("POST", "/users", {"fencing-token": "1", "prefer": "handling=strict,x"}, b'{"id":1}', "PGRST122"),
        ("POST", "/users", {"fencing-token": "1", "accept": "text/html"}, b'{"id":1}', "PGRST107"),
        ("POST", "/users", {"fencing-token": "1"}, b'{"id":1}', "23505"),
    ],
)  # fmt: skip
async def test_the_order_of_checks(
    client: httpx.AsyncClient, method: str, target: str, headers: dict[str, str], content: bytes, code: str
) -> None:
    answer = await client.request(method, target, headers=headers, content=content)
    assert answer.json()["code"] == code, answer.text
    assert answer.headers["proxy-status"] == f"PostgREST; error={code}"


async def test_a_form_and_a_table_of_values(client: httpx.AsyncClient, tables: Database) -> None:
    form = {"content-type": "application/x-www-form-urlencoded", "fencing-token": "1"}
    answered(await client.post("/users", content="id=5&name=a+b%26", headers=form), 201)
    csv = {"content-type": "text/csv", "fencing-token": "1", "prefer": "return=representation"}
    answer = await client.post("/users?select=id", content='id,name\n6,NULL\n7,"NULL"\n8,""\n9,\n', headers=csv)
    assert answer.json() == [{"id": 6}, {"id": 7}, {"id": 8}, {"id": 9}]
    assert await rows(tables, "SELECT id, name FROM users WHERE id > 4 ORDER BY id") == [
        (5, "a b&"), (6, None), (7, "NULL"), (8, ""), (9, ""),
    ]  # fmt: skip
    answered(await client.patch("/users?id=eq.5", content="name\nc\n", headers=csv), 200)
    answered(await client.post("/users", content="id,name\n1\n", headers=csv), 400, "PGRST102")
    answered(await client.post("/users?columns=id", content="id,other\n20,x\n", headers=csv), 201)


@pytest.mark.thorough
@pytest.mark.parametrize("content", [b"{}", b"5", b"nonsense", b'{"id": 2}'])
async def test_a_delete_ignores_its_body(client: httpx.AsyncClient, content: bytes) -> None:
    answer = await client.request("DELETE", "/users?id=eq.1", headers={"fencing-token": "1"}, content=content)
    answered(answer, 204)
    assert "content-type" not in answer.headers
    assert "content-length" not in answer.headers


@pytest.mark.thorough
@pytest.mark.parametrize("body", ["5", '"x"', "null", "[]", "{}", "[{}]"])
async def test_an_update_of_nothing(client: httpx.AsyncClient, tables: Database, body: str) -> None:
    answer = await client.patch("/users?id=eq.1", headers={"fencing-token": "9"}, content=body)
    answered(answer, 204)
    assert answer.headers["content-range"] == "*/*"
    assert await rows(tables, "SELECT value FROM fencing.fence") == [(9,)]


@pytest.mark.parametrize(
    ("body", "resource", "written"),
    [
        ('{"id": 5, "id": 6}', "public.users/6", 6),
        ('{"id": 5, "\\u0069d": 6}', "public.users/6", 6),
        ('[{"id": 6, "id": 5, "name": "a", "name": "b"}]', "public.users/5", 5),
        ('{"id": -0}', "public.users/0", 0),
        ('{"id": "7"}', "public.users/7", 7),
        ('{"id": " 07 "}', "public.users/7", 7),
        ('{"id": 9223372036854775807}', "public.users/9223372036854775807", 9223372036854775807),
        ('{"id": null, "id": 8}', "public.users/8", 8),
    ],
)
async def test_a_write_is_fenced_by_the_value_that_is_written(
    client: httpx.AsyncClient, tables: Database, body: str, resource: str, written: int
) -> None:
    for _ in range(2):  # by the whole way, then by the fast one
        answer = await client.post("/users", headers={"fencing-token": "1"}, content=body)
        answered(answer, 201)
        assert answer.headers["fencing-resource"] == resource
        assert (written,) in await rows(tables, "SELECT id FROM users")
        await client.delete(f"/users?id=eq.{written}", headers={"fencing-token": "1"})


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("body", "code"),
    [
        ('{"id": 1.5}', "22P02"), ('{"id": 9223372036854775808}', "22003"), ('{"id": 99999999999999999999}', "22003"),
        ('{"id": 1e2}', "22P02"), ('{"id": NaN}', "PGRST102"), ('{"id": Infinity}', "PGRST102"),
        ('{"id": "\\u0000"}', "22021"), ('{"id": 8, "id": null}', "resource-underivable"),
        ('{"id": {"a": 1}}', "resource-underivable"),
    ],
)  # fmt: skip
async def test_values_that_name_no_row(client: httpx.AsyncClient, tables: Database, body: str, code: str) -> None:
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


async def test_a_rollback_leaves_nothing_behind(write: Send, tables: Database) -> None:
    answer = await write("POST", "/users", {"id": 5, "name": "x"}, token=5, prefer="tx=rollback,return=representation")
    answered(answer, 201)
    assert answer.json() == [{"id": 5, "email": None, "name": "x"}]
    assert answer.headers["preference-applied"] == "return=representation, tx=rollback"
    assert "fencing-token" not in answer.headers
    assert (5,) not in await rows(tables, "SELECT id FROM users")
    assert await rows(tables, "SELECT resource FROM fencing.fence") == []
    # Also where the fence is there already and one statement would have been enough.
    answered(await write("PATCH", "/users?id=eq.1", {"name": "kept"}, token=5, prefer="tx=commit"), 204)
    answered(await write("PATCH", "/users?id=eq.1", {"name": "gone"}, token=5, prefer="tx=rollback"), 204)
    assert await rows(tables, "SELECT name FROM users WHERE id = 1") == [("kept",)]


async def test_a_rollback_is_refused_to_a_stale_holder(write: Send, tables: Database) -> None:
    answered(await write("PATCH", "/users?id=eq.1", {"name": "new"}, token=5), 204)
    answered(await write("PATCH", "/users?id=eq.1", {"name": "x"}, token=4, prefer="tx=rollback"), 412, "token-stale")
    assert await rows(tables, "SELECT count(*) FROM fencing.rejection") == [(1,)]


async def test_a_rollback_finds_what_a_commit_would(write: Send, tables: Database) -> None:
    await change(
        tables, "CREATE TABLE late (id bigint PRIMARY KEY, owner bigint REFERENCES users DEFERRABLE INITIALLY DEFERRED)"
    )
    answered(await write("POST", "/late", {"id": 1, "owner": 99}, token=5, prefer="tx=rollback"), 409, "23503")


@pytest.mark.parametrize(
    ("prefer", "applied"),
    [
        (
            "tx=commit,timezone=UTC,handling=strict,return=minimal,missing=default,resolution=merge-duplicates",
            "resolution=merge-duplicates, missing=default, return=minimal, tx=commit, handling=strict, timezone=UTC",
        ),
        ("handling=lenient, nonsense", "handling=lenient"),
        ("max-affected=1", None),
    ],
)
async def test_applied_preferences_are_listed_in_a_fixed_order(write: Send, prefer: str, applied: str | None) -> None:
    answer = await write("POST", "/users", {"id": 5}, token=1, prefer=prefer)
    answered(answer, 201)
    assert answer.headers.get("preference-applied") == applied


async def test_preferences_that_do_not_apply_are_not_listed(write: Send, client: httpx.AsyncClient) -> None:
    everything = "resolution=merge-duplicates,missing=default,return=minimal,count=exact,handling=strict,max-affected=9"
    expected = {
        "PATCH": "missing=default, return=minimal, count=exact, handling=strict, max-affected=9",
        "DELETE": "return=minimal, count=exact, handling=strict, max-affected=9",
        "GET": "count=exact, handling=strict",
    }
    for method, applied in expected.items():
        body = {"name": "x"} if method == "PATCH" else None
        answer = await write(method, "/users?id=eq.1", body, token=1, prefer=everything)
        assert answer.headers["preference-applied"] == applied
    answer = await write("POST", "/unnamed", {"v": 1}, prefer="resolution=merge-duplicates")
    assert "preference-applied" not in answer.headers


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

    assert await asked("few", "exact") == (206, "0-4/30")
    assert await asked("few", "planned") == (206, "0-4/30")
    assert await asked("few", "estimated") == (206, "0-4/30")
    assert await asked("many", "exact") == (206, "0-4/3000")
    assert await asked("many", "planned") == (206, "0-4/3000")
    assert await asked("many", "estimated") == (206, "0-4/3000")
    await change(tables, "DELETE FROM many WHERE n > 2000")
    assert (await asked("many", "exact"))[1] == "0-4/2000"
    guessed = int((await asked("many", "estimated"))[1].removeprefix("0-4/"))
    assert guessed >= 1001
    answer = await client.get("/many", headers={"prefer": "count=exact"})
    assert (answer.status_code, len(answer.json()), answer.headers["content-range"]) == (206, 1000, "0-999/2000")


async def test_a_page_beyond_the_end(client: httpx.AsyncClient) -> None:
    answer = await client.get("/users?offset=5", headers={"prefer": "count=exact"})
    answered(answer, 416, "PGRST103")
    assert answer.headers["content-range"] == "*/2"
    assert answer.json()["details"] == "An offset of 5 was requested, but there are only 2 rows."


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


async def test_head_has_the_headers_of_get(client: httpx.AsyncClient) -> None:
    shown = await client.get("/users", headers={"prefer": "count=exact"})
    answer = await client.head("/users", headers={"prefer": "count=exact"})
    assert answer.content == b""
    assert dict(answer.headers) == dict(shown.headers)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("table", "allow"),
    [
        ("users", "OPTIONS,GET,HEAD,POST,PUT,PATCH,DELETE"),
        ("keyless", "OPTIONS,GET,HEAD,POST,PATCH,DELETE"),
        ("rich", "OPTIONS,GET,HEAD,POST,PATCH,DELETE"),
        ("sums", "OPTIONS,GET,HEAD"),
        ("snapshot", "OPTIONS,GET,HEAD"),
    ],
)
async def test_options_list_the_methods_of_a_table(
    client: httpx.AsyncClient, tables: Database, table: str, allow: str
) -> None:
    await change(
        tables,
        "CREATE VIEW sums AS SELECT count(*) FROM users; CREATE MATERIALIZED VIEW snapshot AS SELECT * FROM users",
    )
    answer = await client.options(f"/{table}")
    assert (answer.status_code, answer.headers["allow"]) == (200, allow)
    answered(await client.options("/nowhere"), 404, "PGRST205")


@pytest.mark.parametrize("body", ["5", "[]", "null"])
async def test_an_insert_of_nothing(client: httpx.AsyncClient, tables: Database, body: str) -> None:
    headers = {"fencing-token": "9", "prefer": "return=representation"}
    answer = await client.post("/users", headers=headers, content=body)
    answered(answer, 201)
    assert (answer.json(), answer.headers["content-range"]) == ([], "*/*")
    assert len(await rows(tables, "SELECT id FROM users")) == 2
