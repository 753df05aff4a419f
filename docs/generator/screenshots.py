"""The pictures of the page in docs/pictures: Chromium opens the demo's sample, at a time that is always the same.

``python -m docs.generator.screenshots`` writes them. Beside each picture stands the text that it shows. A picture whose
text is still the same stays as it is, because letters look a little different on each machine.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from docs.generator.pictures import FOLDER
from gateway.demo import demonstration
from tests.web.conftest import ARGUMENTS, CHROMIUM

PAGES: Mapping[str, tuple[str, str]] = {
    "overview": ("/ui/", "section:has(> #verdict-heading), dl.figures, section[aria-labelledby=incidents]"),
    "resource": ("/ui/resource?name=job/nightly-report", "section[aria-labelledby=what-happened]"),
}
"""The path of the page in each picture, and the parts of it whose text is compared."""
FAKETIME = shutil.which("faketime")
_BEGINS = "2026-03-02 09:00:05"
"""The time of the database, by which the page goes. The sample ends at 9, and Chromium is ready before 9:01."""
_WIDTH, _HEIGHT = 1200, 690
"""Pixels: the timeline is whole."""


@dataclass(frozen=True, slots=True)
class Screenshot:
    """``text``: the lines of the parts of the page in the ``picture``, a PNG."""

    text: str
    picture: bytes


@contextmanager
def served() -> Iterator[str]:
    """Serve the sample by a database whose clock is set. Yields the address."""
    variables = _clock()
    # Below /tmp itself: the socket of PostgreSQL needs a short path.
    with tempfile.TemporaryDirectory(prefix="pictures-", dir="/tmp") as name, ExitStack() as stack:
        os.environ.update(variables)  # noqa: TID251 - for the database, a process that starts now
        try:
            url = stack.enter_context(demonstration.sample(Path(name)))
        finally:
            for variable in variables:
                del os.environ[variable]  # noqa: TID251 - the same
        yield url


def _clock() -> dict[str, str]:
    """Return the variables by which a process gets the time of the pictures, as faketime sets them."""
    assert FAKETIME is not None
    zone = {"TZ": "UTC"}
    told = subprocess.run(  # noqa: S603 - our own arguments
        [FAKETIME, "-f", f"@{_BEGINS}", "/usr/bin/env"], env=zone, capture_output=True, text=True, check=True
    )
    found = dict(line.split("=", 1) for line in told.stdout.splitlines())
    kept = {name: found[name] for name in ("LD_PRELOAD", "FAKETIME")}
    return {**zone, **kept, "FAKETIME_DONT_FAKE_MONOTONIC": "1"}


def take(url: str, browser: Browser) -> dict[str, Screenshot]:
    """Return a screenshot of each page."""
    context = browser.new_context(
        base_url=url, viewport={"width": _WIDTH, "height": _HEIGHT}, timezone_id="UTC", color_scheme="light"
    )
    taken = {}
    for name, (path, parts) in PAGES.items():
        page = context.new_page()
        page.goto(path)
        lines = [line.strip() for part in page.locator(parts).all_inner_texts() for line in part.splitlines()]
        # An age depends on the seconds that the demo took to start.
        text = re.sub(r"\b\d+ \w+ ago", "some time ago", "\n".join(filter(None, lines)))
        taken[name] = Screenshot(f"{text}\n", page.screenshot(animations="disabled"))
    context.close()
    return taken


def main() -> None:
    if FAKETIME is None or not CHROMIUM.exists():
        sys.exit(f"The pictures need faketime and {CHROMIUM}.")
    with served() as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        for name, taken in take(url, browser).items():
            text, picture = FOLDER / f"{name}.txt", FOLDER / f"{name}.png"
            if picture.exists() and text.exists() and text.read_text() == taken.text:
                continue
            text.write_text(taken.text)
            picture.write_bytes(taken.picture)
        browser.close()


if __name__ == "__main__":
    main()
