"""Shares: a caller that behaves never waits for one that does not, and nothing is lost of what is handed out."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway import budget
from gateway.budget import CALLER, Budget, Caller, NetworkRates
from gateway.errors import Overloaded
from tests.waiting import PATIENCE

SIZE = 64
SHARE = SIZE // 4
ANN, BEN = Caller("ann"), Caller("ben")
STRANGERS = [Caller(f"192.0.2.{number}", is_anonymous=True) for number in range(4)]


def scarce_things(size: int = SIZE, *, share: float = budget.SHARE, patience: float = PATIENCE) -> Budget:
    return Budget(size, "things", share=share, patience=patience)


@pytest.fixture(autouse=True)
def _own_work() -> Iterator[None]:
    """Tests of one module share a context."""
    CALLER.set(None)
    yield
    CALLER.set(None)


class Holder:
    """A task that asks for an amount, and keeps it until it is told to leave."""

    def __init__(self, scarce: Budget, caller: Caller | None, amount: int = 1) -> None:
        self.caller, self.amount, self.inside = caller, amount, False
        self._scarce, self.leaving = scarce, asyncio.Event()
        self.task = asyncio.ensure_future(self._hold())

    async def _hold(self) -> None:
        CALLER.set(self.caller)
        self.amount = min(self.amount, self._scarce.most())
        async with self._scarce.held(self.amount):
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


async def holders(scarce: Budget, *wanted: tuple[Caller | None, int]) -> list[Holder]:
    """Return holders that have asked in this order."""
    made = [Holder(scarce, *one) for one in wanted]
    await settled()
    return made


async def end(*running: Holder) -> None:
    for one in running:
        await one.cancel()


async def test_one_caller_has_its_share_and_the_next_one_does_not_wait() -> None:
    scarce = scarce_things()
    greedy = await holders(scarce, *[(ANN, 1)] * (SHARE + 5))
    assert [one.inside for one in greedy] == [True] * SHARE + [False] * 5
    [other] = await holders(scarce, (BEN, SHARE))
    assert other.inside
    await greedy[0].leave()
    await settled()
    assert greedy[SHARE].inside, "it gets what it has given back"
    await end(*greedy, other)
    assert scarce.used == scarce.waiting == 0


async def test_strangers_have_half_together_and_each_network_its_share() -> None:
    scarce = scarce_things()
    asked = await holders(scarce, *[(one, SHARE) for one in STRANGERS], (STRANGERS[0], 1), (ANN, 1))
    assert [one.inside for one in asked] == [True, True, False, False, False, True]
    await end(*asked)


@pytest.mark.parametrize("size", [1, 2, 3])
async def test_of_a_few_things_each_caller_has_one(size: int) -> None:
    scarce = scarce_things(size)
    for one in (ANN, STRANGERS[0]):
        [held] = await holders(scarce, (one, 1))
        assert held.inside
        await end(held)


async def test_a_large_share_gives_strangers_no_more_than_half() -> None:
    scarce = scarce_things(share=0.9)
    [large] = await holders(scarce, (STRANGERS[0], SIZE))
    assert (large.inside, scarce.used) == (True, SIZE // 2)
    await end(large)


async def test_the_last_quarter_is_kept_for_callers_with_the_least() -> None:
    scarce = scarce_things()
    greedy = await holders(scarce, *[(Caller(name), SHARE) for name in "abcd"])
    assert [one.inside for one in greedy] == [True, True, True, False]
    modest = await holders(scarce, *[(Caller(f"modest {number}"), 1) for number in range(SHARE)])
    assert all(one.inside for one in modest)
    await end(*greedy, *modest)


async def test_an_amount_beyond_the_share_gets_all_of_the_share_alone() -> None:
    scarce = scarce_things()
    large, more = await holders(scarce, (ANN, 10 * SIZE), (ANN, 1))
    assert (large.inside, more.inside, scarce.used) == (True, False, SHARE)
    await end(large, more)


async def test_requests_of_one_caller_have_their_turn_in_order_and_callers_in_turns() -> None:
    """Else a stream of small requests would keep a large one waiting for ever."""
    scarce = scarce_things(share=0.5)
    full = await holders(scarce, (ANN, 32), (BEN, 16))
    large, small, other = await holders(scarce, (ANN, 20), (ANN, 1), (BEN, 1))
    assert (large.inside, small.inside, other.inside) == (False, False, False)
    await full[0].leave()
    await settled()
    assert (large.inside, small.inside, other.inside) == (True, True, True)
    await end(*full, large, small, other)


async def test_one_that_is_cancelled_while_it_waits_leaves_the_queue() -> None:
    scarce = scarce_things()
    first, large, small = await holders(scarce, (ANN, 10), (ANN, 10), (ANN, 1))
    assert (large.inside, small.inside) == (False, False)
    await large.cancel()
    await settled()
    assert small.inside
    await end(first, small)


async def test_waiting_ends_with_the_true_reason() -> None:
    scarce = scarce_things(4, patience=0.01)
    for holding, asking, said in (
        (ANN, ANN, "The things that ann may use at one time are in use."),
        (
            STRANGERS[0],
            STRANGERS[0],
            "The things that all anonymous callers at 192.0.2.0 may use at one time are in use.",
        ),
        (None, BEN, "All things are in use."),
    ):
        [held] = await holders(scarce, (holding, 4))
        [refused] = await holders(scarce, (asking, 1))
        with pytest.raises(Overloaded) as caught:
            await refused.task
        assert caught.value.message == said
        assert caught.value.retry_after == 1
        await held.leave()


async def test_what_has_to_be_there_at_once_is_there_or_refused() -> None:
    scarce = scarce_things()
    CALLER.set(ANN)
    with scarce.held_now(SHARE), pytest.raises(Overloaded):
        scarce.take_now(1)
    room = scarce.take_now(SHARE - 1)
    waiting, _ = await holders(scarce, (ANN, 2), (BEN, 1))
    with pytest.raises(Overloaded):
        scarce.take_now(1)  # there is room, and it is the turn of the waiting one
    scarce.give(room)
    await waiting.leave()


async def test_a_request_keeps_the_largest_of_what_it_needs_until_it_is_answered() -> None:
    scarce = scarce_things()

    async def answering() -> None:
        budget.serve({"client": None}, "ann")
        await scarce.keep(3)
        scarce.keep_now(2)
        assert scarce.used == 3
        scarce.keep_now(5)
        assert scarce.used == 5
        await scarce.keep(10 * SIZE)
        assert scarce.used == SHARE
        scarce.release()
        assert scarce.used == 0
        await scarce.keep(1)

    await budget.one_request(answering())
    assert scarce.used == 0


def test_each_network_has_a_rate_and_all_have_four_times_as_much() -> None:
    rates = NetworkRates(3, 1.0)
    assert [rates.take("192.0.2.1", number, 0.0) for number in (4, 2, 2, 1, 1)] == [False, True, False, True, False]
    assert rates.take("192.0.2.1", 2, 2.0), "a second each"
    many = [rates.take(f"198.51.100.{number}", 1, 2.0) for number in range(20)]
    assert sum(many) == 10, "all had twelve, of which two are gone"


BURST = 64
"""Of one network. The least is four events, and a sixteenth of one each second."""


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 8), st.sampled_from([1, BURST]), st.sampled_from([0.0, 0.1, 1.0, 100.0]))),
    st.integers(1, 4),
)
def test_networks_that_take_all_they_can_leave_the_least_to_one_that_behaves(
    story: list[tuple[int, int, float]], wanted: int
) -> None:
    """However they share it, over any time. The modest one takes its least in one piece, or one by one."""
    rates, now, taken = NetworkRates(BURST, 1.0), 0.0, Counter[int]()
    for greedy, number, pause in [(one, BURST, 0.0) for one in range(9)] + story:
        now += pause
        left = number
        while left and not rates.take(f"192.0.2.{greedy}", left, now):
            left -= 1
        taken[greedy] += left
        assert taken[greedy] <= BURST + now
    assert taken.total() <= 4 * (BURST + now)
    assert all(rates.take("198.51.100.1", one, now) for one in (wanted, *[1] * (4 - wanted)))


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        (None, ""),
    ],
)
def test_strangers_are_told_apart_by_their_network(address: str | None, network: str) -> None:
    state = {"client": address}
    budget.serve(state, "anonymous")
    assert CALLER.get() == Caller(network, is_anonymous=True)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.sampled_from([ANN, BEN, *STRANGERS, None]), st.integers(0, 2 * SHARE)),
            st.tuples(st.sampled_from(["leave", "cancel", "settle"]), st.integers(0, 20)),
        ),
        max_size=40,
    )
)
async def test_in_any_story_nothing_is_lost_and_no_share_exceeded(
    story: list[tuple[Caller | str | None, int]],
) -> None:
    scarce = scarce_things()
    asked: list[Holder] = []
    for deed, number in story:
        if not isinstance(deed, str):
            asked.append(Holder(scarce, deed, number))
        elif deed == "settle":
            await settled()
        elif asked:
            chosen = asked[number % len(asked)]
            if deed == "leave":
                chosen.leaving.set()
            else:
                chosen.task.cancel()
        used: Counter[Caller | None] = Counter()
        for one in asked:
            used[one.caller] += one.amount * one.inside
        assert used.total() <= SIZE
        assert all(amount <= SHARE for caller, amount in used.items() if caller is not None)
        assert sum(used[one] for one in STRANGERS) <= SIZE // 2
    for one in asked:
        one.task.cancel()
    await asyncio.gather(*(one.task for one in asked), return_exceptions=True)
    assert (scarce.used, scarce.waiting) == (0, 0)
    [whole] = await holders(scarce, (None, SIZE))
    assert whole.inside
    await whole.leave()
