"""Every refusal of every plane is in the record, under its plane and its rule; many of them share a trip."""

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import asyncpg
import httpx
import pytest
import pytest_asyncio

from gateway.db.database import Database
from gateway.demo.embedded import EmbeddedPostgres
from gateway.errors import Unavailable
from gateway.fencing.decision import Decision, Enforcement, Fence
from gateway.fencing.record import Attempt, Refusal
from gateway.fencing.token import Token
from gateway.observe.events import StepReached
from gateway.record import audit
from gateway.record.audit import Recorder
from tests.doubles.s3 import S3Double
from tests.objects.clients import call, connect, outcome
from tests.objects.object_gateway import Stage, staged
from tests.waiting import PATIENCE

NOW = datetime.fromtimestamp(time.time_ns() / 1e9, UTC)
FENCE = Fence("job/1", Token(0, 9), "successor", "writer", NOW)
TABLES = "CREATE TABLE public.accounts (id bigint PRIMARY KEY, note text); INSERT INTO accounts VALUES (1), (2), (3)"
REFUSED = (412, "StaleFencingToken")
TO_BE_RECORDED = StepReached("objects.reject.before")


def refusal(holder: str = "zombie") -> Refusal:
    attempt = Attempt(Token(0, 3), holder, "worker", "PUT", "/x", None, "request", plane="objects", rule="s3")
    return Refusal("job/1", Decision.STALE, attempt, FENCE)


