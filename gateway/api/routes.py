"""The routes of the fencing API: one table. Each route stands beside its endpoint.

A route says its method and path, the grant that it needs, the body that it takes, and its answers. It also says how a
gateway of several databases finds the one of a request. ``gateway/routing.py`` and the OpenAPI document read the table.

An endpoint takes a ``Call`` and, by name, what its annotations ask for: the parts of the path, ``query``, ``headers``
and ``body``. It returns a view, which becomes JSON, or a whole response. A caller is proven and authorised before its
body is read.
"""

import re
from asyncio import Future
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeAlias, get_origin
from urllib.parse import parse_qsl
from uuid import UUID

import orjson
from pydantic import BaseModel, ValidationError
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway import budget
from gateway.api.authorisation import OPEN, Rule
from gateway.api.description import Subject
from gateway.api.requests import attempt, shown_path
from gateway.api.services import Services
from gateway.auth.grants import Rights
from gateway.auth.principal import Principal, Proof, Use
from gateway.errors import BodyTooLarge, GatewayError, NotFound, RequestMalformed, for_callers
from gateway.fencing.headers import FencingHeaders
from gateway.fencing.ownership import Ownership
from gateway.fencing.record import Attempt
from gateway.fencing.resource import canonical
from gateway.http.body import ClientGone, WholeAnswers
from gateway.http.direct import Finished, Origin
from gateway.http.head import NAMING, REQUEST_ID, Head, Packet, client_request_id
from gateway.http.middleware import problem, refusing

MAX_BODY = 64 * 1024
"""The most bytes of a request body, unless its route has a limit of its own."""

MAX_VALUES = 5_000
"""The most values of a body, roughly: 1000 renewals have 4 each. The models report every value that is wrong."""
_STRUCTURE = b"[{,"
_NOTHING = FencingHeaders()
_MOST_NAMED = 20
"""The most mistakes that an answer names."""


@dataclass(frozen=True, slots=True)
class Call:
    """A request to an endpoint."""

    request: Request
    services: Services

    @property
    def principal(self) -> Principal:
        """Return the caller, which the page may have proven already. Raises ``Unauthenticated``.

        Each database proves it anew, because it has its own roles for callers.
        """
        state, keys = self.request.scope["state"], self.services.keys
        principal: Principal | None = state.get("viewer")
        if principal is None or state.get("proven by", keys) is not keys:
            head = Head.of(self.request.scope)
            principal = state["viewer"] = keys.by_bearer(head.headers, head.certificate)
            state["proven by"] = keys
            budget.serve(state, principal.name)
        return principal

    @property
    def asked(self) -> "Future[Any] | None":
        """Return the question that the request has asked before it had a task."""
        begun: Begun | None = self.request.scope["state"].get("begun")
        return begun and begun.row

    def attempt(self, shown: FencingHeaders = _NOTHING) -> Attempt:
        """Return the request as it goes on record."""
        return attempt(self.request, self.principal, shown)


class Begun(NamedTuple):
    """A request that is answered without a task. ``path`` is as others may see it.

    ``answer`` is called once ``row`` is done. It returns None if a task has to find the answer.
    """

    row: "Future[Any]"
    answer: "Callable[[Future[Any]], Response | None]"
    path: str = ""


class Begin(Protocol):
    """Begin a request of an authorised caller without a task. None if it needs one. Errors are for a task to tell.

    It gets what the endpoint gets.
    """

    def __call__(self, services: Services, caller: str, /, **given: Any) -> Begun | None: ...


class Prepared(NamedTuple):
    """The known part of all requests to a route with one head."""

    table: "Table"
    route: "Route"
    begins: Begin
    services: Services
    rights: Rights
    proof: Proof | None
    use: Use
    origin: Origin

    def with_values(self, changing: Mapping[bytes, bytes]) -> "Prepared":  # noqa: ARG002 - none of them matters
        return self

    def begin(self, packet: Packet[Any], request_id: str, client: str | None) -> Begun | None:  # noqa: ARG002
        """Do what a task does until it asks the database, and raise the same. None if the request needs a task."""
        if packet.query_string:
            return None
        method, path = self.route.method, NAMING + packet.name.decode()
        found = self.table.find_path(method, path)
        if found is None or found.route is not self.route:
            return None
        given = self.route.given(found.parts)
        self.services.authorisation.check_now(self.rights, self.route.rule, given["resource"])
        if self.route.reads is not None:
            given["body"] = parsed(self.route.reads, packet.content)
        begun = self.begins(self.services, self.origin.caller, **given)
        return begun and begun._replace(path=shown_path(method, path))

    def answer(self, begun: Begun) -> Finished | None:
        """Return the answer to a request whose row is done. None if a task has to find it."""
        if begun.row.cancelled() or begun.row.exception() is not None:
            return None
        answer = begun.answer(begun.row)
        return None if answer is None else Finished(answer.status_code, answer.raw_headers, bytes(answer.body))


