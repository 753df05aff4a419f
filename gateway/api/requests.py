"""The parts that all routes of the fencing API share: the caller, the body, the path, and the record of a request."""

import re
from collections.abc import Sequence
from typing import Annotated, Any, Final, TypeAlias
from urllib.parse import unquote

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field
from starlette.requests import Request

from gateway.auth.principal import Principal
from gateway.errors import RequestMalformed
from gateway.fencing import resource, token
from gateway.fencing.headers import HOLDER_PATTERN, FencingHeaders
from gateway.fencing.record import Attempt
from gateway.http.head import Head

MAX_PAGE = 1000


def pattern_of(grammar: str) -> dict[str, Any]:
    """Return the form of a text, as schemas say it. Reading the text refuses another form, and says why."""
    return {"pattern": f"^{grammar}$"}


TokenText: TypeAlias = Annotated[
    str, Field(max_length=40, examples=["34"], json_schema_extra=pattern_of(token.GRAMMAR))
]
ShownToken: TypeAlias = Annotated[str, BeforeValidator(str)]
"""A token in a view. It is text, because a JSON number cannot hold the larger ones exactly."""
HOLDER: Final = pattern_of(HOLDER_PATTERN)
"""The form of a holder's name, as schemas say it."""
HolderName: TypeAlias = Annotated[str, Field(max_length=200, **HOLDER)]


def attempt(request: Request, principal: Principal, shown: FencingHeaders) -> Attempt:
    """Return the request as it goes on record if a fence refuses it."""
    state: dict[str, Any] = request.scope["state"]
    return Attempt(
        token=shown.token,
        holder=shown.holder,
        caller=principal.name,
        method=request.method,
        target=shown_path(request.method, request.url.path),
        client=state["client"],
        request_id=state["request_id"],
        plane="api",
        program=Head.of(request.scope).program,
    )


OF_LEASES = ("/v1/lease", "/v1/withdrawal")
"""How the paths of requests to locks begin, in the singular and in the plural."""
_LEASE_ID = re.compile(r"[0-9a-f]{8}-?([0-9a-f]{4}-?){3}[0-9a-f]{12}", re.IGNORECASE)


def shown_path(method: str, path: str) -> str:
    """Return the path of a request as others may see it: without the id of a lease, which is enough to end it."""
    if not path.startswith(OF_LEASES):
        decoded = unquote(path)
        if not decoded.startswith(OF_LEASES):
            return path
        path = decoded
    if method in ("PUT", "DELETE") and (path.count("/") > 3 or path.startswith("/v1/lease/")):
        path = f"{path.rpartition('/')[0]}/{{lease}}"
    return _LEASE_ID.sub("{lease}", path)


STORABLE: Final = pattern_of(r"[^\x00]*")
"""The form of a text that ``storable`` takes, as schemas say it."""


def storable(text: str | None) -> str | None:
    """Return ``text``. Raises ``RequestMalformed`` for a NUL character, which Postgres cannot store."""
    if text is not None and "\0" in text:
        raise RequestMalformed("A NUL character cannot be part of a name.")
    return text


class NamesQuery(BaseModel):
    """A part of a list by name."""

    prefix: Annotated[str, Field(max_length=512, json_schema_extra=STORABLE), AfterValidator(storable)] = ""
    after: Annotated[str, Field(max_length=512, json_schema_extra=STORABLE), AfterValidator(storable)] = ""
    limit: Annotated[int, Field(ge=1, le=MAX_PAGE)] = 100

    def following(self, names: Sequence[str]) -> str | None:
        """Return the name after which the next page begins, given those of this one; None if it is the last one."""
        return names[-1] if len(names) == self.limit else None


NextName: TypeAlias = Annotated[
    str | None, Field(description="Pass as ``after`` for the next page; null on the last one.")
]

OF_NAMES: Final = {"maxLength": resource.MAX_BYTES, **pattern_of(resource.GRAMMAR)}
"""The form of a resource's name, as schemas say it."""
ResourceName: TypeAlias = Annotated[
    str,
    Field(
        description="The name as lists and errors print it, such as `order/5` or `public.txt/c%2Fd`. In a query it is "
        "encoded like any other value. For another spelling the gateway answers 400 and names the one to use.",
        examples=["order/5"],
        json_schema_extra=OF_NAMES,
    ),
]
