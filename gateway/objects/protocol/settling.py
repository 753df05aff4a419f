"""The other half of the object protocol: making certain that a mutation has taken effect or never will. No I/O.

A holder with a higher token settles what older holders have announced before it writes or is acknowledged. The method
depends on what stops the mutation if it is late: see ``gateway.fencing.intent.MutationKind``. A write of the same key
settles an older one by itself, without any of this: see ``mutation.py``. ``runner.py`` knows when a lost request is
dead, by the times in ``gateway.fencing.intent``.
"""

from gateway.fencing.intent import ABSENCE, ForbiddenETags, Intent, MutationKind
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
    Unsettled,
)
from gateway.objects.s3.answers import Found, HeadAnswer, Missing, NotSent, Rejected, Unknown, WriteAnswer


def settle(intent: Intent) -> Steps[Unsettled | None]:
    """Make certain that the mutation has taken effect or never will. Return what is in the way if that fails."""
    match intent.kind:
        case MutationKind.CONDITIONAL:
            return (yield from _settle_conditional(intent))
        case MutationKind.UPLOAD:
            return (yield from _settle_upload(intent))
        case MutationKind.AMENDMENT:
            return (yield from _settle_amendment(intent))
        case MutationKind.LOST:
            return (yield from settle_by_the_clock(intent))


def _settle_conditional(intent: Intent) -> Steps[Unsettled | None]:
    """Forbid the ETag first, durably: our own bump may be late as well, and must find its condition broken.

    A mutation that has landed is over, and a request is delivered once. Then nothing has to be forbidden.
    """
    state: HeadAnswer = yield Look(intent.bucket, intent.key)
    if isinstance(state, Found) and state.write_id == str(intent.write_id) and state.etag != intent.expected:
        yield Abandon(intent, seen=True, spent=(ABSENCE if intent.expected is None else intent.expected,))
        return None
    forbidden: ForbiddenETags = yield Forbid(intent)
    answered = False
    for _ in range(ATTEMPTS):
        state = yield Look(intent.bucket, intent.key)
        if isinstance(state, Unknown):
            continue
        answered = True
        if _etag(state) != intent.expected:
            yield Abandon(intent, seen=isinstance(state, Found) and state.write_id == str(intent.write_id))
            return None
        answer: WriteAnswer = yield _displace(intent, state, forbidden)
        if isinstance(answer, NotSent | Rejected) and _is_dead(intent, state):
            yield Abandon(intent)
            return None
    return Unsettled(intent, intent.dead_at if answered else None)


def _settle_upload(intent: Intent) -> Steps[Unsettled | None]:
    """Abort the upload: a completion that arrives afterwards finds nothing to complete."""
    if (yield GiveUp(intent)):
        yield Abandon(intent)
        return None
    return (yield from settle_by_the_clock(intent))


def _settle_amendment(intent: Intent) -> Steps[Unsettled | None]:
    """Wait for the mutation: nothing can be put in its way. If its sender lives, it is over soon."""
    if (yield AwaitTurn(intent)):
        return None
    return (yield from settle_by_the_clock(intent))


def settle_by_the_clock(intent: Intent) -> Steps[Unsettled | None]:
    """Forget the mutation if the store itself would refuse it by now. Write nothing."""
    state: HeadAnswer = yield Look(intent.bucket, intent.key)
    if isinstance(state, Unknown):
        return Unsettled(intent, None)
    if not _is_dead(intent, state):
        return Unsettled(intent, intent.dead_at)
    yield Abandon(intent)
    return None


def _displace(intent: Intent, state: Found | Missing, forbidden: ForbiddenETags) -> Entomb | Bump:
    """Return the effect that makes the ETag go away that the late request waits for."""
    if intent.expected is None or (isinstance(state, Found) and state.tombstone):
        return Entomb(intent, intent.expected)
    return Bump(intent.resource, intent.bucket, intent.key, intent.expected, forbidden.etags, forbidden.spent)


def _etag(state: Found | Missing) -> str | None:
    return state.etag if isinstance(state, Found) else None


def _is_dead(intent: Intent, state: Found | Missing) -> bool:
    """Return whether the store itself refuses the mutation by now, by its own clock, if it ever arrives."""
    return state.date is not None and state.date > intent.dead_at
