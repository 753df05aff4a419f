"""The record: lists of refused writes and of all entries, single entries, and the end of the chain."""

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Depends, Query

from gateway.api.record_views import (
    RESPONSES,
    EntryList,
    EntryView,
    EventQuery,
    HeadView,
    RejectionList,
    RejectionPage,
    RejectionQuery,
    entry_view,
    page,
    rejection_view,
)
from gateway.api.requests import Authenticate
from gateway.auth.principal import Principal, shown_to
from gateway.db import record, search
from gateway.db.database import Database
from gateway.errors import NotFound
from gateway.fencing.record import Filters, Kind
from gateway.http.problems import Problem


def routes(database: Database, caller: Authenticate) -> APIRouter:
    """Build the routes ``/v1/events`` and ``/v1/record``. A caller that may not audit gets its own entries only."""
    router = APIRouter()

    @router.get(
        "/v1/events",
        summary="List the whole record, newest first",
        responses=RESPONSES,
    )
    async def list_events(
        query: Annotated[EventQuery, Query()], principal: Annotated[Principal, Depends(caller)]
    ) -> EntryList:
        found = await page(database, query, principal)
        return EntryList(events=[entry_view(one) for one in found.entries], **found.leads)

    @router.get("/v1/events/{id}", summary="Read one entry of the record")
    async def read_event(id: UUID, principal: Annotated[Principal, Depends(caller)]) -> EntryView:  # noqa: A002 - as in the path
        return entry_view(await search.find_entry(database, id, shown_to(principal)))

    @router.get(
        "/v1/record/head",
        summary="Read the end of the record: its last position, and the hash up to there",
        description="Needs the grant `audit`.",
        responses={403: {"model": Problem, "description": "The caller lacks the grant."}},
    )
    async def read_head() -> HeadView:
        await record.seal(database)
        head = await record.read_head(database)
        return HeadView(position=head.position, hash=head.hash)

    return router


_OTHERS = 20


def rejection_routes(database: Database, caller: Authenticate) -> APIRouter:
    """Build the routes ``/v1/rejections``. A caller that may not audit gets its own rejections only."""
    router = APIRouter()

    @router.get(
        "/v1/rejections",
        summary="List refused writes, newest first",
        responses=RESPONSES,
    )
    async def list_rejections(
        query: Annotated[RejectionQuery, Query()], principal: Annotated[Principal, Depends(caller)]
    ) -> RejectionList:
        found = await page(database, query, principal)
        return RejectionList(rejections=[rejection_view(one) for one in found.entries], **found.leads)

    @router.get(
        "/v1/rejections/{id}",
        summary="Read one refused write, with the takeover behind it and other rejections of the caller",
    )
    async def read_rejection(id: UUID, principal: Annotated[Principal, Depends(caller)]) -> RejectionPage:  # noqa: A002 - as in the path
        rejection = await search.find_entry(database, id, shown_to(principal))
        if rejection.kind is not Kind.REJECTION:
            raise NotFound(f"The entry {id} is no rejection.", advice=f"Request /v1/events/{id}.")
        takeover = await search.find_takeover(database, rejection)
        same = Filters(kinds=(Kind.REJECTION,), caller=rejection.caller)
        others = await search.find_page(database, same, _OTHERS + 1) if rejection.caller is not None else []
        is_shown = takeover is not None and shown_to(principal) in (None, takeover.caller)
        return RejectionPage(
            rejection=rejection_view(rejection, takeover),
            takeover=entry_view(takeover) if takeover is not None and is_shown else None,
            others=[rejection_view(one) for one in others if one.id != id][:_OTHERS],
        )

    return router
