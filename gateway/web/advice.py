"""What kinds of entries are called, and what to do about a refused write. Pure."""

from datetime import timedelta

from gateway.fencing.record import Entry, Kind
from gateway.fencing.rules import Fence
from gateway.text import span

_TITLES = {
    Kind.REJECTION: "Write refused",
    Kind.RAISED: "Taken over by a write",
    Kind.BARRIER: "Taken over by a barrier",
    Kind.EPOCH: "New epoch",
    Kind.SETTLED: "Late write settled",
    Kind.LEASE_GRANTED: "Lock acquired",
    Kind.LEASE_RELEASED: "Lock released",
    Kind.LEASE_EXPIRED: "Lease expired",
    Kind.LEASE_BROKEN: "Lock broken",
    Kind.GUARD_REFUSED: "Refused by the guard",
    Kind.BYPASS: "Changed past the gateway",
    Kind.ADMINISTRATION: "Administration",
    Kind.RETENTION: "Old days dropped",
    Kind.ALARM_RAISED: "Alarm raised",
    Kind.ALARM_CLEARED: "Alarm cleared",
}

_LONG = timedelta(minutes=1)


def kind_title(kind: Kind) -> str:
    """What a kind of entry is called."""
    return _TITLES.get(kind, kind.value)


def kind_titles() -> dict[str, str]:
    """All kinds with what they are called."""
    return {kind.value: kind_title(kind) for kind in Kind}


def rejection_advice(rejection: Entry, lag: timedelta | None, fence: Fence | None) -> list[str]:
    """What to do about a refused write, the most urgent first.

    ``lag``: for how long its writer had been a zombie; ``fence`` is the one the resource has now.
    """
    said = []
    if rejection.enforced:
        said.append("Nothing was written: there is nothing to undo.")
    else:
        said.append(
            "The write took effect, because its rule only observes. Look at what it wrote: it may have overwritten the "
            "work of a newer holder."
        )
    said += _BY_REASON.get(rejection.reason or "", ())
    if rejection.reason == "token-stale" and lag is not None and lag >= _LONG:
        said.append(
            f"It had been overtaken for {span(lag)}, and had not noticed. Look for what stopped it: a paused "
            "virtual machine, a long collection of garbage, a lease that is not renewed, a job started twice."
        )
    if fence is not None and rejection.fence is not None and fence.token < rejection.fence.token:
        said.append(
            "The fence is lower now than it was then: somebody has set it back, or an older database was restored."
        )
    return said


_BY_REASON: dict[str, tuple[str, ...]] = {
    "token-stale": (
        "Stop the writer, or let it acquire its lock again: all that it writes under this token is refused.",
        "If its work is still wanted, it must be done again under a new token, from what the newer holder has left.",
    ),
    "token-duplicate": (
        "Two holders use one token. Find out which of them the lock service gave it to, and stop the other one.",
        "No lock service may give one number out twice: docs/sources.md says what its tokens must be.",
    ),
    "token-used": (
        'The resource takes one write for each token (equal = "strict").',
        "A second attempt of one write needs an Idempotency-Key; every other write needs a token of its own.",
    ),
    "token-implausible": (
        "The policy of this resource does not take the token. Compare it with what the lock service has given out.",
        "If the counter of the lock service was reset, an administrator starts a new epoch.",
    ),
}
