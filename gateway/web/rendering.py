"""Pages from templates: the one door to Jinja2. Whatever is put into a page is escaped, hidden characters too."""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, TypeAlias
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.types import ASGIApp

from gateway import text
from gateway.config import Config
from gateway.db.database import Database
from gateway.errors import GatewayError
from gateway.record.following import Follower
from gateway.web.advice import kind_title
from gateway.web.assets import Assets

NAVIGATION = (
    ("/ui/", "Overview"),
    ("/ui/rejections", "Rejections"),
    ("/ui/events", "Events"),
    ("/ui/resources", "Resources"),
    ("/ui/live", "Live"),
    ("/ui/observe", "Observe"),
)

_LONG = 48
"""Characters; names beyond are wrapped where they would make a table wide."""

THEMES = ("system", "light", "dark")
THEME_COOKIE = "gateway_theme"


class Pages:
    """Renders templates of ``gateway/web/templates``."""

    def __init__(self, assets: Assets) -> None:
        self._environment = environment()
        self._environment.globals["asset"] = assets.address

    def render(self, request: Request, template: str, status: int = 200, **model: object) -> HTMLResponse:
        """A page as an answer to a request. ``model`` is what its template wants beside what every page has."""
        theme = request.cookies.get(THEME_COOKIE, "")
        viewer = request.scope.get("state", {}).get("viewer")
        path = request.url.path
        content = self._environment.get_template(template).render(
            viewer=viewer,
            theme=theme if theme in THEMES else THEMES[0],
            navigation=NAVIGATION if viewer is not None else (),
            path=path,
            here=address(path, dict(request.query_params)),
            **model,
        )
        return HTMLResponse(content, status)

    def piece(self, template: str, **model: object) -> str:
        """A part of a page, for who has the page already; or a document that is to be kept."""
        return self._environment.get_template(template).render(**model)


def environment() -> Environment:
    """Templates, with the filters that all of them may use. A name that is not given is an error, not a blank."""
    made = Environment(
        loader=PackageLoader("gateway.web"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "name": name,
        "raw": _raw,
        "number": partial(_plain, text.number),
        "size": partial(_plain, text.size),
        "span": partial(_plain, text.span),
        "json": partial(json.dumps, ensure_ascii=False, default=str),
        "machine_time": partial(_plain, text.machine_time),
        "plain_time": partial(_plain, text.plain_time),
    }
    made.globals |= {
        "address": address,
        "list_address": list_address,
        "resource_address": resource_address,
        "age": text.age,
        "pairs": _pairs,
        "kind_title": kind_title,
    }
    return made


def address(path: str, parameters: Mapping[str, object] | None = None, **more: object) -> str:
    """A path with parameters; those that are None or empty are left out."""
    given = {key: value for key, value in {**(parameters or {}), **more}.items() if value not in (None, "")}
    return f"{path}?{urlencode(given)}" if given else path


def list_address(path: str, kept: Sequence[tuple[str, str]], more: Mapping[str, object] | None = None) -> str:
    """A list with its filters, whose names may stand several times, and where in it."""
    given = [*kept, *(more or {}).items()]
    return f"{path}?{urlencode(given)}" if given else path


def resource_address(resource: str) -> str:
    """The page of a resource. Its name is no part of the path: browsers would resolve a ``..`` in it."""
    return address("/ui/resource", name=resource)


def name(value: str | None) -> Markup:
    """A name from outside: apart from the text around it, its hidden characters visible, and marked as such."""
    if value is None:
        return Markup('<span class="none">none</span>')
    marked = (
        Markup('<span class="hidden">{}</span>').format(piece) if hidden else escape(piece)
        for piece, hidden in text.pieces(value)
    )
    size = "name long" if len(value) > _LONG else "name"
    return Markup('<bdi class="{}">{}</bdi>').format(size, Markup("").join(marked))


def _shown(value: object) -> object:
    """What every expression in a template passes on its way out, before it is escaped."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return text.visible(value)
    return value


def _raw(value: str) -> Markup:
    """Escaped for HTML alone: for the fields of forms, which must send back what they were given."""
    return escape(value)


def _plain(put: Callable[[Any], str], value: object) -> Markup:
    """What we have put into words ourselves has no hidden characters but those we mean."""
    return escape(put(value))


def _pairs(values: Sequence[str]) -> list[tuple[str, str]]:
    """Choices of a form that are called what they are."""
    return [(value, value) for value in values]


Health: TypeAlias = Callable[[], Awaitable[dict[str, str]]]
"""Names each service behind the gateway, with ``ok`` or what is wrong."""


class Bucket(Protocol):
    """What is known of a bucket that has been probed."""

    @property
    def writable(self) -> bool:
        """Whether fenced writes to it are taken."""

    @property
    def missing(self) -> Mapping[str, str]:
        """The probes its store did not pass, each with what follows from it."""


Buckets: TypeAlias = Callable[[], Mapping[str, Bucket]]


class Site:
    """``config`` is shown from, never its secrets: modes of rules, names of webhooks and alarms.

    ``api`` is the fencing API, which takes the viewer in ``scope["state"]`` for its caller.
    """

    def __init__(
        self, database: Database, follower: Follower, config: Config, health: Health, buckets: Buckets, api: ASGIApp
    ) -> None:
        self.database = database
        self.follower = follower
        self.config = config
        self.health = health
        self.buckets = buckets
        self.api = api
        self.assets = Assets()
        self.pages = Pages(self.assets)

    async def answer_error(self, request: Request, error: Exception) -> Response:
        """An error of ours, as a page."""
        assert isinstance(error, GatewayError)
        return self.pages.render(
            request, "error.html", error.status, title=error.title, message=error.message, advice=error.advice
        )

    async def answer_http(self, request: Request, error: Exception) -> Response:
        """What the router has to say: nothing is there, or not by this method."""
        assert isinstance(error, HTTPException)
        message = "There is no page at this address." if error.status_code == 404 else f"{error.detail}."
        advice = "Start from the overview."
        return self.pages.render(
            request, "error.html", error.status_code, title="No such page", message=message, advice=advice
        )
