"""The webhooks: how they stand, and a message to try one with. Addresses and secrets are told to nobody."""

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Depends
from pydantic import BaseModel, Field

from gateway.api.requests import Authenticate, check_administrator
from gateway.auth.principal import Principal, shown_to
from gateway.errors import Forbidden
from gateway.http.problems import Problem
from gateway.webhooks.outbox import Outbox


class WebhookView(BaseModel):
    """How far a webhook is. Times are by the database's clock."""

    name: str
    position: int = Field(description="Everything up to here has been received, or was not for it.")
    behind: int = Field(description="Entries of the record that come after it.")
    delivered_at: datetime | None = Field(description="When a message was last received; null: never yet.")
    failures: int = Field(description="Attempts in a row that have failed; 0 where nothing is wrong.")
    failing_since: datetime | None
    last_error: str | None
    not_before: datetime | None = Field(description="When it is tried again.")
    paused_at: datetime | None = Field(
        description="When its receiver answered 410: nothing is sent before a test message has been accepted."
    )


class WebhookList(BaseModel):
    webhooks: list[WebhookView]


class TestView(BaseModel):
    """What has come of a test message."""

    delivered: bool
    status: int | None = Field(description="What it was answered with; null where there was no answer.")
    error: str | None


def routes(outbox: Outbox, caller: Authenticate) -> APIRouter:
    """``/v1/webhooks``."""
    router = APIRouter()

    @router.get(
        "/v1/webhooks",
        summary="How the webhooks stand",
        description="For callers that may audit.",
        responses={403: {"model": Problem, "description": "The caller may not audit."}},
    )
    async def list_webhooks(principal: Annotated[Principal, Depends(caller)]) -> WebhookList:
        if shown_to(principal) is not None:
            raise Forbidden(f"The caller {principal.name} may not audit.")
        standings = await outbox.standings()
        return WebhookList(webhooks=[WebhookView.model_validate(one, from_attributes=True) for one in standings])

    @router.post(
        "/v1/webhooks/{name}/test",
        summary="Send a message about nothing to a webhook",
        description="For administrators. It is sent at once, not through the outbox. Who accepts it is sent what waits "
        "for it, even if it had been paused.",
        responses={403: {"model": Problem, "description": "The caller is no administrator."}},
    )
    async def test_webhook(name: str, principal: Annotated[Principal, Depends(caller)]) -> TestView:
        check_administrator(principal)
        answer = await outbox.test(name)
        return TestView(delivered=answer.error is None, status=answer.status, error=answer.error)

    return router
