"""The page over several databases: one verdict over all, and lists of one of them, which links and viewers choose."""

import asyncio
import re
from collections.abc import AsyncIterator
from html import unescape
from typing import Any

import httpx
import pytest
import pytest_asyncio

from tests.databases.fleet import CALLERS, SOON, Fleet, fleet
from tests.postgres import Server
from tests.running import API_KEY
from tests.waiting import PATIENCE

OTHER_KEY = "a-key-of-a-caller-without-audit"
SECTIONS: dict[str, Any] = {
    "callers": [*CALLERS, {"name": "stranger", "api_key": OTHER_KEY}],
    "tables": [{"name": "north.plans", "mode": "observe"}, {"name": "south.plans", "mode": "observe"}],
}
LISTS = ("/ui/incidents", "/ui/rejections", "/ui/events", "/ui/resources", "/ui/observe", "/ui/live")


@pytest_asyncio.fixture
async def gateway(request: pytest.FixtureRequest, postgres_server: Server) -> AsyncIterator[Fleet]:
    async with fleet(postgres_server, gives_up=getattr(request, "param", PATIENCE), **SECTIONS) as one:
        yield one


@pytest_asyncio.fixture
async def browser(gateway: Fleet) -> AsyncIterator[httpx.AsyncClient]:
    headers = {"Origin": gateway.origin}
    async with httpx.AsyncClient(base_url=gateway.origin, headers=headers, timeout=PATIENCE) as client:
        answer = await client.post("/ui/login", data={"api_key": API_KEY})
        assert answer.status_code == 303, answer.text
        yield client


async def zombie(gateway: Fleet, schema: str, row: int, writes: int = 1) -> None:
    """Let a newer holder take over a row, and the older one write on."""
    async with gateway.api() as api:
        taken = await api.post(f"/v1/fences/{schema}.orders/{row}/barrier", json={"token": "8"})
        assert taken.status_code == 200, taken.text
        for _ in range(writes):
            headers = {"Fencing-Token": "7", "Content-Profile": schema, "Fencing-Holder": f"zombie-of-{schema}"}
            late = await api.patch(f"/v1/tables/orders?id=eq.{row}", json={"status": "late"}, headers=headers)
            assert late.status_code == 412, late.text


def words(page: httpx.Response) -> str:
    """Return the text of a page."""
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", page.text)).split())


def rows(page: httpx.Response, pattern: str) -> list[str]:
    return [unescape(one) for one in re.findall(pattern, page.text)]


async def read(browser: httpx.AsyncClient, path: str, status: int = 200) -> httpx.Response:
    page = await browser.get(path, follow_redirects=True)
    assert page.status_code == status, (path, words(page)[-600:])
    return page


ENTRY = r'href="(/ui/(?:rejections|events)/[0-9a-f-]{36}[^"]*)"'


@pytest.mark.thorough
async def test_a_list_is_of_one_database_and_its_links_keep_to_that(gateway: Fleet, browser: httpx.AsyncClient) -> None:
    for schema, row in (("north", 1), ("south", 2)):
        await zombie(gateway, schema, row)
    for path in (*LISTS, "/ui/rejections.csv", "/ui/events/nothing"):
        page = await read(browser, f"{path}?prefix=n&kind=a&kind=b", 400)
        assert "This page is of one database." in words(page)
        links = rows(page, r'<li><a href="(/ui/[^"]+of=[^"]+)"')
        assert links == [f"{path}?prefix=n&kind=a&kind=b&of={name}" for name in ("north", "south")]
        answer = await browser.get(path, headers={"Accept": "application/json"})
        assert (answer.status_code, answer.json()["code"]) == (400, "request-malformed")
    for name, other, row in (("north", "south", 1), ("south", "north", 2)):
        for path in LISTS:
            page = await read(browser, f"{path}?of={name}")
            assert f"Database {name}" in words(page)
            assert f"{other}.orders/" not in page.text
            assert f'href="/ui/events?of={name}"' in page.text, "the navigation keeps to the database"
        listed = await read(browser, f"/ui/rejections?holder=zombie-of-{name}&of={name}")
        (entry,) = rows(listed, ENTRY)
        assert entry.endswith(f"?of={name}")
        assert f"{name}.orders/{row}" in words(await read(browser, entry))
        assert f"holder=zombie-of-{name}" in rows(listed, r'href="(/ui/rejections.csv[^"]+)"')[0]
        exported = await read(browser, rows(listed, r'href="(/ui/rejections.csv[^"]+)"')[0])
        assert exported.text.count(f"{name}.orders/{row}") == 1
        # The name of a resource tells its database.
        page = await read(browser, f"/ui/resource?name={name}.orders/{row}")
        assert f"Database {name}" in words(page)
        assert "token 8" in words(page)
        assert all(link.endswith(f"of={name}") for link in rows(page, ENTRY))
        report = await read(browser, f"/ui/resource/report?name={name}.orders/{row}")
        assert f"zombie-of-{name}" in report.text
    await read(browser, "/ui/?database=south")
    assert "south.orders/2" in words(await read(browser, "/ui/rejections"))
    await read(browser, "/ui/?database=*")
    await read(browser, "/ui/rejections", 400)


