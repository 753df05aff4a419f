"""Refusals: put on record first, answered afterwards."""

from collections.abc import Callable, Sequence

from gateway.errors import GatewayError, OutcomeUnknown, SqlError, Unavailable
from gateway.fencing.record import Attempt, Rejection
from gateway.fencing.refusal import refusal
from gateway.fencing.rules import Decision, Fence
from gateway.observe.events import Observe, Plane, StepReached, WriteRefused
from gateway.store import rejections
from gateway.store.database import Database, Transaction


class Audit:
    """Writes the record. ``plane`` is whose writes these are."""

    def __init__(self, database: Database, observe: Observe, plane: Plane) -> None:
        self._database = database
        self._observe = observe
        self._plane = plane

    async def refused(
        self, refusals: Sequence[tuple[Decision, Fence]], attempt: Attempt | Callable[[str], Attempt]
    ) -> GatewayError:
        """Record why a write was refused, each fence by itself, durably; the error to answer with.

        ``attempt`` is a function of the resource where each was shown a token of its own. Raises ``Unavailable`` where
        it cannot be recorded: then the refusal must not be answered as one.
        """

        async def work(transaction: Transaction) -> list[Rejection]:
            of = attempt if callable(attempt) else lambda _: attempt
            return [
                await self._record(transaction, decision, fence, of(fence.resource)) for decision, fence in refusals
            ]

        self._observe(StepReached(f"{self._plane}.reject.before"))
        try:
            recorded = await self._database.run(work)
        except SqlError as error:
            raise Unavailable("The write was refused, but the refusal could not be put on record.") from error
        self._observe(StepReached(f"{self._plane}.reject.after"))
        self.tell(recorded)
        return refusal(recorded[0])

    async def overtaken(self, attempts: Sequence[tuple[str, Attempt]]) -> list[Rejection | None]:
        """Record those of many writes whose fence has gone beyond their token already; None for the others.

        Raises ``Unavailable`` where they cannot be recorded: then none of them may be answered as refused.
        """
        self._observe(StepReached(f"{self._plane}.reject.before"))
        try:
            recorded = await rejections.record_overtaken(self._database, attempts)
        except (SqlError, OutcomeUnknown) as error:
            raise Unavailable("The write was refused, but the refusal could not be put on record.") from error
        self._observe(StepReached(f"{self._plane}.reject.after"))
        self.tell([one for one in recorded if one is not None])
        return recorded

    async def noted(
        self, executor: Database | Transaction, resource: str, reason: str, fence: Fence | None, attempt: Attempt
    ) -> Rejection:
        """Record that a write passes which would be refused if its rule were enforced."""
        return await rejections.record(
            executor, resource=resource, reason=reason, enforced=False, attempt=attempt, fence=fence
        )

    def tell(self, recorded: Sequence[Rejection]) -> None:
        """Let the sinks know, once the record is durable."""
        for rejection in recorded:
            self._observe(WriteRefused(self._plane, rejection))

    async def _record(self, transaction: Transaction, decision: Decision, fence: Fence, attempt: Attempt) -> Rejection:
        return await rejections.record(
            transaction, resource=fence.resource, reason=decision, enforced=True, attempt=attempt, fence=fence
        )
