"""A DSN names several servers. Sessions go to the one that takes writes, and follow it when another one takes over."""

import asyncio
import socket
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import asyncpg
import httpx
import pytest

from gateway.db import servers
from gateway.db.database import Database
from gateway.errors import OutcomeUnknown, Unavailable
from tests.doctor.test_doctor import execute
from tests.postgres import as_gateway, fresh
from tests.running import API_KEY, config, running
from tests.standbys import Pair, paused, replicated
from tests.waiting import PATIENCE

LONG = 12 * PATIENCE
"""Seconds in which a session is opened: a third of them for each attempt. A silent server takes that third."""


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    with replicated() as both:
        yield both


@pytest.fixture
def nowhere() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as directory:
        yield Path(directory)


@contextmanager
def silent(directory: Path) -> Iterator[Path]:
    """The directory of a server that accepts connections, and never answers."""

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(directory / ".s.PGSQL.5432"))
        listener.listen()
        yield directory


@asynccontextmanager
async def database(dsn: str, timeout: float = LONG) -> AsyncIterator[Database]:
    opened = Database(dsn, connect_timeout=timeout)
    try:
        yield opened
    finally:
        await opened.close()


async def takes_writes(opened: Database) -> bool:
    row = await opened.fetchrow("SELECT NOT pg_is_in_recovery() AS writes")
    return row is not None and bool(row["writes"])


@pytest.mark.parametrize("attributes", ["", "&target_session_attrs=read-write"])
async def test_a_standby_in_the_list_gets_no_session(pair: Pair, attributes: str) -> None:
    for hosts in ((pair.data, pair.socket()), (pair.socket(), pair.data)):
        async with database(pair.hosts(*hosts) + attributes) as opened:
            assert await takes_writes(opened)


async def test_servers_that_are_gone_or_silent_are_passed_over(pair: Pair, nowhere: Path) -> None:
    with silent(nowhere) as mute:
        dsn = pair.hosts(Path("/nowhere"), mute, pair.data, pair.socket())
        # Much less than an attempt to open a session with the silent one.
        async with database(dsn) as opened, asyncio.timeout(PATIENCE):
            assert await takes_writes(opened)
            # It stays with the one that it has found.
            async with opened.apart() as session:
                assert await session.fetchval("SELECT 1") == 1


async def test_without_a_server_that_takes_writes_nothing_is_written(pair: Pair) -> None:
    for hosts in ((Path("/nowhere"), Path("/nowhere/else")), (pair.data, Path("/nowhere"))):
        async with database(pair.hosts(*hosts), 1.0) as opened:
            with pytest.raises(Unavailable):
                await opened.fetchrow_write("CREATE TABLE nothing ()")


async def test_a_refusal_of_a_server_is_said(pair: Pair) -> None:
    dsn = pair.hosts(Path("/nowhere"), pair.socket(), database="missing")
    async with database(dsn) as opened:
        with pytest.raises(Unavailable, match='database "missing" does not exist'):
            await opened.fetchrow("SELECT 1")


@pytest.fixture(params=[True], ids=["synchronous"])
def own(request: pytest.FixtureRequest) -> Iterator[tuple[Pair, str]]:
    """A pair to break, and the address of a database at its primary."""
    with replicated(synchronous=request.param) as both, fresh(both.primary) as dsn:
        yield both, dsn
        # To drop the database, it must not wait for its standby.
        both.forget()


@asynccontextmanager
async def writing(pair: Pair, dsn: str) -> AsyncIterator[Callable[[int, int], Coroutine[None, None, httpx.Response]]]:
    """A gateway that knows both servers: a function that writes a row with a token."""
    rows = "INSERT INTO accounts SELECT n, 'before' FROM generate_series(1, 2) n"
    await execute(dsn, "CREATE TABLE accounts (id bigint PRIMARY KEY, note text)", rows)
    hosts = as_gateway(pair.hosts(pair.socket(), pair.data, database=name_of(dsn)))
    async with (
        running(config(hosts)) as origin,
        httpx.AsyncClient(base_url=origin, headers={"apikey": API_KEY}, timeout=2 * PATIENCE) as client,
    ):

        async def write(row: int, token: int) -> httpx.Response:
            headers = {"fencing-token": str(token)}
            return await client.patch(f"/v1/tables/accounts?id=eq.{row}", json={"note": f"by {token}"}, headers=headers)

        yield write


def name_of(dsn: str) -> str:
    return dsn.partition("?")[0].rpartition("/")[2]


async def test_a_primary_that_is_paused_and_comes_back_acknowledges_nothing(own: tuple[Pair, str]) -> None:
    """A write waits at the paused primary. The standby takes over. The primary continues, and carries the write out."""
    pair, dsn = own
    async with writing(pair, dsn) as write:
        assert (await write(1, 33)).status_code == 204
        with paused(pair.former):
            waiting = asyncio.create_task(write(1, 34))
            await asyncio.sleep(0.2)
            await asyncio.to_thread(pair.promote)
            began = asyncio.get_running_loop().time()
            while (other := await write(2, 33)).status_code != 204:
                assert other.status_code == 503, other.text
                assert other.headers["retry-after"], other.text
            # A session with the paused server would have waited for twice as long.
            assert asyncio.get_running_loop().time() - began < PATIENCE
            answer = await waiting
            assert (answer.status_code, answer.json()["code"]) == (503, OutcomeUnknown.code), answer.text
        # The former primary is back. The gateway stays with its successor, where token 34 was never seen.
        await asyncio.sleep(1.5)
        assert (await write(1, 33)).status_code == 204
        new = await asyncpg.connect(pair.hosts(pair.data, database=name_of(dsn)))
        assert await new.fetchval("SELECT note FROM accounts WHERE id = 1") == "by 33"
        await new.close()


@pytest.mark.thorough
@pytest.mark.parametrize("own", [False], ids=["asynchronous"], indirect=True)
@pytest.mark.parametrize("look", [servers._LOOK, 4 * PATIENCE], ids=["usual", "one_look_over_the_promotion"])
async def test_its_answers_count_only_if_no_other_server_has_taken_over(
    own: tuple[Pair, str], look: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The primary waits for no standby, so it answers with a success as soon as it continues.

    Its successor is slower to answer than other servers have time in a calm moment. In one long look, it was still a
    standby when it was asked.
    """
    monkeypatch.setattr(servers, "_LOOK", look)
    pair, dsn = own
    async with writing(pair, dsn) as write:
        for row in (1, 2):
            assert (await write(row, 33)).status_code == 204
        with ExitStack() as slow:
            with paused(pair.former):
                waiting = asyncio.create_task(write(1, 33))
                # Longer than the answers of a server are trusted. No standby takes over any sooner.
                await asyncio.sleep(3.2)
                await asyncio.to_thread(pair.promote)
                slow.enter_context(paused(pair.data))
            await asyncio.sleep(0.7)
        answer = await waiting
        assert answer.status_code == 503, answer.text
        assert answer.json()["code"] == OutcomeUnknown.code
        async with asyncio.timeout(PATIENCE):
            while (await write(2, 33)).status_code != 204:
                pass


@pytest.mark.thorough
async def test_a_primary_that_was_paused_goes_on_if_no_other_has_taken_over(own: tuple[Pair, str]) -> None:
    pair, dsn = own
    async with writing(pair, dsn) as write:
        assert (await write(1, 33)).status_code == 204
        with paused(pair.former):
            waiting = asyncio.create_task(write(1, 33))
            await asyncio.sleep(3.2)
        assert (await waiting).status_code == 204
