"""The page of one resource: its timeline, its present state, its refused writes. Also the search for resources."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import TypeAlias, TypeVar
from uuid import UUID

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from gateway.db import fences, leases, overview, record, search, timeline
from gateway.db.database import Database
from gateway.db.overview import RefusedResource
from gateway.db.record import RecordHead
from gateway.errors import RequestMalformed
from gateway.fencing.decision import Enforcement, Fence
from gateway.fencing.lease import LockState
from gateway.fencing.record import Entry, Filters, Kind
from gateway.text import machine_time
from gateway.timeline import axis, picture
from gateway.timeline.history import History, Span
from gateway.timeline.shapes import Picture
from gateway.web import record_lists as paging
from gateway.web.observe_mode import configured_rules
from gateway.web.places import Answers, Place, ask, chosen, names, of_one
from gateway.web.record_lists import SPANS, ListQuery, form_field, read_filters
from gateway.web.rendering import Site, address, resource_address


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
        span = checked_span(until - axis.DAY if since is None else since, until)
    history = await timeline.read_history(database, resource, span, head.position)
    return TimelineView(history, picture.draw(history), head, now, last)


def checked_span(since: datetime, until: datetime) -> Span:
    """Return the requested span. Raises ``RequestMalformed`` if it is invalid."""
    if not axis.EARLIEST <= since < until <= axis.LATEST:
        raise RequestMalformed("since must be before until, and both in a year from 2000 to 2199.")
    return Span(since, until)


async def _eventful(
    database: Database, resource: str, last: datetime | None, position: int, now: datetime, *, whole: bool
) -> Span:
    if last is None:
        return Span(now - axis.DAY, now)
    # The last entry on record need not be the last event, because a late commit is sealed late.
    within = None if whole else Span(last - axis.DAY, max(now, last))
    extent = await timeline.read_extent(database, resource, position, within)
    assert extent is not None
    return axis.fitted(*extent, now)


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
    """Build the route ``/ui/resource?name=…``."""

    async def show(request: Request) -> Response:
        sent = request.query_params.multi_items()
        asked = read_filters(sent, await site.place.database.now(), (Kind.REJECTION,))
        name = form_field(sent, "name")
        if name is None:
            raise RequestMalformed("name: the resource is missing.", advice="Find it on the page of resources.")
        whole = form_field(sent, "whole") == "true"
        found = await read_timeline(site.place.database, name, asked.filters.since, asked.filters.until, whole=whole)
        page = await paging.read_page(site.place.database, _of_span(asked, name, found.span))
        standing = await _standing(site, name, found)
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
            zoom=_zoom(name),
            entry_of=_entry,
            steps=_steps(name, found),
            spans=[SpanLink(title, address(PATH, name=name, span=span)) for span, (title, _) in SPANS.items()],
            span=asked.fields.get("span"),
            kept=[("name", name), *_span_fields(found.span)],
            fields={"since": _field(found.span.since), "until": _field(found.span.until)},
        )

    return [Route(PATH, show)]


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
            return search.lag(entry, None)
        return entry.at - takeover.at

    return of


def _zoom(name: str) -> Callable[[Span], str]:
    return lambda span: address(PATH, {"name": name, **dict(_span_fields(span))})


def _entry(identifier: UUID) -> str:
    return f"/ui/events/{identifier}"


def _steps(name: str, found: TimelineView) -> list[SpanLink]:
    span, zoom = found.span, _zoom(name)
    ways = (
        ("← Earlier", axis.earlier(span)),
        ("Zoom out", axis.wider(span, found.now)),
        ("Zoom in", axis.narrower(span)),
        ("Later →", axis.later(span, found.now)),
    )
    return [
        *(SpanLink(title, None if to is None else zoom(to)) for title, to in ways),
        SpanLink("Last eventful day", address(PATH, name=name)),
        SpanLink("Whole record", address(PATH, name=name, whole="true")),
    ]


def _span_fields(span: Span) -> list[tuple[str, str]]:
    return [("since", machine_time(span.since)), ("until", machine_time(span.until))]


def _field(moment: datetime) -> str:
    """Return a moment for a form field, to the second."""
    return machine_time(moment)[:19]


_PAGE = 50
_MOST = 10
_LATELY = timedelta(days=7)


@dataclass(frozen=True, slots=True)
class _Known:
    """The resources of one database: fences after a name. The first page has what happened ``since``, too."""

    now: datetime
    since: datetime
    fences: Sequence[Fence]
    troubled: Sequence[RefusedResource] = ()
    taken_over: Sequence[Entry] = ()
    counted: int = 0


def search_routes(site: Site) -> list[Route]:
    """Build the route ``/ui/resources``."""

    async def show(request: Request) -> Response:
        sent = request.query_params.multi_items()
        prefix, after = form_field(sent, "prefix") or "", form_field(sent, "after_name") or ""
        places = chosen(site.places, request)
        answers = await ask(places, partial(_known, prefix=prefix, after=after))
        known = [one for _, one in answers.found]
        listed, end = _own(answers)
        if prefix and not after and not answers.missing and [fence.resource for _, fence in listed] == [prefix]:
            return RedirectResponse(resource_address(prefix, listed[0][0]), 303)
        shown, more = _cut(listed, end)
        troubled = sorted(_named(answers, lambda one: one.troubled), key=lambda row: row[1].refused, reverse=True)
        taken_over = sorted(_named(answers, lambda one: one.taken_over), key=lambda row: row[1].at, reverse=True)
        return site.pages.render(
            request,
            "resources.html",
            200 if known else 503,
            now=max((one.now for one in known), default=None),
            fields={"prefix": prefix, **of_one(places, site.places)},
            prefix=prefix,
            found=shown,
            more=more,
            first=not after,
            since=min((one.since for one in known), default=None),
            troubled=troubled[:_MOST],
            taken_over=taken_over[:_MOST],
            looked_at=overview.LOOKED_AT,
            counted=sum(one.counted for one in known),
            places=names(site.places),
            missing=answers.missing,
        )

    return [Route("/ui/resources", show)]


async def _known(place: Place, prefix: str, after: str) -> _Known:
    database = place.database
    now = await database.now()
    since = now - _LATELY
    found = await fences.list_fences(database, prefix, after, _PAGE + 1)
    if prefix or after:
        return _Known(now, since, found)
    await record.seal(database)
    return _Known(
        now,
        since,
        found,
        await overview.list_refused_resources(database, since, _MOST),
        await overview.list_takeovers(database, since, _MOST),
        await timeline.count_counted(database, since),
    )


Row = TypeVar("Row")


def _named(answers: Answers[_Known], rows: Callable[[_Known], Sequence[Row]]) -> list[tuple[str | None, Row]]:
    """Return the rows of all databases, each with the name of its own."""
    return [(place.name, row) for place, one in answers.found for row in rows(one)]


Listed: TypeAlias = Sequence[tuple[str | None, Fence]]


def _own(answers: Answers[_Known]) -> tuple[Listed, str | None]:
    """Return the fences of all databases by name, each in its owner only, up to the name where one has more."""
    ends = [one.fences[-1].resource for _, one in answers.found if len(one.fences) > _PAGE]
    listed = [
        (place.name, fence)
        for place, one in answers.found
        for fence in one.fences
        if place.owns(fence.resource) and (not ends or fence.resource <= min(ends))
    ]
    return sorted(listed, key=lambda row: row[1].resource), min(ends, default=None)


def _cut(listed: Listed, end: str | None) -> tuple[Listed, str | None]:
    """Return the fences of a page, and the name after which the next one begins. ``end``: as of ``_own``."""
    return (listed, end) if len(listed) <= _PAGE else (listed[:_PAGE], listed[_PAGE - 1][1].resource)
