"""New epochs: an administrator brings a fence beyond tokens that nobody should have been able to show."""

from typing import Annotated

from fastapi import APIRouter, Depends
from pydantic import BaseModel, ConfigDict, Field

from gateway.api.fences import Barrier, FenceView, fence_view
from gateway.api.requests import Authenticate, ResourceName, TokenText, check_administrator, storable
from gateway.auth.principal import Principal
from gateway.db import fences
from gateway.db.database import Database
from gateway.db.fences import Bump, Bumped
from gateway.errors import ExpectedMismatch, OutcomeUnknown, TokensExhausted, Unavailable
from gateway.fencing.resource import canonical
from gateway.fencing.rules import Presented
from gateway.fencing.token import Token
from gateway.http.problems import Problem


class EpochRequest(BaseModel):
    """A new epoch, for a fence that nobody's tokens reach any more: its issuer has lost its counter."""

    model_config = ConfigDict(extra="forbid")

    expected: TokenText = Field(description="The token the fence carries. If it is another one, nothing happens.")
    reason: Annotated[str, Field(min_length=1, max_length=1000, pattern=r"\S", examples=["etcd was restored"])] = Field(
        description="Goes on record."
    )


def routes(database: Database, barrier: Barrier, caller: Authenticate) -> APIRouter:
    """``/v1/fences/{resource}/epoch``."""
    router = APIRouter()

    @router.post(
        "/v1/fences/{resource:path}/epoch",
        summary="Start a new epoch",
        description="For administrators, where an issuer has lost its counter, or somebody has raised the fence beyond "
        "all tokens. The fence goes to the beginning of its next epoch, if it carries the expected token; on record. "
        "Every token from before is refused afterwards, and leases that have one end.",
        responses={
            403: {"model": Problem, "description": "The caller is no administrator."},
            409: {"model": Problem, "description": "The fence carries another token, or there is no next epoch."},
        },
    )
    async def start_epoch(
        resource: ResourceName, wanted: EpochRequest, principal: Annotated[Principal, Depends(caller)]
    ) -> FenceView:
        check_administrator(principal)
        name, expected = canonical(resource), Token.parse(wanted.expected)
        bumped = await fences.bump_epoch(database, name, expected, principal.name, storable(wanted.reason) or "")
        if bumped.outcome is not Bump.DONE or bumped.fence is None:
            raise _not_bumped(name, expected, bumped)
        # What is under way with a token from before must not take effect any more, as with every takeover.
        token = bumped.fence.token
        try:
            decision, fence = await barrier(name, Presented(token), principal.name)
            while not decision.passes:
                # Somebody of the new epoch was quicker, and may still be settling what was under way before.
                decision, fence = await barrier(name, Presented(fence.token), principal.name)
        except (Unavailable, OutcomeUnknown) as error:
            raise OutcomeUnknown(
                f"The fence of {name} is at {token}, but what was under way before is not settled. {error.message}",
                advice="The epoch has begun: do not start another. Before anybody reads, the first holder of the new "
                f"epoch calls the barrier until it stands. If any token is taken there, you may call it with {token}.",
            ) from error
        return fence_view(name, bumped.fence)

    return router


def _not_bumped(resource: str, expected: Token, bumped: Bumped) -> ExpectedMismatch | TokensExhausted:
    fence = bumped.fence
    if bumped.outcome is Bump.EXHAUSTED:
        return TokensExhausted(
            f"There is no epoch after that of {resource}.",
            advice="Have the fence removed in the database, once nobody writes to the resource (docs/policies.md).",
            facts={"resource": resource, "fence": str(expected)},
        )
    return ExpectedMismatch(
        f"The fence of {resource} carries {fence.token if fence else 'no token yet'}, not {expected}.",
        facts={"resource": resource, "expected": str(expected), "fence": str(fence.token) if fence else None},
    )
