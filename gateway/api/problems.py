"""Errors of the fencing API, as RFC 9457 problem documents."""

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from gateway.errors import GatewayError, NotFound, RequestMalformed
from gateway.middleware import problem


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


def install(app: FastAPI) -> None:
    """Answer every error of ``app`` with a problem document."""
    app.add_exception_handler(GatewayError, _answer_error)
    app.add_exception_handler(RequestValidationError, _answer_invalid)
    app.add_exception_handler(HTTPException, _answer_http)


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
