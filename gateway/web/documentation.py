"""The fencing API's description for people, at ``/v1/docs``: Swagger UI, which comes with the gateway.

It lies on the origin where sessions of the page are, so it loads the gateway's own files and nothing else.
"""

from starlette.requests import Request
from starlette.responses import Response

from gateway.web.login import HEADERS
from gateway.web.rendering import Site


def answer(site: Site, request: Request) -> Response:
    """The document, which asks for ``/v1/openapi.json`` itself."""
    shown = site.pages.render(request, "documentation.html")
    shown.headers.update(HEADERS)
    return shown
