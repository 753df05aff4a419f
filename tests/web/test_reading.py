"""Reading the record: times here and in UTC, links to traces and logs, narrow screens, logins, and lost visitors."""

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from playwright.sync_api import Page, expect

from gateway.web.advice import reason_words
from tests import running
from tests.waiting import PATIENCE
from tests.web import story
from tests.web.stage import CALLERS, Stage, staged

NOON = datetime(2026, 3, 1, 20, 4, 5, tzinfo=UTC)
TRACE = "0af7651916cd43dd8448eb211c80319c"


def refuse(stage: Stage, **columns: Any) -> str:
    """Put a refused write at noon on record; its page."""
    stage.put_on_record([{**story.rejection(NOON, "public.orders/5", 33, "worker-a", (34, "worker-b")), **columns}])
    (row,) = stage.sql("SELECT id FROM fencing.record ORDER BY at DESC LIMIT 1")
    return f"/ui/rejections/{row['id']}"


@pytest.mark.parametrize(
    ("zone", "shown"),
    [
        ("America/New_York", "2026-03-01 20:04:05 UTC (15:04:05 UTC-05)"),
        ("Asia/Kolkata", "2026-03-01 20:04:05 UTC (2026-03-02 01:34:05 UTC+05:30)"),
        ("UTC", "2026-03-01 20:04:05 UTC"),
    ],
)
def test_times_are_those_of_the_viewer_too(visit: Callable[..., Page], stage: Stage, zone: str, shown: str) -> None:
    path = refuse(stage)
    page = visit("/ui/rejections", timezone_id=zone)
    expect(page.locator("tbody th time").first).to_have_text(shown)
    page.goto(path)
    expect(page.locator(".page-head time")).to_have_text(shown)
    # A list that comes later, by a filter.
    page.goto("/ui/rejections?holder=nobody")
    page.get_by_label("Holder").fill("worker-a")
    expect(page.locator("tbody th time")).to_have_text(shown)


def test_live_times_are_local_too(visit: Callable[..., Page], stage: Stage) -> None:
    page = visit("/ui/live", timezone_id="Asia/Tokyo")
    expect(page.locator("#connection")).to_have_text("live")
    refuse(stage)
    expect(page.locator("#live time")).to_have_text("2026-03-01 20:04:05 UTC (2026-03-02 05:04:05 UTC+09)")


def test_utc_stands_alone_without_scripts(visit: Callable[..., Page], stage: Stage) -> None:
    refuse(stage)
    page = visit("/ui/rejections", timezone_id="Asia/Tokyo", java_script_enabled=False)
    expect(page.locator("tbody th time")).to_have_text("2026-03-01 20:04:05 UTC")


@pytest.fixture
def sections() -> dict[str, Any]:
    return {
        "ui": {
            "trace_url": "https://traces.example.com/{trace_id}?from={since}",
            "log_url": "https://logs.example.com/search?q={request_id}#until={until}",
        }
    }


def test_an_entry_leads_to_its_trace_and_its_log(visit: Callable[..., Page], stage: Stage) -> None:
    evil = "r&1 #\"'><script>"
    path = refuse(stage, request_id=evil, details=json.dumps({"trace_id": TRACE}))
    page = visit(path)
    trace, log = page.get_by_role("link", name="Trace"), page.get_by_role("link", name="Log lines")
    expect(trace).to_have_attribute("href", f"https://traces.example.com/{TRACE}?from=2026-03-01T19%3A04%3A05.000000Z")
    expect(log).to_have_attribute(
        "href",
        "https://logs.example.com/search?q=r%261%20%23%22%27%3E%3Cscript%3E#until=2026-03-01T21%3A04%3A05.000000Z",
    )
    for link in (trace, log):
        expect(link).to_have_attribute("rel", "noreferrer noopener")
    # A detail that is no trace leads nowhere.
    page.goto(refuse(stage, details=json.dumps({"trace_id": "../../evil"}), at=NOON + timedelta(hours=1)))
    expect(page.get_by_role("link", name="Trace")).to_have_count(0)
    expect(page.get_by_role("link", name="Log lines")).to_have_count(1)


@pytest.mark.parametrize("path", ["/ui/rejections", "/ui/events", "/ui/live", "/ui/resource?name=public.orders/5"])
def test_a_narrow_list_has_writer_and_reason(visit: Callable[..., Page], stage: Stage, path: str) -> None:
    refuse(stage, holder="compactor-" + "x" * 190, caller="a-caller-with-a-long-name")
    page = visit(path, viewport={"width": 380, "height": 800})
    row = page.locator(".cards tbody tr").first
    for text in ("compactor-x", reason_words("token-stale")):
        found = row.get_by_text(text).first
        expect(found).to_be_visible()
        box = found.bounding_box()
        assert box is not None
        assert box["x"] >= 0, text
        assert box["x"] + box["width"] <= 380, text
    assert page.evaluate("document.documentElement.scrollWidth") <= 380
    assert page.evaluate("[...document.querySelectorAll('.cards')].every(one => one.scrollWidth <= 380)")


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
