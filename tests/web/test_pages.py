"""The pages in a browser: their content, times, links and documentation, and that all people can use them."""

import json
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from docs.generator import screenshots
from docs.generator.pictures import FOLDER
from tests import ROOT, running
from tests.waiting import PATIENCE
from tests.web import story
from tests.web.stage import AUDITOR_KEY, CALLERS, PAGES, Stage, staged
from tests.web.story import SCHEMES
from tests.web.watching import barriers

HOSTILE = {
    "script": "<script>document.title='taken'</script><img src=x onerror=alert(1)>",
    "attribute": "\"' onmouseover=alert(1) x='",
    "terminal": "a\x1b[2Jb\x07\x9b31m",
    "turned": "invoice\u202efdp.exe\u2066\u200b\u00a0end",
    "template": "{{ 7 * 7 }}{% raw %}",
}


@pytest.fixture
def sections() -> dict[str, Any]:
    return {
        "tables": [{"name": "public.orders"}, {"name": "public.stock", "mode": "observe"}],
        "objects": [{"match": "reports/**"}, {"match": "idle/**", "mode": "observe"}],
    }


def hostile(at: datetime, text: str) -> list[dict[str, Any]]:
    """Entries that have a text wherever one can stand; their resources are as long as they may be."""
    named = {"caller": text, "target": text, "client": text, "request_id": text, "rule": text, "reason": text}
    details = json.dumps({text: text, "list": [text]})
    return [
        story.rejection(at, (text * 60)[:512], 1, text, (2, text), **named),
        {**story.entry("administration", at, text, holder=text, caller=text, target=text), "details": details},
    ]


def rejection(stage: Stage, caller: str) -> str:
    """Return the path of a page that shows a rejection of this caller."""
    (row, *_) = stage.sql("SELECT id FROM fencing.record WHERE kind = 'rejection' AND caller = $1", caller)
    return f"/ui/rejections/{row['id']}"


def everywhere(stage: Stage) -> list[str]:
    """All pages, with something on them."""
    story.tell(stage, stage.now)
    stage.put_on_record([alarm(stage), {"kind": "guard-refused", "at": stage.now, "caller": "role:jobs"}])
    events = stage.sql("SELECT DISTINCT ON (kind) id FROM fencing.record WHERE kind <> 'rejection' ORDER BY kind")
    resources = [f"/ui/resource?name={name}" for name in (story.COMPACTION, story.ORDER)]
    refused = rejection(stage, "compactor")
    lists = [*PAGES, "/ui/rejections?holder=nobody", *resources]
    return [*lists, refused, refused.replace("rejections", "incidents"), *(f"/ui/events/{row['id']}" for row in events)]


def alarm(stage: Stage, name: str = "compactor-a") -> dict[str, Any]:
    """An alarm about the refused writes there are."""
    (first, last, *_) = stage.sql(
        "SELECT id::text AS id, at FROM fencing.record WHERE kind = 'rejection' AND enforced ORDER BY at LIMIT 2"
    )
    said = {
        "alarm": "zombies",
        "prefix": "",
        "more_than": 1,
        "minutes": 5,
        "count": 2,
        "reached": last["at"].isoformat(),
        "resources": [{"name": name, "count": 2}],
        "holders": [{"name": name, "count": 1}, {"name": None, "count": 1}],
        "callers": [{"name": name, "count": 2}],
        "rejections": [last["id"], first["id"]],
    }
    return {"kind": "alarm-raised", "at": stage.now, "details": json.dumps(said)}


def facts(page: Page, heading: str) -> Locator:
    """A section of a page."""
    return page.get_by_role("region", name=heading, exact=True)


def test_a_rejection_has_a_page_with_all_that_belongs_to_it(visit: Callable[..., Page], stage: Stage) -> None:
    story.tell(stage, stage.now)
    stage.sql("SELECT fencing.seal_v1(1000)")
    page = visit(rejection(stage, "compactor"))
    main = page.get_by_role("main")
    expect(page.get_by_role("heading", level=1)).to_have_text(f"Refused write to {story.COMPACTION}")
    expect(main).to_contain_text("20 seconds after compactor-b (caller compactor) had taken over with token 34")
    expect(facts(page, "The write")).to_contain_text("PUT /reports/2026/compaction/part-00000.parquet")
    expect(facts(page, "The writer")).to_contain_text("10.0.4.17")
    expect(facts(page, "The takeover")).to_contain_text("Zombie for")
    expect(facts(page, "Next steps")).to_contain_text("there is nothing to undo")
    expect(facts(page, "On record")).to_contain_text("Hash")
    others = facts(page, "Other refused writes of compactor").first
    expect(others.locator("tbody tr")).to_have_count(10)
    page.get_by_role("link", name="Taken over by a barrier").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("Taken over by a barrier")


