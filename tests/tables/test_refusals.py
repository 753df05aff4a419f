"""Everything that must not be written: bad input, writes that reach beyond their resource, writes without bounds.

Each of these answers clearly and changes nothing.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from gateway.db import fences
from gateway.db.database import Database
from gateway.errors import SqlError
from gateway.fencing.resource import MAX_BYTES, Template
from gateway.observe.events import Event, WriteRefused
from gateway.tables.naming.plan import Rule
from gateway.tables.pipeline import Exposure, TablePlane
from tests.callers import known
from tests.tables.asking import Send, answered, over_asgi, row, rows, send

EVERYTHING = """
SELECT (SELECT json_agg(t) FROM accounts t)::text, (SELECT json_agg(t) FROM users t)::text,
       (SELECT json_agg(t) FROM shipments t)::text, (SELECT json_agg(t) FROM fencing.fence t)::text
"""
TARGET = "/accounts?id=eq.1"
HUGE = "9" * 30


@pytest.fixture
async def unchanged(tables: Database) -> Any:
    before = tuple(await row(tables, EVERYTHING))
    yield
    assert tuple(await row(tables, EVERYTHING)) == before


@pytest.mark.usefixtures("unchanged")
class TestNothingIsWritten:
    @pytest.fixture
    def dsn(self, shared_dsn: str) -> str:
        return shared_dsn

    @pytest.mark.parametrize(
        "token",
        ["", "-1", "+1", "05", "1.", ".1", "1.2.3", "1 ", "0x5", "1e3", "5,6", HUGE, str(2**63), f"{2**31}.1", "null"],
    )
    async def test_malformed_tokens(self, write: Send, token: str) -> None:
        answered(await write("PATCH", TARGET, {"note": "x"}, token=token), 400, "token-malformed")

    @pytest.mark.parametrize("token", ["٥".encode(), "５".encode(), b"\xb2", b"5\x005"])
    async def test_digits_of_other_scripts(self, client: httpx.AsyncClient, token: bytes) -> None:
        response = await client.patch(TARGET, headers=[(b"fencing-token", token)], json={"note": "x"})
        answered(response, 400, "token-malformed")

    @pytest.mark.parametrize("second", ["fencing-token", "Fencing-Token", "X-Fencing-Token", "fencing_token"])
    async def test_two_tokens(self, client: httpx.AsyncClient, second: str) -> None:
        headers = [("fencing-token", "5"), (second, "5")]
        answered(await client.patch(TARGET, headers=headers, json={"note": "x"}), 400, "token-malformed")

    @pytest.mark.parametrize("method", ["POST", "PATCH", "PUT", "DELETE"])
    async def test_a_missing_token_comes_before_everything_else(self, write: Send, method: str) -> None:
        answered(await write(method, "/nowhere?huh", None), 428, "token-required")

    @pytest.mark.thorough
    @pytest.mark.parametrize(
        "resource", ["", "a b", "a%2fb", "a%41", "x" * (MAX_BYTES + 1), "a,b", "caf\xe9", "%", "a?b"]
    )
    async def test_malformed_resources(self, client: httpx.AsyncClient, resource: str) -> None:
        headers = [(b"fencing-token", b"5"), (b"fencing-resource", resource.encode("latin-1"))]
        answered(await client.patch(TARGET, headers=headers, json={"note": "x"}), 400, "resource-malformed")

    async def test_a_derived_name_that_is_too_long(self, write: Send) -> None:
        response = await write("DELETE", f"/pairs?a=eq.{'x' * 300}&b=eq.{'y' * 300}", token=5)
        answered(response, 400, "resource-malformed")

    @pytest.mark.parametrize(
        ("method", "target", "body", "status", "code"),
        [
            ("PATCH", "/nowhere?id=eq.1", {"a": 1}, 404, "PGRST205"),
            ("PATCH", TARGET, {"nope": 1}, 400, "PGRST204"),
            ("PATCH", f"{TARGET}&columns=nope", {"nope": 1}, 400, "PGRST204"),
            ("POST", "/accounts?on_conflict=nope", {"id": 1}, 400, "PGRST204"),
            ("PATCH", f"{TARGET}&nope=eq.1", {"note": "x"}, 400, "42703"),
            ("DELETE", "/accounts?id=huh.1", None, 400, "PGRST100"),
            ("DELETE", "/accounts?id=eq.1&or=(id.eq.1", None, 400, "PGRST100"),
            ("DELETE", "/accounts?id=eq.1&films.id=eq.1", None, 400, "PGRST108"),
            ("POST", "/accounts", [{"id": 10}, {"owner": "x"}], 400, "PGRST102"),
            ("POST", "/accounts", {"id": 1}, 409, "23505"),
            ("POST", "/accounts", {"id": 10, "balance": None}, 400, "23502"),
            ("POST", "/accounts", {"id": 10, "balance": "many"}, 400, "22P02"),
            ("POST", "/accounts", {"id": 10, "owner": "a\0b"}, 400, "22P05"),
            ("PATCH", TARGET, [{"note": "a"}, {"note": "b"}], 400, "PGRST102"),
            ("PATCH", "/accounts", {"note": "x"}, 400, "21000"),
            ("PATCH", "/accounts?id", {"note": "x"}, 400, "21000"),
            ("DELETE", "/accounts", None, 400, "21000"),
            ("DELETE", "/accounts?id", None, 400, "21000"),
            ("DELETE", "/accounts?select=id&order=id", None, 400, "21000"),
            ("DELETE", "/accounts?limit=1", None, 400, "PGRST127"),
            ("DELETE", "/accounts?limit=eq.5", None, 400, "PGRST127"),
            ("DELETE", "/accounts?id=eq.1&offset=0", None, 400, "PGRST127"),
            ("DELETE", "/settings", None, 400, "21000"),
            ("PATCH", "/accounts?owner=eq.ann", {"note": "x"}, 422, "resource-underivable"),
            ("DELETE", "/accounts?id=gt.0", None, 422, "resource-underivable"),
            ("POST", "/accounts", {"owner": "x"}, 422, "resource-underivable"),
            ("POST", "/keyless", {"v": 1}, 422, "resource-underivable"),
            ("PATCH", "/rich?id=eq.2", {"note": "x"}, 422, "resource-underivable"),
            ("PATCH", "/floats?x=eq.1.5", {"v": 2}, 422, "resource-underivable"),
            ("PATCH", TARGET, {"id": 2}, 409, "23505"),
            ("PATCH", TARGET, {"id": None}, 422, "resource-underivable"),
            ("PATCH", "/accounts?owner=eq.ann", {"id": 2}, 422, "resource-underivable"),
            ("PATCH", "/shipments?order_id=eq.7", {"order_id": None}, 422, "resource-underivable"),
        ],
    )  # fmt: skip
    async def test_refused_writes(
        self, write: Send, method: str, target: str, body: Any, status: int, code: str
    ) -> None:
        answered(await write(method, target, body, token=5), status, code)

    @pytest.mark.parametrize("body", [b"", b"{", b'{"note":', b"\xff", b"{'note':1}", b'{"note":"x"}}'])
    async def test_empty_and_broken_json(self, client: httpx.AsyncClient, body: bytes) -> None:
        response = await client.patch(TARGET, headers={"fencing-token": "5"}, content=body)
        answered(response, 400, "PGRST102")

    @pytest.mark.parametrize("explicit", ["job/1", "public.accounts/2"])
    async def test_an_explicit_resource_does_not_cover_other_rows(self, write: Send, explicit: str) -> None:
        response = await write("PATCH", TARGET, {"note": "x"}, token=5, resource=explicit)
        answered(response, 422, "resource-mismatch")
        assert "public.accounts/1" in response.json()["message"]

    async def test_a_name_for_rows_without_names_is_refused(self, write: Send) -> None:
        for target in ("/keyless?v=eq.1", "/rich?id=eq.2"):
            answered(await write("DELETE", target, token=5, resource="job/1"), 422, "resource-underivable")

    @pytest.mark.parametrize("resource", [None, "public.users/99"])
    async def test_an_upsert_on_another_key_cannot_reach_a_foreign_row(self, write: Send, resource: str | None) -> None:
        """Trap 2: row 1 has this e-mail address; PostgREST would turn it into row 99."""
        response = await write(
            "POST", "/users?on_conflict=email", {"id": 99, "email": "ann@x"}, token=5, resource=resource,
            prefer="resolution=merge-duplicates",
        )  # fmt: skip
        answered(response, 422, "resource-mismatch")

    async def test_a_row_whose_name_has_a_null(self, write: Send) -> None:
        response = await write("POST", "/shipments", {"order_id": None}, token=5, resource="order/7")
        answered(response, 422, "resource-mismatch")

    async def test_other_media_types(self, client: httpx.AsyncClient) -> None:
        for content_type in ("text/plain", "application/octet-stream", "application/xml"):
            headers = {"fencing-token": "5", "content-type": content_type}
            answered(await client.post("/accounts", headers=headers, content=b"id\n10"), 400, "PGRST102")
        headers = {"fencing-token": "5", "accept": "text/html"}
        answered(await client.post("/accounts", headers=headers, json={"id": 10}), 406, "PGRST107")

    async def test_a_body_over_the_limit(self, client: httpx.AsyncClient) -> None:
        async def unannounced() -> Any:
            for _ in range(20):
                yield b" " * 10_000

        for content in (b" " * 200_000, unannounced()):
            response = await client.patch(TARGET, headers={"fencing-token": "5"}, content=content)
            answered(response, 413, "body-too-large")


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("framing", [b"content-length: 12", b"transfer-encoding: chunked"])
async def test_a_body_that_ends_early_writes_nothing(origin: str, framing: bytes) -> None:
    host, port = origin.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    body = b'{"note":"x"}' if b"chunked" not in framing else b'c\r\n{"note":"x"}\r\n'
    head = b"PATCH /v1/tables/accounts?id=eq.1 HTTP/1.1\r\nhost: x\r\nfencing-token: 5\r\n" + framing + b"\r\n\r\n"
    writer.write(head + (body if b"chunked" in framing else body[:-1]))
    await writer.drain()
    writer.write_eof()
    assert not (await reader.read()).startswith(b"HTTP/1.1 2")
    writer.close()


async def test_the_touched_rows_of_the_fast_path_are_checked_too(write: Send, tables: Database) -> None:
    answered(await write("PATCH", TARGET, {"note": "raise"}, token=5), 204)
    before = await rows(tables, "SELECT * FROM accounts ORDER BY id")
    response = await write("PATCH", "/accounts?id=gt.0", {"note": "x"}, token=5, resource="public.accounts/1")
    answered(response, 422, "resource-mismatch")
    assert await rows(tables, "SELECT * FROM accounts ORDER BY id") == before


async def test_a_trigger_that_rewrites_the_key_is_found_out(write: Send, tables: Database) -> None:
    """Trap 7: the row that is there in the end is not the one the token covers."""
    await tables.run(lambda transaction: transaction.execute("""
        CREATE FUNCTION moved() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.id := NEW.id + 100; RETURN NEW; END';
        CREATE TRIGGER moves BEFORE INSERT OR UPDATE ON accounts FOR EACH ROW EXECUTE FUNCTION moved();
    """))  # fmt: skip
    answered(await write("POST", "/accounts", {"id": 10}, token=5), 422, "resource-mismatch")
    answered(await write("PATCH", TARGET, {"note": "x"}, token=5), 422, "resource-mismatch")
    assert (await row(tables, "SELECT max(id) FROM accounts"))[0] == 3


async def test_a_read_cannot_write(client: httpx.AsyncClient, tables: Database) -> None:
    """A view may call a function that writes, but the reader has presented no token for that."""
    await tables.run(lambda transaction: transaction.execute("""
        CREATE FUNCTION spend() RETURNS bigint LANGUAGE sql AS 'UPDATE accounts SET balance = 0 RETURNING balance';
        CREATE VIEW spending AS SELECT spend();
    """))  # fmt: skip
    answered(await client.get("/spending"), 405, "25006")
    assert (await row(tables, "SELECT sum(balance) FROM accounts"))[0] == 60


async def test_a_stale_write_fires_no_trigger(write: Send, tables: Database) -> None:
    """Triggers for each statement fire even where no row is touched."""
    await tables.run(lambda transaction: transaction.execute("""
        CREATE TABLE fired (at timestamptz DEFAULT now());
        CREATE FUNCTION fire() RETURNS trigger LANGUAGE plpgsql AS
            'BEGIN INSERT INTO fired DEFAULT VALUES; RETURN NULL; END';
        CREATE TRIGGER fires AFTER UPDATE ON accounts FOR EACH STATEMENT EXECUTE FUNCTION fire();
    """))  # fmt: skip
    answered(await write("PATCH", TARGET, {"note": "new"}, token=6), 204)
    answered(await write("PATCH", TARGET, {"note": "old"}, token=5), 412, "token-stale")
    assert (await row(tables, "SELECT count(*) FROM fired"))[0] == 1


async def test_foreign_tables_are_not_written(write: Send, tables: Database) -> None:
    await tables.run(lambda transaction: transaction.execute("""
        CREATE FOREIGN DATA WRAPPER nowhere; CREATE SERVER elsewhere FOREIGN DATA WRAPPER nowhere;
        CREATE FOREIGN TABLE remote (id int) SERVER elsewhere;
    """))  # fmt: skip
    answered(await write("DELETE", "/remote?id=eq.1", token=5, resource="job/1"), 400, "PGRST127")


REACHING = """
CREATE FOREIGN DATA WRAPPER nowhere; CREATE SERVER elsewhere FOREIGN DATA WRAPPER nowhere;
CREATE TABLE logs (id int, part int, v int) PARTITION BY LIST (part);
CREATE TABLE logs_1 PARTITION OF logs FOR VALUES IN (1);
CREATE TABLE logs_2 PARTITION OF logs FOR VALUES IN (2) PARTITION BY LIST (id);
CREATE TABLE logs_2_1 PARTITION OF logs_2 FOR VALUES IN (1);
CREATE TABLE parent (id int PRIMARY KEY, v int);
CREATE TABLE child () INHERITS (parent);
CREATE TABLE ruled (id int PRIMARY KEY, v int);
CREATE VIEW over_logs AS SELECT * FROM logs;
CREATE VIEW over_it AS SELECT * FROM over_logs;
CREATE VIEW over_parent AS SELECT * FROM parent;
INSERT INTO logs VALUES (1, 1, 0), (1, 2, 0); INSERT INTO parent VALUES (1, 0); INSERT INTO ruled VALUES (1, 0);
"""
FAR = {
    "a partition": "CREATE FOREIGN TABLE logs_3 PARTITION OF logs FOR VALUES IN (3) SERVER elsewhere",
    "a partition of a partition": "CREATE FOREIGN TABLE logs_2_2 PARTITION OF logs_2 FOR VALUES IN (2) "
    "SERVER elsewhere",
    "a child": "CREATE FOREIGN TABLE far () INHERITS (parent) SERVER elsewhere",
    "a grandchild": "CREATE FOREIGN TABLE far () INHERITS (child) SERVER elsewhere",
    "a rule": "CREATE FOREIGN TABLE far (id int) SERVER elsewhere; "
    "CREATE RULE instead AS ON UPDATE TO ruled DO INSTEAD DELETE FROM far",
    "what is behind a view": "CREATE FOREIGN TABLE far (id int, part int, v int) SERVER elsewhere; "
    "CREATE OR REPLACE VIEW over_logs AS SELECT * FROM far",
}
REACHED_FROM = {
    "a partition": ("logs", "over_logs", "over_it"),
    "a partition of a partition": ("logs", "logs_2", "over_logs", "over_it"),
    "a child": ("parent", "over_parent"),
    "a grandchild": ("parent", "child", "over_parent"),
    "a rule": ("ruled",),
    "what is behind a view": ("over_logs", "over_it"),
}
NAMES = ("logs", "logs_1", "logs_2", "over_logs", "over_it", "parent", "child", "over_parent", "ruled")


@pytest.fixture
async def reaching(tables: Database) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the tables above, whose rows are named by one template."""
    await tables.run(lambda transaction: transaction.execute(REACHING))
    exposure = Exposure(rules={f"public.{name}": Rule(Template.parse("job/{id}")) for name in NAMES})
    plane = TablePlane(tables, exposure, authenticate=lambda _: known("tester"), observe=lambda _: None)
    async with over_asgi(plane) as client:
        yield client


