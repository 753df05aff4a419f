"""The rules of fencing as values: given the fence and what a writer presents, what happens. No I/O, no clock.

A write is decided in SQL, under the lock of its fence row: ``gateway/db/schema/claim.sql``. ``decide`` is the same
rule, for early refusals. A test drives both with the same histories.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from uuid import UUID

from gateway.fencing.sequencer import Sequencer
from gateway.fencing.token import Token


class Enforcement(StrEnum):
    """The effect of a rule on a write it would refuse: refuse it, or let it pass and record it."""

    ENFORCE = "enforce"
    OBSERVE = "observe"


class Equal(StrEnum):
    """Whether a token that equals the fence passes (one holder writes many times) or not (each token writes once)."""

    ACCEPT = "accept"
    STRICT = "strict"


class Cascades(StrEnum):
    """The fate of a write that reaches rows of other resources: refuse it, ask for the tokens of these rows, or let it
    pass.
    """

    REFUSE = "refuse"
    CLAIM = "claim"
    ALLOW = "allow"


class Decision(StrEnum):
    """The answer of the fence to a token."""

    RAISED = "raised"
    HELD = "held"
    STALE = "token-stale"
    DUPLICATE = "token-duplicate"
    USED = "token-used"

    @property
    def passes(self) -> bool:
        return self in (Decision.RAISED, Decision.HELD)


@dataclass(frozen=True, slots=True)
class Fence:
    """The stored row of a resource: the highest token seen, who raised it, and when (the database's clock).

    ``write_id`` is the write that used the token up where the resource is strict; None while only a barrier has.
    """

    resource: str
    token: Token
    holder: str | None
    caller: str | None
    raised_at: datetime
    write_id: UUID | None = None

    @property
    def raised_by(self) -> str:
        """The best name there is for who raised the fence."""
        return self.holder or self.caller or "an unnamed holder"


@dataclass(frozen=True, slots=True)
class Presented:
    """The token that a writer presents, its own name if any, and the id of this one write.

    ``sequencer``: the proof of the token, if it shows one. No fence looks at it, and it alone makes no difference.
    """

    token: Token
    holder: str | None = None
    write_id: UUID | None = None
    sequencer: Sequencer | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens of a request that may write to several resources, and its holder.

    Either one ``token`` for all its writes, or ``pairs``: a token for each resource it names, and none for any other.
    ``sequencers`` prove them, by resource.
    """

    token: Token | None = None
    pairs: Mapping[str, Token] = field(default_factory=dict)
    holder: str | None = None
    write_id: UUID | None = None
    sequencers: Mapping[str, Sequencer] = field(default_factory=dict)

    def of(self, resource: str) -> Token:
        """Return the token for this resource, which must be one of the pairs if there are any."""
        return self.pairs[resource] if self.token is None else self.token

    def presented(self, resource: str) -> Presented:
        """Return the token as presented to the fence of this resource."""
        return Presented(self.of(resource), self.holder, self.write_id, self.sequencers.get(resource))


def decide(fence: Fence | None, presented: Presented, equal: Equal = Equal.ACCEPT) -> Decision:
    """Compare a token with its fence: the heart of the product. ``fence`` is None if it has seen no token yet."""
    if fence is None or presented.token > fence.token:
        return Decision.RAISED
    if presented.token < fence.token:
        return Decision.STALE
    if presented.holder and fence.holder and presented.holder != fence.holder:
        return Decision.DUPLICATE
    if equal is Equal.STRICT and fence.write_id not in (None, presented.write_id):
        return Decision.USED
    return Decision.HELD
