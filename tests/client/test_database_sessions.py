"""Sessions of databases under a lock: their settings by each driver, and their end when the lock is lost."""

import asyncio
from collections.abc import Callable
from typing import Any

import asyncpg
import psycopg
import pytest
import sqlalchemy

from gateway.client import FencedClient, LockLost
from tests.client.stage import Stage

SHOWN = "SELECT current_setting('fencing.resource'), current_setting('fencing.token'), current_setting('fencing.held')"


async def test_each_driver_gets_the_settings(stage: Stage, client: FencedClient, job: str) -> None:
    async with client.lock(job) as lock, client.lock(f"{job}/part") as part:
        held = f'{{"{job}/part":{{"token":"{part.token}","holder":"{part.holder}"}}}}'
        expected = (job, lock.token, held)
        for dsn in (lock.dsn(stage.dsn, part), lock.dsn(psycopg.conninfo.make_conninfo(stage.dsn), part)):
            async with await psycopg.AsyncConnection.connect(dsn) as connection:
                assert await (await connection.execute(SHOWN)).fetchone() == expected
        arguments = lock.connect_args(part, options="-c work_mem=5MB")
        async with await psycopg.AsyncConnection.connect(stage.dsn, **arguments) as connection:  # type: ignore[arg-type]
            assert await (await connection.execute(SHOWN)).fetchone() == expected
            assert await (await connection.execute("SHOW work_mem")).fetchone() == ("5MB",)
        engine = sqlalchemy.create_engine(
            stage.dsn.replace("postgresql:", "postgresql+psycopg:"), connect_args=lock.connect_args(part)
        )
        with engine.connect() as session:
            assert tuple(session.exec_driver_sql(SHOWN).one()) == expected
        engine.dispose()
        opened = await asyncpg.connect(stage.dsn, server_settings=lock.postgres_settings(part))
        assert tuple(await opened.fetchrow(SHOWN) or ()) == expected
        await opened.close()
        variables = await lock.environment(s3=False, inherited={"PGOPTIONS": "-c work_mem=5MB", "PGAPPNAME": "job"})
        assert variables["PGOPTIONS"].startswith("-c work_mem=5MB -c fencing.resource=")
        assert " fencing-" in variables["PGAPPNAME"]
        assert lock.token in variables["PGAPPNAME"]


def test_the_same_without_an_event_loop(stage: Stage, job: str) -> None:
    with stage.blocking() as client, client.lock(job) as lock:
        with psycopg.connect(lock.dsn(stage.dsn)) as connection:
            assert connection.execute(SHOWN).fetchone() == (job, lock.token, "")
        assert lock.environment(s3=False)["PGOPTIONS"].startswith("-c fencing.resource=")


@pytest.mark.parametrize("use", ["dsn", "connect_args", "postgres_settings"])
async def test_a_lost_lock_gives_out_nothing(stage: Stage, eager: FencedClient, job: str, use: str) -> None:
    arguments = (stage.dsn,) if use == "dsn" else ()
    with pytest.raises(LockLost):
        async with eager.lock(job, on_loss="tell") as lock:
            stage.ended(job)
            await lock.lost.wait()
            getattr(lock, use)(*arguments)


async def ended_when_lost(stage: Stage, dsn: str, lose: Callable[[], Any]) -> None:
    own = await psycopg.AsyncConnection.connect(dsn)
    async with await psycopg.AsyncConnection.connect(stage.dsn, application_name="another") as others:
        await own.execute("SELECT 1")
        lose()
        with pytest.raises(psycopg.OperationalError, match="terminating connection"):
            await own.execute("SELECT pg_sleep(30)")
        assert await (await others.execute("SELECT 1")).fetchone() == (1,)


async def test_its_sessions_end_with_it_and_no_others(stage: Stage, eager: FencedClient, job: str) -> None:
    async with eager.lock(job, on_loss="tell") as lock:
        await ended_when_lost(stage, lock.dsn(stage.dsn), lambda: stage.ended(job))


async def test_its_sessions_end_also_where_the_block_is_cancelled(stage: Stage, eager: FencedClient, job: str) -> None:
    with pytest.raises(LockLost):
        async with eager.lock(job) as lock:
            own = await psycopg.AsyncConnection.connect(lock.dsn(stage.dsn))
            stage.ended(job)
            await asyncio.sleep(30)
    with pytest.raises(psycopg.OperationalError):
        await own.execute("SELECT 1")


async def test_a_database_that_is_away_hides_no_loss(
    stage: Stage, eager: FencedClient, job: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(LockLost):
        async with eager.lock(job) as lock:
            lock.dsn("postgresql://app:a-secret@127.0.0.1:9/nowhere")
            stage.ended(job)
            await asyncio.sleep(30)
    assert "were not ended" in caplog.text
    assert "a-secret" not in caplog.text
