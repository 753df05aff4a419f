"""Routes that are asked thousands of times a second: described as all others, served without FastAPI's machinery.

FastAPI takes a request apart by the signature of its endpoint and checks the answer before it goes out: some 130 µs of
processor time, more than all else that the gateway does for a lease. An endpoint of a lean route is called with the
request and the parameters of its path, reads the body by ``read``, and returns a finished response.
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
    """What the description says of a body, in one piece: it has no other place for the parts of it."""
    schema = model.model_json_schema()
    parts = schema.pop("$defs", {})
    content = {"application/json": {"schema": _in_one_piece(schema, parts)}}
    return {"requestBody": {"content": content, "required": "required" in schema}}


async def read_body(request: Request, model: type[Model]) -> Model:
    """The body of a request, which is JSON whatever it calls itself; none at all is an empty object.

    Raises what FastAPI raises, for the same answer.
    """
    body = await request.body() or b"{}"
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        wrong = [{**one, "loc": ("body", *one["loc"])} for one in error.errors(include_url=False, include_input=False)]
        raise RequestValidationError(wrong) from error


async def while_connected(request: Request, work: Coroutine[Any, Any, Result]) -> Result:
    """What ``work`` returns. It is cancelled, and has cleaned up after itself, once nobody should wait for it any more.

    The body of the request must have been read. Raises ``RequestMalformed`` where the client has hung up, which nobody
    reads, and ``Unavailable`` where this gateway is being stopped.
    """
    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(_gone(request))
    stopping = asyncio.ensure_future(_stopping(request))
    try:
        await asyncio.wait((working, leaving, stopping), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            await _ended(working)
            if leaving.done():
                raise RequestMalformed("The client has hung up.")
            raise Unavailable(
                "This gateway is being stopped.",
                advice='Ask again, for another gateway to answer. Who has named its "request" keeps its place for now.',
            )
        return working.result()
    finally:
        await _ended(working, leaving, stopping)


async def _ended(*tasks: "asyncio.Future[Any]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _stopping(request: Request) -> None:
    """Until the server begins to stop; it says so to its connections."""
    stopping: asyncio.Event = request.scope["state"].get("stopping") or asyncio.Event()
    await stopping.wait()


def _in_one_piece(schema: Any, parts: dict[str, Any]) -> Any:
    if isinstance(schema, list):
        return [_in_one_piece(one, parts) for one in schema]
    if not isinstance(schema, dict):
        return schema
    part = parts.get(schema.get("$ref", "").rpartition("/")[2], {})
    return {name: _in_one_piece(value, parts) for name, value in {**part, **schema}.items() if name != "$ref"}
