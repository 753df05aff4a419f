"""The lists of the record: refused writes, and everything that happened. Filtered by their address."""

from dataclasses import dataclass
from functools import partial
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from gateway.db import search
from gateway.errors import RequestMalformed
from gateway.fencing.record import Kind
from gateway.web import record_lists
from gateway.web.advice import titles
from gateway.web.record_lists import PLANES, REASONS, SPANS, Asked, read_filters
from gateway.web.rendering import Site


@dataclass(frozen=True, slots=True)
class List:
    """One of the lists. ``kinds``: what it is about; all, if there are none."""

    template: str
    kinds: tuple[Kind, ...]


REJECTIONS = List("rejections.html", (Kind.REJECTION,))
EVENTS = List("events.html", ())
EXPORTS = ("rejections.csv", "rejections.ndjson", "events.csv", "events.ndjson")

_OF_A_REQUEST = ("type", "asgi", "http_version", "method", "scheme", "headers", "client", "server", "state")
"""All that is the request's, and nothing that the router of the pages has added."""
_NO_TIMES = {"since": "", "until": ""}
"""A field for times cannot show what is none."""


class Forwarded(Response):
    """What the API answers to a path and a query, to the viewer of the page."""

    def __init__(self, site: Site, path: str, query: str) -> None:
        super().__init__()
        self._site, self._path, self._query = site, path, query

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kept = {name: scope[name] for name in _OF_A_REQUEST if name in scope}
        asked = {"path": self._path, "raw_path": self._path.encode(), "query_string": self._query.encode()}
        # What the API is asked is another request, and gets a head of its own.
        scope["state"].pop("head", None)
        await self._site.api({**kept, **asked}, receive, send)


def routes(site: Site) -> list[Route]:
    """``/ui/rejections`` and ``/ui/events``, and both of them as files."""
    return [
        Route("/ui/rejections", partial(_show, site, REJECTIONS)),
        Route("/ui/events", partial(_show, site, EVENTS)),
        *(Route(f"/ui/{name}", partial(_export, site, name)) for name in EXPORTS),
    ]


async def _show(site: Site, one: List, request: Request) -> Response:
    now = await site.database.now()
    sent = request.query_params.multi_items()
    page, problem, asked = None, None, None
    try:
        asked = read_filters(sent, now, one.kinds)
        page = await record_lists.page(site.database, asked)
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
        fields=dict(sent) | _NO_TIMES if asked is None else asked.fields,
        chosen=() if asked is None else asked.kinds,
        kept=_kept(asked),
        titles=titles(),
        span_choices=[(span, name) for span, (name, _) in SPANS.items()],
        planes=PLANES,
        reasons=REASONS,
    )


async def _export(site: Site, name: str, request: Request) -> Response:
    asked = read_filters(request.query_params.multi_items(), await site.database.now())
    return Forwarded(site, f"/v1/{name}", urlencode(asked.exported))


def _kept(asked: Asked | None) -> list[tuple[str, str]]:
    """The filters as parameters, for the addresses of other pages of the same list, and of its exports."""
    if asked is None:
        return []
    return [*asked.fields.items(), *(("kind", kind.value) for kind in asked.kinds)]
