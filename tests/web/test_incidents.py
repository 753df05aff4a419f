"""Incidents: the page at three in the morning, their state and notes, and numbers that agree."""

import json
import re
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from playwright.sync_api import Page, expect

from gateway.fencing.incident import LONGEST_NOTE
from tests import running
from tests.web import story
from tests.web.stage import AUDITOR_KEY, PAGES, Stage, execute, log_in, origin, put_on_record, serving
from tests.web.story import HOSTILE

ORDER = "orders/42"
PLACEHOLDER = re.compile(
    r"(^|[\s>(:])([–—-]|None|null|undefined|NaN|nan|True|False)([\s<).,;]|$)|\{|\}|\[object|datetime\(|Undefined"
)
"""Signs of a value that a template lacks, or was not made for."""


@pytest.fixture
def sections() -> dict[str, Any]:
    return {
        "tables": [{"name": "public.orders"}, {"name": "public.stock", "mode": "observe"}],
        "objects": [{"match": "reports/**"}],
        "grants": [*running.GRANTS, {"callers": ["auditor"], "actions": ["break"], "everything": True}],
    }


def zombie(stage: Stage, count: int = 9, holder: str = "worker-7", minutes: float = 2) -> str:
    """A zombie that has been going on until now; the id of its first refusal."""
    stage.put_on_record(story.zombie(stage.now, ORDER, holder, count, minutes))
    (row,) = stage.sql(
        "SELECT id::text AS id FROM fencing.record WHERE kind = 'rejection' AND holder = $1 ORDER BY at LIMIT 1", holder
    )
    identifier: str = row["id"]
    return identifier


def denials(stage: Stage, count: int = 5) -> None:
    at = stage.now
    lacking = json.dumps({"missing": {"action": "write", "on": "table public.stock"}})
    for number in range(count):
        one = story.rejection(at, f"public.stock/{number}", 1, "importer-3", (1, "x"), reason="denied", details=lacking)
        none = dict.fromkeys(name for name in one if name.startswith("fence_") or name in ("epoch", "value"))
        stage.put_on_record([{**one, **none}])


def figure(page: Page, name: str) -> int:
    """The number of a figure of the overview."""
    shown = page.locator(".figures > div", has_text=name).locator("dd").first
    text = shown.evaluate("cell => cell.firstElementChild ? cell.firstElementChild.innerText : cell.innerText")
    return int(re.sub(r"\D", "", str(text).split("\n")[0]))


def status(page: Page) -> int:
    """The number of entries that a list says it has."""
    return int(re.sub(r"\D", "", page.get_by_role("status").first.inner_text().split("write")[0]))


def test_an_acknowledgement_is_there_for_the_next_person(visit: Callable[..., Page], stage: Stage) -> None:
    identifier = zombie(stage)
    page = visit(f"/ui/incidents/{identifier}")
    page.get_by_label("Note for the next person").fill(HOSTILE)
    page.get_by_role("button", name="Acknowledge").click()
    notes = page.get_by_role("region", name="Acknowledgements")
    expect(notes).to_contain_text("<script>document.title='owned'</script>\\u202e\"'{{7*7}}")
    expect(notes).to_contain_text("auditor")
    expect(page.locator(".page-head .pill")).to_have_text("acknowledged")
    assert page.title() == "Incident – Fencing gateway"
    assert page.locator("main script").count() == 0
    notes.get_by_role("link").first.click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("Incident acknowledged")
    page.goto("/ui/")
    expect(page.get_by_role("region", name="Verdict")).to_contain_text("auditor acknowledged it")
    zombie(stage, count=1, minutes=0)
    page.reload()
    expect(page.get_by_role("region", name="Verdict").locator(".said")).to_contain_text("it has gone on since")
    page.goto("/ui/incidents")
    expect(page.locator("tbody tr").first).to_contain_text("going on again")


