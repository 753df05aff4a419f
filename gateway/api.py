"""The fencing API: fences, barriers, the record of rejections, health. JSON, described by OpenAPI at ``/v1/docs``."""

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Annotated, Any, Protocol, TypeAlias
from uuid import UUID

from fastapi import APIRouter, Depends, FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException

from gateway.audit import Audit
from gateway.auth.keys import Keys
from gateway.auth.principal import Principal
from gateway.errors import GatewayError, NotFound, RequestMalformed, Unavailable
from gateway.fencing.headers import FencingHeaders
from gateway.fencing.record import Attempt, Rejection
from gateway.fencing.resource import canonical
from gateway.fencing.rules import Decision, Fence, Presented
from gateway.fencing.token import Token
from gateway.middleware import problem
from gateway.store import fences, rejections
from gateway.store.database import Database

MAX_PAGE = 1000


class Barrier(Protocol):
    """Raises a fence and settles what older holders have under way; returns what the fence says."""

    async def __call__(self, resource: str, presented: Presented, caller: str) -> tuple[Decision, Fence]: ...


Health: TypeAlias = Callable[[], Awaitable[dict[str, str]]]
"""Names each service behind the gateway, with ``ok`` or what is wrong."""

Authenticate: TypeAlias = Callable[[Request], Principal]


class FenceView(BaseModel):
    """A fence. Tokens are strings: they may be larger than a JSON number can hold exactly."""

    resource: str
    token: str | None = Field(description="The highest token seen; null where none has been seen yet.")
    raised_by: str | None = Field(description="The name the holder gave itself, if it did.")
    caller: str | None = Field(description="The caller whose request raised the fence.")
    raised_at: datetime | None = Field(description="When, by the database's clock.")


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


class FenceList(BaseModel):
    fences: list[FenceView]
    after: str | None = Field(description="Pass as ``after`` for the next page; null on the last one.")


class RejectionList(BaseModel):
    rejections: list[RejectionView]
    before: UUID | None = Field(description="Pass as ``before`` for the next page; null on the last one.")


class BarrierRequest(BaseModel):
    """The new holder's token. A barrier is called before the new holder reads."""

    model_config = ConfigDict(extra="forbid")

    token: Annotated[str, Field(max_length=40, examples=["34", "2.34"])]
    holder: Annotated[str | None, Field(max_length=200, pattern=r"^[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?$")] = None


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
            _storable(self.resource),
            _storable(self.holder),
            _storable(self.caller),
            _storable(self.reason),
            self.since,
            self.before,
        )


