"""Several resources in one write, each with its token; both names of a row that moves; a whole table; many rows."""

import asyncio
from typing import Any

import asyncpg
import httpx
import pytest

from gateway.db import fences
from gateway.db.database import Database
from gateway.fencing.decision import Enforcement
from gateway.fencing.resource import Template
from gateway.observe.events import Event, WriteRefused
from gateway.tables.naming import MAX_RESOURCES, Rule
from gateway.tables.pipeline import Exposure
from tests.tables.asking import Send, answered, change, row, rows
from tests.tables.conftest import RULES
from tests.tiers import first
from tests.waiting import waiting

BOTH = "public.accounts/1=5, public.accounts/2=2.7"
REJECTIONS = "SELECT resource, reason, epoch, value, fence_value, enforced FROM fencing.rejection ORDER BY resource"


@pytest.fixture
def exposure() -> Exposure:
    ledger = Rule(Template.parse("ledger"))
    observed = Rule(Template.parse("order/{order_id}"), Enforcement.OBSERVE)
    return Exposure(rules={**RULES, "public.settings": ledger, "public.observed": observed}, max_body=1_000_000)


async def fences_of(database: Database) -> dict[str, str]:
    return {one.resource: str(one.token) for one in await fences.list_fences(database, "", "", 1000)}