class Trips:
    """Counts the statements that put something into the intake, and may hold them up."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.gate = asyncio.Event()
        self.gate.set()
        real = asyncpg.Connection.fetch

        async def counted(session: Any, sql: str, *arguments: object) -> list[asyncpg.Record]:
            if "INTO fencing.intake" in sql:
                self.count += 1
                await self.gate.wait()
            found: list[asyncpg.Record] = await real(session, sql, *arguments)
            return found

        monkeypatch.setattr(asyncpg.Connection, "fetch", counted)


@pytest.fixture
def trips(monkeypatch: pytest.MonkeyPatch) -> Trips:
    return Trips(monkeypatch)


async def holders(database: Database) -> list[str]:
    found = await database.fetch("SELECT holder FROM fencing.record WHERE kind = 'rejection' ORDER BY holder")
    return [row["holder"] for row in found]


class TestRecorder:
    async def test_those_that_come_meanwhile_share_a_trip(self, database: Database, trips: Trips) -> None:
        trips.gate.clear()
        writer = Recorder(database)
        names = [f"zombie-{number:03}" for number in range(100)]
        calls = [asyncio.ensure_future(writer.record([refusal(name)])) for name in names]
        async with asyncio.timeout(PATIENCE):
            while not trips.count:
                await asyncio.sleep(0.001)
        later = [asyncio.ensure_future(writer.record([refusal("later"), refusal("later")])) for _ in range(10)]
        await asyncio.sleep(0)
        trips.gate.set()
        recorded = await asyncio.gather(*calls)
        assert [one.attempt.holder for (one,) in recorded] == names, "each gets its own"
        assert len({one.id for (one,) in recorded}) == 100
        assert all(len(each) == 2 for each in await asyncio.gather(*later))
        assert trips.count == 2
        assert await holders(database) == ["later"] * 20 + names

    async def test_a_trip_does_not_grow_without_end(self, database: Database, trips: Trips) -> None:
        writer = Recorder(database)
        size = audit.MOST // 2
        await asyncio.gather(*(writer.record([refusal()] * size) for _ in range(5)), writer.record([refusal()] * 2000))
        assert trips.count == 4
        assert len(await holders(database)) == 5 * size + 2000

    async def test_nobody_suffers_from_what_is_wrong_with_another(self, database: Database) -> None:
        """A name that long never comes this far; whatever the database finds wrong with one, it undoes all."""
        writer = Recorder(database)
        outcomes = await asyncio.gather(
            *(writer.record([refusal(name)]) for name in ("first", "x" * 3000, "last")), return_exceptions=True
        )
        assert isinstance(outcomes[1], Unavailable)
        assert not isinstance(outcomes[0], BaseException)
        assert not isinstance(outcomes[2], BaseException)
        assert await holders(database) == ["first", "last"]

    async def test_who_hangs_up_takes_nobody_with_it(self, database: Database, trips: Trips) -> None:
        trips.gate.clear()
        writer = Recorder(database)
        calls = [asyncio.ensure_future(writer.record([refusal(f"zombie-{number}")])) for number in range(6)]
        await asyncio.sleep(0)
        for one in calls[::2]:
            one.cancel()
        trips.gate.set()
        await asyncio.gather(*calls[1::2])
        assert len(await holders(database)) == 6, "it was refused all the same"

    async def test_what_cannot_be_recorded_is_said_to_be_so_and_the_next_one_can(
        self, database: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        writer = Recorder(database)
        real = asyncpg.Connection.fetch

        async def lost(*_: object) -> None:
            raise asyncpg.ConnectionDoesNotExistError("connection was closed in the middle of operation")

        monkeypatch.setattr(asyncpg.Connection, "fetch", lost)
        outcomes = await asyncio.gather(*(writer.record([refusal()]) for _ in range(3)), return_exceptions=True)
        assert [type(one) for one in outcomes] == [Unavailable] * 3
        monkeypatch.setattr(asyncpg.Connection, "fetch", real)
        assert len(await writer.record([refusal()])) == 1


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(postgres_server: EmbeddedPostgres) -> AsyncIterator[Stage]:
    rules = [
        {"match": "bucket/jobs/{job}/**", "resource": "job/{job}"},
        {"match": "bucket/watched/**", "mode": Enforcement.OBSERVE},
    ]
    tables = [{"name": "public.accounts"}]
    async with staged(postgres_server, S3Double(buckets=["bucket"]), objects=rules, tables=tables) as one:
        for statement in TABLES.split("; "):
            await one.rows(statement)
        await one.knows("accounts")
        yield one


async def entries(stage: Stage, resource: str) -> list[tuple[Any, ...]]:
    found = await stage.rows(
        "SELECT plane, rule, reason, enforced, value, fence_value, details FROM fencing.record "
        "WHERE kind = 'rejection' AND resource = $1 ORDER BY at",
        resource,
    )
    return [tuple(row) for row in found]


async def write(stage: Stage, method: str, target: str, body: Any, token: str) -> httpx.Response:
    async with stage.api() as api:
        return await api.request(method, target, json=body, headers={"Fencing-Token": token})


@pytest.mark.asyncio(loop_scope="module")
class TestPlanes:
    @pytest.mark.parametrize(
        ("key", "resource", "rule"),
        [("jobs/{0}/x", "job/{0}", "bucket/jobs/{job}/**"), ("free/{0}", "s3/bucket/free/{0}", "s3")],
    )
    async def test_objects(self, shared: Stage, key: str, resource: str, rule: str) -> None:
        name = uuid4().hex
        await call(connect(shared.origin, "9").put_object, Key=key.format(name), Body=b"new")
        assert await outcome(connect(shared.origin, "3").put_object, Key=key.format(name), Body=b"old") == REFUSED
        assert await entries(shared, resource.format(name)) == [("objects", rule, "token-stale", True, 3, 9, None)]

    async def test_objects_that_are_only_observed(self, shared: Stage) -> None:
        key = f"watched/{uuid4().hex}"
        assert await outcome(connect(shared.origin).put_object, Key=key, Body=b"x") == (200, "")
        expected = ("objects", "bucket/watched/**", "token-required", False, None, None, None)
        assert await entries(shared, f"s3/bucket/{key}") == [expected]

    async def test_a_burst_of_objects_shares_trips(self, shared: Stage, trips: Trips) -> None:
        key, zombie = f"free/{uuid4().hex}", connect(shared.origin, "3")
        await call(connect(shared.origin, "9").put_object, Key=key, Body=b"new")
        before = shared.events.count(TO_BE_RECORDED)
        trips.gate.clear()
        storm = asyncio.gather(*(outcome(zombie.put_object, Key=key, Body=b"old") for _ in range(10)))
        async with asyncio.timeout(PATIENCE):
            while shared.events.count(TO_BE_RECORDED) < before + 10:
                await asyncio.sleep(0.01)
        trips.gate.set()
        assert await storm == [REFUSED] * 10
        assert trips.count == 2
        assert len(await entries(shared, f"s3/bucket/{key}")) == 10

    async def test_tables(self, shared: Stage) -> None:
        """First the whole way, then as a write of a known form; both are of the same table."""
        target = "/v1/tables/accounts?id=eq.1"
        assert (await write(shared, "PATCH", target, {"note": "new"}, "9")).status_code == 204
        for _ in range(3):
            assert (await write(shared, "PATCH", target, {"note": "old"}, "3")).status_code == 412
        expected = ("tables", "public.accounts", "token-stale", True, 3, 9, None)
        assert await entries(shared, "public.accounts/1") == [expected] * 3

    async def test_several_resources_of_one_write_are_one_trip(self, shared: Stage, trips: Trips) -> None:
        for number in (2, 3):
            assert (await shared.barrier(f"public.accounts/{number}", "9")).status_code == 200
        trips.count = 0
        refused = await write(shared, "PATCH", "/v1/tables/accounts?id=in.(2,3)", {"note": "old"}, "3")
        assert refused.status_code == 412
        assert trips.count == 1
        for number in (2, 3):
            assert [one[:3] for one in await entries(shared, f"public.accounts/{number}")] == [
                ("tables", "public.accounts", "token-stale")
            ]

    async def test_the_api(self, shared: Stage) -> None:
        name = f"job/{uuid4().hex}"
        assert (await shared.barrier(name, "9")).status_code == 200
        assert (await shared.barrier(name, "3")).status_code == 412
        assert await entries(shared, name) == [("api", None, "token-stale", True, 3, 9, None)]
