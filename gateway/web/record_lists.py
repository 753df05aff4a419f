"""The lists of the record: refused writes, and all events, filtered by the parameters of their address."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Annotated, Literal
from urllib.parse import urlencode

from pydantic import BeforeValidator, ConfigDict, TypeAdapter, ValidationError
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.api.record_views import EventFilters, Moment, Position, Text
from gateway.db import search
from gateway.db.database import Database
from gateway.db.search import Page, Slice
from gateway.errors import RequestMalformed, TokenMalformed
from gateway.fencing.record import Filters, Kind
from gateway.http.inner import elsewhere
from gateway.web.advice import kind_titles, reason_words
from gateway.web.rendering import Site, database_of

SPANS = {
    "1h": ("Last hour", timedelta(hours=1)),
    "24h": ("24 hours", timedelta(hours=24)),
    "7d": ("7 days", timedelta(days=7)),
    "30d": ("30 days", timedelta(days=30)),
}
"""Spans up to now: the name in addresses, the title, the length."""

PLANES = ("tables", "objects", "api")
REASONS = tuple(
    (reason, reason_words(reason))
    for reason in ("token-stale", "token-duplicate", "token-used", "token-implausible", "denied")
)
"""The reasons of refused writes, with their words."""


@dataclass(frozen=True, slots=True)
class ListQuery:
    """The parameters of a list. ``fields`` are the filled ones of its form; ``before`` and ``after`` are positions."""

    fields: Mapping[str, str]
    kinds: tuple[Kind, ...]
    filters: Filters
    before: int | None
    after: int | None

    @property
    def exported(self) -> list[tuple[str, str]]:
        """Return the filters as parameters of the API, whose exports know moments, but no spans."""
        parameters = [(name, value) for name, value in self.fields.items() if name not in ("span", "since", "until")]
        moments = [("since", self.filters.since), ("until", self.filters.until)]
        parameters += [(name, moment.isoformat()) for name, moment in moments if moment is not None]
        return parameters + [("kind", kind.value) for kind in self.kinds]


def _in_utc(text: str) -> datetime:
    """Read a moment in ISO 8601. Without a zone, as form fields send it, it is in UTC."""
    try:
        moment = datetime.fromisoformat(text)
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise ValueError("must be a time such as 2026-03-01T04:05, in UTC") from error


class _Fields(EventFilters):
    """The fields of a form: the filters of the API, spans up to now, and positions. Others are ignored."""

    model_config = ConfigDict(extra="ignore")

    span: Literal["1h", "24h", "7d", "30d"] | None = None
    since: Annotated[Moment | None, BeforeValidator(_in_utc)] = None
    until: Annotated[Moment | None, BeforeValidator(_in_utc)] = None
    before: Position | None = None
    after: Position | None = None


def read_filters(parameters: Sequence[tuple[str, str]], now: datetime, kinds: tuple[Kind, ...] = ()) -> ListQuery:
    """Read the parameters of an address. ``now`` is by the database's clock. A list may be limited to ``kinds``.

    Raises ``RequestMalformed``, which names the field.
    """
    sent = {name: value for name, value in parameters if value != "" and name in _Fields.model_fields}
    named = [] if kinds else [value for name, value in parameters if name == "kind" and value]
    try:
        read = _Fields.model_validate({**sent, "kind": named})
        filters = replace(read.filters(), kinds=read.kinds or kinds)
    except ValidationError as error:
        wrong = error.errors()[0]
        raise RequestMalformed(f"{wrong['loc'][0]}: {_said(wrong['msg'])}.") from error
    except TokenMalformed as error:
        raise RequestMalformed("token: must be digits, or epoch.digits.") from error
    if read.span is not None and read.since is None:
        filters = replace(filters, since=now - SPANS[read.span][1])
    moments = {"since": read.since, "until": read.until}
    # A form field knows no zones.
    shown = {
        name: "" if moment is None else moment.replace(tzinfo=None).isoformat(timespec="seconds")
        for name, moment in moments.items()
        if name in sent
    }
    kept = {name: value for name, value in sent.items() if name not in (*moments, "before", "after", "kind")}
    return ListQuery({**kept, **shown}, read.kinds, filters, read.before, read.after)


def form_field(parameters: Sequence[tuple[str, str]], name: str) -> str | None:
    """Return a field that is no filter; None if it is empty. Raises ``RequestMalformed``."""
    value = next((value for given, value in parameters if given == name and value), None)
    try:
        return _TEXT.validate_python(value)
    except ValidationError as error:
        raise RequestMalformed(f"{name}: {_said(error.errors()[0]['msg'])}.") from error


def _said(message: str) -> str:
    return message.removeprefix("Value error, ")


_TEXT = TypeAdapter[str | None](Text | None)


SIZE = 50
"""Entries of a page."""


async def read_page(database: Database, query: ListQuery) -> Page:
    """Read the requested page, newest first. An address with ``after`` alone goes back to newer entries."""
    is_back = query.after is not None and query.before is None
    page = await search.read_page(database, Slice(query.filters, SIZE, query.before, query.after, is_back))
    return page._replace(entries=page.entries[::-1]) if is_back else page


EXPORTS = ("rejections.csv", "rejections.ndjson", "events.csv", "events.ndjson")

_NO_TIMES = {"since": "", "until": ""}
"""A form field cannot show an invalid time."""


def routes(site: Site) -> list[Route]:
    """Build the routes ``/ui/rejections`` and ``/ui/events``, and those of the lists as files (``/ui/events.csv``)."""
    return [
        Route("/ui/rejections", partial(_show, site, "rejections.html", (Kind.REJECTION,))),
        Route("/ui/events", partial(_show, site, "events.html", ())),
        *(Route(f"/ui/{name}", partial(_export, site, name)) for name in EXPORTS),
    ]


async def _show(site: Site, template: str, kinds: tuple[Kind, ...], request: Request) -> Response:
    sent = request.query_params.multi_items()
    page, problem, query = None, None, None
    now = await site.place.database.now()
    try:
        query = read_filters(sent, now, kinds)
        page = await read_page(site.place.database, query)
    except RequestMalformed as error:
        problem = error.message
    return site.pages.render(
        request,
        template,
        200 if problem is None else 400,
        now=now,
        page=page,
        lag=search.lag,
        problem=problem,
        fields=dict(sent) | _NO_TIMES if query is None else query.fields,
        chosen=() if query is None else query.kinds,
        kept=_kept(query, database_of(request)),
        titles=kind_titles(),
        span_choices=[(span, name) for span, (name, _) in SPANS.items()],
        planes=PLANES,
        reasons=REASONS,
    )


async def _export(site: Site, name: str, request: Request) -> ASGIApp:
    """Return the answer of the API to the viewer of the page."""
    query = read_filters(request.query_params.multi_items(), await site.place.database.now())

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        await site.place.api(elsewhere(scope, f"/v1/{name}", urlencode(query.exported)), receive, send)

    return answer


def _kept(query: ListQuery | None, of: str | None) -> list[tuple[str, str]]:
    """Return the filters as parameters, for the addresses of other pages of the list and of its exports."""
    kept = [] if of is None else [("of", of)]
    if query is None:
        return kept
    return [*kept, *query.fields.items(), *(("kind", kind.value) for kind in query.kinds)]
