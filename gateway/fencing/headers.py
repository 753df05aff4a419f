"""The headers in which a writer describes its lock, read the same way on every plane."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from gateway.errors import RequestMalformed, ResourceMalformed, SequencerMalformed, TokenMalformed
from gateway.fencing.decision import Fence
from gateway.fencing.resource import canonical
from gateway.fencing.sequencer import MAX_CHARACTERS, Sequencer
from gateway.fencing.token import Token

WOULD_REFUSE = b"fencing-would-refuse"
"""A header of answers: why an enforcing rule would have refused a write that observe mode let pass."""
TOKEN = b"fencing-token"
TOKEN_ALIAS = b"x-fencing-token"
RESOURCE = b"fencing-resource"
HOLDER = b"fencing-holder"
SEQUENCER = b"fencing-sequencer"

MAX_PAIRS = 100

# Some proxies and frameworks fold "_" into "-": two spellings of one header must not smuggle in a second token.
_NAMES = {TOKEN: TOKEN, TOKEN_ALIAS: TOKEN, RESOURCE: RESOURCE, HOLDER: HOLDER, SEQUENCER: SEQUENCER}

HOLDER_PATTERN = "[!-~]([ -~]{0,198}[!-~])?"
"""The grammar of a holder's name, on every plane: 1 to 200 printable ASCII characters, with no space at either end."""

_HOLDER = re.compile(HOLDER_PATTERN)


def is_holder(name: str) -> bool:
    return _HOLDER.fullmatch(name) is not None


@dataclass(frozen=True, slots=True)
class FencingHeaders:
    """The token, the explicitly named resource and the holder's name; each None where it was not sent.

    ``pairs`` instead of a token and a resource: several resources, each with a token of its own. ``sequencers`` prove
    these tokens, each for the resource that it names.
    """

    token: Token | None = None
    resource: str | None = None
    holder: str | None = None
    pairs: tuple[tuple[str, Token], ...] = ()
    sequencers: tuple[Sequencer, ...] = ()


def read(headers: Iterable[tuple[bytes, bytes]], *, pairs: bool = False) -> FencingHeaders:
    """Read the fencing headers from raw ASGI headers. ``pairs``: whether this request may write several resources.

    Raise ``TokenMalformed``, ``ResourceMalformed``, ``SequencerMalformed`` or ``RequestMalformed`` for unreadable or
    contradictory values, and for a header that is repeated under any of its spellings.
    """
    found: dict[bytes, str] = {}
    for raw_name, value in headers:
        name = _NAMES.get(raw_name.lower().replace(b"_", b"-"))
        if name is None:
            continue
        if name in found:
            raise _twice(name)
        found[name] = value.decode("latin-1")
    sequencers = found.pop(SEQUENCER, None)
    said = _said(found, pairs=pairs)
    return said if sequencers is None else add_sequencers(said, _sequencers(sequencers), pairs=pairs)


def add_sequencers(said: FencingHeaders, sequencers: tuple[Sequencer, ...], *, pairs: bool = False) -> FencingHeaders:
    """Combine tokens with the sequencers that prove them. A sequencer names its resource and its token.

    A lone sequencer is for the resource it names, like a token beside Fencing-Resource; several are pairs. Beside a
    token, one is only a proof: a lock may be for resources of other names, whose policies want no proof.

    Raise ``TokenMalformed`` or ``ResourceMalformed`` if they contradict each other, or if several are not allowed.
    """
    tokens = dict(said.pairs)
    for one in sequencers:
        token = tokens.get(one.resource) if tokens else said.token
        if token != one.token and (tokens or token is not None):
            raise TokenMalformed(
                f"The sequencer of {one.resource} is for the token {one.token}, and Fencing-Token says something else.",
                advice="Leave out Fencing-Token: the sequencer carries the token.",
            )
    if len(sequencers) == 1 and not tokens:
        (one,) = sequencers
        if said.token is not None:
            return replace(said, sequencers=sequencers)
        if said.resource not in (None, one.resource):
            raise ResourceMalformed(
                f"The sequencer is for {one.resource}, and Fencing-Resource says something else.",
                advice="Leave out Fencing-Resource: the sequencer names the resource.",
            )
        return replace(said, token=one.token, resource=one.resource, sequencers=sequencers)
    _check_pairs(said.resource, allowed=pairs)
    named = said.pairs or tuple((one.resource, one.token) for one in sequencers)
    return FencingHeaders(holder=said.holder, pairs=named, sequencers=sequencers)


def _said(found: dict[bytes, str], *, pairs: bool) -> FencingHeaders:
    """All but the sequencers."""
    token, resource, holder = found.get(TOKEN), found.get(RESOURCE), found.get(HOLDER)
    if holder is not None and not is_holder(holder):
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
    _check_pairs(resource, allowed=allowed)
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


def _check_pairs(resource: str | None, *, allowed: bool) -> None:
    if not allowed:
        raise TokenMalformed(
            "Tokens for several resources can be sent with writes to tables only.",
            advice="Send the token of this one resource alone: digits, optionally 'epoch.value'.",
        )
    if resource is not None:
        raise ResourceMalformed(
            "The pairs in Fencing-Token name their resources themselves.", advice="Leave out Fencing-Resource."
        )


def _sequencers(text: str) -> tuple[Sequencer, ...]:
    """One, or a list with commas, which no sequencer contains."""
    items = text.split(",", MAX_PAIRS) if len(text) <= MAX_PAIRS * (MAX_CHARACTERS + 2) else []
    if not 1 <= len(items) <= MAX_PAIRS:
        raise SequencerMalformed(f"The request carries more than {MAX_PAIRS} sequencers.", advice="Split the write.")
    found: dict[str, Sequencer] = {}
    for item in items:
        one = Sequencer.parse(item.strip(" \t"))
        if one.resource in found:
            raise SequencerMalformed(f"The request carries two sequencers for {one.resource}.", advice="Send one.")
        found[one.resource] = one
    return tuple(found.values())


def _twice(name: bytes) -> Exception:
    if name == TOKEN:
        return TokenMalformed("The request carries two fencing tokens.")
    if name == RESOURCE:
        return ResourceMalformed("The request names two fencing resources.")
    if name == SEQUENCER:
        return SequencerMalformed("The header Fencing-Sequencer stands twice.", advice="Send one list of them.")
    return RequestMalformed("The request names two fencing holders.")


_MOST_REASONS = 16


def would_refuse(refusals: Iterable[tuple[str, Fence | None]]) -> list[tuple[bytes, bytes]]:
    """Return the header that tells a writer of its refusals in observe mode; an empty list without any.

    Each different reason stands there once, with its fence if there is one. The record has all of them.
    """
    told = dict.fromkeys(reason if fence is None else f"{reason}; fence={fence.token}" for reason, fence in refusals)
    listed = list(told)[:_MOST_REASONS]
    return [(WOULD_REFUSE, ", ".join(listed).encode())] if listed else []
