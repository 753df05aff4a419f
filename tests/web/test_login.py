"""Coming in and going out, by hand."""

from collections.abc import Callable

from playwright.sync_api import Page, expect

from tests.web.stage import AUDITOR_KEY, Stage


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
