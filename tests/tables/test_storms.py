"""Zombies that hammer: each is refused and on record, few trips are made for them, and others write on."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

import asyncpg
import pytest

from gateway.db.database import SHARED_LOCK_TIMEOUT, SHARED_STATEMENT_TIMEOUT, Database, Record
from gateway.db.pool import Session
from gateway.tables.execute import batches
from tests.tables.asking import Send, answered, row, rows
from tests.waiting import PATIENCE, waiting

BURST = 300
TARGET = "/accounts?id=eq.1"


@pytest.fixture(scope="module", autouse=True)
def patient_trips() -> None:
    """Trips give up as soon as those of a real gateway: a refusal has to outlast that."""


@pytest.fixture
async def overtaken(tables: Database, write: Send) -> Database:
    """Account 1 belongs to token 9 by now; its writers with lower ones are zombies."""
    answered(await write("PATCH", TARGET, {"note": "9's"}, token=9, holder="successor"), 204)
    return tables


class Recording:
    """Counts the trips that put refusals on record. ``broken``: none of them arrives."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.trips: list[int] = []
        self.broken = False
        real = asyncpg.Connection.fetch

        async def counted(session: Session, sql: str, *arguments: Sequence[Any]) -> list[Record]:
            if "INSERT INTO fencing.intake" in sql:
                self.trips.append(len(arguments[0]))
                if self.broken:
                    raise asyncpg.ConnectionDoesNotExistError("connection was closed in the middle of operation")
            return await real(session, sql, *arguments)

        monkeypatch.setattr(asyncpg.Connection, "fetch", counted)


@pytest.fixture
def recording(monkeypatch: pytest.MonkeyPatch) -> Recording:
    return Recording(monkeypatch)


async def test_each_of_a_burst_is_refused_and_on_record(write: Send, overtaken: Database, recording: Recording) -> None:
    answers = await asyncio.gather(
        *(write("PATCH", TARGET, {"note": f"zombie {n}"}, token=n % 9, holder=f"zombie-{n}") for n in range(BURST))
    )
    ids = set()
    for number, response in enumerate(answers):
        answered(response, 412, "token-stale")
        details = response.json()["details"]
        assert f"presented token {number % 9}, the fence is 9, raised by successor" in details
        ids.add(details.rpartition("rejection ")[2].rstrip("."))
    recorded = await rows(
        overtaken,
        "SELECT id::text, holder, value, fence_value, fence_holder, reason, method, target, payload_size "
        "FROM fencing.rejection",
    )
    assert {one[0] for one in recorded} == ids
    assert len(ids) == BURST
    assert Counter(one[1] for one in recorded) == Counter(f"zombie-{number}" for number in range(BURST))
    for _, holder, value, *others in recorded:
        number = int(holder.removeprefix("zombie-"))
        assert value == number % 9
        size = len(f'{{"note":"zombie {number}"}}')
        assert others == [9, "successor", "token-stale", "PATCH", "/v1/tables/accounts?id=eq.1", size]
    assert sum(recording.trips) == BURST
    assert len(recording.trips) < BURST / 10
    assert (await row(overtaken, "SELECT note FROM accounts WHERE id = 1"))[0] == "9's"


async def test_others_write_on_meanwhile(write: Send, overtaken: Database) -> None:
    answered(await write("PATCH", "/accounts?id=eq.2", {"note": "0"}, token=1), 204)
    storm = [asyncio.ensure_future(write("PATCH", TARGET, {"note": "zombie"}, token=1)) for _ in range(BURST)]
    for number in range(10):
        answered(await write("PATCH", "/accounts?id=eq.2", {"note": str(number)}, token=1), 204)
    for response in await asyncio.gather(*storm):
        answered(response, 412, "token-stale")
    assert (await row(overtaken, "SELECT count(*) FROM fencing.rejection"))[0] == BURST
    assert (await row(overtaken, "SELECT note FROM accounts WHERE id = 2"))[0] == "9"


async def test_what_cannot_be_recorded_is_not_refused(write: Send, overtaken: Database, recording: Recording) -> None:
    recording.broken = True
    answers = await asyncio.gather(*(write("PATCH", TARGET, {"note": "zombie"}, token=1) for _ in range(20)))
    for response in answers:
        answered(response, 503, "unavailable")
    recording.broken = False
    answered(await write("PATCH", TARGET, {"note": "zombie"}, token=1), 412, "token-stale")


@pytest.mark.thorough
async def test_a_slow_database_makes_nobody_less_of_a_zombie(
    write: Send, overtaken: Database, stranger: asyncpg.Connection
) -> None:
    """Writes that share a trip soon give up, because each can go by itself. Refusals cannot: they wait."""
    async with stranger.transaction():
        await stranger.execute("LOCK TABLE fencing.intake IN EXCLUSIVE MODE")
        zombie = asyncio.ensure_future(write("PATCH", TARGET, {"note": "zombie's"}, token=5))
        await waiting(overtaken)
        await asyncio.sleep(max(SHARED_LOCK_TIMEOUT, SHARED_STATEMENT_TIMEOUT) * 1.1)
        assert not zombie.done()
    answered(await zombie, 412, "token-stale")


async def test_a_zombie_that_hangs_up_takes_nobody_with_it(write: Send, overtaken: Database) -> None:
    calls = [asyncio.ensure_future(write("PATCH", TARGET, {"note": "zombie"}, token=1)) for _ in range(20)]
    await asyncio.sleep(0)
    for call in calls[::2]:
        call.cancel()
    for response in await asyncio.gather(*calls[1::2]):
        answered(response, 412, "token-stale")


async def test_a_fence_that_was_seen_to_be_higher_lets_the_next_holder_through(
    write: Send, overtaken: Database
) -> None:
    """The fence that the gateway remembers may be old, but a fence never goes down."""
    answered(await write("PATCH", TARGET, {"note": "zombie"}, token=8), 412, "token-stale")
    answered(await write("PATCH", TARGET, {"note": "9's again"}, token=9), 204)
    answered(await write("PATCH", TARGET, {"note": "10's"}, token=10), 204)
    answered(await write("PATCH", TARGET, {"note": "zombie"}, token=9), 412, "token-stale")
    response = await write("PATCH", TARGET, {"note": "zombie"}, token=8)
    assert "the fence is 10" in response.json()["details"]


async def test_trips_for_zombies_keep_their_distance_while_others_write(
    write: Send, overtaken: Database, recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A zombie that sends one write after the other would make a trip with each, as fast as it is answered."""
    monkeypatch.setattr(batches, "GIVING_WAY", 0.1)
    # However long a busy machine lets the living one rest between two writes.
    monkeypatch.setattr(batches, "LULL", PATIENCE)
    writing = True

    async def living() -> None:
        while writing:
            answered(await write("PATCH", "/accounts?id=eq.2", {"note": "alive"}, token=1), 204)

    clock = asyncio.get_running_loop().time
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(living())
        start = clock()
        for _ in range(6):
            answered(await write("PATCH", TARGET, {"note": "zombie"}, token=1), 412, "token-stale")
        writing = False
    assert recording.trips == [1] * 6
    assert clock() - start >= 5 * batches.GIVING_WAY