async def test_the_overview_has_one_verdict_and_the_worst_decides(gateway: Fleet, browser: httpx.AsyncClient) -> None:
    said = r'<p class="said">(.*?)</p>'
    assert "All is quiet" in rows(await read(browser, "/ui/"), said)[0]
    await zombie(gateway, "north", 1)
    await zombie(gateway, "south", 2, writes=2)
    page = await read(browser, "/ui/")
    assert "south" in rows(page, said)[0]
    assert "zombie-of-south" in rows(page, said)[0]
    assert "1 more to look at, 1 of them urgent" in words(page)
    assert "Refused writes of zombies 3" in words(page)
    assert "Incidents going on 2" in words(page)
    for number in range(3, 9):
        await zombie(gateway, "south", number)
    assert "7 more to look at, 7 of them urgent" in words(await read(browser, "/ui/")), "three of them in one sentence"
    gateway.lines["north"].cut()
    page = await read(browser, "/ui/")
    assert "north" in rows(page, said)[0]
    assert "cannot be reached" in rows(page, said)[0]
    assert "zombie-of-south" in words(page)
    assert "Refused writes of zombies 8" in words(page)
    assert "north does not answer: its numbers are missing." in words(page)


@pytest.mark.thorough
async def test_incidents_of_the_overview_are_acknowledged_where_they_are(
    gateway: Fleet, browser: httpx.AsyncClient
) -> None:
    for schema in ("north", "south"):
        await zombie(gateway, schema, 1)
    incidents = rows(await read(browser, "/ui/"), r'<a href="(/ui/incidents/[^"]+)"><time')
    assert [one.rpartition("=")[2] for one in incidents] == ["south", "north"]
    form = rows(await read(browser, incidents[1]), r'action="(/ui/incidents/[^"]+)"')
    assert form[0].endswith("?of=north")
    answer = await browser.post(form[0], data={"note": "Stopped it."})
    assert (answer.status_code, answer.headers["location"]) == (303, incidents[1])
    assert "Stopped it." in words(await read(browser, incidents[1]))
    for name, count in (("north", 1), ("south", 0)):
        query = "SELECT count(*) FROM fencing.record WHERE kind = 'incident-acknowledged'"
        assert await gateway.asked(name, query) == [count]
    states = words(await read(browser, "/ui/"))
    assert "Incidents going on 1 of 2, 1 acknowledged" in states
    assert states.index("going on south") < states.index("acknowledged north")


@pytest.mark.parametrize(
    ("gateway", "trouble"),
    [(PATIENCE, "cut"), pytest.param(SOON, "pause", marks=[pytest.mark.thorough, pytest.mark.nightly])],
    indirect=["gateway"],
)
async def test_a_database_that_is_down_hides_no_other(gateway: Fleet, browser: httpx.AsyncClient, trouble: str) -> None:
    await zombie(gateway, "north", 1)
    getattr(gateway.lines["south"], trouble)()
    async with asyncio.timeout(60):
        assert "south does not answer" in words(await read(browser, "/ui/"))
        for path in LISTS:
            page = await read(browser, f"{path}?of=north")
            if path != "/ui/observe":
                assert "north.orders/1" in words(page), path
            await read(browser, f"{path}?of=south", 503)
        assert (await browser.post("/ui/logout")).status_code == 303
        assert (await browser.post("/ui/login", data={"api_key": API_KEY})).status_code == 303
    gateway.lines["south"].mend()
    gateway.lines["south"].resume()


async def test_callers_without_audit_see_nothing_of_any_database(gateway: Fleet) -> None:
    for schema in ("north", "south"):
        await zombie(gateway, schema, 1)
    headers = {"Origin": gateway.origin}
    async with httpx.AsyncClient(base_url=gateway.origin, headers=headers, timeout=PATIENCE) as client:
        assert (await client.post("/ui/login", data={"api_key": OTHER_KEY})).status_code == 403
        more = ("/ui/live/stream", "/ui/resource?name=south.orders/1", "/ui/rejections.csv?of=south")
        for path in ("/ui/", *LISTS, *more):
            for query in ("", "?of=south", "?database=*"):
                answer = await client.get(path if "?" in path else path + query)
                assert answer.status_code == 303, path
                assert answer.headers["location"].startswith("/ui/login")


@pytest.mark.thorough
async def test_only_a_viewers_own_page_chooses_a_database(gateway: Fleet, browser: httpx.AsyncClient) -> None:
    """Strangers are not told which names exist, and a link on another site changes nothing for a viewer."""
    async with httpx.AsyncClient(base_url=gateway.origin, timeout=PATIENCE) as stranger:
        answers = [await stranger.get(f"/ui/?database={name}") for name in ("south", "nowhere", "*")]
        told = {(one.status_code, one.headers["location"], one.headers.get("set-cookie")) for one in answers}
        assert told == {(303, "/ui/login", None)}
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    for query in ("database=south", "of=south"):
        assert "set-cookie" not in (await browser.get(f"/ui/?{query}", headers=link)).headers
    async with httpx.AsyncClient(base_url=gateway.origin, timeout=PATIENCE) as arriving:  # its session is withheld
        assert "database=south" not in (await arriving.get("/ui/?database=south", headers=link)).text
    own = await browser.get("/ui/?database=south", headers={"Sec-Fetch-Site": "same-origin"})
    assert "gateway_database=south; " in own.headers["set-cookie"]
