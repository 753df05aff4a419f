"""Refusals: put on record first, answered afterwards."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from typing import cast

from gateway.auth.grants import Missing
from gateway.batching import Lane, shielded
from gateway.budget import NetworkRates, Rate, network
from gateway.db import record
from gateway.db.database import Database, Transaction
from gateway.db.pool import wants_retry
from gateway.errors import (
    Denied,
    GatewayError,
    OutcomeUnknown,
    Overloaded,
    SqlError,
    TokenImplausible,
    Unauthenticated,
    Unavailable,
)
from gateway.fencing.decision import Decision, Fence
from gateway.fencing.record import (
    ANONYMOUS,
    Attempt,
    MissingGrant,
    Refusal,
    Rejection,
    implausible_error,
    refusal_error,
)
from gateway.fencing.token_policy import ImplausibleToken
from gateway.observe.events import EntriesLeftOut, Observe, Plane, RefusalCounted, StepReached, WriteRefused
from gateway.observe.stages import TRACE_IDS, staged

MOST = 512
"""Refusals of one batch, unless a single write has more."""
MOST_TOGETHER = 256
GIVING_WAY = 0.05
"""Refusals of one batch of a storm, and the seconds between two: the share of gateway and database that it may take."""
BURST = 1000
A_SECOND = 1.0
"""Refused writes of the anonymous callers of one network that a plane puts on record: at once, and a second.

