"""The live page: what is refused appears by itself; it can be paused, and a storm does not bury it."""

import re
import time
from collections.abc import Callable
from dataclasses import fields, replace
from datetime import UTC, datetime
from uuid import UUID

import pytest
from playwright.sync_api import Page, expect

from gateway.fencing.record import Entry, Kind
from gateway.web import live_page
from gateway.web.live_page import A_SECOND, EntryPacer
from tests.waiting import PATIENCE
from tests.web.stage import Stage
from tests.web.story import Incident, late_write
from tests.web.watching import Watch, barriers

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
_NOTHING = dict.fromkeys((field.name for field in fields(Entry)), None)
ENTRY = Entry(**{**_NOTHING, "id": UUID(int=0), "at": NOON, "kind": Kind.REJECTION})  # type: ignore[arg-type]


def entries(count: int, resource: str = "r") -> list[Entry]:
    return [replace(ENTRY, position=number, resource=resource) for number in range(1, count + 1)]


def test_a_storm_is_summed_up_at_the_end_of_its_second() -> None:
    pace = EntryPacer(100.0)
    assert len(pace.take(entries(100, "a"), 100.2)) == A_SECOND
    assert pace.take(entries(300, "b"), 100.4) == ()
    assert pace.due(100.9) is None
    assert round(pace.wait(100.4) or 0, 6) == 0.6
    storm = pace.due(101.0)
    assert storm is not None
    assert (storm.count, storm.busiest) == (100 - A_SECOND + 300, [("b", 300), ("a", 80)])
    assert len(pace.take(entries(3), 101.1)) == 3


def opened(visit: Callable[..., Page], path: str = "/ui/live", **settings: object) -> Page:
    page = visit(path, **settings)
    expect(page.locator("#connection")).to_have_text("live")
    return page


def test_a_really_refused_write_appears_on_top(visit: Callable[..., Page], stage: Stage) -> None:
    stage.sql("CREATE TABLE public.accounts (id bigint PRIMARY KEY, note text)")
    stage.sql("INSERT INTO public.accounts VALUES (1, '')")
    late_write(stage, "older/1")
    page = opened(visit)
    expect(page.locator("#live tbody tr")).to_have_count(1)
    with stage.api() as client:
        give_up = time.monotonic() + PATIENCE
        while client.get("/v1/tables/accounts").status_code == 404:  # until it has heard of the table
            assert time.monotonic() < give_up
            time.sleep(0.02)
        for token, status in (("34", 204), ("33", 412)):
            answer = client.patch(
                "/v1/tables/accounts",
                params={"id": "eq.1"},
                json={"note": "x"},
                headers={"Fencing-Token": token, "Fencing-Holder": f"holder-{token}"},
            )
            assert answer.status_code == status, answer.text
    top = page.locator("#live tbody tr").first
    expect(top).to_contain_text("public.accounts/1")
    expect(top).to_contain_text("holder-33")
    expect(top).to_contain_text("holder-34")
    expect(page.locator("#live tbody tr")).to_have_count(2)
    top.get_by_role("link").first.click()
    expect(page).to_have_url(re.compile(r"/ui/rejections/[0-9a-f-]{36}$"))


def test_while_it_is_paused_it_counts_and_then_it_goes_on(visit: Callable[..., Page], stage: Stage) -> None:
    page = opened(visit)
    pause = page.locator("#pause")
    pause.click()
    late_write(stage, count=2)
    expect(pause).to_have_text("Resume (2 new)")
    expect(pause).to_have_attribute("aria-pressed", "true")
    expect(page.locator("#live tbody tr")).to_have_count(0)
    page.keyboard.press("Enter")
    expect(page.locator("#live tbody tr")).to_have_count(2)
    expect(page.get_by_role("status")).to_have_text("2 came while it was paused")
    expect(pause).to_have_text("Pause")


def test_takeovers_come_by_a_switch(visit: Callable[..., Page], stage: Stage) -> None:
    page = opened(visit)
    Incident(stage, "taken/1")
    late_write(stage)
    expect(page.locator("#live tbody tr")).to_have_count(1)
    page.get_by_label("Takeovers, too").check()
    page.get_by_role("button", name="Show").click()
    expect(page.locator("#connection")).to_have_text("live")
    expect(page.locator("#live tbody tr")).to_have_count(2)
    Incident(stage, "taken/2")
    expect(page.locator("#live tbody tr").first).to_contain_text("Taken over by a write")


def test_a_storm_is_summed_up(visit: Callable[..., Page], stage: Stage) -> None:
    page = opened(visit)
    late_write(stage, "hot/1", count=400)
    # The first storm may be over, and another one begun, before the last of them are read.
    give_up = time.monotonic() + PATIENCE
    while (seen := listed_and_summed_up(page))[0] + seen[1] < 400:
        assert time.monotonic() < give_up, seen
        page.wait_for_timeout(50)
    assert seen[0] + seen[1] == 400
    assert seen[0] < seen[1]
    assert barriers(page) == []


def listed_and_summed_up(page: Page) -> tuple[int, int]:
    """How many refused writes have a row of their own, and how many have not."""
    rows = page.locator("#live tbody tr").all_inner_texts()
    sums = [re.search(r"(\d+) more arrived too fast to be listed here: (\d+) of hot/1", row) for row in rows]
    storms = [int(found[1]) for found in sums if found is not None]
    assert storms == [int(found[2]) for found in sums if found is not None]
    return len(rows) - len(storms), sum(storms)


def test_a_lost_connection_is_shown_and_nothing_is_missed(
    visiting: Callable[..., tuple[Page, Watch]], stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_page, "QUIET", 0.1)
    monkeypatch.setattr(live_page, "LONGEST", 1.0)  # so the gateway ends the stream by itself
    page, watch = visiting("/ui/live")
    watch.expected += ["ERR_FAILED"]
    expect(page.locator("#connection")).to_have_text("live")
    late_write(stage, holder="before")
    expect(page.locator("#live tbody tr")).to_have_count(1)
    page.route("**/ui/live/stream*", lambda route: route.abort())
    expect(page.locator("#connection")).to_have_text("connection lost, trying again")
    late_write(stage, holder="meanwhile")
    page.unroute("**/ui/live/stream*")
    expect(page.locator("#live tbody tr").first).to_contain_text("meanwhile")
    expect(page.locator("#live tbody tr")).to_have_count(2)
