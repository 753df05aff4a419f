"""What is answered to those who ask for locks, as a lease or as an error with its facts. No I/O."""

from gateway.errors import Forbidden, LeaseLost, LockHeld, TokensExhausted
from gateway.fencing.lease import Granted, Wanted
from gateway.store.leases import Asked, Outcome


def granted(wanted: Wanted, asked: Asked) -> Granted:
    """The answer to a wish, or the error that it is."""
    if asked.outcome is Outcome.GRANTED and asked.lease is not None:
        return Granted(asked.lease, asked.fresh)
    resource, lease = wanted.resource, asked.lease
    if asked.outcome is Outcome.EXHAUSTED:
        raise TokensExhausted(
            f"{resource} has used up the tokens of its epoch.",
            advice=f"Ask an administrator to start a new epoch: POST /v1/fences/{resource}/epoch.",
            facts={"resource": resource},
        )
    facts = {
        "resource": resource,
        "mode": lease.mode.value if lease else None,
        "holder": lease.holder if lease else None,
        "token": str(lease.token) if lease else None,
        "expires_in": None if lease is None else round(lease.expires_in, 3),
        "position": asked.place,
        "delayed": asked.delayed_for is not None,
    }
    if asked.outcome is Outcome.UPGRADE:
        message = f"The holder shares {resource}. To wait for it alone would be to wait for itself."
        raise LockHeld(message, facts={**facts, "own": True})
    if lease is not None:
        message = f"{resource} is held by {lease.holder}."
    elif asked.delayed_for is not None:
        message = f"{resource} was lost without being released, and is kept back for {asked.delayed_for:.1f} s."
    else:
        message = f"{resource} is about to go to somebody who has waited for it."
    raise LockHeld(message, facts=facts)


def lost(resource: str) -> LeaseLost:
    return LeaseLost(f"The lease of {resource} has lapsed, was released, or was broken.", facts={"resource": resource})


def forbidden(resource: str) -> Forbidden:
    return Forbidden(
        f"The lease of {resource} is another caller's.",
        advice="Acquire the lock yourself.",
        facts={"resource": resource},
    )
