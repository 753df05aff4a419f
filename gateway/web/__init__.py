"""The page at ``/ui/``: the record for people. docs/record.md explains it.

``build`` makes the ASGI app. A page is a module with ``routes(site)``. ``LoginGate`` in ``login.py`` guards all pages.
Every state of a page is an address, and works without scripts. Each expression of a template is escaped by one
function. Scripts and styles are files of this folder, because a script of this origin can read the record. Only
assembly imports it.
"""

from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from gateway.auth.callers import Callers
from gateway.auth.provider_logins import ProviderLogins
from gateway.errors import GatewayError, RequestMalformed
from gateway.http.body import BodyReader, WholeAnswers
from gateway.web import (
    entry_page,
    incident_pages,
    live_page,
    login,
    observe_mode,
    overview_page,
    record_lists,
    resource_page,
)
from gateway.web.login import HEADERS, Clock, LoginGate, SecurityHeaders
from gateway.web.overview_page import names
from gateway.web.rendering import Site, list_address, wants_json

SEGMENT = "ui"
"""The first segment of every path of the page."""
OF_A_RESOURCE = (resource_page.PATH, resource_page.REPORT_PATH)
"""The pages whose ``name`` is that of a resource, which tells its database."""


def build(site: Site, keys: Callers, logins: ProviderLogins, clock: Clock, bodies: BodyReader) -> ASGIApp:
    """Build the app for everything under ``/ui/``. ``clock`` ends sessions.

    Over several databases there is the overview alone. The other pages are of one database each.
    """
    pages = [
        *incident_pages.routes(site, bodies),
        *record_lists.routes(site),
        *observe_mode.routes(site),
        *entry_page.routes(site),
        *resource_page.routes(site),
        *resource_page.report_routes(site),
        *live_page.routes(site),
    ]
    if len(site.places) > 1:
        pages = [Route(page.path, partial(_choose, site), methods=page.methods) for page in pages]
    app = Starlette(
        routes=[
            *login.routes(keys, logins, clock, site.pages, bodies),
            *login.provider_routes(logins, clock, site.pages),
            *overview_page.routes(site),
            *pages,
            site.assets.route(),
            Route("/ui", _to_overview),
            Route("/", _from_root),
        ],
        exception_handlers={GatewayError: site.answer_error, HTTPException: site.answer_http},
    )
    app.add_middleware(WholeAnswers, memory=bodies.memory, refuse=site.answer_error)
    return SecurityHeaders(LoginGate(app, keys, logins, clock, site.pages))


async def _choose(site: Site, request: Request) -> Response:
    """Answer a request for a page of one database that names none: with links to that page of each."""
    error = RequestMalformed("This page is of one database.", advice="Choose a database.")
    if wants_json(request):
        raise error
    kept = [(name, value) for name, value in request.query_params.multi_items() if name != "of"]
    choices = [(name, list_address(request.url.path, kept, {"of": name})) for name in names(site.places)]
    told: dict[str, Any] = {"message": error.message, "advice": error.advice, "choices": choices}
    return site.pages.render(request, "error.html", error.status, title="Several databases", **told)


def answer_documentation(site: Site, request: Request) -> Response:
    """Return the page at ``/v1/docs``: Swagger UI, which comes with the gateway and loads ``/v1/openapi.json``.

    It shares an origin with sessions of the page, so it loads the gateway's own files and nothing else.
    """
    page = site.pages.render(request, "documentation.html")
    page.headers.update(HEADERS)
    return page


async def _to_overview(_: Request) -> Response:
    return RedirectResponse("/ui/", 308)


async def _from_root(_: Request) -> Response:
    return RedirectResponse("/ui/", 307)