def test_a_captured_payload_is_shown(visit: Callable[..., Page], stage: Stage) -> None:
    story.tell(stage, stage.now)
    (row,) = stage.sql("SELECT id FROM fencing.record WHERE caller = 'cron' AND kind = 'rejection'")
    stage.sql(
        "INSERT INTO fencing.payload (day, entry, media_type, body, truncated) "
        "VALUES (current_date, $1, 'application/json', $2, true)",
        row["id"],
        b'{"note": "<b>bold</b> \xe2\x80\xae"}\n{"cut": "\xc3',
    )
    page = visit(f"/ui/rejections/{row['id']}")
    expect(page.get_by_label("Payload", exact=True).last).to_contain_text('{"note": "<b>bold</b> \\u202e"}')
    expect(facts(page, "Payload")).to_contain_text("application/json, its beginning only")


def test_observe_mode_has_a_verdict_for_each_rule(visit: Callable[..., Page], stage: Stage) -> None:
    story.tell(stage, stage.now)
    page = visit("/ui/observe")
    stock, idle = facts(page, "public.stock").first, facts(page, "idle/**").first
    expect(stock).to_contain_text(re.compile(r"Not ready: 4 of \d+.\d{3} writes would have been refused"))
    expect(idle).to_contain_text("Unknown")
    expect(stock).to_contain_text("1 of 1 callers on record would be refused: 1 writer with the reason overtaken token")
    expect(stock.get_by_role("row", name="importer importer-1 overtaken token 4")).to_have_count(1)
    expect(stock.get_by_role("row", name="public.stock/3 1")).to_have_count(1)
    stock.get_by_text("Change of the configuration").click()
    expect(stock.locator("pre")).to_have_text('[[tables]]\nname = "public.stock"\nmode = "enforce"')
    stock.get_by_role("link", name="4", exact=True).click()
    expect(page.get_by_role("status")).to_have_text("4 writes")
    expect(page).to_have_url(
        re.compile("caller=importer&reason=token-stale&rule=public.stock&plane=tables&enforced=false")
    )


@pytest.fixture
def sample() -> Iterator[str]:
    """The address of the demo's sample at a fixed time. No loop runs in this thread, as one does in Playwright's."""
    if screenshots.FAKETIME is None:
        pytest.skip("there is no faketime: the pictures of the page are not compared")
    with screenshots.served() as url:
        yield url


def test_the_pictures_in_the_readme_show_what_the_page_shows(browser: Browser, sample: str) -> None:
    for name, taken in screenshots.take(sample, browser).items():
        shown = (FOLDER / f"{name}.txt").read_text()
        assert taken.text == shown, f"docs/pictures/{name}.png is old: run make screenshots"
        assert len((FOLDER / f"{name}.png").read_bytes()) < 150_000
        assert taken.picture.startswith(b"\x89PNG")
        assert f"docs/pictures/{name}.png" in (ROOT / "README.md").read_text()


