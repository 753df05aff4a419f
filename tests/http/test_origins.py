"""No page of another site changes anything at a gateway with anonymous callers, by any route of any plane."""

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import asyncpg
import httpx
import pytest
import pytest_asyncio

from gateway.app import Gateway
from gateway.demo.embedded import EmbeddedPostgres
from gateway.errors import Forbidden
from gateway.http.origins import SAFE, Headers, Sender, check, sender
from gateway.observe.events import ignore
from gateway.observe.telemetry import Observability
from tests.doubles.s3 import S3Double
from tests.objects.clients import connect
from tests.objects.object_gateway import Stage, staged
from tests.running import OPEN, config, routes_of
from tests.tiers import first
from tests.waiting import PATIENCE

OF_APP, EVIL = (b"origin", b"https://app.example"), (b"origin", b"https://evil.example")
HOST = (b"host", b"gateway.example:8080")
OWN = (b"origin", b"http://gateway.example:8080")
CROSS, SAME_SITE, SAME, TYPED = (
    (b"sec-fetch-site", site) for site in (b"cross-site", b"same-site", b"same-origin", b"none")
)
FOREIGN_HEADERS = [
    [HOST, EVIL],
    [HOST, (b"origin", b"null")],
    [HOST, (b"origin", b"")],
    [HOST, (b"origin", b"http://gateway.example")],
    [HOST, (b"origin", b"http://gateway.example:8080.evil.example")],
    [HOST, (b"origin", b"http://evil.example/gateway.example:8080")],
    [HOST, (b"origin", b"http://[")],
    [HOST, (b"origin", b"\xff")],
    [HOST, OWN, EVIL],
    [(b"origin", b"null"), (b"host", b"")],
    [HOST, (b"host", b"evil.example"), EVIL],
    [EVIL],
    [HOST, CROSS],
    [HOST, SAME_SITE],
    [HOST, (b"sec-fetch-site", b"")],
    [HOST, SAME, CROSS],
    [HOST, OWN, CROSS],
]


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "TRACE", "FORGET"])
async def test_headers_of_a_foreign_page_allow_no_change(subtests: pytest.Subtests, method: str) -> None:
    for headers in FOREIGN_HEADERS:
        with subtests.test(headers=headers):
            assert sender(headers) is Sender.FOREIGN
            with pytest.raises(Forbidden):
                check(method, headers)
            with pytest.raises(Forbidden):
                check(method, headers, ["https://app.example"])


@pytest.mark.parametrize(
    "headers",
    [
        [HOST, OWN],
        [HOST, (b"origin", b"https://gateway.example:8080")],
        [(b"host", b"GATEWAY.example:8080"), OWN],
        [HOST, SAME],
        [HOST, TYPED],
        # A proxy in front has changed Host. The browser's own word still holds.
        [(b"host", b"10.0.0.7"), OWN, SAME],
    ],
)
async def test_headers_of_a_page_of_the_gateway_pass(headers: Headers) -> None:
    assert sender(headers) is Sender.OWN
    check("POST", headers)


async def test_a_page_of_an_allowed_origin_passes() -> None:
    for headers in ([HOST, OF_APP], [HOST, OF_APP, CROSS], [HOST, OF_APP, SAME_SITE]):
        check("POST", headers, ["https://app.example"])
        check("POST", headers, ["*"])
    check("POST", [HOST, CROSS, (b"origin", b"null")], ["*"])


