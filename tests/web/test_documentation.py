"""The description of the fencing API: shown from the gateway's own files, by the policy of the page."""

from collections.abc import Callable
from urllib.parse import urlsplit

import httpx
import pytest
from playwright.sync_api import BrowserContext, Page, Route, expect

from tests.waiting import PATIENCE
from tests.web.stage import AUDITOR_KEY, Stage
from tests.web.watching import Watch


def cut_off(context: BrowserContext, host: str) -> list[str]:
    """From here on there is no other network than the gateway; the list is of what was asked of others."""
    refused: list[str] = []

    def decide(route: Route) -> None:
        if urlsplit(route.request.url).netloc == host:
            route.continue_()
        else:
            refused.append(route.request.url)
            route.abort()

    context.route("**/*", decide)
    return refused


def test_operations_are_shown_without_any_other_network(
    visiting: Callable[..., tuple[Page, Watch]], stage: Stage
) -> None:
    page, _ = visiting("/ui/login", logged_in=False)
    refused = cut_off(page.context, stage.host)
    page.goto("/v1/docs")
    described = httpx.get(f"{stage.origin}/v1/openapi.json", timeout=PATIENCE).json()
    operations = page.locator(".opblock")
    expect(operations).to_have_count(sum(len(one) for one in described["paths"].values()))
    page.get_by_role("button", name="Whole record, newest first").first.click()
    assert not refused


def test_it_is_dark_if_the_system_is(visit: Callable[..., Page]) -> None:
    page = visit("/v1/docs", logged_in=False, color_scheme="dark")
    expect(page.locator("html")).to_have_css("background-color", "rgb(28, 32, 34)")
    page.emulate_media(color_scheme="light")
    expect(page.locator("html")).not_to_have_class("dark-mode")


def test_an_operation_is_tried_out_with_an_api_key(visit: Callable[..., Page]) -> None:
    page = visit("/v1/docs", logged_in=False)
    page.get_by_role("button", name="Authorize").first.click()
    page.get_by_label("auth-bearer-value").fill(AUDITOR_KEY)
    page.locator(".auth-btn-wrapper").get_by_role("button", name="Apply credentials").click()
    page.locator(".auth-btn-wrapper").get_by_role("button", name="Close").click()
    operation = page.locator(".opblock", has=page.get_by_text("/v1/webhooks", exact=True))
    operation.locator(".opblock-summary-control").click()
    operation.get_by_role("button", name="Try it out").click()
    operation.get_by_role("button", name="Execute").click()
    expect(operation.locator(".live-responses-table .response-col_status").last).to_contain_text("200")


@pytest.mark.parametrize("name", ["order/5", "public.txt/c%2Fd", "public.txt/50%25", "t/a+b;c%3Dd@e:f%20g"])
def test_a_name_is_sent_as_it_is_typed(visit: Callable[..., Page], name: str) -> None:
    page = visit("/v1/docs", logged_in=False)
    page.get_by_role("button", name="Authorize").first.click()
    page.get_by_label("auth-bearer-value").fill(AUDITOR_KEY)
    page.locator(".auth-btn-wrapper").get_by_role("button", name="Apply credentials").click()
    page.locator(".auth-btn-wrapper").get_by_role("button", name="Close").click()
    operation = page.locator(".opblock", has=page.get_by_text("Read a fence", exact=True))
    operation.locator(".opblock-summary-control").click()
    operation.get_by_role("button", name="Try it out").click()
    operation.get_by_placeholder("resource").fill(name)
    operation.get_by_role("button", name="Execute").click()
    expect(operation.locator(".live-responses-table .response-col_description").last).to_contain_text(
        f'"resource": "{name}"'
    )


def test_an_address_cannot_name_another_description(visiting: Callable[..., tuple[Page, Watch]], stage: Stage) -> None:
    page, _ = visiting("/ui/login", logged_in=False)
    refused = cut_off(page.context, stage.host)
    page.goto("/v1/docs?url=https://elsewhere.example/openapi.json&configUrl=https://elsewhere.example/config.json")
    expect(page.locator(".info .title")).to_contain_text("Fencing gateway")
    assert not refused
