"""The page of one resource: what happened in a sentence and in a picture, how it stands, which writes were refused."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from uuid import UUID

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.db import leases, search, timeline
from gateway.errors import RequestMalformed
from gateway.fencing.lease import LockView
from gateway.fencing.record import Entry, Filters, Kind
from gateway.fencing.rules import Fence, Mode
from gateway.text import machine_time
from gateway.timeline import window
from gateway.timeline.history import Span
from gateway.web import filters as paging
from gateway.web import timelines
from gateway.web.filters import SPANS, Asked, field, read
from gateway.web.rendering import Site, address
from gateway.web.rules import rules
from gateway.web.timelines import Shown

PATH = "/ui/resource"
_QUEUE = 5


@dataclass(frozen=True, slots=True)
class Standing:
    """How a resource stands now. ``mode`` is that of the rule its last refused write came under; None if unknown."""

    fence: Fence | None
    lock: LockView
    pending: int
    pending_since: datetime | None
    mode: Mode | None


@dataclass(frozen=True, slots=True)
class Step:
    """A way to another span; ``address`` is None where there is none."""

    title: str
    address: str | None


def routes(site: Site) -> list[Route]:
    """``/ui/resource?name=…``."""

    async def show(request: Request) -> Response:
        sent = request.query_params.multi_items()
        asked = read(sent, await site.database.now(), (Kind.REJECTION,))
        name = field(sent, "name")
        if name is None:
            raise RequestMalformed("name: which resource?", advice="Look for it on the page of resources.")
        whole = field(sent, "whole") == "true"
        found = await timelines.shown(site.database, name, asked.filters.since, asked.filters.until, whole=whole)
        page = await paging.page(site.database, _of_span(asked, name, found.span))
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
            spans=[Step(title, address(PATH, name=name, span=span)) for span, (title, _) in SPANS.items()],
            span=asked.fields.get("span"),
            kept=[("name", name), *_span_fields(found.span)],
            fields={"since": _field(found.span.since), "until": _field(found.span.until)},
        )

    return [Route(PATH, show)]


def _of_span(asked: Asked, name: str, span: Span) -> Asked:
    """The refused writes that are drawn, and no others. What ends at ``until`` is drawn as well."""
    filters = replace(asked.filters, resource=name, since=span.since, until=span.until + timedelta(microseconds=1))
    return replace(asked, filters=filters)


async def _standing(site: Site, name: str, found: Shown) -> Standing:
    (lock,) = await leases.views(site.database, [name], _QUEUE)
    pending, since = await timeline.pending(site.database, name)
    newest = await search.page(site.database, Filters(kinds=(Kind.REJECTION,), resource=name), 1)
    return Standing(found.history.fence, lock, pending, since, _mode(site, newest))


def _mode(site: Site, newest: Sequence[Entry]) -> Mode | None:
    if not newest or newest[0].plane not in ("tables", "objects"):
        return None
    known = {(rule.plane, rule.name): rule.mode for rule in rules(site.config)}
    return known.get((newest[0].plane, newest[0].rule or ""), site.config.fencing.mode)


def lag(found: Shown) -> Callable[[Entry], timedelta | None]:
    """For how long the writer of an entry had been a zombie: since the takeover that its lane shows."""
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


def _steps(name: str, found: Shown) -> list[Step]:
    span, zoom = found.span, _zoom(name)
    ways = (
        ("← Earlier", window.earlier(span)),
        ("Zoom out", window.wider(span, found.now)),
        ("Zoom in", window.narrower(span)),
        ("Later →", window.later(span, found.now)),
    )
    return [
        *(Step(title, None if to is None else zoom(to)) for title, to in ways),
        Step("Last eventful day", address(PATH, name=name)),
        Step("Whole record", address(PATH, name=name, whole="true")),
    ]


def _span_fields(span: Span) -> list[tuple[str, str]]:
    return [("since", machine_time(span.since)), ("until", machine_time(span.until))]


def _field(moment: datetime) -> str:
    """As a field of a form takes it, to the second."""
    return machine_time(moment)[:19]
