"""Finds the database of each request, if a gateway serves several: by its schema, its bucket, its resource, or by name.

A request goes to one database as a whole. The part that gets it checks the resources again, by
``gateway.fencing.ownership.Owned``. So a request that is read in two ways is refused, and none is fenced in the wrong
database.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from functools import partial
from typing import Any
from urllib.parse import parse_qsl

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway import web
from gateway.api import TABLE
from gateway.api.leases import RenewedList, RenewManyRequest
from gateway.api.routes import Api, Found, Home, Route, answering, json, parsed
from gateway.errors import CrossesDatabases, GatewayError, RequestMalformed, StoreError, Unavailable
from gateway.fencing.ownership import Ownership
from gateway.fencing.record import Attempt
from gateway.fencing.resource import canonical
from gateway.http.body import SMALL, BodyReader, ClientGone, offload
from gateway.http.head import Head
from gateway.http.inner import apart, replayed, without_parameter
from gateway.http.origins import Sender, sender
from gateway.objects.s3 import addressing
from gateway.part import Part, clock
from gateway.web.rendering import Site

PARAMETER = "database"
"""The query parameter that names a database."""
OF = "of"
"""The query parameter of links on the page. It names the database of the linked page, and no cookie remembers it."""
COOKIE = "gateway_database"
"""The cookie that names the database of the page."""
EVERYTHING = "*"
"""The choice of all databases, which is no name of one."""

ANSWERS_IN = 3.0
"""Seconds that a database has to show that it is up, if there are others."""

_WRITES = ("POST", "PATCH", "PUT", "DELETE")


class Routing:
    """The routing of a gateway with one database: all requests are for its only part."""

    def __init__(self, part: Part) -> None:
        self.default = part

    def of_table(self, head: Head) -> Part:  # noqa: ARG002 - see ``Databases``
        """Return the part of a request to a table, by the schema that it names."""
        return self.default

    def of_object(self, head: Head, host_bucket: str | None) -> Part:  # noqa: ARG002 - see ``Databases``
        """Return the part of a request to a key or a bucket. Raises ``StoreError`` for what no store can answer."""
        return self.default

    def of_api(self, scope: Scope) -> ASGIApp:  # noqa: ARG002 - see ``Databases``
        """Return the app for a request to the API. Raises ``GatewayError`` if it is for none."""
        return self.default.api

    def of_each_name(self) -> Api | None:
        """Return the API that serves each resource. None if the name of a resource tells which one does."""
        return self.default.api

    def of_page(self, scope: Scope) -> ASGIApp:  # noqa: ARG002 - see ``Databases``
        """Return the app for a request to the page."""
        return self.default.web

    async def states(self) -> dict[str, str]:
        """Return the state of each service, with the name of its database if there are several."""
        return await self.default.states()

    async def first_states(self) -> dict[str, str]:
        """Return the states of one database that works and of all that are quicker, or else those of all."""
        return await self.default.states()

    async def record_reload(self, attempt: Attempt, changes: Sequence[Mapping[str, str]]) -> None:
        """Put on record, durably, that a configuration takes effect. Raises ``GatewayError``."""
        await self.default.record_reload(attempt, changes)


class Databases(Routing):
    """The parts of a gateway by the names of their databases, and the rules that tell what belongs to which."""

    def __init__(self, parts: Mapping[str, Part], ownership: Ownership, bodies: BodyReader, largest: int) -> None:
        """``bodies`` reads the bodies that tell the database. ``largest``: the most bytes of a list of writes."""
        super().__init__(parts[ownership.default])
        self._parts, self._ownership, self._bodies, self._largest = parts, ownership, bodies, largest
        self._everywhere = page_over(parts, ownership, bodies)

    def of_table(self, head: Head) -> Part:
        profile = head.value(b"content-profile" if head.method in _WRITES else b"accept-profile")
        schema = None if profile is None else profile.decode("latin-1")
        return self._parts[self._ownership.of_schema(schema)]

    def of_object(self, head: Head, host_bucket: str | None) -> Part:
        """Return the part of a request to a key or a bucket.

        A request to a bucket may name keys in its body. Its part finds the planes of those.
        """
        try:
            bucket, key = addressing.read(head.raw_path, host_bucket)
        except StoreError:
            return self.default  # its plane answers with the same error
        if not bucket:
            return self._of_all_buckets()
        return self._parts[self._ownership.of_key(bucket, key)]

    def _of_all_buckets(self) -> Part:
        """Return a part with the only store. Raises ``StoreError`` if there are several ones."""
        parts = sorted(self._parts.values(), key=lambda part: part is not self.default)
        found = [part for part in parts if part.upstream is not None]
        if len({id(part.upstream) for part in found}) > 1:
            raise StoreError("NotImplemented", 501, "The buckets are in several stores, so there is no list of all.")
        return found[0] if found else self.default

    def of_api(self, scope: Scope) -> ASGIApp:
        """Return the app for a request to the API.

        Raises ``RequestMalformed`` for a request that has to name one database and does not, and ``Unauthenticated`` if
        its caller is unknown.
        """
        found = TABLE.find(scope)
        if found is None:
            return self.default.api
        match found.route.home:
            case Home.PATH:
                return self._parts[self._ownership.of_resource(found.parts["resource"])].api.serving(found)
            case Home.BODY:
                return partial(self._by_body, found)
            case Home.QUERY:
                return _without_parameter(self._named(Head.of(scope)).api.serving(found))
        return self.default.api.serving(found)

    def of_each_name(self) -> Api | None:
        return None

    def _named(self, head: Head) -> Part:
        """Return the part of the database that a query names. Raises ``RequestMalformed`` if it does not name one."""
        query = parse_qsl(head.query_string.decode("latin-1"), keep_blank_values=True)
        names = {value for key, value in query if key == PARAMETER}
        if len(names) == 1 and (part := self._parts.get(*names)) is not None:
            return part
        self.default.keys.by_bearer(head.headers, head.certificate)  # strangers are not told the names
        raise RequestMalformed(
            "This gateway serves several databases, and the request is for one of them.",
            advice=f"Name one with ?{PARAMETER}= (a command takes --database): {', '.join(self._parts)}.",
        )

    def of_page(self, scope: Scope) -> ASGIApp:
        """Return the app for a request to the page: of the database that its query or cookie names, or over all.

        The database of a resource is known without either. A link on another site chooses none for later requests. The
        page that repeats its request does not have the parameter either.
        """
        head, chosen, asked, chooses = Head.of(scope), EVERYTHING, False, False
        of: str | None = None
        own = sender(head.headers) is not Sender.FOREIGN
        for pair in (head.value(b"cookie") or b"").decode("latin-1").split(";"):
            name, _, value = pair.strip().partition("=")
            if name == COOKIE and value in self._parts:
                chosen = value
        query = parse_qsl(head.query_string.decode("latin-1"))
        for key, value in query:
            asked |= key == PARAMETER
            if own and key == PARAMETER and (value in self._parts or value == EVERYTHING):
                chosen, chooses = value, True
            elif key == OF and value in self._parts:
                of = value
        if of is None and chosen == EVERYTHING and head.path in web.OF_A_RESOURCE:
            of = self._owner(next((value for key, value in query if key == "name"), ""))
        scope["state"] |= {"databases": tuple(self._parts), "database": of or chosen, "of": of}
        page = self._parts[of].web if of else self._everywhere if chosen == EVERYTHING else self._parts[chosen].web
        if chooses:
            page = _choosing(page, chosen)
        return _without_parameter(page) if asked else page

    async def states(self) -> dict[str, str]:
        return await within(ANSWERS_IN, {name: probe for probes in self._probes() for name, probe in probes.items()})

    async def first_states(self) -> dict[str, str]:
        return await first_working(ANSWERS_IN, self._probes())

    def _probes(self) -> list[dict[str, Any]]:
        """Return the probes of each database. A service has the name of its database behind a dot."""
        return [
            {f"{service}.{name}": probe for service, probe in part.probes().items()}
            for name, part in self._parts.items()
        ]

    async def record_reload(self, attempt: Attempt, changes: Sequence[Mapping[str, str]]) -> None:
        """Put the entry on record in each database that answers in time.

        One that is down does not stop the reload, unless all of them are.
        """

        async def record(part: Part) -> bool:
            try:
                async with asyncio.timeout(ANSWERS_IN):
                    await part.record_reload(attempt, changes)
            except (GatewayError, TimeoutError):
                return False
            return True

        if not any(await asyncio.gather(*map(record, self._parts.values()))):
            raise Unavailable("No database has taken the entry for the record. Nothing has changed.")

    def _owner(self, name: str) -> str:
        """Return the database of a resource; the default one for a name that is malformed, whose page tells so."""
        try:
            return self._ownership.of_resource(canonical(name))
        except GatewayError:
            return self._ownership.default

    async def _by_body(self, found: Found, scope: Scope, receive: Receive, send: Send) -> None:
        with suppress(ClientGone):
            await answering(partial(self._respond, found, scope, receive), scope, receive, send)

    async def _respond(self, found: Found, scope: Scope, receive: Receive) -> Response:
        """Answer a request whose body names its resources. Its caller is proven and authorised before it is read.

        The body takes no share of the memory of routing afterwards. A database that is slow would keep the others
        waiting.
        """
        route = found.route
        await self.default.api.authorise(found, Request(scope))
        body = self._bodies.of(scope, receive)
        try:
            content = await body.whole(self._largest if route.limit is None else route.limit)
            given, owners = await offload(len(content), self._owners, route, content)
        finally:
            body.release()
        receive = replayed(content, receive) if route.reads is None else receive
        if owners is None:
            return await self._by_any(found, scope, content, receive)
        names = list(dict.fromkeys(owners)) or [str(self.default.name)]
        if len(names) == 1:
            part = self._parts[names[0]]
            with _held(part, content):
                return await part.api.respond(found, scope, receive, given)
        if isinstance(given, RenewManyRequest):
            return await self._renew(found, given, owners, content, scope, receive)
        raise CrossesDatabases(f"The request concerns the databases {', '.join(sorted(names))}.")

    def _owners(self, route: Route, content: bytes) -> tuple[Any, Sequence[str] | None]:
        """Return a body as its endpoint takes it, None if it reads it itself, and the owners of what it names."""
        assert route.owners is not None
        if route.reads is None:
            return None, route.owners(self._ownership, content)
        body = parsed(route.reads, content)
        return body, route.owners(self._ownership, body)

    async def _by_any(self, found: Found, scope: Scope, content: bytes, receive: Receive) -> Response:
        """Answer a request that belongs to no database by the default one, or by another one if that is down."""
        parts = sorted(self._parts.values(), key=lambda part: part is not self.default)
        answer = Response(status_code=503)
        for part in parts:
            inner = apart(scope)
            with suppress(TimeoutError):
                async with asyncio.timeout(None if part is parts[-1] else ANSWERS_IN):
                    answer = await part.api.respond(found, inner, replayed(content, receive))
            scope["state"].update(inner["state"])
            if answer.status_code < 500:
                break
        return answer

    async def _renew(
        self,
        found: Found,
        wish: RenewManyRequest,
        owners: Sequence[str],
        content: bytes,
        scope: Scope,
        receive: Receive,
    ) -> Response:
        """Renew the leases of each database there, side by side. If one of them fails, its answer is that to all.

        The other leases are renewed then, too, and their holders may repeat the request.
        """
        numbers: dict[str, list[int]] = {}
        for number, owner in enumerate(owners):
            numbers.setdefault(owner, []).append(number)

        async def renewed(name: str) -> Any:
            part = self._parts[name]
            some = RenewManyRequest(leases=[wish.leases[number] for number in numbers[name]])
            with _held(part, content):
                return await part.api.call(found, apart(scope), receive, some)

        answers = await asyncio.gather(*map(renewed, numbers), return_exceptions=True)
        views: dict[int, Any] = {}
        for answer, mine in zip(answers, numbers.values(), strict=True):
            if isinstance(answer, BaseException):
                raise answer
            views.update(zip(mine, answer.leases, strict=True))
        return json(RenewedList(leases=[views[number] for number in sorted(views)]), private=True)


def _held(part: Part, content: bytes) -> AbstractContextManager[None]:
    """Hold a share of the memory of a part for a body. Raises ``Unavailable`` if it has none left."""
    return part.memory.held_now(len(content) if len(content) > SMALL else 0)


def _without_parameter(app: ASGIApp) -> ASGIApp:
    """Return an app without the parameter that has chosen it, which its routes do not know."""

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        await app(without_parameter(scope, PARAMETER), receive, send)

    return serve


def _choosing(app: ASGIApp, name: str) -> ASGIApp:
    """Return the page of a database, which later requests of a viewer's browser get, too. Strangers choose nothing."""

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        async def set_cookie(message: Message) -> None:
            if message["type"] == "http.response.start" and "viewer" in scope["state"]:
                secure = "; Secure" if scope["scheme"] == "https" else ""
                cookie = f"{COOKIE}={name}; Path=/ui; SameSite=Lax; HttpOnly{secure}".encode()
                message = {**message, "headers": [*message.get("headers", ()), (b"set-cookie", cookie)]}
            await send(message)

        await app(scope, receive, set_cookie)

    return serve


