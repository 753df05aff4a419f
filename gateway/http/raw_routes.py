"""Routes for thousands of requests a second: described like all others, served without FastAPI's machinery.

FastAPI parses a request by the signature of its endpoint and validates the answer. This takes some 130 µs of processor
time, more than the rest of the gateway needs for a lease. The endpoint of a raw route gets the request and the
parameters of its path. It reads the body with ``read_body`` and returns a finished response.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError

from gateway.errors import RequestMalformed, Unavailable

Model = TypeVar("Model", bound=BaseModel)
Result = TypeVar("Result")


class RawRoute(APIRoute):
    """A route whose endpoint takes the request itself."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        endpoint = self.endpoint

        async def handle(request: Request) -> Response:
            response: Response = await endpoint(request, **request.path_params)
            return response

        return handle


def body_of(model: type[BaseModel]) -> dict[str, Any]:
    """Return the OpenAPI description of a body in one piece, because the document has no place for its parts."""
    schema = model.model_json_schema()
    parts = schema.pop("$defs", {})
    content = {"application/json": {"schema": _in_one_piece(schema, parts)}}
    return {"requestBody": {"content": content, "required": "required" in schema}}


async def read_body(request: Request, model: type[Model]) -> Model:
    """Read the body of a request as JSON, regardless of its media type. An empty body is an empty object.

    Raises what FastAPI raises, for the same answer.
    """
    body = await request.body() or b"{}"
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        wrong = [{**one, "loc": ("body", *one["loc"])} for one in error.errors(include_url=False, include_input=False)]
        raise RequestValidationError(wrong) from error


async def while_connected(request: Request, work: Coroutine[Any, Any, Result]) -> Result:
    """Return the result of ``work``, which is cancelled, and cleaned up, if the client hangs up or the gateway stops.

    The body of the request must have been read. Raises ``RequestMalformed`` if the client has hung up, and
    ``Unavailable`` if this gateway is being stopped.
    """
    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(_disconnected(request))
    stopping = asyncio.ensure_future(_stopping(request))
    try:
        await asyncio.wait((working, leaving, stopping), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            await _cancel(working)
            if leaving.done():
                raise RequestMalformed("The client has hung up.")
            raise Unavailable(
                "This gateway is being stopped.",
                advice='Repeat the request: another gateway answers it. With a "request" it keeps its place for now.',
            )
        return working.result()
    finally:
        await _cancel(working, leaving, stopping)


async def _cancel(*tasks: "asyncio.Future[Any]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _stopping(request: Request) -> None:
    """Wait until the server begins to stop, which it tells its connections."""
    stopping: asyncio.Event = request.scope["state"].get("stopping") or asyncio.Event()
    await stopping.wait()


def _in_one_piece(schema: Any, parts: dict[str, Any]) -> Any:
    if isinstance(schema, list):
        return [_in_one_piece(one, parts) for one in schema]
    if not isinstance(schema, dict):
        return schema
    part = parts.get(schema.get("$ref", "").rpartition("/")[2], {})
    return {name: _in_one_piece(value, parts) for name, value in {**part, **schema}.items() if name != "$ref"}
