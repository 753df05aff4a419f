"""Refusals: put on record first, answered afterwards."""

from collections.abc import Callable, Sequence

from gateway.db import rejections
from gateway.db.database import Database, Transaction
from gateway.errors import GatewayError, TokenImplausible
from gateway.fencing.policy import Implausible
from gateway.fencing.record import Attempt, Refusal, Rejection
from gateway.fencing.refusal import not_taken, refusal
from gateway.fencing.rules import Decision, Fence
from gateway.observe.events import Observe, Plane, StepReached, WriteRefused
from gateway.observe.stages import staged
from gateway.record.recorder import Recorder


class Audit:
    """Writes the record. ``plane`` is whose writes these are."""

    def __init__(self, database: Database, observe: Observe, plane: Plane) -> None:
        self._recorder = Recorder(database)
        self._observe = observe
        self._plane = plane

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
        return refusal(recorded[0])

    async def implausible(
        self, refused: Sequence[Implausible], attempt: Attempt | Callable[[str], Attempt]
    ) -> GatewayError:
        """Record which tokens were not taken, durably; the error to answer with is about the first.

        Raises ``Unavailable`` where it cannot be recorded: then the refusal must not be answered as one.
        """
        reason = TokenImplausible.code
        recorded = await self._recorded(
            [Refusal(one.resource, reason, _of(attempt, one.resource), one.fence) for one in refused]
        )
        return not_taken(refused[0], recorded[0])

    async def overtaken(self, attempts: Sequence[tuple[str, Attempt]]) -> list[Rejection | None]:
        """Record those of many writes whose fence has gone beyond their token already; None for the others.

        Raises ``Unavailable`` where they cannot be recorded: then none of them may be answered as refused.
        """
        self._observe(StepReached(f"{self._plane}.reject.before"))
        with staged(self._observe, self._plane, "record"):
            recorded = await self._recorder.overtaken(attempts)
        self._observe(StepReached(f"{self._plane}.reject.after"))
        self.tell([one for one in recorded if one is not None])
        return recorded

    async def noted(self, transaction: Transaction, notes: Sequence[Refusal]) -> list[Rejection]:
        """Record, with the transaction, that writes pass which would be refused if their rules were enforced.

        To be told once the transaction is durable.
        """
        return await rejections.record(transaction, notes)

    async def passed(self, note: Refusal) -> None:
        """Record, durably, that a write has passed which would have been refused if its rule were enforced.

        Raises ``Unavailable`` where it cannot be recorded.
        """
        self.tell(await self._recorder.record([note]))

    def tell(self, recorded: Sequence[Rejection]) -> None:
        """Let the sinks know, once the record is durable."""
        for rejection in recorded:
            self._observe(WriteRefused(self._plane, rejection))

    async def _recorded(self, refusals: Sequence[Refusal]) -> list[Rejection]:
        self._observe(StepReached(f"{self._plane}.reject.before"))
        with staged(self._observe, self._plane, "record"):
            recorded = await self._recorder.record(refusals)
        self._observe(StepReached(f"{self._plane}.reject.after"))
        self.tell(recorded)
        return recorded


def _of(attempt: Attempt | Callable[[str], Attempt], resource: str) -> Attempt:
    return attempt(resource) if callable(attempt) else attempt
