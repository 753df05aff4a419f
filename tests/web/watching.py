"""The findings that a page must never have: errors, breaches of the policy, requests to other hosts, barriers."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from axe_core_python.base import AXE_SCRIPT
from playwright.sync_api import BrowserContext, ConsoleMessage, Page, Request

RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]

# Of what is in order nothing is told: it is everything on a page, and takes longer to come here than to be found.
_FIND = """async rules => {
    const asked = {runOnly: {type: "tag", values: rules}, resultTypes: ["violations"], selectors: false};
    return (await axe.run(asked)).violations;
}"""


@dataclass
class Watch:
    """``expected``: pieces of messages that a test brings about on purpose. ``others``: hosts that it visits."""

    host: str
    others: tuple[str, ...] = ()
    expected: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)

    def console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") and not any(piece in message.text for piece in self.expected):
            self.errors.append(f"{message.type}: {message.text}")

    def failed(self, error: Exception) -> None:
        self.errors.append(f"uncaught: {error}")

    def request(self, request: Request) -> None:
        address = urlsplit(request.url)
        if address.scheme in ("http", "https", "ws", "wss") and address.netloc not in (self.host, *self.others):
            self.foreign.append(request.url)


@contextmanager
def watched(context: BrowserContext, host: str) -> Iterator[Watch]:
    """Watch all pages of a context; in the end nothing must have happened."""
    watch = Watch(host)
    context.on("console", watch.console)
    context.on("weberror", lambda error: watch.failed(error.error))
    context.on("request", watch.request)
    yield watch
    assert not watch.errors, watch.errors
    assert not watch.foreign, watch.foreign


def barriers(page: Page) -> list[str]:
    """Return the serious and critical findings of axe-core on a page, once its movements and colours are at rest."""
    page.evaluate("Promise.allSettled(document.getAnimations().map(animation => animation.finished))")
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE_SCRIPT)
    return [
        f"{one['impact']} {one['id']}: {one['help']}: {node['html'][:200]} {node.get('failureSummary', '')}"
        for one in page.evaluate(_FIND, RULES)
        if one["impact"] in ("serious", "critical")
        for node in one["nodes"]
    ]
