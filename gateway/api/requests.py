"""What the routes of the fencing API have in common: who asks, and how a request goes on record."""

from collections.abc import Callable
from typing import Annotated, Any, TypeAlias

from fastapi import Request
from pydantic import Field

from gateway.auth.principal import Principal
from gateway.errors import Forbidden, RequestMalformed
from gateway.fencing.headers import FencingHeaders
from gateway.fencing.record import Attempt

MAX_PAGE = 1000

Authenticate: TypeAlias = Callable[[Request], Principal]

TokenText: TypeAlias = Annotated[str, Field(max_length=40, examples=["34", "2.34"])]
HolderName: TypeAlias = Annotated[str, Field(max_length=200, pattern=r"^[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?$")]


def check_administrator(principal: Principal, advice: str | None = None) -> None:
    """Raise ``Forbidden`` for who may not administer."""
    if not principal.admin:
        raise Forbidden(f"The caller {principal.name} is no administrator.", advice=advice)


def attempt(request: Request, principal: Principal, shown: FencingHeaders) -> Attempt:
    """The request as it goes on record where a fence refuses it."""
    state: dict[str, Any] = request.scope["state"]
    return Attempt(
        token=shown.token,
        holder=shown.holder,
        caller=principal.name,
        method=request.method,
        target=request.url.path,
        client=state["client"],
        request_id=state["request_id"],
        plane="api",
    )


def storable(text: str | None) -> str | None:
    """A NUL character can be sent, but Postgres cannot hold one."""
    if text is not None and "\0" in text:
        raise RequestMalformed("A NUL character cannot be part of a name.")
    return text
