"""Locks of a database alone: jobs acquire, write and are overtaken with no gateway, and go on when one is added."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import asyncpg
import httpx
import psycopg
import pytest
import sqlalchemy

from gateway.client import FencedClient, LockLost, NotAcquired, Refused, Stale, Unavailable, blocking
from gateway.client.etcd import EtcdSource
from gateway.client.hold import Hold
from gateway.client.postgres import DatabaseLeases
from gateway.client.sqlalchemy import fenced
from gateway.db import rights
from tests.guard.stage import Session, Stage, hold, refused, session
from tests.processes import closed_port
from tests.running import API_KEY, running
from tests.tiers import first
from tests.waiting import PATIENCE, waiting

Write: TypeAlias = Callable[[str, Hold, str], Awaitable[None]]

SENT = "UPDATE shipments SET state = %s WHERE order_id = 5"


async def by_psycopg(dsn: str, lock: Hold, state: str) -> None:
    async with await psycopg.AsyncConnection.connect(lock.dsn(dsn)) as connection:
        await connection.execute(SENT.encode(), (state,))


async def by_asyncpg(dsn: str, lock: Hold, state: str) -> None:
    opened = await asyncpg.connect(dsn, server_settings=lock.postgres_settings())
    try:
        await opened.execute(SENT.replace("%s", "$1"), state)
    finally:
        await opened.close()


async def by_sqlalchemy(dsn: str, lock: Hold, state: str) -> None:
    url = dsn.replace("postgresql://", "postgresql+psycopg://")
    engine = fenced(sqlalchemy.create_engine(url, poolclass=sqlalchemy.NullPool))
    with engine.begin() as connection:
        connection.exec_driver_sql(SENT, (state,))


async def take_away(stage: Stage, resource: str = "order/5") -> None:
    """Break the lock without notice to its holder, as an operator does."""
    await stage.execute(
        "SELECT fencing.break_v1(resource, epoch, value, 'role:operator', 'a test') FROM fencing.lease"
        f" WHERE resource = '{resource}'"
    )


async def states(stage: Stage) -> set[str]:
    return {state for (state,) in await stage.rows("SELECT DISTINCT state FROM shipments WHERE order_id = 5")}


async def rejection(origin: str, resource: str) -> dict[str, Any]:
    """Return the entry of the only refusal, once a gateway has made it."""
    headers = {"authorization": f"Bearer {API_KEY}"}
    async with httpx.AsyncClient(base_url=origin, headers=headers) as client, asyncio.timeout(PATIENCE):
        while True:
            found = (await client.get("/v1/rejections", params={"resource": resource})).json()["rejections"]
            if found:
                (entry,) = found
                return dict(entry)
            await asyncio.sleep(0.05)


class Zombie:
    """A task in the block of a lock: it writes once, and again when it wakes up."""

    def __init__(self, stage: Stage, write: Write) -> None:
        self.held = asyncio.Event()
        self.awake = asyncio.Event()
        self.token = self.holder = ""
        self._stage, self._write = stage, write

    async def run(self) -> None:
        async with (
            FencedClient(self._stage.app, holder="first") as client,
            client.lock("order/5", on_loss="tell") as lock,
        ):
            self.token, self.holder = lock.token, lock.holder
            await self._write(self._stage.app, lock, "first")
            self.held.set()
            await self.awake.wait()
            await self._write(self._stage.app, lock, "late")


@pytest.mark.parametrize("write", first([by_psycopg, by_asyncpg, by_sqlalchemy]), ids=lambda way: way.__name__)
async def test_a_zombie_is_refused_and_a_gateway_that_is_added_later_has_it_on_record(
    guarded: Stage, write: Write
) -> None:
    zombie = Zombie(guarded, write)
    running_job = asyncio.create_task(zombie.run())
    await asyncio.wait_for(zombie.held.wait(), PATIENCE)
    assert await states(guarded) == {"first"}
    await take_away(guarded)
    async with FencedClient(guarded.app) as client, client.lock("order/5") as lock:
        assert int(lock.token) > int(zombie.token)
        zombie.awake.set()
        with pytest.raises((psycopg.Error, asyncpg.PostgresError, Stale), match=f"overtaken by {lock.token}"):
            await running_job
        await write(guarded.app, lock, "second")
    assert await states(guarded) == {"second"}
    await rights.grant(guarded.owner, guarded.gateway_role)
    async with running(guarded.config()) as origin:
        entry = await rejection(origin, "order/5")
    assert (entry["reason"], entry["token"], entry["fence"]) == ("token-stale", zombie.token, lock.token)
    assert (entry["caller"], entry["holder"]) == (f"role:{guarded.app_role}", zombie.holder)