class Problem(BaseModel):
    """RFC 9457. Refusals carry ``resource``, ``token``, ``fence``, ``raised_by``, ``raised_at``, ``rejection`` too."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    advice: str


class ProblemResponse(JSONResponse):
    media_type = "application/problem+json"


def build(*, database: Database, keys: Keys, barrier: Barrier, audit: Audit, health: Health) -> FastAPI:
    """The API as a FastAPI app."""
    app = FastAPI(
        title="Fencing gateway",
        description="Fencing tokens in front of Postgres tables and S3 buckets: fences, barriers, refused writes.",
        version="1",
        docs_url="/v1/docs",
        redoc_url=None,
        openapi_url="/v1/openapi.json",
        responses={status: {"model": Problem} for status in (400, 401, 503)},
    )
    app.add_exception_handler(GatewayError, _answer_error)
    app.add_exception_handler(RequestValidationError, _answer_invalid)
    app.add_exception_handler(HTTPException, _answer_http)

    def caller(request: Request) -> Principal:
        return keys.by_bearer(request.scope["headers"])

    app.include_router(_fences(database, barrier, audit, caller))
    app.include_router(_rejections(database, caller))
    app.include_router(_operations(health))
    return app


def _fences(database: Database, barrier: Barrier, audit: Audit, caller: Authenticate) -> APIRouter:
    routes = APIRouter()

    @routes.get("/v1/fences", summary="List fences by name", dependencies=[Depends(caller)])
    async def list_fences(
        prefix: Annotated[str, Query(max_length=512)] = "",
        after: Annotated[str, Query(max_length=512)] = "",
        limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 100,
    ) -> FenceList:
        found = await fences.listed(database, _storable(prefix) or "", _storable(after) or "", limit)
        return FenceList(
            fences=[_fence_view(one.resource, one) for one in found],
            after=found[-1].resource if len(found) == limit else None,
        )

    @routes.get("/v1/fences/{resource:path}", summary="Read a fence", dependencies=[Depends(caller)])
    async def read_fence(resource: str) -> FenceView:
        name = canonical(resource)
        return _fence_view(name, await fences.read(database, name))

    @routes.post(
        "/v1/fences/{resource:path}/barrier",
        summary="Raise the fence before reading",
        description="Once this has returned, no write with a lower token takes effect any more, on tables or objects.",
        responses={412: {"model": Problem, "description": "The token has been overtaken itself. On record."}},
    )
    async def raise_barrier(
        resource: str, wanted: BarrierRequest, request: Request, principal: Annotated[Principal, Depends(caller)]
    ) -> FenceView:
        name = canonical(resource)
        presented = Presented(Token.parse(wanted.token), wanted.holder)
        decision, fence = await barrier(name, presented, principal.name)
        if not decision.passes:
            shown = FencingHeaders(presented.token, name, presented.holder)
            raise await audit.refused([(decision, fence)], _attempt(request, principal, shown))
        return _fence_view(name, fence)

    return routes


def _rejections(database: Database, caller: Authenticate) -> APIRouter:
    routes = APIRouter()

    @routes.get("/v1/rejections", summary="The record of refused writes, newest first", dependencies=[Depends(caller)])
    async def list_rejections(
        filters: Annotated[RejectionFilters, Query()],
    ) -> RejectionList:
        found = await rejections.listed(database, filters.to_store(), filters.limit)
        last = found[-1].id if len(found) == filters.limit else None
        return RejectionList(rejections=[_rejection_view(one) for one in found], before=last)

    return routes


def _operations(health: Health) -> APIRouter:
    routes = APIRouter()

    @routes.get("/v1/health", summary="How the gateway and the services behind it are")
    async def read_health(response: Response) -> dict[str, str]:
        services = await health()
        response.status_code = 200 if all(state == "ok" for state in services.values()) else 503
        return services

    @routes.get("/v1/ready", summary="Whether writes can be taken", status_code=204, response_class=Response)
    async def read_ready() -> None:
        services = await health()
        failing = sorted(name for name, state in services.items() if state != "ok")
        if failing:
            raise Unavailable(f"Not ready: {', '.join(failing)}.")

    return routes


def _fence_view(resource: str, fence: Fence | None) -> FenceView:
    if fence is None:
        return FenceView(resource=resource, token=None, raised_by=None, caller=None, raised_at=None)
    return FenceView(
        resource=resource,
        token=str(fence.token),
        raised_by=fence.holder,
        caller=fence.caller,
        raised_at=fence.raised_at,
    )


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


def _attempt(request: Request, principal: Principal, shown: FencingHeaders) -> Attempt:
    state: dict[str, Any] = request.scope["state"]
    return Attempt(
        token=shown.token,
        holder=shown.holder,
        caller=principal.name,
        method=request.method,
        target=request.url.path,
        client=state["client"],
        request_id=state["request_id"],
    )


def _storable(text: str | None) -> str | None:
    """A NUL character can be sent, but Postgres cannot hold one."""
    if text is not None and "\0" in text:
        raise RequestMalformed("A NUL character cannot be part of a name.")
    return text


async def _answer_error(_: Request, error: Exception) -> ProblemResponse:
    assert isinstance(error, GatewayError)
    headers = {} if error.retry_after is None else {"Retry-After": str(error.retry_after)}
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return ProblemResponse(problem(error), error.status, headers)


async def _answer_invalid(_: Request, error: Exception) -> ProblemResponse:
    assert isinstance(error, RequestValidationError)
    said = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
    return ProblemResponse(problem(RequestMalformed(f"{said}.")), RequestMalformed.status)


async def _answer_http(_: Request, error: Exception) -> ProblemResponse:
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        return ProblemResponse(problem(NotFound("There is nothing at this path.")), 404)
    refused = RequestMalformed(f"{error.detail}.")
    refused.status = error.status_code
    return ProblemResponse(problem(refused), error.status_code, dict(error.headers or {}))
