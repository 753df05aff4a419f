"""Pages about one thing, if a gateway serves several databases: those of the database that has it."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias
from uuid import UUID

from starlette.requests import Request
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.db import search
from gateway.errors import GatewayError, NotFound, RequestMalformed
from gateway.fencing.ownership import Ownership
from gateway.fencing.resource import canonical
from gateway.web.places import PARAMETER, Place, chosen, having
from gateway.web.record_lists import EXPORTS
from gateway.web.rendering import Site

_OF_AN_ENTRY = ("/ui/rejections/{id}", "/ui/events/{id}", "/ui/incidents/{id}", "/ui/incidents/{id}/acknowledge")
_OF_A_RESOURCE = ("/ui/resource", "/ui/resource/report")
_OF_THE_REQUEST = ("type", "asgi", "http_version", "scheme", "method", "path", "raw_path", "query_string", "headers")
_OF_ITS_CONNECTION = ("client", "server", "state", "extensions", "root_path")

Owner: TypeAlias = Callable[[Request], Awaitable[Place]]


@dataclass(frozen=True, slots=True)
class Parts:
    """The pages of each database, by its name, and the rules that tell what belongs to which."""

    pages: Mapping[str, ASGIApp]
    ownership: Ownership


def routes(site: Site, parts: Parts) -> list[Route]:
    """Build the routes of entries, incidents, resources, reports and exports. Each is answered by its database."""

    async def of_entry(request: Request) -> Place:
        places = chosen(site.places, request)
        if len(places) == 1:
            return places[0]
        try:
            identifier = UUID(request.path_params["id"])
        except ValueError as error:
            raise NotFound("There is no entry with this id.", advice="Use an id such as 5f0c2a52-….") from error
        return await having(
            places, lambda place: search.find_entry(place.database, identifier), f"the entry {identifier}"
        )

    async def of_resource(request: Request) -> Place:
        places = chosen(site.places, request)
        name = next((value for value in request.query_params.getlist("name") if value), "")
        try:
            owner = parts.ownership.of_resource(canonical(name))
        except GatewayError:
            owner = parts.ownership.default  # its page tells what is wrong with the name, or that it is unknown
        return places[0] if len(places) == 1 else next(place for place in places if place.name == owner)

    async def of_export(request: Request) -> Place:
        places = chosen(site.places, request)
        if len(places) > 1:
            raise RequestMalformed(
                "Each database has a record of its own, so each export is of one of them.",
                advice=f"Add {PARAMETER}= and the name of the database.",
            )
        return places[0]

    found: list[tuple[tuple[str, ...], Owner]] = [
        (_OF_AN_ENTRY, of_entry),
        (_OF_A_RESOURCE, of_resource),
        (tuple(f"/ui/{name}" for name in EXPORTS), of_export),
    ]
    return [Route(path, _Forwarding(owner, parts.pages)) for paths, owner in found for path in paths]


@dataclass(frozen=True, slots=True)
class _Forwarding:
    """A page of the database that owns its subject. The links on it lead to the same database."""

    owner: Owner
    pages: Mapping[str, ASGIApp]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        name = (await self.owner(Request(scope))).name or ""
        scope["state"]["of"] = name
        # The other app has routes of its own, so it gets none of what this one has found.
        kept = {key: scope[key] for key in (*_OF_THE_REQUEST, *_OF_ITS_CONNECTION) if key in scope}
        await self.pages[name](kept, receive, send)
