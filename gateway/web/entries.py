"""One entry of the record: a refused write with all that belongs to it, or anything else that happened."""

from uuid import UUID

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from gateway.errors import NotFound
from gateway.fencing.filters import Filters
from gateway.fencing.record import Entry, Kind
from gateway.store import fences, payloads, search
from gateway.web.alarms import GROUPS, told
from gateway.web.payload import shown
from gateway.web.site import Site
from gateway.web.words import advice, title

_OTHERS = 10


def routes(site: Site) -> list[Route]:
    """``/ui/rejections/{id}`` and ``/ui/events/{id}``."""

    async def show_rejection(request: Request) -> Response:
        entry = await _entry(site, request)
        if entry.kind is not Kind.REJECTION:
            return RedirectResponse(f"/ui/events/{entry.id}", 307)
        takeover = await search.takeover(site.database, entry)
        lag = search.lag(entry, takeover)
        fence = None if entry.resource is None else await fences.read(site.database, entry.resource)
        kept = await payloads.read(site.database, entry.id)
        by_caller = Filters(kinds=(Kind.REJECTION,), caller=entry.caller)
        others = await search.page(site.database, by_caller, _OTHERS + 1)
        return site.pages.render(
            request,
            "rejection.html",
            entry=entry,
            takeover=takeover,
            lag=lag,
            fence=fence,
            kept=kept,
            payload=None if kept is None else shown(kept.body),
            others=[other for other in others if other.id != entry.id][:_OTHERS],
            advice=advice(entry, lag, fence),
            now=await site.database.now(),
        )

    async def show_event(request: Request) -> Response:
        entry = await _entry(site, request)
        if entry.kind is Kind.REJECTION:
            return RedirectResponse(f"/ui/rejections/{entry.id}", 307)
        now = await site.database.now()
        alarm = told(entry)
        return site.pages.render(
            request, "event.html", entry=entry, title=title(entry.kind), alarm=alarm, groups=GROUPS, now=now
        )

    return [Route("/ui/rejections/{id}", show_rejection), Route("/ui/events/{id}", show_event)]


async def _entry(site: Site, request: Request) -> Entry:
    try:
        identifier = UUID(request.path_params["id"])
    except ValueError as error:
        raise NotFound("There is no entry of this id.", advice="Ids look like 5f0c2a52-….") from error
    return await search.entry(site.database, identifier)