As many again that pass, because their rules observe.
"""
DENIALS_AT_ONCE = 100
"""Denials of anonymous callers that a process puts on record at once, and then ``A_SECOND``."""

# Bytes of a name on record. No table or resource has a longer one, but a caller may ask for it. The record refuses a
# text that is too long for its indexes, and with it all others of the batch.
_LONGEST = 512
_TOLD_EVERY = 60.0  # seconds


class Recorder:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._lane: Lane[Sequence[Refusal], list[Rejection]] = Lane(
            self._together, self._alone, most=MOST, room=MOST, concerns_all=_concerns_all
        )

    async def record(self, refusals: Sequence[Refusal]) -> list[Rejection]:
        """Put all of these on record; durable when this returns.

        Raise ``Unavailable`` if they cannot be recorded: then the writes must not be answered as refused.
        """
        try:
            # The write was refused, whether its sender waits for the answer or not.
            return await shielded(self._lane.ask(refusals, size=len(refusals)))
        except GatewayError as error:
            raise _not_recorded() from error

    async def overtaken(self, attempts: Sequence[tuple[str, Attempt]]) -> list[Rejection | None]:
        """Record many writes in a batch of their own; None for each whose fence does not carry a higher token.

        The answers are in the order of ``attempts``. Raise what ``record`` raises.
        """
        try:
            return await record.record_overtaken(self._database, attempts, TRACE_IDS)
        except (SqlError, OutcomeUnknown, Unavailable) as error:
            raise _not_recorded() from error

    async def _together(self, batch: Sequence[Sequence[Refusal]]) -> list[list[Rejection]]:
        recorded = iter(
            await record.record_rejections(self._database, [one for refusals in batch for one in refusals], TRACE_IDS)
        )
        return [list(islice(recorded, len(refusals))) for refusals in batch]

    async def _alone(self, refusals: Sequence[Refusal]) -> list[Rejection]:
        return await record.record_rejections(self._database, refusals, TRACE_IDS)


def _concerns_all(error: Exception) -> bool:
    # One member may be at fault for an SqlError or a deadlock. A database that is away is away for all.
    return not isinstance(error, SqlError) and not (isinstance(error, GatewayError) and wants_retry(error))


def _not_recorded() -> Unavailable:
    return Unavailable("The write was refused, but the refusal could not be put on record.")


class Audit:
    """Writes the record. ``plane`` is whose writes these are."""

    def __init__(self, database: Database, observe: Observe, plane: Plane) -> None:
        self._recorder = Recorder(database)
        self._observe = observe
        self._plane = plane
        self._strangers = NetworkRates(BURST, A_SECOND)
        self._noting = NetworkRates(BURST, A_SECOND)
        self._left_out = 0

    async def refused(
        self, refusals: Sequence[tuple[Decision, Fence]], attempt: Attempt | Callable[[str], Attempt]
    ) -> GatewayError:
        """Record why a write was refused, each fence by itself, durably; the error to answer with.

        ``attempt`` is a function of the resource where each was shown a token of its own. Raises ``Unavailable`` where
        it cannot be recorded: then the refusal must not be answered as one.
        """
        recorded = await self._recorded(
            [Refusal(fence.resource, decision, _of(attempt, fence.resource), fence) for decision, fence in refusals]
        )
        return refusal_error(recorded[0])

    async def implausible(
        self, refused: Sequence[ImplausibleToken], attempt: Attempt | Callable[[str], Attempt]
    ) -> GatewayError:
        """Record which tokens were not taken, durably; the error to answer with is about the first.

        Raises ``Unavailable`` where it cannot be recorded: then the refusal must not be answered as one.
        """
        reason = TokenImplausible.code
        recorded = await self._recorded(
            [Refusal(one.resource, reason, _of(attempt, one.resource), one.fence) for one in refused]
        )
        return implausible_error(refused[0], recorded[0])

    async def overtaken(self, attempts: Sequence[tuple[str, Attempt]]) -> list[Rejection | None]:
        """Record those of many writes whose fence has gone beyond their token already; None for the others.

        None as well for a stranger that would fill the record: its transaction refuses the write. Raises
        ``Unavailable`` where they cannot be recorded: then none of them may be answered as refused.
        """
        within = [place for place, (_, attempt) in enumerate(attempts) if self._is_within_rate(attempt)]
        recorded: list[Rejection | None] = [None] * len(attempts)
        self._observe(StepReached(f"{self._plane}.reject.before"))
        with staged(self._observe, self._plane, "record"):
            found = await self._recorder.overtaken([attempts[place] for place in within]) if within else []
        for place, one in zip(within, found, strict=True):
            recorded[place] = one
        self._observe(StepReached(f"{self._plane}.reject.after"))
        self.tell([one for one in recorded if one is not None])
        return recorded

    async def noted(self, transaction: Transaction, notes: Sequence[Refusal]) -> Sequence[Rejection | Refusal]:
        """Record, with the transaction, that a write passes which would be refused if its rules were enforced.

        To be told once the transaction is durable. A stranger that would fill the record has no entries, and its notes
        come back as they are.
        """
        if not self._is_within_rate(notes[0].attempt, len(notes), self._noting):
            return notes
        return await record.record_rejections(transaction, notes, TRACE_IDS)

    async def passed(self, notes: Sequence[Refusal]) -> None:
        """Record, durably, why a write that has passed would have been refused if its rule were enforced.

        A stranger that would fill the record has no entry. Raises ``Unavailable`` where it cannot be recorded.
        """
        if not self._is_within_rate(notes[0].attempt, len(notes), self._noting):
            self.tell(notes)
            return
        self.tell(await self._recorder.record(notes))

    def tell(self, recorded: Sequence[Rejection | Refusal]) -> None:
        """Let the sinks know, once the record is durable. A ``Refusal`` has no entry: it passed, and is counted."""
        for one in recorded:
            if isinstance(one, Rejection):
                self._observe(WriteRefused(self._plane, one))
            else:
                self._observe(RefusalCounted(self._plane, one))
                self._leave_out()

    def _leave_out(self) -> None:
        if not self._left_out:
            asyncio.get_running_loop().call_later(_TOLD_EVERY, self._tell_left_out)
        self._left_out += 1

    def _tell_left_out(self) -> None:
        count, self._left_out = self._left_out, 0
        self._observe(EntriesLeftOut(self._plane, count))

    def _is_within_rate(self, attempt: Attempt, entries: int = 1, rates: NetworkRates | None = None) -> bool:
        """Return whether so many entries of a write may go on record: always, unless strangers would fill it."""
        now = asyncio.get_running_loop().time()
        return attempt.caller != ANONYMOUS or (rates or self._strangers).take(attempt.client, entries, now)

    async def _recorded(self, refusals: Sequence[Refusal]) -> list[Rejection]:
        attempt = refusals[0].attempt
        if not self._is_within_rate(attempt, len(refusals)):
            raise Overloaded(  # it is not answered as refused, because it is not on record
                f"Too many writes of anonymous callers at {network(attempt.client)} were refused lately.",
                advice="Nothing was written. Send credentials with the request, or send it again later.",
            )
        self._observe(StepReached(f"{self._plane}.reject.before"))
        with staged(self._observe, self._plane, "record"):
            recorded = await self._recorder.record(refusals)
        self._observe(StepReached(f"{self._plane}.reject.after"))
        self.tell(recorded)
        return recorded


def _of(attempt: Attempt | Callable[[str], Attempt], resource: str) -> Attempt:
    return attempt(resource) if callable(attempt) else attempt


class Denials:
    """Records denials of all planes: requests whose caller lacks a grant.

    A storm of them gives way to other work: there is one batch at a time, and a pause after it.

    A stranger needs no credentials to be denied. Denials of anonymous callers have a rate, so that none can fill the
    disk. Beyond it they are counted, and the next entry of such a denial has the count. Stale tokens are no denials: no
    write is answered as refused without an entry.
    """

    what = "counts of denials"

    def __init__(self, database: Database, observe: Observe) -> None:
        self._database, self._observe = database, observe
        self._lane: Lane[Refusal, Rejection | None] = Lane(self._record, most=MOST_TOGETHER, pause=lambda: GIVING_WAY)
        self._rate = Rate(DENIALS_AT_ONCE, A_SECOND)
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
        rejection = await shielded(self._lane.ask(refusal))
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
