"""The incident report: one resource and one span of time as a self-contained document.

It has the content of the resource's page, and every refused write up to a number that it states. It also names the
end of the record at that time, so that a reader can later check it against the record.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.api.record import report_answer
from gateway.db import search
from gateway.errors import RequestMalformed
from gateway.fencing.decision import Enforcement
from gateway.fencing.record import Entry, Filters, Kind
from gateway.web.observe_mode import configured_rules
from gateway.web.record_lists import form_field, read_filters
from gateway.web.rendering import Site
from gateway.web.resource_page import TimelineView, lag, read_timeline

PATH = "/ui/resource/report"
MOST_WRITES = 1000
MOST_EVENTS = 500
"""The most refused writes, and the most other events, that a report lists."""

_STYLES = ("style.css", "timeline.css", "report.css")
_OTHERS = tuple(kind for kind in Kind if kind is not Kind.REJECTION)


@dataclass(frozen=True, slots=True)
class Report:
    """A report. ``name`` is the name of its file."""

    content: str
    name: str


def routes(site: Site) -> list[Route]:
    """Build the route ``/ui/resource/report``, which answers with a file."""

    async def download(request: Request) -> Response:
        sent = request.query_params.multi_items()
        asked, name = read_filters(sent, await site.place.database.now()), form_field(sent, "name")
        if name is None:
            raise RequestMalformed(
                "name: the resource is missing.", advice="Open the report from the page of a resource."
            )
        return report_answer(await make(site, name, asked.filters.since, asked.filters.until))

    return [Route(PATH, download)]


async def make(site: Site, resource: str, since: datetime | None, until: datetime | None) -> Report:
    """Make the report of a span. Without either end it covers the last day on which something of note happened.

    Raises ``RequestMalformed`` for an invalid span.
    """
    found = await read_timeline(site.place.database, resource, since, until)
    writes = await _listed(site, found, (Kind.REJECTION,), MOST_WRITES)
    events = await _listed(site, found, _OTHERS, MOST_EVENTS)
    styles = "\n".join(site.assets.text(name) for name in _STYLES)
    content = site.pages.piece(
        "report.html",
        styles=styles,
        found=found,
        picture=found.picture,
        resource=resource,
        writes=writes[:MOST_WRITES],
        more_writes=len(writes) > MOST_WRITES,
        events=events[:MOST_EVENTS],
        more_events=len(events) > MOST_EVENTS,
        lag=lag(found),
        observes=any(rule.mode is Enforcement.OBSERVE for rule in configured_rules(site.place.config))
        or site.place.config.fencing.mode is Enforcement.OBSERVE,
    )
    return Report(content, _file_name(resource, found.span.since))


async def _listed(site: Site, found: TimelineView, kinds: Sequence[Kind], most: int) -> list[Entry]:
    """Return the oldest entries of the span: one more than ``most`` if there are more."""
    filters = Filters(
        kinds=tuple(kinds),
        resource=found.history.resource,
        since=found.span.since,
        until=found.span.until + timedelta(microseconds=1),
    )
    return await search.find_page(
        site.place.database, filters, most + 1, before=found.head.position + 1, oldest_first=True
    )


def _file_name(resource: str, since: datetime) -> str:
    """Return a file name that is safe in a header and in any file system."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", resource).strip("-.")[:60] or "resource"
    return f"incident-{plain}-{since.astimezone(UTC):%Y%m%dT%H%M%SZ}.html"
