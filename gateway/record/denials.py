"""Denials: requests whose caller lacks a grant. They are put on record first, and answered afterwards.

A storm of them gives way to other work: there is one batch at a time, and a pause after it.

A stranger needs no credentials to be denied. Denials of anonymous callers have a rate, so that none can fill the disk.
Beyond it they are counted, and the next entry of such a denial has the count. Stale tokens are no denials: no write is
answered as refused without an entry.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from gateway.auth.grants import Missing
from gateway.batching import Lane
from gateway.budget import Rate
from gateway.db import record
from gateway.db.database import Database
from gateway.errors import Denied, OutcomeUnknown, SqlError, Unauthenticated, Unavailable
from gateway.fencing.record import ANONYMOUS, Attempt, MissingGrant, Refusal, Rejection
from gateway.observe.events import Observe, Plane, RefusalCounted, WriteRefused
from gateway.observe.stages import TRACE_IDS

BURST = 100
A_SECOND = 1.0
"""Denials of anonymous callers that a process puts on record: so many at once, and so many a second."""

MOST = 256
# Seconds between two batches: the share of gateway and database that a storm may take.
GIVING_WAY = 0.05

# Bytes of a name on record. No table or resource has a longer one, but a caller may ask for it. The record refuses a
# text that is too long for its indexes, and with it all others of the batch.
_LONGEST = 512


class Denials:
    """Records denials of all planes."""

    what = "counts of denials"

    def __init__(self, database: Database, observe: Observe) -> None:
        self._database, self._observe = database, observe
        self._last = float("-inf")
        self._lane: Lane[Refusal, Rejection | None] = Lane(self._record, most=MOST, delay=self._delay)
        self._rate = Rate(BURST, A_SECOND)
        # Denials without an entry since the last entry of an anonymous caller, and the newest of them.
        self._counted = 0
        self._newest: Refusal | None = None

    async def refuse(self, missing: Missing, attempt: Attempt) -> Denied | Unauthenticated:
        """Put a denial on record, durably, and return the error to answer with. Beyond their budget, count it.

        That is ``Unauthenticated`` for anonymous callers of tables and the API: with credentials they may do more.
        Raises ``Unavailable`` if it cannot be recorded. Nothing is done for the caller in that case either.
        """
        lacking = MissingGrant(missing.action.value, _bounded(missing.on))
        named = attempt if attempt.rule is None else replace(attempt, rule=_bounded(attempt.rule))
        refusal = Refusal(_bounded(missing.resource), Denied.code, named, None, missing=lacking)
        # The request was denied, whether its sender waits for the answer or not.
        rejection = await asyncio.shield(self._lane.ask(refusal))
        facts = {"action": lacking.action, "on": lacking.on}
        if rejection is not None:
            facts["rejection"] = str(rejection.id)
        if attempt.caller == ANONYMOUS and attempt.plane != "objects":
            message = f"Requests without credentials lack the grant {missing.action} for {lacking.on}."
            return Unauthenticated(message, facts=facts)
        message = f"The caller {attempt.caller} lacks the grant {missing.action} for {lacking.on}."
        # Strangers learn nothing of the patterns that the configuration has for them.
        told = missing.nearest if attempt.caller != ANONYMOUS else ""
        return Denied(f"{message} {told}".rstrip(), facts=facts)

    def _delay(self) -> float:
        return self._last + GIVING_WAY - asyncio.get_running_loop().time()

    async def flush(self, database: Database) -> None:
        """Put the count of denials without an entry on record, with the newest of them. Raise ``GatewayError``."""
        counted, newest = self._counted, self._newest
        if not counted or newest is None:
            return
        self._counted = 0
        try:
            await record.record_rejections(database, [replace(newest, also_denied=counted - 1)], {})
        except BaseException:
            self._counted += counted
            raise

    async def _record(self, batch: Sequence[Refusal]) -> Sequence[Rejection | None]:
        anonymous = [place for place, one in enumerate(batch) if one.attempt.caller == ANONYMOUS]
        within = self._rate.take(len(anonymous), asyncio.get_running_loop().time()) if anonymous else 0
        beyond = set(anonymous[within:])
        counted = 0
        if within:
            counted, self._counted = self._counted, 0
        chosen = {place: one for place, one in enumerate(batch) if place not in beyond}
        if counted:
            chosen[anonymous[0]] = replace(chosen[anonymous[0]], also_denied=counted)
        try:
            recorded = dict(zip(chosen, await self._recorded(list(chosen.values())), strict=True))
        except Unavailable:
            self._counted += counted
            raise
        finally:
            self._last = asyncio.get_running_loop().time()
        for place in beyond:
            self._count(batch[place])
        return [recorded.get(place) for place in range(len(batch))]

    async def _recorded(self, refusals: Sequence[Refusal]) -> list[Rejection]:
        if not refusals:
            return []
        try:
            recorded = await record.record_rejections(self._database, refusals, TRACE_IDS)
        except (SqlError, OutcomeUnknown, Unavailable) as error:
            raise Unavailable("The request was denied, but the denial could not be put on record.") from error
        for rejection in recorded:
            self._observe(WriteRefused(cast(Plane, rejection.attempt.plane), rejection))
        return recorded

    def _count(self, refusal: Refusal) -> None:
        self._counted += 1
        self._newest = refusal
        self._observe(RefusalCounted(cast(Plane, refusal.attempt.plane), refusal))


def _bounded(name: str) -> str:
    content = name.encode("utf-8", "replace")
    return name if len(content) <= _LONGEST else f"{content[:_LONGEST].decode(errors='ignore')}…"
