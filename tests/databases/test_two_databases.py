"""A gateway in front of two databases: each resource is fenced in one of them, and nothing is fenced across both."""

import asyncio
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from gateway.changes.ownership import claim_if_new
from tests.databases.fleet import CALLERS, SOON, Fleet, behind_lines, calling, databases, fleet, settings, write
from tests.doubles.s3 import S3Double
from tests.identity_provider import AUDIENCE, ISSUER, Provider, claims, ec_key, token
from tests.objects.clients import call, connect, outcome
from tests.postgres import Server
from tests.record.receiver import SECRET, receiving
from tests.running import API_KEY, GRANTS, running
from tests.waiting import PATIENCE


def told(answer: httpx.Response) -> tuple[int, str]:
    document = answer.json()
    return answer.status_code, document.get("code") or document.get("type", "").rpartition("/")[2]


together = pytest.mark.asyncio(loop_scope="module")
"""Tests on the gateway that the module shares, and so in its loop."""


@together
async def test_each_row_key_and_lock_is_fenced_in_its_own_database(
    shared: Fleet, shared_api: httpx.AsyncClient
) -> None:
    for schema in ("north", "south"):
        assert (await write(shared_api, schema, 1, schema, "5")).status_code == 204
        assert await shared.asked(schema, f"SELECT status FROM {schema}.orders WHERE id = 1") == [schema]
    for bucket in ("northern", "southern"):
        await call(connect(shared.origin, "5").put_object, Bucket=bucket, Key="k", Body=b"x")
    for lock in ("job/1", "tenant-7/job", "tenant-8/job"):
        acquired = await shared_api.post(f"/v1/leases/{lock}", json={"holder": "one", "barrier": True})
        assert acquired.status_code == 201, acquired.text
        assert (await shared_api.get(f"/v1/leases/{lock}")).json()["holders"][0]["holder"] == "one"
        assert (await shared_api.get(f"/v1/fences/{lock}")).json()["token"] == acquired.json()["token"]
    north = {"job/1", "north.orders/1", "s3/northern/k", "tenant-8/job"}
    south = {"s3/southern/k", "south.orders/1", "tenant-7/job"}
    assert (north | south) & set(await shared.fences("north")) == north
    assert (north | south) & set(await shared.fences("south")) == south


@together
async def test_an_overtaken_holder_is_refused_in_each_database(shared: Fleet, shared_api: httpx.AsyncClient) -> None:
    for schema, bucket in (("north", "northern"), ("south", "southern")):
        for _ in range(4):  # the first ones are planned, and later ones have a known head
            assert (await write(shared_api, schema, 2, "mine", "7")).status_code == 204
        assert (await shared_api.post(f"/v1/fences/{schema}.orders/2/barrier", json={"token": "8"})).status_code == 200
        for _ in range(3):
            assert (await write(shared_api, schema, 2, "zombie", "7")).status_code == 412
        assert await shared.asked(schema, f"SELECT status FROM {schema}.orders WHERE id = 2") == ["mine"]
        assert (await shared_api.post(f"/v1/fences/s3/{bucket}/z/barrier", json={"token": "8"})).status_code == 200
        refused = await outcome(connect(shared.origin, "7").put_object, Bucket=bucket, Key="z", Body=b"late")
        assert refused[0] == 412
        listed = (await shared_api.get(f"/v1/rejections?database={schema}")).json()["rejections"]
        assert {one["resource"] for one in listed} >= {f"s3/{bucket}/z", f"{schema}.orders/2"}


@together
@pytest.mark.parametrize(
    ("tokens", "schema"),
    [
        ({"Fencing-Token": "south.orders/9=9, tenant-8/x=9"}, "south"),
        ({"Fencing-Token": "north.orders/9=9, tenant-7/x=9"}, "north"),
        ({"Fencing-Token": "9", "Fencing-Resource": "tenant-7/x"}, "north"),
        ({"Fencing-Token": "9", "Fencing-Resource": "job/x"}, "south"),
    ],
)
async def test_tokens_for_resources_of_the_other_database_are_refused(
    shared: Fleet, shared_api: httpx.AsyncClient, tokens: dict[str, str], schema: str
) -> None:
    before = [await shared.fences(name) for name in ("north", "south")]
    row = {"id": 9, "status": "new"}
    answer = await shared_api.post("/v1/tables/orders", json=row, headers={"Content-Profile": schema, **tokens})
    assert told(answer) in ((422, "crosses-databases"), (422, "resource-mismatch")), answer.text
    moved = await shared_api.patch(
        "/v1/tables/orders?id=eq.1", json={"status": "x"}, headers={"Content-Profile": schema, **tokens}
    )
    assert moved.status_code in (422, 428), moved.text
    assert [await shared.fences(name) for name in ("north", "south")] == before
    assert await shared.asked(schema, f"SELECT id FROM {schema}.orders WHERE id = 9") == []


