"""Gateways note and store soon how many writes came to what, and when each key was last used. None is lost."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import product
from typing import Any
from uuid import uuid4

import asyncpg
import httpx
import pytest
import pytest_asyncio

from gateway import part
from gateway.auth.callers import Callers, KeyKind, KeyUse, digest_of, fingerprint
from gateway.auth.principal import Principal
from gateway.db import traffic as stored_counts
from gateway.db.database import Database
from gateway.db.traffic import RuleTraffic, WriteCounts
from gateway.demo.embedded import EmbeddedPostgres
from gateway.errors import GatewayError
from gateway.fencing.decision import Enforcement
from gateway.fencing.record import Attempt, Rejection
from gateway.observe.events import Observe, SweepFailed, WriteAccepted, WriteRefused
from gateway.record import flushing as flushing_module
from gateway.record.flushing import KeyUses, Noted, Traffic, flushing
from tests.doubles.s3 import S3Double, serve
from tests.identity_provider import claims, shared_key, token
from tests.objects.clients import call, connect, outcome
from tests.objects.object_gateway import Stage, staged
from tests.objects.test_forms import post, signed
from tests.patience import patient_trips
from tests.running import Events, config, running
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
    found = await stored_counts.read_rules(database, now - FAR, now + FAR)
    return {(one.plane, one.rule): (one.counts.accepted, one.counts.refused, one.counts.observed) for one in found}


class TestCounting:
    async def test_what_is_no_write_counts_nowhere(self, database: Database) -> None:
        """A caller that is denied may have made the table up, and so any number of tables."""
        counted = Traffic()
        counted(WriteRefused("api", refused("a").rejection))
        counted(refused("b", None))
        counted(refused("a", "public.made_up", "denied"))
        await counted.flush(database)
        assert await counts(database) == {}

    async def test_flushes_add_up_in_rows_of_each_process(self, database: Database) -> None:
        for counted in (Traffic(), Traffic()):
            for _ in range(3):
                counted(ACCEPTED)
                await counted.flush(database)
            await counted.flush(database)
        assert await counts(database) == {("tables", "public.accounts"): (6, 0, 0)}
        rows = await database.fetch("SELECT count(DISTINCT gateway) FROM fencing.traffic")
        assert rows[0][0] == 2

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
    async def test_nothing_is_lost_and_little_is_kept(
        self, database: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(flushing_module, "_MOST_WAITING", 3)
        counted, away = Traffic(), Database("postgresql://nobody@127.0.0.1:1/none")
        for number in range(10):
            counted(ACCEPTED)
            counted(refused(f"r{number}"))
            with pytest.raises(GatewayError):
                await counted.flush(away)
        assert len(counted._waiting) == 3
        await counted.flush(database)
        assert await counts(database) == {("tables", "public.accounts"): (10, 10, 0)}

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
        quarter = timedelta(minutes=15)
        found = await stored_counts.read_series(database, start - quarter, start + 5 * quarter, 6)
        assert [one.at - start for one in found] == [quarter * step for step in range(-1, 5)]
        assert [one.counts.accepted for one in found] == [0, 30, 30, 30, 30, 0]
        assert [one.counts.refused for one in found] == [0, 9, 4, 2, 4, 0]
        assert [one.counts.observed for one in found] == [0, 10, 0, 0, 0, 0]

    @pytest.mark.parametrize(
        ("plane", "rule", "refused"), [("tables", None, 12), ("objects", "s3", 7), ("objects", "public.accounts", 0)]
    )
    async def test_a_series_of_a_plane_or_rule(
        self, database: Database, start: datetime, plane: str, rule: str | None, refused: int
    ) -> None:
        (found,) = await stored_counts.read_series(database, start, start + timedelta(hours=1), 1, plane, rule)
        assert found.counts.refused == refused

    async def test_by_rule(self, database: Database, start: datetime) -> None:
        last = start + timedelta(minutes=59)
        assert await stored_counts.read_rules(database, start, last + timedelta(minutes=1)) == [
            RuleTraffic(
                "tables", "public.accounts", WriteCounts(120, 12, 10), last, last, start + timedelta(minutes=4)
            ),
            RuleTraffic("objects", "s3", WriteCounts(0, 7, 0), None, start + timedelta(minutes=1), None),
        ]

    async def test_what_is_old_is_forgotten(self, database: Database, start: datetime) -> None:
        await database.fetch_write(
            "UPDATE fencing.traffic SET minute = minute - interval '400 days' WHERE gateway = 'g'"
        )
        assert await stored_counts.forget(database, 400, 0) == 0
        assert await stored_counts.forget(database, 400, 100) == 1
        assert await stored_counts.forget(database, 400, 100) == 0


@pytest.fixture
def at_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gateways store counts at their end alone, however long that takes."""
    monkeypatch.setattr(part, "flushing", partial(flushing, interval=10 * PATIENCE))
    monkeypatch.setattr(flushing_module, "_GRACE", PATIENCE)


