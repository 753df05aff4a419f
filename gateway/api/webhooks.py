"""The state of the webhooks, and a test message for one. No answer contains an address or a secret."""

from datetime import datetime

from fastapi import APIRouter
from pydantic import BaseModel, Field

from gateway.http.problems import Problem
from gateway.webhooks.outbox import Outbox


class WebhookView(BaseModel):
    """The progress of a webhook. Times are by the database's clock."""

    name: str
    position: int = Field(description="The webhook has received every entry up to here that it wants.")
    behind: int = Field(description="Entries of the record after that position.")
    delivered_at: datetime | None = Field(
        description="When the receiver last accepted a message; null if it never did."
    )
    failures: int = Field(description="Attempts that have failed in a row; 0 if all is well.")
    failing_since: datetime | None
    last_error: str | None
    not_before: datetime | None = Field(description="The time of the next attempt.")
    paused_at: datetime | None = Field(
        description="When the receiver answered 410. The gateway sends nothing until a test message is accepted."
    )


class WebhookList(BaseModel):
    webhooks: list[WebhookView]


class TestView(BaseModel):
    """The result of a test message."""

    delivered: bool
    status: int | None = Field(description="The status of the answer; null without an answer.")
    error: str | None


def routes(outbox: Outbox) -> APIRouter:
    """Build the routes ``/v1/webhooks``."""
    router = APIRouter()

    @router.get(
        "/v1/webhooks",
        summary="List the webhooks and their progress",
        description="Needs the grant `audit`.",
        responses={403: {"model": Problem, "description": "The caller lacks the grant."}},
    )
    async def list_webhooks() -> WebhookList:
        standings = await outbox.standings()
        return WebhookList(webhooks=[WebhookView.model_validate(one, from_attributes=True) for one in standings])

    @router.post(
        "/v1/webhooks/{name}/test",
        summary="Send a test message to a webhook",
        description="Needs the grant `administer`. The gateway sends it at once, not through the outbox. "
        "If the receiver accepts "
        "it, a paused webhook resumes with the entries that wait for it.",
        responses={403: {"model": Problem, "description": "The caller lacks the grant."}},
    )
    async def test_webhook(name: str) -> TestView:
        answer = await outbox.test(name)
        return TestView(delivered=answer.error is None, status=answer.status, error=answer.error)

    return router