class TestSeveralTokens:
    async def test_each_fence_is_raised_to_its_own_token(self, client: httpx.AsyncClient, tables: Database) -> None:
        for header in ("Fencing-Token", "X-Fencing-Token", "Fencing-Token"):  # raised, then held
            response = await client.patch("/accounts?id=in.(2,1)", headers={header: BOTH}, json={"note": "x"})
            answered(response, 204)
            assert response.headers["fencing-token"] == BOTH
            assert response.headers["fencing-resource"] == "public.accounts/1, public.accounts/2"
        assert await fences_of(tables) == {"public.accounts/1": "5", "public.accounts/2": "2.7"}

    async def test_one_that_is_stale_undoes_all_and_is_the_one_on_record(
        self, write: Send, tables: Database, events: list[Event]
    ) -> None:
        answered(await write("PATCH", "/accounts?id=eq.2", {"note": "held"}, token="2.8"), 204)
        response = await write("DELETE", "/accounts?id=in.(1,2)", token=BOTH)
        answered(response, 412, "token-stale")
        assert "public.accounts/2" in response.json()["message"]
        assert "token 2.7, the fence is 2.8" in response.json()["details"]
        assert await fences_of(tables) == {"public.accounts/2": "2.8"}
        assert (await row(tables, "SELECT count(*) FROM accounts"))[0] == 3
        assert await rows(tables, REJECTIONS) == [("public.accounts/2", "token-stale", 2, 7, 8, True)]
        assert len([event for event in events if isinstance(event, WriteRefused)]) == 1

    async def test_each_refused_resource_is_on_record_with_its_token(self, write: Send, tables: Database) -> None:
        for key in (1, 2):
            answered(await write("PATCH", f"/accounts?id=eq.{key}", {"note": "held"}, token="3.1"), 204)
        answered(await write("PATCH", "/accounts?id=in.(1,2)", {"note": "x"}, token=BOTH), 412, "token-stale")
        assert await rows(tables, REJECTIONS) == [
            ("public.accounts/1", "token-stale", 0, 5, 1, True),
            ("public.accounts/2", "token-stale", 2, 7, 1, True),
        ]

    async def test_a_row_without_a_token_is_named(self, write: Send, tables: Database) -> None:
        for method, target, body in (
            ("PATCH", "/accounts?id=in.(1,2,3)", {"note": "x"}),
            ("PATCH", "/accounts?id=eq.2", {"id": 3}),
            ("POST", "/accounts", [{"id": 1}, {"id": 3}]),
        ):
            response = await write(method, target, body, token=BOTH)
            answered(response, 428, "token-required")
            assert "public.accounts/3" in response.json()["message"]
            assert "Fencing-Token" in response.json()["hint"]
        assert await fences_of(tables) == {}

    async def test_where_nothing_can_be_derived_the_rows_must_have_the_names(
        self, write: Send, tables: Database
    ) -> None:
        for owner, status in (("ann", 204), ("bob", 204), ("cid", 422)):
            answered(await write("PATCH", f"/accounts?owner=eq.{owner}", {"note": "new"}, token=BOTH), status)
        answered(await write("DELETE", "/accounts?balance=gt.0", token=BOTH), 422, "resource-mismatch")
        assert await rows(tables, "SELECT note FROM accounts ORDER BY id") == [("new",), ("new",), ("third",)]

    async def test_all_that_are_named_are_claimed(self, write: Send, tables: Database) -> None:
        for _ in range(2):
            answered(await write("PATCH", "/accounts?id=eq.1", {"note": "x"}, token=f"{BOTH}, job/7=1"), 204)
        assert await fences_of(tables) == {"public.accounts/1": "5", "public.accounts/2": "2.7", "job/7": "1"}
        answered(await write("PATCH", "/accounts?id=eq.1", {"note": "x"}, token=f"{BOTH}, job/7=0"), 412, "token-stale")

    async def test_a_list_of_one(self, write: Send) -> None:
        """On the fast path as in the transaction."""
        for _ in range(2):
            response = await write("PATCH", "/accounts?id=eq.1", {"note": "x"}, token="public.accounts/1=5")
            assert (response.status_code, response.headers["fencing-token"]) == (204, "public.accounts/1=5")
        answered(await write("PATCH", "/accounts?id=eq.1", {"note": "x"}, token="public.accounts/1=4"), 412)
        answered(await write("PATCH", "/accounts?id=eq.2", {"note": "x"}, token="public.accounts/1=5"), 428)

    async def test_rows_of_several_resources_in_one_body(self, write: Send, tables: Database) -> None:
        body = [{"order_id": 7}, {"order_id": 8}, {"order_id": 7}]
        answered(await write("POST", "/shipments", body, token="order/7=5, order/8=6"), 201)
        answered(await write("POST", "/shipments", body, token="order/7=5, order/8=5"), 412, "token-stale")
        assert (await row(tables, "SELECT count(*) FROM shipments"))[0] == 6

    async def test_the_holder_is_one_for_all(self, write: Send) -> None:
        answered(await write("PATCH", "/accounts?id=eq.2", {"note": "x"}, token="2.7", holder="ann"), 204)
        response = await write("PATCH", "/accounts?id=in.(1,2)", {"note": "x"}, token=BOTH, holder="bob")
        answered(response, 412, "token-duplicate")
        assert "public.accounts/2" in response.json()["message"]

    async def test_in_observe_mode_a_write_passes_and_each_objection_is_on_record(
        self, write: Send, tables: Database
    ) -> None:
        await change(tables, "CREATE TABLE observed (order_id int, state text)")
        answered(
            await write("POST", "/observed", [{"order_id": 1}, {"order_id": 2}], token="order/1=5, order/2=5"), 201
        )
        response = await write("PATCH", "/observed?order_id=in.(1,2)", {"state": "x"}, token="order/1=6, order/2=4")
        assert (response.status_code, response.headers["fencing-token"]) == (204, "order/1=6, order/2=5")
        answered(await write("PATCH", "/observed?order_id=in.(1,3)", {"state": "y"}, token="order/1=6, order/2=4"), 204)
        assert await rows(tables, REJECTIONS) == [
            ("order/2", "token-stale", 0, 4, 5, False),
            ("public.observed", "token-required", None, None, None, False),
        ]


