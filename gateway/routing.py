"""Finds the database of each request, if a gateway serves several: by its schema, its bucket, its resource, or by name.

A request goes to one database as a whole. The part that gets it checks the resources again. So a request that is read
in two ways is refused, and none is fenced in the wrong database.
"""

import asyncio
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import parse_qsl, urlencode

import orjson
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway import budget, web
from gateway.api import credentials
from gateway.api.requests import MAX_BODY, check_values, path_as_sent
from gateway.errors import CrossesDatabases, GatewayError, RequestMalformed, StoreError, Unavailable
from gateway.fencing.ownership import Ownership
from gateway.fencing.resource import canonical
from gateway.http.body import SMALL, BodyReader, ClientGone, offload
from gateway.http.head import Head
from gateway.http.inner import Answer, apart, replayed
from gateway.http.middleware import answer_problem
from gateway.http.origins import Sender, sender
from gateway.objects.s3 import addressing
from gateway.part import Part, clock
from gateway.tables.dialect.body import in_pieces
from gateway.web.rendering import Health, Site

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
_OF_RESOURCE = re.compile(r"/v1/(leases|fences|withdrawals|breaks|reports)/(.+)", re.DOTALL)
NAMED = re.compile(r"/v1/(fences|leases|rejections|events|incidents|record|webhooks)(?:[./].*)?", re.DOTALL)
_RENEWALS, _TRANSACTION = "/v1/leases", "/v1/transaction"
_LIMITS = {_RENEWALS: 1024 * 1024}
_CREDENTIALS, _SEQUENCERS = "/v1/credentials", "/v1/sequencers/check"
_OF_IDENTITY = (credentials.STS_PATH, "/")
BODIES = {
    ("PUT", _RENEWALS),
    *(("POST", path) for path in (_CREDENTIALS, _SEQUENCERS, _TRANSACTION, *_OF_IDENTITY)),
}