async def _patched(client: httpx.AsyncClient, name: str) -> httpx.Response:
    return await send(client, "PATCH", f"/{name}?id=eq.1&v=gte.0", {"v": 1}, token=5)


@pytest.mark.thorough
@pytest.mark.parametrize("known", ["known before", "not known before"])
@pytest.mark.parametrize("way", FAR)
async def test_a_write_that_may_reach_a_foreign_table_is_refused(
    reaching: httpx.AsyncClient, tables: Database, way: str, known: str
) -> None:
    """Its rows would be written by another transaction than the one that holds the fence."""
    if known == "known before":
        for name in NAMES:
            answered(await _patched(reaching, name), 204)
    await tables.run(lambda transaction: transaction.execute(FAR[way]))
    for name in NAMES:
        if name not in REACHED_FROM[way]:
            answered(await _patched(reaching, name), 204)
    for name in REACHED_FROM[way]:
        answered(await _patched(reaching, name), 400, "PGRST127")
        assert (await reaching.options(f"/{name}")).headers["allow"] == "OPTIONS,GET,HEAD"


async def test_a_table_that_reaches_no_foreign_table_any_more_is_written_again(
    reaching: httpx.AsyncClient, tables: Database
) -> None:
    await tables.run(lambda transaction: transaction.execute(FAR["a partition"]))
    answered(await _patched(reaching, "logs"), 400, "PGRST127")
    await tables.run(lambda transaction: transaction.execute("ALTER TABLE logs DETACH PARTITION logs_3"))
    answered(await _patched(reaching, "logs"), 204)


