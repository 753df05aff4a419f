"""Natural micro-batching: writes of one statement that arrive while it is under way go together in the next round trip.

Nobody waits for a batch to fill: a write that finds its lane free goes at once, by itself. Those that come meanwhile go
as one transaction of many statements: one trip, one commit. What a caller sees does not change: whoever shares a batch
that fails is sent again by itself.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field

from gateway.errors import OutcomeUnknown
from gateway.store.database import Database, Record

MOST = 32
# Seconds after which those who wait set out although the one before them is still under way: it may be waiting for a
# lock, which is no concern of theirs.
PATIENCE = 0.01
# Bytes of one write's values. A whole batch has to fit into the socket's buffer: a gateway that is paused half-way
# through sending one would hold the locks of the half that has arrived.
LARGEST = 1024


@dataclass(slots=True)
class _Member:
    resource: str
    arguments: Sequence[object]
    answer: "asyncio.Future[Record]"


@dataclass(slots=True)
class _Lane:
    """The writes of one statement. ``alarm`` rings when those who wait have waited long enough."""

    under_way: int = 0
    waiting: deque[_Member] = field(default_factory=deque)
    alarm: asyncio.TimerHandle | None = None


class Batches:
    """Sends writes of the fast path, each a statement that answers with exactly one row."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lanes: dict[str, _Lane] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def send(self, sql: str, arguments: Sequence[object], resource: str, size: int) -> Record:
        """The row of one write. ``size``: bytes of its values. Raises what ``Database.fetchrow_write`` raises."""
        if size > LARGEST:
            return await self._alone(sql, arguments)
        lane = self._lanes.setdefault(sql, _Lane())
        if lane.under_way:
            loop = asyncio.get_running_loop()
            member = _Member(resource, arguments, loop.create_future())
            lane.waiting.append(member)
            lane.alarm = lane.alarm or loop.call_later(PATIENCE, self._overtake, sql, lane)
            return await member.answer
        lane.under_way += 1
        try:
            return await self._alone(sql, arguments)
        finally:
            self._leave(sql, lane)

    def _leave(self, sql: str, lane: _Lane) -> None:
        """A place in the lane is free: those who wait take it, in a task of their own; nobody works for others."""
        lane.under_way -= 1
        if lane.alarm is not None:
            lane.alarm.cancel()
            lane.alarm = None
        if lane.waiting:
            self._set_out(sql, lane)
        elif not lane.under_way:
            self._lanes.pop(sql, None)

    def _overtake(self, sql: str, lane: _Lane) -> None:
        lane.alarm = None
        if lane.waiting:
            self._set_out(sql, lane)

    def _set_out(self, sql: str, lane: _Lane) -> None:
        loop = asyncio.get_running_loop()
        lane.under_way += 1
        members = [lane.waiting.popleft() for _ in range(min(MOST, len(lane.waiting)))]
        if lane.waiting:
            lane.alarm = loop.call_later(PATIENCE, self._overtake, sql, lane)
        task = loop.create_task(self._drain(sql, lane, members))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _drain(self, sql: str, lane: _Lane, members: list[_Member]) -> None:
        try:
            if present := [member for member in members if not member.answer.done()]:
                await self._send_all(sql, present)
        finally:
            # Only where this task itself was cancelled is anybody left without an answer.
            for member in members:
                member.answer.cancel()
            self._leave(sql, lane)

    async def _send_all(self, sql: str, members: list[_Member]) -> None:
        # One order everywhere: two batches that lock the same rows in opposite orders would deadlock.
        members.sort(key=lambda member: member.resource)
        try:
            rows = await self._database.fetchmany_write(sql, [member.arguments for member in members])
        except OutcomeUnknown as error:
            for member in members:
                _fail(member, copy(error))
        except Exception:  # noqa: BLE001 - whatever is wrong with one of them, the others must not suffer it
            # One of them, a lock it had waited for in vain, say, made the database undo all: each by itself, then, and
            # to each its own error.
            await asyncio.gather(*(self._send_again(sql, member) for member in members))
        else:
            for member, row in zip(members, rows, strict=True):
                if not member.answer.done():
                    member.answer.set_result(row)

    async def _send_again(self, sql: str, member: _Member) -> None:
        try:
            row = await self._alone(sql, member.arguments)
        except Exception as error:  # noqa: BLE001 - it belongs to whoever sent this write
            _fail(member, error)
        else:
            if not member.answer.done():
                member.answer.set_result(row)

    async def _alone(self, sql: str, arguments: Sequence[object]) -> Record:
        row = await self._database.fetchrow_write(sql, *arguments)
        assert row is not None
        return row


def _fail(member: _Member, error: Exception) -> None:
    if not member.answer.done():
        member.answer.set_exception(error)