class Routing:
    """The parts of a gateway by the names of their databases, and the rules that tell what belongs to which."""

    def __init__(
        self, parts: Mapping[str, Part], ownership: Ownership, bodies: BodyReader, largest: int, everywhere: ASGIApp
    ) -> None:
        """``bodies`` reads the bodies that tell the database. ``largest``: the most bytes of a list of writes.

        ``everywhere``: the overview over all databases.
        """
        self._parts, self._ownership, self._bodies, self._largest = parts, ownership, bodies, largest
        self.default = parts[ownership.default]
        self._everywhere = everywhere

    def of_table(self, head: Head) -> Part:
        """Return the part of a request to a table, by the schema that it names."""
        profile = head.value(b"content-profile" if head.method in _WRITES else b"accept-profile")
        schema = None if profile is None else profile.decode("latin-1")
        return self._parts[self._ownership.of_schema(schema)]

    def of_object(self, head: Head, host_bucket: str | None) -> Part:
        """Return the part of a request to a key or a bucket. Raises ``StoreError`` for what no store can answer.

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
        head, path = Head.of(scope), path_as_sent(scope)
        if resource := resource_of(head.method, path):
            return self._parts[self._ownership.of_resource(resource)].api
        if (head.method, path) in BODIES:
            return _ByBody(self, path)
        if NAMED.fullmatch(path):
            return _WithoutParameter(self._named(head).api)
        return self.default.api

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
            page = _Choosing(page, chosen)
        return _WithoutParameter(page) if asked else page

    def _owner(self, name: str) -> str:
        """Return the database of a resource; the default one for a name that is malformed, whose page tells so."""
        try:
            return self._ownership.of_resource(canonical(name))
        except GatewayError:
            return self._ownership.default

    async def read(self, scope: Scope, receive: Receive, path: str) -> "tuple[bytes, _Owners]":
        """Return the body of a request whose caller is proven, and the owners of what it names.

        It holds no share of the memory of routing afterwards. A database that is slow would keep the others waiting.
        """
        body = self._bodies.of(scope, receive)
        try:
            content = await body.whole(self._largest if path == _TRANSACTION else _LIMITS.get(path, MAX_BODY))
            return content, await offload(len(content), self.owners, path, content)
        finally:
            body.release()

    async def serve(self, name: str, content: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a part serve a request whose body was read, with a share of the memory of that part.

        Raises ``Unavailable`` if it has none left.
        """
        part = self._parts[name]
        with part.memory.held_now(len(content) if len(content) > SMALL else 0):
            await part.api(scope, replayed(content, receive), send)

    async def by_any(self, scope: Scope, content: bytes, receive: Receive, send: Send) -> None:
        """Serve a request that belongs to no database by the default one, or by another one if that is down."""
        parts = sorted(self._parts.values(), key=lambda part: part is not self.default)
        answer = Answer()
        for part in parts:
            answer = Answer()
            inner = apart(scope)
            with suppress(TimeoutError):
                async with asyncio.timeout(None if part is parts[-1] else ANSWERS_IN):
                    await part.api(inner, replayed(content, receive), answer.take)
            scope["state"].update(inner["state"])
            if answer.status < 500:
                break
        await answer.send(send)

    def owners(self, path: str, content: bytes) -> "_Owners":
        """Return the owners of what a body names. An unreadable body belongs to the default one, which refuses it.

        Raises ``BodyTooLarge`` for too many values.
        """
        found = _Owners(self.default.name or "")
        if path in _OF_IDENTITY:
            with suppress(ValueError):  # of a form with too many fields
                form = dict(parse_qsl(content.decode("latin-1"), max_num_fields=credentials.MOST_FIELDS))
                role = form.get("RoleArn", "").partition(":role/lock/")[2]
                found.add(self._ownership.of_resource(role) if role else None)
                found.anywhere = not role
            return found
        try:
            document = _parsed(path, content)
        except (orjson.JSONDecodeError, RecursionError):
            return found
        document = document if isinstance(document, dict) else {}
        if path == _TRANSACTION:
            for write in _entries(document.get("writes")):
                schema = write.get("schema")
                found.add(self._ownership.of_schema(schema if isinstance(schema, str) else None))
        elif path == _RENEWALS:
            for lease in _entries(document.get("leases")):
                found.add(self._of_resource(lease.get("resource")), lease)
            found.document = document
        elif path == _SEQUENCERS:
            sequencer = document.get("sequencer")
            found.add(self._of_resource(sequencer.rsplit(":", 3)[0] if isinstance(sequencer, str) else None))
        else:
            found.add(self._of_pattern(document.get("resource")))
        return found

    def _of_resource(self, name: Any) -> str | None:
        return self._ownership.of_resource(name) if isinstance(name, str) else None

    def _of_pattern(self, pattern: Any) -> str | None:
        if not isinstance(pattern, str):
            return None
        try:
            return self._ownership.of_pattern(pattern)
        except CrossesDatabases:
            return None  # the default one refuses it


@dataclass(slots=True)
class _Owners:
    """The databases that own what a body names, each with the entries of the body that belong to it."""

    default: str
    entries: dict[str, list[tuple[int, Any]]] = field(default_factory=dict)
    document: dict[str, Any] | None = None
    anywhere: bool = False
    """Whether each other database could serve the request as well."""
    _count: int = 0

    def add(self, owner: str | None, entry: Any = None) -> None:
        self.entries.setdefault(owner or self.default, []).append((self._count, entry))
        self._count += 1

    @property
    def names(self) -> list[str]:
        return list(self.entries) or [self.default]


def _parsed(path: str, content: bytes) -> Any:
    """Return a body as its part parses it. Values take much more memory than their text, so their number is limited."""
    if path == _TRANSACTION:
        return in_pieces(content, orjson.loads)
    check_values(content)
    return orjson.loads(content)


def _entries(listed: Any) -> list[dict[str, Any]]:
    return [one if isinstance(one, dict) else {} for one in listed] if isinstance(listed, list) else []