@together
async def test_a_list_of_writes_is_for_one_database(shared: Fleet, shared_api: httpx.AsyncClient) -> None:
    def one(schema: str, token: str) -> dict[str, Any]:
        write = {"method": "PATCH", "table": "orders", "schema": schema, "query": "id=eq.3", "token": token}
        return {**write, "body": {"status": "list"}}

    for schema in ("north", "south"):
        assert (await shared_api.post("/v1/transaction", json={"writes": [one(schema, "20")]})).status_code == 200
    across = await shared_api.post("/v1/transaction", json={"writes": [one("north", "21"), one("south", "21")]})
    assert told(across) == (422, "crosses-databases")
    for schema in ("north", "south"):
        assert (await shared_api.get(f"/v1/fences/{schema}.orders/3")).json()["token"] == "20"


@pytest.mark.parametrize("order", [("north", "south"), ("south", "north")], ids="-".join)
async def test_the_roles_of_a_database_hold_for_each_write_to_it(
    postgres_server: Server, order: tuple[str, str]
) -> None:
    """South gives its callers no role, which they have in north, the default. So all writes to south are denied."""
    roles = [{"callers": ["another"], "role": "none"}]
    another = {"name": "another", "api_key": "a-key-of-another"}
    key = ec_key("one")
    async with behind_lines(postgres_server) as (_, _, listed), Provider(key).running() as provider:
        issuer = {"name": "id", "issuer": ISSUER, "audiences": [AUDIENCE], "keys_url": provider.url}
        grants = [*GRANTS, {"callers": ["id:*"], "actions": ["read", "write"], "everything": True}]
        given = databases(listed["north"], listed["south"], roles=roles)
        config = settings(given, callers=[*CALLERS, another], issuers=[issuer], grants=grants)
        assert await claim_if_new(config)
        async with running(config) as origin, calling(origin) as api:
            for proof in (API_KEY, token(key, claims(), "ES256")):
                api.headers["Authorization"] = f"Bearer {proof}"
                for schema in order:
                    write_of_a_list = {"method": "PATCH", "table": "orders", "schema": schema, "query": "id=eq.1"}
                    writes = [{**write_of_a_list, "token": "6", "body": {"status": "list"}}]
                    for answer in (
                        await write(api, schema, 1, "alone", "6"),
                        await api.post("/v1/transaction", json={"writes": writes}),
                    ):
                        assert (answer.status_code == 403) == (schema == "south"), answer.text
                        assert answer.is_success == (schema == "north"), answer.text


@together
async def test_leases_of_both_databases_are_renewed_together(shared_api: httpx.AsyncClient) -> None:
    leases = []
    for lock in ("job/a", "tenant-7/a", "south.*/x", "tenant-7/*"):
        answer = (await shared_api.post(f"/v1/leases/{lock}", json={"holder": "h", "ttl": 60})).json()
        leases.append({"resource": lock, "lease": answer["lease"]})
    lost = {"resource": "tenant-7/lost", "lease": leases[0]["lease"]}
    renewed = await shared_api.put("/v1/leases", json={"leases": [*leases, lost]})
    assert renewed.status_code == 200, renewed.text
    assert [one["resource"] for one in renewed.json()["leases"]] == [one["resource"] for one in [*leases, lost]]
    assert [one["expires_in"] is None for one in renewed.json()["leases"]] == [False] * 4 + [True]
    assert int(renewed.headers["content-length"]) == len(renewed.content)
    for one in leases:
        assert (await shared_api.delete(f"/v1/leases/{one['resource']}/{one['lease']}")).status_code == 204


