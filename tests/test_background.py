"""Background tasks survive errors, report them, and end with the gateway."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from functools import partial

import pytest

from gateway.background import Attempts, at_a_time, background_tasks, describe_failure, repeat, sweep_failed
from gateway.errors import Unavailable
from gateway.observe.events import SweepFailed
from tests.running import Events

TROUBLE = Unavailable("The database is away.")


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Record the requested pauses instead of sleeping. Other threads sleep as usual."""
    slept: list[float] = []
    here, real = threading.get_ident(), asyncio.sleep

    async def sleep(seconds: float) -> None:
        if threading.get_ident() != here:
            await real(seconds)
            return
        slept.append(seconds)
        assert len(slept) < 100, "it goes on though it was cancelled"

    monkeypatch.setattr(asyncio, "sleep", sleep)
    return slept


def going(*outcomes: Exception | None) -> Callable[[], Awaitable[None]]:
    """Return work with these outcomes, round by round. A further round is cancelled."""
    left = iter(outcomes)

    async def work() -> None:
        outcome = next(left, asyncio.CancelledError())
        if outcome is not None:
            raise outcome

    return work


class TestRounds:
    @pytest.mark.parametrize(("at_once", "slept"), [(False, [7, 7, 7]), (True, [7, 7])])
    async def test_there_is_a_pause_between_two_and_before_the_first(
        self, pauses: list[float], *, at_once: bool, slept: list[float]
    ) -> None:
        events = Events()
        with pytest.raises(asyncio.CancelledError):
            await repeat("leaves", going(None, None), events, 7, at_once=at_once)
        assert pauses == slept
        assert events == []

    async def test_what_goes_wrong_is_an_event_each_time_and_the_next_round_comes(self, pauses: list[float]) -> None:
        events = Events()
        with pytest.raises(asyncio.CancelledError):
            await repeat("leaves", going(TROUBLE, None, TROUBLE, KeyError("secret")), events, 7, at_once=True)
        trouble = SweepFailed("leaves", "The database is away.")
        assert events == [trouble, trouble, SweepFailed("leaves", "KeyError")]
        assert pauses == [7, 7, 7, 7]

    async def test_pauses_grow_while_it_goes_wrong_and_each_failure_is_an_event(self, pauses: list[float]) -> None:
        events = Events()
        work = going(None, TROUBLE, TROUBLE, TROUBLE, TROUBLE, None, TROUBLE)
        with pytest.raises(asyncio.CancelledError):
            await repeat("leaves", work, events, 2, longest=10)
        assert pauses == [2, 2, 4, 8, 10, 10, 2, 4]
        assert events == [SweepFailed("leaves", "The database is away.")] * 5


class TestAttempts:
    async def test_work_that_lasts_begins_again_with_the_first_pause_once_it_has_what_it_needs(
        self, pauses: list[float]
    ) -> None:
        events, failing = Events(), going(*[TROUBLE] * 4)
        attempts = Attempts(events, partial(sweep_failed, "ears"), 1, 10)

        async def hear() -> None:
            if len(pauses) == 2:
                attempts.succeeded()
            await failing()

        with pytest.raises(asyncio.CancelledError):
            await attempts.repeat(hear)
        assert pauses == [2, 4, 2, 4]
        assert len(events) == 4


class TestWorking:
    async def test_all_of_it_lasts_as_long_as_this_does(self) -> None:
        begun, cancelled = asyncio.Event(), []

        async def work(name: str, *, last: bool = False) -> None:
            try:
                if last:
                    begun.set()
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append(name)
                raise

        async with background_tasks(work("one"), work("other", last=True)):
            await begun.wait()
            assert cancelled == []
        assert cancelled == ["one", "other"]

    async def test_it_ends_where_what_it_works_behind_fails(self) -> None:
        async def work() -> None:
            begun.set()
            await asyncio.Event().wait()

        async def serve() -> None:
            async with background_tasks(work()):
                await begun.wait()
                raise TROUBLE

        begun = asyncio.Event()
        with pytest.raises(ExceptionGroup) as raised:
            await serve()
        assert raised.value.exceptions == (TROUBLE,)


@pytest.mark.parametrize(
    ("error", "words"), [(TROUBLE, "The database is away."), (ValueError("password=hunter2"), "ValueError")]
)
def test_only_what_was_foreseen_is_quoted(error: Exception, words: str) -> None:
    assert describe_failure(error) == words


async def test_of_many_items_at_a_time_the_first_error_is_raised_and_the_others_are_ended() -> None:
    ended: list[int] = []

    async def work(item: int) -> int:
        try:
            await asyncio.sleep(0 if item else 60)
        except asyncio.CancelledError:
            ended.append(item)
            raise
        if item == 3:
            raise KeyError(item)
        return 2 * item

    assert await at_a_time(2, work, [1, 2]) == [2, 4]
    with pytest.raises(KeyError):
        await at_a_time(2, work, [0, 1, 2, 3])
    assert ended == [0]