class TestMoves:
    """Trap 3: both names are fenced."""

    async def test_one_token_claims_both_names_of_a_moved_row(self, write: Send, tables: Database) -> None:
        for _ in range(2):
            response = await write("PATCH", "/shipments?order_id=eq.7&id=eq.1", {"order_id": 9}, token=5)
            assert (response.status_code, response.headers["fencing-resource"]) == (204, "order/7, order/9")
        assert await rows(tables, "SELECT id, order_id FROM shipments ORDER BY id") == [(1, 9), (2, 7), (3, 8)]
        assert await fences_of(tables) == {"order/7": "5", "order/9": "5"}

    @pytest.mark.parametrize("newer", ["order/7", "order/8"])
    async def test_neither_may_have_a_newer_holder(self, write: Send, tables: Database, newer: str) -> None:
        answered(await write("DELETE", "/shipments?id=eq.99", token=6, resource=newer), 204)
        answered(await write("PATCH", "/shipments?order_id=eq.7", {"order_id": 8}, token=5), 412, "token-stale")
        assert await rows(tables, "SELECT order_id FROM shipments ORDER BY id") == [(7,), (7,), (8,)]

    async def test_a_row_found_by_another_column(self, write: Send, tables: Database) -> None:
        target = "/shipments?id=eq.1"
        answered(await write("PATCH", target, {"order_id": 8}, token=5), 422, "resource-underivable")
        answered(await write("PATCH", target, {"order_id": 8}, token=5, resource="order/8"), 422, "resource-mismatch")
        answered(await write("PATCH", target, {"order_id": 8}, token="order/7=5, order/9=5"), 422, "resource-mismatch")
        answered(await write("PATCH", target, {"order_id": 8}, token="order/8=5, order/9=5"), 422, "resource-mismatch")
        answered(await write("PATCH", target, {"order_id": 8}, token="order/7=5, order/8=6"), 204)
        assert await rows(tables, "SELECT order_id FROM shipments ORDER BY id") == [(8,), (7,), (8,)]

    async def test_a_primary_key(self, write: Send, tables: Database) -> None:
        answered(await write("PATCH", "/accounts?id=eq.1", {"id": 20}, token=5), 204)
        assert await fences_of(tables) == {"public.accounts/1": "5", "public.accounts/20": "5"}
        answered(await write("PATCH", "/accounts?id=eq.20", {"id": "0021"}, token=4), 412, "token-stale")
        answered(await write("PATCH", "/accounts?id=eq.3", {"id": "0020"}, token=5), 409, "23505")
        assert "public.accounts/3" not in await fences_of(tables)

    async def test_an_upsert_never_moves_a_row(self, write: Send, tables: Database) -> None:
        """Trap 2. The key in the body is claimed, but the row that is there has another one, and keeps it."""
        prefer = "resolution=merge-duplicates"
        body = {"id": 99, "email": "ann@x", "name": "Changed"}
        for token, status in ((5, 422), ("public.users/99=5", 422), ("public.users/1=5, public.users/99=5", 200)):
            answered(await write("POST", "/users?on_conflict=email", body, token=token, prefer=prefer), status)
        assert await rows(tables, "SELECT id, email, name FROM users ORDER BY id") == [
            (1, "ann@x", "Changed"),
            (2, "bob@x", "Bob"),
        ]


RENAMING = """
CREATE FUNCTION seven() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.order_id := 7; RETURN NEW; END';
CREATE TRIGGER seven BEFORE UPDATE ON shipments FOR EACH ROW EXECUTE FUNCTION seven();
"""


