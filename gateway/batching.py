"""The one batcher: requests that arrive while a batch is under way share the next one (docs/decisions/016).

A request never waits for a batch to fill. A lane that is free sets out as soon as the event loop has read everything
that has arrived by then. Owners say how large a batch may be, in which order it goes, and which errors concern all.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from gateway.errors import OutcomeUnknown

Item = TypeVar("Item")
Answer = TypeVar("Answer")

# Turns that a loop takes to read an answer that came while it was busy, and to end the batch.
_TURNS = 3


@dataclass(slots=True)
class _Member(Generic[Item, Answer]):
    item: Item
    key: str | None
    size: int
    answer: "asyncio.Future[Answer]"


async def shielded(future: "asyncio.Future[Answer]") -> Answer:
    """Return the result of a future that goes on if this caller is cancelled. Its error is lost then.

    From Python 3.14 on, ``asyncio.shield`` logs such an error.
    """
    try:
        if not future.done():
            await asyncio.wait((future,))
    except asyncio.CancelledError:
        future.add_done_callback(retrieve)
        raise
    return future.result()


def retrieve(future: "asyncio.Future[Any]") -> None:
    """Mark an error as seen, for a future that no caller may wait for."""
    if not future.cancelled():
        future.exception()


def outcome_unknown(error: Exception) -> bool:
    """Return whether a failed batch may have taken effect, so that no member may be sent again."""
    return isinstance(error, OutcomeUnknown)


def patiently(together: Callable[..., Awaitable[Sequence[Answer]]]) -> Callable[[Any], Awaitable[Answer]]:
    """Return a way to send an item alone: as a batch of one, with ``patient``."""

    async def alone(item: Any) -> Answer:
        (answer,) = await together([item], patient=True)
        return answer

    return alone


class Lane(Generic[Item, Answer]):
    """Sends items in batches, and gives each sender its own answer or its own error."""

    def __init__(
        self,
        together: Callable[[Sequence[Item]], Awaitable[Sequence[Answer]]],
        alone: Callable[[Item], Awaitable[Answer]] | None = None,
        *,
        most: int,
        room: float = float("inf"),
        order: Callable[[Item], Any] | None = None,
        lone_alone: bool = True,
        overlap: float | None = None,
        half_from: int | None = None,
        pause: Callable[[], float] | None = None,
        concerns_all: Callable[[Exception], bool] = outcome_unknown,
    ) -> None:
        """Create a lane.

        ``together`` returns one answer for each item, in their order. If it fails, each member is sent by ``alone``.
        If the error ``concerns_all`` or there is no ``alone``, each sender gets a copy of the error instead.
        ``lone_alone``: a batch of one goes by ``alone`` at once. ``most`` items and ``room`` in sizes fit into a batch.
        ``order``: the sort key of a batch. Two batches that lock the same rows in opposite orders would deadlock.
        ``overlap``: seconds after which a batch sets out beside others that are still under way; None for never.
        ``half_from``: a batch leaves before the one that has just ended is answered. It takes at most half of those
        that are active, but at least so many. Two halves take turns then: one is under way while the other one is
        answered. None: a batch leaves behind the answers of the one before, and takes all.
        ``pause`` returns the seconds between the end of a batch and the next one, which gives way to other work.
        """
        self._together, self._alone = together, alone
        self._most, self._room, self._order = most, room, order
        self._lone_alone, self._overlap, self._pause = lone_alone, overlap, pause
        self._half_from, self._concerns_all = half_from, concerns_all
        self._waiting: deque[_Member[Item, Answer]] = deque()
        # Keys under way. A later item of such a key waits, because it might arrive before the earlier one.
        self._occupied: set[str | None] = set()
        self._under_way = 0
        self._ended = float("-inf")
        self._timer: asyncio.Handle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def ask(self, item: Item, *, key: str | None = None, size: int = 1) -> "asyncio.Future[Answer]":
        """Return the answer to come. It fails with what sending the item alone raises, or with what concerns all.

        Items of one ``key`` are sent in the order in which they were asked. ``size`` is what the item takes of
        ``room``.
        """
        loop = asyncio.get_running_loop()
        member: _Member[Item, Answer] = _Member(item, key, size, loop.create_future())
        self._waiting.append(member)
        if self._timer is None:
            if self._under_way:
                self._watch(loop)
            else:
                delay = self._delay()
                self._timer = loop.call_later(delay, self._set_out) if delay > 0 else loop.call_soon(self._set_out)
        return member.answer

    def idle(self) -> bool:
        return not (self._waiting or self._under_way or self._occupied)

    async def close(self, seconds: float) -> None:
        """Wait for the batches under way and those behind them, for at most so many ``seconds``; cancel the rest."""
        loop = asyncio.get_running_loop()
        ends = loop.time() + seconds
        while self._tasks and (left := ends - loop.time()) > 0:
            await asyncio.wait(self._tasks, timeout=left)
        for task in self._tasks:
            task.cancel()

    def _delay(self) -> float:
        return 0.0 if self._pause is None else self._ended + self._pause() - asyncio.get_running_loop().time()

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let waiting items set out beside a batch that takes long: it may wait for a lock that is not theirs."""
        if self._waiting and self._timer is None and self._overlap is not None:
            self._timer = loop.call_later(self._overlap, self._look)

    def _look(self, turns: int = _TURNS) -> None:
        """Set out beside a batch under way, unless its answer is there: the loop may have been too busy to read it."""
        if turns:
            self._timer = asyncio.get_running_loop().call_soon(self._look, turns - 1)
        else:
            self._set_out()

    def _set_out(self, answered: int = 0) -> None:
        self._timer = None
        members = self._taken(answered)
        loop = asyncio.get_running_loop()
        if members:
            self._under_way += 1
            # In an empty context: a batch does not belong to the request that came first.
            task = loop.create_task(self._carry(members), context=Context())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        self._watch(loop)

    def _taken(self, answered: int) -> list[_Member[Item, Answer]]:
        members: list[_Member[Item, Answer]] = []
        held_back: list[_Member[Item, Answer]] = []
        room, waiting, occupied = self._room, self._waiting, self._occupied
        most = self._most
        if answered and self._half_from is not None:
            most = min(most, max(self._half_from, (len(waiting) + answered + 1) // 2))
        while waiting and len(members) < most and (not members or room >= waiting[0].size):
            member = waiting.popleft()
            if member.key in occupied:
                held_back.append(member)
            elif not member.answer.done():
                members.append(member)
                room -= member.size
        waiting.extendleft(reversed(held_back))
        occupied.update([member.key for member in members])
        occupied.discard(None)
        return members

    async def _carry(self, members: list[_Member[Item, Answer]]) -> None:
        held = members
        try:
            try:
                tell = await self._send(members)
            finally:
                self._under_way -= 1
                self._ended = asyncio.get_running_loop().time()
            if tell is None:
                # Beside the lane: retries may wait for locks, and the items behind them do not have to.
                self._go_on()
                await asyncio.gather(*(self._retry(member) for member in members))
            else:
                if self._half_from is not None:
                    held = []
                    self._release(members)
                    self._go_on(len(members))
                tell()
        except asyncio.CancelledError:
            for member in self._waiting:
                member.answer.cancel()
            raise
        finally:
            # Without effect on answers that are there. Only a task that was cancelled leaves others.
            for member in members:
                member.answer.cancel()
            if held:
                self._release(held)
                self._go_on()

    def _release(self, members: list[_Member[Item, Answer]]) -> None:
        self._occupied.difference_update([member.key for member in members])

    def _go_on(self, answered: int = 0) -> None:
        """Use the place that has become free in the lane. ``answered``: by a batch of so many, which are told next."""
        if self._under_way and self._overlap is None:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._waiting:
            return
        delay = self._delay()
        if delay > 0:
            self._timer = asyncio.get_running_loop().call_later(delay, self._set_out)
        else:
            self._set_out(answered)

    async def _send(self, members: list[_Member[Item, Answer]]) -> Callable[[], None] | None:
        """Send a batch, and return what tells its senders. None if each member is to be sent again, alone."""
        if self._alone is not None and self._lone_alone and len(members) == 1:
            return await self._send_alone(members[0])
        if self._order is not None:
            order = self._order
            members.sort(key=lambda member: order(member.item))
        try:
            answers = await self._together([member.item for member in members])
        except Exception as error:  # noqa: BLE001 - a batch fails for its members, not for the lane
            if self._alone is not None and not self._concerns_all(error):
                return None
            return partial(_fail, members, error)
        return partial(_answer, members, answers)

    async def _send_alone(self, member: _Member[Item, Answer]) -> Callable[[], None]:
        assert self._alone is not None
        try:
            answer = await self._alone(member.item)
        except Exception as error:  # noqa: BLE001 - the error belongs to the sender
            return partial(_fail, [member], error)
        return partial(_answer, [member], [answer])

    async def _retry(self, member: _Member[Item, Answer]) -> None:
        tell = await self._send_alone(member)
        tell()


def _answer(members: Sequence[_Member[Any, Answer]], answers: Sequence[Answer]) -> None:
    for member, answer in zip(members, answers, strict=True):
        if not member.answer.done():
            member.answer.set_result(answer)


def _fail(members: Sequence[_Member[Any, Any]], error: Exception) -> None:
    for member in members:
        if not member.answer.done():
            member.answer.set_exception(error if len(members) == 1 else copy(error))
