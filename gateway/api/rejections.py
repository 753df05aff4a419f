"""The refused writes on record: pages of them, and all about one of them."""

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Depends, Query

from gateway.api.record_filters import RejectionQuery
from gateway.api.record_views import RESPONSES, RejectionList, RejectionPage, entry_view, page, rejection_view
from gateway.api.requests import Authenticate
from gateway.auth.principal import Principal, shown_to
from gateway.db import search
from gateway.db.database import Database
from gateway.errors import NotFound
from gateway.fencing.record import Filters, Kind

_OTHERS = 20


def routes(database: Database, caller: Authenticate) -> APIRouter:
    """``/v1/rejections``. Those who may not audit are shown their own."""
    router = APIRouter()

    @router.get(
        "/v1/rejections",
        summary="The record of refused writes, newest first",
        responses=RESPONSES,
    )
    async def list_rejections(
        query: Annotated[RejectionQuery, Query()], principal: Annotated[Principal, Depends(caller)]
    ) -> RejectionList:
        found = await page(database, query, principal)
        return RejectionList(rejections=[rejection_view(one) for one in found.entries], **found.leads)

    @router.get(
        "/v1/rejections/{id}",
        summary="All about one refused write: what overtook its writer, and what else that caller was refused",
    )
    async def read_rejection(id: UUID, principal: Annotated[Principal, Depends(caller)]) -> RejectionPage:  # noqa: A002 - as in the path
        rejection = await search.entry(database, id, shown_to(principal))
        if rejection.kind is not Kind.REJECTION:
            raise NotFound(f"The entry {id} is no rejection.", advice=f"Ask for /v1/events/{id}.")
        takeover = await search.takeover(database, rejection)
        same = Filters(kinds=(Kind.REJECTION,), caller=rejection.caller)
        others = await search.page(database, same, _OTHERS + 1) if rejection.caller is not None else []
        is_shown = takeover is not None and shown_to(principal) in (None, takeover.caller)
        return RejectionPage(
            rejection=rejection_view(rejection, takeover),
            takeover=entry_view(takeover) if takeover is not None and is_shown else None,
            others=[rejection_view(one) for one in others if one.id != id][:_OTHERS],
        )

    return router
