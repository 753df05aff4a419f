"""Finding a resource: by its name, by what happened to it."""

import re
from collections.abc import Callable

from playwright.sync_api import Page, expect

from tests.web.incidents import ACCOUNT, HOSTILE, SCHEMES, Incident
from tests.web.stage import Stage
from tests.web.watching import barriers


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


def test_hostile_names_are_text_and_there_are_no_barriers(visit: Callable[..., Page], stage: Stage) -> None:
    Incident(stage, HOSTILE, HOSTILE, HOSTILE).refused(300)
    page = visit("/ui/resources")
    expect(page.get_by_role("table", name="Most refused writes")).to_contain_text("</script>\\u202e")
    expect(page).to_have_title("Resources – Fencing gateway")
    for scheme in SCHEMES:
        page.emulate_media(color_scheme=scheme)
        assert barriers(page) == []


def test_nothing_is_there_yet(visit: Callable[..., Page]) -> None:
    page = visit("/ui/resources")
    expect(page.locator("main")).to_contain_text("No token has been shown to any resource yet.")
