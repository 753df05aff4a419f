"""Finding a resource: by how its name begins, or because something happened to it."""

from datetime import timedelta

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from gateway.db import fences, overview, record
from gateway.web.filters import field
from gateway.web.rendering import Site, resource_address

_PAGE = 50
_MOST = 10
_LATELY = timedelta(days=7)


def routes(site: Site) -> list[Route]:
    """``/ui/resources``."""

    async def show(request: Request) -> Response:
        database = site.database
        now = await database.now()
        sent = request.query_params.multi_items()
        prefix, after = field(sent, "prefix") or "", field(sent, "after_name") or ""
        found = await fences.listed(database, prefix, after, _PAGE + 1)
        if prefix and not after and [fence.resource for fence in found] == [prefix]:
            return RedirectResponse(resource_address(prefix), 303)
        await record.seal(database)
        since = now - _LATELY
        return site.pages.render(
            request,
            "resources.html",
            now=now,
            fields={"prefix": prefix},
            prefix=prefix,
            found=found[:_PAGE],
            more=found[_PAGE - 1].resource if len(found) > _PAGE else None,
            first=not after,
            troubled=await overview.resources_refused(database, since, _MOST),
            taken_over=await overview.resources_taken_over(database, since, _MOST),
            looked_at=overview.LOOKED_AT,
        )

    return [Route("/ui/resources", show)]