@together
async def test_credentials_are_for_resources_of_one_database(shared: Fleet, shared_api: httpx.AsyncClient) -> None:
    for resource, bucket in (("s3/southern/**", "southern"), ("s3/northern/**", "northern")):
        keys = await shared_api.post("/v1/credentials", json={"resource": resource, "token": "30"})
        assert keys.status_code == 201, keys.text
        view = keys.json()
        client = connect(
            shared.origin,
            access_key=view["access_key_id"],
            secret_key=view["secret_access_key"],
            aws_session_token=view["session_token"],
        )
        await call(client.put_object, Bucket=bucket, Key="credentials", Body=b"x")
    for across in ("s3/**", "tenant-7/**", "*/x", "**"):
        answer = await shared_api.post("/v1/credentials", json={"resource": across, "token": "30"})
        expected = 201 if across == "tenant-7/**" else 422
        assert answer.status_code == expected, (across, answer.text)


async def _is_down(api: httpx.AsyncClient) -> bool:
    return 'gateway_service_up{database="south",service="postgres"} 0.0' in (await api.get("/v1/metrics")).text


async def _until_written(api: httpx.AsyncClient, schema: str, token: str) -> None:
    async with asyncio.timeout(PATIENCE):
        while (await write(api, schema, 1, "back", token)).status_code != 204:
            await asyncio.sleep(0.1)


@pytest.mark.parametrize(
    ("gateway", "trouble"),
    [(PATIENCE, "cut"), pytest.param(SOON, "pause", marks=pytest.mark.thorough)],
    indirect=["gateway"],
)
async def test_a_database_that_is_down_takes_nothing_else_with_it(
    gateway: Fleet, api: httpx.AsyncClient, trouble: str
) -> None:
    held = (await api.post("/v1/leases/job/up", json={"holder": "h", "ttl": 60})).json()
    kept = (await api.post("/v1/leases/tenant-7/down", json={"holder": "h", "ttl": 60})).json()
    getattr(gateway.lines["south"], trouble)()
    try:
        lost = asyncio.ensure_future(write(api, "south", 1, "down", "40"))
        assert (await write(api, "north", 1, "up", "40")).status_code == 204
        await call(connect(gateway.origin, "40").put_object, Bucket="northern", Key="up", Body=b"x")
        lease = {"resource": "job/up", "lease": held["lease"]}
        assert (await api.put("/v1/leases", json={"leases": [lease]})).status_code == 200
        both = [lease, {"resource": "tenant-7/down", "lease": kept["lease"]}]
        assert (await api.put("/v1/leases", json={"leases": both})).status_code == 503
        assert (await lost).status_code == 503
        assert (await api.get("/v1/ready")).status_code == 204
        health = await api.get("/v1/health")
        assert health.status_code == 503
        states = health.json()["databases"]
        assert (states["north"]["postgres"], states["south"]["postgres"]) == ("ok", "unreachable")
        async with asyncio.timeout(PATIENCE):
            while not await _is_down(api):  # answers of a moment ago count for a scrape
                await asyncio.sleep(0.1)
    finally:
        gateway.lines["south"].mend()
        gateway.lines["south"].resume()

    await _until_written(api, "south", "41")


@pytest.mark.thorough
async def test_a_gateway_starts_while_one_of_its_databases_is_down(postgres_server: Server) -> None:
    async with fleet(postgres_server, cut="north") as gateway, gateway.api() as api:
        assert (await write(api, "south", 1, "up", "1")).status_code == 204
        assert (await write(api, "north", 1, "up", "1")).status_code == 503
        assert (await api.get("/readyz")).status_code == 204
        gateway.lines["north"].mend()

        await _until_written(api, "north", "1")


# Memory: bodies that wait for a paused database use up the memory of that database, and no other one's. ---------------

SHARE = 4 * 1024 * 1024
"""Bytes for the bodies of one database. A third share reads those that tell their database."""
LARGE = "x" * (3 * 1024 * 1024)
CLIENTS = 2


def transaction(api: httpx.AsyncClient, schema: str, token: str) -> Any:
    write = {"method": "PATCH", "table": "orders", "schema": schema, "query": "id=eq.2", "token": token}
    return api.post("/v1/transaction", json={"writes": [{**write, "body": {"status": LARGE}}]})


def put(gateway: Fleet, bucket: str, token: str) -> Any:
    return call(connect(gateway.origin, token).put_object, Bucket=bucket, Key="large", Body=LARGE.encode())


async def memory(api: httpx.AsyncClient) -> float:
    lines = (await api.get("/v1/metrics")).text.splitlines()
    return float(next(line for line in lines if line.startswith("gateway_body_memory_bytes ")).split()[1])


