"""The page of one resource: its timeline, its present state, its refused writes. Also the search for resources.

Its incident report has the content of the page as a self-contained document, and every refused write up to a number
that it states. It also names the end of the record at that time, so that a reader can later check it against the
record.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from gateway.api.record import report_answer
from gateway.db import fences, leases, overview, record, search, timeline
from gateway.db.database import Database
from gateway.db.overview import RefusedResource
from gateway.db.record import RecordHead
from gateway.enforcement import configured_rules
from gateway.errors import RequestMalformed
from gateway.fencing.decision import Enforcement, Fence
from gateway.fencing.lease import LockState
from gateway.fencing.record import Entry, Filters, Kind
from gateway.text import machine_time
from gateway.timeline import history as spans
from gateway.timeline import picture
from gateway.timeline.history import History, Span
from gateway.timeline.picture import Picture
from gateway.web import record_lists as paging
from gateway.web.record_lists import SPANS, ListQuery, form_field, read_filters
from gateway.web.rendering import Site, address, database_of, resource_address


@dataclass(frozen=True, slots=True)
class TimelineView:
    """A timeline, made at ``now`` by the database's clock, when the record ended at ``head``.

    ``last`` is the time of the resource's last event, within the span or not; None if there is none.
    """

    history: History
    picture: Picture
    head: RecordHead
    now: datetime
    last: datetime | None

    @property
    def span(self) -> Span:
        return self.history.span


async def read_timeline(
    database: Database, resource: str, since: datetime | None, until: datetime | None, *, whole: bool = False
) -> TimelineView:
    """Read the timeline from ``since`` to ``until``. Without either, read the last day on which something happened.

    ``whole`` reads everything on record instead. Raises ``RequestMalformed`` for an invalid span.
    """
    now = await database.now()
    await record.seal(database)
    head = await record.read_head(database)
    newest = await search.find_page(database, Filters(resource=resource), 1, before=head.position + 1)
    last = newest[0].at if newest else None
    if since is None and until is None:
        span = await _eventful(database, resource, last, head.position, now, whole=whole)
    else:
        until = now if until is None else until
        span = checked_span(until - spans.DAY if since is None else since, until)
    history = await timeline.read_history(database, resource, span, head.position)
    return TimelineView(history, picture.draw(history), head, now, last)


def checked_span(since: datetime, until: datetime) -> Span:
    """Return the requested span. Raises ``RequestMalformed`` if it is invalid."""
    if not spans.EARLIEST <= since < until <= spans.LATEST:
        raise RequestMalformed("since must be before until, and both in a year from 2000 to 2199.")
    return Span(since, until)


async def _eventful(
    database: Database, resource: str, last: datetime | None, position: int, now: datetime, *, whole: bool
) -> Span:
    if last is None:
        return Span(now - spans.DAY, now)
    # The last entry on record need not be the last event, because a late commit is sealed late.
    within = None if whole else Span(last - spans.DAY, max(now, last))
    extent = await timeline.read_extent(database, resource, position, within)
    assert extent is not None
    return spans.fitted(*extent, now)


PATH = "/ui/resource"
_QUEUE = 5


@dataclass(frozen=True, slots=True)
class ResourceStatus:
    """The present state of a resource. ``mode`` is that of the rule of its last refused write; None if unknown."""

    fence: Fence | None
    lock: LockState
    pending: int
    pending_since: datetime | None
    mode: Enforcement | None


@dataclass(frozen=True, slots=True)
class SpanLink:
    """A link to another span. ``address`` is None if that span does not exist."""

    title: str
    address: str | None


def routes(site: Site) -> list[Route]:
    async def show(request: Request) -> Response:
        sent = request.query_params.multi_items()
        asked = read_filters(sent, await site.place.database.now(), (Kind.REJECTION,))
        name = _name(sent)
        whole = form_field(sent, "whole") == "true"
        found = await read_timeline(site.place.database, name, asked.filters.since, asked.filters.until, whole=whole)
        page = await paging.read_page(site.place.database, _of_span(asked, name, found.span))
        standing = await _standing(site, name, found)
        of = database_of(request)
        named = {"name": name, **({} if of is None else {"of": of})}
        known = standing.fence is not None or found.last is not None or bool(standing.lock.holders)
        return site.pages.render(
            request,
            "resource.html",
            200 if known else 404,
            name=name,
            known=known,
            found=found,
            page=page,
            lag=lag(found),
            standing=standing,
            now=found.now,
            zoom=partial(_zoom, named),
            entry_of=lambda identifier: address(f"/ui/events/{identifier}", of=of),
            steps=_steps(named, found),
            spans=[SpanLink(title, address(PATH, named, span=span)) for span, (title, _) in SPANS.items()],
            span=asked.fields.get("span"),
            kept=[*named.items(), *_span_fields(found.span)],
            fields={"since": _field(found.span.since), "until": _field(found.span.until)},
        )

    return [*search_routes(site), Route(PATH, show)]


def _name(sent: Sequence[tuple[str, str]]) -> str:
    name = form_field(sent, "name")
    if name is None:
        raise RequestMalformed("name: the resource is missing.", advice="Find it on the page of resources.")
    return name


def _of_span(asked: ListQuery, name: str, span: Span) -> ListQuery:
    """Return the query for exactly the refused writes in the picture, which includes ``until``."""
    filters = replace(asked.filters, resource=name, since=span.since, until=span.until + timedelta(microseconds=1))
    return replace(asked, filters=filters)


async def _standing(site: Site, name: str, found: TimelineView) -> ResourceStatus:
    (lock,) = await leases.read_locks(site.place.database, [name], _QUEUE)
    pending, since = await timeline.count_pending(site.place.database, name)
    newest = await search.find_page(site.place.database, Filters(kinds=(Kind.REJECTION,), resource=name), 1)
    return ResourceStatus(found.history.fence, lock, pending, since, _mode(site, newest))


def _mode(site: Site, newest: Sequence[Entry]) -> Enforcement | None:
    if not newest or newest[0].plane not in ("tables", "objects"):
        return None
    known = {(rule.plane, rule.name): rule.mode for rule in configured_rules(site.place.config)}
    return known.get((newest[0].plane, newest[0].rule or ""), site.place.config.fencing.mode)


def lag(found: TimelineView) -> Callable[[Entry], timedelta | None]:
    """Return the function that tells how long the writer of an entry had been a zombie, by the takeover in its lane."""
    overtaken = {row.lane.party.key: row.lane.overtaken for row in found.picture.rows}

    def of(entry: Entry) -> timedelta | None:
        takeover = overtaken.get((entry.token, entry.holder))
        if takeover is None or takeover.at > entry.at:
            return search.lag(entry)
        return entry.at - takeover.at

    return of


def _zoom(named: Mapping[str, str], span: Span) -> str:
    return address(PATH, named, **dict(_span_fields(span)))


def _steps(named: Mapping[str, str], found: TimelineView) -> list[SpanLink]:
    span = found.span
    ways = (
        ("← Earlier", spans.earlier(span)),
        ("Zoom out", spans.wider(span, found.now)),
        ("Zoom in", spans.narrower(span)),
        ("Later →", spans.later(span, found.now)),
    )
    return [
        *(SpanLink(title, None if to is None else _zoom(named, to)) for title, to in ways),
        SpanLink("Last eventful day", address(PATH, named)),
        SpanLink("Whole record", address(PATH, named, whole="true")),
    ]


def _span_fields(span: Span) -> list[tuple[str, str]]:
    return [("since", machine_time(span.since)), ("until", machine_time(span.until))]


def _field(moment: datetime) -> str:
    return machine_time(moment)[:19]


_PAGE = 50
_MOST = 10
_LATELY = timedelta(days=7)


def search_routes(site: Site) -> list[Route]:
    async def show(request: Request) -> Response:
        sent = request.query_params.multi_items()
        prefix, after = form_field(sent, "prefix") or "", form_field(sent, "after_name") or ""
        database = site.place.database
        now = await database.now()
        since = now - _LATELY
        found = await fences.list_fences(database, prefix, after, _PAGE + 1)
        if prefix and not after and [fence.resource for fence in found] == [prefix]:
            return RedirectResponse(resource_address(prefix, database_of(request)), 303)
        shown = found[:_PAGE]
        troubled: Sequence[RefusedResource] = ()
        taken_over: Sequence[Entry] = ()
        counted = 0
        if not (prefix or after):
            await record.seal(database)
            troubled = await overview.list_refused_resources(database, since, _MOST)
            taken_over = await overview.list_takeovers(database, since, _MOST)
            counted = await timeline.count_counted(database, since)
        return site.pages.render(
            request,
            "resources.html",
            now=now,
            fields={"prefix": prefix},
            prefix=prefix,
            found=shown,
            more=shown[-1].resource if len(found) > _PAGE else None,
            first=not after,
            since=since,
            troubled=troubled,
            taken_over=taken_over,
            looked_at=overview.LOOKED_AT,
            counted=counted,
        )

    return [Route("/ui/resources", show)]


REPORT_PATH = "/ui/resource/report"
MOST_WRITES = 1000
MOST_EVENTS = 500
"""The most refused writes, and the most other events, that a report lists."""

_STYLES = ("style.css", "timeline.css", "report.css")
_OTHERS = tuple(kind for kind in Kind if kind is not Kind.REJECTION)


@dataclass(frozen=True, slots=True)
class Report:
    content: str
    name: str


def report_routes(site: Site) -> list[Route]:
    async def download(request: Request) -> Response:
        sent = request.query_params.multi_items()
        asked = read_filters(sent, await site.place.database.now())
        return report_answer(await make_report(site, _name(sent), asked.filters.since, asked.filters.until))

    return [Route(REPORT_PATH, download)]


async def make_report(site: Site, resource: str, since: datetime | None, until: datetime | None) -> Report:
    """Make the report of a span. Without either end it covers the last day on which something of note happened.

    Raises ``RequestMalformed`` for an invalid span.
    """
    found = await read_timeline(site.place.database, resource, since, until)
    writes = await _oldest(site, found, (Kind.REJECTION,), MOST_WRITES)
    events = await _oldest(site, found, _OTHERS, MOST_EVENTS)
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


async def _oldest(site: Site, found: TimelineView, kinds: Sequence[Kind], most: int) -> list[Entry]:
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
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", resource).strip("-.")[:60] or "resource"
    return f"incident-{plain}-{since.astimezone(UTC):%Y%m%dT%H%M%SZ}.html"
