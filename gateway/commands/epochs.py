"""``gateway epoch``: new epochs for fences that the tokens of their issuer do not reach any more."""

from collections.abc import Iterator
from dataclasses import dataclass

from gateway.commands.api_client import Gateway
from gateway.errors import GatewayError
from gateway.fencing.resource import canonical

_PAGE = 1000


@dataclass(frozen=True, slots=True)
class Carried:
    """A fence, and the token it carries."""

    resource: str
    token: str


def start(gateway: Gateway, fence: Carried, reason: str) -> str:
    """Start a new epoch of a fence, if it carries exactly this token; the token it carries then.

    Raises what ``Gateway.call`` raises; ``GatewayError`` too where the fence carries another token.
    """
    path = f"/v1/fences/{canonical(fence.resource)}/epoch"
    document = gateway.call("POST", path, body={"expected": fence.token, "reason": reason})
    try:
        answered, token = str(document["resource"]), str(document["token"])
    except (LookupError, TypeError) as error:
        raise gateway.stranger() from error
    if answered != fence.resource:
        raise GatewayError(
            f"A new epoch of {answered} has begun, not of {fence.resource}.",
            advice="A proxy on the way changes paths. Have it pass them on as they were sent (docs/fencing.md).",
        )
    return token


def under(gateway: Gateway, prefix: str) -> Iterator[Carried]:
    """Every fence whose name starts with ``prefix``, in the order of names. Raises what ``Gateway.call`` raises."""
    after: str | None = ""
    while after is not None:
        parameters = {"prefix": prefix, "after": after, "limit": _PAGE}
        document = gateway.call("GET", "/v1/fences", parameters=parameters)
        try:
            page = [Carried(str(one["resource"]), str(one["token"])) for one in document["fences"]]
            after = document["after"]
        except (LookupError, TypeError) as error:
            raise gateway.stranger() from error
        yield from page
