"""Requests that arrive while a batch is under way share the next one, and no request suffers another's error."""

import asyncio
import socket
from collections.abc import Sequence
from typing import Any

import pytest

from gateway.batching import Lane
from gateway.errors import GatewayError, OutcomeUnknown, SessionsShared, SqlError, Unavailable
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

    def answer_once(self, told_by: socket.socket | None = None) -> None:
        """Answer the batch under way, and none after it until ``open`` is set."""
        if told_by is not None:
            told_by.recv(1)
        self.open.set()
        self.open.clear()

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


async def test_the_next_batch_leaves_before_the_senders_of_the_last_one_hear_their_answers(database: Database) -> None:
    """It takes a later item of the same key, too: the earlier one has been carried out."""
    lane = database.lane(half_from=8)
    first = lane.ask(1, key="a")
    await settled()
    later = [lane.ask(2, key="a"), lane.ask(3, key="b")]
    sent: list[list[int]] = []
    first.add_done_callback(lambda _: sent.extend(database.batches))
    database.open.set()
    assert await asyncio.gather(first, *later) == [2, 4, 6]
    assert sent == [[1], [2, 3]]


async def test_the_next_batch_leaves_before_a_failure_of_the_last_one_is_heard(database: Database) -> None:
    lane = database.lane(half_from=8)
    database.error = OutcomeUnknown("lost")
    first = lane.ask(1)
    await settled()
    second = lane.ask(2)
    sent: list[list[int]] = []
    first.add_done_callback(lambda _: sent.extend(database.batches))
    database.open.set()
    assert [type(answer) for answer in await asyncio.gather(first, second, return_exceptions=True)] == [
        OutcomeUnknown,
        OutcomeUnknown,
    ]
    assert sent == [[1], [2]]


async def test_a_batch_after_another_takes_half_of_those_that_are_active(database: Database) -> None:
    """The others belong to the next one, which its senders prepare while this one is under way."""
    lane = database.lane(most=64, half_from=8)
    asked = [lane.ask(number) for number in range(100, 120)]
    await settled()
    asked += [lane.ask(number) for number in range(120, 160)]
    database.open.set()
    await asyncio.gather(*asked)
    # A burst that finds the lane free goes whole. Then it is half of 20 + 40, and half of 30 + 10.
    assert [len(batch) for batch in database.batches] == [20, 30, 10]


async def test_no_batch_is_halved_below_what_saves_more_commits_than_time(database: Database) -> None:
    lane = database.lane(most=64, half_from=8)
    asked = [lane.ask(1)]
    await settled()
    asked += [lane.ask(2) for _ in range(9)]
    database.open.set()
    await asyncio.gather(*asked)
    assert [len(batch) for batch in database.batches] == [1, 8, 1]


async def test_the_end_of_one_batch_lets_only_one_other_leave(database: Database) -> None:
    """Others that wait leave when that one ends, or beside it after ``overlap``."""
    lane = database.lane(most=2, overlap=PATIENCE, half_from=8)
    asked = [lane.ask(1)]
    await settled()
    asked += [lane.ask(number) for number in (2, 3, 4)]
    database.answer_once()
    assert await asked[0] == 2
    await settled()
    assert database.batches == [[1], [2, 3]]
    database.open.set()
    assert await asyncio.gather(*asked) == [2, 4, 6, 8]


async def test_a_lone_request_fails_with_the_very_error_of_its_own(database: Database) -> None:
    error = Unavailable("13 is stuck")

    async def fail(_: int) -> int:
        raise error

    answers = await asyncio.gather(Lane(database.together, fail, most=4).ask(13), return_exceptions=True)
    assert answers[0] is error


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


@pytest.mark.parametrize("error", [SqlError("42883", "no such function", hint="create it"), SessionsShared()], ids=repr)
async def test_each_sender_gets_a_copy_of_any_error_with_its_cause(error: GatewayError) -> None:
    error.__cause__ = ZeroDivisionError()

    async def fail(_: Sequence[int]) -> Sequence[int]:
        raise error

    lane: Lane[int, int] = Lane(fail, most=4)
    answers = await asyncio.gather(lane.ask(1), lane.ask(2), return_exceptions=True)
    assert len({id(answer) for answer in [*answers, error]}) == 3
    for answer in answers:
        assert isinstance(answer, type(error))
        assert (str(answer), vars(answer)) == (str(error), vars(error))
        assert answer.__cause__ is error.__cause__


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


async def test_an_answer_that_came_while_the_loop_was_busy_ends_its_batch(database: Database) -> None:
    """No other one sets out beside it, although the loop finds both due in one turn: the answer, and ``overlap``."""
    lane, clock = database.lane(most=1, overlap=PATIENCE, half_from=8), Clock()
    asked = [lane.ask(1)]
    await settled()
    asked += [lane.ask(2), lane.ask(3)]
    here, there = socket.socketpair()
    with here, there:
        asyncio.get_running_loop().add_reader(here, database.answer_once, here)
        there.send(b"!")
        await clock.pass_by(PATIENCE)
        asyncio.get_running_loop().remove_reader(here)
    assert database.batches == [[1], [2]]
    database.open.set()
    assert await asyncio.gather(*asked) == [2, 4, 6]


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


async def test_closing_waits_for_the_batch_behind_the_one_under_way(database: Database) -> None:
    lane = database.lane()
    asked = [lane.ask(1)]
    await settled()
    asked.append(lane.ask(2))
    closing = asyncio.create_task(lane.close(PATIENCE))
    await settled()
    database.answer_once()
    await settled()
    assert not closing.done()
    database.open.set()
    await closing
    assert [answer.result() for answer in asked] == [2, 4]


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
