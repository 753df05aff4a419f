"""Tokens from a table of Postgres, against a real server."""

import asyncio
import contextlib
import re
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, TypeAlias

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from gateway.client.errors import FencingError, NotAcquired, Refused, Unavailable
from gateway.client.postgres import TABLE, PostgresSource
from gateway.demo.embedded import EmbeddedPostgres
from tests import ROOT
from tests.postgres import OwnPostgres
from tests.postgres_relay import relay
from tests.sources.exchanges import acquire, assert_held_by, assert_overtaken

Sources: TypeAlias = Callable[..., Awaitable[PostgresSource]]

PAGE = ROOT / "docs/sources.md"
ODD = ["a", "a/", "A", "a%20b", "..", "a'b", 'a"b', "%s", "{table}", "(a)!$&*+;:@~-_.", "x" * 512]


@pytest.fixture(scope="module")
def dsn(postgres_server: EmbeddedPostgres | OwnPostgres) -> Iterator[str]:
    """A database without anything of the gateway's, for all tests of this file."""
    name = f"locks_{uuid.uuid4().hex}"
    with psycopg.connect(postgres_server.dsn(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
        yield postgres_server.dsn(name)
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


@pytest.fixture
async def sources(dsn: str) -> AsyncIterator[Sources]:
    """Makes sources of a database that has the table, and closes them in the end."""
    async with contextlib.AsyncExitStack() as stack:

        async def make(url: str = dsn, **given: Any) -> PostgresSource:
            source = PostgresSource(url, **{"poll": 0.02, **given})
            stack.push_async_callback(source.aclose)
            return source

        await (await make()).install()
        yield make


@pytest.fixture
async def administrator(dsn: str) -> AsyncIterator["psycopg.AsyncConnection[Any]"]:
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        yield connection


Administrator: TypeAlias = "psycopg.AsyncConnection[Any]"


async def test_tokens_grow_from_holder_to_holder(sources: Sources) -> None:
    one, other = await sources(), await sources()
    held = await acquire(one, "order/1", "one")
    assert held.value == 1
    assert await one.holds(held)
    refused = await assert_held_by("one", other, "order/1")
    assert refused.expires_in is not None
    assert 1 < refused.expires_in <= 10
    renewed = await one.renew(held, 20)
    assert (renewed.value, renewed.valid_until > held.valid_until) == (held.value, True)
    await one.release(renewed)
    assert not await one.holds(renewed)
    taken = await acquire(other, "order/1", "other")
    assert taken.value == 2
    await one.release(renewed)
    assert await other.holds(taken)


async def test_a_paused_holder_is_overtaken_and_finds_out(sources: Sources) -> None:
    paused, other = await sources(), await sources()
    held = await acquire(paused, "order/2", "paused", ttl=0.2)
    taken = await acquire(other, "order/2", "other", wait=None)
    assert time.clock_gettime(time.CLOCK_BOOTTIME) >= held.valid_until
    assert taken.value == held.value + 1
    await assert_overtaken(paused, held, other, taken)


async def test_who_waits_gives_up_in_time(sources: Sources) -> None:
    one, other = await sources(), await sources(poll=60)
    await acquire(one, "order/5", "one")
    began = time.monotonic()
    with pytest.raises(NotAcquired) as refused:
        await acquire(other, "order/5", "other", wait=0.2)
    assert 0.2 <= time.monotonic() - began < 30, "not at its next look"
    assert refused.value.holder == "one"


async def test_many_at_once_have_it_one_after_the_other(sources: Sources) -> None:
    inside, tokens = 0, []

    async def hold(name: str) -> None:
        nonlocal inside
        source = await sources()
        for _ in range(5):
            held = await acquire(source, "order/6", name, wait=None)
            inside += 1
            assert inside == 1
            tokens.append(held.value)
            await asyncio.sleep(0)
            inside -= 1
            await source.release(held)

    async with asyncio.TaskGroup() as tasks:
        for number in range(5):
            tasks.create_task(hold(f"holder-{number}"))
    assert tokens == list(range(1, 26))


async def test_the_clock_of_the_database_decides_when_the_row_was_waited_for(
    sources: Sources, administrator: Administrator
) -> None:
    """A statement that has waited for the row judges it by the time when it has it, not by that of its beginning."""
    one, other = await sources(), await sources()
    held = await acquire(one, "order/7", "one", ttl=0.3)
    async with administrator.transaction():
        await administrator.execute("SELECT FROM fencing_lock FOR UPDATE")
        taking = asyncio.create_task(acquire(other, "order/7", "other", ttl=0.3))
        await asyncio.sleep(0.5)
        cursor = await administrator.execute("SELECT clock_timestamp() + interval '0.3 s'")
        earliest = await cursor.fetchone()
    assert (await taking).value == held.value + 1
    cursor = await administrator.execute("SELECT expires_at FROM fencing_lock WHERE resource = 'order/7'")
    ends = await cursor.fetchone()
    assert earliest is not None
    assert ends is not None
    assert ends >= earliest


async def test_a_row_deleted_counts_from_the_beginning(sources: Sources, administrator: Administrator) -> None:
    """Said as it is: it is the fence that notices, and an epoch that helps."""
    source = await sources()
    for _ in range(3):
        await source.release(held := await acquire(source, "order/8", "one"))
    await administrator.execute("TRUNCATE fencing_lock")
    assert not await source.holds(held)
    assert (await acquire(source, "order/8", "one")).value < held.value


async def test_the_number_ends(sources: Sources, administrator: Administrator) -> None:
    source = await sources()
    await source.release(await acquire(source, "order/9", "one"))
    await administrator.execute("UPDATE fencing_lock SET value = 9223372036854775806")
    await source.release(held := await acquire(source, "order/9", "one"))
    assert held.value == 2**63 - 1
    with pytest.raises(FencingError, match="epoch"):
        await acquire(source, "order/9", "one")


async def test_a_token_is_on_disk_when_it_is_known(dsn: str, administrator: Administrator) -> None:
    """This holds whatever the database's default is.

    Another session may write a moment later, but hardly three times in a row.
    """
    database = administrator.info.dbname
    await administrator.execute(f'ALTER DATABASE "{database}" SET synchronous_commit = off'.encode())
    source, flushed = PostgresSource(dsn), []
    await source.install()
    for _ in range(3):
        await acquire(source, f"order/{uuid.uuid4()}", "one")
        cursor = await administrator.execute("SELECT pg_current_wal_flush_lsn() >= pg_current_wal_insert_lsn()")
        flushed.append(await cursor.fetchone())
    assert (True,) in flushed
    await source.aclose()


async def test_an_acquire_cancelled_on_its_way_is_given_back(sources: Sources, administrator: Administrator) -> None:
    source, other = await sources(), await sources()
    await source.release(await acquire(source, "order/11", "warm"))
    async with administrator.transaction():
        await administrator.execute("SELECT FROM fencing_lock FOR UPDATE")
        taking = asyncio.create_task(acquire(source, "order/11", "cancelled"))
        await asyncio.sleep(0.05)
        taking.cancel()
        await asyncio.sleep(0)
        taking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await taking
    # It had got the lock: the number is used up, and the lock is free.
    assert (await acquire(other, "order/11", "other")).value == 3


async def test_a_lock_whose_answer_was_lost_is_found_again(sources: Sources, dsn: str) -> None:
    async with relay(dsn) as network:
        source, other = await sources(network.url), await sources()
        await source.release(await acquire(source, "order/12", "one"))
        network.losing = b"INSERT INTO"
        with pytest.raises(Unavailable):
            await acquire(source, "order/12", "one")
        with pytest.raises(NotAcquired) as refused:
            await acquire(other, "order/12", "other")
        assert refused.value.holder == "one"
        network.losing = None
        held = await acquire(source, "order/12", "one")
        assert held.value == 2
        assert await source.holds(held)
        await source.aclose()


async def test_a_connection_that_is_gone_is_made_anew(sources: Sources, administrator: Administrator) -> None:
    source = await sources()
    held = await acquire(source, "order/13", "one")
    await administrator.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> "
        "pg_backend_pid()"
    )
    with pytest.raises(Unavailable):
        await source.renew(held, 10)
    assert (await source.renew(held, 10)).value == held.value
    await source.aclose()
    assert await source.holds(held)


async def test_a_server_that_does_not_answer_is_unavailable(sources: Sources, administrator: Administrator) -> None:
    source = await sources()
    held = await acquire(source, "order/14", "one")
    async with administrator.transaction():
        await administrator.execute("LOCK TABLE fencing_lock")
        source._timeout = 0.2
        with pytest.raises(Unavailable, match=r"within 0\.2 s"):
            await source.renew(held, 10)
    source._timeout = 5.0
    assert (await source.renew(held, 10)).value == held.value


async def test_what_is_not_allowed_is_said_clearly(sources: Sources, dsn: str, administrator: Administrator) -> None:
    role = f"reader_{uuid.uuid4().hex}"
    await administrator.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'x'".encode())
    reader = await sources(make_conninfo(dsn, user=role, password="x"))
    with pytest.raises(Refused, match="SELECT, INSERT and UPDATE") as refused:
        await acquire(reader, "order/16", "one")
    assert refused.value.status == 403
    # This is all that is needed.
    await administrator.execute(f"GRANT SELECT, INSERT, UPDATE ON fencing_lock TO {role}".encode())
    await reader.release(await acquire(reader, "order/16", "one"))
    await reader.aclose()
    stranger = await sources(make_conninfo(dsn, user=f"no_{role}"))
    with pytest.raises(Refused, match="does not let us in") as refused:
        await acquire(stranger, "order/16", "one")
    assert refused.value.status == 401
    await administrator.execute(f"DROP OWNED BY {role}".encode())
    await administrator.execute(f"DROP ROLE {role}".encode())


async def test_a_missing_table_is_made_where_one_asks_for_it(dsn: str, administrator: Administrator) -> None:
    await administrator.execute('CREATE SCHEMA "My Locks"')
    source, twin = (PostgresSource(dsn, table="My Locks.lock") for _ in range(2))
    with pytest.raises(Refused, match="install"):
        await acquire(source, "order/17", "one")
    await asyncio.gather(source.install(), twin.install())
    await source.release(await acquire(source, "order/17", "one"))
    await source.aclose()
    await twin.aclose()


async def test_each_name_is_a_row_of_its_own(sources: Sources) -> None:
    source = await sources()
    for resource in ODD:
        assert (await acquire(source, resource, "one")).value == 1
    with pytest.raises(ValueError, match="exclusive"):
        await source.acquire("a", holder="one", ttl=1, wait=0, mode="shared")


def test_the_page_has_the_table_as_it_is_made() -> None:
    shown = re.findall(r"```sql\n(CREATE TABLE .*?)```", PAGE.read_text(), re.DOTALL)
    assert [text.split() for text in shown] == [TABLE.format(table="fencing_lock").rstrip().split()]


async def test_a_refusal_by_code_in_the_database_is_one_line(sources: Sources, administrator: Administrator) -> None:
    """psycopg's text also has the stack of functions, a line for each."""
    source = await sources()
    await administrator.execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not now'; END $$;"
        "CREATE TRIGGER refuse BEFORE INSERT ON fencing_lock FOR EACH ROW WHEN (NEW.resource = 'order/refused') "
        "EXECUTE FUNCTION refuse()"
    )
    with pytest.raises(Refused) as refused:
        await acquire(source, "order/refused", "one")
    assert refused.value.message == "Postgres refuses: not now."
