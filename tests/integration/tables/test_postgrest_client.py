"""The PyPI client ``postgrest``, sync and async, over real HTTP: one more header is all it needs."""

import asyncio
from typing import Any, cast

import pytest
from postgrest import APIError, APIResponse, AsyncPostgrestClient, SyncPostgrestClient
from postgrest.types import CountMethod, ReturnMethod

from gateway.store.database import Database
from tests.integration.tables.asking import rows


def data(response: APIResponse) -> list[dict[str, Any]]:
    return cast("list[dict[str, Any]]", response.data)


async def test_the_async_client(origin: str, tables: Database) -> None:
    async with AsyncPostgrestClient(f"{origin}/v1/tables", headers={"Fencing-Token": "5"}) as client:
        accounts = client.from_("accounts")
        inserted = await accounts.insert([{"id": 10, "owner": "dee"}, {"id": 11, "owner": "eve"}]).execute()
        assert [one["id"] for one in data(inserted)] == [10, 11]
        updated = await accounts.update({"balance": 7}, count=CountMethod.exact).eq("id", 10).execute()
        assert (data(updated)[0]["balance"], updated.count) == (7, 1)
        upserted = await accounts.upsert({"id": 10, "owner": "dora"}).execute()
        assert (data(upserted)[0]["owner"], data(upserted)[0]["balance"]) == ("dora", 7)
        ignored = await accounts.upsert({"id": 10, "owner": "x"}, ignore_duplicates=True).execute()
        assert ignored.data == []
        minimal = await accounts.update({"note": "n"}, returning=ReturnMethod.minimal).in_("id", [10, 11]).execute()
        assert minimal.data == []
        deleted = await accounts.delete().eq("id", 11).execute()
        assert [one["id"] for one in data(deleted)] == [11]
        selected = await accounts.select("id, name:owner", count=CountMethod.exact).gt("id", 2).order("id").execute()
        assert (selected.data, selected.count) == ([{"id": 3, "name": "cid"}, {"id": 10, "name": "dora"}], 2)
        single = await accounts.select("owner").eq("id", 1).single().execute()
        assert single.data == {"owner": "ann"}
        nobody = await accounts.select("owner").eq("id", 99).maybe_single().execute()
        assert nobody is None
        either = await accounts.select("id").or_("id.eq.1,owner.eq.bob").order("id", desc=True).execute()
        assert [one["id"] for one in data(either)] == [2, 1]
    assert await rows(tables, "SELECT id, owner, balance, note FROM accounts WHERE id > 3") == [(10, "dora", 7, "n")]


async def test_the_sync_client_is_refused_once_it_is_overtaken(origin: str, tables: Database) -> None:
    """The client shows its users nothing but the four keys: all there is to know must be in them."""

    def write(token: str, owner: str) -> None:
        with SyncPostgrestClient(f"{origin}/v1/tables") as client:
            request = client.from_("accounts").update({"owner": owner}).eq("id", 1)
            request.request.headers["Fencing-Token"] = token
            assert data(request.execute())[0]["owner"] == owner

    await asyncio.to_thread(write, "6", "new")
    with pytest.raises(APIError) as caught:
        await asyncio.to_thread(write, "5", "old")
    assert caught.value.code == "token-stale"
    assert caught.value.message == "The fencing token 5 of public.accounts/1 has been overtaken by 6."
    assert "public.accounts/1" in (caught.value.details or "")
    assert "retrying cannot succeed" in (caught.value.hint or "")
    assert await rows(tables, "SELECT owner FROM accounts WHERE id = 1") == [("new",)]


async def test_the_client_without_a_token(origin: str) -> None:
    async with AsyncPostgrestClient(f"{origin}/v1/tables") as client:
        with pytest.raises(APIError) as caught:
            await client.from_("accounts").insert({"id": 10}).execute()
        assert caught.value.code == "token-required"
        with pytest.raises(APIError) as caught:
            await client.from_("accounts").select("nope").execute()
        assert caught.value.code == "42703"
