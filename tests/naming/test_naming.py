"""Names of rows and keys are facts in the database.

A gateway whose rules give other names than the ones in force refuses these writes, and nothing else. The command
``gateway naming apply`` puts the configured names in force, and no fence is forgotten on the way.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest

from gateway.changes.naming import BucketChange, PlannedChange, TableChange, naming_changes
from gateway.config import Config
from gateway.demo.embedded import EmbeddedPostgres
from gateway.doctor.examination import examine
from gateway.errors import ConfigurationError
from gateway.findings import CheckStatus
from gateway.guard import installation
from gateway.guard.installation import GuardRequest
from tests.doubles.s3 import S3Double, serve
from tests.objects.clients import connect, in_thread, outcome
from tests.postgres import GATEWAY, fresh_database
from tests.processes import called
from tests.releases import write_toml
from tests.running import API_KEY, config, running
from tests.tables.asking import answered, send
from tests.tiers import first
from tests.waiting import PATIENCE

BY_ACCOUNT = {"tables": [{"name": "public.orders", "resource": "account/{account}"}]}
BY_ORDER = {"tables": [{"name": "public.orders", "resource": "order/{id}"}]}
KEYS_BY_ACCOUNT = {"objects": [{"match": "bucket/{account}/**", "resource": "account/{account}"}]}
TABLES = """
CREATE TABLE orders (id bigint PRIMARY KEY, account bigint NOT NULL, note text);
INSERT INTO orders VALUES (1, 10, ''), (2, 10, ''), (3, 30, '');
"""


@dataclass(frozen=True, slots=True)
class Place:
    """One database and one store. ``dsn`` is that of the owner."""

    dsn: str
    endpoint: str

    async def rows(self, sql: str, *arguments: object) -> list[asyncpg.Record]:
        async with self.session() as session:
            return await session.fetch(sql, *arguments)

    async def execute(self, sql: str) -> None:
        async with self.session() as session:
            await session.execute(sql)

    @asynccontextmanager
    async def session(self) -> AsyncIterator["asyncpg.Connection[asyncpg.Record]"]:
        connection = await asyncpg.connect(self.dsn)
        try:
            yield connection
        finally:
            await connection.close()

    async def until(self, sql: str) -> None:
        """Wait until a query returns a row."""
        async with asyncio.timeout(PATIENCE):
            while not await self.rows(sql):
                await asyncio.sleep(0.02)

    def config(self, **sections: Any) -> Config:
        return config(self.dsn, self.endpoint, **sections)

    @asynccontextmanager
    async def gateway(self, **sections: Any) -> AsyncIterator["Gateway"]:
        """Run a gateway with these rules."""
        async with running(self.config(**sections)) as origin:
            headers = {"Authorization": f"Bearer {API_KEY}"}
            async with httpx.AsyncClient(base_url=f"{origin}/v1/tables", headers=headers, timeout=60) as client:
                yield Gateway(origin, client)

    async def fences(self) -> dict[str, str]:
        found = await self.rows("SELECT resource, fencing.token_v1(epoch, value) AS token FROM fencing.fence")
        return {row["resource"]: row["token"] for row in found}


@dataclass(frozen=True, slots=True)
class Gateway:
    """A running gateway."""

    origin: str
    client: httpx.AsyncClient

    async def patch(self, row: int, token: object, note: str = "x", prefer: str | None = None) -> httpx.Response:
        return await send(self.client, "PATCH", f"/orders?id=eq.{row}", {"note": note}, token=token, prefer=prefer)

    async def patch_account(self, account: int, token: object) -> httpx.Response:
        return await send(self.client, "PATCH", f"/orders?account=eq.{account}", {"note": "x"}, token=token)

    async def lease(self, method: str, path: str, **document: object) -> Any:
        response = await self.client.request(method, f"{self.origin}/v1/leases/{path}", json=document or None)
        return response.json() if response.content else None

    async def put(self, key: str, token: object, body: bytes = b"x") -> tuple[int, str]:
        client = connect(self.origin, str(token))
        return await outcome(client.put_object, Bucket="bucket", Key=key, Body=body)


@pytest.fixture
async def place(postgres_server: EmbeddedPostgres) -> AsyncIterator[Place]:
    async with fresh_database(postgres_server) as dsn, serve(S3Double(buckets=["bucket", "other"])) as endpoint:
        found = Place(dsn, endpoint)
        await found.execute(TABLES)
        yield found


# Two gateways with other rules --------------------------------------------------------------------------------


async def test_an_edit_of_the_configuration_forgets_no_fence(place: Place) -> None:
    """As seen: a rule without ``resource`` in place of one with it, and a misspelt name of a table."""
    async with place.gateway(**BY_ACCOUNT) as gateway:
        answered(await gateway.patch_account(10, 7), 204)
    for edited in ({"tables": [{"name": "public.orders"}]}, {"tables": [{"name": "public.order"}]}):
        async with place.gateway(**edited) as gateway:
            refused = await gateway.patch(1, 3)
            answered(refused, 503, "naming-changed")
            assert "account/{account integer}" in refused.json()["message"]
            assert "retry-after" not in refused.headers
            # Everything else is served: reads, and objects.
            assert (await gateway.client.get("/orders?id=eq.1")).json()[0]["note"] == "x"
            assert (await gateway.put("key", 1))[0] == 200
    async with place.gateway(**BY_ACCOUNT) as gateway:
        answered(await gateway.patch_account(10, 6), 412, "token-stale")
        answered(await gateway.patch_account(10, 7), 204)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE orders RENAME TO sales",
        "ALTER TABLE orders DROP CONSTRAINT orders_pkey; ALTER TABLE orders ADD PRIMARY KEY (id, account)",
        """ALTER TABLE orders RENAME id TO was; ALTER TABLE orders RENAME account TO id;
        ALTER TABLE orders RENAME was TO account; ALTER TABLE orders DROP CONSTRAINT orders_pkey;
        UPDATE orders SET id = account; ALTER TABLE orders ADD PRIMARY KEY (id)""",
        """CREATE TABLE made (account bigint, id text PRIMARY KEY, note text); INSERT INTO made VALUES (1, '1', '');
        DROP TABLE orders; ALTER TABLE made RENAME TO orders""",
    ],
    ids=["a rename", "another key", "columns exchanged", "made anew"],
)
async def test_a_change_of_the_table_is_a_change_of_naming(place: Place, change: str) -> None:
    async with place.gateway() as gateway:
        answered(await gateway.patch(1, 7), 204)
        await place.execute(change)
        table = "/sales" if "sales" in change else "/orders"
        target = f"{table}?id=eq.1&account=eq.1"
        response = await gateway.client.patch(target, json={"note": "late"}, headers={"fencing-token": "3"})
        if table == "/sales":
            async with asyncio.timeout(30):
                while response.status_code == 404:  # until the gateway has heard of the new name
                    await asyncio.sleep(0.05)
                    response = await gateway.client.patch(target, json={"note": "late"}, headers={"fencing-token": "3"})
        answered(response, 503, "naming-changed")
    assert not await place.rows(f"SELECT FROM {table[1:]} WHERE note = 'late'")


async def test_what_gives_the_same_names_is_no_change(place: Place) -> None:
    async with place.gateway(**BY_ORDER) as gateway:
        answered(await gateway.patch(1, 7), 204)
        await place.execute("ALTER TABLE orders ALTER id TYPE integer; ALTER TABLE orders ADD more text")
        answered(await gateway.patch(1, 7), 204)
        await place.execute("ALTER TABLE orders ALTER account TYPE text")
        answered(await gateway.patch(1, 7), 204)
    renamed = {"tables": [{"name": "public.sales", "resource": "order/{number}"}]}
    await place.execute("ALTER TABLE orders RENAME id TO number; ALTER TABLE orders RENAME TO sales")
    async with place.gateway(**renamed) as gateway:
        response = await gateway.client.patch("/sales?number=eq.1", json={"note": ""}, headers={"fencing-token": "6"})
        answered(response, 412, "token-stale")
        response = await gateway.client.patch("/sales?number=eq.1", json={"note": ""}, headers={"fencing-token": "7"})
        answered(response, 204)


async def test_observing_is_not_bound_to_a_naming(place: Place) -> None:
    """Rules are tried in observe mode, which neither registers a naming nor refuses a write."""
    observing = {"tables": [{**BY_ACCOUNT["tables"][0], "mode": "observe"}]}
    async with place.gateway(**observing) as trial:
        answered(await trial.patch_account(10, 5), 204)
        assert not await place.rows("SELECT FROM fencing.table_naming")
        async with place.gateway() as gateway:
            answered(await gateway.patch(1, 7), 204)
            answered(await trial.patch_account(10, 5), 204)


async def test_two_gateways_that_register_at_once_agree_on_one(place: Place) -> None:
    async with place.gateway() as one, place.gateway(**BY_ACCOUNT) as other:
        one_answer, other_answer = await asyncio.gather(one.patch(1, 7), other.patch_account(10, 7))
        assert sorted((one_answer.status_code, other_answer.status_code)) == [204, 503]
    assert len(await place.rows("SELECT FROM fencing.table_naming")) == 1


async def test_the_gateway_whose_keys_have_other_names_refuses(place: Place) -> None:
    async with place.gateway() as right, place.gateway(**KEYS_BY_ACCOUNT) as wrong:
        assert (await right.put("10/a", 7))[0] == 200
        status, code = await wrong.put("10/a", 3)
        assert (status, code) == (503, "ServiceUnavailable")
        assert (await right.put("10/a", 6))[0] == 412
        # Another bucket's keys have the same names in both.
        answered(await wrong.patch(1, 1), 204)
    assert (await place.fences())["s3/bucket/10/a"] == "7"


async def test_a_write_under_way_proves_the_naming_where_it_takes_effect(place: Place) -> None:
    """The gateway has planned the write before the naming changes, and learns of it from no announcement."""
    async with place.gateway() as gateway:
        for _ in range(2):
            answered(await gateway.patch(1, 7), 204)
        assert (await gateway.put("key", 7))[0] == 200
        for naming in ("table_naming", "bucket_naming"):
            await place.execute(f"UPDATE fencing.{naming} SET generation = gen_random_uuid(), change = naming")
        for token in (7, 8):
            refused = await gateway.patch(1, token, "late")
            answered(refused, 503, "naming-changed")
            assert refused.headers["retry-after"] == "2"
            assert (await gateway.put("key", token, b"late"))[0] == 503
    assert not await place.rows("SELECT FROM orders WHERE note = 'late'")
    assert await place.fences() == {"public.orders/1": "7", "s3/bucket/key": "7"}


ITEMS = """
CREATE TABLE items (id bigint PRIMARY KEY, order_id bigint REFERENCES orders ON DELETE CASCADE, note text);
INSERT INTO items VALUES (5, 1, '')
"""


async def test_the_names_of_reached_rows_are_proven_too(place: Place) -> None:
    """A delete that cascades claims the names of rows in another table: these have to be the ones in force."""
    await place.execute(ITEMS)
    claiming = {"name": "public.orders", "cascades": "claim"}
    renaming = {"name": "public.items", "resource": "item/{id}"}
    async with place.gateway(tables=[claiming]) as right, place.gateway(tables=[claiming, renaming]) as wrong:
        answered(await right.patch(1, 7), 204)
        headers = {"fencing-token": "7"}
        answered(await right.client.patch("/items?id=eq.5", json={"note": "x"}, headers=headers), 204)
        late = {"fencing-token": "public.orders/1=7, item/5=3"}
        answered(await wrong.client.delete("/orders?id=eq.1", headers=late), 503, "naming-changed")
        stale = {"fencing-token": "public.orders/1=7, public.items/5=6"}
        answered(await right.client.delete("/orders?id=eq.1", headers=stale), 412, "token-stale")
        assert await place.rows("SELECT FROM items")
        held = {"fencing-token": "public.orders/1=7, public.items/5=7"}
        answered(await right.client.delete("/orders?id=eq.1", headers=held), 204)


# gateway naming apply ------------------------------------------------------------------------------------------

SESSIONS = "SELECT FROM pg_stat_activity WHERE datname = current_database()"


async def planned(place: Place, sections: Mapping[str, Any]) -> list[PlannedChange]:
    async with naming_changes(place.config(**sections).default) as changes:
        return await changes.planned()


async def apply(place: Place, sections: Mapping[str, Any], *, new_locks: bool = False) -> None:
    async with naming_changes(place.config(**sections).default) as changes:
        for one in await changes.planned():
            await changes.apply(one, new_locks=new_locks)


async def test_rows_keep_the_highest_of_their_fences(place: Place) -> None:
    async with place.gateway() as before:
        for row, token in ((1, 7), (2, 9), (3, 4)):
            answered(await before.patch(row, token), 204)
        await apply(place, BY_ACCOUNT)
        answered(await before.patch(1, 99), 503, "naming-changed")
    assert await place.fences() == {
        "public.orders/1": "7", "public.orders/2": "9", "public.orders/3": "4", "account/10": "9", "account/30": "4",
    }  # fmt: skip
    async with place.gateway(**BY_ACCOUNT) as after:
        answered(await after.patch_account(10, 8), 412, "token-stale")
        answered(await after.patch_account(30, 4), 204)
        assert not await planned(place, BY_ACCOUNT)


async def test_a_running_gateway_serves_the_new_names_at_once(place: Place) -> None:
    async with place.gateway() as before, place.gateway(**BY_ORDER) as after:
        answered(await before.patch(1, 7), 204)
        answered(await after.patch(1, 8), 503, "naming-changed")
        await apply(place, BY_ORDER)
        async with asyncio.timeout(30):
            while (await after.patch(1, 7)).status_code == 503:
                await asyncio.sleep(0.05)
        answered(await after.patch(1, 6), 412, "token-stale")


@pytest.mark.thorough
async def test_fences_of_deleted_rows_are_carried_over_by_their_names_or_not_forgotten_silently(place: Place) -> None:
    async with place.gateway() as before:
        answered(await before.patch(1, 7), 204)
        await send(before.client, "DELETE", "/orders?id=eq.1", token=9)
        answered(await before.patch(2, 5), 204)
    [change] = await planned(place, BY_ACCOUNT)
    assert (change.count.carried, change.left) == (1, 1)
    with pytest.raises(ConfigurationError, match="1 fences have names"):
        await apply(place, BY_ACCOUNT)
    async with place.gateway() as before:
        answered(await before.patch(2, 5), 204)  # nothing was closed
    [change] = await planned(place, BY_ORDER)
    assert (change.count.carried, change.left) == (2, 0)
    await apply(place, BY_ORDER)
    async with place.gateway(**BY_ORDER) as after:
        late = await send(after.client, "POST", "/orders", {"id": 1, "account": 10}, token=8)
        answered(late, 412, "token-stale")


async def test_new_locks_begin_a_new_epoch(place: Place) -> None:
    async with place.gateway() as before:
        answered(await before.patch(1, 7), 204)
        assert (await before.put("10/a", 7))[0] == 200
        assert (await before.put("plain", 3))[0] == 200
    rules = {**BY_ACCOUNT, **KEYS_BY_ACCOUNT}
    await apply(place, rules, new_locks=True)
    async with place.gateway(**rules) as after:
        answered(await after.patch_account(10, 99), 412, "token-stale")
        answered(await after.patch_account(30, 99), 412, "token-stale")  # a row that had no fence
        assert (await after.put("10/a", 99))[0] == 412
        answered(await after.patch_account(10, "1.1"), 204)
        assert (await after.put("10/a", "1.1"))[0] == 200
        assert (await after.put("plain", 3))[0] == 200, "other keys keep their epoch"


async def test_a_token_that_was_issued_counts_as_shown(place: Place) -> None:
    """The new lock must not issue a number that a holder of the old lock already has."""
    async with place.gateway() as before:
        answered(await before.patch(1, 7), 204)
        lease = await before.lease("POST", "public.orders/1", holder="a", ttl=60)
        await before.lease("DELETE", f"public.orders/1/{lease['lease']}")
        assert (await before.lease("POST", "public.orders/1", holder="b", ttl=60))["token"] == "9"
        [change] = await planned(place, BY_ACCOUNT)
        assert change.holders == {"public.orders/1": "b"}
        await apply(place, BY_ACCOUNT)
    async with place.gateway(**BY_ACCOUNT) as after:
        assert (await after.lease("POST", "account/10", holder="c", ttl=60))["token"] == "10"
        answered(await after.patch_account(10, 10), 204)
        answered(await after.patch_account(10, 9), 412, "token-stale")


async def test_keys_keep_the_highest_of_their_fences(place: Place) -> None:
    async with place.gateway() as before:
        for key, token in (("10/a", 7), ("10/b", 9), ("20/a", 4), ("plain", 3)):
            assert (await before.put(key, token))[0] == 200
        client = connect(before.origin, "11")
        assert (await outcome(client.delete_object, Bucket="bucket", Key="20/a"))[0] == 204
        await apply(place, KEYS_BY_ACCOUNT)
        assert (await before.put("10/a", 99))[0] == 503
    async with place.gateway(**KEYS_BY_ACCOUNT) as after:
        assert (await after.put("10/a", 8))[0] == 412
        assert (await after.put("10/a", 9, b"new"))[0] == 200
        assert (await after.put("20/a", 10))[0] == 412  # the fence of a deleted key
        assert (await after.put("plain", 2))[0] == 412
    fences = await place.fences()
    assert (fences["account/10"], fences["account/20"], fences["s3/bucket/plain"]) == ("9", "11", "3")


async def test_an_object_write_under_way_is_settled_first(place: Place) -> None:
    """A gateway died after its announcement: its request may still be on its way to the store."""
    async with place.gateway() as before:
        assert (await before.put("10/a", 7))[0] == 200
        etag = (await in_thread(connect(before.origin).head_object, Bucket="bucket", Key="10/a"))["ETag"].strip('"')
    await place.rows(
        """INSERT INTO fencing.intent (resource, bucket, key, write_id, attempt, epoch, value, expected)
        VALUES ('s3/bucket/10/a', 'bucket', '10/a', gen_random_uuid(), 1, 0, 7, $1)""",
        etag,
    )
    [change] = await planned(place, KEYS_BY_ACCOUNT)
    assert change.pending == 1
    await apply(place, KEYS_BY_ACCOUNT)
    assert not await place.rows("SELECT FROM fencing.intent")
    [forbidden] = await place.rows("SELECT resource, etag FROM fencing.forbidden")
    assert tuple(forbidden) == ("account/10", etag)
    async with place.gateway(**KEYS_BY_ACCOUNT) as after:
        state = await in_thread(connect(after.origin).head_object, Bucket="bucket", Key="10/a")
        assert state["ETag"].strip('"') != etag


class Killed(Exception):
    """The process ends here."""


@pytest.mark.parametrize("kind", first([TableChange, BucketChange]), ids=["rows", "keys"])
@pytest.mark.parametrize("step", first(["carry_over", "close"]))
async def test_killed_at_any_step_it_goes_on_or_back(
    place: Place, monkeypatch: pytest.MonkeyPatch, kind: type[TableChange | BucketChange], step: str
) -> None:
    rules = BY_ACCOUNT if kind is TableChange else KEYS_BY_ACCOUNT

    async def write(gateway: Gateway, token: int, *, changed: bool) -> int:
        if kind is BucketChange:
            return (await gateway.put("10/a", token))[0]
        return (await (gateway.patch_account(10, token) if changed else gateway.patch(1, token))).status_code

    async def die() -> None:
        original = getattr(kind, step)

        async def killed(*arguments: Any) -> None:
            if step == "close":
                await original(*arguments)
            raise Killed

        with monkeypatch.context() as patch:
            patch.setattr(kind, step, killed)
            with pytest.raises(Killed):
                await apply(place, rules)
        for changed in (False, True):
            async with place.gateway(**(rules if changed else {})) as gateway:
                assert await write(gateway, 8, changed=changed) == 503

    async with place.gateway() as before:
        assert await write(before, 7, changed=False) < 300
    await die()
    await apply(place, {})
    async with place.gateway() as back:
        assert await write(back, 6, changed=False) == 412
        assert await write(back, 7, changed=False) < 300
    await die()
    await apply(place, rules)
    async with place.gateway(**rules) as on:
        assert await write(on, 6, changed=True) == 412
        assert await write(on, 7, changed=True) < 300


async def test_a_barrier_beside_the_change_is_before_it_or_after(place: Place) -> None:
    """A barrier that is acknowledged before the new names are in force holds under them."""
    async with place.gateway() as before:
        answered(await before.patch(1, 7), 204)

        async def barrier() -> bool:
            response = await before.client.post(
                f"{before.origin}/v1/fences/public.orders/1/barrier", json={"token": "9"}
            )
            assert response.status_code == 200, response.text
            return bool(
                await place.rows("SELECT FROM fencing.table_naming WHERE naming ->> 'literals' LIKE '%account%'")
            )

        late, _ = await asyncio.gather(barrier(), apply(place, BY_ACCOUNT))
    if not late:
        assert (await place.fences())["account/10"] == "9"


async def test_a_write_that_has_not_proved_its_naming_is_refused(place: Place) -> None:
    async with place.gateway() as before:
        answered(await before.patch(1, 7), 204)
        async with place.session() as holding, holding.transaction():
            await holding.execute("SELECT FROM orders WHERE id = 2 FOR UPDATE")
            # In a transaction of its own: a shared one does not wait for so long.
            writing = asyncio.create_task(before.patch(2, 9, "late", "handling=strict, max-affected=1"))
            await place.until(SESSIONS + " AND wait_event_type = 'Lock'")
            applying = asyncio.create_task(apply(place, BY_ACCOUNT))
            await place.until("SELECT FROM fencing.table_naming WHERE change IS NOT NULL")
            assert not applying.done()
        answered(await writing, 503, "naming-changed")
        await applying
    assert (await place.fences())["account/10"] == "7"
    assert not await place.rows("SELECT FROM orders WHERE note = 'late'")


async def test_a_write_that_has_proved_its_naming_is_waited_for(place: Place) -> None:
    await place.execute(
        """CREATE FUNCTION linger() RETURNS trigger LANGUAGE plpgsql SET lock_timeout = 0 AS
        $$ BEGIN IF NEW.note = 'slow' THEN PERFORM pg_advisory_xact_lock(1); END IF; RETURN NULL; END $$;
        CREATE CONSTRAINT TRIGGER linger AFTER UPDATE ON orders DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW EXECUTE FUNCTION linger()"""
    )
    async with place.gateway() as before:
        answered(await before.patch(1, 7), 204)
        async with place.session() as holding, holding.transaction():
            await holding.execute("SELECT pg_advisory_xact_lock(1)")
            writing = asyncio.create_task(before.patch(2, 9, "slow"))
            await place.until(SESSIONS + " AND wait_event = 'advisory'")
            applying = asyncio.create_task(apply(place, BY_ACCOUNT))
            await place.until(SESSIONS + " AND wait_event_type = 'Lock' OFFSET 1")
            assert not applying.done()
        await applying
        answered(await writing, 204)
    assert (await place.fences())["account/10"] == "9"


async def test_a_guard_with_the_old_names_comes_first(place: Place) -> None:
    """It would judge direct sessions by fences that no longer rise."""
    async with place.gateway() as before:
        answered(await before.patch(1, 7), 204)
    owner = place.config(postgres={"dsn": place.dsn}).default
    await installation.install(owner, GuardRequest("public.orders", role=GATEWAY))
    with pytest.raises(ConfigurationError, match=r"its guard names rows public\.orders/\{id\}"):
        await apply(place, BY_ACCOUNT)
    await installation.remove(owner, "public.orders", None)
    await apply(place, BY_ACCOUNT)


async def test_the_doctor_names_the_difference(place: Place) -> None:
    async with place.gateway() as before:
        answered(await before.patch(1, 7), 204)
        assert (await before.put("10/a", 7))[0] == 200
    for sections, names in (({}, ["names"]), ({**BY_ACCOUNT, **KEYS_BY_ACCOUNT}, ["public.orders", "bucket"])):
        report = await examine(place.config(**sections).default)
        found = [one for section in report.sections for one in section.checks if one.name.startswith("names")]
        assert [one.name.removeprefix("names of ") for one in found] == names
        assert {one.status for one in found} == {CheckStatus.PROBLEM if sections else CheckStatus.OK}


async def test_the_commands(place: Place, tmp_path: Path) -> None:
    async with place.gateway() as before:
        answered(await before.patch(1, 7), 204)
    settings = place.config().default
    sections = {
        "postgres": {"dsn": settings.postgres.dsn.get_secret_value()},
        "callers": [{"name": "writer", "api_key": API_KEY}],
        "tables": [{"name": "public.orders", "resource": "account/{account}"}],
    }
    file = write_toml(tmp_path / "gateway.toml", sections)
    shown = await asyncio.to_thread(called, "naming", "plan", "--config", file)
    assert shown.returncode == 1
    for fragment in ("public.orders/{id integer}", "account/{account integer}", "1 fences and locks"):
        assert fragment in shown.stdout
    facts = json.loads((await asyncio.to_thread(called, "naming", "plan", "--json", "--config", file)).stdout)
    assert (facts["name"], facts["carried"], facts["holders"]) == ("public.orders", 1, {})
    wrong = await asyncio.to_thread(called, "naming", "apply", "public.nothing", "--config", file)
    assert (wrong.returncode, "its naming is the one in force" in wrong.stderr) == (2, True)
    done = await asyncio.to_thread(called, "naming", "apply", "public.orders", "--config", file)
    assert done.returncode == 0, done.stderr
    again = await asyncio.to_thread(called, "naming", "plan", "--config", file)
    assert (again.returncode, again.stdout) == (0, "The configured names are the ones in force.\n")
    [entry] = await place.rows("SELECT details FROM fencing.record WHERE kind = 'administration'")
    assert '"ApplyNaming"' in entry["details"]
    assert "account/{account integer}" in entry["details"]
