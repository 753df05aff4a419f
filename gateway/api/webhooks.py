"""Webhooks, and their tests. No answer has an address or a secret of a webhook."""

from datetime import datetime

from pydantic import BaseModel, Field

from gateway.api.authorisation import ADMINISTER, AUDIT
from gateway.api.description import Subject
from gateway.api.routes import Call, Routes

routes = Routes(Subject.WEBHOOKS)


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


@routes.add(
    "GET /v1/webhooks",
    AUDIT,
    "List the webhooks and their progress",
    description="Needs the grant `audit`.",
)
async def list_webhooks(call: Call) -> WebhookList:
    standings = await call.services.outbox.standings()
    return WebhookList(webhooks=[WebhookView.model_validate(one, from_attributes=True) for one in standings])


@routes.add(
    "POST /v1/webhooks/{name}/test",
    ADMINISTER,
    "Send a test message to a webhook",
    description="Needs the grant `administer`. The gateway sends it at once, not through the outbox. "
    "If the receiver accepts "
    "it, a paused webhook resumes with the entries that wait for it.",
)
async def test_webhook(call: Call, name: str) -> TestView:
    answer = await call.services.outbox.test(name)
    return TestView(delivered=answer.error is None, status=answer.status, error=answer.error)