@pytest.mark.usefixtures("at_its_end")
async def test_writes_of_both_planes(dsn: str, database: Database) -> None:
    rules, double = [{"match": "bucket/watched/**", "mode": Enforcement.OBSERVE}], S3Double(buckets=["bucket"])
    async with serve(double) as endpoint, running(config(dsn, endpoint, objects=rules)) as origin:
        await _write(Stage(origin, endpoint, double, Events(), dsn))
    assert await counts(database) == {
        # Of a list, each write counts that was carried out; where it was refused, none was tried.
        ("tables", "public.accounts"): (4 + 1 + 2, 3 + 1 + 1, 0),
        ("objects", "s3"): (2, 1, 0),
        ("objects", "bucket/watched/**"): (1, 0, 1),
    }


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


# Keys -----------------------------------------------------------------------------------------------------------------

OLD, NEW = "old-api-key-of-the-worker", "new-api-key-of-the-worker"
PAIRS = {"AKIAOLD": "old-secret-of-the-worker", "AKIANEW": "new-secret-of-the-worker"}
SECRET = "a-secret-that-is-shared-with-an-issuer"
WORKER: dict[str, Any] = {
    "name": "worker",
    "groups": ["auditors"],
    "api_key": [NEW, OLD],
    "access_key_id": list(PAIRS),
    "secret_access_key": list(PAIRS.values()),
}
ISSUER = {"name": "app", "secret": SECRET, "issuer": "https://issuer.example"}
SHOWN = {key: fingerprint("worker", digest_of(key.encode())) for key in (OLD, NEW)}


class Rounds:
    """Counts how often gateways have stored all that they had noted: it comes last in each of their rounds."""

    what = "rounds"

    def __init__(self) -> None:
        self.done = 0

    async def flush(self, _: Database) -> None:
        self.done += 1


ROUNDS = Rounds()


def soon(database: Database, noted: Sequence[Noted], observe: Observe) -> AbstractAsyncContextManager[None]:
    return flushing(database, [*noted, ROUNDS], observe, interval=0.02)


@pytest.fixture(scope="module", autouse=True)
def _soon() -> Any:
    """Gateways store uses at once, and at their end, however long that takes.

    A write on the fast path stays on it, too: a shared trip that takes too long makes it another.
    """
    with pytest.MonkeyPatch.context() as patch, patient_trips():
        patch.setattr(part, "flushing", soon)
        patch.setattr(flushing_module, "_GRACE", PATIENCE)
        yield


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(postgres_server: EmbeddedPostgres) -> AsyncIterator[Stage]:
    async with staged(postgres_server, S3Double(buckets=["bucket"]), callers=[WORKER], issuers=[ISSUER]) as one:
        await one.rows("CREATE TABLE orders (id bigint PRIMARY KEY, state text)")
        await one.rows("INSERT INTO orders SELECT id FROM generate_series(1, 9) AS id")
        async with bearing(one, NEW) as client, asyncio.timeout(PATIENCE):
            while (await client.get("/v1/tables/orders")).status_code != 200:
                await asyncio.sleep(0.05)
        await call(s3(one, "AKIANEW").put_object, Key="probed", Body=b"x")
        yield one


def bearing(one: Stage, key: str, header: str = "Authorization") -> httpx.AsyncClient:
    value = f"Bearer {key}" if header == "Authorization" else key
    return httpx.AsyncClient(base_url=one.origin, headers={header: value}, timeout=PATIENCE)


def s3(one: Stage, name: str, secret: str | None = None) -> Any:
    return connect(one.origin, "1", access_key=name, secret_key=secret or PAIRS[name])


async def stored(dsn: str) -> dict[str, datetime]:
    database = Database(dsn)
    try:
        return {use.key: use.last_used for use in await stored_counts.read_key_uses(database)}
    finally:
        await database.close()