def test_hostile_names_do_no_harm(visit: Callable[..., Page], stage: Stage) -> None:
    at = stage.now
    stage.put_on_record([row for text in HOSTILE.values() for row in hostile(at, text)])
    stage.put_on_record([alarm(stage, text) for text in HOSTILE.values()])
    for text in HOSTILE.values():
        stage.sql(
            "INSERT INTO fencing.traffic (gateway, minute, plane, rule, accepted, refused, observed) "
            "VALUES ('g', date_trunc('minute', $1::timestamptz), 'tables', $2, 1, 1, 1)",
            at,
            text,
        )
    found = stage.sql("SELECT id, kind FROM fencing.record")
    entries = [f"/ui/{'rejections' if row['kind'] == 'rejection' else 'events'}/{row['id']}" for row in found]
    page = visit("/ui/", viewport={"width": 360, "height": 800})
    incidents = [path.replace("rejections", "incidents") for path in entries if "rejections" in path]
    resources = [f"/ui/resource?name={quote((text * 60)[:512])}" for text in HOSTILE.values()]
    for path in (*resources, *PAGES, *entries, *incidents):
        page.goto(path)
        assert page.title().endswith("– Fencing gateway")
        assert page.locator("main img, main script, main [onmouseover], main [onerror]").count() == 0
        shown = page.locator("main").inner_text()
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2060-\u2069]", shown)
        # The page itself never has to be scrolled sideways.
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
    page.goto("/ui/rejections?holder=nobody")
    for text in HOSTILE.values():
        page.get_by_label("Holder").fill(text)
        expect(page.locator("#list tbody tr")).to_have_count(1)
        assert page.locator("#list .name").all_inner_texts()[1] == "".join(
            character
            if " " <= character <= "~"
            else f"\\x{ord(character):02x}"
            if character < "\u0100"
            else f"\\u{ord(character):04x}"
            for character in text
        )
        page.get_by_label("Holder").fill("nobody")
        expect(page.locator("#list tbody tr")).to_have_count(0)


def test_nobody_is_kept_out(visit: Callable[..., Page], stage: Stage) -> None:
    """axe-core checks contrast, names, landmarks and tables."""
    paths = everywhere(stage)
    page = visit("/ui/login", logged_in=False)
    for scheme in SCHEMES:
        page.emulate_media(color_scheme=scheme)
        assert barriers(page) == [], scheme
    page = visit("/ui/")
    for path in paths:
        page.goto(path)
        for closed in page.locator("summary").all():
            closed.click()
        for scheme in SCHEMES:
            page.emulate_media(color_scheme=scheme)
            assert barriers(page) == [], (path, scheme)


@pytest.mark.parametrize("width", [360, 1600])
def test_every_width_will_do_and_local_times_stay_within_their_cards(
    visit: Callable[..., Page], stage: Stage, width: int
) -> None:
    """A viewer away from UTC sees two times, and neither is cut off."""
    paths = everywhere(stage)
    page = visit("/ui/", timezone_id="Asia/Kolkata", viewport={"width": width, "height": 900})
    for path in paths:
        page.goto(path)
        if page.locator("main time").count():
            expect(page.locator("main time .local").first).to_be_attached()
        outside = page.evaluate("""() => [...document.querySelectorAll("main time")].filter(time => {
            const card = time.closest(".scroll, .canvas") === null && time.closest(".card");
            return card && time.getBoundingClientRect().right > card.getBoundingClientRect().right;
        }).map(time => time.innerText)""")
        assert outside == [], path
        assert page.evaluate("document.documentElement.scrollWidth") <= width, path


def test_a_keyboard_is_enough(visit: Callable[..., Page], stage: Stage) -> None:
    story.tell(stage, stage.now)
    page = visit("/ui/")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("main")).to_be_focused()
    page.goto("/ui/")
    page.get_by_role("link", name="Overview").focus()
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Incidents", exact=True)).to_be_focused()
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Rejections", exact=True)).to_be_focused()
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    page.keyboard.press("Enter")
    expect(page).to_have_title("Rejections – Fencing gateway")
    page.get_by_label("Resource begins with").focus()
    page.keyboard.type("public.orders")
    page.keyboard.press("Enter")
    expect(page.get_by_role("status")).to_have_text("1 write")
    # Slow typing has already asked for the list: it arrives once more, and takes the focus away.
    expect(page.locator("form.filters.htmx-request")).to_have_count(0)
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.closest('tbody') !== null"):
            break
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text(f"Refused write to {story.ORDER}")


def test_without_scripts_it_all_works(visit: Callable[..., Page], stage: Stage) -> None:
    story.tell(stage, stage.now)
    page = visit("/ui/", java_script_enabled=False)
    page.get_by_text("As a table").click()
    expect(page.get_by_role("table", name="Writes from each of these times on, until the next")).to_be_visible()
    page.get_by_role("link", name="Rejections", exact=True).click()
    page.get_by_label("Resource begins with").fill("public.")
    page.get_by_role("button", name="Filter").click()
    expect(page.get_by_role("status")).to_have_text("5 writes")
    page.get_by_role("button", name="Dark").click()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    expect(page.get_by_role("status")).to_have_text("5 writes")
    page.locator("#list tbody a").first.click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("public.stock/3")
    page.get_by_role("button", name="Log out").click()
    expect(page).to_have_title("Log in – Fencing gateway")


