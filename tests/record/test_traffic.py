"""How many writes came to what: every one counted once, and none lost while the database is away."""

import asyncio
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from uuid import uuid4

import asyncpg
import httpx
import pytest

from gateway import part
from gateway.db import traffic as store
from gateway.db.database import Database
from gateway.db.traffic import RuleTraffic, WriteCounts
from gateway.demo.embedded import EmbeddedPostgres
from gateway.errors import GatewayError
from gateway.fencing.decision import Enforcement
from gateway.fencing.record import Attempt, Rejection
from gateway.observe.events import Event, SweepFailed, WriteAccepted, WriteRefused
from gateway.record import flushing as flushing_module
from gateway.record import traffic
from gateway.record.flushing import flushing
from gateway.record.traffic import Traffic
from tests.doubles.s3 import S3Double, serve
from tests.objects.clients import call, connect, outcome
from tests.objects.object_gateway import Stage
from tests.postgres import fresh_database
from tests.running import API_KEY, Events, config, running
from tests.waiting import PATIENCE

ACCEPTED = WriteAccepted("tables", "public.accounts", "recipe")
FAR = timedelta(days=1)
MOMENT = datetime(2026, 1, 1, tzinfo=UTC)


def refused(
    request: str, rule: str | None = "public.accounts", reason: str = "token-stale", *, enforced: bool = True
) -> WriteRefused:
    attempt = Attempt(None, None, "worker", "PATCH", "/x", None, request, rule=rule)
    rejection = Rejection(uuid4(), MOMENT, "r", reason, enforced=enforced, attempt=attempt, fence=None)
    return WriteRefused("tables", rejection)


async def counts(database: Database) -> dict[tuple[str, str], tuple[int, int, int]]:
    """By plane and rule, of all minutes and gateways."""
    now = await database.now()
    found = await store.read_rules(database, now - FAR, now + FAR)
    return {(one.plane, one.rule): (one.counts.accepted, one.counts.refused, one.counts.observed) for one in found}