Endpoint: TypeAlias = Callable[..., Awaitable[BaseModel | Response | None]]
Owners: TypeAlias = Callable[[Ownership, Any], Sequence[str] | None]
"""Returns the database of each name in a body. None: any can serve it; nothing: the default one, which refuses it.

It gets the model that the endpoint takes, or else the bytes.
"""


Answers: TypeAlias = Mapping[int | str, str | tuple[type[BaseModel], str]]


class Home(Enum):
    """The thing that tells the database of a request, if the gateway serves several."""

    PATH = "the resource in the path"
    QUERY = "the parameter `database`"
    BODY = "the names in the body"
    GATEWAY = "nothing: each database answers alike"


@dataclass(frozen=True)
class Route:
    """``status``, ``answer`` and ``content`` are those of a success, ``content`` its media type if it is no JSON.

    ``answer``: the model, unless the endpoint returns it. ``answers``: errors with a description of each, or other
    successes with their models. ``body``: the model of a body that the endpoint reads itself. ``limit`` is in bytes,
    None for the limit of lists of writes. ``direct`` begins plain requests without a task.
    """

    method: str
    path: str
    endpoint: Endpoint
    rule: Rule
    subject: Subject
    summary: str = ""
    description: str = ""
    status: int = 200
    answer: type[BaseModel] | None = None
    answers: Answers = field(default_factory=dict)
    content: str | None = None
    body: type[BaseModel] | None = None
    limit: int | None = MAX_BODY
    owners: Owners | None = None
    direct: Begin | None = None

    def given(self, parts: Mapping[str, str]) -> dict[str, Any]:
        """Return the parts of a path as the endpoint takes them. A name of a resource is in canonical form.

        Raises ``RequestMalformed`` and ``ResourceMalformed``.
        """
        return {name: _part(self.takes[name], name, text) for name, text in parts.items()}

    @property
    def takes(self) -> Mapping[str, Any]:
        """Return the annotations of the endpoint."""
        return self.endpoint.__annotations__

    @property
    def reads(self) -> type[BaseModel] | None:
        """Return the model of the body that the endpoint gets."""
        return self.takes.get("body")

    @property
    def home(self) -> Home:
        if self.owners is not None:
            return Home.BODY
        if "{resource" in self.path:
            return Home.PATH
        return Home.GATEWAY if self.subject is Subject.OPERATION else Home.QUERY

    @property
    def short(self) -> str:
        """Return the path of the form that has the name of the resource in the query.

        Clients that are made from the OpenAPI document encode each slash in a path. A query has one encoding, so one
        name.
        """
        return self.path.replace("s/{resource:path}", "")


class Routes(list[Route]):
    """The routes of a subject."""

    def __init__(self, subject: Subject) -> None:
        super().__init__()
        self._subject = subject

    def add(self, at: str, rule: Rule, summary: str = "", **more: Any) -> Callable[[Endpoint], Endpoint]:
        """Return a decorator that adds the route of an endpoint ``at`` a method and a path, such as ``GET /v1/fences``.

        ``GET+HEAD`` are two methods. ``more``: the other fields of ``Route``.
        """

        def added(endpoint: Endpoint) -> Endpoint:
            methods, _, path = at.partition(" ")
            for method in methods.split("+"):
                self.append(Route(method, path, endpoint, rule, self._subject, summary, **more))
            return endpoint

        return added


class Found(NamedTuple):
    """The route of a request, its path with the name of a resource as it was sent, and the parts of the path."""

    route: Route
    path: str
    parts: Mapping[str, str]


