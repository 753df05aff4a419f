"""The page over several databases in a browser: the overview names each, and its links lead to the lists of one."""

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests import running
from tests.databases.fleet import Fleet, fleet
from tests.postgres import Server
from tests.web import story
from tests.web.stage import CALLERS, PAGES, Stage, in_a_thread
from tests.web.watching import Watch, barriers

SECTIONS: dict[str, Any] = {
    "callers": CALLERS,
    "grants": [*running.GRANTS, {"callers": ["auditor"], "actions": ["break"], "everything": True}],
    "tables": [{"name": "north.plans", "mode": "observe"}, {"name": "south.plans", "mode": "observe"}],
}


class Databases:
    """The fleet behind a stage, and incidents in its databases."""

    def __init__(self, stage: Stage, fleet: Fleet) -> None:
        self.stage, self.fleet = stage, fleet

    def zombie(self, name: str, count: int, minutes: float) -> None:
        at: datetime = self.stage.run(self.fleet.asked(name, "SELECT clock_timestamp()"))[0]
        stage = Stage(self.stage.origin, self.fleet.addresses[name], self.stage.loop)
        stage.put_on_record(story.zombie(at, f"{name}.orders/42", "worker-7", count, minutes))

    def cut(self, name: str) -> None:
        async def work() -> None:
            self.fleet.lines[name].cut()

        self.stage.run(work())


@pytest.fixture
def databases(postgres_server: Server) -> Iterator[Databases]:
    with in_a_thread(fleet(postgres_server, **SECTIONS)) as (opened, loop):
        yield Databases(Stage(opened.origin, "", loop), opened)


@pytest.fixture
def stage(databases: Databases) -> Stage:
    return databases.stage


def test_the_overview_is_over_all_databases_and_leads_to_the_lists_of_each(
    visiting: Callable[..., tuple[Page, Watch]], databases: Databases
) -> None:
    databases.zombie("north", 3, 4)
    databases.zombie("south", 5, 2)
    page, watch = visiting("/ui/")
    watch.expected += ["400 (Bad Request)"]  # a list that asks for the database
    expect(page.get_by_role("link", name="All databases")).to_have_attribute("aria-current", "true")
    expect(page.locator(".verdict.first .said")).to_contain_text("worker-7 wrote")
    page.get_by_role("link", name="Live").click()
    page.get_by_role("main").get_by_role("link", name="south").click()
    expect(page.locator("#connection")).to_have_text("live")
    expect(page.locator("#live tbody tr")).to_have_count(5)
    databases.zombie("north", 1, 0)
    databases.zombie("south", 1, 0)
    expect(page.locator("#live tbody tr")).to_have_count(6)
    databases.cut("south")
    page.set_viewport_size({"width": 380, "height": 900})
    for path in (*(f"{path}?of=north" for path in PAGES), "/ui/", "/ui/events", "/ui/resource?name=north.orders/42"):
        page.goto(path)
        assert barriers(page) == [], path
        assert page.evaluate("document.documentElement.scrollWidth") <= 380, path