class TestNamesThatChangeByThemselves:
    """Trap 7: the name a row has after the write is covered; the one it had before is not."""

    @pytest.fixture
    async def renaming(self, tables: Database) -> None:
        await change(tables, RENAMING)

    async def test_a_trigger_that_sets_the_columns_of_the_name(
        self, write: Send, tables: Database, renaming: None
    ) -> None:
        ways: tuple[dict[str, Any], ...] = ({"token": 5, "resource": "order/7"}, {"token": "order/7=5, job/1=1"})
        for named in ways:
            for target in ("/shipments?id=eq.3", "/shipments?id=gt.0", "/shipments?state=eq.new"):
                for _ in range(2):  # with the fence to be raised, and with it held
                    answered(await write("PATCH", "/shipments?id=eq.1", {"state": "sent"}, **named), 204)
                    response = await write("PATCH", target, {"state": "taken"}, **named)
                    answered(response, 422, "resource-mismatch")
                    assert "order/8" in response.json()["message"]
        assert (await row(tables, "SELECT order_id, state FROM shipments WHERE id = 3"))["state"] == "new"

    @pytest.mark.parametrize("raised", first([True, False]), ids=["held", "to be raised"])
    async def test_a_row_that_is_moved_away_while_the_write_waits_for_it(
        self, write: Send, tables: Database, renaming: None, stranger: asyncpg.Connection, *, raised: bool
    ) -> None:
        """The condition is judged again, on the version of the row that would be changed."""
        if raised:
            answered(await write("PATCH", "/shipments?id=eq.2", {"state": "x"}, token=5, resource="order/7"), 204)
        await stranger.execute("SET session_replication_role = replica")  # without triggers
        async with asyncio.TaskGroup() as tasks, stranger.transaction():
            await stranger.execute("UPDATE shipments SET order_id = 8 WHERE id = 1")
            late = tasks.create_task(
                write("PATCH", "/shipments?id=eq.1", {"state": "late"}, token=5, resource="order/7")
            )
            await waiting(tables, 1)
        answered(late.result(), 422, "resource-mismatch")
        assert tuple(await row(tables, "SELECT order_id, state FROM shipments WHERE id = 1")) == (8, "new")

    @pytest.mark.parametrize("method", first(["POST", "PUT"]))
    async def test_an_upsert_that_a_trigger_redirects_is_refused(
        self, write: Send, tables: Database, method: str
    ) -> None:
        """One trigger sends the new row to another one's key, the next one gives that row the name that was claimed."""
        await change(tables, """
            CREATE FUNCTION astray() RETURNS trigger LANGUAGE plpgsql AS
                'BEGIN NEW.id := CASE TG_OP WHEN ''INSERT'' THEN 2 ELSE 1 END; RETURN NEW; END';
            CREATE TRIGGER astray BEFORE INSERT OR UPDATE ON accounts FOR EACH ROW EXECUTE FUNCTION astray();
            DELETE FROM accounts WHERE id = 1;
        """)  # fmt: skip
        for _ in range(2):
            target = "/accounts?id=eq.1" if method == "PUT" else "/accounts"
            response = await write(
                method, target, {"id": 1, "note": "taken"}, token=5, prefer="resolution=merge-duplicates"
            )
            answered(response, 422, "resource-mismatch")
            assert "public.accounts/2" in response.json()["message"]
        assert await rows(tables, "SELECT id, note FROM accounts ORDER BY id") == [(2, None), (3, "third")]

    async def test_a_generated_column_in_the_name(self, write: Send, tables: Database, exposure: Exposure) -> None:
        await change(tables, """
            CREATE TABLE made (id int PRIMARY KEY, a int, order_id int GENERATED ALWAYS AS (a + 1) STORED);
            INSERT INTO made (id, a) VALUES (1, 6), (2, 7);
        """)  # fmt: skip
        exposure.rules["public.made"] = Rule(Template.parse("order/{order_id}"))  # type: ignore[index]
        answered(await write("PATCH", "/made?id=eq.2", {"a": 6}, token=5, resource="order/7"), 422, "resource-mismatch")
        answered(await write("PATCH", "/made?order_id=eq.8", {"a": 6}, token=5), 422, "resource-mismatch")
        answered(await write("PATCH", "/made?id=eq.1", {"a": 6}, token=5, resource="order/7"), 204)
        answered(await write("PATCH", "/made?id=eq.2", {"a": 6}, token="order/7=5, order/8=5"), 204)

    async def test_a_view_in_which_one_column_stands_twice(
        self, write: Send, tables: Database, exposure: Exposure
    ) -> None:
        await change(tables, """
            CREATE VIEW twice AS SELECT id, order_id, order_id AS same, state FROM shipments
        """)  # fmt: skip
        exposure.rules["public.twice"] = Rule(Template.parse("order/{order_id}"))  # type: ignore[index]
        target = "/twice?id=eq.3"
        answered(await write("PATCH", target, {"same": 7}, token=5, resource="order/7"), 422, "resource-mismatch")
        answered(await write("PATCH", "/twice?order_id=eq.8", {"same": 7}, token=5), 422, "resource-mismatch")
        answered(await write("PATCH", target, {"same": 7}, token="order/7=5, order/8=5"), 204)

    async def test_a_trigger_of_the_partition_that_a_row_moves_to(
        self, write: Send, tables: Database, exposure: Exposure
    ) -> None:
        await change(tables, """
            CREATE TABLE parts (id int, region int, order_id int, PRIMARY KEY (id, region)) PARTITION BY LIST (region);
            CREATE TABLE parts_1 PARTITION OF parts FOR VALUES IN (1);
            CREATE TABLE parts_2 PARTITION OF parts FOR VALUES IN (2);
            CREATE FUNCTION seven() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.order_id := 7; RETURN NEW; END';
            CREATE TRIGGER seven BEFORE INSERT ON parts_2 FOR EACH ROW EXECUTE FUNCTION seven();
            INSERT INTO parts VALUES (1, 1, 8);
        """)  # fmt: skip
        exposure.rules["public.parts"] = Rule(Template.parse("order/{order_id}"))  # type: ignore[index]
        target = "/parts?id=eq.1&region=eq.1"
        answered(await write("PATCH", target, {"region": 2}, token=5, resource="order/7"), 422, "resource-mismatch")
        answered(await write("PATCH", f"{target}&order_id=eq.8", {"region": 2}, token=5), 422, "resource-mismatch")
        answered(await write("PATCH", target, {"region": 2}, token="order/7=5, order/8=5"), 204)
        assert await rows(tables, "SELECT region, order_id FROM parts") == [(2, 7)]

    async def test_a_day_that_is_another_one_in_the_time_zone_of_the_caller(
        self, write: Send, tables: Database
    ) -> None:
        """At any time, "today" is another day in one of these zones than in UTC, in which names are made."""
        await tables.fetch_write("INSERT INTO dated SELECT current_date + days, 34 FROM generate_series(-1, 1) AS days")
        for (day,) in await rows(tables, "SELECT day FROM dated WHERE v = 34 AND day <> current_date"):
            answered(await write("PATCH", f"/dated?day=eq.{day}", {"v": 34}, token=34), 204)
        claimed = set(await fences_of(tables))
        refused = []
        for zone, moved in (("Etc/GMT+12", "2030-01-01"), ("Etc/GMT-14", "2030-01-02")):
            response = await write("PATCH", "/dated?day=eq.today", {"day": moved}, token=33, prefer=f"timezone={zone}")
            refused.append(response.status_code in (412, 422))
        assert any(refused)
        assert claimed <= {f"public.dated/{day}" for (day,) in await rows(tables, "SELECT day FROM dated")}


