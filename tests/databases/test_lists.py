"""Lists, entries, exports and streams of several databases are of one of them, which the request names."""

import asyncio
import json
from typing import Any

import httpx
import pytest
import pytest_asyncio

from tests.databases.fleet import CALLERS, Fleet, fleet
from tests.postgres import Server
from tests.running import GRANTS
from tests.waiting import PATIENCE

STRANGER = "a-key-of-the-stranger-0123456789abcdef"
"""The key of a caller that may write, and sees its own entries only."""
NOWHERE = "00000000-0000-4000-8000-000000000000"
OF_ONE = (
    *("events", "rejections", "incidents", "fences", "leases", "webhooks", "record/head"),
    *("events.csv", "events.ndjson", "rejections.csv", "rejections.ndjson", "events/stream", "rejections/stream"),
    *(f"events/{NOWHERE}", f"rejections/{NOWHERE}", f"incidents/{NOWHERE}"),
)
SECTIONS: dict[str, Any] = {
    "callers": [CALLERS[0], {"name": "stranger", "api_key": STRANGER}],
    "grants": [*GRANTS[:1], {"callers": ["stranger"], "actions": ["barrier"], "resources": ["**"]}],
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(postgres_server: Server) -> Any:
    async with fleet(postgres_server, **SECTIONS) as one:
        yield one


async def raised(api: httpx.AsyncClient, database: str, name: str, token: str = "8") -> str:
    """Put an entry on the record of a database. Return the resource."""
    resource = f"tenant-7/{name}" if database == "south" else f"job/{name}"
    answer = await api.post(f"/v1/fences/{resource}/barrier", json={"token": token})
    assert answer.status_code == (200 if token == "8" else 412), answer.text
    return resource


async def refused(api: httpx.AsyncClient, database: str, name: str) -> str:
    await raised(api, database, name)
    return await raised(api, database, name, "7")


async def listed(api: httpx.AsyncClient, path: str, **query: Any) -> dict[str, Any]:
    answer = await api.get(path, params=query)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


@pytest.mark.asyncio(loop_scope="module")
async def test_a_request_that_names_no_database_is_told_their_names(
    shared: Fleet, shared_api: httpx.AsyncClient
) -> None:
    answers = [await shared_api.get(f"/v1/{path}") for path in OF_ONE]
    answers += [await shared_api.get(f"/v1/events?{query}") for query in ("database=west", "database=")]
    answers += [await shared_api.get("/v1/events?database=north&database=south")]
    answers += [
        await shared_api.post(f"/v1/{path}") for path in (f"incidents/{NOWHERE}/acknowledgements", "webhooks/x/test")
    ]
    for answer in answers:
        assert (answer.status_code, answer.json()["code"]) == (400, "request-malformed"), answer.request.url
        assert answer.json()["advice"].endswith(": north, south."), answer.text
    async with httpx.AsyncClient(base_url=shared.origin, timeout=PATIENCE) as nobody:
        for path in OF_ONE:
            answer = await nobody.get(f"/v1/{path}")
            assert (answer.status_code, "south" in answer.text) == (401, False)


@pytest.mark.asyncio(loop_scope="module")
async def test_each_list_is_of_the_database_that_it_names(shared: Fleet, shared_api: httpx.AsyncClient) -> None:
    api = shared_api
    for database, other in (("north", "south"), ("south", "north")):
        resource = await refused(api, database, "x")
        query = {"database": database, "resource": resource}
        (entry,) = (await listed(api, "/v1/rejections", **query))["rejections"]
        assert (await listed(api, "/v1/rejections", **{**query, "database": other}))["rejections"] == []
        for kind in ("events", "rejections", "incidents"):
            path = f"/v1/{kind}/{entry['id']}"
            assert (await api.get(path, params={"database": database})).status_code == 200
            assert (await api.get(path, params={"database": other})).status_code == 404
        (fence,) = (await listed(api, "/v1/fences", database=database, prefix=resource))["fences"]
        assert fence["resource"] == resource
        for form in ("csv", "ndjson"):
            assert resource in (await api.get(f"/v1/events.{form}", params=query)).text
        noted = await api.post(
            f"/v1/incidents/{entry['id']}/acknowledgements?database={database}", json={"note": "seen"}
        )
        assert noted.status_code == 200, noted.text
        query = {"database": database, "kind": "incident-acknowledged"}
        assert (await listed(api, "/v1/events", **query))["total"] == 1
        assert resource in (await api.get(f"/v1/reports/{resource}")).text  # the name tells the database


@pytest.mark.asyncio(loop_scope="module")
async def test_a_stream_is_of_the_database_that_it_names(shared_api: httpx.AsyncClient) -> None:
    async with shared_api.stream("GET", "/v1/events/stream?database=south&kind=barrier") as answer:
        expected = ""
        async with asyncio.timeout(30):
            async for line in answer.aiter_lines():
                if line.startswith("id:") and not expected:
                    await raised(shared_api, "north", "live")
                    expected = await raised(shared_api, "south", "live")
                if line.startswith("data:") and json.loads(line.removeprefix("data:"))["resource"] == expected:
                    break
                assert "job/live" not in line


@pytest.mark.asyncio(loop_scope="module")
async def test_a_caller_without_the_grant_sees_its_own_entries_only(
    shared: Fleet, shared_api: httpx.AsyncClient
) -> None:
    await raised(shared_api, "north", "of-another")
    headers = {"Authorization": f"Bearer {STRANGER}"}
    async with httpx.AsyncClient(base_url=shared.origin, headers=headers, timeout=PATIENCE) as stranger:
        for database in ("north", "south"):
            own = await raised(stranger, database, "own")
            found = (await listed(stranger, "/v1/events", database=database))["events"]
            assert [one["resource"] for one in found if one["kind"] == "barrier"] == [own]
        assert (await stranger.get("/v1/leases?database=south")).status_code == 403
    for database, count in (("north", 0), ("south", 1)):
        query = {"database": database, "reason": "denied", "caller": "stranger"}
        assert (await listed(shared_api, "/v1/rejections", **query))["total"] == count


async def test_a_database_that_is_down_takes_no_list_of_another_with_it(gateway: Fleet, api: httpx.AsyncClient) -> None:
    resource = await refused(api, "north", "x")
    gateway.lines["south"].cut()
    assert (await api.get("/v1/events?database=south")).status_code == 503
    assert resource in (await api.get("/v1/events.ndjson?database=north")).text