@asynccontextmanager
async def noting(one: Stage, key: str | None) -> AsyncIterator[None]:
    """Check that the work inside is a use of this key, and of no other one. None: of none."""
    before = await settled(one)
    yield
    after = await settled(one)
    assert {name for name, last in after.items() if last != before.get(name)} == ({key} if key else set())


async def settled(one: Stage) -> dict[str, datetime]:
    """Return what is stored, once all that has been noted until now is: a round may be under way, the next one is not.

    No other gateway runs meanwhile.
    """
    begun = ROUNDS.done
    async with asyncio.timeout(PATIENCE):
        while ROUNDS.done < begun + 2:
            await asyncio.sleep(0.01)
    return await stored(one.dsn)


async def read(one: Stage, key: str, header: str = "Authorization") -> None:
    async with bearing(one, key, header) as client:
        assert (await client.get("/v1/tables/orders?id=eq.1")).status_code == 200


async def lock(one: Stage, key: str) -> None:
    async with bearing(one, key) as client:
        assert (await client.post(f"/v1/leases/{uuid4()}", json={"holder": "a", "ttl": 5})).status_code == 201


async def log_in(one: Stage, key: str) -> None:
    async with httpx.AsyncClient(base_url=one.origin) as client:
        answer = await client.post("/ui/login", data={"api_key": key}, headers={"Origin": one.origin})
        assert answer.status_code == 303, answer.text


async def put(one: Stage, name: str) -> None:
    await call(s3(one, name).put_object, Key="key", Body=b"x")


async def follow(one: Stage, name: str) -> None:
    url = s3(one, name).generate_presigned_url("get_object", Params={"Bucket": "bucket", "Key": "probed"})
    async with httpx.AsyncClient() as client:
        assert (await client.get(url)).status_code == 200


async def post_form(one: Stage, name: str) -> None:
    form = signed(one.origin, "form", access_key=name, secret_key=PAIRS[name])
    assert (await post(form)).status_code == 204


Deed = Callable[[Stage, str], Awaitable[None]]
BY_API_KEY: list[Deed] = [read, partial(read, header="apikey"), lock, log_in]
BY_PAIR: list[Deed] = [put, follow, post_form]


