"""Questions about leases that come while others are under way go together in the next trip, and nobody waits for it.

The same thought as for writes to tables (docs/decisions/016); what goes together here are calls of functions that are
idempotent, so one whose trip fails is simply asked again, by itself.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextvars import Context
from copy import copy
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from gateway.errors import OutcomeUnknown

Question = TypeVar("Question")
Answer = TypeVar("Answer")

MOST = 32
"""Questions in a trip. All locks they touch stay locked until its end, and it has to fit into a socket's buffer: half
of one must never be in a paused gateway's.
"""


@dataclass(slots=True)
class _Asked(Generic[Question, Answer]):
    question: Question
    answer: "asyncio.Future[Answer]"


class Lane(Generic[Question, Answer]):
    """Carries questions of one kind, a trip at a time."""

    def __init__(
        self,
        together: Callable[[Sequence[Question]], Awaitable[Sequence[Answer]]],
        alone: Callable[[Question], Awaitable[Answer]],
        order: Callable[[Question], Any],
        most: int = MOST,
    ) -> None:
        """``together`` answers many in one trip that does not wait for long, in their ``order``; ``alone`` is patient.

        Two trips, of two gateways, that lock the same rows in opposite orders would deadlock.
        """
        self._together, self._alone = together, alone
        self._order, self._most = order, most
        self._waiting: deque[_Asked[Question, Answer]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._under_way = False

    def ask(self, question: Question) -> "asyncio.Future[Answer]":
        """The answer to come. It fails with what asking alone raises, or with ``OutcomeUnknown``."""
        asked: _Asked[Question, Answer] = _Asked(question, asyncio.get_running_loop().create_future())
        self._waiting.append(asked)
        if not self._under_way:
            # It takes along whatever else arrives before the loop comes round to it.
            self._under_way = True
            self._start(self._drain())
        return asked.answer

    async def home(self, patience: float) -> None:
        """Wait for what is under way, at most for so many seconds. What has not come home then is given up."""
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=patience)
            for task in late:
                task.cancel()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        # In nobody's context: it is not the work of whoever has come first.
        task = asyncio.get_running_loop().create_task(work, context=Context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _drain(self) -> None:
        trip: list[_Asked[Question, Answer]] = []
        try:
            while self._waiting:
                trip = [self._waiting.popleft() for _ in range(min(self._most, len(self._waiting)))]
                await self._go([asked for asked in trip if not asked.answer.done()])
        except asyncio.CancelledError:
            for asked in (*trip, *self._waiting):
                asked.answer.cancel()
            raise
        finally:
            self._under_way = False

    async def _go(self, trip: list[_Asked[Question, Answer]]) -> None:
        trip.sort(key=lambda asked: self._order(asked.question))
        try:
            answers = await self._together([asked.question for asked in trip]) if trip else []
        except OutcomeUnknown as error:
            for asked in trip:
                _fail(asked.answer, copy(error))
        except Exception:  # noqa: BLE001 - whatever is wrong with one of them, the others must not suffer it
            # A lock that was waited for in vain, say: nobody behind has to wait for it as well.
            for asked in trip:
                self._start(self._go_alone(asked))
        else:
            for asked, answer in zip(trip, answers, strict=True):
                if not asked.answer.done():
                    asked.answer.set_result(answer)

    async def _go_alone(self, asked: _Asked[Question, Answer]) -> None:
        try:
            answer = await self._alone(asked.question)
        except Exception as error:  # noqa: BLE001 - it belongs to whoever has asked
            _fail(asked.answer, error)
        else:
            if not asked.answer.done():
                asked.answer.set_result(answer)


def _fail(answer: "asyncio.Future[Any]", error: Exception) -> None:
    if not answer.done():
        answer.set_exception(error)
