"""Several writes to tables in one transaction. This module describes the request; the table plane executes it."""

from typing import Any, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from gateway.api.authorisation import About, Rule
from gateway.api.description import Subject
from gateway.api.routes import Call, Routes
from gateway.auth.grants import Action
from gateway.fencing.ownership import Ownership
from gateway.tables.dialect.body import in_pieces

routes = Routes(Subject.WRITES)


class TransactionWrite(BaseModel):
    """One write, as the parts of a request to ``/v1/tables/{table}``."""

    model_config = ConfigDict(extra="forbid")

    method: Literal["POST", "PATCH", "PUT", "DELETE"]
    table: str
    table_schema: str | None = Field(None, alias="schema", description="Instead of the header Content-Profile.")
    query: str | None = Field(None, examples=["id=eq.1"])
    body: Any = Field(None, examples=[{"balance": 120}])
    token: str | None = Field(None, description="Instead of the header Fencing-Token.", examples=["34"])
    sequencer: str | None = Field(None, description="Instead of the header Fencing-Sequencer.")
    resource: str | None = Field(None, description="Instead of the header Fencing-Resource.")
    holder: str | None = Field(None, description="Instead of the header Fencing-Holder.")
    prefer: str | None = Field(None, examples=["return=representation"])
    if_match: str | None = Field(None, description="Instead of the header If-Match.")
    if_none_match: str | None = Field(None, description="Instead of the header If-None-Match.")


class TransactionRequest(BaseModel):
    """Writes, executed in this order."""

    model_config = ConfigDict(extra="forbid")

    writes: list[TransactionWrite] = Field(min_length=1, max_length=100)


class TransactionResult(BaseModel):
    """The answer that the write would have got on its own."""

    status: int
    headers: dict[str, str]
    body: Any


class TransactionAnswer(BaseModel):
    results: list[TransactionResult]


_DESCRIPTION = """
The gateway claims the resources of all writes first, in one order, then executes the writes one by one and commits. If
one of them is refused, nothing is written, and `write` in the answer is its number, counted from 0. A write without a
token or holder of its own uses those of the request's headers. With an `Idempotency-Key` the gateway keeps the answer,
and a repeated request gets it instead of being executed again.
"""


class TransactionHeaders(BaseModel):
    """The headers for all writes. The table plane reads them from the request."""

    token: str | None = Field(None, alias="Fencing-Token")
    holder: str | None = Field(None, alias="Fencing-Holder")
    sequencer: str | None = Field(None, alias="Fencing-Sequencer")
    key: str | None = Field(None, alias="Idempotency-Key")


def _owners(ownership: Ownership, content: bytes) -> list[str]:
    """Return the owners of the schemas that the writes name. A list that is unreadable has none."""
    try:
        document = in_pieces(content, orjson.loads)
    except (orjson.JSONDecodeError, RecursionError):
        return []
    writes = document.get("writes") if isinstance(document, dict) else None
    listed = writes if isinstance(writes, list) else []
    schemas = [one.get("schema") if isinstance(one, dict) else None for one in listed]
    return [ownership.of_schema(one if isinstance(one, str) else None) for one in schemas]


@routes.add(
    "POST /v1/transaction",
    Rule(About.BODY, (Action.WRITE,)),
    "Write to several tables, all or nothing",
    description=_DESCRIPTION,
    body=TransactionRequest,
    limit=None,
    owners=_owners,
    answer=TransactionAnswer,
    answers={
        **dict.fromkeys((403, 404, 409, 412, 413, 422, 428), ""),
        "default": "The answer that the failing write would have got on its own.",
    },
)
async def transaction(call: Call, headers: TransactionHeaders) -> Response:  # noqa: ARG001 - the description lists them
    answer = await call.services.transact(call.request.scope, call.request.receive, call.principal)
    return Response(
        answer.body, answer.status, {name.decode(): value.decode("latin-1") for name, value in answer.headers}
    )
