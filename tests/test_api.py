"""The fencing API over real HTTP: fences, barriers, the record of refusals, health; errors are problem documents."""

import re
import tempfile
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
import pytest_asyncio

from gateway.demo.embedded import EmbeddedPostgres
from gateway.fencing.record import EntryReason
from gateway.observe.events import ServiceUnreachable, WriteRefused
from tests.doubles.s3 import S3Double
from tests.objects.clients import connect, outcome
from tests.objects.object_gateway import Stage, staged
from tests.postgres import fresh_database
from tests.running import API_KEY, Events, config, running
from tests.waiting import PATIENCE

pytestmark = pytest.mark.asyncio(loop_scope="module")

PROBLEM = "application/problem+json"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(postgres_server: EmbeddedPostgres) -> AsyncIterator[Stage]:
    async with staged(postgres_server, S3Double(buckets=["bucket"])) as one:
        yield one


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def api(stage: Stage) -> AsyncIterator[httpx.AsyncClient]:
    async with stage.api() as client:
        yield client


@pytest.fixture
def job() -> str:
    """Return a unique resource."""
    return f"job/{uuid4().hex}"


def problem(answer: httpx.Response) -> tuple[int, str]:
    """Status and code of an error, which must be a problem document that agrees with itself."""
    assert answer.headers["content-type"] == PROBLEM
    document = answer.json()
    assert document["status"] == answer.status_code
    assert document["type"] == f"urn:fencing-gateway:{document['code']}"
    assert document["title"]
    assert document["detail"]
    assert "x-request-id" in answer.headers
    return answer.status_code, document["code"]


class TestFences:
    async def test_an_unknown_fence_has_no_token(self, api: httpx.AsyncClient, job: str) -> None:
        answer = await api.get(f"/v1/fences/{job}")
        assert answer.status_code == 200
        assert answer.json() == {
            "resource": job,
            "token": None,
            "raised_by": None,
            "caller": None,
            "raised_at": None,
        }

    async def test_a_raised_fence(self, api: httpx.AsyncClient, job: str) -> None:
        before = datetime.now(UTC) - timedelta(seconds=1)
        raised = await api.post(f"/v1/fences/{job}/barrier", json={"token": "2.34", "holder": "host 7"})
        assert raised.status_code == 200
        seen = (await api.get(f"/v1/fences/{job}")).json()
        assert raised.json() == seen
        assert (seen["token"], seen["raised_by"], seen["caller"]) == ("2.34", "host 7", "writer")
        assert before < datetime.fromisoformat(seen["raised_at"]) < datetime.now(UTC) + timedelta(seconds=1)

    @pytest.mark.parametrize(
        "resource",
        [
            *("s3/bucket/a%20b", "job/a%2Fb", "s3/bucket/a/..~/b", "s3/bucket//x", "s3/bucket/tail/"),
            *("x/barrier", "%C3%A9%25"),
        ],
    )
    async def test_names_with_escapes_stand_in_the_path(self, stage: Stage, resource: str) -> None:
        barrier = await stage.barrier(resource, "7")
        assert (barrier.status_code, barrier.json()["resource"]) == (200, resource)
        assert await stage.fence(resource) == "7"
        assert [
            row["resource"]
            for row in await stage.rows("SELECT resource FROM fencing.fence WHERE resource = $1", resource)
        ] == [resource]

    async def test_a_name_that_is_not_canonical_is_refused(self, api: httpx.AsyncClient) -> None:
        for path in ("job/%6b", "job/%2f", "job/a,b", "x" * 513, ""):
            answer = await api.get(f"/v1/fences/{path}")
            assert problem(answer) == (400, "resource-malformed"), path

    async def test_listing_by_prefix_in_pages(self, api: httpx.AsyncClient) -> None:
        prefix = f"list/{uuid4().hex}/"
        # Bytes, not a locale, give the order; and no letter of a prefix is a wildcard.
        names = [f"{prefix}{end}" for end in ("B", "a", "a_", "ab", "z")]
        for name in reversed(names):
            await api.post(f"/v1/fences/{name}/barrier", json={"token": "1"})
        found: list[str] = []
        after = ""
        while after is not None:
            page = (await api.get("/v1/fences", params={"prefix": prefix, "after": after, "limit": 2})).json()
            assert len(page["fences"]) <= 2
            found += [fence["resource"] for fence in page["fences"]]
            after = page["after"]
        assert found == names
        wild = (await api.get("/v1/fences", params={"prefix": f"{prefix}a_"})).json()
        assert [fence["resource"] for fence in wild["fences"]] == [f"{prefix}a_"]
        assert (await api.get("/v1/fences", params={"prefix": f"{prefix}%"})).json()["fences"] == []

    @pytest.mark.parametrize("query", ["limit=0", "limit=1001", "limit=x", "prefix=%00", "after=%00"])
    async def test_an_invalid_listing_is_refused(self, api: httpx.AsyncClient, query: str) -> None:
        assert problem(await api.get(f"/v1/fences?{query}")) == (400, "request-malformed")


