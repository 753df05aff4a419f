"""An engine's transactions have the locks that their task or thread holds when they begin, and pass none of them on."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.orm import Session

from gateway.client import FencedClient, LockLost, Stale, blocking
from gateway.client.sqlalchemy import fenced
from tests.frameworks.stage import FencedClient as Zombie
from tests.frameworks.stage import Stage
from tests.running import API_KEY

WRITE = text("UPDATE orders SET state = :state WHERE id = :id")
SETTINGS = text(
    "SELECT coalesce(current_setting('fencing.resource', true), '') || coalesce(current_setting('fencing.held', true), "
    "'') || current_setting('application_name')"
)

WAITING = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"


def url(stage: Stage, driver: str) -> str:
    return stage.app.replace("postgresql:", f"postgresql+{driver}:")


@pytest.fixture
def engine(stage: Stage) -> Iterator[Engine]:
    """One connection, which all transactions share."""
    made = fenced(create_engine(url(stage, "psycopg"), pool_size=1, max_overflow=0))
    yield made
    made.dispose()


@pytest.fixture
async def crowd(stage: Stage) -> AsyncIterator[AsyncEngine]:
    made = fenced(create_async_engine(url(stage, "asyncpg"), pool_size=2, max_overflow=0))
    yield made
    await made.dispose()


@pytest.fixture
def client(stage: Stage) -> Iterator[blocking.FencedClient]:
    with stage.gateway.blocking() as made:
        yield made


def write(engine: Engine, number: int, state: str = "sent") -> None:
    with engine.begin() as connection:
        connection.execute(WRITE, {"id": number, "state": state})


def test_a_pooled_connection_carries_nothing_over(stage: Stage, engine: Engine, client: blocking.FencedClient) -> None:
    number = stage.order()
    with engine.connect() as connection:
        before = connection.scalar(SETTINGS)
    with client.lock(f"order/{number}") as lock:
        write(engine, number)
        with engine.connect() as connection:
            assert f"order/{number}" in connection.scalar(SETTINGS)
            assert f"order/{number}={lock.token} {lock.state.tag}" in connection.scalar(SETTINGS)
    with engine.connect() as connection:
        assert connection.scalar(SETTINGS) == before
    with pytest.raises(DBAPIError, match="holds no fencing token"):
        write(engine, number, "late")
    assert stage.row(number) == ("sent", None)


def test_a_lock_covers_its_rows_and_locks_around_it_theirs(
    stage: Stage, engine: Engine, client: blocking.FencedClient
) -> None:
    outer, inner, other = stage.order(), stage.order(), stage.order()
    with client.lock(f"order/{outer}"):
        with client.lock(f"order/{inner}"):
            with Session(engine) as session, session.begin():
                for number in (outer, inner):
                    session.execute(WRITE, {"id": number, "state": "sent"})
            with pytest.raises(DBAPIError, match=f"order/{other}, which this transaction does not hold"):
                write(engine, other)
        write(engine, outer, "done")
        with pytest.raises(DBAPIError, match=f"order/{inner}, which this transaction does not hold"):
            write(engine, inner, "done")
    assert [stage.row(number)[0] for number in (outer, inner, other)] == ["done", "sent", "new"]


def test_a_thread_has_no_lock_of_another_thread(stage: Stage, engine: Engine, client: blocking.FencedClient) -> None:
    number = stage.order()
    with (
        ThreadPoolExecutor() as threads,
        client.lock(f"order/{number}"),
        pytest.raises(DBAPIError, match="holds no fencing token"),
    ):
        threads.submit(write, engine, number).result()


def test_under_a_lost_lock_nothing_is_sent(stage: Stage, engine: Engine, client: blocking.FencedClient) -> None:
    number = stage.order()
    with client.lock(f"order/{number}", on_loss="tell") as lock:
        lock.overtaken(Stale("A newer one.", facts={"resource": f"order/{number}"}))
        with pytest.raises(LockLost):
            write(engine, number)
        # Not even by a connection that does not stop at the error.
        with engine.connect() as connection:
            with suppress(LockLost):
                connection.execute(WRITE, {"id": number, "state": "late"})
            with pytest.raises((LockLost, DBAPIError)):
                connection.execute(WRITE, {"id": number, "state": "late"})
            connection.commit()
    assert stage.row(number) == ("new", None)


async def test_tasks_have_locks_of_their_own_on_shared_connections(stage: Stage, crowd: AsyncEngine) -> None:
    refused: list[str] = []

    async def ship(client: FencedClient, own: int, others: list[int]) -> None:
        async with client.lock(f"order/{own}"):
            for number in (*others, own):
                try:
                    async with crowd.begin() as connection:
                        await connection.execute(WRITE, {"id": number, "state": str(own)})
                except DBAPIError as error:
                    refused.append(str(error))

    numbers = [stage.order() for _ in range(6)]
    async with stage.gateway.client() as client:
        works = [ship(client, one, [other for other in numbers if other != one]) for one in numbers]
        await asyncio.gather(*works)
    assert len(refused) == 30
    assert all("which this transaction does not hold" in one for one in refused)
    assert [stage.row(number)[0] for number in numbers] == [str(number) for number in numbers]


async def test_a_task_that_outlives_its_block_has_no_lock(stage: Stage, crowd: AsyncEngine) -> None:
    number, left = stage.order(), asyncio.Event()

    async def late() -> None:
        await left.wait()
        async with crowd.begin() as connection:
            await connection.execute(WRITE, {"id": number, "state": "late"})

    async with stage.gateway.client() as client:
        async with client.lock(f"order/{number}"):
            task = asyncio.ensure_future(late())
            await asyncio.sleep(0)
        left.set()
        with pytest.raises(DBAPIError, match="holds no fencing token"):
            await task
    assert stage.row(number) == ("new", None)


class TestHold:
    """With ``hold`` all of a transaction is fenced, and a newer holder waits for its end."""

    @pytest.fixture
    def engine(self, stage: Stage) -> Iterator[Engine]:
        made = fenced(create_engine(url(stage, "psycopg")), hold=True)
        yield made
        made.dispose()

    def test_a_zombie_writes_no_unguarded_table_either(
        self, stage: Stage, engine: Engine, client: blocking.FencedClient
    ) -> None:
        resource = f"order/{stage.order()}"
        note: dict[str, Any] = {"id": stage.order()}
        with Zombie(stage.gateway.origin, api_key=API_KEY) as paused, paused.lock(resource) as lock:
            with engine.begin() as connection:
                connection.execute(text("INSERT INTO notes VALUES (:id, 'first')"), note)
            with client.lock(resource):
                pass
            with pytest.raises(Stale), engine.begin() as connection:
                connection.execute(text("UPDATE notes SET body = 'late' WHERE id = :id"), note)
            assert lock.lost.is_set()
            lock._on_loss = "tell"
        assert stage.execute("SELECT body FROM notes WHERE id = %s", note["id"]) == [("first",)]

    def test_a_lock_without_a_barrier_is_claimed(
        self, stage: Stage, engine: Engine, client: blocking.FencedClient
    ) -> None:
        number = stage.order()
        with client.lock(f"order/{number}", barrier=False):
            write(engine, number)
        assert stage.row(number) == ("sent", None)

    def test_a_newer_holder_waits_for_the_end_of_the_transaction(
        self, stage: Stage, engine: Engine, client: blocking.FencedClient
    ) -> None:
        number = stage.order()
        with (
            ThreadPoolExecutor() as threads,
            Zombie(stage.gateway.origin, api_key=API_KEY) as paused,
            paused.lock(f"order/{number}", on_loss="tell"),
        ):
            with engine.begin() as connection:
                connection.execute(text("SELECT 1"))
                newer = threads.submit(client.lock(f"order/{number}").__enter__)
                while stage.execute(WAITING) == [(0,)]:
                    assert not newer.done()
                connection.execute(WRITE, {"id": number, "state": "in time"})
            newer.result().leave()
            with pytest.raises((Stale, LockLost)):
                write(engine, number, "late")
        assert stage.row(number) == ("in time", None)
