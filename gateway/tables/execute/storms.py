"""Zombies that hammer: their writes are put on record many at a time, and give way to those of living holders.

A write that its fence has overtaken stays overtaken: whoever sent it loses nothing by waiting a moment for the answer.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import Context
from copy import copy
from dataclasses import dataclass

from gateway.errors import GatewayError
from gateway.fencing.record import Attempt, Rejection
from gateway.record.audit import Audit

MOST = 256
# Seconds between two trips while somebody writes: what a storm may take of the gateway, and of the database.
GIVING_WAY = 0.05


@dataclass(slots=True)
class _Member:
    resource: str
    attempt: Attempt
    answer: "asyncio.Future[Rejection | None]"


class Storms:
    """Records refusals. One trip at a time, with everything that has come meanwhile."""

    def __init__(self, audit: Audit, busy: Callable[[], bool]) -> None:
        """``busy`` tells whether writes are under way that are none of these."""
        self._audit, self._busy = audit, busy
        self._waiting: deque[_Member] = deque()
        self._task: asyncio.Task[None] | None = None
        self._last = float("-inf")

    async def record(self, resource: str, attempt: Attempt) -> Rejection | None:
        """Put a write on record whose fence carries a higher token; None where the fence does not.

        Raises ``Unavailable`` where it cannot be recorded.
        """
        loop = asyncio.get_running_loop()
        member = _Member(resource, attempt, loop.create_future())
        self._waiting.append(member)
        if self._task is None:
            self._task = loop.create_task(self._drain(), context=Context())
        return await member.answer

    async def _drain(self) -> None:
        loop = asyncio.get_running_loop()
        members: list[_Member] = []
        try:
            while self._waiting:
                if self._busy():
                    await asyncio.sleep(self._last + GIVING_WAY - loop.time())
                members = [self._waiting.popleft() for _ in range(min(MOST, len(self._waiting)))]
                await self._record_all(members)
                self._last = loop.time()
        finally:
            self._task = None
            # Only where this task itself was cancelled is anybody left without an answer.
            for member in (*members, *self._waiting):
                member.answer.cancel()

    async def _record_all(self, members: list[_Member]) -> None:
        try:
            recorded = await self._audit.overtaken([(member.resource, member.attempt) for member in members])
        except GatewayError as error:
            for member in members:
                if not member.answer.done():
                    member.answer.set_exception(copy(error))
            return
        for member, rejection in zip(members, recorded, strict=True):
            if not member.answer.done():
                member.answer.set_result(rejection)
