"""From the record of a refused write to the error its sender gets: the same facts on every plane."""

from gateway.errors import FenceRefusal, TokenDuplicate, TokenImplausible, TokenStale, TokenUsed
from gateway.fencing.policy import ImplausibleToken, Reason
from gateway.fencing.record import Rejection
from gateway.fencing.rules import Decision

_KINDS: dict[str, tuple[type[FenceRefusal], str]] = {
    Decision.STALE.value: (TokenStale, "The fencing token {token} of {resource} has been overtaken by {fence}."),
    Decision.DUPLICATE.value: (
        TokenDuplicate,
        "Another holder, {raised_by}, uses the fencing token {token} of {resource}.",
    ),
    Decision.USED.value: (TokenUsed, "The fencing token {token} of {resource} has already written."),
}


def refusal_error(rejection: Rejection) -> FenceRefusal:
    """Return the error for a recorded refusal. Its facts: resource, token, fence, raised_by, raised_at, rejection."""
    kind, sentence = _KINDS[rejection.reason]
    fence = rejection.fence
    assert fence is not None
    facts = {
        "resource": rejection.resource,
        "token": str(rejection.attempt.token),
        "fence": str(fence.token),
        "raised_by": fence.raised_by,
        "raised_at": fence.raised_at.isoformat(),
        "rejection": str(rejection.id),
    }
    return kind(sentence.format_map(facts), facts=facts)


_NOT_TAKEN: dict[Reason, tuple[str, str]] = {
    Reason.JUMP: (
        "is farther from {fence} than any counter can have come",
        (
            "Send the token your lock service gave you. If it really counts so far, ask the operator to raise "
            "max_jump; if its counter was reset, to start a new epoch: POST /v1/fences/{resource}/epoch."
        ),
    ),
    Reason.NOT_ISSUED: (
        "was never issued by the lease service",
        "Acquire the lock with POST /v1/leases/{resource}, and write with the token it gives you.",
    ),
    Reason.NO_SEQUENCER: (
        "comes without its proof",
        "Send the sequencer that the lease service gave you with the token, in the header Fencing-Sequencer.",
    ),
    Reason.FORGED: (
        "comes with a sequencer that nobody here has signed",
        (
            "Send the sequencer exactly as the lease service gave it. If you do, ask the operator whether all gateways "
            "have the same signing_keys."
        ),
    ),
    Reason.NOT_HELD: (
        "belongs to no lease that lasts",
        "Stop writing: the lease has lapsed, or was released or broken. Acquire the lock again to get a newer token.",
    ),
}


def implausible_error(implausible: ImplausibleToken, rejection: Rejection) -> TokenImplausible:
    """Return the error for a recorded token that its policy refuses. Its facts: resource, token, fence (None if it was
    not needed), policy, reason, rejection.
    """
    sentence, advice = _NOT_TAKEN[implausible.reason]
    fence = str(implausible.fence.token) if implausible.fence else None
    said = sentence.format(fence=f"its fence {fence}" if fence else "0")
    facts = {
        "resource": implausible.resource,
        "token": str(implausible.token),
        "fence": fence,
        "policy": implausible.policy.value,
        "reason": implausible.reason.value,
        "rejection": str(rejection.id),
    }
    return TokenImplausible(
        f"The fencing token {implausible.token} of {implausible.resource} {said}.",
        advice=advice.format(resource=implausible.resource),
        facts=facts,
    )
