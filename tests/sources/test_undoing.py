"""Steps that are carried out whole, whichever task cancels them, and by whichever library."""

import asyncio

import anyio
import pytest

from gateway.client.cancellation import MOST, Remembered, whole


async def test_a_step_ends_before_its_cancellation_is_felt() -> None:
    gate, done = asyncio.Event(), []

    async def step() -> None:
        await gate.wait()
        done.append(True)

    task = asyncio.create_task(whole(step()))
    for _ in range(3):
        await asyncio.sleep(0)
        task.cancel()
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert done


async def test_a_step_that_fails_while_it_is_cancelled_is_cancelled() -> None:
    gate = asyncio.Event()

    async def step() -> None:
        await gate.wait()
        raise ValueError

    task = asyncio.create_task(whole(step()))
    await asyncio.sleep(0)
    task.cancel()
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_cancelled_scope_of_anyio_lets_the_step_end_and_then_leaves() -> None:
    done = []

    async def step() -> None:
        await asyncio.sleep(0.02)
        done.append(True)

    with anyio.CancelScope() as scope:
        scope.cancel()
        await whole(step())
        assert done
        await anyio.sleep(10)
    assert scope.cancelled_caught


async def test_what_a_step_returns_and_raises_is_passed_on() -> None:
    async def give() -> int:
        return 5

    async def fail() -> None:
        raise ValueError

    assert await whole(give()) == 5
    with pytest.raises(ValueError):  # noqa: PT011 - it has no words
        await whole(fail())


def test_only_so_much_is_remembered() -> None:
    remembered: Remembered[int, str] = Remembered()
    for number in range(MOST + 1):
        remembered[number] = "x"
    assert remembered.get(0) is None
    assert remembered.take(1) == "x"
    assert remembered.take(1) is None
