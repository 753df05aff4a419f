"""The whole record, entries of all kinds: pages of them, one of them, and the end of the chain."""

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Depends, Query

from gateway.api.record_filters import EventQuery
from gateway.api.record_views import RESPONSES, EntryList, EntryView, HeadView, entry_view, page
from gateway.api.requests import Authenticate
from gateway.auth.principal import Principal, shown_to
from gateway.db import record, search
from gateway.db.database import Database
from gateway.errors import Forbidden
from gateway.http.problems import Problem


def routes(database: Database, caller: Authenticate) -> APIRouter:
    """``/v1/events`` and ``/v1/record``. Those who may not audit are shown their own entries."""
    router = APIRouter()

    @router.get(
        "/v1/events",
        summary="The whole record, newest first",
        responses=RESPONSES,
    )
    async def list_events(
        query: Annotated[EventQuery, Query()], principal: Annotated[Principal, Depends(caller)]
    ) -> EntryList:
        found = await page(database, query, principal)
        return EntryList(events=[entry_view(one) for one in found.entries], **found.leads)

    @router.get("/v1/events/{id}", summary="One entry of the record")
    async def read_event(id: UUID, principal: Annotated[Principal, Depends(caller)]) -> EntryView:  # noqa: A002 - as in the path
        return entry_view(await search.entry(database, id, shown_to(principal)))

    @router.get(
        "/v1/record/head",
        summary="The end of the record: its last position, and the hash over all up to it",
        description="For callers that may audit.",
        responses={403: {"model": Problem, "description": "The caller may not audit."}},
    )
    async def read_head(principal: Annotated[Principal, Depends(caller)]) -> HeadView:
        if shown_to(principal) is not None:
            raise Forbidden(f"The caller {principal.name} may not audit.")
        await record.seal(database)
        head = await record.head(database)
        return HeadView(position=head.position, hash=head.hash)

    return router
