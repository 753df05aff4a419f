"""Puts refusals on record: those that come while others are being recorded go together in the next trip.

Nobody waits for company, and nobody is answered before the commit of the trip that carries what it is about.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from contextvars import Context
from dataclasses import dataclass

from gateway.db import rejections
from gateway.db.database import Database, asks_again
from gateway.errors import GatewayError, OutcomeUnknown, SqlError, Unavailable
from gateway.fencing.record import Attempt, Refusal, Rejection

MOST = 512
"""Refusals of one trip, unless a single write has more."""


@dataclass(frozen=True, slots=True)
class _Member:
    refusals: Sequence[Refusal]
    answer: "asyncio.Future[list[Rejection]]"


class Recorder:
    """Writes the record, in one statement a trip. A trip is one at a time, with everything that has come meanwhile."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._waiting: deque[_Member] = deque()
        self._task: asyncio.Task[None] | None = None

    async def record(self, refusals: Sequence[Refusal]) -> list[Rejection]:
        """Put all of these on record; durable when this returns.

        Raises ``Unavailable`` where they cannot be recorded: then they must not be answered as refused.
        """
        loop = asyncio.get_running_loop()
        member = _Member(refusals, loop.create_future())
        self._waiting.append(member)
        if self._task is None:
            self._task = loop.create_task(self._drain(), context=Context())
        return await member.answer

    async def overtaken(self, attempts: Sequence[tuple[str, Attempt]]) -> list[Rejection | None]:
        """Put those of many writes on record, in a trip of their own, whose fence carries a higher token already.

        In the same order, each its rejection; None where the fence does not. Raises what ``record`` raises.
        """
        try:
            return await rejections.record_overtaken(self._database, attempts)
        except (SqlError, OutcomeUnknown, Unavailable) as error:
            raise _not_recorded() from error

    async def _drain(self) -> None:
        members: list[_Member] = []
        try:
            while self._waiting:
                members = self._next()
                await self._record_all(members)
        finally:
            self._task = None
            # Only where this task itself was cancelled is anybody left without an answer.
            for member in (*members, *self._waiting):
                member.answer.cancel()

    def _next(self) -> list[_Member]:
        members: list[_Member] = []
        size = 0
        while self._waiting and (not members or size + len(self._waiting[0].refusals) <= MOST):
            member = self._waiting.popleft()
            members.append(member)
            size += len(member.refusals)
        return members

    async def _record_all(self, members: Sequence[_Member]) -> None:
        try:
            recorded = iter(
                await rejections.record(self._database, [one for member in members for one in member.refusals])
            )
        except GatewayError as error:
            alone = isinstance(error, SqlError) or asks_again(error)
            if alone and len(members) > 1:
                # Something is wrong with one of them: the others must not suffer it.
                for member in members:
                    await self._record_all([member])
                return
            for member in members:
                _fail(member, _not_recorded(), error)
        else:
            for member in members:
                own = [next(recorded) for _ in member.refusals]
                if not member.answer.done():
                    member.answer.set_result(own)


def _fail(member: _Member, error: Unavailable, cause: GatewayError) -> None:
    if not member.answer.done():
        error.__cause__ = cause
        member.answer.set_exception(error)


def _not_recorded() -> Unavailable:
    return Unavailable("The write was refused, but the refusal could not be put on record.")
