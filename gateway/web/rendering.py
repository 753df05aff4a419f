"""Pages from templates: the one door to Jinja2. Every value in a page is escaped, hidden characters too."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any, NamedTuple
from urllib.parse import urlencode
from uuid import UUID

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from gateway import text
from gateway.api.incidents import Acknowledging
from gateway.api.services import HealthCheck, JournalState, ProbedBuckets
from gateway.auth.provider_logins import LOGIN
from gateway.config.databases import DatabaseConfig
from gateway.db.database import Database
from gateway.errors import GatewayError, NotFound, for_callers
from gateway.fencing.incident import nothing_refused
from gateway.fencing.record import ANONYMOUS
from gateway.http.middleware import problem
from gateway.record.following import Follower
from gateway.web.advice import kind_title, reason_words

PREFIX = "/ui/static/"

_TYPES = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8", "svg": "image/svg+xml"}
_FOR_EVER = "public, max-age=31536000, immutable"


@dataclass(frozen=True, slots=True)
class Asset:
    """A static file. ``fingerprint`` is the beginning of the SHA-256 of its bytes, in hex."""

    content: bytes
    media_type: str
    fingerprint: str


class Assets:
    """The static files of the pages, by their path below ``static/``."""

    def __init__(self) -> None:
        self._assets = dict(_read(files("gateway.web").joinpath("static")))

    def address(self, path: str) -> str:
        """Return the address of a file, which changes with its content. Raises ``KeyError`` for an unknown path."""
        return f"{PREFIX}{path}?v={self._assets[path].fingerprint}"

    def text(self, path: str) -> str:
        return self._assets[path].content.decode()

    def route(self) -> Route:
        return Route(PREFIX + "{path:path}", self._serve, methods=["GET"])

    async def _serve(self, request: Request) -> Response:
        asset = self._assets.get(request.path_params["path"])
        if asset is None:
            return Response("There is nothing at this path.\n", 404, media_type="text/plain")
        tag = f'"{asset.fingerprint}"'
        current = request.query_params.get("v") == asset.fingerprint
        headers: Mapping[str, str] = {"ETag": tag, "Cache-Control": _FOR_EVER if current else "no-cache"}
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(asset.content, headers=headers, media_type=asset.media_type)


def _read(directory: Traversable, path: str = "") -> list[tuple[str, Asset]]:
    found = []
    for entry in directory.iterdir():
        media_type = _TYPES.get(entry.name.rpartition(".")[2])
        if entry.is_dir():
            found += _read(entry, f"{path}{entry.name}/")
        elif media_type is not None:
            content = entry.read_bytes()
            found.append((path + entry.name, Asset(content, media_type, hashlib.sha256(content).hexdigest()[:16])))
    return found


NAVIGATION = (
    ("/ui/", "Overview"),
    ("/ui/incidents", "Incidents"),
    ("/ui/rejections", "Rejections"),
    ("/ui/events", "Events"),
    ("/ui/resources", "Resources"),
    ("/ui/live", "Live"),
    ("/ui/observe", "Observe"),
)

_LONGEST_NAME = 512
PROBLEM = "application/problem+json"

_LONG = 48
"""Characters. Longer names wrap, so that tables stay narrow."""

THEMES = ("system", "light", "dark")
THEME_COOKIE = "gateway_theme"


class Pages:
    def __init__(self, assets: Assets) -> None:
        self._environment = environment()
        self._environment.globals["asset"] = assets.address

    def render(
        self, request: Request, template: str, status: int = 200, *, here: str | None = None, **model: object
    ) -> HTMLResponse:
        """Return a page as the answer to a request. ``model`` has the values of its template.

        ``here``: the address of the page, if it is not that of the request.
        """
        theme = request.cookies.get(THEME_COOKIE, "")
        state = request.scope.get("state", {})
        viewer = state.get("viewer")
        path = request.url.path
        in_session, is_known = state.get("in_session", False), viewer is not None and viewer.name != ANONYMOUS
        content = self._environment.get_template(template).render(
            viewer=viewer,
            in_session=in_session,
            login=None if in_session or is_known or path == LOGIN or not state.get("offers_login") else LOGIN,
            theme=theme if theme in THEMES else THEMES[0],
            navigation=NAVIGATION if viewer is not None else (),
            databases=state.get("databases", ()) if viewer is not None else (),
            database=state.get("database"),
            of=state.get("of"),
            path=path,
            here=address(path, dict(request.query_params)) if here is None else here,
            **model,
        )
        return HTMLResponse(content, status)

    def piece(self, template: str, **model: object) -> str:
        return self._environment.get_template(template).render(**model)


def environment() -> Environment:
    """Return the templates with their common filters. A missing name is an error, not a blank."""
    made = Environment(
        loader=PackageLoader("gateway.web"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_visible,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "name": name,
        "raw": _raw,
        "number": partial(_plain, text.number),
        "size": partial(_plain, text.size),
        "span": partial(_plain, text.span),
        "worded": text.worded,
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
        "reason_words": reason_words,
        "nothing_refused": nothing_refused,
    }
    return made


def address(path: str, parameters: Mapping[str, object] | None = None, **more: object) -> str:
    """Return a path with its parameters, without empty ones."""
    given = {key: value for key, value in {**(parameters or {}), **more}.items() if value not in (None, "")}
    return f"{path}?{urlencode(given)}" if given else path


def list_address(path: str, kept: Sequence[tuple[str, str]], more: Mapping[str, object] | None = None) -> str:
    """Return the address of a list with its filters, which may repeat, and a position in it."""
    given = [*kept, *(more or {}).items()]
    return f"{path}?{urlencode(given)}" if given else path


def resource_address(resource: str, of: str | None = None) -> str:
    """Return the address of a resource's page. The name is not in the path, because browsers resolve a ``..`` in it.

    ``of``: the database of the fence that the page shows, if it need not be the owner of the name.
    """
    return address("/ui/resource", name=resource, of=of)


def entry_named(request: Request) -> UUID:
    """Return the id of the entry in a path. Raises ``NotFound`` for a path without one."""
    try:
        return UUID(request.path_params["id"])
    except ValueError as error:
        raise NotFound("There is no entry with this id.", advice="Use an id such as 5f0c2a52-….") from error


def database_of(request: Request) -> str | None:
    """Return the database that the address of a page names, or the resource on it. Its links keep to that one.

    None: the only database, or the one that the browser has chosen.
    """
    of: str | None = request.scope["state"].get("of")
    return of


def name(value: str | None) -> Markup:
    """Return a name from outside, isolated from the text around it, with its hidden characters visible and marked."""
    if value is None:
        return Markup('<span class="none">none</span>')
    marked = (
        Markup('<span class="hidden">{}</span>').format(piece) if hidden else escape(piece)
        for piece, hidden in text.pieces(value)
    )
    size = "name long" if len(value) > _LONG else "name"
    return Markup('<bdi class="{}">{}</bdi>').format(size, Markup("").join(marked))


def _visible(value: object) -> object:
    """Make hidden characters visible in the value of every expression, before it is escaped."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return text.visible(value)
    return value


