"""Questions share a trip if they come while one is under way; what is wrong with one is not the others' business."""

import asyncio
from collections.abc import Sequence

import pytest

from gateway.errors import OutcomeUnknown, Unavailable
from gateway.leases.lane import Lane


class Database:
    """Answers a number with its double; together only when ``open`` is set, and never 13."""

    def __init__(self) -> None:
        self.trips: list[list[int]] = []
        self.alone: list[int] = []
        self.open = asyncio.Event()
        self.error: Exception | None = None

    async def together(self, questions: Sequence[int]) -> Sequence[int]:
        self.trips.append(list(questions))
        await self.open.wait()
        if self.error is not None:
            raise self.error
        if 13 in questions:
            raise ZeroDivisionError
        return [2 * question for question in questions]

    async def by_itself(self, question: int) -> int:
        self.alone.append(question)
        if question == 13:
            raise Unavailable("13 is stuck")
        return 2 * question

    def lane(self, most: int = 4) -> "Lane[int, int]":
        return Lane(self.together, self.by_itself, order=lambda question: question, most=most)


async def test_what_comes_meanwhile_goes_together_and_in_order() -> None:
    database = Database()
    lane = database.lane()
    first = lane.ask(9)
    await asyncio.sleep(0)
    later = [lane.ask(number) for number in (5, 3, 4, 1, 2)]
    database.open.set()
    assert await asyncio.gather(first, *later) == [18, 10, 6, 8, 2, 4]
    assert database.trips == [[9], [1, 3, 4, 5], [2]]


async def test_those_who_share_a_trip_that_fails_go_by_themselves() -> None:
    database = Database()
    database.open.set()
    lane = database.lane()
    answers = await asyncio.gather(*(lane.ask(number) for number in (1, 13, 2)), return_exceptions=True)
    assert (answers[0], answers[2], type(answers[1])) == (2, 4, Unavailable)
    assert sorted(database.alone) == [1, 2, 13]


async def test_nobody_is_told_that_nothing_happened_where_it_may_have() -> None:
    database = Database()
    database.open.set()
    database.error = OutcomeUnknown("lost")
    lane = database.lane()
    answers = await asyncio.gather(*(lane.ask(number) for number in (1, 2)), return_exceptions=True)
    assert [type(answer) for answer in answers] == [OutcomeUnknown, OutcomeUnknown]
    assert answers[0] is not answers[1]
    assert database.alone == []


async def test_who_has_gone_away_before_the_trip_is_not_asked_for() -> None:
    database = Database()
    lane = database.lane()
    first = lane.ask(1)
    await asyncio.sleep(0)
    gone, present = lane.ask(2), lane.ask(3)
    gone.cancel()
    database.open.set()
    assert (await first, await present) == (2, 6)
    assert database.trips == [[1], [3]]


async def test_a_lane_that_stops_leaves_nobody_without_an_answer() -> None:
    database = Database()
    lane = database.lane()
    asked = [lane.ask(1)]
    await asyncio.sleep(0)
    asked.append(lane.ask(2))
    await lane.home(0.01)
    await asyncio.sleep(0)
    for answer in asked:
        with pytest.raises(asyncio.CancelledError):
            await answer
