"""Denials: requests whose caller lacks a grant. They are put on record first, and answered afterwards.

A storm of them gives way to other work: there is one batch at a time, and a pause after it.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from gateway.auth.grants import Missing
from gateway.batching import Lane
from gateway.db import rejections
from gateway.db.database import Database
from gateway.errors import Denied, OutcomeUnknown, SqlError, Unauthenticated, Unavailable
from gateway.fencing.record import ANONYMOUS, Attempt, MissingGrant, Refusal, Rejection
from gateway.observe.events import Observe, Plane, WriteRefused

MOST = 256
# Seconds between two batches: the share of gateway and database that a storm may take.
GIVING_WAY = 0.05

# Bytes of a name on record. No table or resource has a longer one, but a caller may ask for it. The record refuses a
# text that is too long for its indexes, and with it all others of the batch.
_LONGEST = 512


class Denials:
    """Records denials of all planes."""

    def __init__(self, database: Database, observe: Observe) -> None:
        self._database, self._observe = database, observe
        self._last = float("-inf")
        self._lane: Lane[Refusal, Rejection] = Lane(self._record, most=MOST, delay=self._delay)

    async def refuse(self, missing: Missing, attempt: Attempt) -> Denied | Unauthenticated:
        """Put a denial on record, durably, and return the error to answer with.

        That is ``Unauthenticated`` for anonymous callers of tables and the API: with credentials they may do more.
        Raises ``Unavailable`` if it cannot be recorded. Nothing is done for the caller in that case either.
        """
        lacking = MissingGrant(missing.action.value, _bounded(missing.on))
        named = attempt if attempt.rule is None else replace(attempt, rule=_bounded(attempt.rule))
        refusal = Refusal(_bounded(missing.resource), Denied.code, named, None, missing=lacking)
        # The request was denied, whether its sender waits for the answer or not.
        rejection = await asyncio.shield(self._lane.ask(refusal))
        facts = {"action": lacking.action, "on": lacking.on, "rejection": str(rejection.id)}
        if attempt.caller == ANONYMOUS and attempt.plane != "objects":
            message = f"Requests without credentials lack the grant {missing.action} for {lacking.on}."
            return Unauthenticated(message, facts=facts)
        return Denied(f"The caller {attempt.caller} lacks the grant {missing.action} for {lacking.on}.", facts=facts)

    def _delay(self) -> float:
        return self._last + GIVING_WAY - asyncio.get_running_loop().time()

    async def _record(self, batch: Sequence[Refusal]) -> Sequence[Rejection]:
        try:
            recorded = await rejections.record_rejections(self._database, batch)
        except (SqlError, OutcomeUnknown, Unavailable) as error:
            raise Unavailable("The request was denied, but the denial could not be put on record.") from error
        finally:
            self._last = asyncio.get_running_loop().time()
        for rejection in recorded:
            self._observe(WriteRefused(cast(Plane, rejection.attempt.plane), rejection))
        return recorded


def _bounded(name: str) -> str:
    content = name.encode("utf-8", "replace")
    return name if len(content) <= _LONGEST else f"{content[:_LONGEST].decode(errors='ignore')}…"