def test_colours_are_a_choice_that_stays(visit: Callable[..., Page], stage: Stage) -> None:
    story.tell(stage, stage.now)
    page = visit("/ui/", color_scheme="light")
    ground = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(ground) == "rgb(245, 246, 248)"
    page.evaluate("window.stayed = true")
    page.get_by_role("button", name="Dark").click()
    expect(page.get_by_role("button", name="Dark")).to_have_attribute("aria-pressed", "true")
    assert page.evaluate(ground) == "rgb(14, 19, 24)"
    assert page.evaluate("window.stayed")
    page.goto("/ui/rejections")
    assert page.evaluate(ground) == "rgb(14, 19, 24)"
    page.get_by_role("button", name="System").click()
    expect(page.locator("html")).to_have_attribute("data-theme", "system")
    assert page.evaluate(ground) == "rgb(245, 246, 248)"


def test_the_overview_renews_itself(visit: Callable[..., Page], stage: Stage) -> None:
    page = visit("/ui/")
    expect(page.locator(".figures")).to_contain_text(re.compile(r"Refused writes of zombies\s*0"))
    story.tell(stage, datetime.now(UTC))
    # A timer does this every half a minute.
    page.evaluate("htmx.ajax('GET', '/ui/', {source: '#overview', target: '#overview', select: '#overview > *'})")
    expect(page.locator(".figures")).to_contain_text(re.compile(r"Refused writes of zombies\s*13"))


NOON = datetime(2026, 3, 1, 20, 4, 5, tzinfo=UTC)
TRACE = "0af7651916cd43dd8448eb211c80319c"


def refuse(stage: Stage, **columns: Any) -> str:
    """Put a refused write at noon on record; its page."""
    stage.put_on_record([{**story.rejection(NOON, "public.orders/5", 33, "worker-a", (34, "worker-b")), **columns}])
    (row,) = stage.sql("SELECT id FROM fencing.record ORDER BY at DESC LIMIT 1")
    return f"/ui/rejections/{row['id']}"


ZONES = {"America/New_York": " (15:04:05 UTC-05)", "Asia/Kolkata": " (2026-03-02 01:34:05 UTC+05:30)", "UTC": ""}


def test_times_are_those_of_the_viewer_too(visit: Callable[..., Page], stage: Stage) -> None:
    path, utc = refuse(stage), "2026-03-01 20:04:05 UTC"
    for zone, local in ZONES.items():
        page = visit("/ui/rejections", timezone_id=zone)
        expect(page.locator("tbody th time").first).to_have_text(utc + local)
        page.goto(path)
        expect(page.locator(".page-head time")).to_have_text(utc + local)
        # A list that comes later, by a filter.
        page.goto("/ui/rejections?holder=nobody")
        page.get_by_label("Holder").fill("worker-a")
        expect(page.locator("tbody th time")).to_have_text(utc + local)
    live = visit("/ui/live", timezone_id="Asia/Kolkata")
    expect(live.locator("#connection")).to_have_text("live")
    refuse(stage)
    expect(live.locator("#live time").first).to_have_text(utc + ZONES["Asia/Kolkata"])
    plain = visit("/ui/rejections", timezone_id="Asia/Kolkata", java_script_enabled=False)
    expect(plain.locator("tbody th time").first).to_have_text(utc)


def test_only_a_session_is_logged_out(visit: Callable[..., Page], dsn: str, context: Callable[..., Any]) -> None:
    page = visit("/ui/events")
    expect(page.get_by_role("button", name="Log out")).to_be_visible()
    expect(page.get_by_role("link", name="Log in")).to_have_count(0)
    everyone = [{"callers": ["anonymous"], "actions": ["audit"], "everything": True}]
    with staged(running.config(dsn, callers=CALLERS, grants=everyone)) as trial:
        page = context(logged_in=False).new_page()
        page.goto(f"{trial.origin}/ui/events?plane=tables")
        expect(page.get_by_role("button", name="Log out")).to_have_count(0)
        page.get_by_role("link", name="Log in").click()
        expect(page).to_have_url(f"{trial.origin}/ui/login?next=%2Fui%2Fevents%3Fplane%3Dtables")
        expect(page.get_by_role("link", name="Log in")).to_have_count(0)
        page.close()
    with staged(running.config(dsn, callers=[], grants=everyone)) as demo:
        page = context(logged_in=False).new_page()
        page.goto(f"{demo.origin}/ui/events")
        expect(page.get_by_role("heading", level=1)).to_have_text("Events")
        for role in ("link", "button"):
            expect(page.get_by_role(role, name=re.compile("^Log "))).to_have_count(0)
        page.close()