@pytest.mark.asyncio(loop_scope="module")
class TestKeys:
    @pytest.mark.parametrize(("deed", "key"), [*product(BY_API_KEY, SHOWN), *product(BY_PAIR, PAIRS)])
    async def test_the_use_of_a_key_is_stored(self, stage: Stage, deed: Deed, key: str) -> None:
        shown = SHOWN.get(key, key)
        async with noting(stage, shown):
            await deed(stage, key)
        assert datetime.now(UTC) - (await stored(stage.dsn))[shown] < timedelta(seconds=PATIENCE)

    async def test_answers_without_a_task_are_uses(self, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
        """Such requests are not authenticated again: the key was proven when their head was prepared."""
        proven: list[bytes] = []
        owner = Callers._owner

        def prove(self: Callers, key: bytes) -> Principal:
            proven.append(key)
            return owner(self, key)

        monkeypatch.setattr(Callers, "_owner", prove)
        async with bearing(stage, OLD) as client:

            async def write() -> None:
                sent = {"Fencing-Token": "1"}
                assert (await client.patch("/v1/tables/orders?id=eq.2", json={"state": "x"}, headers=sent)).is_success

            async def acquire() -> None:
                assert (await client.post(f"/v1/leases/{uuid4()}", json={"holder": "a", "ttl": 5})).status_code == 201

            for deed in (write, acquire):
                for _ in range(6):
                    await deed()
                proven.clear()
                async with noting(stage, SHOWN[OLD]):
                    await deed()
                assert proven == []

    async def test_nothing_else_is_a_use(self, stage: Stage) -> None:
        """Wrong keys and signatures, signatures of other requests, identity tokens and temporary keys."""
        async with noting(stage, None):
            async with bearing(stage, f"{OLD}x") as client:
                assert (await client.get("/v1/tables/orders?id=eq.1")).status_code == 401
            assert await outcome(s3(stage, "AKIAOLD", "wrong").head_bucket) == (403, "403")
            url = s3(stage, "AKIAOLD").generate_presigned_url("head_bucket", Params={"Bucket": "bucket"})
            async with httpx.AsyncClient() as client:
                assert (await client.get(url)).status_code == 403  # it was signed for HEAD
            async with bearing(stage, token(shared_key(SECRET), claims(), "HS256", kid=None)) as client:
                assert (await client.get("/v1/health")).status_code == 200
                assert (await client.get("/v1/tables/orders?id=eq.1")).status_code == 403
        async with bearing(stage, NEW) as client:
            answer = await client.post("/v1/credentials", json={"resource": "s3/bucket/fenced", "token": "1"})
        keys = answer.json()
        async with noting(stage, None):
            fenced = connect(
                stage.origin,
                access_key=keys["access_key_id"],
                secret_key=keys["secret_access_key"],
                aws_session_token=keys["session_token"],
            )
            await call(fenced.put_object, Key="fenced", Body=b"x")

    async def test_a_caller_goes_on_with_its_other_key(self, stage: Stage) -> None:
        """Locks, idempotency keys and uploads belong to the caller, whichever key proves it."""
        async with bearing(stage, OLD) as old, bearing(stage, NEW) as new:
            lease = (await old.post("/v1/leases/rotation", json={"holder": "a", "ttl": 60})).json()["lease"]
            assert (await new.put(f"/v1/leases/rotation/{lease}", json={"ttl": 60})).status_code == 200
            assert (await new.delete(f"/v1/leases/rotation/{lease}")).is_success
            sent = {"Fencing-Token": "1", "Idempotency-Key": '"one"'}
            first = await old.post("/v1/tables/orders", json={"id": 77}, headers=sent)
            again = await new.post("/v1/tables/orders", json={"id": 77}, headers=sent)
        assert (first.status_code, again.status_code) == (201, 201)
        assert "idempotency-replayed" not in first.headers
        assert again.headers["idempotency-replayed"] == "true"
        upload = (await call(s3(stage, "AKIAOLD").create_multipart_upload, Key="parts"))["UploadId"]
        part = await call(s3(stage, "AKIANEW").upload_part, Key="parts", UploadId=upload, PartNumber=1, Body=b"x")
        parts = {"Parts": [{"ETag": part["ETag"], "PartNumber": 1}]}
        await call(s3(stage, "AKIANEW").complete_multipart_upload, Key="parts", UploadId=upload, MultipartUpload=parts)
        assert stage.body("parts") == b"x"


async def test_the_latest_use_counts_over_all_gateways(dsn: str, database: Database) -> None:
    """Each stores its own uses, at the latest when it ends, and a late one changes nothing."""
    settings = config(dsn, callers=[WORKER])
    async with running(settings) as one, running(settings) as other:
        for origin, key in ((one, OLD), (other, NEW)):
            async with httpx.AsyncClient(base_url=origin, headers={"apikey": key}) as client:
                assert (await client.get("/v1/metrics")).status_code == 200
    found = await stored(dsn)
    assert set(found) == set(SHOWN.values())
    await stored_counts.note_key_uses(database, [("worker", "api", SHOWN[OLD], 3600.0)])
    assert await stored(dsn) == found
    await stored_counts.note_key_uses(database, [("worker", "api", SHOWN[OLD], 0.0)])
    assert (await stored(dsn))[SHOWN[OLD]] > found[SHOWN[OLD]]


async def test_a_use_during_an_outage_is_stored_with_its_own_time(database: Database) -> None:
    use = KeyUse("worker", KeyKind.S3, b"AKIAOLD")
    uses, away = KeyUses([use, KeyUse("worker", KeyKind.S3, b"AKIANEW")]), Database("postgresql://x@127.0.0.1:1/none")
    use.note()
    assert use.last is not None
    use.last -= 600
    with pytest.raises(GatewayError):
        await uses.flush(away)
    await uses.flush(database)
    (found,) = await stored_counts.read_key_uses(database)
    ago = await database.now() - found.last_used
    assert timedelta(minutes=10) <= ago < timedelta(minutes=10, seconds=PATIENCE)
    # A use that the database has is not stored again.
    await uses.flush(away)


def test_a_fingerprint_is_the_same_everywhere() -> None:
    """Two callers with the same key have other fingerprints, so one list of guesses does not serve for all."""
    digest = digest_of(b"key")
    assert fingerprint("a", digest) == "f4ab0825"
    assert fingerprint("b", digest) != fingerprint("a", digest)
