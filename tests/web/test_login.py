"""Only callers that may audit see pages: they log in with a key, and other viewers learn nothing."""

from collections.abc import Callable
from datetime import UTC, datetime
from itertools import product

import httpx
import pytest
from playwright.sync_api import Page, expect

from gateway.auth import login_cookies
from tests import running
from tests.objects import raw
from tests.web.stage import AUDITOR_KEY, KEYS, SECRET, Stage, log_in, origin, serving


def test_a_key_lets_in_and_leads_to_the_page_that_was_asked_for(visit: Callable[..., Page], stage: Stage) -> None:
    page = visit("/ui/rejections?reason=token-stale", logged_in=False)
    expect(page).to_have_title("Log in – Fencing gateway")
    page.get_by_label("API key").fill(AUDITOR_KEY)
    page.keyboard.press("Enter")
    expect(page).to_have_url(f"{stage.origin}/ui/rejections?reason=token-stale")
    page.get_by_role("button", name="Log out").click()
    expect(page).to_have_title("Log in – Fencing gateway")
    page.goto("/ui/")
    expect(page).to_have_title("Log in – Fencing gateway")


PAGES = ["/ui/", "/ui/rejections", "/ui/events", "/ui/observe", "/ui/no-such-page"]


async def test_strangers_are_sent_to_the_login_and_see_nothing(client: httpx.AsyncClient) -> None:
    for path in PAGES:
        answer = await client.get(f"{path}?prefix=public")
        assert answer.status_code == 303
        assert answer.headers["location"] == f"/ui/login?{httpx.QueryParams(next=f'{path}?prefix=public')}"
        assert SECRET not in answer.text
        part = await client.get(path, headers={"HX-Request": "true", "HX-Current-URL": f"{client.base_url}{path}"})
        assert part.status_code == 401
        assert part.headers["hx-redirect"].startswith("/ui/login?next=%2Fui%2F")
        assert not part.content


@pytest.mark.parametrize("caller", ["auditor", "admin"])
async def test_an_auditor_logs_in_and_out(client: httpx.AsyncClient, caller: str) -> None:
    answer = await log_in(client, caller, next="/ui/rejections")
    assert (answer.status_code, answer.headers["location"]) == (303, "/ui/rejections")
    cookie = answer.headers["set-cookie"].lower()
    for attribute in ("httponly", "samesite=strict", "path=/ui/", "max-age=43200"):
        assert attribute in cookie
    assert "secure" not in cookie
    assert KEYS[caller] not in cookie
    assert SECRET in (await client.get("/ui/rejections")).text
    assert (await client.get("/ui/no-such-page")).status_code == 404
    await client.post("/ui/logout", headers=origin(client))
    assert (await client.get("/ui/rejections")).status_code == 303


async def test_a_writer_is_not_let_in(client: httpx.AsyncClient) -> None:
    answer = await log_in(client, "writer")
    assert answer.status_code == 403
    assert "set-cookie" not in answer.headers
    assert "may not read the record" in answer.text
    # Nor with a session of its own making, which it can sign.
    forged = login_cookies.issue_session("writer", login_cookies.session_key(KEYS["writer"]), datetime.now(UTC))
    for path in PAGES:
        shown = await client.get(path, headers={"Cookie": f"gateway_session={forged}"})
        assert shown.status_code == 403
        assert SECRET not in shown.text


async def test_a_wrong_key_reveals_nothing(client: httpx.AsyncClient) -> None:
    for key in ("", "wrong", "\x00", "é", KEYS["auditor"] + "x"):
        answer = await client.post("/ui/login", data={"api_key": key}, headers=origin(client))
        assert answer.status_code == 401
        assert "This is not an API key" in answer.text
        assert "set-cookie" not in answer.headers


NO_ADDRESS = "http://["


async def test_a_form_that_names_no_page_is_refused(client: httpx.AsyncClient) -> None:
    form = {"api_key": KEYS["auditor"]}
    headers: list[dict[str, str]] = [{}, {"Origin": NO_ADDRESS}]
    for path, sent in product(("/ui/login", "/ui/logout", "/ui/theme", "/ui/"), headers):
        answer = await client.post(path, data=form, headers=sent)
        assert (answer.status_code, "set-cookie" in answer.headers) == (403, False), (path, sent)
    part = await client.get("/ui/", headers={"HX-Request": "true", "HX-Current-URL": NO_ADDRESS})
    assert (part.status_code, part.headers["hx-redirect"]) == (401, "/ui/login?next=%2Fui%2F")
    same = await client.post("/ui/login", data=form, headers={"Sec-Fetch-Site": "same-origin"})
    assert same.status_code == 303


