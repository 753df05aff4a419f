"""Several writes to tables in one transaction. This module describes the request; the table plane executes it."""

from collections.abc import Awaitable, MutableMapping
from typing import Annotated, Any, Literal, Protocol

from fastapi import APIRouter, Depends, Header, Request, Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.types import Receive

from gateway.api.requests import Authenticate
from gateway.auth.principal import Principal
from gateway.http.direct import Answer
from gateway.http.problems import Problem


class Transact(Protocol):
    """Execute the writes in the body of a request, all or none. Raises a ``GatewayError``."""

    def __call__(
        self, scope: MutableMapping[str, Any], receive: Receive, principal: Principal, /
    ) -> Awaitable[Answer]: ...


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


def routes(transact: Transact, caller: Authenticate) -> APIRouter:
    """Build the route ``/v1/transaction``."""
    router = APIRouter()

    @router.post(
        "/v1/transaction",
        summary="Write to several tables, all or nothing",
        description=_DESCRIPTION,
        response_class=Response,
        responses={
            200: {"model": TransactionAnswer},
            **{status: {"model": Problem} for status in (403, 404, 409, 412, 413, 422, 428)},
            "default": {
                "model": Problem,
                "description": "The answer that the failing write would have got on its own.",
            },
        },
        openapi_extra={"requestBody": {"required": True, "content": {"application/json": {"schema": _schema()}}}},
    )
    async def transaction(
        request: Request,
        principal: Annotated[Principal, Depends(caller)],
        # The table plane reads these from the request. They are listed here for the description.
        _token: Annotated[str | None, Header(alias="Fencing-Token")] = None,
        _holder: Annotated[str | None, Header(alias="Fencing-Holder")] = None,
        _sequencer: Annotated[str | None, Header(alias="Fencing-Sequencer")] = None,
        _key: Annotated[str | None, Header(alias="Idempotency-Key")] = None,
    ) -> Response:
        answer = await transact(request.scope, request.receive, principal)
        headers = {name.decode(): value.decode("latin-1") for name, value in answer.headers}
        return Response(answer.body, answer.status, headers)

    return router


def _schema() -> dict[str, Any]:
    """Return the schema of a request in one piece, because the description has no place for its parts."""
    schema = TransactionRequest.model_json_schema()
    schema["properties"]["writes"]["items"] = schema.pop("$defs")["TransactionWrite"]
    return schema