class TestWholeTable:
    async def test_all_rows_take_a_filter_that_all_match(self, write: Send, tables: Database) -> None:
        every = "/settings?name=not.is.null"
        answered(await write("POST", "/settings", {"name": "a", "value": "b"}, token=5), 201)
        for _ in range(2):
            response = await write("PATCH", every, {"value": "c"}, token=5)
            assert (response.headers["content-range"], response.headers["fencing-resource"]) == ("0-1/*", "ledger")
        answered(await write("DELETE", every, token=4), 412, "token-stale")
        answered(await write("DELETE", "/settings?limit=1", token=5), 400, "PGRST127")
        for accident in ("", "name", "&name", "select=name&name", "name%3Deq.a"):
            answered(await write("DELETE", f"/settings?{accident}", token=5), 400, "21000")
        answered(await write("DELETE", every, token=5, resource="job/1"), 422, "resource-mismatch")
        answered(await write("DELETE", every, token="ledger=5, job/1=1"), 204)
        assert await rows(tables, "SELECT * FROM settings") == []


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("key", "stored", "spellings", "name"),
    [
        ("smallint", "5", ["5", "05", "+5", " 5 "], "5"),
        ("bigint", "-5", ["-5", "-05", " -5"], "-5"),
        ("uuid", "6f1c3f0e-0b1a-4c8e-9f0a-11111111111a",
            ["6F1C3F0E-0B1A-4C8E-9F0A-11111111111A", "{6f1c3f0e0b1a4c8e9f0a11111111111a}"],
            "6f1c3f0e-0b1a-4c8e-9f0a-11111111111a"),
        ("timestamptz", "2024-01-02 03:04:05+00",
            ["2024-01-02T03:04:05Z", "2024-01-02 05:04:05+02", "20240102T030405.000Z"], "2024-01-02%2003:04:05+00"),
        ("timestamp", "2024-01-02 03:04:05", ["2024-01-02T03:04:05", "2024-1-2 3:04:05.0"], "2024-01-02%2003:04:05"),
        ("date", "2024-01-02", ["2024-01-02", "2024-1-2", "20240102", "Jan 2 2024"], "2024-01-02"),
        ("time", "03:04:00", ["03:04", "3:04 AM", "03:04:00.000"], "03:04:00"),
        ("timetz", "03:04:00+01", ["03:04+01", "03:04:00+01:00"], "03:04:00+01"),
        ("char(5)", "ab", ["ab", "ab   ", "ab "], "ab"),
        ("varchar(5)", "a b", ["a b"], "a%20b"),
        ("text", " A/b,c=", [" A/b,c="], "%20A%2Fb%2Cc%3D"),
        ("numeric(10,2)", "5.1", ["5.1", "5.10", "05.1000", "51e-1"], "5.10"),
        ("boolean", "true", ["true", "t", "TRUE", "on", "1"], "true"),
        ("mood", "so so", ["so so"], "so%20so"),
        ("bytea", r"\x00ff", [r"\x00ff", r"\x00FF", r"\000\377"], "%5Cx00ff"),
        ("inet", "10.0.0.1", ["10.0.0.1", "10.0.0.1/32"], "10.0.0.1%2F32"),
        ("macaddr", "08:00:2b:01:02:03", ["08-00-2B-01-02-03", "08002b010203"], "08:00:2b:01:02:03"),
        ("positive", "5", ["5", "05"], "5"),
        ("fixed", "1.5", ["1.5", "01.50"], "1.50"),
        ("large", "5", ["5", "05"], "5"),
        ("tight", "1.5", ["1.5", "01.50"], "1.50"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
async def test_one_row_has_one_name_however_its_key_is_written(
    write: Send, tables: Database, key: str, stored: str, spellings: list[str], name: str
) -> None:
    """In filters, lists and bodies, alone and as a part of a composite key."""
    await change(tables, f"""
        CREATE TYPE mood AS ENUM ('so so'); CREATE DOMAIN positive AS int CHECK (VALUE > 0);
        CREATE DOMAIN fixed AS numeric(6,2);
        CREATE DOMAIN large AS positive CHECK (VALUE > 1); CREATE DOMAIN tight AS fixed;
        CREATE TABLE keyed (k {key} PRIMARY KEY, v int);
        CREATE TABLE composed (k {key}, n int, v int, PRIMARY KEY (k, n));
        INSERT INTO keyed VALUES ('{stored}', 1);
        INSERT INTO composed VALUES ('{stored}', 1, 1);
    """)  # fmt: skip
    send = httpx.QueryParams
    for number, spelling in enumerate(spellings, 2):
        quoted = '"' + spelling.replace("\\", "\\\\").replace('"', '\\"') + '"'
        eq, one_of = send({"k": f"eq.{spelling}"}), send({"k": f"in.({quoted},{quoted})"})
        for target, body in (
            (f"/keyed?{eq}", {"v": number}),
            (f"/keyed?{one_of}", {"v": number}),
            (f"/keyed?{eq}", {"k": spelling, "v": number}),
        ):
            response = await write("PATCH", target, body, token=5, prefer="count=exact")
            assert (response.status_code, response.headers.get("content-range")) == (204, "0-0/1"), response.text
            assert response.headers["fencing-resource"] == f"public.keyed/{name}"
        answered(await write("PATCH", f"/keyed?{eq}", {"v": 0}, token=4), 412, "token-stale")
        answered(await write("POST", "/keyed", {"k": spelling, "v": 0}, token=4), 412, "token-stale")
        answered(await write("POST", "/keyed", {"k": spelling, "v": 0}, token=5), 409, "23505")
        response = await write("PATCH", f"/composed?{eq}&n=eq.01", {"v": number}, token=5, prefer="count=exact")
        assert response.headers["fencing-resource"] == f"public.composed/{name}/1"
        assert response.headers["content-range"] == "0-0/1"
        response = await write(
            "POST", "/keyed", [{"k": spelling, "v": number}], token=5, prefer="resolution=merge-duplicates"
        )
        assert (response.status_code, response.headers["fencing-resource"]) == (200, f"public.keyed/{name}")
    assert await rows(tables, "SELECT v FROM keyed") == [(len(spellings) + 1,)]


async def test_keys_that_can_be_written_in_several_ways_name_nothing(write: Send, tables: Database) -> None:
    await change(tables, "CREATE DOMAIN loose AS numeric; CREATE DOMAIN looser AS loose")
    keys = ("float8", "real", "numeric", "interval", "money", "jsonb", "int[]", "int4range", "looser")
    await change(tables, ";".join(f"CREATE TABLE odd{n} (k {key} PRIMARY KEY, v int)" for n, key in enumerate(keys)))
    for number in range(len(keys)):
        odd = f"/odd{number}"
        for method, target, body in (
            ("PATCH", f"{odd}?k=eq.1", {"v": 1}), ("DELETE", f"{odd}?k=eq.1", None), ("POST", odd, {"k": "1"}),
        ):  # fmt: skip
            response = await write(method, target, body, token=5)
            answered(response, 422, "resource-underivable")
            assert "'k'" in response.json()["message"]


class TestManyRows:
    async def test_a_thousand_rows_by_key(self, write: Send, tables: Database) -> None:
        body = [{"id": number, "owner": "x"} for number in range(1000, 1000 + MAX_RESOURCES)]
        response = await write("POST", "/accounts", body, token=5, prefer="count=exact")
        assert (response.status_code, response.headers["content-range"]) == (201, "*/1000")
        assert response.headers["fencing-resource"].endswith(", ...")
        assert len(response.headers["fencing-resource"]) < 4200
        merged = [{**one, "owner": "y"} for one in reversed(body)]
        prefer = "resolution=merge-duplicates"
        answered(await write("POST", "/accounts", merged, token=5, prefer=prefer), 200)
        answered(await write("POST", "/accounts", merged, token=6, prefer=prefer), 200)
        answered(await write("POST", "/accounts", merged, token=5, prefer=prefer), 412, "token-stale")
        assert (await row(tables, "SELECT count(*) FROM accounts WHERE owner = 'y'"))[0] == 1000
        listed = ",".join(str(number) for number in range(1000, 2000))
        response = await write("DELETE", f"/accounts?id=in.({listed})", token=6, prefer="count=exact")
        assert (response.status_code, response.headers["content-range"]) == (204, "*/1000")

    async def test_a_row_more_than_the_limit_is_refused(self, write: Send) -> None:
        body = [{"id": number} for number in range(1000, 1001 + MAX_RESOURCES)]
        answered(await write("POST", "/accounts", body, token=5), 422, "resource-underivable")
        answered(await write("POST", "/shipments", [{"order_id": 7}] * 3000, token=5), 201)

    async def test_one_stray_among_a_thousand(self, write: Send, tables: Database) -> None:
        """A trigger sends one row elsewhere; nothing is written."""
        await change(tables, """
            CREATE FUNCTION stray() RETURNS trigger LANGUAGE plpgsql AS
                'BEGIN IF NEW.id = 1500 THEN NEW.id := 5000; END IF; RETURN NEW; END';
            CREATE TRIGGER stray BEFORE INSERT ON accounts FOR EACH ROW EXECUTE FUNCTION stray();
        """)  # fmt: skip
        response = await write("POST", "/accounts", [{"id": number} for number in range(1000, 2000)], token=5)
        answered(response, 422, "resource-mismatch")
        assert "public.accounts/5000" in response.json()["message"]
        assert (await row(tables, "SELECT count(*) FROM accounts"))[0] == 3
        assert await fences_of(tables) == {}