def test_numbers_agree_between_pages(visit: Callable[..., Page], stage: Stage) -> None:
    story.tell(stage, stage.now)
    zombie(stage)
    denials(stage)
    page = visit("/ui/")
    zombies, others, passed = (
        figure(page, name)
        for name in ("Refused writes of zombies", "Other refused requests", "Passed, would be refused")
    )
    assert (zombies, others, passed) == (22, 5, 4)
    charted = page.locator("figure details tbody tr").evaluate_all(
        "rows => rows.map(row => [2, 3, 4].map(cell => Number(row.cells[cell].textContent.replace(/\\D/g, ''))))"
    )
    assert [sum(column) for column in zip(*charted, strict=True)] == [zombies, others, passed]
    page.locator(".figures").get_by_role("link", name=str(zombies), exact=True).click()
    assert status(page) == zombies
    page.go_back()
    page.get_by_role("region", name="Reasons", exact=True).get_by_role("link", name="5", exact=True).click()
    assert status(page) == others
    page.goto("/ui/incidents")
    expect(page.get_by_role("status")).to_contain_text(f"8 incidents with {zombies + others + passed} writes")
    counts = [int(re.sub(r"\D", "", count)) for count in page.locator("td.count").all_inner_texts()]
    assert (sum(counts[::2]), sum(counts[1::2])) == (zombies + others, passed)
    page.locator("tbody tr", has_text=ORDER).locator("td.count a").click()
    entries = page.get_by_role("region", name="Its writes", exact=True).locator("tbody tr")
    expect(entries).to_have_count(9)
    page.goto(f"/ui/resource?name={ORDER}")
    expect(page.get_by_role("region", name="Refused writes in this time").first).to_contain_text("9 writes")
    page.goto("/ui/resources")
    expect(
        page.get_by_role("region", name="Most refused writes", exact=True).get_by_role("row", name=ORDER)
    ).to_contain_text("9")
    with stage.api(AUDITOR_KEY) as api:
        told = api.get("/v1/incidents").json()["incidents"]
        assert sum(one["count"] for one in told) == api.get("/v1/rejections").json()["total"]


def test_a_barrier_of_a_zombie_is_counted_beside_its_writes(visit: Callable[..., Page], stage: Stage) -> None:
    """A figure, and a bar, lead to a list of as many entries as they say."""
    zombie(stage)
    stage.put_on_record([story.rejection(stage.now, ORDER, 33, "worker-7", (34, "worker-9"), plane="api", rule=None)])
    page = visit("/ui/")
    tile = page.locator(".figures > div", has_text="Refused writes of zombies")
    expect(tile).to_contain_text("and 1 of their requests that is no write")
    assert figure(page, "Refused writes of zombies") == 9
    tile.get_by_role("link").click()
    assert status(page) == 9 + 1
    page.go_back()
    page.get_by_text("As a table").click()
    rows = page.locator("figure details tbody tr", has=page.locator("td.count a[href*='enforced=true']"))
    counts = [
        int(re.sub(r"\D", "", count))
        for count in rows.first.locator("td.count:has(a[href*='enforced='])").all_inner_texts()
    ]
    rows.first.locator("td.count a[href*='enforced=true']").first.click()
    assert status(page) == sum(counts)


