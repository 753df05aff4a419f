"""A gateway in front of two databases: each resource is fenced in one of them, and nothing is fenced across both."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from tests.databases.fleet import SOON, Fleet, fleet
from tests.doubles.s3 import S3Double
from tests.objects.clients import call, connect, outcome
from tests.postgres import Server
from tests.running import API_KEY
from tests.waiting import PATIENCE


@pytest_asyncio.fixture
async def gateway(request: pytest.FixtureRequest, postgres_server: Server) -> AsyncIterator[Fleet]:
    double, gives_up = S3Double(buckets=["northern", "southern"]), getattr(request, "param", PATIENCE)
    async with fleet(postgres_server, double, gives_up=gives_up) as one:
        yield one


@pytest_asyncio.fixture
async def api(gateway: Fleet) -> AsyncIterator[httpx.AsyncClient]:
    async with gateway.api() as client:
        yield client


def told(answer: httpx.Response) -> tuple[int, str]:
    document = answer.json()
    return answer.status_code, document.get("code") or document.get("type", "").rpartition("/")[2]


def write(api: httpx.AsyncClient, schema: str, row: int, status: str, token: str, **headers: str) -> Any:
    return api.patch(
        f"/v1/tables/orders?id=eq.{row}",
        json={"status": status},
        headers={"Fencing-Token": token, "Content-Profile": schema, **headers},
    )


async def test_each_row_key_and_lock_is_fenced_in_its_own_database(gateway: Fleet, api: httpx.AsyncClient) -> None:
    for schema in ("north", "south"):
        assert (await write(api, schema, 1, schema, "5")).status_code == 204
        assert await gateway.asked(schema, f"SELECT status FROM {schema}.orders WHERE id = 1") == [schema]
    for bucket in ("northern", "southern"):
        await call(connect(gateway.origin, "5").put_object, Bucket=bucket, Key="k", Body=b"x")
    for lock in ("job/1", "tenant-7/job", "tenant-8/job"):
        acquired = await api.post(f"/v1/leases/{lock}", json={"holder": "one", "barrier": True})
        assert acquired.status_code == 201, acquired.text
        assert (await api.get(f"/v1/leases/{lock}")).json()["holders"][0]["holder"] == "one"
        assert (await api.get(f"/v1/fences/{lock}")).json()["token"] == acquired.json()["token"]
    assert await gateway.fences("north") == ["job/1", "north.orders/1", "s3/northern/k", "tenant-8/job"]
    assert await gateway.fences("south") == ["s3/southern/k", "south.orders/1", "tenant-7/job"]


async def test_an_overtaken_holder_is_refused_in_each_database(gateway: Fleet, api: httpx.AsyncClient) -> None:
    for schema, bucket in (("north", "northern"), ("south", "southern")):
        for _ in range(4):  # the first ones are planned, and later ones have a known head
            assert (await write(api, schema, 2, "mine", "7")).status_code == 204
        assert (await api.post(f"/v1/fences/{schema}.orders/2/barrier", json={"token": "8"})).status_code == 200
        for _ in range(3):
            assert (await write(api, schema, 2, "zombie", "7")).status_code == 412
        assert await gateway.asked(schema, f"SELECT status FROM {schema}.orders WHERE id = 2") == ["mine"]
        assert (await api.post(f"/v1/fences/s3/{bucket}/z/barrier", json={"token": "8"})).status_code == 200
        refused = await outcome(connect(gateway.origin, "7").put_object, Bucket=bucket, Key="z", Body=b"late")
        assert refused[0] == 412
        listed = (await api.get(f"/v1/rejections?database={schema}")).json()["rejections"]
        assert {one["resource"] for one in listed} == {f"s3/{bucket}/z", f"{schema}.orders/2"}


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
    gateway: Fleet, api: httpx.AsyncClient, tokens: dict[str, str], schema: str
) -> None:
    before = [await gateway.fences(name) for name in ("north", "south")]
    row = {"id": 9, "status": "new"}
    answer = await api.post("/v1/tables/orders", json=row, headers={"Content-Profile": schema, **tokens})
    assert told(answer) in ((422, "crosses-databases"), (422, "resource-mismatch")), answer.text
    moved = await api.patch(
        "/v1/tables/orders?id=eq.1", json={"status": "x"}, headers={"Content-Profile": schema, **tokens}
    )
    assert moved.status_code in (422, 428), moved.text
    assert [await gateway.fences(name) for name in ("north", "south")] == before
    assert await gateway.asked(schema, f"SELECT id FROM {schema}.orders WHERE id = 9") == []


async def test_a_list_of_writes_is_for_one_database(gateway: Fleet, api: httpx.AsyncClient) -> None:
    def one(schema: str, token: str) -> dict[str, Any]:
        return {
            "method": "PATCH",
            "table": "orders",
            "schema": schema,
            "query": "id=eq.1",
            "body": {"status": "list"},
            "token": token,
        }

    for schema in ("north", "south"):
        assert (await api.post("/v1/transaction", json={"writes": [one(schema, "20")]})).status_code == 200
    across = await api.post("/v1/transaction", json={"writes": [one("north", "21"), one("south", "21")]})
    assert told(across) == (422, "crosses-databases")
    for schema in ("north", "south"):
        assert (await api.get(f"/v1/fences/{schema}.orders/1")).json()["token"] == "20"


async def test_leases_of_both_databases_are_renewed_together(api: httpx.AsyncClient) -> None:
    leases = []
    for lock in ("job/a", "tenant-7/a", "job/b", "tenant-7/b"):
        answer = (await api.post(f"/v1/leases/{lock}", json={"holder": "h", "ttl": 60})).json()
        leases.append({"resource": lock, "lease": answer["lease"]})
    lost = {"resource": "tenant-7/lost", "lease": leases[0]["lease"]}
    renewed = await api.put("/v1/leases", json={"leases": [*leases, lost]})
    assert renewed.status_code == 200, renewed.text
    assert [one["resource"] for one in renewed.json()["leases"]] == [one["resource"] for one in [*leases, lost]]
    assert [one["expires_in"] is None for one in renewed.json()["leases"]] == [False] * 4 + [True]
    assert int(renewed.headers["content-length"]) == len(renewed.content)
    for one in leases:
        assert (await api.delete(f"/v1/leases/{one['resource']}/{one['lease']}")).status_code == 204


async def test_a_lease_whose_name_looks_like_a_pattern_is_renewed_with_others(api: httpx.AsyncClient) -> None:
    leases = []
    for lock in ("south.*/x", "tenant-7/*", "job/a"):
        answer = (await api.post(f"/v1/leases/{lock}", json={"holder": "h", "ttl": 60})).json()
        leases.append({"resource": lock, "lease": answer["lease"]})
    renewed = await api.put("/v1/leases", json={"leases": leases})
    assert renewed.status_code == 200, renewed.text
    assert all(one["expires_in"] for one in renewed.json()["leases"])


async def test_credentials_are_for_resources_of_one_database(gateway: Fleet, api: httpx.AsyncClient) -> None:
    for resource, bucket in (("s3/southern/**", "southern"), ("s3/northern/**", "northern")):
        keys = await api.post("/v1/credentials", json={"resource": resource, "token": "30"})
        assert keys.status_code == 201, keys.text
        view = keys.json()
        client = connect(
            gateway.origin,
            access_key=view["access_key_id"],
            secret_key=view["secret_access_key"],
            aws_session_token=view["session_token"],
        )
        await call(client.put_object, Bucket=bucket, Key="credentials", Body=b"x")
    for across in ("s3/**", "tenant-7/**", "*/x", "**"):
        answer = await api.post("/v1/credentials", json={"resource": across, "token": "30"})
        expected = 201 if across == "tenant-7/**" else 422
        assert answer.status_code == expected, (across, answer.text)


async def test_requests_about_no_resource_may_name_their_database(api: httpx.AsyncClient) -> None:
    for resource in ("tenant-7/listed", "job/listed"):
        assert (await api.post(f"/v1/fences/{resource}/barrier", json={"token": "8"})).status_code == 200
    for path in ("/v1/fences", "/v1/leases", "/v1/events", "/v1/rejections", "/v1/record/head", "/v1/webhooks"):
        assert (await api.get(path)).json()["missing"] == [], path
        assert (await api.get(path, params={"database": "west"})).status_code == 400
        for database in ("north", "south"):
            assert (await api.get(path, params={"database": database})).status_code == 200, path
    names = [one["resource"] for one in (await api.get("/v1/fences?database=south")).json()["fences"]]
    assert "tenant-7/listed" in names
    assert "job/listed" not in names
    events = (await api.get("/v1/events?database=south&limit=1")).json()["events"]
    assert (await api.get(f"/v1/events/{events[0]['id']}?database=south")).status_code == 200
    assert (await api.get(f"/v1/events/{events[0]['id']}?database=north")).status_code == 404
    assert (await api.get("/v1/config")).json()["toml"].count("[[databases]]") == 2
    metrics = (await api.get("/v1/metrics")).text
    assert 'gateway_service_up{database="south",service="postgres"} 1.0' in metrics
    assert 'gateway_record_position{database="north"}' in metrics


async def test_strangers_are_not_told_the_names_of_databases(gateway: Fleet) -> None:
    async with httpx.AsyncClient(base_url=gateway.origin, timeout=PATIENCE) as stranger:
        for path in ("/v1/rejections", "/v1/events?database=west", "/v1/fences?database=north&database=south"):
            answer = await stranger.get(path)
            assert answer.status_code == 401
            assert "south" not in answer.text


async def test_the_page_shows_the_database_that_was_chosen(gateway: Fleet, api: httpx.AsyncClient) -> None:
    for schema in ("north", "south"):
        assert (await api.post(f"/v1/fences/{schema}.orders/77/barrier", json={"token": "8"})).status_code == 200
    headers = {"Sec-Fetch-Site": "same-origin"}
    async with httpx.AsyncClient(base_url=gateway.origin, headers=headers, timeout=PATIENCE) as browser:
        await browser.post("/ui/login", data={"api_key": API_KEY})
        chosen = await browser.get("/ui/?database=south")
        assert chosen.status_code == 200
        assert '<a href="/ui/?database=south" aria-current="true">south</a>' in chosen.text
        found = (await browser.get("/ui/resources")).text
        assert "south.orders/77" in found
        assert "north.orders/77" not in found
        await browser.get("/ui/?database=north")
        found = (await browser.get("/ui/resources")).text
        assert "north.orders/77" in found
        assert "south.orders/77" not in found


async def _is_down(api: httpx.AsyncClient) -> bool:
    return 'gateway_service_up{database="south",service="postgres"} 0.0' in (await api.get("/v1/metrics")).text


async def _until(condition: Any) -> None:
    async with asyncio.timeout(30):
        while not await condition():
            await asyncio.sleep(0.1)


async def test_a_database_that_is_down_takes_nothing_else_with_it(gateway: Fleet, api: httpx.AsyncClient) -> None:
    await others_go_on(gateway, api, "cut")


@pytest.mark.thorough
@pytest.mark.parametrize("gateway", [SOON], indirect=True, ids=[""])
async def test_a_database_that_is_paused_takes_nothing_else_with_it(gateway: Fleet, api: httpx.AsyncClient) -> None:
    await others_go_on(gateway, api, "pause")


async def others_go_on(gateway: Fleet, api: httpx.AsyncClient, trouble: str) -> None:
    held = (await api.post("/v1/leases/job/up", json={"holder": "h", "ttl": 60})).json()
    kept = (await api.post("/v1/leases/tenant-7/down", json={"holder": "h", "ttl": 60})).json()
    getattr(gateway.lines["south"], trouble)()
    try:
        lost = asyncio.create_task(_status(write(api, "south", 1, "down", "40")))
        assert (await write(api, "north", 1, "up", "40")).status_code == 204
        await call(connect(gateway.origin, "40").put_object, Bucket="northern", Key="up", Body=b"x")
        lease = {"resource": "job/up", "lease": held["lease"]}
        assert (await api.put("/v1/leases", json={"leases": [lease]})).status_code == 200
        both = [lease, {"resource": "tenant-7/down", "lease": kept["lease"]}]
        assert (await api.put("/v1/leases", json={"leases": both})).status_code == 503
        assert await lost == 503
        assert (await api.get("/v1/ready")).status_code == 204
        health = await api.get("/v1/health")
        assert health.status_code == 503
        states = health.json()["databases"]
        assert (states["north"]["postgres"], states["south"]["postgres"]) == ("ok", "unreachable")
        await _until(lambda: _is_down(api))  # answers of a moment ago count for a scrape
    finally:
        gateway.lines["south"].mend()
        gateway.lines["south"].resume()

    async def back() -> bool:
        return (await _status(write(api, "south", 1, "back", "41"))) == 204

    await _until(back)


async def _status(request: Any) -> int:
    answer: httpx.Response = await request
    return answer.status_code


@pytest.mark.thorough
async def test_lists_of_writes_for_a_paused_database_stay_within_its_memory(postgres_server: Server) -> None:
    """They are read before their database is known. All that wait for it hold its share, and no other one's."""
    server = {"memory": 3 * 1024 * 1024}
    async with fleet(postgres_server, gives_up=SOON, server=server) as gateway, gateway.api() as api:

        def listed(schema: str) -> Any:
            one = {"method": "PATCH", "table": "orders", "schema": schema, "query": "id=eq.1", "token": "5"}
            return api.post("/v1/transaction", json={"writes": [{**one, "body": {"status": "x" * 900_000}}]})

        gateway.lines["south"].pause()
        waiting = [asyncio.create_task(listed("south")) for _ in range(6)]
        assert (await listed("north")).status_code == 200
        answers = await asyncio.gather(*waiting)
        assert {one.status_code for one in answers} == {503}
        assert "All memory for requests of this database is in use." in [one.json()["detail"] for one in answers]
        gateway.lines["south"].resume()

        async def back() -> bool:
            return (await _status(listed("south"))) == 200

        await _until(back)


@pytest.mark.thorough
async def test_a_gateway_starts_while_one_of_its_databases_is_down(postgres_server: Server) -> None:
    async with fleet(postgres_server, cut="north") as gateway, gateway.api() as api:
        assert (await write(api, "south", 1, "up", "1")).status_code == 204
        assert (await write(api, "north", 1, "up", "1")).status_code == 503
        assert (await api.get("/readyz")).status_code == 204
        gateway.lines["north"].mend()

        async def up() -> bool:
            return (await _status(write(api, "north", 1, "up", "1"))) == 204

        await _until(up)
