"""Answers that are given again under their key. They write nothing, but whoever is told of a write may rely on it.

So a replay raises the fences of what was written to the tokens that are shown now, and settles what older holders have
under way, as the write itself would have done. A token that is older than its fence raises nothing and is not refused:
what its holder is told has been done. Only that nothing older than itself is under way, it too has to wait for.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial

from gateway.admission import Admission
from gateway.background import rounds, working
from gateway.db import idempotency
from gateway.db.database import Database
from gateway.db.idempotency import Kept, Key
from gateway.errors import IdempotencyMismatch, Unavailable
from gateway.fencing.rules import Equal, Tokens
from gateway.observe.events import Observe
from gateway.tables.dialect.request import REPLAYED
from gateway.tables.dialect.response import Response
from gateway.tables.execute.fenced_write import Claims, Run

SETTLE_ATTEMPTS = 3

Settled = Callable[[Claims, Sequence[str], str], Awaitable[None]]
"""Settles what older holders have under way on some of the resources that are claimed. Raises where that cannot be."""


class Replaying:
    """Gives answers again. Shown are the tokens of each write of the request, in their order; None: none was."""

    def __init__(self, database: Database, admission: Admission, settled: Settled) -> None:
        self._database, self._admission, self._settled = database, admission, settled

    async def answer(self, key: Key, shown: Sequence[Tokens | None], caller: str) -> Response | None:
        """The answer kept under the key; None: there is none yet.

        Raises ``IdempotencyMismatch``, and ``Unavailable`` where the fences cannot be raised.
        """
        kept = await idempotency.kept(self._database, key)
        return None if kept is None else await self.again(key, kept, shown, caller)

    async def again(self, key: Key, kept: Kept, shown: Sequence[Tokens | None], caller: str) -> Response:
        """This answer, once the fences are raised. Raises the same."""
        if kept.fingerprint != key.fingerprint:
            raise IdempotencyMismatch(f"The Idempotency-Key {key.text!r} came with another request before.")
        for number, tokens in enumerate(shown):
            claimed = [resource for resource, by in kept.claimed if by == number]
            await self._raise(_claims(claimed, tokens), caller)
        return Response(kept.status, [*kept.headers, REPLAYED], kept.body)

    async def _raise(self, claims: Claims, caller: str) -> None:
        implausible = await self._admission.admit(claims.shown())
        claims = claims.without({one.resource for one in implausible})
        if not claims.runs:
            return
        for _ in range(SETTLE_ATTEMPTS):
            pending = await self._database.run(lambda transaction: claims.raise_fences(transaction, caller))
            if not pending:
                return
            # A newer holder may have come meanwhile: then it is that one's to settle, and takes its time.
            await self._settled(claims, pending, caller)
        raise Unavailable("Writes of an older holder are still being settled on this resource.")


def _claims(resources: Sequence[str], tokens: Tokens | None) -> Claims:
    """Of all that a write has claimed, what a token is shown for now."""
    if tokens is None:
        return Claims((), frozenset())
    named = tuple(sorted(one for one in resources if tokens.token is not None or one in tokens.pairs))
    return Claims((Run(named, tokens, Equal.ACCEPT),) if named else (), frozenset())


INTERVAL = 60.0
"""Seconds between two rounds."""

_BATCH = 500
_MOST_BATCHES = 100


def forgetting(
    database: Database, retention: float, observe: Observe, interval: float = INTERVAL
) -> AbstractAsyncContextManager[None]:
    """As long as this lasts. ``retention`` is in seconds, of the database's clock. What goes wrong is an event."""
    return working(rounds("answers under idempotency keys", partial(forget, database, retention), observe, interval))


async def forget(database: Database, retention: float) -> int:
    """One round: in small batches, so that nobody waits for a long transaction; how many are gone."""
    gone = 0
    for _ in range(_MOST_BATCHES):
        batch = await idempotency.forget(database, retention, _BATCH)
        gone += batch
        if batch < _BATCH:
            break
    return gone
