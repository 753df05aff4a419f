"""A protocol is sent the answer of each effect, or its error, and is closed at the end."""

import asyncio
from collections.abc import Generator

import pytest

from gateway.driver import drive
from gateway.errors import Unavailable


async def doubled(effect: int) -> int:
    if effect < 0:
        raise Unavailable(f"{effect} cannot be done.")
    if not effect:
        raise asyncio.CancelledError
    return 2 * effect


async def test_each_effect_is_carried_out_and_its_answer_sent() -> None:
    def steps() -> Generator[int, int, list[int]]:
        return [(yield 1), (yield 2)]

    assert await drive(steps(), doubled) == [2, 4]


async def test_a_protocol_may_catch_the_error_of_an_effect_and_go_on() -> None:
    def steps() -> Generator[int, int, int]:
        try:
            yield -1
        except Unavailable:
            return (yield 3)
        return 0

    assert await drive(steps(), doubled) == 6


@pytest.mark.parametrize(("effect", "error"), [(-1, Unavailable), (0, asyncio.CancelledError)])
async def test_what_it_does_not_catch_ends_it_and_it_is_closed(effect: int, error: type[BaseException]) -> None:
    ended: list[bool] = []

    def steps() -> Generator[int, int, None]:
        try:
            yield effect
        finally:
            ended.append(True)

    with pytest.raises(error):
        await drive(steps(), doubled)
    assert ended == [True]
