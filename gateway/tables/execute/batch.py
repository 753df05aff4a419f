"""Natural micro-batching: writes of one statement that arrive while it is under way go together in the next round trip.

Nobody waits for a batch to fill: a write that finds its lane free goes at once, with those that have arrived in the
same moment. Those that come meanwhile go as one transaction of many statements: one trip, one commit. What a caller
sees does not change: whoever shares a batch that fails is sent again by itself.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context
from copy import copy
from dataclasses import dataclass, field
from time import perf_counter
from typing import TypeAlias

from gateway.db.database import Record
from gateway.errors import OutcomeUnknown
from gateway.observe.events import Observe, TripBegun, TripMade, ignore
from gateway.observe.stages import ORIGIN
from gateway.tables.sql.expressions import Statement
from gateway.tables.sql.shape import CHECKS

SendOne: TypeAlias = Callable[..., Awaitable[Record | None]]
SendMany: TypeAlias = Callable[[str, Sequence[Sequence[object]]], Awaitable[list[Record]]]

MOST = 64
# Seconds after which those who wait set out although some are under way: these may be waiting for a lock, which is no
# concern of theirs, or for a slow disk, which can be waited for side by side.
PATIENCE = 0.004
# Seconds without any trip after which nobody seems to write any more.
LULL = 0.05
# Bytes of the values of one write, and of a whole batch, which has to fit into the socket's buffer: a gateway that is
# paused half-way through sending one would hold the locks of the half that has arrived.
LARGEST = 1024
ROOM = 32 * LARGEST


@dataclass(slots=True)
class _Member:
    resource: str | None
    arguments: list[object]
    size: int
    answer: "asyncio.Future[Record]"
    since: float
    origin: object | None


@dataclass(slots=True)
class _Lane:
    """Those who send one statement. ``alarm`` rings when those who wait have waited long enough.

    ``checks``: the position of the value that tells the statement to check its table. What the first statement of a
    transaction has found stays so until its end: the others need not look again.
    """

    sql: str
    checks: int
    under_way: int = 0
    called: bool = False
    # Resources of those under way. Who comes for one of them waits: what is sent beside it might arrive before it.
    occupied: set[str | None] = field(default_factory=set)
    waiting: deque[_Member] = field(default_factory=deque)
    alarm: asyncio.TimerHandle | None = None

    def enter(self, resources: Sequence[str | None]) -> None:
        """Somebody sets out for these."""
        self.under_way += 1
        self.occupied.update(resources)
        self.occupied.discard(None)

    def leave(self, resources: Sequence[str | None]) -> None:
        """They are back."""
        self.under_way -= 1
        self.occupied.difference_update(resources)

    def taken(self) -> list[_Member]:
        """Those who can set out together now, out of those who wait."""
        members: list[_Member] = []
        held_back: list[_Member] = []
        room = ROOM
        while self.waiting and len(members) < MOST and room >= self.waiting[0].size:
            member = self.waiting.popleft()
            if member.resource in self.occupied:
                held_back.append(member)
            else:
                members.append(member)
                room -= member.size
        self.waiting.extendleft(reversed(held_back))
        if members:
            self.enter([member.resource for member in members])
        return members


class Batches:
    """Sends statements that answer with exactly one row each: by itself with ``one``, or ``many`` in one trip."""

    def __init__(self, one: SendOne, many: SendMany, *, writes: bool = True, observe: Observe = ignore) -> None:
        """``writes``: what they are, for ``observe``."""
        self._one, self._many = one, many
        self._writes, self._observe = writes, observe
        self._lanes: dict[str, _Lane] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._back = float("-inf")

    def busy(self) -> bool:
        """Whether anything is under way, or has been a moment ago: between two trips writers have not gone home."""
        return bool(self._lanes) or asyncio.get_running_loop().time() - self._back < LULL

    async def send(self, statement: Statement, arguments: list[object], resource: str | None, size: int) -> Record:
        """The row of one statement. ``size``: bytes of its values. Raises what sending it alone raises.

        Statements for one ``resource`` are carried out in the order in which they come.
        """
        if size > LARGEST:
            began = perf_counter()
            try:
                return await self._alone(statement.text, arguments)
            finally:
                self._observe(TripMade(self._writes, 1, 0.0, perf_counter() - began))
        lane = self._lanes.get(statement.text)
        if lane is None:
            lane = self._lanes[statement.text] = _Lane(statement.text, statement.names.index(CHECKS))
        loop = asyncio.get_running_loop()
        member = _Member(resource, arguments, size, loop.create_future(), perf_counter(), ORIGIN.get())
        lane.waiting.append(member)
        if lane.under_way:
            self._watch(lane)
        elif not lane.called:
            # Not at once, but as soon as the loop has looked at everything that has arrived by now.
            lane.called = True
            loop.call_soon(self._set_out, lane)
        return await member.answer

    def _leave(self, lane: _Lane, resources: Sequence[str | None]) -> None:
        """A place in the lane is free: those who wait take it, in a task of their own; nobody works for others."""
        lane.leave(resources)
        self._back = asyncio.get_running_loop().time()
        if lane.alarm is not None:
            lane.alarm.cancel()
            lane.alarm = None
        if lane.waiting:
            self._set_out(lane)
        elif not lane.under_way:
            self._lanes.pop(lane.sql, None)

    def _overtake(self, lane: _Lane) -> None:
        lane.alarm = None
        self._set_out(lane)

    def _set_out(self, lane: _Lane) -> None:
        lane.called = False
        members = lane.taken()
        self._watch(lane)
        if members:
            # In nobody's context: it is not the work of whoever has come first.
            task = asyncio.get_running_loop().create_task(self._drain(lane, members), context=Context())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _watch(self, lane: _Lane) -> None:
        """See to it that nobody waits for longer than ``PATIENCE``."""
        if lane.waiting and lane.alarm is None:
            lane.alarm = asyncio.get_running_loop().call_later(PATIENCE, self._overtake, lane)

    async def _drain(self, lane: _Lane, members: list[_Member]) -> None:
        try:
            if present := [member for member in members if not member.answer.done()]:
                await self._travel(lane, present)
        finally:
            # Only where this task itself was cancelled is anybody left without an answer.
            for member in members:
                member.answer.cancel()
            self._leave(lane, [member.resource for member in members])

    async def _travel(self, lane: _Lane, members: list[_Member]) -> None:
        began = perf_counter()
        self._observe(TripBegun(self._writes, tuple(member.origin for member in members)))
        waited = began - members[0].since
        try:
            await self._send_all(lane, members)
        finally:
            self._observe(TripMade(self._writes, len(members), waited, perf_counter() - began))

    async def _send_all(self, lane: _Lane, members: list[_Member]) -> None:
        if len(members) == 1:
            await self._send_one(lane, members[0])
            return
        # One order everywhere: two batches that lock the same rows in opposite orders would deadlock.
        members.sort(key=lambda member: member.resource or "")
        for member in members[1:]:
            member.arguments[lane.checks] = False
        try:
            rows = await self._many(lane.sql, [member.arguments for member in members])
        except OutcomeUnknown as error:
            for member in members:
                _fail(member, copy(error))
        except Exception:  # noqa: BLE001 - whatever is wrong with one of them, the others must not suffer it
            # One of them, a lock it had waited for in vain, say, made the database undo all: each by itself, then, and
            # to each its own error.
            await asyncio.gather(*(self._send_one(lane, member) for member in members))
        else:
            for member, row in zip(members, rows, strict=True):
                if not member.answer.done():
                    member.answer.set_result(row)

    async def _send_one(self, lane: _Lane, member: _Member) -> None:
        member.arguments[lane.checks] = True
        try:
            row = await self._alone(lane.sql, member.arguments)
        except Exception as error:  # noqa: BLE001 - it belongs to whoever sent this write
            _fail(member, error)
        else:
            if not member.answer.done():
                member.answer.set_result(row)

    async def _alone(self, sql: str, arguments: Sequence[object]) -> Record:
        row = await self._one(sql, *arguments)
        assert row is not None
        return row


def _fail(member: _Member, error: Exception) -> None:
    if not member.answer.done():
        member.answer.set_exception(error)