class TestBarrier:
    async def test_it_raises_and_can_be_repeated(self, stage: Stage, job: str) -> None:
        for token in ("33", "33", "34"):
            assert (await stage.barrier(job, token)).json()["token"] == token
        assert await stage.rejections(resource=job) == []

    async def test_a_stale_one_is_refused_and_on_record(self, stage: Stage, job: str) -> None:
        await stage.barrier(job, "34", "bob")
        answer = await stage.barrier(job, "33", "ann")
        assert problem(answer) == (412, "token-stale")
        document = answer.json()
        assert (document["resource"], document["token"], document["fence"], document["raised_by"]) == (
            *(job, "33"),
            *("34", "bob"),
        )
        (rejection,) = await stage.rejections(resource=job)
        assert document["rejection"] == rejection["id"]
        assert rejection["request_id"] == answer.headers["x-request-id"]
        assert (rejection["method"], rejection["target"]) == ("POST", f"/v1/fences/{job}/barrier")
        assert (rejection["holder"], rejection["caller"], rejection["enforced"]) == ("ann", "writer", True)
        (told,) = [e for e in stage.events if isinstance(e, WriteRefused) and str(e.rejection.id) == rejection["id"]]
        assert told.plane == "api"
        assert await stage.fence(job) == "34"

    async def test_another_holder_with_the_same_token(self, stage: Stage, job: str) -> None:
        await stage.barrier(job, "34", "bob")
        assert problem(await stage.barrier(job, "34", "ann")) == (412, "token-duplicate")

    @pytest.mark.parametrize("token", ["", "-1", "033", "x", "1.2.3", "٣", " 1", "9" * 19, "9" * 41, str(2**63), "a=5"])
    async def test_a_malformed_token(self, stage: Stage, job: str, token: str) -> None:
        status, code = problem(await stage.barrier(job, token))
        assert (status, code) in [(400, "token-malformed"), (400, "request-malformed")]
        assert await stage.fence(job) is None

    @pytest.mark.parametrize(
        "content",
        [
            *("", "{", "[]", "null", "{}", '{"token": 33}', '{"token": null}', '{"token": ["33"]}'),
            *('{"token": "33", "tokne": "34"}', '{"token": "33", "holder": ""}', '{"token": "33", "holder": " x"}'),
            *('{"token": "33", "holder": "J\\u00fcrgen"}', '{"token": "33", "holder": "a\\u0000b"}'),
        ],
    )
    async def test_a_malformed_body(self, api: httpx.AsyncClient, stage: Stage, job: str, content: str) -> None:
        answer = await api.post(
            f"/v1/fences/{job}/barrier", content=content, headers={"content-type": "application/json"}
        )
        assert problem(answer) == (400, "request-malformed")
        assert await stage.fence(job) is None

    async def test_a_resource_that_is_not_canonical(self, api: httpx.AsyncClient) -> None:
        answer = await api.post("/v1/fences/a%2fb/barrier", json={"token": "1"})
        assert problem(answer) == (400, "resource-malformed")
        assert "a%2Fb" in answer.json()["advice"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def resource(stage: Stage) -> str:
    """A resource with 250 rejections, several of them at the same moment."""
    name = f"many/{uuid4().hex}"
    await stage.rows(
        "INSERT INTO fencing.intake (kind, resource, at, reason, enforced, epoch, value, holder, caller, method, "
        "target, request_id, fence_epoch, fence_value, fence_raised_at) "
        "SELECT 'rejection', $1, timestamptz '2026-01-01' + (i / 7) * interval '1 second', "
        "CASE i % 2 WHEN 0 THEN 'token-stale' ELSE 'token-used' END, true, 0, i, 'holder-' || i % 5, "
        "'caller-' || i % 3, 'PUT', '/x', 'r', 0, 999, timestamptz '2025-12-31' FROM generate_series(1, 250) AS i",
        name,
    )
    return name


class TestRejections:
    async def test_pages_go_through_all_of_them_once(self, api: httpx.AsyncClient, resource: str) -> None:
        found: list[dict[str, Any]] = []
        sizes: list[int] = []
        before: dict[str, str] = {}
        while True:
            page = (await api.get("/v1/rejections", params={"resource": resource, **before})).json()
            sizes.append(len(page["rejections"]))
            found += page["rejections"]
            if page["before"] is None:
                break
            before = {"before": page["before"]}
        assert sizes == [100, 100, 50]
        assert sorted(int(one["token"]) for one in found) == list(range(1, 251))
        assert [one["at"] for one in found] == sorted((one["at"] for one in found), reverse=True)

    @pytest.mark.parametrize(
        ("filters", "count"),
        [
            ({"holder": "holder-1"}, 50),
            ({"caller": "caller-0"}, 83),
            ({"reason": "token-used"}, 125),
            ({"reason": "token-used", "holder": "holder-1"}, 25),
            ({"since": "2026-01-01T00:00:35Z"}, 6),
            ({"since": "2026-01-01T01:00:35+01:00"}, 6),
            ({"holder": "nobody"}, 0),
        ],
    )
    async def test_filters(self, api: httpx.AsyncClient, resource: str, filters: dict[str, str], count: int) -> None:
        page = (await api.get("/v1/rejections", params={"resource": resource, "limit": "1000", **filters})).json()
        assert len(page["rejections"]) == count
        for name in filters.keys() & {"holder", "caller", "reason"}:
            assert {one[name] for one in page["rejections"]} <= {filters[name]}

    @pytest.mark.parametrize(
        "query",
        [
            "limit=0",
            "limit=1001",
            "before=x",
            "since=yesterday",
            "since=2026-01-01T00:00:00",
            "resorce=x",
            "holder=%00",
        ],
    )
    async def test_an_invalid_query_is_refused(self, api: httpx.AsyncClient, query: str) -> None:
        assert problem(await api.get(f"/v1/rejections?{query}")) == (400, "request-malformed")

    @pytest.mark.parametrize("of", ["", ".csv", ".ndjson", "/stream"])
    @pytest.mark.parametrize("what", ["rejections", "events"])
    async def test_an_unknown_reason_is_refused_with_those_there_are(
        self, api: httpx.AsyncClient, what: str, of: str
    ) -> None:
        refused = await api.get(f"/v1/{what}{of}?reason=bogus")
        assert problem(refused) == (400, "request-malformed")
        assert [reason for reason in EntryReason if f"'{reason}'" not in refused.json()["detail"]] == []

    async def test_a_page_after_an_unknown_entry_is_not_found(self, api: httpx.AsyncClient) -> None:
        assert problem(await api.get(f"/v1/rejections?before={uuid4()}")) == (404, "not-found")

    async def test_a_refused_put_is_on_record(self, stage: Stage) -> None:
        key = uuid4().hex
        await stage.barrier(f"s3/bucket/{key}", "34", "bob")
        refused = await outcome(connect(stage.origin, "33", "ann").put_object, Key=key, Body=b"x")
        assert refused == (412, "StaleFencingToken")
        (one,) = await stage.rejections(holder="ann", resource=f"s3/bucket/{key}")
        assert (one["token"], one["fence"], one["raised_by"], one["client"]) == ("33", "34", "bob", "127.0.0.1")


PROTECTED = [
    ("GET", "/v1/fences"),
    ("GET", "/v1/fences/job/1"),
    ("POST", "/v1/fences/job/1/barrier"),
    *(("GET", f"/v1/{what}{of}") for what in ("rejections", "events") for of in ("", ".csv", ".ndjson", "/stream")),
    ("GET", "/v1/record/head"),
    *(("GET", f"/v1/{what}/00000000-0000-0000-0000-000000000000") for what in ("rejections", "events", "incidents")),
    ("GET", "/v1/incidents"),
    ("POST", "/v1/incidents/00000000-0000-0000-0000-000000000000/acknowledgements"),
]


RECORD = ("", "/{id}", "/stream", ".csv", ".ndjson")


class TestCallers:
    @pytest.mark.parametrize(("method", "path"), PROTECTED)
    @pytest.mark.parametrize(
        "headers",
        [
            {},
            {"Authorization": "Bearer wrong"},
            {"Authorization": "Bearer"},
            {"Authorization": API_KEY},
            {"Authorization": f"Basic {API_KEY}"},
            {"apikey": ""},
            {"apikey": "wrong", "Authorization": f"Bearer {API_KEY}"},
        ],
    )
    async def test_a_caller_without_proof_is_refused(
        self, stage: Stage, method: str, path: str, headers: dict[str, str]
    ) -> None:
        async with httpx.AsyncClient(base_url=stage.origin, timeout=PATIENCE) as client:
            answer = await client.request(
                method, path, headers=headers, json={"token": "34"} if method == "POST" else None
            )
        assert problem(answer) == (401, "unauthenticated")
        assert answer.headers["www-authenticate"] == "Bearer"
        assert API_KEY not in answer.text
        assert await stage.fence("job/1") is None

    async def test_the_header_apikey_proves_a_caller_too(self, stage: Stage) -> None:
        async with httpx.AsyncClient(base_url=stage.origin, headers={"apikey": API_KEY}, timeout=PATIENCE) as client:
            assert (await client.get("/v1/fences")).status_code == 200


class TestDescription:
    async def test_openapi_describes_what_is_served(self, stage: Stage) -> None:
        async with httpx.AsyncClient(base_url=stage.origin, timeout=PATIENCE) as client:
            answer = await client.get("/v1/openapi.json")
            docs = await client.get("/v1/docs")
        assert answer.status_code == docs.status_code == 200
        document = answer.json()
        assert re.match(r"3\.\d+\.\d+$", document["openapi"])
        assert set(document["paths"]) == {
            *("/v1/leases", "/v1/leases/{resource}", "/v1/leases/{resource}/{lease}"),
            *("/v1/breaks/{resource}", "/v1/withdrawals/{resource}", "/v1/sequencers/check"),
            *("/v1/fences", "/v1/fences/{resource}", "/v1/fences/{resource}/barrier", "/v1/fences/{resource}/epoch"),
            *(f"/v1/{what}{of}" for what in ("rejections", "events") for of in RECORD),
            *("/v1/webhooks", "/v1/webhooks/{name}/test", "/v1/metrics", "/v1/reports/{resource}"),
            *("/v1/record/head", "/v1/credentials", "/v1/transaction", "/v1/health", "/v1/live", "/v1/ready"),
            *("/v1/config", "/v1/config/reload"),
            *("/v1/incidents", "/v1/incidents/{id}", "/v1/incidents/{id}/acknowledgements"),
        }
        assert dangling(document, document) == []
        for path in document["paths"].values():
            for operation in path.values():
                assert operation["summary"]
                named = {one["name"] for one in operation.get("parameters", []) if one["in"] == "path"}
                assert all(one["required"] for one in operation.get("parameters", []) if one["name"] in named)

    async def test_no_path_and_no_method(self, api: httpx.AsyncClient) -> None:
        assert problem(await api.get("/v1/nothing")) == (404, "not-found")
        wrong = await api.delete("/v1/fences")
        assert problem(wrong)[0] == 405
        assert "GET" in wrong.headers["allow"]


def dangling(document: Any, part: Any) -> list[str]:
    """References that lead nowhere."""
    if isinstance(part, dict):
        found = [one for value in part.values() for one in dangling(document, value)]
        reference = part.get("$ref")
        if isinstance(reference, str):
            node = document
            for name in reference.removeprefix("#/").split("/"):
                node = node.get(name, {})
            found += [] if node else [reference]
        return found
    return [one for value in part for one in dangling(document, value)] if isinstance(part, list) else []


class TestHealth:
    async def test_health_is_ok_if_all_services_answer(self, stage: Stage) -> None:
        async with httpx.AsyncClient(base_url=stage.origin, timeout=PATIENCE) as client:
            health, ready = await client.get("/v1/health"), await client.get("/v1/ready")
        assert (health.status_code, health.json()) == (200, {"postgres": "ok", "s3": "ok"})
        assert ready.status_code == 204

    async def test_the_store_is_down(self, postgres_server: EmbeddedPostgres) -> None:
        events = Events()
        async with (
            fresh_database(postgres_server) as dsn,
            running(config(dsn, "http://127.0.0.1:9"), events) as origin,
            httpx.AsyncClient(base_url=origin, timeout=PATIENCE) as client,
        ):
            health, ready = await client.get("/v1/health"), await client.get("/v1/ready")
        assert (health.status_code, health.json()) == (503, {"postgres": "ok", "s3": "unreachable"})
        assert problem(ready) == (503, "unavailable")
        assert "s3" in ready.json()["detail"]
        assert int(ready.headers["retry-after"]) >= 1
        assert any(isinstance(event, ServiceUnreachable) and event.service == "s3" for event in events)

    async def test_without_a_store_only_the_database_counts(self, postgres_server: EmbeddedPostgres) -> None:
        async with (
            fresh_database(postgres_server) as dsn,
            running(config(dsn)) as origin,
            httpx.AsyncClient(base_url=origin, timeout=PATIENCE) as client,
        ):
            assert (await client.get("/v1/health")).json() == {"postgres": "ok"}

    async def test_the_database_is_down(self) -> None:
        with tempfile.TemporaryDirectory(prefix="nopg") as directory:
            dsn = f"postgresql://postgres:@/postgres?host={Path(directory)}"
            async with running(config(dsn)) as origin:
                headers = {"Authorization": f"Bearer {API_KEY}"}
                async with httpx.AsyncClient(base_url=origin, headers=headers, timeout=PATIENCE) as client:
                    health, ready = await client.get("/v1/health"), await client.get("/v1/ready")
                    fence = await client.get("/v1/fences/job/1")
                    barrier = await client.post("/v1/fences/job/1/barrier", json={"token": "1"})
        assert (health.status_code, health.json()) == (503, {"postgres": "unreachable"})
        assert problem(ready) == (503, "unavailable")
        assert problem(fence) == (503, "unavailable")
        assert problem(barrier) == (503, "unavailable")
