"""The memory budget of bodies is never exceeded, handed out in order, and never lost."""

import asyncio
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.errors import Unavailable
from gateway.http.body import SMALL, Memory

# A body of so many bytes takes twice as many while it is put together.
BODY = 10
ROOM = 2 * BODY


class Holder:
    """A task that asks for room, and keeps it until it is told to leave."""

    def __init__(self, memory: Memory, size: int = BODY) -> None:
        self.size = size
        self._memory = memory
        self.leaving = asyncio.Event()
        self.inside = False
        self.task = asyncio.ensure_future(self._hold())

    async def _hold(self) -> None:
        async with self._memory.reserved(self.size):
            self.inside = True
            try:
                await self.leaving.wait()
            finally:
                self.inside = False

    async def leave(self) -> None:
        self.leaving.set()
        await self.task

    async def cancel(self) -> None:
        self.task.cancel()
        with suppress(asyncio.CancelledError):
            await self.task


async def settled() -> None:
    """Let everything happen that can."""
    for _ in range(5):
        await asyncio.sleep(0)


async def assert_all_there(memory: Memory, bodies: int) -> None:
    """As many bodies as there were at first have room again, and no more than those."""
    holders = [Holder(memory) for _ in range(bodies + 1)]
    await settled()
    assert [holder.inside for holder in holders] == [True] * bodies + [False]
    for holder in holders:
        await holder.cancel()


async def test_no_more_than_the_budget_is_given_out() -> None:
    memory = Memory(3 * ROOM)
    await assert_all_there(memory, 3)
    await assert_all_there(memory, 3)


async def test_what_is_given_back_goes_to_the_next() -> None:
    memory = Memory(ROOM)
    first, second, third = (Holder(memory) for _ in range(3))
    await settled()
    assert (first.inside, second.inside, third.inside) == (True, False, False)
    await first.leave()
    await settled()
    assert (second.inside, third.inside) == (True, False)
    await second.leave()
    await third.leave()
    await assert_all_there(memory, 1)


async def test_an_error_gives_back_too() -> None:
    memory = Memory(ROOM)
    for _ in range(3):
        with pytest.raises(ValueError, match="broken"):
            async with memory.reserved(BODY):
                raise ValueError("broken")
    await assert_all_there(memory, 1)


async def test_a_body_that_is_there_already_gets_room_at_once_or_none() -> None:
    memory = Memory(3 * SMALL)
    with memory.at_once(2 * SMALL), memory.at_once(SMALL):
        assert memory.used == 2 * SMALL, "a small one needs no room"
        with pytest.raises(Unavailable), memory.at_once(2 * SMALL):
            pass
        waiting = Holder(memory, SMALL)
        await settled()
        assert not waiting.inside
        with pytest.raises(Unavailable), memory.at_once(SMALL + 1):
            pass  # there is room, and it is the turn of the waiting one
    await waiting.leave()
    assert memory.used == 0


async def test_a_small_one_does_not_overtake_a_large_one() -> None:
    """Else a stream of small bodies would keep a large one waiting for ever."""
    memory = Memory(4 * ROOM)
    first = Holder(memory, 3 * BODY)
    large, small = Holder(memory, 2 * BODY), Holder(memory, BODY)
    await settled()
    assert (first.inside, large.inside, small.inside) == (True, False, False), "there is room for the small one"
    await first.leave()
    await settled()
    assert (large.inside, small.inside) == (True, True)
    await large.leave()
    await small.leave()
    await assert_all_there(memory, 4)


async def test_one_larger_than_all_of_it_gets_all_of_it() -> None:
    memory = Memory(2 * ROOM)
    one, huge, after = Holder(memory), Holder(memory, 1000 * BODY), Holder(memory)
    await settled()
    assert (one.inside, huge.inside, after.inside) == (True, False, False)
    await one.leave()
    await settled()
    assert (huge.inside, after.inside) == (True, False), "alone"
    await huge.leave()
    await after.leave()
    await assert_all_there(memory, 2)


async def test_an_empty_body_waits_for_nothing() -> None:
    memory = Memory(ROOM)
    one, empty = Holder(memory), Holder(memory, 0)
    await settled()
    assert (one.inside, empty.inside) == (True, True)
    await empty.leave()
    await one.leave()


async def test_one_that_is_cancelled_while_it_waits_leaves_the_queue() -> None:
    """The large one is in the way of the small one, for which there is room as soon as it is gone."""
    memory = Memory(2 * ROOM)
    first, large, small = Holder(memory), Holder(memory, 2 * BODY), Holder(memory)
    await settled()
    assert (large.inside, small.inside) == (False, False)
    await large.cancel()
    await settled()
    assert small.inside
    await first.leave()
    await small.leave()
    await assert_all_there(memory, 2)


async def test_one_that_is_cancelled_just_when_it_is_its_turn_gives_back() -> None:
    """It has been given room and does not know it yet."""
    memory = Memory(ROOM)
    first, waiting, next_one = (Holder(memory) for _ in range(3))
    await settled()
    first.leaving.set()
    await asyncio.sleep(0)  # the first leaves and hands over; the waiting one has not run since
    assert first.task.done() or not first.inside
    waiting.task.cancel()
    await settled()
    assert waiting.task.cancelled()
    assert next_one.inside
    await next_one.leave()
    await assert_all_there(memory, 1)


async def test_one_that_is_cancelled_inside_gives_back_once() -> None:
    memory = Memory(ROOM)
    await Holder(memory).cancel()
    one = Holder(memory)
    await settled()
    await one.cancel()
    await assert_all_there(memory, 1)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("ask"), st.integers(0, 5 * BODY)),
            st.tuples(st.sampled_from(["leave", "cancel"]), st.integers(0, 20)),
            st.tuples(st.just("settle"), st.just(0)),
        ),
        max_size=40,
    )
)
def test_whatever_happens_nothing_is_lost_and_nothing_exceeded(story: list[tuple[str, int]]) -> None:
    async def play() -> None:
        budget = 3 * ROOM
        memory = Memory(budget)
        holders: list[Holder] = []
        for deed, number in story:
            if deed == "ask":
                holders.append(Holder(memory, number))
            elif deed == "settle":
                await settled()
            elif holders:
                chosen = holders[number % len(holders)]
                if deed == "leave":
                    chosen.leaving.set()
                else:
                    chosen.task.cancel()
            inside = sum(min(2 * each.size, budget) for each in holders if each.inside)
            assert inside <= budget
        for each in holders:
            each.task.cancel()
        await asyncio.gather(*(each.task for each in holders), return_exceptions=True)
        await assert_all_there(memory, 3)

    asyncio.run(play())
