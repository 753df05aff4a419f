"""Errors of the fencing API, as RFC 9457 problem documents."""

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from gateway.errors import GatewayError, NotFound, RequestMalformed, for_callers
from gateway.http.middleware import problem, problem_headers

_MOST_NAMED = 20
"""The most mistakes that an answer names."""
_REFERENCE = "#/components/schemas/{}"


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


_DESCRIBED = {"content": {ProblemResponse.media_type: {"schema": {"$ref": _REFERENCE.format(Problem.__name__)}}}}

EVERYWHERE: Mapping[int | str, dict[str, Any]] = dict.fromkeys((400, 401, 404, 503), _DESCRIBED)
"""Errors of every path. A reference, because FastAPI would compile the model for each status of each path."""


def install(app: FastAPI) -> None:
    """Answer every error of ``app`` with a problem document."""
    app.add_exception_handler(GatewayError, answer_error)
    app.add_exception_handler(RequestValidationError, _answer_invalid)
    app.add_exception_handler(HTTPException, _answer_http)
    describe = app.openapi
    app.openapi = lambda: _described(describe())  # type: ignore[method-assign]  # FastAPI's way of extending it


def _described(document: dict[str, Any]) -> dict[str, Any]:
    """Return the OpenAPI document with the media type of errors, which FastAPI takes for ordinary JSON.

    It also loses FastAPI's own 422, because a request that cannot be read gets 400, and gains the API key of callers.
    """
    document["components"]["securitySchemes"] = {"api_key": {"type": "http", "scheme": "bearer"}}
    document["security"] = [{"api_key": []}, {}]  # {}: public routes, and gateways that let anonymous callers in
    for path in document["paths"].values():
        for operation in path.values():
            answers = operation["responses"]
            for status, answer in list(answers.items()):
                schema = answer.get("content", {}).get(JSONResponse.media_type, {}).get("schema", {})
                if schema.get("$ref") == _REFERENCE.format("Problem"):
                    answer["content"] = {ProblemResponse.media_type: {"schema": schema}}
                elif schema.get("$ref") == _REFERENCE.format("HTTPValidationError"):
                    del answers[status]
    return document


async def answer_error(request: Request, error: Exception) -> ProblemResponse:
    """Return an error of the gateway as a problem document."""
    assert isinstance(error, GatewayError)
    error = for_callers(error)
    headers = {name.decode(): value.decode() for name, value in problem_headers(error)}
    return _problem(request, error, error.status, headers)


async def _answer_invalid(request: Request, error: Exception) -> ProblemResponse:
    assert isinstance(error, RequestValidationError)
    wrong = error.errors()
    named = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in wrong[:_MOST_NAMED])
    more = f"; and {len(wrong) - _MOST_NAMED} more" if len(wrong) > _MOST_NAMED else ""
    return _problem(request, RequestMalformed(f"{named}{more}."), RequestMalformed.status)


async def _answer_http(request: Request, error: Exception) -> ProblemResponse:
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        return _problem(request, NotFound("There is nothing at this path."), 404)
    refused = RequestMalformed(f"{error.detail}.")
    refused.status = error.status_code
    return _problem(request, refused, error.status_code, error.headers or {})


def _problem(
    request: Request, error: GatewayError, status: int, headers: Mapping[str, str] | None = None
) -> ProblemResponse:
    request.scope.setdefault("state", {})["error"] = error
    return ProblemResponse(problem(error), status, headers)