class TestCounting:
    async def test_a_denial_counts_nowhere(self, database: Database) -> None:
        """Its caller may have made the table up, and so any number of tables."""
        counted = Traffic()
        for number in range(3):
            counted(refused("a", f"public.made_up_{number}", "denied"))
        await counted.flush(database)
        assert await counts(database) == {}

    async def test_each_write_counts_once(self, database: Database) -> None:
        """However many of its resources were refused; but once for each table of a list of writes."""
        counted = Traffic()
        events: list[Event] = [ACCEPTED] * 5
        events += [refused("a")] * 3
        events += [refused("a", "public.orders"), refused("b"), refused("c", enforced=False)]
        for event in events:
            counted(event)
        await counted.flush(database)
        assert await counts(database) == {
            ("tables", "public.accounts"): (5, 2, 1),
            ("tables", "public.orders"): (0, 1, 0),
        }

    async def test_what_is_refused_of_the_api_is_no_write(self, database: Database) -> None:
        counted = Traffic()
        counted(WriteRefused("api", refused("a").rejection))
        counted(refused("b", None))
        await counted.flush(database)
        assert await counts(database) == {}

    async def test_flushes_of_one_minute_add_up(self, database: Database) -> None:
        counted = Traffic()
        for _ in range(3):
            counted(ACCEPTED)
            await counted.flush(database)
        await counted.flush(database)
        assert await counts(database) == {("tables", "public.accounts"): (3, 0, 0)}

    async def test_each_process_has_rows_of_its_own(self, database: Database) -> None:
        for counted in (Traffic(), Traffic()):
            counted(ACCEPTED)
            await counted.flush(database)
        assert await counts(database) == {("tables", "public.accounts"): (2, 0, 0)}
        assert len(await database.fetch("SELECT FROM fencing.traffic")) == 2

    async def test_a_flush_whose_answer_was_lost_counts_once(
        self, database: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        counted, real = Traffic(), asyncpg.Connection.fetch

        async def cut(session: Any, sql: str, *arguments: object) -> list[asyncpg.Record]:
            found: list[asyncpg.Record] = await real(session, sql, *arguments)
            if "fencing.traffic" in sql:
                raise asyncpg.ConnectionDoesNotExistError("connection was closed in the middle of operation")
            return found

        counted(ACCEPTED)
        monkeypatch.setattr(asyncpg.Connection, "fetch", cut)
        with pytest.raises(GatewayError):
            await counted.flush(database)
        monkeypatch.setattr(asyncpg.Connection, "fetch", real)
        counted(ACCEPTED)
        await counted.flush(database)
        assert await counts(database) == {("tables", "public.accounts"): (2, 0, 0)}

    async def test_a_clock_that_is_put_back_overwrites_nothing(
        self, database: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        counted, now = Traffic(), await database.now()
        for minutes in (0, 1, -1, 2):

            async def told(passed: timedelta = timedelta(minutes=minutes)) -> datetime:
                return now + passed

            monkeypatch.setattr(database, "now", told)
            counted(ACCEPTED)
            await counted.flush(database)
        monkeypatch.undo()
        assert await counts(database) == {("tables", "public.accounts"): (4, 0, 0)}


class TestOutage:
    async def test_nothing_is_lost_and_little_is_kept(self, dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(traffic, "_MOST_WAITING", 3)
        counted, away = Traffic(), Database("postgresql://nobody@127.0.0.1:1/none")
        for number in range(10):
            counted(ACCEPTED)
            counted(refused(f"r{number}"))
            with pytest.raises(GatewayError):
                await counted.flush(away)
        assert len(counted._waiting) == 3
        back = Database(dsn)
        await counted.flush(back)
        assert await counts(back) == {("tables", "public.accounts"): (10, 10, 0)}
        await back.close()

    async def test_it_is_an_event(self, dsn: str) -> None:
        counted, events = Traffic(), Events()
        async with flushing(Database("postgresql://nobody@127.0.0.1:1/none"), [counted], events, interval=0.01):
            counted(ACCEPTED)
            async with asyncio.timeout(PATIENCE):
                while not events:
                    await asyncio.sleep(0.01)
        assert isinstance(events[0], SweepFailed)
        assert events[0].what == "counts of writes"


class TestReading:
    @pytest.fixture
    async def start(self, database: Database) -> datetime:
        """Two gateways have written for an hour: one write a minute is accepted, each tenth one refused."""
        start = (await database.now()).replace(minute=0, second=0, microsecond=0) - timedelta(hours=2)
        await database.fetch_write(
            "INSERT INTO fencing.traffic SELECT $1::timestamptz + minute * interval '1 minute', 'gateway-' || gateway, "
            "'tables', 'public.accounts', 1, (minute % 10 = 9)::integer, (minute < 5)::integer "
            "FROM generate_series(0, 59) AS minute, generate_series(1, 2) AS gateway",
            start,
        )
        await database.fetch_write(
            "INSERT INTO fencing.traffic VALUES ($1::timestamptz + interval '1 minute', 'g', 'objects', 's3', 0, 7, 0)",
            start,
        )
        return start

    async def test_a_series(self, database: Database, start: datetime) -> None:
        found = await store.read_series(database, start - timedelta(minutes=15), start + timedelta(minutes=75), 6)
        assert [one.at - start for one in found] == [timedelta(minutes=15 * step - 15) for step in range(6)]
        assert [one.counts.accepted for one in found] == [0, 30, 30, 30, 30, 0]
        assert [one.counts.refused for one in found] == [0, 9, 4, 2, 4, 0]
        assert [one.counts.observed for one in found] == [0, 10, 0, 0, 0, 0]

    @pytest.mark.parametrize(
        ("plane", "rule", "refused"), [("tables", None, 12), ("objects", "s3", 7), ("objects", "public.accounts", 0)]
    )
    async def test_a_series_of_a_plane_or_rule(
        self, database: Database, start: datetime, plane: str, rule: str | None, refused: int
    ) -> None:
        (found,) = await store.read_series(database, start, start + timedelta(hours=1), 1, plane, rule)
        assert found.counts.refused == refused

    async def test_by_rule(self, database: Database, start: datetime) -> None:
        last = start + timedelta(minutes=59)
        assert await store.read_rules(database, start, last + timedelta(minutes=1)) == [
            RuleTraffic(
                "tables", "public.accounts", WriteCounts(120, 12, 10), last, last, start + timedelta(minutes=4)
            ),
            RuleTraffic("objects", "s3", WriteCounts(0, 7, 0), None, start + timedelta(minutes=1), None),
        ]

    async def test_what_is_old_is_forgotten(self, database: Database, start: datetime) -> None:
        await database.fetch_write(
            "UPDATE fencing.traffic SET minute = minute - interval '400 days' WHERE gateway = 'g'"
        )
        assert await store.forget(database, 400, 0) == 0
        assert await store.forget(database, 400, 100) == 1
        assert await store.forget(database, 400, 100) == 0


@pytest.fixture
def at_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gateways store counts at their end alone, however long that takes."""
    monkeypatch.setattr(part, "flushing", partial(flushing, interval=10 * PATIENCE))
    monkeypatch.setattr(flushing_module, "_GRACE", PATIENCE)


@pytest.mark.usefixtures("at_its_end")
async def test_writes_of_both_planes(postgres_server: EmbeddedPostgres) -> None:
    rules, double = [{"match": "bucket/watched/**", "mode": Enforcement.OBSERVE}], S3Double(buckets=["bucket"])
    async with fresh_database(postgres_server) as dsn, serve(double) as endpoint:
        async with running(config(dsn, endpoint, objects=rules)) as origin:
            await _write(Stage(origin, endpoint, double, Events(), dsn))
        database = Database(dsn)
        assert await counts(database) == {
            # Of a list, each write counts that was carried out; where it was refused, none was tried.
            ("tables", "public.accounts"): (4 + 1 + 2, 3 + 1 + 1, 0),
            ("objects", "s3"): (2, 1, 0),
            ("objects", "bucket/watched/**"): (1, 0, 1),
        }
        await database.close()


async def _write(one: Stage) -> None:
    """Writes to both planes, taken and refused."""
    await one.rows("CREATE TABLE public.accounts (id bigint PRIMARY KEY, note text)")
    await one.rows("INSERT INTO public.accounts VALUES (1), (2)")
    await one.knows("accounts")
    async with one.api() as api:

        async def patch(token: str, times: int = 1, query: str = "id=eq.1") -> None:
            for _ in range(times):
                sent = {"Fencing-Token": token}
                await api.patch(f"/v1/tables/accounts?{query}", json={"note": "x"}, headers=sent)

        await patch("9", 4)
        await patch("3", 3)
        await patch("9", 1, "id=in.(1,2)")
        await patch("3", 1, "id=in.(1,2)")
        write = {"method": "PATCH", "table": "accounts", "query": "id=eq.1", "body": {"note": "y"}}
        for token in ("9", "3"):
            await api.post("/v1/transaction", json={"writes": [write] * 2}, headers={"Fencing-Token": token})
    s3, zombie = connect(one.origin, "9"), connect(one.origin, "3")
    for key in ("free", "watched/x"):
        await call(s3.put_object, Key=key, Body=b"x")
        await outcome(zombie.put_object, Key=key, Body=b"x")
    await call(s3.delete_object, Key="free")


@pytest.mark.usefixtures("at_its_end")
async def test_a_gateway_that_is_stopped_writes_down_what_it_has_counted(dsn: str) -> None:
    database = Database(dsn)
    await database.run(lambda transaction: transaction.execute("CREATE TABLE public.accounts (id bigint PRIMARY KEY)"))
    async with running(config(dsn)) as origin, httpx.AsyncClient(base_url=origin, timeout=PATIENCE) as client:
        sent = {"Authorization": f"Bearer {API_KEY}", "Fencing-Token": "1"}
        answer = await client.post("/v1/tables/accounts", json={"id": 1}, headers=sent)
        assert answer.status_code == 201, answer.text
        assert await counts(database) == {}
    assert await counts(database) == {("tables", "public.accounts"): (1, 0, 0)}
    await database.close()