def page_over(parts: Mapping[str, Part], ownership: Ownership, bodies: BodyReader) -> ASGIApp:
    """Build the overview over all databases. Sessions are the same as on the page of one of them."""
    places = [replace(part.place, name=name, health=partial(_states, part)) for name, part in parts.items()]
    default = parts[ownership.default]
    return web.build(Site(*places), default.keys, default.logins, clock, bodies)


async def _states(part: Part) -> dict[str, str]:
    return await within(ANSWERS_IN, part.probes())


async def within(seconds: float, probes: Mapping[str, Any]) -> dict[str, str]:
    """Return the states that probes tell. A service that does not answer in time is ``unreachable``."""

    async def state(probe: Any) -> str:
        try:
            async with asyncio.timeout(seconds):
                return str(await probe)
        except (TimeoutError, Unavailable):
            return "unreachable"

    found = await asyncio.gather(*map(state, probes.values()))
    return dict(zip(probes, found, strict=True))


async def first_working(seconds: float, databases: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return the states that the probes of databases tell, as soon as all of one database are ``ok``.

    The others are not cancelled, because that would end sessions of a database that is only slower.
    """
    found: dict[str, str] = {}
    for asked in asyncio.as_completed([within(seconds, probes) for probes in databases]):
        states = await asked
        found |= states
        if all(state == "ok" for state in states.values()):
            break
    return found