def test_a_wrong_address_helps(visiting: Callable[..., Any], stage: Stage) -> None:
    page, watch = visiting("/ui/")
    watch.expected.append("status of 404")
    page.goto("/ui/rejection")
    expect(page.get_by_role("alert")).to_have_text("There is no page at /ui/rejection.")
    expect(page.get_by_role("main").get_by_role("link", name="Rejections").first).to_have_attribute(
        "href", "/ui/rejections"
    )
    for name in ("Overview", "Events", "Resources", "Live", "Observe"):
        expect(page.get_by_role("main").get_by_role("link", name=name)).to_be_visible()
    refuse(stage)
    page.goto("/ui/resources/public.orders/5")
    expect(page.get_by_role("main")).to_contain_text("Did you mean Resources?")
    field = page.get_by_label("Find a resource whose name begins with")
    expect(field).to_have_value("public.orders/5")
    page.goto("/ui/resource?name=public.orders/55")
    page.get_by_role("link", name="Find resources that begin with public.orders").click()
    expect(page).to_have_url(f"{stage.origin}/ui/resources?prefix=public.orders")
    page.goto("/ui/%3Cimg%20src=x%20onerror=alert(1)%3E%E2%80%AE")
    expect(page.get_by_role("alert")).to_contain_text("<img src=x onerror=alert(1)>\\u202e")


def test_a_program_gets_a_problem_document(stage: Stage) -> None:
    sent = {"Accept": "application/json"}
    cookies = {"gateway_session": stage.session()}
    for path, status in (("/ui/nothing", 404), ("/ui/rejections/5", 404), ("/ui/resource", 400)):
        answer = httpx.get(stage.origin + path, headers=sent, cookies=cookies, timeout=PATIENCE)
        assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json"), path
        assert answer.json()["status"] == status
    stranger = httpx.get(f"{stage.origin}/ui/nothing", headers=sent, timeout=PATIENCE)
    assert stranger.status_code == 401
    assert "/v1/events" in stranger.json()["advice"]


def test_operations_are_shown_and_nothing_is_asked_of_another_host(visit: Callable[..., Page], stage: Stage) -> None:
    """An address cannot name another description."""
    page = visit("/v1/docs", logged_in=False)
    described = httpx.get(f"{stage.origin}/v1/openapi.json", timeout=PATIENCE).json()
    operations = page.locator(".opblock")
    expect(operations).to_have_count(sum(len(one) for one in described["paths"].values()))
    page.get_by_role("button", name="Whole record, newest first").first.click()
    page.goto("/v1/docs?url=https://elsewhere.example/openapi.json&configUrl=https://elsewhere.example/config.json")
    expect(page.locator(".info .title")).to_contain_text("Fencing gateway")


def opened(page: Page, text: str) -> Locator:
    """An operation of the description that is about to be tried out with the key of the auditor."""
    page.get_by_role("button", name="Authorize").first.click()
    page.get_by_label("auth-bearer-value").fill(AUDITOR_KEY)
    page.locator(".auth-btn-wrapper").get_by_role("button", name="Apply credentials").click()
    page.locator(".auth-btn-wrapper").get_by_role("button", name="Close").click()
    operation = page.locator(".opblock", has=page.get_by_text(text, exact=True))
    operation.locator(".opblock-summary-control").click()
    operation.get_by_role("button", name="Try it out").click()
    return operation


def test_a_name_is_sent_as_it_is_typed(visit: Callable[..., Page], stage: Stage) -> None:
    stage.sql("CREATE TABLE public.txt (name text PRIMARY KEY)")  # only the name of a row may have %2F
    operation = opened(visit("/v1/docs", logged_in=False), "Read a fence")
    for name in ("order/5", "public.txt/c%2Fd", "public.txt/50%25", "t/a+b;c%3Dd@e:f%20g"):
        operation.get_by_placeholder("resource").fill(name)
        operation.get_by_role("button", name="Execute").click()
        expect(operation.locator(".live-responses-table .response-col_description").last).to_contain_text(
            f'"resource": "{name}"'
        )
