"""The fencing API over real HTTP: fences, barriers, callers, health; errors are problem documents."""

import asyncio
import re
import tempfile
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock
from uuid import uuid4

import asyncpg
import httpx
import pytest
import pytest_asyncio
from jsonschema_rs import Draft202012Validator

from gateway import api as gateway_api
from gateway.api import ROUTES
from gateway.api.authorisation import About
from gateway.api.openapi import document
from gateway.api.routes import Home, Route
from gateway.demo.embedded import EmbeddedPostgres
from gateway.errors import BodyTooLarge
from gateway.observe.events import ServiceUnreachable, WriteRefused
from gateway.routing import Databases, first_working
from tests.databases.fleet import Line, calling
from tests.doubles.s3 import S3Double
from tests.objects.clients import call, connect, outcome
from tests.objects.object_gateway import Stage, staged
from tests.postgres import fresh_database
from tests.running import API_KEY, Events, config, running
from tests.waiting import PATIENCE

served = pytest.mark.asyncio(loop_scope="module")
"""Tests on the gateway that the module shares, and so in its loop."""


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
    assert answer.headers["content-type"] == "application/problem+json"
    document = answer.json()
    assert document["status"] == answer.status_code
    assert document["type"] == f"urn:fencing-gateway:{document['code']}"
    assert document["title"]
    assert document["detail"]
    assert "x-request-id" in answer.headers
    return answer.status_code, document["code"]


@served
class TestFences:
    async def test_a_raised_fence(self, api: httpx.AsyncClient, job: str) -> None:
        unknown = (await api.get(f"/v1/fences/{job}")).json()
        assert unknown == {"resource": job} | dict.fromkeys(("token", "raised_by", "caller", "raised_at"))
        before = datetime.now(UTC) - timedelta(seconds=1)
        raised = await api.post(f"/v1/fences/{job}/barrier", json={"token": "2.34", "holder": "host 7"})
        assert raised.status_code == 200
        seen = (await api.get(f"/v1/fences/{job}")).json()
        assert raised.json() == seen
        assert (seen["token"], seen["raised_by"], seen["caller"]) == ("2.34", "host 7", "writer")
        assert before < datetime.fromisoformat(seen["raised_at"]) < datetime.now(UTC) + timedelta(seconds=1)

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

    async def test_an_invalid_listing_is_refused(self, api: httpx.AsyncClient) -> None:
        for query in ("limit=0", "limit=1001", "limit=x", "prefix=%00", "after=%00"):
            assert problem(await api.get(f"/v1/fences?{query}")) == (400, "request-malformed"), query


@served
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
        told = [document[fact] for fact in ("resource", "token", "fence", "raised_by")]
        assert told == [job, "33", "34", "bob"]
        (rejection,) = await stage.rejections(resource=job)
        assert document["rejection"] == rejection["id"]
        assert rejection["request_id"] == answer.headers["x-request-id"]
        assert (rejection["method"], rejection["target"]) == ("POST", f"/v1/fences/{job}/barrier")
        assert (rejection["holder"], rejection["caller"], rejection["enforced"]) == ("ann", "writer", True)
        (event,) = [e for e in stage.events if isinstance(e, WriteRefused) and str(e.rejection.id) == rejection["id"]]
        assert event.plane == "api"
        assert await stage.fence(job) == "34"

    async def test_a_malformed_body(self, api: httpx.AsyncClient, stage: Stage, job: str) -> None:
        path, headers = f"/v1/fences/{job}/barrier", {"content-type": "application/json"}
        for content in (
            *("", "{", "[]", "null", "{}", '{"token": 33}', '{"token": null}', '{"token": ["33"]}'),
            *('{"token": "33", "tokne": "34"}', '{"token": "33", "holder": ""}', '{"token": "33", "holder": " x"}'),
            *('{"token": "33", "holder": "J\\u00fcrgen"}', '{"token": "33", "holder": "a\\u0000b"}'),
        ):
            answer = await api.post(path, content=content, headers=headers)
            assert problem(answer) == (400, "request-malformed"), content
        assert await stage.fence(job) is None