def resource_of(method: str, path: str) -> str | None:
    """Return the resource in a path of the API; None if there is none."""
    found = _OF_RESOURCE.fullmatch(path)
    if found is None:
        return None
    kind, resource = found.groups()
    if (kind == "leases" and method in ("PUT", "DELETE")) or (kind == "fences" and method == "POST"):
        resource = resource.rpartition("/")[0]
    return str(resource)


@dataclass(frozen=True, slots=True)
class _WithoutParameter:
    """An app without the parameter that has chosen it, which its routes do not know."""

    app: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        pairs = parse_qsl(Head.of(scope).query_string.decode("latin-1"), keep_blank_values=True)
        query = urlencode([(key, value) for key, value in pairs if key != PARAMETER])
        await self.app({**scope, "query_string": query.encode()}, receive, send)


@dataclass(frozen=True, slots=True)
class _Choosing:
    """The page of a database, which later requests of a viewer's browser get, too. Strangers choose nothing."""

    app: ASGIApp
    name: str

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def set_cookie(message: Message) -> None:
            if message["type"] == "http.response.start" and "viewer" in scope["state"]:
                secure = "; Secure" if scope["scheme"] == "https" else ""
                cookie = f"{COOKIE}={self.name}; Path=/ui; SameSite=Lax; HttpOnly{secure}".encode()
                message = {**message, "headers": [*message.get("headers", ()), (b"set-cookie", cookie)]}
            await send(message)

        await self.app(scope, receive, set_cookie)


@dataclass(frozen=True, slots=True)
class _ByBody:
    """The app for a request whose body names its resources. Its caller is proven before the body is read."""

    routing: Routing
    path: str

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._serve(scope, receive, send)
        except ClientGone:
            return
        except GatewayError as error:
            scope["state"]["error"] = error
            await answer_problem(error, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        routing, head = self.routing, Head.of(scope)
        if self.path not in _OF_IDENTITY:  # the proof of their caller is in the body
            principal = routing.default.keys.by_bearer(head.headers, head.certificate)
            budget.serve(scope["state"], principal.name)
        content, owners = await routing.read(scope, receive, self.path)
        if owners.anywhere:
            await routing.by_any(scope, content, receive, send)
        elif len(owners.names) == 1:
            await routing.serve(owners.names[0], content, scope, receive, send)
        elif owners.document is not None:
            await self._renew(scope, receive, send, owners)
        else:
            raise CrossesDatabases(f"The request concerns the databases {', '.join(sorted(owners.names))}.")

    async def _renew(self, scope: Scope, receive: Receive, send: Send, owners: _Owners) -> None:
        """Renew the leases of each database there, side by side. If one of them fails, its answer is that to all.

        The other leases are renewed then, too, and their holders may repeat the request.
        """
        assert owners.document is not None
        document = owners.document

        async def renewed(name: str, entries: Sequence[tuple[int, Any]]) -> Answer:
            content = orjson.dumps({**document, "leases": [entry for _, entry in entries]})
            answer = Answer()
            try:
                await routing.serve(name, content, apart(scope), receive, answer.take)
            except Unavailable as error:
                await answer_problem(error, answer.take)
            return answer

        routing = self.routing
        answers = await asyncio.gather(*(renewed(name, entries) for name, entries in owners.entries.items()))
        leases: dict[int, Any] = {}
        for answer, entries in zip(answers, owners.entries.values(), strict=True):
            if answer.status != 200:
                await answer.send(send)
                return
            views = orjson.loads(answer.body)["leases"]
            leases.update((number, view) for (number, _), view in zip(entries, views, strict=True))
        body = orjson.dumps({"leases": [leases[number] for number in sorted(leases)]})
        await answers[0].send(send, body)


def page_over(parts: Mapping[str, Part], ownership: Ownership, bodies: BodyReader) -> ASGIApp:
    """Build the overview over all databases. Sessions are the same as on the page of one of them."""
    places = [replace(part.place, name=name, health=_health(part)) for name, part in parts.items()]
    default = parts[ownership.default]
    return web.build(Site(*places), default.keys, default.logins, clock, bodies)


def _health(part: Part) -> Health:
    async def states() -> dict[str, str]:
        return await within(ANSWERS_IN, part.probes())

    return states


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
