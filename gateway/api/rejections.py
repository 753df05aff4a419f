"""The record of refused writes."""

from datetime import datetime
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Depends, Query
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from gateway.api.problems import Problem
from gateway.api.requests import MAX_PAGE, Authenticate, storable
from gateway.fencing.record import Rejection
from gateway.store import rejections
from gateway.store.database import Database


class RejectionView(BaseModel):
    """A refused write, or, where ``enforced`` is false, one that passed and would have been refused."""

    id: UUID
    at: datetime
    resource: str
    reason: str
    enforced: bool
    token: str | None
    fence: str | None
    raised_by: str | None
    raised_at: datetime | None
    holder: str | None
    caller: str
    method: str
    target: str
    payload_size: int | None = Field(description="Bytes; null where the body was not read.")
    payload_sha256: str | None
    client: str | None
    request_id: str


class RejectionList(BaseModel):
    rejections: list[RejectionView]
    before: UUID | None = Field(description="Pass as ``before`` for the next page; null on the last one.")


class RejectionFilters(BaseModel):
    """Which rejections; all that are given must hold."""

    model_config = ConfigDict(extra="forbid")

    resource: Annotated[str | None, Field(max_length=512)] = None
    holder: Annotated[str | None, Field(max_length=200)] = None
    caller: Annotated[str | None, Field(max_length=200)] = None
    reason: Annotated[str | None, Field(max_length=64, examples=["token-stale"])] = None
    since: AwareDatetime | None = None
    before: Annotated[UUID | None, Field(description="The id of the last rejection of the page before.")] = None
    limit: Annotated[int, Field(ge=1, le=MAX_PAGE)] = 100

    def to_store(self) -> rejections.Filters:
        return rejections.Filters(
            storable(self.resource),
            storable(self.holder),
            storable(self.caller),
            storable(self.reason),
            self.since,
            self.before,
        )


def routes(database: Database, caller: Authenticate) -> APIRouter:
    """``/v1/rejections``."""
    router = APIRouter()

    @router.get(
        "/v1/rejections",
        summary="The record of refused writes, newest first",
        dependencies=[Depends(caller)],
        responses={404: {"model": Problem, "description": "There is no rejection of the id in ``before``."}},
    )
    async def list_rejections(
        filters: Annotated[RejectionFilters, Query()],
    ) -> RejectionList:
        found = await rejections.listed(database, filters.to_store(), filters.limit)
        last = found[-1].id if len(found) == filters.limit else None
        return RejectionList(rejections=[_rejection_view(one) for one in found], before=last)

    return router


def _rejection_view(rejection: Rejection) -> RejectionView:
    attempt, fence = rejection.attempt, rejection.fence
    return RejectionView(
        id=rejection.id,
        at=rejection.at,
        resource=rejection.resource,
        reason=rejection.reason,
        enforced=rejection.enforced,
        token=None if attempt.token is None else str(attempt.token),
        fence=None if fence is None else str(fence.token),
        raised_by=None if fence is None else fence.raised_by,
        raised_at=None if fence is None else fence.raised_at,
        holder=attempt.holder,
        caller=attempt.caller,
        method=attempt.method,
        target=attempt.target,
        payload_size=attempt.payload_size,
        payload_sha256=attempt.payload_sha256,
        client=attempt.client,
        request_id=attempt.request_id,
    )
