"""Reads of the dialect, against real PostgreSQL. They need no token."""

from typing import Any

import httpx
import pytest

from tests.tables.asking import answered


@pytest.fixture
def dsn(shared_dsn: str) -> str:
    return shared_dsn


@pytest.mark.parametrize(
    ("query", "ids"),
    [
        ("", [1, 2, 3]),
        ("?id=eq.2", [2]),
        ("?id=neq.2", [1, 3]),
        ("?id=gt.1&id=lte.2", [2]),
        ("?id=gte.2&id=lt.3", [2]),
        ("?id=in.(3,1)", [1, 3]),
        ("?id=in.()", []),
        ("?id=not.in.(1)", [2, 3]),
        ("?owner=like.*n*", [1]),
        ("?owner=ilike.A*", [1]),
        ("?owner=match.^[ab]", [1, 2]),
        ("?owner=imatch.^A", [1]),
        ("?owner=not.eq.ann", [2, 3]),
        ("?note=is.null", [2]),
        ("?note=not.is.null", [1, 3]),
        ("?note=isdistinct.first", [2, 3]),
        ("?or=(id.eq.1,owner.eq.cid)", [1, 3]),
        ("?and=(id.gt.1,not.or(owner.eq.bob,note.is.null))", [3]),
        ("?not.and=(id.gt.0,id.lt.3)", [3]),
        ("?or=(id.eq.1,and(id.eq.2,owner.eq.cid))&balance=gt.0", [1]),
        ("?extra->a->>b=eq.x", [1]),
        ("?extra->n->0=eq.1", [1]),
        ('?extra=cs.{"n":[2]}', [1]),
        ('?"id"=eq.1', [1]),
        ("?id=eq.%201%20", [1]),
        ("?order=id.desc", [3, 2, 1]),
        ("?order=note.asc.nullsfirst,id", [2, 1, 3]),
        ("?order=extra->>a.desc.nullslast,id.desc", [1, 3, 2]),
        ("?order=id&limit=1&offset=1", [2]),
        ("?limit=0", []),
    ],
)
async def test_filters_and_orders(client: httpx.AsyncClient, query: str, ids: list[int]) -> None:
    target = f"/accounts{query}" if "order" in query else f"/accounts{query}{'&' if query else '?'}order=id"
    response = await client.get(target)
    answered(response, 200)
    assert [row["id"] for row in response.json()] == ids


@pytest.mark.parametrize(
    ("select", "expected"),
    [
        ("id,owner", {"id": 1, "owner": "ann"}),
        ("who:owner", {"who": "ann"}),
        ("id::text", {"id": "1"}),
        ("b:extra->a->>b,extra->n", {"b": "x", "n": [1, 2]}),
        ('"odd ""key":id'.replace('""', '\\"'), {'odd "key': 1}),
        ("n:balance::numeric(10,2)", {"n": 10.00}),
    ],
)
async def test_select(client: httpx.AsyncClient, select: str, expected: dict[str, Any]) -> None:
    response = await client.get("/accounts", params={"id": "eq.1", "select": select})
    answered(response, 200)
    assert response.json() == [expected]


async def test_counts_and_ranges(client: httpx.AsyncClient) -> None:
    response = await client.get("/accounts?limit=2", headers={"prefer": "count=exact"})
    assert (response.status_code, response.headers["content-range"]) == (206, "0-1/3")
    response = await client.get("/accounts", headers={"range": "1-1"})
    assert (response.status_code, response.headers["content-range"]) == (200, "1-1/*")
    response = await client.get("/accounts?offset=9", headers={"prefer": "count=exact"})
    answered(response, 416, "PGRST103")
    response = await client.head("/accounts", headers={"prefer": "count=exact"})
    assert (response.status_code, response.headers["content-range"], response.content) == (200, "0-2/3", b"")


async def test_one_object(client: httpx.AsyncClient) -> None:
    accept = {"accept": "application/vnd.pgrst.object+json"}
    response = await client.get("/accounts?id=eq.1&select=id", headers=accept)
    assert (response.status_code, response.json()) == (200, {"id": 1})
    answered(await client.get("/accounts", headers=accept), 406, "PGRST116")


async def test_views_are_read(client: httpx.AsyncClient) -> None:
    assert [row["id"] for row in (await client.get("/rich?order=id")).json()] == [2, 3]


@pytest.mark.parametrize(
    ("target", "status", "code"),
    [
        ("/nowhere", 404, "PGRST205"),
        ("/accounts/1", 404, "PGRST125"),
        ("/accounts?nope=eq.1", 400, "42703"),
        ("/accounts?select=nope", 400, "42703"),
        ("/accounts?id=huh.1", 400, "PGRST100"),
        ("/accounts?id=eq.x", 400, "22P02"),
        ("/accounts?id=like.1", 404, "42883"),
        ("/accounts?owner=match.(", 400, "2201B"),
        ("/accounts?select=id::nonsense", 400, "42704"),
        ("/accounts?select=owner(*)", 400, "PGRST200"),
        ("/accounts?select=balance.sum()", 400, "PGRST123"),
        ("/accounts?limit=-1", 416, "PGRST103"),
    ],
)
async def test_bad_reads(client: httpx.AsyncClient, target: str, status: int, code: str) -> None:
    answered(await client.get(target), status, code)


async def test_profiles(client: httpx.AsyncClient) -> None:
    response = await client.get("/accounts?id=eq.1", headers={"accept-profile": "public"})
    assert (response.status_code, response.headers["content-profile"]) == (200, "public")
    answered(await client.get("/fence", headers={"accept-profile": "fencing"}), 406, "PGRST106")
    answered(await client.get("/fence"), 404, "PGRST205")


async def test_options_and_unknown_verbs(client: httpx.AsyncClient) -> None:
    response = await client.options("/accounts")
    assert (response.status_code, response.headers["allow"]) == (200, "OPTIONS,GET,HEAD,POST,PUT,PATCH,DELETE")
    assert "PUT" not in (await client.options("/keyless")).headers["allow"]
    answered(await client.request("TRACE", "/accounts"), 405, "PGRST117")
