"""Storms of zombies: refusals of overtaken writes are recorded in batches, and give way to writes of living holders.

A write that its fence has overtaken stays overtaken, so its sender loses nothing by a short wait.
"""

import asyncio
from collections.abc import Callable, Sequence

from gateway.batching import Lane
from gateway.fencing.record import Attempt, Rejection
from gateway.record.audit import Audit

MOST = 256
# Seconds between two batches while holders write: the share of gateway and database that a storm may take.
GIVING_WAY = 0.05


class Storms:
    """Records refusals, one batch at a time."""

    def __init__(self, audit: Audit, busy: Callable[[], bool]) -> None:
        """``busy`` returns whether other writes are under way."""
        self._audit, self._busy = audit, busy
        self._last = float("-inf")
        self._lane: Lane[tuple[str, Attempt], Rejection | None] = Lane(
            self._record, most=MOST, delay=self._delay, concerns_all=lambda _: True
        )

    async def record(self, resource: str, attempt: Attempt) -> Rejection | None:
        """Record a write whose fence carries a higher token; return None if the fence does not.

        Raise ``Unavailable`` if the refusal cannot be recorded.
        """
        # The write was refused, whether its sender waits for the answer or not.
        return await asyncio.shield(self._lane.ask((resource, attempt)))

    def _delay(self) -> float:
        return self._last + GIVING_WAY - asyncio.get_running_loop().time() if self._busy() else 0.0

    async def _record(self, batch: Sequence[tuple[str, Attempt]]) -> Sequence[Rejection | None]:
        try:
            return await self._audit.overtaken(batch)
        finally:
            self._last = asyncio.get_running_loop().time()