pytestmark = pytest.mark.asyncio(loop_scope="module")
REFUSED = "A page of another origin must not change anything here."
APP = "https://app.example"
SECTIONS: dict[str, Any] = {"grants": OPEN, "server": {"cors_origins": [APP], "rest_v1": True}}
FOREIGN: list[dict[str, str]] = [
    {"Origin": "https://evil.example"},
    {"Origin": "null"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site", "Authorization": "Bearer writer-api-key"},
]
TABLES = [
    (method, f"{prefix}{path}")
    for prefix in ("/v1/tables/", "/rest/v1/")
    for method, path in (
        *(("POST", "things"), ("PUT", "things?id=eq.1"), ("PATCH", "things?id=eq.1"), ("DELETE", "things?id=eq.1")),
        *(("POST", "rpc/f"), ("POST", "")),
    )
]
BODIES = {
    "/v1/leases": '{"resource": "job/1", "holder": "evil", "ttl": 30}',
    "/v1/leases/{resource:path}/acquire": '{"holder": "evil", "ttl": 30}',
    "/v1/fences/{resource:path}/barrier": '{"token": "7"}',
    "/v1/tables/things": '{"id": 2}',
    "/rest/v1/things": '{"id": 2}',
}


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that may change something."""

    method: str
    path: str
    body: str


def all_routes() -> list[Asked]:
    """Return the routes of the API and of the page, and the forms of writes to tables."""
    settings = config("postgresql://none/", **SECTIONS)
    served = routes_of(Gateway(settings, Observability(settings, ignore)))
    return [
        Asked(method, re.sub(r"\{[^}]+\}", "x", path), BODIES.get(path, "{}"))
        for method, path in (*served, *TABLES)
        if method not in SAFE
    ]


ROUTES = all_routes()
FORM = "application/x-www-form-urlencoded"


def reaches_the_gateway(asked: Asked, media_type: str, said: dict[str, str]) -> bool:
    """Return whether a request is for a route. At ``/`` that is an unsigned form, for STS. S3 gets all others."""
    return asked.path != "/" or (media_type == FORM and "Authorization" not in said)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(postgres_server: EmbeddedPostgres) -> AsyncIterator[Stage]:
    async with staged(postgres_server, S3Double(buckets=["bucket"]), **SECTIONS) as one:
        await one.rows("CREATE TABLE things (id int PRIMARY KEY)")
        await one.rows("INSERT INTO things VALUES (1)")
        await one.knows("things")
        yield one


async def contents(dsn: str) -> dict[str, list[str]]:
    """All rows of all tables that a request could change. Empty ones do not count: partitions are made ahead.

    The gateway seals what is on record, and notes uses of keys, some time after the requests that these are about.
    """
    connection = await asyncpg.connect(dsn)
    try:
        async with asyncio.timeout(PATIENCE):
            while await connection.fetchval("SELECT EXISTS (SELECT FROM fencing.intake)"):
                await asyncio.sleep(0.02)
        tables = await connection.fetch(
            "SELECT schemaname || '.' || quote_ident(tablename) AS name FROM pg_tables"
            " WHERE schemaname IN ('fencing', 'public') AND tablename NOT IN ('traffic', 'sealer', 'key_use')"
        )
        found = {
            table["name"]: [row["t"] for row in await connection.fetch(f"SELECT t::text AS t FROM {table['name']} t")]
            for table in tables
        }
        return {name: rows for name, rows in found.items() if rows}
    finally:
        await connection.close()


@pytest.mark.parametrize("said", first(FOREIGN), ids=lambda said: " ".join(said.values()))
async def test_a_foreign_page_changes_nothing(stage: Stage, said: dict[str, str]) -> None:
    before = await contents(stage.dsn)
    async with httpx.AsyncClient(base_url=stage.origin, timeout=30) as client:
        for asked in ROUTES:
            for media_type in ("text/plain", FORM, "application/json"):
                headers = {**said, "Content-Type": media_type, "Fencing-Token": "7"}
                answer = await client.request(asked.method, asked.path, content=asked.body, headers=headers)
                if not reaches_the_gateway(asked, media_type, said):
                    assert answer.is_client_error or answer.status_code == 501, asked
                    continue
                assert answer.status_code == 403, asked
                assert answer.headers.get("set-cookie") is None
                assert answer.json()["detail"] == REFUSED, asked
    assert await contents(stage.dsn) == before


async def test_a_page_of_the_gateway_is_not_stopped(stage: Stage) -> None:
    async with httpx.AsyncClient(base_url=stage.origin, timeout=30) as client:
        for said in ({"Origin": stage.origin}, {"Sec-Fetch-Site": "same-origin"}, {}):
            for asked in ROUTES:
                if asked.path.startswith("/ui/") and not said:
                    continue  # a form always comes from a page
                answer = await client.request(asked.method, asked.path, content="not of any form", headers=said)
                assert REFUSED not in answer.text, asked
        own = {"Origin": stage.origin, "Sec-Fetch-Site": "same-origin"}
        barrier = await client.post("/v1/fences/own/barrier", json={"token": "7"}, headers=own)
        assert barrier.status_code == 200, barrier.text


async def test_a_page_that_may_use_tables_may_use_tables_alone(stage: Stage) -> None:
    said = {"Origin": APP, "Sec-Fetch-Site": "cross-site", "Fencing-Token": "3"}
    async with httpx.AsyncClient(base_url=stage.origin, timeout=30) as client:
        written = await client.post("/v1/tables/things", json={"id": 3}, headers=said)
        assert (written.status_code, written.headers["access-control-allow-origin"]) == (201, APP)
        for asked in ROUTES:
            if not asked.path.startswith(("/v1/tables/", "/rest/v1/")):
                as_form = {**said, "Content-Type": FORM}
                answer = await client.request(asked.method, asked.path, content=asked.body, headers=as_form)
                assert (answer.status_code, REFUSED in answer.text) == (403, True), asked


async def test_a_page_uploads_what_somebody_has_signed_for_it(stage: Stage) -> None:
    """S3's own way for pages: a signature says what may be written. No other site can make one."""
    foreign = {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}
    s3 = connect(stage.origin)

    async with httpx.AsyncClient(timeout=30) as client:
        place = {"Bucket": "bucket", "Key": "put", "Metadata": {"fencing-token": "7"}}
        url = s3.generate_presigned_url("put_object", Params=place)
        signed = {name: value for name, value in (("x-amz-meta-fencing-token", "7"),) if name in url}
        put = await client.put(url, content=b"content", headers={**foreign, **signed})
        assert put.status_code == 200, put.text
        form = await asyncio.to_thread(
            s3.generate_presigned_post,
            "bucket",
            "form",
            Fields={"x-amz-meta-fencing-token": "7"},
            Conditions=[{"x-amz-meta-fencing-token": "7"}],
        )
        sent = await client.post(form["url"], data=form["fields"], files={"file": b"content"}, headers=foreign)
        assert sent.status_code == 204, sent.text
        unsigned = await client.put(f"{stage.origin}/bucket/unsigned", content=b"x", headers=foreign)
        assert unsigned.status_code == 403
    assert (stage.body("put"), stage.body("form"), stage.body("unsigned")) == (b"content", b"content", None)
