"""The terms of this gateway's leases: how long one lasts, how long a request waits, how long a lost lock stays closed.

Pure. The database carries them out (``db/schema/leases.sql``), by its own clock.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf

from gateway.errors import Forbidden, RequestMalformed
from gateway.fencing.lease import LockRequest

USUAL = 30.0
"""Seconds that a lease lasts without renewal where its holder does not say."""


@dataclass(frozen=True, slots=True)
class LeaseTerms:
    """The longest lease and the longest wait of one request, in seconds.

    ``lock_delay`` returns the seconds for which a resource stays closed after its lease was lost without a release.
    ``issuer`` is the origin of the gateway that issues the tokens; None if this one does.
    """

    max_ttl: float = inf
    max_wait: float = inf
    lock_delay: Callable[[str], float] | None = None
    issuer: str | None = None

    def agreed(self, wish: LockRequest) -> LockRequest:
        """Return a wish with the delay of its lock. Raises ``Forbidden`` and ``RequestMalformed``."""
        if self.issuer is not None:
            # Two issuers of tokens for one resource would each overtake the other's holders.
            raise Forbidden(f"This gateway issues no tokens. {self.issuer} does.", advice="Acquire the lock there.")
        if wish.wait > self.max_wait:
            raise RequestMalformed(
                f"body.wait: one request waits at most {self.max_wait:g} seconds here.",
                advice='Wait for less, then repeat with the same "request": it keeps its place in the queue.',
            )
        self.check_ttl(wish.ttl)
        return wish if self.lock_delay is None else replace(wish, delay=self.lock_delay(wish.resource))

    def check_ttl(self, wanted: float | None) -> None:
        """Raise ``RequestMalformed`` for a lease that would last too long. None: as long as last time."""
        if wanted is not None and wanted > self.max_ttl:
            raise RequestMalformed(
                f"body.ttl: a lease lasts at most {self.max_ttl:g} seconds here.",
                advice="Ask for a shorter lease, and renew it while you need it.",
            )
