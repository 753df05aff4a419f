"""Requests that no browser sends get an error, and admit no viewer."""

import asyncio
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from starlette.requests import Request
from starlette.types import Message, Scope

from gateway.auth.callers import Callers
from gateway.config.access import CallerKeys
from gateway.web.login import LoginGate
from gateway.web.rendering import Assets, Pages
from tests.running import GRANT_RULES
from tests.web.page_gateway import CALLERS, KEYS, SECRET, log_in, no_logins, origin, put_on_record, serving

NO_ADDRESS = "http://["


async def raw(client: httpx.AsyncClient, request: bytes) -> bytes:
    """Return the answer to these bytes."""
    address = urlsplit(str(client.base_url))
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    try:
        writer.write(request)
        return await reader.read()
    finally:
        writer.close()
        await writer.wait_closed()


async def test_a_header_that_is_no_address_is_no_failure_of_ours(dsn: str) -> None:
    async with serving(dsn) as client:
        part = await client.get("/ui/", headers={"HX-Request": "true", "HX-Current-URL": NO_ADDRESS})
        assert (part.status_code, part.headers["hx-redirect"]) == (401, "/ui/login?next=%2Fui%2F")
        for path in ("/ui/login", "/ui/logout", "/ui/theme", "/ui/"):
            form = await client.post(path, data={"api_key": KEYS["auditor"]}, headers={"Origin": NO_ADDRESS})
            assert form.status_code == 403, path
            assert "set-cookie" not in form.headers


async def test_a_forged_host_admits_no_viewer(dsn: str) -> None:
    await put_on_record(dsn)
    paths = (
        *(b"/ui/rejections", b"/ui/static/../rejections", b"/ui/static/%2e%2e/rejections", b"/ui/login%3f/../events"),
        *(b"//ui/rejections", b"http://x/ui/rejections"),
    )
    async with serving(dsn) as client:
        for host in (b"x/ui/login?", b"x/ui/static/", b"x#", b"[", b"a b", b"\xff", b""):
            for path in paths:
                answer = await raw(client, b"GET %b HTTP/1.1\r\nHost: %b\r\nConnection: close\r\n\r\n" % (path, host))
                assert answer.split()[1] in (b"303", b"400", b"404"), (host, path)
                assert SECRET.encode() not in answer


async def test_the_login_gate_checks_the_served_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not at one that is put together with the header ``Host``, as ``request.url`` of many versions of Starlette is."""
    monkeypatch.setattr(Request, "url", property(lambda _: httpx.URL("http://x/ui/login?/ui/rejections")))
    keys = Callers([CallerKeys.model_validate(one) for one in CALLERS], GRANT_RULES)
    let_in: list[str] = []

    async def inside(scope: Scope, *_: object) -> None:
        let_in.append(scope["path"])

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def send(_: Message) -> None: ...

    door = LoginGate(inside, keys, no_logins(keys), lambda: datetime.now(UTC), Pages(Assets()))
    for path in ("/ui/rejections", "/ui/login"):
        scope: dict[str, Any] = {"type": "http", "method": "GET", "path": path, "query_string": b"", "headers": []}
        await door(scope, receive, send)
    assert let_in == ["/ui/login"]


ELSEWHERE = (
    *("//evil.example", "https://evil.example/ui/", "/\\evil.example", "/ui/\\evil", "javascript:alert(1)"),
    *("/ui/../reports/monthly.html", "/ui/./../x", "/ui/%2e%2e/reports/x", "/ui/.%2E/x", "/ui/x/.."),
    *("/ui/\r\nSet-Cookie: a=b", "/ui/\u202e", "/uix", "/v1/docs", "\t/ui/"),
)


async def test_the_way_after_the_login_leads_to_our_pages(dsn: str) -> None:
    """A browser resolves dots in a path, encoded or not. The path would then be that of an object in a bucket."""
    async with serving(dsn) as client:
        for wanted in ELSEWHERE:
            assert (await log_in(client, next=wanted)).headers["location"] == "/ui/", wanted
            form = {"theme": "dark", "next": wanted}
            assert (await client.post("/ui/theme", data=form, headers=origin(client))).headers["location"] == "/ui/"
        good = "/ui/rejections?prefix=a..b%2F..%2Fc"
        assert (await log_in(client, next=good)).headers["location"] == good


async def test_a_report_of_no_time_is_refused(dsn: str) -> None:
    async with serving(dsn) as client:
        headers = {"Authorization": f"Bearer {KEYS['auditor']}"}
        for moment in ("0001-01-01T00:00:00Z", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"):
            for end in ("since", "until"):
                answer = await client.get("/v1/reports/job", params={end: moment}, headers=headers)
                assert (answer.status_code, answer.json()["code"]) == (400, "request-malformed"), (end, moment)
