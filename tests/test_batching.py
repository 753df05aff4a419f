"""Requests that arrive while a batch is under way share the next one, and no request suffers another's error."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from gateway.batching import Lane
from gateway.errors import OutcomeUnknown, Unavailable
from tests.clock import Clock
from tests.waiting import PATIENCE


class Database:
    """Answers a number with its double: in batches once ``open`` is set, and never 13."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.alone: list[int] = []
        self.open = asyncio.Event()
        self.let = asyncio.Event()
        self.let.set()
        self.error: Exception | None = None

    async def together(self, questions: Sequence[int]) -> Sequence[int]:
        self.batches.append(list(questions))
        await self.open.wait()
        if self.error is not None:
            raise self.error
        if 13 in questions:
            raise ZeroDivisionError
        return [2 * question for question in questions]

    async def by_itself(self, question: int) -> int:
        self.alone.append(question)
        await self.let.wait()
        if question == 13:
            raise Unavailable("13 is stuck")
        return 2 * question

    def lane(self, **options: Any) -> "Lane[int, int]":
        usual: dict[str, Any] = {"most": 4, "order": lambda question: question, "lone_alone": False}
        return Lane(self.together, self.by_itself, **{**usual, **options})


@pytest.fixture
def database() -> Database:
    return Database()


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_requests_during_a_batch_share_the_next_one_in_order(database: Database) -> None:
    lane = database.lane()
    first = lane.ask(9)
    await settled()
    later = [lane.ask(number) for number in (5, 3, 4, 1, 2)]
    database.open.set()
    assert await asyncio.gather(first, *later) == [18, 10, 6, 8, 2, 4]
    assert database.batches == [[9], [1, 3, 4, 5], [2]]
    assert lane.idle()


async def test_members_of_a_failed_batch_are_sent_alone(database: Database) -> None:
    database.open.set()
    lane = database.lane()
    answers = await asyncio.gather(*(lane.ask(number) for number in (1, 13, 2)), return_exceptions=True)
    assert (answers[0], answers[2], type(answers[1])) == (2, 4, Unavailable)
    assert sorted(database.alone) == [1, 2, 13]


async def test_a_failed_batch_does_not_hold_up_the_next_one_nor_let_two_run(database: Database) -> None:
    """Its members may wait for locks, alone. Their end does not start a batch beside another one."""
    lane = database.lane()
    stuck = [lane.ask(13), lane.ask(1)]
    await settled()
    database.let.clear()
    second = lane.ask(2)
    database.open.set()
    await settled()
    assert await second == 4
    database.open.clear()
    third = lane.ask(3)
    await settled()
    fourth = lane.ask(4)
    database.let.set()
    await settled()
    assert database.batches == [[1, 13], [2], [3]]
    database.open.set()
    assert list(await asyncio.gather(third, fourth, stuck[1])) == [6, 8, 2]
    with pytest.raises(Unavailable):
        await stuck[0]


async def test_no_member_is_sent_again_if_the_batch_may_have_taken_effect(database: Database) -> None:
    database.open.set()
    database.error = OutcomeUnknown("lost")
    lane = database.lane()
    answers = await asyncio.gather(*(lane.ask(number) for number in (1, 2)), return_exceptions=True)
    assert [type(answer) for answer in answers] == [OutcomeUnknown, OutcomeUnknown]
    assert answers[0] is not answers[1], "each sender gets an error of its own"
    assert database.alone == []


async def test_a_lone_request_goes_alone_where_the_owner_says_so(database: Database) -> None:
    assert await database.lane(lone_alone=True).ask(1) == 2
    assert (database.batches, database.alone) == ([], [1])


async def test_a_batch_has_room_for_so_much_but_always_for_one(database: Database) -> None:
    database.open.set()
    lane = database.lane(room=10)
    await asyncio.gather(lane.ask(1, size=6), lane.ask(2, size=4), lane.ask(3, size=1), lane.ask(4, size=50))
    assert database.batches == [[1, 2], [3], [4]]


async def test_a_batch_overlaps_a_slow_one_but_not_for_its_keys(database: Database) -> None:
    lane = database.lane(overlap=0.001)
    asked = [lane.ask(1, key="a")]
    await settled()
    asked += [lane.ask(2, key="a"), lane.ask(3, key="b")]
    await asyncio.sleep(0.05)
    assert database.batches == [[1], [3]], "the second request of a must not arrive before the first"
    database.open.set()
    assert await asyncio.gather(*asked) == [2, 4, 6]
    assert database.batches == [[1], [3], [2]]


async def test_a_pause_after_a_batch_gathers_what_arrives_in_it(database: Database) -> None:
    database.open.set()
    lane, clock = database.lane(pause=lambda: PATIENCE), Clock()
    assert await lane.ask(1) == 2
    asked = [lane.ask(2)]
    await settled()
    asked.append(lane.ask(3))
    assert database.batches == [[1]]
    await clock.pass_by(PATIENCE)
    await asyncio.gather(*asked)
    assert database.batches == [[1], [2, 3]]


async def test_a_request_that_was_cancelled_before_its_batch_is_not_sent(database: Database) -> None:
    lane = database.lane()
    first = lane.ask(1)
    await settled()
    gone, present = lane.ask(2), lane.ask(3)
    gone.cancel()
    database.open.set()
    assert (await first, await present) == (2, 6)
    assert database.batches == [[1], [3]]


async def test_closing_leaves_no_request_without_an_answer(database: Database) -> None:
    lane = database.lane()
    asked = [lane.ask(1)]
    await settled()
    asked.append(lane.ask(2))
    await lane.close(0.01)
    await settled()
    for answer in asked:
        with pytest.raises(asyncio.CancelledError):
            await answer
