"""The lists of the record: refused writes, and all events, filtered by the parameters of their address."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from gateway.db import search
from gateway.db.database import Database
from gateway.db.search import Total
from gateway.errors import RequestMalformed, TokenMalformed
from gateway.fencing.record import Entry, EntryReason, Filters, Kind
from gateway.fencing.token import Token
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

_NAMES = ("prefix", "resource", "holder", "caller", "plane", "rule")
_FIELDS = (*_NAMES, "reason", "enforced", "token", "span", "since", "until", "before", "after")
_TIMES = ("span", "since", "until")
_LONGEST = 1024
_MAX_POSITION = 10**18 - 1
_EARLIEST, _LATEST = datetime(1, 1, 2, tzinfo=UTC), datetime(9999, 12, 30, tzinfo=UTC)
"""Moments beyond these would overflow."""


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
        parameters = [(name, value) for name, value in self.fields.items() if name not in _TIMES]
        moments = [("since", self.filters.since), ("until", self.filters.until)]
        parameters += [(name, moment.isoformat()) for name, moment in moments if moment is not None]
        return parameters + [("kind", kind.value) for kind in self.kinds]


def read_filters(parameters: Sequence[tuple[str, str]], now: datetime, kinds: tuple[Kind, ...] = ()) -> ListQuery:
    """Read the parameters of an address. ``now`` is by the database's clock. A list may be limited to ``kinds``.

    Raises ``RequestMalformed``, which names the field.
    """
    fields = {name: _checked(name, value) for name, value in parameters if value != "" and name in _FIELDS}
    named = [value for name, value in parameters if name == "kind" and value]
    query_kinds = () if kinds else tuple(dict.fromkeys(map(_kind, named)))
    span = fields.get("span")
    if span is not None and span not in SPANS:
        raise RequestMalformed(f"span: must be one of {', '.join(SPANS)}.")
    since = _moment("since", fields.get("since"))
    if since is None and span is not None:
        since = now - SPANS[span][1]
    filters = Filters(
        kinds=query_kinds or kinds,
        **{name: fields.get(name) for name in _NAMES},
        reason=_reason(fields.get("reason")),
        enforced=_choice("enforced", fields.get("enforced")),
        token=_token(fields.get("token")),
        since=since,
        until=_moment("until", fields.get("until")),
    )
    before, after = _position("before", fields.get("before")), _position("after", fields.get("after"))
    kept = {name: value for name, value in fields.items() if name not in ("before", "after", "since", "until")}
    given: dict[str, str] = {
        name: _in_form(_moment(name, fields[name])) for name in ("since", "until") if name in fields
    }
    return ListQuery({**kept, **given}, query_kinds, filters, before, after)


def form_field(parameters: Sequence[tuple[str, str]], name: str) -> str | None:
    """Return a field that is no filter; None if it is empty. Raises ``RequestMalformed``."""
    return next((_checked(name, value) for given, value in parameters if given == name and value), None)


def _checked(name: str, value: str) -> str:
    if "\0" in value:
        raise RequestMalformed(f"{name}: a NUL character cannot be part of a name.")
    if len(value) > _LONGEST:
        raise RequestMalformed(f"{name}: at most {_LONGEST} characters.")
    return value


def _kind(value: str) -> Kind:
    try:
        return Kind(value)
    except ValueError as error:
        raise RequestMalformed(f"kind: {value[:40]} is unknown.") from error


def _reason(value: str | None) -> str | None:
    if value is not None and value not in set(EntryReason):
        raise RequestMalformed(f"reason: must be one of {', '.join(EntryReason)}.")
    return value


def _choice(name: str, value: str | None) -> bool | None:
    if value not in (None, "true", "false"):
        raise RequestMalformed(f"{name}: must be true or false.")
    return None if value is None else value == "true"


def _token(value: str | None) -> Token | None:
    try:
        return None if value is None else Token.parse(value)
    except TokenMalformed as error:
        raise RequestMalformed("token: must be digits, or epoch.digits.") from error


def _moment(name: str, value: str | None) -> datetime | None:
    """Read a moment in ISO 8601. Without a zone, as form fields send it, it is in UTC."""
    if value is None:
        return None
    try:
        moment = datetime.fromisoformat(value)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        if not _EARLIEST <= moment <= _LATEST:
            raise ValueError("out of range")
        return moment.astimezone(UTC)
    except ValueError as error:
        raise RequestMalformed(f"{name}: must be a time such as 2026-03-01T04:05, in UTC.") from error


def _in_form(moment: datetime | None) -> str:
    """Return a moment for a form field, which knows no zones."""
    return "" if moment is None else moment.replace(tzinfo=None).isoformat(timespec="seconds")


def _position(name: str, value: str | None) -> int | None:
    if value is None:
        return None
    if not (value.isascii() and value.isdecimal()) or len(value) > 19 or int(value) > _MAX_POSITION:
        raise RequestMalformed(f"{name}: must be a position in the record.")
    return int(value)


SIZE = 50
"""Entries of a page."""


@dataclass(frozen=True, slots=True)
class RecordPage:
    """A page of a list. ``older`` and ``newer`` are the parameters of the next pages; None if there are none.

    ``total`` is counted for the first page only.
    """

    entries: Sequence[Entry]
    total: Total | None
    newer: Mapping[str, int] | None
    older: Mapping[str, int] | None


async def read_page(database: Database, query: ListQuery, size: int = SIZE) -> RecordPage:
    """Read the requested page. It looks for one entry more, to know whether another page follows."""
    backwards = query.after is not None and query.before is None
    found = await search.find_page(
        database, query.filters, size + 1, before=query.before, after=query.after, oldest_first=backwards
    )
    more, entries = len(found) > size, found[:size]
    if backwards:
        entries.reverse()
    total = None
    if query.before is None and query.after is None:
        total = await search.count_entries(database, query.filters) if more else Total(len(entries), exact=True)
    if not entries:
        return RecordPage((), total, None, None)
    is_newest = query.before is None if not backwards else not more
    is_oldest = not more if not backwards else False
    return RecordPage(
        entries,
        total,
        None if is_newest else {"after": entries[0].position},
        None if is_oldest else {"before": entries[-1].position},
    )


@dataclass(frozen=True, slots=True)
class ListKind:
    """A list, limited to ``kinds`` unless these are empty."""

    template: str
    kinds: tuple[Kind, ...]


REJECTIONS = ListKind("rejections.html", (Kind.REJECTION,))
EVENTS = ListKind("events.html", ())
EXPORTS = ("rejections.csv", "rejections.ndjson", "events.csv", "events.ndjson")

_NO_TIMES = {"since": "", "until": ""}
"""A form field cannot show an invalid time."""


class ApiAnswer(Response):
    """The answer of the API to a path and a query, for the viewer of the page."""

    def __init__(self, site: Site, path: str, query: str) -> None:
        super().__init__()
        self._site, self._path, self._query = site, path, query

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._site.place.api(elsewhere(scope, self._path, self._query), receive, send)


def routes(site: Site) -> list[Route]:
    """Build the routes ``/ui/rejections`` and ``/ui/events``, and those of the lists as files (``/ui/events.csv``)."""
    return [
        Route("/ui/rejections", partial(_show, site, REJECTIONS)),
        Route("/ui/events", partial(_show, site, EVENTS)),
        *(Route(f"/ui/{name}", partial(_export, site, name)) for name in EXPORTS),
    ]


async def _show(site: Site, one: ListKind, request: Request) -> Response:
    sent = request.query_params.multi_items()
    page, problem, query = None, None, None
    now = await site.place.database.now()
    try:
        query = read_filters(sent, now, one.kinds)
        page = await read_page(site.place.database, query)
    except RequestMalformed as error:
        problem = error.message
    return site.pages.render(
        request,
        one.template,
        200 if problem is None else 400,
        now=now,
        page=page,
        lag=partial(search.lag, takeover=None),
        problem=problem,
        fields=dict(sent) | _NO_TIMES if query is None else query.fields,
        chosen=() if query is None else query.kinds,
        kept=_kept(query, database_of(request)),
        titles=kind_titles(),
        span_choices=[(span, name) for span, (name, _) in SPANS.items()],
        planes=PLANES,
        reasons=REASONS,
    )


async def _export(site: Site, name: str, request: Request) -> Response:
    query = read_filters(request.query_params.multi_items(), await site.place.database.now())
    return ApiAnswer(site, f"/v1/{name}", urlencode(query.exported))


def _kept(query: ListQuery | None, of: str | None) -> list[tuple[str, str]]:
    """Return the filters as parameters, for the addresses of other pages of the list and of its exports."""
    kept = [] if of is None else [("of", of)]
    if query is None:
        return kept
    return [*kept, *query.fields.items(), *(("kind", kind.value) for kind in query.kinds)]
