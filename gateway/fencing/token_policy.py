"""Token policies: the tokens that may raise a fence at all. No I/O.

A fence keeps the highest token it has seen, so a forged high token would lock out all holders. A policy decides before
the claim and takes no lock. That is sound for answers that never change: fences and issuers' counters only grow. So a
token that is plausible against an old fence, or issued already, stays so. A lease may end, so it is checked with every
write.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from gateway.fencing.decision import Fence
from gateway.fencing.resource import check_pattern, covers
from gateway.fencing.token import Token

MAX_JUMP = 2**48
"""By default, how far a token may be ahead of its fence. No lock has changed hands so often: it would be 300,000
times a second, for thirty years. And there is room for 32,000 such jumps."""

MAX_EPOCHS = 1000
"""How many epochs a token may be ahead of its fence. Each is the loss of a counter."""


class TokenPolicy(StrEnum):
    ANY = "any"
    ISSUED = "issued"
    SIGNED = "signed"
    LIVE = "live"


class Unreachable(StrEnum):
    """The rule while the issuer is unreachable: no write passes, or the order of tokens alone decides."""

    REFUSE = "refuse"
    ORDER = "order"


class Reason(StrEnum):
    JUMP = "jump"
    NOT_ISSUED = "not-issued"
    NO_SEQUENCER = "no-sequencer"
    FORGED = "forged"
    NOT_HELD = "not-held"
    UNCHECKED = "unchecked"
    """Its issuer cannot be asked. Only a rule that observes goes on then."""


@dataclass(frozen=True, slots=True)
class Policy:
    """The policy of one resource. ``lock_delay``: seconds for which its lock stays closed after it was lost."""

    tokens: TokenPolicy = TokenPolicy.ANY
    max_jump: int = MAX_JUMP
    unreachable: Unreachable = Unreachable.REFUSE
    lock_delay: float = 0.0

    @property
    def asks_every_time(self) -> bool:
        """Whether a token that the fence carries already has to be looked at again, with each write."""
        return self.tokens in (TokenPolicy.SIGNED, TokenPolicy.LIVE)

    def asks_about(self, token: Token) -> bool:
        """Return whether this token has to be looked at although the fence carries it."""
        return self.asks_every_time or (self.tokens is TokenPolicy.ISSUED and token.begins_an_epoch)


_DEFAULT = Policy()
_NOTHING = Token(0, 0)


class Policies:
    """The policies of all resources: that of the first pattern which covers it, or else any plausible token."""

    def __init__(self, rules: Sequence[tuple[str, Policy]] = ()) -> None:
        """``rules`` are patterns with their policies. Raises ``ResourceMalformed`` for what is no pattern."""
        for pattern, _ in rules:
            check_pattern(pattern)
        # A name that begins otherwise than its pattern needs no closer look.
        self._rules = tuple((pattern.partition("*")[0], pattern, policy) for pattern, policy in rules)
        self.take_any = all(policy.tokens is TokenPolicy.ANY for _, policy in rules)
        """Whether no policy looks at a token that its fence carries already."""
        # Nearly always nothing has to be looked up, and the hot path asks with each write.
        self._never = not any(policy.asks_every_time for _, policy in rules)

    def of(self, resource: str) -> Policy:
        for beginning, pattern, policy in self._rules:
            if resource.startswith(beginning) and covers(pattern, resource):
                return policy
        return _DEFAULT

    def ask_every_time(self, resource: str) -> bool:
        """Whether a token of this resource has to be looked at although the fence carries it."""
        return not self._never and self.of(resource).asks_every_time

    def ask_about(self, resource: str, token: Token) -> bool:
        """Return whether this token of this resource has to be looked at although the fence carries it."""
        if self._never and not token.begins_an_epoch:
            return False
        return self.of(resource).asks_about(token)

    def lock_delay(self, resource: str) -> float:
        """Seconds for which the lock of the resource stays closed after its holder was lost."""
        return self.of(resource).lock_delay


@dataclass(frozen=True, slots=True)
class TokenFacts:
    """The facts about a token for the decision.

    ``fence``: of its resource, as it was a moment ago; None if there is none. ``authentic``: whether its sequencer is
    signed; None without one, or if the policy does not need it. ``issued``, ``held``: the lease service's answers.
    """

    fence: Token | None = None
    authentic: bool | None = None
    issued: bool = False
    held: bool = False


@dataclass(frozen=True, slots=True)
class ImplausibleToken:
    """A token that its policy refuses, and the reason. ``fence`` is None if there is none, or if it was not needed."""

    resource: str
    token: Token
    policy: TokenPolicy
    reason: Reason
    fence: Fence | None = None


def is_plausible(token: Token, fence: Token | None, max_jump: int) -> bool:
    """Whether a counter may have come so far since ``fence``; None: since it began.

    True for every token that is not higher. In a newer epoch a counter begins anew, so its value is held against 0.
    """
    since = fence or _NOTHING
    if token.epoch > since.epoch:
        return token.epoch - since.epoch <= MAX_EPOCHS and token.value <= max_jump
    return token.epoch < since.epoch or token.value - since.value <= max_jump


def judge(policy: Policy, token: Token, standing: TokenFacts) -> Reason | None:
    """Return why the token is refused, None if it is taken. ``by_order`` is for an unreachable issuer."""
    if _is_settled(policy, token, standing.fence):
        return None
    match policy.tokens:
        case TokenPolicy.ANY:
            return None if is_plausible(token, standing.fence, policy.max_jump) else Reason.JUMP
        case TokenPolicy.SIGNED:
            return None if standing.authentic else _forged(standing, Reason.NO_SEQUENCER)
        case TokenPolicy.ISSUED:
            issued = standing.issued and not token.begins_an_epoch
            return None if issued else _forged(standing, Reason.NOT_ISSUED)
        case TokenPolicy.LIVE:
            return None if standing.held else _forged(standing, Reason.NOT_HELD)


def relax_to_order(policy: Policy) -> Policy:
    """Return the rest of a policy while its issuer is unreachable, if it allows that: the order, and the limit of
    jumps.
    """
    return replace(policy, tokens=TokenPolicy.ANY)


def _is_settled(policy: Policy, token: Token, fence: Token | None) -> bool:
    """Return whether the fence has the answer. The fence refuses an overtaken token, and names its successor. A token
    that it carries was admitted when it came, unless a new epoch has put it there.
    """
    return fence is not None and (token < fence or (token == fence and not policy.asks_about(token)))


def _forged(standing: TokenFacts, otherwise: Reason) -> Reason:
    return Reason.FORGED if standing.authentic is False else otherwise
