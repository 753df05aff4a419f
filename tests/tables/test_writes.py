"""Writes of the dialect under a token: what they change, what they answer, and which resource they claim."""

from typing import Any

import httpx
import pytest

from gateway.db import fences
from gateway.db.database import Database
from gateway.fencing.token import Token
from gateway.observe.events import Event, StepReached
from tests.tables.asking import Send, answered, change, row, rows


async def test_insert_one(write: Send, tables: Database) -> None:
    response = await write("POST", "/accounts", {"id": 10, "owner": "dee"}, token=5)
    answered(response, 201)
    assert response.content == b""
    assert response.headers["fencing-token"] == "5"
    assert response.headers["fencing-resource"] == "public.accounts/10"
    assert tuple(await row(tables, "SELECT owner, balance FROM accounts WHERE id = 10")) == ("dee", 0)


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


@pytest.mark.parametrize("method", ["POST", "PATCH"])
async def test_columns_and_missing_defaults(write: Send, tables: Database, method: str) -> None:
    query, body, status = (
        ("", [{"id": 10, "note": "n", "extra": 5}], 201) if method == "POST" else ("&id=eq.1", {"note": "n"}, 204)
    )
    key = "10" if method == "POST" else "1"
    columns = '"id","balance","note"' if method == "POST" else '"balance","note"'
    answered(
        await write(method, f"/accounts?columns={columns}{query}", body, token=5, prefer="missing=default"), status
    )
    found = await row(tables, f"SELECT balance, note, extra IS NULL AS bare FROM accounts WHERE id = {key}")
    assert tuple(found) == (0, "n", method == "POST")


async def test_missing_columns_are_null_without_the_preference(write: Send) -> None:
    response = await write("POST", "/accounts?columns=id,balance", [{"id": 10}], token=5)
    answered(response, 400, "23502")


async def test_the_location_of_a_new_row(write: Send) -> None:
    response = await write("POST", "/pairs", {"a": "p/q", "b": "r s"}, token=1, prefer="return=headers-only")
    assert response.headers["location"] == "/v1/tables/pairs?a=eq.p%2Fq&b=eq.r%20s"


async def test_merge_and_ignore_duplicates(write: Send, tables: Database) -> None:
    body = [{"id": 1, "owner": "new"}, {"id": 10, "owner": "new"}]
    prefer = "resolution=ignore-duplicates,return=representation"
    response = await write("POST", "/accounts?select=id", body, token=5, prefer=prefer)
    assert (response.status_code, response.json()) == (201, [{"id": 10}])
    prefer = "resolution=merge-duplicates,return=representation"
    response = await write("POST", "/accounts?select=id,balance,owner", body, token=5, prefer=prefer)
    assert response.status_code == 200
    assert response.json() == [{"id": 1, "balance": 10, "owner": "new"}, {"id": 10, "balance": 0, "owner": "new"}]
    assert (await row(tables, "SELECT count(*) FROM accounts"))[0] == 4


async def test_update(write: Send, tables: Database) -> None:
    response = await write("PATCH", "/accounts?id=eq.1", {"balance": 11, "note": None}, token=5)
    assert (response.status_code, response.headers["content-range"]) == (204, "0-0/*")
    assert tuple(await row(tables, "SELECT balance, note FROM accounts WHERE id = 1")) == (11, None)
    response = await write(
        "PATCH", "/accounts?id=eq.1&select=b:balance", [{"balance": 12}], token=5, prefer="return=representation"
    )
    assert (response.status_code, response.json()) == (200, [{"b": 12}])


async def test_a_write_that_matches_no_row_keeps_its_raise(write: Send, tables: Database) -> None:
    response = await write("PATCH", "/accounts?id=eq.1&balance=gt.1000", {"note": "x"}, token=9)
    assert (response.status_code, response.headers["content-range"]) == (204, "*/*")
    answered(await write("PATCH", "/accounts?id=eq.1", {"note": "x"}, token=8), 412, "token-stale")


@pytest.mark.parametrize("body", [{}, [{}]])
async def test_an_empty_update_changes_nothing(write: Send, tables: Database, body: Any) -> None:
    before = await rows(tables, "SELECT * FROM accounts ORDER BY id")
    answered(await write("PATCH", "/accounts?id=eq.1", body, token=5), 204)
    assert await rows(tables, "SELECT * FROM accounts ORDER BY id") == before