async def test_a_case_insensitive_collation_does_not_make_two_names_equal(write: Send, tables: Database) -> None:
    try:
        await tables.run(lambda transaction: transaction.execute("""
            CREATE COLLATION ignorant (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
            CREATE TABLE folded (name text COLLATE ignorant PRIMARY KEY, v int);
            INSERT INTO folded VALUES ('Ann', 1);
        """))  # fmt: skip
    except SqlError as error:
        pytest.skip(f"this PostgreSQL cannot make such a collation: {error.message}")
    answered(await write("PATCH", "/folded?name=eq.ann", {"v": 2}, token=5), 422, "resource-underivable")
    response = await write("PATCH", "/folded?name=eq.ann", {"v": 2}, token=5, resource="public.folded/ann")
    answered(response, 422, "resource-mismatch")
    answered(await write("PATCH", "/folded?name=eq.ann", {"v": 2}, token=5, resource="public.folded/Ann"), 204)


async def test_a_stale_write_is_on_record_before_it_is_answered(
    write: Send, tables: Database, events: list[Event]
) -> None:
    answered(await write("PATCH", TARGET, {"note": "new"}, token=6, holder="ann"), 204)
    response = await write("PATCH", TARGET, {"note": "old"}, token=5, holder="zed")
    answered(response, 412, "token-stale")
    assert "retry-after" not in response.headers
    found = await row(tables, "SELECT * FROM fencing.rejection")
    assert (found["resource"], found["reason"], found["enforced"]) == ("public.accounts/1", "token-stale", True)
    assert (found["value"], found["holder"], found["caller"]) == (5, "zed", "tester")
    assert (found["fence_value"], found["fence_holder"]) == (6, "ann")
    assert (found["method"], found["target"]) == ("PATCH", "/v1/tables/accounts?id=eq.1")
    assert (found["payload_size"], len(found["payload_sha256"])) == (14, 64)
    details = response.json()["details"]
    for fact in ("public.accounts/1", "presented token 5, the fence is 6, raised by ann", str(found["id"])):
        assert fact in details
    assert [event.rejection.id for event in events if isinstance(event, WriteRefused)] == [found["id"]]
    assert (await row(tables, "SELECT note FROM accounts WHERE id = 1"))[0] == "new"


