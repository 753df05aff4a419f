"""The titles of kinds of entries, and the advice about a refused write. Pure."""

from collections.abc import Mapping
from datetime import timedelta

from gateway.fencing.decision import Fence
from gateway.fencing.record import Entry, Kind, missing_grant
from gateway.text import span

_TITLES: Mapping[str, str] = {
    Kind.REJECTION: "Write refused",
    Kind.RAISED: "Taken over by a write",
    Kind.BARRIER: "Taken over by a barrier",
    Kind.FENCE_RESTORED: "Lost fence restored",
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
    Kind.ACKNOWLEDGED: "Incident acknowledged",
}

_REASONS = {
    "token-stale": "overtaken token",
    "token-duplicate": "token of two holders",
    "token-used": "token used before",
    "token-implausible": "implausible token",
    "token-required": "no token",
    "token-malformed": "malformed token",
    "token-unclaimed": "unclaimed token",
    "resource-mismatch": "resource mismatch",
    "resource-underivable": "no resource found",
    "resource-malformed": "malformed resource",
    "side-effect-refused": "side effect",
    "denied": "no grant",
}
"""The reasons of refusals, in words. Only an overtaken token makes its writer a zombie."""

_LONG = timedelta(minutes=1)


def reason_words(reason: str | None) -> str:
    """Return a reason in words. One without words is as it is on record."""
    return _REASONS.get(reason or "", reason or "no reason given")


def kind_title(kind: Kind | str) -> str:
    """Return the title of a kind of entry, of newer gateways as well."""
    return _TITLES.get(kind, str(kind))


def kind_titles() -> dict[str, str]:
    return {kind.value: kind_title(kind) for kind in Kind}


def rejection_advice(rejection: Entry, lag: timedelta | None, fence: Fence | None) -> list[str]:
    """Return the steps to take after a refused write, the most urgent first.

    ``lag``: how long its writer had been a zombie. ``fence`` is the present fence of the resource.
    """
    steps = []
    if rejection.enforced:
        steps.append("Nothing was written: there is nothing to undo.")
    else:
        steps.append(
            "The write took effect, because its rule only observes. Look at what it wrote: it may have overwritten the "
            "work of a newer holder."
        )
    if (missing := missing_grant(rejection.details)) is not None:
        steps.append(f"The caller {rejection.caller} lacks the grant {missing.action} for {missing.on}.")
    steps += _BY_REASON.get(rejection.reason or "", ())
    if rejection.reason == "token-stale" and lag is not None and lag >= _LONG:
        steps.append(
            f"It had been overtaken for {span(lag)} without noticing. Look for the cause: a paused virtual machine, "
            "a long garbage collection, a lease that was not renewed, a job that was started twice."
        )
    if fence is not None and rejection.fence is not None and fence.token < rejection.fence.token:
        steps.append("The fence is lower now than it was then. An operator lowered it, or restored an older database.")
    return steps


def next_step(reason: str) -> str:
    """Return the first thing to do about refusals for a reason that has advice."""
    return _BY_REASON[reason][0]


_BY_REASON: dict[str, tuple[str, ...]] = {
    "token-stale": (
        "Stop the writer, or let it acquire its lock again: every write under this token is refused.",
        "If its work is still needed, repeat it under a new token, starting from the state that the newer holder left.",
    ),
    "token-duplicate": (
        "Find out which of the two holders got the token from the lock service, and stop the other one.",
        "A lock service must not issue a number twice: docs/sources.md lists the requirements for tokens.",
    ),
    "token-used": (
        "A second attempt of one write needs an Idempotency-Key; every other write needs a token of its own.",
        'The resource takes one write for each token (equal = "strict").',
    ),
    "token-implausible": (
        "Compare the token with those that the lock service issued. After a reset, an administrator begins an epoch.",
        "The policy of this resource refuses the token.",
    ),
    "token-required": (
        "Let the program write under a lock, and show its token: gateway run does this for any command (docs/run.md).",
    ),
    "denied": (
        "If the caller ought to do this, add a grant and reload. If not, ask its owner why it tries.",
        "No grant covers the request (docs/grants.md). gateway auth can … says what the caller may do.",
    ),
}