def _raw(value: str) -> Markup:
    """Escape a value for HTML only: form fields must send back exactly what they were given."""
    return escape(value)


def _plain(put: Callable[[Any], str], value: object) -> Markup:
    """Return a formatted value, whose hidden characters are intended."""
    return escape(put(value))


def _pairs(values: Sequence[str]) -> list[tuple[str, str]]:
    return [(value, value) for value in values]


@dataclass(frozen=True, slots=True)
class Place:
    """A database with everything that pages need of it. ``name``: None if a page shows no other one.

    Of ``config`` pages show modes of rules, names of webhooks and alarms, never secrets. ``api`` is the fencing API,
    which takes the viewer in ``scope["state"]`` for its caller. ``troubles``: the error of each service that does not
    work, as ``health`` has found it. ``acknowledging`` puts acknowledgements on record.
    """

    name: str | None
    database: Database
    follower: Follower
    config: DatabaseConfig
    health: HealthCheck
    troubles: Mapping[str, GatewayError]
    journal: JournalState
    buckets: ProbedBuckets
    api: ASGIApp
    acknowledging: Acknowledging


class Site:
    """Everything that pages need. ``places``: the databases that they show."""

    def __init__(self, *places: Place) -> None:
        self.places = places
        self.assets = Assets()
        self.pages = Pages(self.assets)

    @property
    def place(self) -> Place:
        """Return the only database of pages about one thing."""
        (place,) = self.places
        return place

    async def answer_error(self, request: Request, error: Exception) -> Response:
        """Return an error of the gateway as a page, or as a problem document to programs."""
        assert isinstance(error, GatewayError)
        request.scope["state"]["error"] = error = for_callers(error)
        if wants_json(request):
            return JSONResponse(problem(error), error.status, media_type=PROBLEM)
        return self.pages.render(
            request, "error.html", error.status, title=error.title, message=error.message, advice=error.advice
        )

    async def answer_http(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if error.status_code == 404:
            missing = NotFound("There is no page at this address.", advice=_ELSEWHERE)
            if wants_json(request):
                return JSONResponse(problem(missing), missing.status, media_type=PROBLEM)
            return self.pages.render(request, "missing.html", 404, **nearest_page(request.url.path)._asdict())
        advice = "Start from the overview."
        return self.pages.render(
            request, "error.html", error.status_code, title="Not possible", message=f"{error.detail}.", advice=advice
        )


_ELSEWHERE = "The pages are those that /ui/ links. Programs read the record at /v1/events."
_LIKE = 0.6
"""The least likeness of a mistyped address, as ``difflib`` measures it."""


class NearestPage(NamedTuple):
    """The likely meaning of an unknown address: a page with its title, and the name of a resource."""

    page: tuple[str, str] | None
    resource: str


def nearest_page(path: str) -> NearestPage:
    """Return what an unknown address may mean. A name of a resource behind that of a page is a resource."""
    first, _, rest = path.removeprefix("/ui/").strip("/").partition("/")
    known = {target.removeprefix("/ui/") or "overview": (target, title) for target, title in NAVIGATION}
    like = get_close_matches(first.casefold(), known, 1, _LIKE)
    page = known[like[0]] if like else None
    resource = rest if page is not None else f"{first}/{rest}".rstrip("/")
    return NearestPage(page, resource[:_LONGEST_NAME])


def wants_json(request: Request) -> bool:
    """Return whether the sender is a program that reads JSON, and no browser."""
    accepted = request.headers.get("accept", "")
    return "json" in accepted and "text/html" not in accepted
