"""The page at ``/ui/``: the record for people. docs/record.md explains it.

``build`` makes the ASGI app. A page is a module with ``routes(site)``. ``LoginGate`` in ``login.py`` guards all pages.
Every state of a page is an address, and works without scripts. Each expression of a template is escaped by one
function. Scripts and styles are files of this folder, because a script of this origin can read the record. Only
assembly imports it.
"""

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from gateway.auth.callers import Callers
from gateway.auth.provider_logins import ProviderLogins
from gateway.errors import GatewayError
from gateway.http.body import BodyReader, WholeAnswers
from gateway.web import (
    entry_page,
    incident_pages,
    incident_report,
    live_page,
    login,
    observe_mode,
    overview_page,
    owner_pages,
    provider_login,
    record_lists,
    resource_page,
)
from gateway.web.login import HEADERS, Clock, LoginGate, SecurityHeaders
from gateway.web.owner_pages import Parts
from gateway.web.rendering import Site

SEGMENT = "ui"
"""The first segment of every path of the page."""


def build(
    site: Site, keys: Callers, logins: ProviderLogins, clock: Clock, bodies: BodyReader, parts: Parts | None = None
) -> ASGIApp:
    """Build the app for everything under ``/ui/``. ``clock`` ends sessions. ``parts``: the pages of each database.

    Pages about one thing come from them if the site has several databases.
    """
    single = [
        *incident_pages.routes(site, bodies),
        *record_lists.export_routes(site),
        *entry_page.routes(site),
        *resource_page.routes(site),
        *incident_report.routes(site),
    ]
    app = Starlette(
        routes=[
            *login.routes(keys, logins, clock, site.pages, bodies),
            *provider_login.routes(logins, clock, site.pages),
            *overview_page.routes(site),
            *incident_pages.list_routes(site),
            *record_lists.routes(site),
            *observe_mode.routes(site),
            *resource_page.search_routes(site),
            *live_page.routes(site),
            *(single if parts is None else owner_pages.routes(site, parts)),
            site.assets.route(),
            Route("/ui", _to_overview),
            Route("/", _from_root),
        ],
        exception_handlers={GatewayError: site.answer_error, HTTPException: site.answer_http},
    )
    app.add_middleware(WholeAnswers, memory=bodies.memory, refuse=site.answer_error)
    return SecurityHeaders(LoginGate(app, keys, logins, clock, site.pages))


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