class Table:
    """All routes of the API, which are the same for each database."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._plain: dict[tuple[str, str], Found] = {}
        self._patterns: dict[str, list[tuple[re.Pattern[str], Route]]] = {}
        for one in routes:
            patterns = self._patterns.setdefault(one.method, [])
            for path in {one.path, one.short}:
                if "{" in path:
                    patterns.append((_pattern(path), one))
                else:
                    self._plain[one.method, path] = Found(one, path, {})

    def find(self, scope: Scope) -> Found | None:
        """Return the route of a request, None if there is none. Its path is read as the client sent it.

        ``/v1/lease?resource=job/1`` is ``/v1/leases/job/1``. Without one ``resource`` in the query, the name is empty.
        """
        head = Head.of(scope)
        found = self.find_path(head.method, head.raw_path.decode("utf-8", "replace"))
        if found is None or "{resource" not in found.route.path or "resource" in found.parts:
            return found
        query = parse_qsl(head.query_string.decode("latin-1"), keep_blank_values=True)
        names = [value for key, value in query if key == "resource"]
        name = names[0] if len(names) == 1 else ""
        path = found.route.path.replace("{resource:path}", name).replace("{lease}", found.parts.get("lease", ""))
        return Found(found.route, path, {**found.parts, "resource": name})

    def find_path(self, method: str, path: str) -> Found | None:
        """Return the route of a path as it was sent, without a look at the query."""
        if found := self._plain.get((method, path)):
            return found
        for pattern, route in self._patterns.get(method, ()):
            if match := pattern.fullmatch(path):
                return Found(route, path, match.groupdict())
        return None

    def astray(self, scope: Scope) -> Response:
        """Return the answer to a request that no route takes. Raises ``NotFound``."""
        head = Head.of(scope)
        path = head.raw_path.decode("utf-8", "replace")
        allowed = [method for method in self._patterns if self.find_path(method, path)]
        if allowed:
            error = RequestMalformed("Method Not Allowed.")
            error.status, scope["state"]["error"] = 405, error
            headers = {"Allow": ", ".join(sorted(allowed))}
            return Response(orjson.dumps(problem(error)), 405, headers, "application/problem+json")
        other = path.rstrip("/") if path.endswith("/") else f"{path}/"
        if self.find_path(head.method, other):
            query = head.query_string.decode("latin-1")
            return RedirectResponse(f"{other}?{query}" if query else other)
        raise NotFound("There is nothing at this path.")


class Api:
    """ASGI app of the routes, for one database."""

    def __init__(self, table: Table, services: Services) -> None:
        self._table, self._services = table, services

    def prepare(self, scope: Scope, area: str) -> Prepared | None:
        """Prepare for requests with this head, whatever they name. None if each of them needs a task.

        Raises ``GatewayError`` if such requests are refused. Their tasks say so.
        """
        head = Head.of(scope)
        found = self._table.find(scope) if head.path.startswith(NAMING) else None
        if found is None or found.route.direct is None or head.value(b"expect") is not None:
            return None
        services = self._services
        principal = services.keys.by_bearer(head.headers, head.certificate)
        ids = client_request_id(head.value(REQUEST_ID))
        origin = Origin(area, head.method, principal.name, ids)
        known = principal.rights, principal.proof, principal.use
        return Prepared(self._table, found.route, found.route.direct, services, *known, origin)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.serving(self._table.find(scope))(scope, receive, send)

    def serving(self, found: Found | None) -> ASGIApp:
        """Return the app for a request whose route was looked up. None: it has none."""

        async def serve(scope: Scope, receive: Receive, send: Send) -> None:
            await answering(partial(self.respond, found, scope, receive), scope, receive, send)

        return WholeAnswers(serve, self._services.bodies.memory, _refuse)

    async def respond(
        self, found: Found | None, scope: Scope, receive: Receive, body: BaseModel | None = None
    ) -> Response:
        """Return the answer to a request. ``body``, if it was read. Raises ``GatewayError``."""
        if found is None:
            return self._table.astray(scope)
        route, result = found.route, await self.call(found, scope, receive, body)
        if isinstance(result, BaseModel):
            return json(result, route.status, private=route.method != "GET")
        return Response(status_code=route.status) if result is None else result

    async def call(
        self, found: Found, scope: Scope, receive: Receive, body: BaseModel | None = None
    ) -> BaseModel | Response | None:
        """Return what the endpoint returns, once the caller is proven and authorised. Raises ``GatewayError``."""
        scope["path"] = found.path
        route, call = found.route, Call(Request(scope, receive), self._services)
        given = await self.authorise(found, call.request)
        for place in ("query", "headers"):
            if model := route.takes.get(place):
                given[place] = _read_parameters(call.request, place, model)
        if route.reads is not None:
            given["body"] = body or parsed(route.reads, await self._whole(scope, receive, route.limit or MAX_BODY))
        return await route.endpoint(call, **given)

    async def authorise(self, found: Found, request: Request) -> dict[str, Any]:
        """Prove the caller of a request, read its path, and check the rule of its route as far as that needs no body.

        Return the parts of the path as the endpoint takes them. A name of a resource is in canonical form.
        """
        route = found.route
        principal = None if route.rule.about in OPEN else Call(request, self._services).principal
        given = route.given(found.parts)
        if principal is not None:
            await self._services.authorisation.check(request, principal, route.rule, given.get("resource", ""))
        return given

    async def _whole(self, scope: Scope, receive: Receive, limit: int) -> bytes:
        try:
            return await self._services.bodies.of(scope, receive).whole(limit)
        except ClientGone:
            raise RequestMalformed("The client hung up before its body was complete.") from None


def _pattern(path: str) -> re.Pattern[str]:
    """Return the expression of the paths of a route. Names of resources have slashes."""
    text = re.escape(path).replace(r"\{resource:path\}", "(?P<resource>.*)")
    return re.compile(re.sub(r"\\{(\w+)\\}", r"(?P<\1>[^/]+)", text), re.DOTALL)


async def answering(respond: Callable[[], Awaitable[ASGIApp]], scope: Scope, receive: Receive, send: Send) -> None:
    """Send an answer, or a problem document for a ``GatewayError``."""
    has_begun = False

    async def noting(message: Message) -> None:
        nonlocal has_begun
        has_begun = True
        await send(message)

    try:
        answer = await respond()
        await answer(scope, receive, noting)
    except GatewayError as error:
        if has_begun:
            raise
        await refusing(for_callers(error))(scope, receive, send)


async def _refuse(_: Request, error: Exception) -> ASGIApp:
    assert isinstance(error, GatewayError)
    return refusing(error)


def json(view: BaseModel, status: int = 200, *, exclude_none: bool = False, private: bool = False) -> Response:
    """Return a view as an answer. No cache may keep one that is ``private``."""
    headers = {"Cache-Control": "no-store"} if private else {}
    return Response(view.model_dump_json(exclude_none=exclude_none), status, headers, "application/json")


def parsed(model: type[BaseModel], content: bytes) -> BaseModel:
    """Return a body as its model, whatever its media type. An empty body is an empty object.

    Raises ``RequestMalformed``, and ``BodyTooLarge`` for too many values.
    """
    check_values(content)
    try:
        return model.model_validate_json(content or b"{}")
    except ValidationError as error:
        raise _malformed("body", error) from error


def check_values(content: bytes) -> None:
    """Raise ``BodyTooLarge`` for too many values. Commas inside strings count too: no string here has thousands."""
    if len(content) - len(content.translate(None, _STRUCTURE)) > MAX_VALUES:
        raise BodyTooLarge(f"The body has more than {MAX_VALUES:,} values.", advice="Split the request.")


def _part(kind: Any, name: str, text: str) -> Any:
    """Return a part of a path as its endpoint takes it. Raises ``RequestMalformed`` and ``ResourceMalformed``."""
    if name == "resource":
        return canonical(text)
    if kind is not UUID:
        return text
    try:
        return UUID(text)
    except ValueError:
        raise RequestMalformed(f"path.{name}: must be a UUID.") from None


def _read_parameters(request: Request, place: str, model: type[BaseModel]) -> BaseModel:
    """Return the query or the headers as their model. A field that is no list takes the last of several values."""
    if place == "headers":
        names = [one.alias or name for name, one in model.model_fields.items()]
        values: dict[str, Any] = {name: request.headers[name] for name in names if name in request.headers}
    else:
        values = dict(request.query_params)
        values.pop("database", None)  # a gateway of several databases has read it
        for name, one in model.model_fields.items():
            if get_origin(one.annotation) in (list, tuple) and name in values:
                values[name] = request.query_params.getlist(name)
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise _malformed(place.removesuffix("s"), error) from error


def _malformed(place: str, error: ValidationError) -> RequestMalformed:
    wrong = error.errors(include_url=False, include_input=False, include_context=False)
    named = "; ".join(f"{'.'.join(map(str, (place, *one['loc'])))}: {one['msg']}" for one in wrong[:_MOST_NAMED])
    more = f"; and {len(wrong) - _MOST_NAMED} more" if len(wrong) > _MOST_NAMED else ""
    return RequestMalformed(f"{named}{more}.")