@pytest.mark.thorough
async def test_large_bodies_for_a_paused_database_leave_room_for_the_others(postgres_server: Server) -> None:
    server = {"memory": 3 * SHARE, "share": 1}
    double = S3Double(buckets=["northern", "southern"])
    async with fleet(postgres_server, double, gives_up=SOON, server=server) as gateway, gateway.api() as api:
        for schema, bucket in (("north", "northern"), ("south", "southern")):
            assert (await write(api, schema, 1, LARGE, "1")).status_code == 204
            await put(gateway, bucket, "1")
        gateway.lines["south"].pause()
        waiting = [asyncio.create_task(write(api, "south", 1, LARGE, "2")) for _ in range(CLIENTS)]
        waiting += [asyncio.create_task(put(gateway, "southern", "2")) for _ in range(CLIENTS)]
        async with asyncio.timeout(PATIENCE):
            while await memory(api) < SHARE:
                await asyncio.sleep(0.05)
        try:
            # A list of writes is in memory before its database is known, so it cannot wait for a share.
            for _ in range(CLIENTS):
                refused = await transaction(api, "south", "2")
                assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
                assert "All bytes of memory for requests of this database are in use" in refused.text
            for token in ("2", "3"):
                assert (await write(api, "north", 1, LARGE, token)).status_code == 204
                assert (await transaction(api, "north", token)).status_code == 200
                await put(gateway, "northern", token)
            assert await memory(api) <= 2 * SHARE
        finally:
            gateway.lines["south"].resume()
        await asyncio.gather(*waiting, return_exceptions=True)
        assert await memory(api) == 0
        assert (await transaction(api, "south", "3")).status_code == 200


# Webhooks -----------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
async def test_webhooks_and_alarms_of_each_database_run_by_themselves(postgres_server: Server) -> None:
    """One that is down holds up none of the others' messages."""
    async with receiving() as receiver:
        webhook = {"name": "ops", "url": receiver.url, "secret": SECRET}
        alarm = {"name": "zombies", "webhooks": ["ops"], "more_than": 1, "minutes": 60}
        async with (
            fleet(postgres_server, gives_up=SOON, webhooks=[webhook], alarms=[alarm]) as gateway,
            gateway.api() as api,
        ):

            async def refuse(schema: str, times: int) -> None:
                lock = f"{schema}.orders/1"
                assert (await api.post(f"/v1/fences/{lock}/barrier", json={"token": "9"})).status_code == 200
                for _ in range(times):
                    assert (await write(api, schema, 1, "late", "8")).status_code == 412

            def told() -> list[str]:
                return [one["resource"] for one in receiver.entries() if one["kind"] == "rejection"]

            def alarms() -> int:
                return sum(one.type != "fencing.entries" for one in receiver.taken)

            # One refusal in each: an alarm counts the entries of its own database only.
            await refuse("north", 1)
            await refuse("south", 1)
            await receiver.until(lambda: len(told()) == 2)
            assert sorted(told()) == ["north.orders/1", "south.orders/1"]
            assert alarms() == 0
            gateway.lines["south"].pause()
            await refuse("north", 1)
            await receiver.until(lambda: len(told()) == 3 and alarms() == 1)
            gateway.lines["south"].resume()
            async with gateway.api() as later:
                for database in ("north", "south"):
                    shown = await later.get(f"/v1/webhooks?database={database}", timeout=PATIENCE)
                    assert shown.json()["webhooks"][0]["name"] == "ops"


async def test_no_body_of_a_caller_without_grants_is_read(postgres_server: Server) -> None:
    idle = {"name": "idle", "api_key": "a-key-without-grants"}
    async with fleet(postgres_server, callers=[*CALLERS, idle]) as gateway:
        where = urlsplit(gateway.origin).port
        for method, path in (
            ("PUT", "/v1/leases"),
            ("POST", "/v1/transaction"),
            ("POST", "/v1/credentials"),
            ("POST", "/v1/sequencers/check"),
        ):
            reader, writer = await asyncio.open_connection("127.0.0.1", where)
            head = f"{method} {path} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {idle['api_key']}"
            writer.write(f"{head}\r\nExpect: 100-continue\r\nContent-Length: 1000\r\n\r\n".encode())
            async with asyncio.timeout(PATIENCE):
                assert b" 403 " in await reader.readline(), path
            writer.close()