async def test_behind_https_the_session_is_never_sent_in_the_clear(client: httpx.AsyncClient) -> None:
    host = client.base_url.netloc.decode()
    answer = await client.post("/ui/login", data={"api_key": KEYS["auditor"]}, headers={"Origin": f"https://{host}"})
    assert "secure" in answer.headers["set-cookie"].lower()


async def test_a_link_on_another_site_arrives_with_the_session(client: httpx.AsyncClient) -> None:
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    arrival = await client.get("/ui/rejections?holder=%22%3E%3Cscript%3E", headers=link)
    assert arrival.status_code == 200
    assert 'content="0;url=/ui/rejections?holder=%22%3E%3Cscript%3E"' in arrival.text
    # The browser repeats the request from the gateway's page. A viewer without a session goes to the login.
    again = {"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "navigate"}
    assert (await client.get("/ui/rejections", headers=again)).status_code == 303


async def test_a_grant_for_anonymous_callers_that_shows_no_record_leads_to_the_login(dsn: str) -> None:
    public = {"callers": ["anonymous"], "actions": ["read"], "buckets": ["site/public/**"]}
    async with serving(dsn, grants=[*running.GRANTS, public]) as client:
        answer = await client.get("/ui/rejections")
        assert (answer.status_code, answer.headers["location"]) == (303, "/ui/login?next=%2Fui%2Frejections")
        link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
        assert "0;url=/ui/rejections" in (await client.get("/ui/rejections", headers=link)).text


async def test_a_session_is_for_pages_alone(client: httpx.AsyncClient) -> None:
    await log_in(client)
    client.cookies.set("gateway_session", client.cookies["gateway_session"], path="/")
    assert (await client.get("/v1/rejections")).status_code == 401


async def test_a_form_too_large_is_not_read(client: httpx.AsyncClient) -> None:
    for body in (b"api_key=" + b"x" * 20_000, b"&".join(b"a=1" for _ in range(100)), b"api_key=\xff"):
        headers = {**origin(client), "Content-Type": "application/x-www-form-urlencoded"}
        answer = await client.post("/ui/login", content=body, headers=headers)
        assert answer.status_code == 400
        assert "The form" in answer.text


async def test_a_forged_host_admits_no_viewer(client: httpx.AsyncClient) -> None:
    paths = (
        *(b"/ui/rejections", b"/ui/static/../rejections", b"/ui/static/%2e%2e/rejections", b"/ui/login%3f/../events"),
        *(b"//ui/rejections", b"http://x/ui/rejections"),
    )
    for host in (b"x/ui/login?", b"x/ui/static/", b"x#", b"[", b"a b", b"\xff", b""):
        for path in paths:
            request = b"GET %b HTTP/1.1\r\nHost: %b\r\nConnection: close\r\n\r\n" % (path, host)
            answer = await raw.ask(str(client.base_url), request)
            assert answer.status in (303, 400, 404), (host, path)
            assert SECRET not in repr(answer)


ELSEWHERE = (
    *("//evil.example", "https://evil.example/ui/", "/\\evil.example", "/ui/\\evil", "javascript:alert(1)"),
    *("/ui/../reports/monthly.html", "/ui/./../x", "/ui/%2e%2e/reports/x", "/ui/.%2E/x", "/ui/x/.."),
    *("/ui/\r\nSet-Cookie: a=b", "/ui/\u202e", "/uix", "/v1/docs", "\t/ui/", ""),
)


async def test_the_way_after_the_login_leads_to_our_pages(client: httpx.AsyncClient) -> None:
    """A browser resolves dots in a path, encoded or not. The path would then be that of an object in a bucket."""
    for wanted in ELSEWHERE:
        assert (await log_in(client, next=wanted)).headers["location"] == "/ui/", wanted
        form = {"theme": "dark", "next": wanted}
        assert (await client.post("/ui/theme", data=form, headers=origin(client))).headers["location"] == "/ui/"
    good = "/ui/rejections?prefix=a..b%2F..%2Fc"
    assert (await log_in(client, next=good)).headers["location"] == good
