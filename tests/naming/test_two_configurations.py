"""A gateway whose rules give rows or keys other names than the ones in force refuses these writes, and nothing else."""

import asyncio

import pytest

from tests.naming.conftest import BY_ACCOUNT, BY_ORDER, KEYS_BY_ACCOUNT, Place
from tests.tables.asking import answered


async def test_the_gateway_whose_rows_have_other_names_refuses(place: Place) -> None:
    async with place.gateway() as right, place.gateway(**BY_ACCOUNT) as wrong:
        answered(await right.patch(1, 7), 204)
        refused = await wrong.patch_account(10, 3)
        answered(refused, 503, "naming-changed")
        assert "public.orders/{id integer}" in refused.json()["message"]
        assert "account/{account integer}" in refused.json()["message"]
        assert "retry-after" not in refused.headers
        answered(await right.patch(1, 6), 412, "token-stale")
        # Everything else is served: reads, other tables' writes, objects.
        assert (await wrong.client.get("/orders?id=eq.1")).json()[0]["note"] == "x"
        assert (await wrong.put("key", 1))[0] == 200
    assert await place.fences() == {"public.orders/1": "7", "s3/bucket/key": "1"}


async def test_an_edit_of_the_configuration_forgets_no_fence(place: Place) -> None:
    """As seen: a rule without ``resource`` in place of one with it, and a misspelt name of a table."""
    async with place.gateway(**BY_ACCOUNT) as gateway:
        answered(await gateway.patch_account(10, 7), 204)
    for edited in ({"tables": [{"name": "public.orders"}]}, {"tables": [{"name": "public.order"}]}):
        async with place.gateway(**edited) as gateway:
            answered(await gateway.patch(1, 3), 503, "naming-changed")
    async with place.gateway(**BY_ACCOUNT) as gateway:
        answered(await gateway.patch_account(10, 6), 412, "token-stale")
        answered(await gateway.patch_account(10, 7), 204)


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
        first, second = await asyncio.gather(one.patch(1, 7), other.patch_account(10, 7))
        assert sorted((first.status_code, second.status_code)) == [204, 503]
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


async def test_the_names_of_reached_rows_are_proven_too(place: Place) -> None:
    """A delete that cascades claims the names of rows in another table: these have to be the ones in force."""
    await place.execute(
        """CREATE TABLE items (id bigint PRIMARY KEY, order_id bigint REFERENCES orders ON DELETE CASCADE, note text);
        INSERT INTO items VALUES (5, 1, '')"""
    )
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


async def test_a_table_that_is_only_reached_is_registered(place: Place) -> None:
    await place.execute(
        """CREATE TABLE items (id bigint PRIMARY KEY, order_id bigint REFERENCES orders ON DELETE CASCADE);
        INSERT INTO items VALUES (5, 1)"""
    )
    async with place.gateway(tables=[{"name": "public.orders", "cascades": "claim"}]) as gateway:
        held = {"fencing-token": "public.orders/1=7, public.items/5=7"}
        answered(await gateway.client.delete("/orders?id=eq.1", headers=held), 204)
    found = await place.rows("SELECT name FROM fencing.table_naming ORDER BY 1")
    assert [row["name"] for row in found] == ["public.items", "public.orders"]