WITHOUT_PROOF: list[dict[str, str]] = [
    *({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Bearer"}, {"Authorization": API_KEY}),
    *({"Authorization": f"Basic {API_KEY}"}, {"apikey": ""}, {"apikey": "wrong", "Authorization": f"Bearer {API_KEY}"}),
]
RECORD = ("", "/{id}", "/stream", ".csv", ".ndjson")


@served
class TestCallers:
    async def test_a_caller_without_proof_is_refused(self, stage: Stage) -> None:
        async with httpx.AsyncClient(base_url=stage.origin, timeout=PATIENCE) as client:
            for headers in WITHOUT_PROOF:
                answer = await client.post("/v1/fences/job/1/barrier", headers=headers, json={"token": "34"})
                assert problem(answer) == (401, "unauthenticated"), headers
                assert answer.headers["www-authenticate"] == "Bearer"
                assert API_KEY not in answer.text
        assert await stage.fence("job/1") is None

    async def test_the_header_apikey_proves_a_caller_too(self, stage: Stage) -> None:
        async with httpx.AsyncClient(base_url=stage.origin, headers={"apikey": API_KEY}, timeout=PATIENCE) as client:
            assert (await client.get("/v1/fences")).status_code == 200


async def test_the_description_is_made_once(postgres_server: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch) -> None:
    """Making it takes longer than most requests do, and any stranger may ask for it."""
    made = []

    def noted(routes: Iterable[Route]) -> dict[str, Any]:
        made.append(routes)
        return document(routes)

    monkeypatch.setattr(gateway_api, "document", noted)
    gateway_api._described.cache_clear()
    async with (
        fresh_database(postgres_server) as dsn,
        running(config(dsn)) as origin,
        httpx.AsyncClient(base_url=origin, timeout=PATIENCE) as client,
    ):
        answers = [await client.get("/v1/openapi.json") for _ in range(3)]
        head = await client.head("/v1/openapi.json")
    assert len(made) == 1
    assert len({answer.content for answer in answers}) == 1
    assert answers[0].headers["content-type"] == head.headers["content-type"] == "application/json"
    assert (head.status_code, head.content) == (200, b"")


@served
class TestDescription:
    async def test_openapi_describes_what_is_served(self, stage: Stage) -> None:
        async with httpx.AsyncClient(base_url=stage.origin, timeout=PATIENCE) as client:
            answer = await client.get("/v1/openapi.json")
            docs = await client.get("/v1/docs")
        assert answer.status_code == docs.status_code == 200
        document = answer.json()
        assert re.match(r"3\.\d+\.\d+$", document["openapi"])
        assert set(document["paths"]) == {
            *("/v1/leases", "/v1/lease", "/v1/lease/{lease}", "/v1/break", "/v1/withdrawal", "/v1/sequencers/check"),
            *("/v1/fences", "/v1/fence", "/v1/fence/barrier", "/v1/fence/epoch"),
            *(f"/v1/{what}{of}" for what in ("rejections", "events") for of in RECORD),
            *("/v1/webhooks", "/v1/webhooks/{name}/test", "/v1/metrics", "/v1/report"),
            *("/v1/record/head", "/v1/credentials", "/v1/transaction", "/v1/health", "/v1/live", "/v1/ready"),
            *("/v1/config", "/v1/config/reload"),
            *("/v1/incidents", "/v1/incidents/{id}", "/v1/incidents/{id}/acknowledgements"),
        }
        assert dangling(document, document) == []
        assert document["components"]["securitySchemes"], "callers have keys"
        for path in document["paths"].values():
            for operation in path.values():
                assert operation["summary"]
                named = {one["name"] for one in operation.get("parameters", []) if one["in"] == "path"}
                assert all(one["required"] for one in operation.get("parameters", []) if one["name"] in named)

    async def test_no_path_and_no_method(self, api: httpx.AsyncClient) -> None:
        assert problem(await api.get("/v1/nothing")) == (404, "not-found")
        for method, path, allowed in (
            ("DELETE", "/v1/fences", "GET"),
            ("OPTIONS", "/v1/fences/x/barrier", "GET, POST"),
            ("PATCH", "/v1/lease?resource=x", "GET, POST"),
            ("POST", "/v1/livez", None),
        ):
            wrong = await api.request(method, path)
            assert problem(wrong)[0] == (404 if allowed is None else 405), path
            assert wrong.headers.get("allow") == allowed, path
        moved = await api.get("/v1/events/?limit=1")
        assert (moved.status_code, moved.headers["location"]) == (307, "/v1/events?limit=1")


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


@served
class TestHealth:
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


# Health of buckets, and what is at the root --------------------------------------------------------------------------


async def test_callers_are_told_what_the_stores_of_their_buckets_lack(postgres_server: EmbeddedPostgres) -> None:
    double = S3Double(buckets=["bucket", "unread"])
    double.behave(ignored_conditions=frozenset({"DeleteObject"}))
    async with staged(postgres_server, double) as stage, stage.api() as api:
        journal = {"mode": "off", "state": "ok", "term": 0, "snapshot": 0, "pending": 0, "lag_seconds": 0.0}
        assert (await api.get("/v1/health")).json() == {"postgres": "ok", "s3": "ok", "journal": journal}
        await call(connect(stage.origin, "1").put_object, Key="k", Body=b"x")
        assert (await api.get("/v1/health")).json() == {
            "postgres": "ok",
            "s3": "ok",
            "journal": journal,
            "buckets": {
                "bucket": {
                    "writable": True,
                    "missing": {
                        "delete-if-match": "Deletes leave tombstones.",
                        "delete-race": "Deletes leave tombstones.",
                    },
                }
            },
        }
        async with httpx.AsyncClient(base_url=stage.origin, timeout=PATIENCE) as anybody:
            assert (await anybody.get("/v1/health")).json() == {"postgres": "ok", "s3": "ok"}


async def test_a_bucket_that_cannot_be_fenced_is_no_reason_to_be_ill(postgres_server: EmbeddedPostgres) -> None:
    double = S3Double(buckets=["bucket"])
    double.behave(ignored_conditions=frozenset({"PutObject:If-Match"}))
    async with staged(postgres_server, double) as stage, stage.api() as api:
        assert (await outcome(connect(stage.origin, "1").put_object, Key="k", Body=b"x"))[0] == 501
        health = await api.get("/v1/health")
        assert health.status_code == 200
        bucket = health.json()["buckets"]["bucket"]
        assert bucket["writable"] is False
        assert bucket["missing"]["put-if-match"] == "Fenced writes to this bucket are refused."
        assert (await api.get("/v1/ready")).status_code == 204


async def test_probes_and_metrics_are_where_other_programs_have_them(postgres_server: EmbeddedPostgres) -> None:
    """Buckets of these names stay reachable: each request to a bucket is signed."""
    names = ["healthz", "livez", "readyz", "metrics"]
    async with staged(postgres_server, S3Double(buckets=names)) as stage, stage.api() as api:
        async with httpx.AsyncClient(base_url=stage.origin, timeout=PATIENCE) as anybody:
            assert (await anybody.get("/healthz")).json() == {"postgres": "ok", "s3": "ok"}
            assert (await anybody.head("/healthz")).status_code == 200
            assert (await anybody.get("/readyz")).status_code == 204
            assert (await anybody.get("/livez")).status_code == (await anybody.get("/v1/live")).status_code == 204
            for of_a_bucket in ("/healthz/", "/metrics/key", "/readyz?list-type=2", "/%68ealthz"):
                assert (await anybody.get(of_a_bucket)).headers["content-type"] == "application/xml"
            assert (await anybody.put("/metrics")).headers["content-type"] == "application/xml"
        assert (await api.get("/metrics")).headers["content-type"] == (await api.get("/v1/metrics")).headers[
            "content-type"
        ]
        s3 = connect(stage.origin, "1")
        for name in names:
            await call(s3.put_object, Bucket=name, Key="k", Body=b"x")
            assert [one["Key"] for one in (await call(s3.list_objects, Bucket=name))["Contents"]] == ["k"]
            await call(s3.head_bucket, Bucket=name)
            link = s3.generate_presigned_url("list_objects", Params={"Bucket": name})
            async with httpx.AsyncClient(timeout=PATIENCE) as linked:
                assert "<Key>k</Key>" in (await linked.get(link)).text


SLOW = """
CREATE TABLE rows AS SELECT id FROM generate_series(1, 4) AS id;
ALTER TABLE rows ADD PRIMARY KEY (id);
CREATE VIEW slow AS SELECT 1 AS v WHERE pg_advisory_xact_lock_shared(7) IS NOT NULL;
"""
WAITING = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"


async def test_readiness_is_about_the_database_and_not_about_its_load(postgres_server: EmbeddedPostgres) -> None:
    """Statements that wait for a lock have all sessions of writes and of reads. Then the database answers no more."""
    async with fresh_database(postgres_server) as dsn, AsyncExitStack() as stack:
        line = Line(dsn)
        listener = await stack.enter_async_context(await asyncio.start_server(line, "127.0.0.1", 0))
        beside, locking = await asyncpg.connect(dsn), await asyncpg.connect(dsn)
        stack.push_async_callback(beside.close)
        stack.push_async_callback(locking.close)
        await beside.execute(SLOW)
        postgres = {"dsn": line.address(listener.sockets[0].getsockname()[1]), "pool_size": 4}
        postgres |= {"statement_timeout": PATIENCE, "read_timeout": PATIENCE}
        limits = {"lock_timeout": PATIENCE, "connect_timeout": 2.5}
        settings = config(dsn, postgres=postgres, server={"share": 1.0}, limits=limits)
        origin = await stack.enter_async_context(running(settings))
        client = await stack.enter_async_context(calling(origin))
        async with asyncio.timeout(PATIENCE):
            while any([(await client.get(f"/v1/tables/{name}")).status_code != 200 for name in ("rows", "slow")]):
                await asyncio.sleep(0.05)

        async def answer(expected: int) -> None:
            async with asyncio.timeout(PATIENCE):
                while (await client.get("/readyz")).status_code != expected:
                    await asyncio.sleep(0.05)

        await answer(204)
        async with locking.transaction():
            await locking.execute("SELECT FROM rows FOR UPDATE; SELECT pg_advisory_xact_lock(7)")
            stuck = [
                asyncio.ensure_future(client.delete(f"/v1/tables/rows?id=eq.{row}", headers={"Fencing-Token": "7"}))
                for row in range(1, 5)
            ]
            stuck += [asyncio.ensure_future(client.get("/v1/tables/slow")) for _ in range(2)]
            async with asyncio.timeout(PATIENCE):
                while await beside.fetchval(WAITING) < len(stuck):
                    await asyncio.sleep(0.05)
            await answer(204)
            assert await beside.fetchval(WAITING) == len(stuck), "all sessions are in use still"
            line.pause()
            await answer(503)
            line.resume()
            await answer(204)
        assert {one.status_code for one in await asyncio.gather(*stuck)} <= {200, 204}


async def test_the_root_leads_browsers_to_the_page(postgres_server: EmbeddedPostgres) -> None:
    html = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    async with staged(postgres_server, S3Double(buckets=["bucket"])) as stage:
        async with httpx.AsyncClient(base_url=stage.origin, timeout=PATIENCE) as browser:
            led = await browser.get("/", headers=html)
            assert (led.status_code, led.headers["location"]) == (307, "/ui/")
            assert (await browser.get("/")).json()["page"] == "/ui/", "it takes anything, as curl does"
            assert (await browser.get("/", headers={"Accept": ""})).headers["content-type"] == "application/xml"
            assert (await browser.get("/bucket", headers=html)).headers["content-type"] == "application/xml"
        s3 = connect(stage.origin)
        s3.meta.events.register("before-call.s3", lambda params, **_: params["headers"].update(html))
        assert [one["Name"] for one in (await call(s3.list_buckets))["Buckets"]] == ["bucket"]


# Routes: each is for one database by its resource, by its body or by name. Few are for the whole gateway. -----------

OF_THE_WHOLE_GATEWAY = {
    *("/v1/config", "/v1/config/reload", "/v1/metrics", "/metrics", "/v1/openapi.json", "/v1/docs"),
    *("/v1/health", "/healthz", "/v1/live", "/livez", "/v1/ready", "/readyz"),
}


def test_each_route_that_needs_a_grant_tells_of_the_refusal() -> None:
    described = document(ROUTES)["paths"]
    for one in ROUTES:
        if one.summary and one.rule.actions:
            assert "403" in described[one.short][one.method.lower()]["responses"], one.path


def strict(part: Any) -> Any:
    """The same schemas, whose objects have no members but those described."""
    if isinstance(part, list):
        return [strict(one) for one in part]
    if not isinstance(part, dict):
        return part
    closed = {"additionalProperties": False} if isinstance(part.get("properties"), dict) else {}
    return {**{name: strict(one) for name, one in part.items()}, **closed}


def examples(part: Any) -> Iterator[tuple[dict[str, Any], Any]]:
    """Each example below a part of a document, with its schema."""
    if isinstance(part, dict) and isinstance(part.get("examples"), list):
        yield from ((part, one) for one in part["examples"])
    if isinstance(part, dict | list):
        for one in part.values() if isinstance(part, dict) else part:
            yield from examples(one)


def test_each_example_follows_its_schema() -> None:
    """No example has members without a description either: linters of documents take them for mistakes."""
    described = document(ROUTES)
    components = {"components": strict(described["components"])}
    problem = described["components"]["schemas"]["Problem"]
    problems = [(problem, one["value"]) for one in described["components"]["examples"].values()]
    found = [*problems, *examples(described)]
    assert len(found) > 50
    for schema, example in found:
        validator = Draft202012Validator({**strict(schema), **components}, validate_formats=True)
        assert [one.message for one in validator.iter_errors(example)] == [], example


def test_each_route_finds_its_database() -> None:
    """A route whose body is about resources says how to find their owners. The record has that of an incident."""
    for one in ROUTES:
        leads_on = one.path == "/" and one.method != "POST"
        assert (one.home is Home.GATEWAY) == (leads_on or one.path in OF_THE_WHOLE_GATEWAY), one.path
        assert (one.home is Home.PATH) == ("{resource" in one.path), one.path
        if one.rule.about is About.BODY and "incidents" not in one.path:
            assert one.home is Home.BODY, one.path


@pytest.mark.parametrize("path", ["/v1/transaction", "/v1/leases", "/v1/credentials"])
def test_a_body_with_too_many_values_is_not_parsed_to_find_its_database(path: str) -> None:
    """A value of two bytes takes a hundred in memory."""
    (route,) = (one for one in ROUTES if one.path == path and one.home is Home.BODY)
    with pytest.raises(BodyTooLarge):
        Databases._owners(MagicMock(), route, b'{"leases": [' + b"{}," * 300_000 + b"{}]}")


@pytest.mark.thorough
async def test_one_database_that_works_is_enough_for_readiness_at_once() -> None:
    """A load balancer waits a second or less, and would take the gateway out because of a database that is paused."""

    async def told(state: str) -> str:
        return state

    async def paused() -> str:
        await asyncio.sleep(0.5)
        return "ok"

    found = await first_working(60, [{"postgres.south": paused()}, {"postgres.north": told("ok")}])
    assert found == {"postgres.north": "ok"}
    found = await first_working(60, [{"postgres.south": told("closed")}, {"postgres.north": told("unreachable")}])
    assert found == {"postgres.south": "closed", "postgres.north": "unreachable"}
    found = await first_working(0.01, [{"postgres.south": paused()}, {"postgres.north": told("closed")}])
    assert found == {"postgres.south": "unreachable", "postgres.north": "closed"}
