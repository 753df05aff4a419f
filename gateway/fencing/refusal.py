"""From the record of a refused write to the error its sender gets: the same facts on every plane."""

from gateway.errors import FenceRefusal, TokenDuplicate, TokenStale, TokenUsed
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


def refusal(rejection: Rejection) -> FenceRefusal:
    """The error for a refusal that is on record. Its facts: resource, token, fence, raised_by, raised_at, rejection."""
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
