"""Several writes to tables in one transaction. They are the table plane's; here is how they are asked for."""

from collections.abc import Awaitable, MutableMapping
from typing import Annotated, Any, Literal, Protocol

from fastapi import APIRouter, Depends, Header, Request, Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.types import Receive

from gateway.api.requests import Authenticate
from gateway.auth.principal import Principal
from gateway.http.problems import Problem


class Answer(Protocol):
    """A finished answer."""

    @property
    def status(self) -> int: ...
    @property
    def headers(self) -> list[tuple[bytes, bytes]]: ...
    @property
    def body(self) -> bytes: ...


class Transact(Protocol):
    """Carries out the writes in the body of a request, all or none. Raises a ``GatewayError``."""

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
    """Carried out in this order."""

    model_config = ConfigDict(extra="forbid")

    writes: list[TransactionWrite] = Field(min_length=1, max_length=100)


class TransactionResult(BaseModel):
    """What the write would have been answered with, had it come alone."""

    status: int
    headers: dict[str, str]
    body: Any


class TransactionAnswer(BaseModel):
    results: list[TransactionResult]


_DESCRIPTION = """
Claims the resources of all writes first, in one order, then carries them out one after the other and commits. If one
of them is refused, nothing is written, and `write` in the answer is its number, counted from 0. A write without a token
or a holder of its own is sent with those of the request's headers. With an `Idempotency-Key` the answer is kept, and a
request that is sent again gets it instead of being carried out once more.
"""


def routes(transact: Transact, caller: Authenticate) -> APIRouter:
    """``/v1/transaction``."""
    router = APIRouter()

    @router.post(
        "/v1/transaction",
        summary="Write to several tables, all or nothing",
        description=_DESCRIPTION,
        response_class=Response,
        responses={
            200: {"model": TransactionAnswer},
            **{status: {"model": Problem} for status in (403, 404, 409, 412, 413, 422, 428)},
            "default": {"model": Problem, "description": "What a write that fails would be answered with by itself."},
        },
        openapi_extra={"requestBody": {"required": True, "content": {"application/json": {"schema": _schema()}}}},
    )
    async def transaction(
        request: Request,
        principal: Annotated[Principal, Depends(caller)],
        # Read by the table plane, from the request itself: named here for whoever reads the description.
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
    """The schema of a request in one piece: the description has no other place for the parts of it."""
    schema = TransactionRequest.model_json_schema()
    schema["properties"]["writes"]["items"] = schema.pop("$defs")["TransactionWrite"]
    return schema
