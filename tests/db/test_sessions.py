"""Sessions are bounded, handed out in turn, and never reused in an unknown state."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable

import asyncpg
import pytest

from gateway.db.database import Database, Transaction
from gateway.db.pool import Session, SessionPool
from gateway.errors import Unavailable
from tests.waiting import PATIENCE

Make = Callable[..., SessionPool]


@pytest.fixture
async def make(dsn: str) -> AsyncIterator[Make]:
    made: list[SessionPool] = []

    async def connect() -> Session:
        session: Session = await asyncpg.connect(dsn)
        return session

    def sessions(limit: int, timeout: float = PATIENCE) -> SessionPool:
        made.append(SessionPool(connect, limit, timeout))
        return made[-1]

    yield sessions
    for one in made:
        await one.close()
    await asyncio.sleep(0)


async def test_no_more_than_the_limit_and_each_in_its_turn(make: Make) -> None:
    sessions = make(2)
    held = [await sessions.take(), await sessions.take()]
    order: list[int] = []

    async def taker(number: int) -> None:
        session = await sessions.take()
        order.append(number)
        await session.execute("SELECT 1")
        sessions.give(session)

    async with asyncio.TaskGroup() as tasks:
        for number in range(5):
            tasks.create_task(taker(number))
            await asyncio.sleep(0)
        await asyncio.sleep(0.05)
        assert order == []
        sessions.give(held[0])
    sessions.give(held[1])
    assert order == [0, 1, 2, 3, 4]


async def test_a_session_is_reused(make: Make) -> None:
    sessions = make(4)
    first = await sessions.take()
    sessions.give(first)
    assert await sessions.take() is first
    sessions.give(first)


async def test_a_session_inside_a_transaction_is_not(make: Make) -> None:
    sessions = make(1)
    first = await sessions.take()
    await first.execute("BEGIN")
    sessions.give(first)
    second = await sessions.take()
    assert second is not first
    assert not second.is_in_transaction()
    sessions.give(second)


async def test_waiting_ends(make: Make) -> None:
    sessions = make(1, timeout=0.1)
    held = await sessions.take()
    with pytest.raises(TimeoutError):
        await sessions.take()
    sessions.give(held)
    assert await sessions.take() is held
    sessions.give(held)


async def test_who_gives_up_does_not_take_the_turn_of_the_next(make: Make) -> None:
    sessions = make(1)
    held = await sessions.take()
    impatient, next_one = asyncio.create_task(sessions.take()), asyncio.create_task(sessions.take())
    await asyncio.sleep(0)
    sessions.give(held)
    impatient.cancel()
    async with asyncio.timeout(PATIENCE):
        assert await next_one is held
    sessions.give(held)


async def test_a_failed_connect_makes_room_again() -> None:
    attempts = 0

    async def connect() -> Session:
        nonlocal attempts
        attempts += 1
        raise OSError

    sessions = SessionPool(connect, 1, 0.1)
    for _ in range(3):
        with pytest.raises(OSError):  # noqa: PT011 - nothing more is known of it
            await sessions.take()
    assert attempts == 3


@pytest.mark.thorough
async def test_a_full_house_is_unavailable(dsn: str) -> None:
    database = Database(dsn, pool_size=1, connect_timeout=5, idle_timeout=PATIENCE)
    taken, over = asyncio.Event(), asyncio.Event()

    async def work(_: Transaction) -> None:
        taken.set()
        await over.wait()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(database.run(work))
        await taken.wait()
        with pytest.raises(Unavailable):
            await database.fetch("SELECT 1")
        over.set()
    assert await database.fetchrow("SELECT 1") is not None
    await database.close()


async def test_sessions_whose_server_is_gone_are_closed_like_others(make: Make) -> None:
    """The socket of one is broken, but the event loop has not noticed yet. The other one still works."""
    sessions = make(2)
    held = [await sessions.take(), await sessions.take()]
    for session in held:
        sessions.give(session)
    held[0]._transport.get_extra_info("socket").shutdown(socket.SHUT_WR)  # type: ignore[attr-defined]
    await sessions.close()
    assert all(session.is_closed() for session in held)
