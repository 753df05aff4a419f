"""The pages of resources: found by name or by events; what happened can be read, pointed at and zoomed."""

import re
from collections.abc import Callable
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Page, expect

from tests.web.stage import Stage
from tests.web.story import ACCOUNT, SCHEMES, Incident
from tests.web.watching import Watch, barriers

PAGE = f"/ui/resource?name={ACCOUNT}"


@pytest.fixture
def incident(stage: Stage) -> Incident:
    made = Incident(stage)
    made.refused(260, 700, 1089)
    return made


def test_a_mark_tells_who_and_what_to_pointer_and_keyboard_and_leads_to_its_entry(
    visit: Callable[..., Page], incident: Incident, stage: Stage
) -> None:
    page = visit(PAGE)
    mark, tip = page.locator(".timeline .canvas a.mark").nth(1), page.locator(".tip")
    expect(tip).to_be_hidden()
    mark.hover()
    expect(tip).to_be_visible()
    expect(tip).to_have_text(
        re.compile(r"^Refused: a write of writer-a \(token 33\) at .*, 7 minutes 33 seconds after")
    )
    page.mouse.move(1, 1)
    expect(tip).to_be_hidden()
    page.locator(".timeline .canvas .takeover").focus()
    expect(tip).to_have_text(re.compile(r"writer-b \(token 34\) took over from writer-a \(token 33\)"))
    page.keyboard.press("Tab")
    expect(page.locator(".timeline .canvas a.mark").first).to_be_focused()
    expect(tip).to_contain_text("13 seconds after it was overtaken")
    page.keyboard.press("Enter")
    newest_last = stage.sql("SELECT id FROM fencing.record WHERE kind = 'rejection' ORDER BY at")
    expect(page).to_have_url(f"{stage.origin}/ui/rejections/{newest_last[0]['id']}")


def test_links_zoom_and_so_does_dragging(visit: Callable[..., Page], incident: Incident) -> None:
    page = visit(PAGE)
    page.get_by_role("link", name="Zoom in").click()
    expect(page.locator(".timeline .canvas a.mark")).to_have_count(2)
    page.get_by_role("link", name="Zoom out").click()
    expect(page.locator(".timeline .canvas a.mark")).to_have_count(3)
    page.goto(PAGE)
    first, last = (page.locator(".timeline .canvas a.mark").nth(one).bounding_box() for one in (1, 2))
    box = page.locator(".timeline .canvas svg").bounding_box()
    assert first is not None
    assert last is not None
    assert box is not None
    y = box["y"] + box["height"] * 0.6
    page.mouse.move(first["x"] - 40, y)
    page.mouse.down()
    page.mouse.move(last["x"] - 40, y, steps=4)
    with page.expect_navigation():
        page.mouse.up()
    asked = parse_qs(urlsplit(page.url).query)
    assert set(asked) == {"name", "since", "until"}
    expect(page.locator(".timeline .canvas a.mark")).to_have_count(1)
    expect(page.locator(".timeline .canvas a.mark")).to_have_attribute(
        "aria-label", re.compile("7 minutes 33 seconds after")
    )


def test_bad_addresses_are_told_so(visiting: Callable[..., tuple[Page, Watch]]) -> None:
    page, watch = visiting("/ui/resources")
    watch.expected.append("400")
    for asked in (
        "",
        "?name=x&since=yesterday",
        "?name=x&since=2026-01-02T00:00&until=2026-01-01T00:00",
        "?name=x&since=0001-01-02T00:00",
        "?name=x&until=9999-12-31T23:59:59",
        "?name=a%00b",
    ):
        answer = page.goto(f"/ui/resource{asked}")
        assert answer is not None
        assert answer.status == 400, asked
        expect(page.get_by_role("alert")).to_be_visible()