async def test_an_api_key_in_the_query_does_not_go_on_record(write: Send, tables: Database) -> None:
    answered(await write("PATCH", TARGET, {"note": "new"}, token=6), 204)
    answered(await write("PATCH", f"{TARGET}&%61pikey=secret&note=eq.x", {"note": "old"}, token=5), 412, "token-stale")
    found = await row(tables, "SELECT target FROM fencing.rejection")
    assert found["target"] == "/v1/tables/accounts?id=eq.1&%61pikey=[redacted]&note=eq.x"


async def test_a_refusal_that_cannot_be_recorded_is_not_answered_as_one(write: Send, tables: Database) -> None:
    """P5: no 412 without a record."""
    answered(await write("PATCH", TARGET, {"note": "new"}, token=6), 204)
    await tables.run(lambda transaction: transaction.execute("ALTER TABLE fencing.intake RENAME TO lost"))
    response = await write("PATCH", TARGET, {"note": "old"}, token=5)
    answered(response, 503, "unavailable")
    assert response.headers["retry-after"] == "1"


async def test_a_failed_write_takes_its_raise_back(write: Send, tables: Database) -> None:
    answered(await write("POST", "/accounts", {"id": 1}, token=5), 409, "23505")
    assert await fences.read(tables, "public.accounts/1") is None
