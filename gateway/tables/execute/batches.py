"""Batches of fenced statements: statements of one text that arrive together are one transaction and one commit.

A sender sees no difference. A statement whose batch fails is sent again alone.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import TypeAlias

from gateway.batching import Lane
from gateway.db.database import Record
from gateway.fencing.record import Attempt, Rejection
from gateway.observe.events import BatchBegun, BatchSent, Observe, ignore
from gateway.observe.stages import ORIGIN
from gateway.record.audit import Audit
from gateway.tables.sql.expressions import Statement
from gateway.tables.sql.shape import CHECKS

MOST_REFUSALS = 256
# Seconds between two batches while holders write: the share of gateway and database that a storm may take.
GIVING_WAY = 0.05


class Storms:
    """Records refusals, one batch at a time."""

    def __init__(self, audit: Audit, busy: Callable[[], bool]) -> None:
        """``busy`` returns whether other writes are under way."""
        self._audit, self._busy = audit, busy
        self._last = float("-inf")
        self._lane: Lane[tuple[str, Attempt], Rejection | None] = Lane(
            self._record, most=MOST_REFUSALS, delay=self._delay, concerns_all=lambda _: True
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


SendOne: TypeAlias = Callable[..., Awaitable[Record | None]]
SendMany: TypeAlias = Callable[[str, Sequence[Sequence[object]]], Awaitable[list[Record]]]

MOST = 64
# Seconds after which the next batch sets out beside a batch under way. That one may be waiting for a lock or for a slow
# disk, and both can be waited for side by side.
OVERLAP = 0.004
# Seconds without any statement after which no writer seems to be there.
LULL = 0.05
# Bytes of the values of one statement, and of a whole batch. A batch has to fit into the socket's buffer: a gateway
# paused half-way through sending would hold the locks of the half that has arrived.
LARGEST = 1024
ROOM = 32 * LARGEST

_MOST_LANES = 256


@dataclass(slots=True)
class _Statement:
    """The values of one statement, when it was asked for, and the request that asked."""

    resource: str | None
    arguments: list[object]
    since: float
    origin: object | None


class Batches:
    """Sends statements that answer with exactly one row each: by itself with ``one``, or ``many`` in one round trip."""

    def __init__(self, one: SendOne, many: SendMany, *, writes: bool = True, observe: Observe = ignore) -> None:
        """Send by ``one`` and ``many``. ``writes`` tells ``observe`` whether the statements write."""
        self._one, self._many = one, many
        self._writes, self._observe = writes, observe
        self._lanes: dict[str, Lane[_Statement, Record]] = {}
        self._under_way = 0
        self._back = float("-inf")

    def busy(self) -> bool:
        """Return whether a statement is under way, or was a moment ago: writers pause between two statements."""
        return self._under_way > 0 or perf_counter() - self._back < LULL

    def send(
        self, statement: Statement, arguments: list[object], resource: str | None, size: int
    ) -> "asyncio.Future[Record]":
        """Return the row to come of one statement. It fails with what sending the statement alone raises.

        ``size``: bytes of its values. Statements for one ``resource`` are sent in the order in which they come.
        """
        asked = _Statement(resource, arguments, perf_counter(), ORIGIN.get())
        if size > LARGEST:
            return asyncio.ensure_future(self._alone(statement.text, statement.names.index(CHECKS), asked))
        lane = self._lanes.get(statement.text)
        if lane is None:
            if len(self._lanes) >= _MOST_LANES:
                self._lanes = {sql: lane for sql, lane in self._lanes.items() if not lane.idle()}
            lane = self._lanes[statement.text] = self._lane(statement.text, statement.names.index(CHECKS))
        return lane.ask(asked, key=resource, size=size)

    def _lane(self, sql: str, checks: int) -> Lane[_Statement, Record]:
        return Lane(
            partial(self._together, sql, checks),
            partial(self._alone, sql, checks),
            most=MOST,
            room=ROOM,
            order=lambda asked: asked.resource or "",
            overlap=OVERLAP,
        )

    async def _together(self, sql: str, checks: int, batch: Sequence[_Statement]) -> list[Record]:
        # The first statement of a transaction checks its table. The result holds until the transaction ends.
        for asked in batch[1:]:
            asked.arguments[checks] = False
        began = self._begin(batch)
        try:
            return await self._many(sql, [asked.arguments for asked in batch])
        finally:
            self._end(batch, began)

    async def _alone(self, sql: str, checks: int, asked: _Statement) -> Record:
        asked.arguments[checks] = True
        began = self._begin([asked])
        try:
            row = await self._one(sql, *asked.arguments)
        finally:
            self._end([asked], began)
        assert row is not None
        return row

    def _begin(self, batch: Sequence[_Statement]) -> float:
        self._under_way += 1
        self._observe(BatchBegun(self._writes, tuple(asked.origin for asked in batch)))
        return perf_counter()

    def _end(self, batch: Sequence[_Statement], began: float) -> None:
        self._under_way -= 1
        self._back = perf_counter()
        waited = began - min(asked.since for asked in batch)
        self._observe(BatchSent(self._writes, len(batch), waited, self._back - began))