def test_no_placeholder_is_ever_shown(visit: Callable[..., Page], stage: Stage) -> None:
    page = visit("/ui/")

    def walk(paths: list[str]) -> None:
        for path in paths:
            page.goto(path)
            for closed in page.locator("summary").all():
                closed.click()
            for line in page.locator("main").inner_text().splitlines():
                for cell in line.split("\t"):
                    assert not PLACEHOLDER.search(cell), (path, line)

    walk([*PAGES, "/ui/?span=1h", "/ui/?span=30d", "/ui/incidents?holder=nobody"])
    story.tell(stage, stage.now)
    identifier = zombie(stage)
    denials(stage)
    bare = {"kind": "rejection", "reason": "token-required", "enforced": True, "caller": "bare"}
    stage.put_on_record([bare, {"kind": "lease-granted"}, {"kind": "guard-refused", "caller": "role:jobs"}])
    stage.put_on_record([{"kind": "administration", "details": json.dumps({"a": {"b": [1, None, True]}, "c": None})}])
    with stage.api(AUDITOR_KEY) as api:
        assert api.post(f"/v1/incidents/{identifier}/acknowledgements", json={}).status_code == 200
    rows = stage.sql("SELECT id, kind FROM fencing.record")
    refused = [f"/ui/rejections/{row['id']}" for row in rows if row["kind"] == "rejection"][::5]
    last = stage.sql("SELECT id FROM fencing.record WHERE caller = 'bare'")[0]["id"]
    kinds = {row["kind"]: f"/ui/events/{row['id']}" for row in rows if row["kind"] != "rejection"}
    refused.append(f"/ui/rejections/{last}")
    incidents = [path.replace("rejections", "incidents") for path in refused]
    resources = [f"/ui/resource?name={name}" for name in (ORDER, story.ORDER, "public.stock/1")]
    walk([*PAGES, "/ui/?span=1h", "/ui/?span=30d", *refused, *incidents, *kinds.values(), *resources])


BREAK = {"callers": ["auditor"], "actions": ["break"], "resources": ["public.orders/**"]}
GRANTED = {"grants": [*running.GRANTS, BREAK]}


async def on_record(dsn: str, kind: str) -> list[dict[str, Any]]:
    sql = "SELECT id::text, caller, reason FROM fencing.record WHERE kind = $1"
    return [dict(row) for row in await execute(dsn, [(sql, (kind,))])]


async def incident(dsn: str) -> str:
    """The path of an incident's page."""
    await put_on_record(dsn)
    return f"/ui/incidents/{(await on_record(dsn, 'rejection'))[0]['id']}"


async def send(client: httpx.AsyncClient, path: str, note: str = "on it", **headers: str) -> httpx.Response:
    return await client.post(f"{path}/acknowledge", data={"note": note}, headers=headers)


async def test_a_note_is_put_on_record_and_leads_back(dsn: str) -> None:
    """Forms of other sites are refused. A note that cannot be kept comes back with the problem."""
    path = await incident(dsn)
    async with serving(dsn, **GRANTED) as client:
        await log_in(client)
        assert "<textarea" in (await client.get(path)).text
        for sent in ({}, {"Origin": "https://evil.example"}, {"Origin": "null"}):
            assert (await send(client, path, **sent)).status_code == 403
        assert (await client.get(f"{path}/acknowledge")).status_code == 405
        for note in ("x" * (LONGEST_NOTE + 1), "a\0b"):
            answer = await send(client, path, note, **origin(client))
            assert (answer.status_code, 'role="alert"' in answer.text) == (400, True)
        assert (await send(client, path, "x" * 20_000, **origin(client))).status_code == 400
        assert (await client.get("/ui/incidents/nonsense")).status_code == 404
        assert await on_record(dsn, "incident-acknowledged") == []
        answer = await send(client, path, **origin(client))
        assert (answer.status_code, answer.headers["location"]) == (303, path)
        assert "on it" in (await client.get(path)).text
    (entry,) = await on_record(dsn, "incident-acknowledged")
    assert entry["caller"] == "auditor"


async def test_readers_without_the_grant_have_no_form_and_are_denied_on_record(dsn: str) -> None:
    path = await incident(dsn)
    async with serving(dsn) as client:
        assert (await send(client, path, **origin(client))).status_code == 303
        await log_in(client)
        page = await client.get(path)
        assert "<textarea" not in page.text
        assert "needs the grant <code>break</code> on this resource" in page.text
        assert (await send(client, path, **origin(client))).status_code == 403
    assert await on_record(dsn, "incident-acknowledged") == []
    assert [one["caller"] for one in await on_record(dsn, "rejection") if one["reason"] == "denied"] == ["auditor"]
