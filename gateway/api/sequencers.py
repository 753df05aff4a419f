"""Sequencers: is this one ours, does its lease still last, and has somebody overtaken it?"""

from typing import Annotated

from fastapi import APIRouter, Depends
from pydantic import BaseModel, ConfigDict, Field

from gateway.api.requests import Authenticate
from gateway.db import fences
from gateway.db.database import Database
from gateway.fencing.lease import Mode
from gateway.fencing.sequencer import Sequencer, Signer
from gateway.http.problems import Problem

SequencerText = Annotated[
    str,
    Field(
        max_length=4096,
        examples=["order/5:exclusive:34:kP0u…"],
        description="As the lease service gave it with the token. As good as the token itself: keep it to yourself.",
    ),
]


class SequencerRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    sequencer: SequencerText


class SequencerView(BaseModel):
    """What there is to know of a sequencer. A write is safe only where it is ``authentic`` and not ``overtaken``."""

    resource: str
    mode: Mode
    token: str
    authentic: bool = Field(description="Whether it was signed with one of this gateway's keys.")
    held: bool = Field(description="Whether a lease with this token lasts, by the database's clock.")
    fence: str | None = Field(description="The highest token seen of the resource; null where none has been seen yet.")
    overtaken: bool = Field(description="Whether the fence is higher: then nothing can be written with it any more.")


def routes(database: Database, signer: Signer, caller: Authenticate) -> APIRouter:
    """``/v1/sequencers``."""
    router = APIRouter()

    @router.post(
        "/v1/sequencers/check",
        summary="Check a sequencer",
        description="For whoever is shown one: a server that cannot be fenced, or one whose tokens come from this "
        "gateway. What is said of its lease may be otherwise a moment later; what has been overtaken stays overtaken.",
        dependencies=[Depends(caller)],
        responses={400: {"model": Problem, "description": "It cannot be read."}},
    )
    async def check_sequencer(wanted: SequencerRequest) -> SequencerView:
        shown = Sequencer.parse(wanted.sequencer)
        (found,) = await fences.token_standing(database, [(shown.resource, shown.token)], shown.mode)
        fence = found.fence.token if found.fence else None
        return SequencerView(
            resource=shown.resource,
            mode=shown.mode,
            token=str(shown.token),
            authentic=signer.is_authentic(shown),
            held=found.held,
            fence=None if fence is None else str(fence),
            overtaken=fence is not None and shown.token < fence,
        )

    return router
