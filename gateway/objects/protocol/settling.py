"""The other half of the object protocol: making certain that a mutation has taken effect or never will. No I/O.

A holder with a higher token settles what older holders have announced before it writes or is acknowledged. The method
depends on what stops the mutation if it is late: see ``gateway.fencing.intent.MutationKind``.
"""

from typing import cast

from gateway.fencing.intent import ForbiddenETags, Intent, MutationKind
from gateway.objects.protocol.effects import (
    ATTEMPTS,
    Abandon,
    AwaitTurn,
    Bump,
    Entomb,
    Forbid,
    GiveUp,
    Look,
    Steps,
)
from gateway.objects.s3.answers import Found, HeadAnswer, Missing, NotSent, Rejected, Unknown, WriteAnswer


def settle(intent: Intent) -> Steps[bool]:
    """Make certain that the mutation has taken effect or never will. Return False where the store does not help."""
    match intent.kind:
        case MutationKind.CONDITIONAL:
            return (yield from _settle_conditional(intent))
        case MutationKind.UPLOAD:
            return (yield from _settle_upload(intent))
        case MutationKind.AMENDMENT:
            return (yield from _settle_amendment(intent))


def _settle_conditional(intent: Intent) -> Steps[bool]:
    """Forbid the ETag first, durably: our own bump may be late as well, and must find its condition broken."""
    forbidden = cast(ForbiddenETags, (yield Forbid(intent)))
    for _ in range(ATTEMPTS):
        state = cast(HeadAnswer, (yield Look(intent.bucket, intent.key)))
        if isinstance(state, Unknown):
            continue
        if _etag(state) != intent.expected:
            yield Abandon(intent, seen=isinstance(state, Found) and state.write_id == str(intent.write_id))
            return True
        answer = cast(WriteAnswer, (yield _displace(intent, forbidden)))
        if isinstance(answer, NotSent | Rejected) and _is_dead(intent, state):
            yield Abandon(intent)
            return True
    return False


def _settle_upload(intent: Intent) -> Steps[bool]:
    """Abort the upload: a completion that arrives afterwards finds nothing to complete."""
    if (yield GiveUp(intent)):
        yield Abandon(intent)
        return True
    return (yield from settle_by_the_clock(intent))


def _settle_amendment(intent: Intent) -> Steps[bool]:
    """Wait for the mutation: nothing can be put in its way. If its sender lives, it is over soon."""
    if (yield AwaitTurn(intent)):
        return True
    return (yield from settle_by_the_clock(intent))


def settle_by_the_clock(intent: Intent) -> Steps[bool]:
    """Forget the mutation if the store itself would refuse it by now. Writes nothing; False where it is not time."""
    state = cast(HeadAnswer, (yield Look(intent.bucket, intent.key)))
    if isinstance(state, Unknown) or not _is_dead(intent, state):
        return False
    yield Abandon(intent)
    return True


def _displace(intent: Intent, forbidden: ForbiddenETags) -> Entomb | Bump:
    """Return the effect that makes the ETag go away that the late request waits for."""
    if intent.expected is None:
        return Entomb(intent, None, forbidden.signed_at)
    return Bump(intent.bucket, intent.key, intent.expected, forbidden.etags, forbidden.signed_at, forbidden.spent)


def _etag(state: Found | Missing) -> str | None:
    return state.etag if isinstance(state, Found) else None


def _is_dead(intent: Intent, state: Found | Missing) -> bool:
    """Return whether the store itself refuses the mutation by now, if it ever arrives. Judge by the store's clock
    alone.
    """
    return state.date is not None and state.date - intent.signed_at > intent.dead_after
