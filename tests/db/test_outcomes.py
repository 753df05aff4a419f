"""A request whose statement fails, or whose commit is unconfirmed, is answered with the truth about its outcome."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress

import httpx
import pytest
import pytest_asyncio

from gateway.db.database import Database, Transaction
from gateway.demo.embedded import EmbeddedPostgres
from gateway.errors import OutcomeUnknown, Unavailable
from tests.db.paths import PATHS
from tests.db.world import Attempt, Fault, How, World, opened
from tests.standbys import Pair, cancel_waits, paused, replicated
from tests.tiers import first

pytestmark = pytest.mark.asyncio(loop_scope="module")

NOTHING_WRITTEN = {Unavailable.code, Unavailable.s3_code}
UNKNOWN = {OutcomeUnknown.code, OutcomeUnknown.s3_code}
MOST = 60


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(postgres_server: EmbeddedPostgres) -> AsyncIterator[World]:
    with pytest.MonkeyPatch.context() as patch:
        async with opened(postgres_server, patch) as one:
            yield one


@pytest.mark.parametrize("how", first([How.LOST, How.TERMINATED, How.TIMEOUT]))
@pytest.mark.parametrize("path", PATHS)
async def test_it_is_unavailable_and_nothing_else(world: World, path: str, how: How) -> None:
    for number in range(1, MOST):
        attempt = await PATHS[path](world)
        if how is How.LOST and attempt.effect is None:
            return  # nothing can be told of its outcome
        try:
            with world.ender.ending(number, how) as fault:
                try:
                    status, code = await attempt.send()
                except httpx.RemoteProtocolError:
                    # An answer without a known end had begun. It is broken off, so that it is not taken for whole.
                    status, code = 503, Unavailable.code
            await _check(attempt, fault, status, code)
        finally:
            if attempt.after is not None:
                await attempt.after()
        if fault.struck is None:
            assert number > 1, "nothing was asked of the database"
            return
    raise AssertionError("there is no end of its statements")


async def _check(attempt: Attempt, fault: Fault, status: int, code: str) -> None:
    about = (status, code, fault.struck)
    if status in attempt.expected:
        assert attempt.effect is None or await attempt.effect(), about
        return
    assert fault.struck is not None, about
    assert status == 503, about
    assert code in NOTHING_WRITTEN | UNKNOWN, about
    if attempt.effect is not None and code in NOTHING_WRITTEN:
        assert not await attempt.effect(), about


# Commits that their synchronous standby has not confirmed are no success, though PostgreSQL reports them as one. ----
#
# The standby is stopped, and each wait for it is cancelled, as an operator or a client may do. PostgreSQL then says
# that the transaction has committed, with a warning. A failover to the standby would undo it.


@pytest.fixture(scope="module")
def servers() -> Iterator[Pair]:
    with replicated() as both:
        yield both


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def site(servers: Pair) -> AsyncIterator[World]:
    with pytest.MonkeyPatch.context() as patch:
        async with opened(servers.primary, patch) as one:
            yield one


@asynccontextmanager
async def unconfirmed(servers: Pair) -> AsyncIterator[None]:
    """Stop the standby, and let no commit wait for it."""
    with paused(servers.data):
        cancelling = asyncio.create_task(cancel_waits(servers.primary.dsn()))
        try:
            yield
        finally:
            cancelling.cancel()
            with suppress(asyncio.CancelledError):
                await cancelling


@pytest.mark.parametrize("path", first(PATHS))
async def test_no_path_acknowledges_it(site: World, servers: Pair, path: str) -> None:
    attempt = await PATHS[path](site)
    async with unconfirmed(servers):
        status, code = await attempt.send()
    try:
        if attempt.effect is None:
            assert (status, code in NOTHING_WRITTEN | UNKNOWN) == (503, True) or status in attempt.expected
            return
        assert status == 503, (status, code)
        assert code in NOTHING_WRITTEN | UNKNOWN, code
        assert code in UNKNOWN or not await attempt.effect(), "it said that nothing was written"
    finally:
        if attempt.after is not None:
            await attempt.after()


async def test_every_way_to_commit_is_unknown_without_it(site: World, servers: Pair) -> None:
    row = await site.row()
    write = "UPDATE accounts SET note = 'unconfirmed' WHERE id = $1 RETURNING id"
    database = Database(site.stage.dsn)

    async def work(transaction: Transaction) -> None:
        await transaction.fetch(write, row)

    async with unconfirmed(servers):
        for commit in (
            database.fetchrow_write(write, row),
            database.fetch_write(write, row),
            database.fetchmany_write(write, [(row,)]),
            database.run(work),
        ):
            with pytest.raises(OutcomeUnknown):
                await commit
    assert await site.note(row) == "unconfirmed"
    # The sessions are told once, and then go on.
    await database.run(work)
    assert len(await database.fetch_write(write, row)) == 1
    await database.close()


async def test_what_a_server_shows_before_its_standby_has_it_is_not_relied_upon(site: World, servers: Pair) -> None:
    await PATHS["hot_write"](site)  # the first write of a table registers its naming, which is another commit
    keyed = await PATHS["keyed_write"](site)
    barrier = await PATHS["barrier"](site)
    lease = (await site.api.post(f"/v1/leases/job/{site.number}", json={"holder": "ann"})).json()
    check = {"sequencer": lease["sequencer"]}
    async with unconfirmed(servers):
        for attempt in (keyed, barrier):
            assert (await attempt.send())[0] == 503
        # The server shows them by now: the row with its kept answer, and the fence. The same requests again write
        # nothing that is new.
        assert keyed.effect is not None
        assert await keyed.effect()
        for attempt in (keyed, barrier):
            assert (await attempt.send())[0] == 503
        assert (await site.ask("POST", "/v1/sequencers/check", check))[0] == 503
    for attempt in (keyed, barrier):
        assert (await attempt.send())[0] in attempt.expected
    assert (await site.ask("POST", "/v1/sequencers/check", check)) == (200, "")


async def test_a_database_that_asks_for_no_warnings_is_told_all_the_same(site: World, servers: Pair) -> None:
    await site.operator.execute("ALTER ROLE postgres SET client_min_messages = error")
    row = await site.row()
    database = Database(site.stage.dsn)
    async with unconfirmed(servers):
        with pytest.raises(OutcomeUnknown):
            await database.fetchrow_write("UPDATE accounts SET note = 'silent' WHERE id = $1 RETURNING id", row)
    await site.operator.execute("ALTER ROLE postgres RESET client_min_messages")
    await database.close()


@pytest.mark.thorough
async def test_nor_can_a_trigger_keep_it_back(site: World, servers: Pair) -> None:
    attempt = await PATHS["write_with_a_trigger"](site)
    await site.operator.execute(
        "CREATE OR REPLACE FUNCTION told() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN PERFORM set_config('client_min_messages', 'error', true); RETURN NEW; END $$"
    )
    async with unconfirmed(servers):
        status, code = await attempt.send()
    assert (status, code) == (503, OutcomeUnknown.code)
