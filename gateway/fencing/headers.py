"""What a writer says about its lock in the headers of a request, read the same way on every plane."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from gateway.errors import RequestMalformed, ResourceMalformed, TokenMalformed
from gateway.fencing.resource import canonical
from gateway.fencing.token import Token

TOKEN = b"fencing-token"
TOKEN_ALIAS = b"x-fencing-token"
RESOURCE = b"fencing-resource"
HOLDER = b"fencing-holder"

MAX_PAIRS = 100

# Some proxies and frameworks fold "_" into "-": two spellings of one header must not smuggle in a second token.
_NAMES = {TOKEN: TOKEN, TOKEN_ALIAS: TOKEN, RESOURCE: RESOURCE, HOLDER: HOLDER}
_HOLDER = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]{0,198}[\x21-\x7e])?")


@dataclass(frozen=True, slots=True)
class FencingHeaders:
    """The token, the explicitly named resource and the holder's name; each None where it was not sent.

    ``pairs`` instead of a token and a resource: several resources, each with a token of its own.
    """

    token: Token | None = None
    resource: str | None = None
    holder: str | None = None
    pairs: tuple[tuple[str, Token], ...] = ()


def read(headers: Iterable[tuple[bytes, bytes]], *, pairs: bool = False) -> FencingHeaders:
    """Read the fencing headers out of raw ASGI headers. ``pairs``: whether this request may write several resources.

    Raises ``TokenMalformed``, ``ResourceMalformed`` or ``RequestMalformed`` for values that cannot be read, and for a
    header that stands twice under any of its spellings.
    """
    found: dict[bytes, str] = {}
    for raw_name, value in headers:
        name = _NAMES.get(raw_name.lower().replace(b"_", b"-"))
        if name is None:
            continue
        if name in found:
            raise _twice(name)
        found[name] = value.decode("latin-1")
    token, resource, holder = found.get(TOKEN), found.get(RESOURCE), found.get(HOLDER)
    if holder is not None and not _HOLDER.fullmatch(holder):
        raise RequestMalformed("Fencing-Holder must be 1 to 200 printable ASCII characters.")
    if token is not None and "=" in token:
        return FencingHeaders(holder=holder, pairs=_pairs(token, resource, allowed=pairs))
    return FencingHeaders(
        token=None if token is None else Token.parse(token),
        resource=None if resource is None else canonical(resource),
        holder=holder,
    )


def _pairs(text: str, resource: str | None, *, allowed: bool) -> tuple[tuple[str, Token], ...]:
    """``order/5=34, stock/9=2.12``: canonical names contain neither a comma nor an equals sign."""
    if not allowed:
        raise TokenMalformed(
            "Tokens for several resources can be sent with writes to tables only.",
            advice="Send the token of this one resource alone: digits, optionally 'epoch.value'.",
        )
    if resource is not None:
        raise ResourceMalformed(
            "The pairs in Fencing-Token name their resources themselves.", advice="Leave out Fencing-Resource."
        )
    items = text.split(",", MAX_PAIRS)
    if len(items) > MAX_PAIRS:
        raise TokenMalformed(f"The request carries more than {MAX_PAIRS} fencing tokens.", advice="Split the write.")
    found: dict[str, Token] = {}
    for item in items:
        name, equals, token = item.strip(" \t").partition("=")
        if not equals:
            raise TokenMalformed(
                "Fencing-Token mixes pairs of resource=token with something else.",
                advice="Send one token, or a list such as 'order/5=34, stock/9=2.12'.",
            )
        if canonical(name) in found:
            raise TokenMalformed(f"The request carries two fencing tokens for {name}.", advice="Send one for each.")
        found[name] = Token.parse(token)
    return tuple(found.items())


def _twice(name: bytes) -> Exception:
    if name == TOKEN:
        return TokenMalformed("The request carries two fencing tokens.")
    if name == RESOURCE:
        return ResourceMalformed("The request names two fencing resources.")
    return RequestMalformed("The request names two fencing holders.")
