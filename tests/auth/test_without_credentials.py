"""A client without credentials gets the few answers that SECURITY.md lists, and nothing else."""

import re

import httpx
from starlette.routing import Route

from gateway.app import Gateway
from gateway.config import Config
from gateway.observe.events import ignore
from gateway.observe.telemetry import Observability
from tests.running import config, running
from tests.waiting import PATIENCE

OPEN = {
    *(("GET", path) for path in ("/v1/docs", "/v1/health", "/v1/live", "/v1/openapi.json", "/v1/ready")),
    *((method, path) for method in ("GET", "HEAD") for path in ("/", "/healthz", "/livez", "/readyz")),
    ("HEAD", "/v1/docs"),
    ("HEAD", "/v1/openapi.json"),
    *((method, "/ui/login") for method in ("GET", "HEAD", "POST")),
    *((method, f"/ui/{name}") for method in ("POST",) for name in ("logout", "theme")),
    ("GET", "/ui/static/x"),
    ("HEAD", "/ui/static/x"),
    ("GET", "/ui"),
    ("HEAD", "/ui"),
}
STS = {("POST", "/"), ("POST", "/v1/sts")}
"""The proof of the caller is in the form."""
TABLES = ("/v1/tables/", "/v1/tables/users", "/v1/tables/rpc/f")


def routes(settings: Config) -> set[tuple[str, str]]:
    gateway = Gateway(settings, Observability(settings, ignore))
    page = gateway._first.web._app._app  # type: ignore[attr-defined]  # behind its headers and its door
    found = {
        (method, re.sub(r"\{[^}]+\}", "x", route.path))
        for route in (*gateway._first.api.routes, *page.routes)
        if isinstance(route, Route)
        for method in route.methods or ()
    }
    return found | {(method, path) for method in ("GET", "HEAD", "POST", "PATCH", "DELETE") for path in TABLES}


async def test_a_client_without_credentials_gets_what_is_listed_and_nothing_else(dsn: str) -> None:
    settings = config(dsn)
    asked = routes(settings)
    assert OPEN - {("GET", "/ui"), ("HEAD", "/ui")} <= asked
    async with running(settings) as origin, httpx.AsyncClient(base_url=origin, timeout=PATIENCE) as client:
        for method, path in sorted(STS):
            form = {"Action": "AssumeRoleWithWebIdentity", "Version": "2011-06-15", "WebIdentityToken": "eyJ.e30.x"}
            role = {"RoleArn": "arn:aws:iam::000000000000:role/worker", "RoleSessionName": "pod-1"}
            answer = await client.request(method, path, data={**form, **role})
            assert (answer.status_code, "InvalidIdentityToken" in answer.text) == (400, True), (path, answer.text)
        for method, path in sorted(asked - OPEN - STS):
            answer = await client.request(method, path, content=b"{}" if method != "GET" else None)
            if path.startswith("/ui"):
                to_the_login = answer.headers.get("location", "").startswith("/ui/login")
                assert answer.status_code == 403 or to_the_login, (method, path, answer.status_code)
            else:
                assert answer.status_code == 401, (method, path, answer.text)
        to_the_page = await client.get("/", headers={"Accept": "text/html"})
        assert (to_the_page.status_code, to_the_page.headers["location"]) == (307, "/ui/")
        for path in ("/healthz", "/readyz", "/v1/health", "/v1/ready", "/v1/docs", "/v1/openapi.json", "/ui/login"):
            assert (await client.get(path)).status_code in (200, 204), path
        assert set((await client.get("/v1/health")).json()) == {"postgres"}