async def test_put(write: Send, tables: Database) -> None:
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


async def test_delete(write: Send, tables: Database) -> None:
    response = await write(
        "DELETE", "/accounts?id=in.(3,1)&select=id&order=id.desc", {}, token=5, prefer="return=representation"
    )
    assert (response.status_code, response.json()) == (200, [{"id": 3}, {"id": 1}])
    assert await rows(tables, "SELECT id FROM accounts") == [(2,)]


async def test_several_resources_are_all_or_nothing(write: Send, tables: Database) -> None:
    answered(await write("PATCH", "/accounts?id=eq.2", {"note": "held"}, token=9), 204)
    answered(await write("DELETE", "/accounts?id=in.(1,2)", token=5), 412, "token-stale")
    assert (await row(tables, "SELECT count(*) FROM accounts"))[0] == 3
    assert await fences.read(tables, "public.accounts/1") is None


async def test_one_object_is_one_row_or_nothing_is_written(write: Send, tables: Database) -> None:
    accept = "application/vnd.pgrst.object+json"
    response = await write(
        "PATCH", "/accounts?id=eq.1&select=id", {"note": "one"}, token=5, accept=accept, prefer="return=representation"
    )
    assert (response.status_code, response.json()) == (200, {"id": 1})
    for token in (5, 6):
        answered(await write("DELETE", "/accounts?id=in.(1,2)", token=token, accept=accept), 406, "PGRST116")
        answered(await write("PATCH", "/accounts?id=eq.77", {"note": "x"}, token=token, accept=accept), 406, "PGRST116")
    assert (await row(tables, "SELECT count(*) FROM accounts"))[0] == 3


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ({"accept": "application/vnd.pgrst.object+json"}, 406, "PGRST116"),
        ({"prefer": "handling=strict,max-affected=1"}, 400, "PGRST124"),
    ],
)
async def test_what_must_be_undone_never_takes_the_fast_path(
    write: Send, tables: Database, headers: dict[str, str], status: int, code: str
) -> None:
    """One autocommitted statement cannot be taken back once its answer turns out to be a refusal."""
    answered(await write("POST", "/settings", {"name": "a"}, token=5), 201)
    answered(await write("DELETE", "/settings?name=neq.none", token=5, **headers), status, code)
    assert (await row(tables, "SELECT count(*) FROM settings"))[0] == 2


async def test_max_affected_undoes_the_write(write: Send, tables: Database) -> None:
    prefer = "handling=strict,max-affected=1"
    answered(await write("DELETE", "/accounts?id=in.(1,2)", token=5, prefer=prefer), 400, "PGRST124")
    assert (await row(tables, "SELECT count(*) FROM accounts"))[0] == 3
    answered(await write("DELETE", "/accounts?id=eq.1", token=5, prefer=prefer), 204)


async def test_a_template_over_another_column(write: Send, tables: Database) -> None:
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


async def test_an_explicit_resource_covers_what_it_names(write: Send) -> None:
    response = await write("PATCH", "/accounts?owner=eq.ann", {"note": "x"}, token=5, resource="public.accounts/1")
    answered(response, 204)


async def test_values_are_brought_into_canonical_form(write: Send, tables: Database) -> None:
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
    answered(await write("PATCH", "/strict?id=eq.1", {"v": 2}, token=5), 204)
    answered(await write("PATCH", "/strict?id=eq.1", {"v": 3}, token=5), 412, "token-used")
    answered(await write("PATCH", "/strict?id=eq.1", {"v": 3}, token=6), 204)


async def test_two_holders_of_one_token(write: Send) -> None:
    answered(await write("PATCH", "/accounts?id=eq.1", {"note": "x"}, token=5, holder="ann"), 204)
    answered(await write("PATCH", "/accounts?id=eq.1", {"note": "x"}, token=5, holder="bob"), 412, "token-duplicate")
    answered(await write("PATCH", "/accounts?id=eq.1", {"note": "x"}, token=5), 204)


async def test_epochs(write: Send) -> None:
    answered(await write("PATCH", "/accounts?id=eq.1", {"note": "x"}, token="1.0"), 204)
    answered(await write("PATCH", "/accounts?id=eq.1", {"note": "x"}, token=999), 412, "token-stale")


async def test_one_row_of_defaults(write: Send, tables: Database, client: httpx.AsyncClient) -> None:
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
