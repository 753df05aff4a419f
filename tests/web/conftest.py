"""Debian's Chromium, driven by Playwright: one browser a session, a fresh context and a fresh gateway a test.

Playwright's synchronous API leaves an event loop running in its thread, where no test with a loop of its own could run
any more. So it has a thread to itself, in which the tests of this directory run as well.
"""

import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from tests import running
from tests.postgres import Server, fresh
from tests.waiting import PATIENCE
from tests.web.stage import CALLERS, Stage, put_on_record, staged
from tests.web.watching import Watch, watched

CHROMIUM = Path("/usr/bin/chromium")
ARGUMENTS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
]


expect.set_options(timeout=PATIENCE * 1000)

PLAYWRIGHT = ThreadPoolExecutor(max_workers=1, thread_name_prefix="playwright")


def pytest_itemcollected(item: pytest.Function) -> None:
    """Mark the tests that need Chromium."""
    if "browser" in item.fixturenames:
        item.add_marker(pytest.mark.installed)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run the test in Playwright's thread, where it uses a browser."""
    if "browser" not in pyfuncitem.fixturenames:
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}
    PLAYWRIGHT.submit(pyfuncitem.obj, **arguments).result()
    return True


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """To be used in Playwright's thread: in a test, or by ``PLAYWRIGHT.submit``."""
    if not CHROMIUM.exists():
        pytest.skip(f"there is no {CHROMIUM}: the page is not tested in a browser")
    playwright = PLAYWRIGHT.submit(sync_playwright().start).result()
    launch = partial(playwright.chromium.launch, executable_path=CHROMIUM, args=ARGUMENTS)
    launched = PLAYWRIGHT.submit(launch).result()
    yield launched
    PLAYWRIGHT.submit(launched.close).result()
    PLAYWRIGHT.submit(playwright.stop).result()


@pytest.fixture
def sections() -> dict[str, Any]:
    """Sections of the gateway's configuration; a test module may override this."""
    return {}


@pytest.fixture
def stage(dsn: str, sections: dict[str, Any]) -> Iterator[Stage]:
    """A gateway for the browser."""
    with staged(running.config(dsn, **{"callers": CALLERS, **sections})) as one:
        yield one


@pytest.fixture(scope="module")
def shared(postgres_server: Server) -> Iterator[Stage]:
    """A gateway for the tests of a module over HTTP alone, with a secret on record."""
    with fresh(postgres_server) as dsn, staged(running.config(dsn, callers=CALLERS)) as one:
        one.run(put_on_record(dsn))
        yield one


@pytest.fixture
async def client(shared: Stage) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=shared.origin, timeout=PATIENCE) as one:
        yield one


@pytest.fixture
def context(browser: Browser, stage: Stage) -> Iterator[Callable[..., BrowserContext]]:
    """Makes contexts; those that are logged in have the session of the auditor."""
    with _in_the_end() as stack:

        def make(*, logged_in: bool = True, **settings: Any) -> BrowserContext:
            made = browser.new_context(base_url=stage.origin, **settings)
            stack.callback(made.close)
            made.set_default_timeout(PATIENCE * 1000)
            if logged_in:
                made.add_cookies(
                    [
                        {
                            "name": "gateway_session",
                            "value": stage.session(),
                            "domain": "127.0.0.1",
                            "path": "/ui/",
                            "httpOnly": True,
                            "sameSite": "Strict",
                        }
                    ]
                )
            return made

        yield make


@pytest.fixture
def visiting(context: Callable[..., BrowserContext], stage: Stage) -> Iterator[Callable[..., tuple[Page, Watch]]]:
    """Opens watched pages: at the end of the test there must have been no error, and no request to another host."""
    with _in_the_end() as stack:

        def visit(path: str = "/ui/", **settings: Any) -> tuple[Page, Watch]:
            made = context(**settings)
            watch = stack.enter_context(watched(made, stage.host))
            page = made.new_page()
            page.goto(path)
            return page, watch

        yield visit


@pytest.fixture
def visit(visiting: Callable[..., tuple[Page, Watch]]) -> Callable[..., Page]:
    """``visit("/ui/…", logged_in=True, **settings of the context)``: the page, watched."""

    def page(path: str = "/ui/", **settings: Any) -> Page:
        return visiting(path, **settings)[0]

    return page


@contextmanager
def _in_the_end() -> Iterator[ExitStack]:
    """Close everything that was opened in Playwright's thread in that thread."""
    stack = ExitStack()
    try:
        yield stack
    finally:
        PLAYWRIGHT.submit(stack.close).result()
