"""A slash that a client has encoded names no other resource: each way in refuses it, with the right spelling."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import asyncpg
import httpx
import pytest
import pytest_asyncio

from gateway.demo.embedded import EmbeddedPostgres
from tests.doctor.test_doctor import execute
from tests.doubles.s3 import S3Double, serve
from tests.postgres import as_gateway, fresh_database
from tests.running import API_KEY, KEYS, config, running
from tests.waiting import PATIENCE

pytestmark = pytest.mark.asyncio(loop_scope="module")

TABLES = """
CREATE TABLE acct (id bigint PRIMARY KEY, v text);
CREATE TABLE txt (id text PRIMARY KEY, v text);
CREATE TABLE pairs (a text, b text, v text, PRIMARY KEY (a, b));
CREATE TABLE orders (id bigint PRIMARY KEY, note text, v text);
CREATE TABLE paths (path text PRIMARY KEY, v text);
CREATE TABLE "a/b" (id text PRIMARY KEY, v text);
CREATE FUNCTION touch() RETURNS void LANGUAGE sql VOLATILE AS $$ UPDATE acct SET v = 'touched' $$;
INSERT INTO acct VALUES (7, 'new');
"""
RULES = {
    "tables": [
        {"name": "public.orders", "resource": "order/{note}"},
        {"name": "public.paths", "resource": "{path}"},
    ],
    "objects": [
        {"match": "bucket/reports/{day}/**", "resource": "day/{day}"},
        {"match": "uploads/**", "resource": "{bucket}/{key}"},
    ],
}
LEASE = str(uuid4())

MEANT = {
    "public.acct%2F7": "public.acct/7",
    "public.txt%2Fc%252Fd": "public.txt/c%2Fd",
    "public.txt%2Fa%20b": "public.txt/a%20b",
    "public.pairs/x%2Fz": "public.pairs/x/z",
    "order%2F5": "order/5",
    "s3%2Fbucket%2Fk": "s3/bucket/k",
    "s3/bucket/a%2Fb": "s3/bucket/a/b",
    "day%2Fmonday": "day/monday",
    "public.acct/7%2F8/9": "public.acct/7/8/9",
    "job/a%2Fb": "job/a/b",
}
"""Names that no row has, each with the spelling to use. One that names nothing yet is decoded as a whole."""

NAMES_OF_ROWS = ["public.txt/c%2Fd", "public.pairs/x%2Fy/z", "order/a%2Fb", "public.a%2Fb/7", "public.a%2Fb/7%2F8"]

AMBIGUOUS = {"public.acct%2F7", "order%2F5", "s3%2Fbucket%2Fk", "day%2Fmonday"}
"""Names of rows by the template ``{path}``, too."""


@dataclass(frozen=True, slots=True)
class World:
    """A gateway with tables and a bucket. ``api`` is a client of its own."""

    dsn: str
    api: httpx.AsyncClient

    async def named(self) -> set[str]:
        """Return the names of all fences and locks."""
        connection = await asyncpg.connect(self.dsn)
        try:
            found = await connection.fetch("SELECT resource FROM fencing.fence UNION SELECT resource FROM fencing.lock")
        finally:
            await connection.close()
        return {row["resource"] for row in found}


async def a_world(server: EmbeddedPostgres, rules: dict[str, Any]) -> AsyncIterator[World]:
    async with fresh_database(server) as dsn, serve(S3Double(buckets=["bucket"])) as endpoint:
        await execute(dsn, TABLES)
        callers = [{"name": "writer", "groups": ["admins"], **KEYS}]
        postgres = {"dsn": as_gateway(dsn), "functions": ["public.touch"]}
        async with (
            running(config(dsn, endpoint, callers=callers, postgres=postgres, **rules)) as origin,
            httpx.AsyncClient(base_url=origin, headers={"Authorization": f"Bearer {API_KEY}"}, timeout=PATIENCE) as api,
        ):
            yield World(dsn, api)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(postgres_server: EmbeddedPostgres) -> AsyncIterator[World]:
    plain = {**RULES, "tables": RULES["tables"][:1]}
    async for one in a_world(postgres_server, plain):
        yield one


LATE = {"method": "DELETE", "table": "acct", "query": "v=eq.nothing"}
WAYS: dict[str, tuple[str, str, Any]] = {
    "acquire": ("POST", "/v1/leases/{name}", {"holder": "a"}),
    "inspect": ("GET", "/v1/leases/{name}", None),
    "withdraw": ("POST", "/v1/withdrawals/{name}", {"holder": "a", "request": "r"}),
    "read": ("GET", "/v1/fences/{name}", None),
    "barrier": ("POST", "/v1/fences/{name}/barrier", {"token": "34"}),
    "epoch": ("POST", "/v1/fences/{name}/epoch", {"expected": "34", "reason": "a test"}),
    "credentials": ("POST", "/v1/credentials", {"resource": "{name}", "token": "34"}),
    "sequencer": ("POST", "/v1/sequencers/check", {"sequencer": "{name}:exclusive:34:AAAA"}),
    "call": ("POST", "/v1/tables/rpc/touch", {}),
    "update": ("PATCH", "/v1/tables/acct?v=eq.nothing", {"v": "late"}),
    "delete": ("DELETE", "/v1/tables/acct?v=eq.nothing", None),
    "transaction": ("POST", "/v1/transaction", {"writes": [LATE | {"token": "34", "resource": "{name}"}]}),
    "acquire, by the query": ("POST", "/v1/lease?resource={query}", {"holder": "a"}),
    "barrier, by the query": ("POST", "/v1/fence/barrier?resource={query}", {"token": "34"}),
}


def filled(body: Any, name: str) -> Any:
    if isinstance(body, dict):
        return {key: filled(value, name) for key, value in body.items()}
    if isinstance(body, list):
        return [filled(one, name) for one in body]
    return body.replace("{name}", name) if isinstance(body, str) else body


async def sent(world: World, way: str, name: str) -> httpx.Response:
    method, path, body = WAYS[way]
    url = path.replace("{name}", name).replace("{query}", quote(name, safe=""))
    headers = {"Fencing-Token": "34", "Fencing-Resource": name} if "/v1/tables/" in path else {}
    return await world.api.request(method, url, json=filled(body, name), headers=headers)


@pytest.mark.parametrize("way", WAYS)
async def test_a_name_that_means_another_one_is_refused_with_its_spelling(world: World, way: str) -> None:
    before = await world.named()
    for name, meant in MEANT.items():
        answer = await sent(world, way, name)
        assert (answer.status_code, answer.json()["code"]) == (400, "resource-malformed"), (name, answer.text)
        assert f"The right spelling is {meant}. " in answer.text
    assert await world.named() == before


@pytest.mark.parametrize("way", WAYS)
async def test_a_value_of_a_row_may_have_a_slash(world: World, way: str) -> None:
    for name in NAMES_OF_ROWS:
        answer = await sent(world, way, name)
        assert answer.status_code not in (404, 405), answer.text
        if answer.status_code >= 400:
            assert answer.json()["code"] != "resource-malformed", answer.text


async def test_a_name_that_two_rules_make_is_refused(postgres_server: EmbeddedPostgres) -> None:
    async for world in a_world(postgres_server, RULES):
        for name in AMBIGUOUS:
            answer = await sent(world, "barrier", name)
            assert answer.status_code == 400, answer.text
            assert f"{name} is the name of a row, and may also stand for {MEANT[name]}." in answer.text
        assert (await sent(world, "barrier", "x%2Fy")).status_code == 200
        assert await world.named() == {"x%2Fy"}


async def test_clients_that_encode_each_slash_name_the_resource_in_the_query(world: World) -> None:
    """The story of a takeover, with the requests of a client that is made from the OpenAPI document."""
    lock = {"resource": "job/1"}
    lease = (await world.api.post("/v1/lease", params=lock, json={"holder": "a"})).json()
    assert (lease["resource"], (await world.api.get("/v1/lease", params=lock)).json()["token"]) == (
        "job/1",
        lease["token"],
    )
    taken = await world.api.post("/v1/leases/job/1", json={"holder": "b"})
    assert taken.status_code == 409, "it is one lock, whatever spells it"
    one = f"/v1/lease/{lease['lease']}"
    assert (await world.api.put(one, params=lock, json={})).status_code == 200
    row = {"resource": "public.acct/7"}
    raised = (await world.api.post("/v1/fence/barrier", params=row, json={"token": "34"})).json()
    assert (raised["resource"], raised["token"]) == ("public.acct/7", "34")
    assert (await world.api.get("/v1/fence", params=row)).json() == raised
    zombie = await world.api.patch("/v1/tables/acct?id=eq.7", json={"v": "late"}, headers={"Fencing-Token": "33"})
    assert (zombie.status_code, zombie.json()["code"]) == (412, "token-stale")
    assert (await world.api.delete(one, params=lock)).status_code == 204


async def test_leases_that_were_given_under_such_a_name_go_on(world: World) -> None:
    """The table of the row is gone, and so is the reason why its name was accepted."""
    name = "public.gone/x%2Fy"
    await execute(world.dsn, "CREATE TABLE gone (id text PRIMARY KEY)")
    leases = [(await world.api.post(f"/v1/leases/{one}", json={"holder": "a"})).json() for one in (name, "job/other")]
    await execute(world.dsn, "DROP TABLE gone")
    renewed = await world.api.put(
        "/v1/leases", json={"leases": [{k: one[k] for k in ("resource", "lease")} for one in leases]}
    )
    assert all(one["expires_in"] for one in renewed.json()["leases"]), renewed.text
    assert (await world.api.put(f"/v1/leases/{name}/{leases[0]['lease']}", json={})).status_code == 200
    assert (await world.api.delete(f"/v1/leases/{name}/{leases[0]['lease']}")).status_code == 204


async def test_a_name_that_cannot_be_decoded_has_no_other_spelling(world: World) -> None:
    for name in ("a%00%2Fb", "a%FF%2Fb"):
        answer = await world.api.get(f"/v1/fences/{name}")
        assert answer.status_code == 400, answer.text
    assert "spelling is" not in answer.json()["advice"]


async def test_the_record_is_searched_for_any_name(world: World) -> None:
    for path in ("/v1/events", "/v1/rejections", "/v1/incidents", "/v1/events.ndjson"):
        assert (await world.api.get(path, params={"resource": "job%2F1"})).status_code == 200


@pytest.mark.parametrize(
    "query", ["", "?resource=", "?resource=a&resource=b", "?resource=a%20b", "?resource=a/b%0A", "?resource=a%FF%252Fb"]
)
async def test_a_query_without_one_name_is_refused(world: World, query: str) -> None:
    answer = await world.api.post(f"/v1/lease{query}", json={"holder": "a"})
    assert (answer.status_code, answer.json()["code"]) == (400, "resource-malformed")


async def test_the_name_is_no_way_around_the_method_of_a_path(world: World) -> None:
    for method, path in (("POST", "/v1/fence?resource=x/barrier"), ("PUT", f"/v1/lease?resource=x/{LEASE}")):
        assert (await world.api.request(method, path, json={"token": "1"})).status_code == 405


async def test_the_document_has_no_name_in_a_path(world: World) -> None:
    paths = (await world.api.get("/v1/openapi.json")).json()["paths"]
    named = {path for path, one in paths.items() if "'resource'" in str(one.get("parameters", one)) and "/v1/" in path}
    assert {"/v1/lease", "/v1/lease/{lease}", "/v1/fence", "/v1/fence/barrier", "/v1/fence/epoch"} < set(paths)
    assert {"/v1/break", "/v1/withdrawal", "/v1/report"} < set(paths)
    assert named
    assert not [path for path in paths if "{resource}" in path]