def test_a_hundred_holders_are_summed_up(visit: Callable[..., Page], stage: Stage) -> None:
    stage.sql(
        """INSERT INTO fencing.intake (at, kind, resource, epoch, value, holder, caller, fence_epoch, fence_value,
               fence_holder, fence_caller, fence_raised_at)
           SELECT now() - make_interval(secs => 1000 - i), 'raised', 'busy', 0, i + 1, 'job-' || i + 1, 'worker', 0, i,
               'job-' || i, 'worker', now() - make_interval(secs => 1001 - i)
           FROM generate_series(1, 100) AS i ORDER BY i"""
    )
    stage.sql(
        """INSERT INTO fencing.intake (at, kind, plane, resource, reason, enforced, epoch, value, holder, caller)
           SELECT now() - make_interval(secs => 500 - i), 'rejection', CASE WHEN i % 5 = 0 THEN 'api' ELSE 'tables' END,
               'busy', 'token-stale', true, 0, 40, 'job-40', 'worker'
           FROM generate_series(1, 200) AS i ORDER BY i"""
    )
    page = visit("/ui/resource?name=busy")
    expect(page.locator(".rest").first).to_contain_text(
        re.compile(r"^9\d more holders are not drawn, none of them with")
    )
    bars = page.locator(".timeline a.bar").evaluate_all("all => all.map(one => one.textContent + one.ariaLabel)")
    assert any("other requests, 0 takeovers" in bar for bar in bars), bars
    expect(page.locator(".timeline .canvas .who", has_text="job-40")).to_have_count(1)
    expect(page.locator(".timeline .canvas .who", has_text="job-41")).to_have_count(1)
    assert page.locator(".timeline .canvas .who").count() <= 12
    assert barriers(page) == []
    page.locator(".timeline a.bar").last.click()
    expect(page).to_have_url(re.compile("since="))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_on_paper_nothing_is_cut_off_and_the_ground_is_white(
    visit: Callable[..., Page], incident: Incident, scheme: str
) -> None:
    """A sheet cannot be scrolled: what was tried stands in the last column of all."""
    incident.refused(250, 260)
    page = visit(f"/ui/resource?name={incident.resource}", color_scheme=scheme, viewport={"width": 720, "height": 1000})
    page.get_by_text("Dark", exact=True).click()
    page.emulate_media(media="print")
    cut = page.evaluate(
        """() => [...document.querySelectorAll("main .scroll, main .canvas")]
            .filter(one => one.checkVisibility() && one.scrollWidth > one.clientWidth + 1).map(one => one.className)"""
    )
    assert cut == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.evaluate("getComputedStyle(document.documentElement).colorScheme") == "light"


def test_those_with_refused_writes_and_those_taken_over_are_named(visit: Callable[..., Page], stage: Stage) -> None:
    Incident(stage).refused(300, 301, 302)
    Incident(stage, "orders/2").refused(300)
    Incident(stage, "quiet/3")
    page = visit("/ui/resources")
    troubled = page.get_by_role("table", name="Most refused writes").get_by_role("row")
    expect(troubled.nth(1)).to_contain_text(re.compile(rf"{ACCOUNT}\s*3"))
    expect(troubled.nth(2)).to_contain_text(re.compile(r"orders/2\s*1"))
    expect(page.get_by_role("table", name="Taken over lately").get_by_role("row")).to_have_count(4)
    expect(page.get_by_role("table", name="Resources by name").get_by_role("row")).to_have_count(4)
    page.get_by_role("table", name="Most refused writes").get_by_role("link", name=ACCOUNT).click()
    expect(page.locator(".headline")).to_contain_text("tried 3 more writes")


def test_a_beginning_finds_them_and_a_whole_name_leads_there(visit: Callable[..., Page], stage: Stage) -> None:
    for name in ("orders/1", "orders/2", "orders/20"):
        Incident(stage, name)
    page = visit("/ui/resources")
    page.get_by_label("Name begins with").fill("orders/2")
    page.keyboard.press("Enter")
    expect(page.get_by_role("table", name="Resources by name").get_by_role("row")).to_have_count(3)
    page.get_by_label("Name begins with").fill("orders/20")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(r"/ui/resource\?name=orders%2F20$"))


def test_many_are_on_pages(visit: Callable[..., Page], stage: Stage) -> None:
    stage.sql(
        "INSERT INTO fencing.fence (resource, epoch, value, caller, raised_at) "
        "SELECT 'many/' || to_char(i, 'FM000'), 0, 1, 'worker', now() FROM generate_series(1, 60) AS i"
    )
    page = visit("/ui/resources?prefix=many/")
    expect(page.get_by_role("table", name="Resources by name").get_by_role("row")).to_have_count(51)
    page.get_by_role("link", name="More →").click()
    expect(page.get_by_role("link", name="many/060")).to_be_visible()
    page.get_by_role("link", name="From the beginning").click()
    expect(page.get_by_role("link", name="many/001")).to_be_visible()
