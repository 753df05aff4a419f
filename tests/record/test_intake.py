"""Every refusal and denial of every plane is in the record; many share a trip, and a storm of denials gives way."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Any
from uuid import uuid4

import asyncpg
import httpx
import pytest
import pytest_asyncio
import structlog

from gateway import part
from gateway.auth.grants import Action, Missing
from gateway.db import search
from gateway.db.database import Database
from gateway.demo.embedded import EmbeddedPostgres
from gateway.errors import Denied, Unauthenticated, Unavailable
from gateway.fencing.decision import Decision, Enforcement, Fence
from gateway.fencing.record import ANONYMOUS, Attempt, EntryReason, MissingGrant, Refusal
from gateway.fencing.token import Token
from gateway.observe import logs
from gateway.observe.events import EntriesLeftOut, StepReached, WriteRefused, ignore
from gateway.record import flushing, refusals
from gateway.record.refusals import Denials, Recorder
from tests.doubles.s3 import S3Double
from tests.objects.clients import call, connect, outcome
from tests.objects.object_gateway import Stage, staged
from tests.record.conftest import ANN, AUDITOR, BOB, Watched, run, watched
from tests.record.entries import put
from tests.record.receiver import receiving, telling, webhook
from tests.record.test_stream import Stream
from tests.running import OPEN
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
    """The statements that put something into the intake: how many refusals each has. They may be held up."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sizes: list[int] = []
        self.gate = asyncio.Event()
        self.gate.set()
        real = asyncpg.Connection.fetch

        async def counted(session: Any, sql: str, *arguments: Any) -> list[asyncpg.Record]:
            if "INTO fencing.intake" in sql:
                self.sizes.append(len(arguments[0]))
                await self.gate.wait()
            found: list[asyncpg.Record] = await real(session, sql, *arguments)
            return found

        monkeypatch.setattr(asyncpg.Connection, "fetch", counted)

    @property
    def count(self) -> int:
        return len(self.sizes)


@pytest.fixture
def trips(monkeypatch: pytest.MonkeyPatch) -> Trips:
    return Trips(monkeypatch)


async def holders(database: Database) -> list[str]:
    found = await database.fetch("SELECT holder FROM fencing.record WHERE kind = 'rejection' ORDER BY holder")
    return [row["holder"] for row in found]


class TestRecorder:
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

    async def test_a_refusal_of_a_cancelled_request_is_on_record(self, database: Database, trips: Trips) -> None:
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
        "SELECT plane, rule, reason, enforced, value, fence_value, nullif(details - 'program', '{}') AS details "
        "FROM fencing.record WHERE kind = 'rejection' AND resource = $1 ORDER BY at",
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

    async def test_several_resources_of_one_write_are_one_trip(self, shared: Stage, trips: Trips) -> None:
        for number in (2, 3):
            assert (await shared.barrier(f"public.accounts/{number}", "9")).status_code == 200
        trips.sizes.clear()
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


GRANTS = [
    {"callers": ["group:auditors"], "actions": ["audit"], "everything": True},
    {"callers": ["bob"], "actions": ["read", "write"], "tables": ["public.orders"]},
]
ORDERS = (
    "CREATE TABLE orders (id bigint PRIMARY KEY, state text)",
    "INSERT INTO orders SELECT n, 'new' FROM generate_series(1, 9) AS n",
)
EVER = datetime(2026, 1, 1, tzinfo=UTC)
LACKING = {"action": "write", "on": "table public.orders"}


@asynccontextmanager
async def with_orders(dsn: str, *grants: dict[str, Any]) -> AsyncIterator[Watched]:
    async with watched(dsn, grants=[*GRANTS, *grants]) as one:
        for statement in ORDERS:
            await one.database.fetch_write(statement)
        async with one.client(BOB) as client, asyncio.timeout(PATIENCE):
            while (await client.get("/v1/tables/orders")).status_code != 200:
                await asyncio.sleep(0.05)
        yield one


@pytest.fixture
async def stage(dsn: str) -> AsyncIterator[Watched]:
    async with with_orders(dsn) as one:
        yield one


async def write_order(client: httpx.AsyncClient, number: int = 5) -> httpx.Response:
    sent = {"Fencing-Token": "7", "Fencing-Holder": "host-a"}
    return await client.patch(f"/v1/tables/orders?id=eq.{number}", json={"state": "x"}, headers=sent)


async def denied(stage: Watched, key: str = ANN) -> dict[str, Any]:
    async with stage.client(key) as client:
        answer = await write_order(client)
    assert answer.status_code == 403, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def test_it_is_an_event_a_line_of_the_log_and_a_metric(
    stage: Watched, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "_logger", structlog.wrap_logger(structlog.PrintLogger(), processors=logs.PROCESSORS))
    await denied(stage)
    (event,) = (one for one in stage.events if isinstance(one, WriteRefused))
    assert (event.plane, event.rejection.reason, event.rejection.missing) == (
        "tables",
        "denied",
        MissingGrant(**LACKING),
    )
    logs.log(event)
    line = json.loads(capsys.readouterr().out)
    assert {name: line[name] for name in ("event", "reason", "caller", "action", "on")} == {
        "event": "write refused",
        "reason": "denied",
        "caller": "ann",
        **LACKING,
    }
    metrics = (await stage.get("/v1/metrics")).text
    assert 'gateway_writes_refused_total{plane="tables",reason="denied",rule=""} 1' in metrics.replace(
        'rule="public.orders"', 'rule=""'
    )


async def test_it_is_on_record_with_the_missing_grant(stage: Watched) -> None:
    """In lists, one entry, exports and streams, and it can be asked for by its reason."""
    async with stage.client() as client, client.stream("GET", "/v1/rejections/stream?reason=denied") as answer:
        stream = Stream(answer)
        await put(stage.database)
        await denied(stage)
        streamed = await stream.next()
    (listed,) = (await stage.get("/v1/rejections", reason="denied")).json()["rejections"]
    assert listed == {**streamed, "lag_seconds": None}
    assert (listed["reason"], listed["caller"], listed["resource"], listed["token"], listed["holder"]) == (
        *("denied", "ann", "public.orders", None, None),
    )
    assert listed["missing"] == LACKING
    assert listed["fence"] is None
    one = (await stage.get(f"/v1/rejections/{listed['id']}")).json()["rejection"]
    assert one["missing"] == LACKING
    (event,) = (await stage.get("/v1/events", reason="denied")).json()["events"]
    assert event["details"]["missing"] == LACKING
    (line,) = (await stage.get("/v1/events.ndjson", reason="denied")).text.splitlines()
    assert json.loads(line)["details"]["missing"] == LACKING
    _, row = (await stage.get("/v1/rejections.csv", reason="denied")).text.splitlines()
    assert '""on"": ""table public.orders""' in row or "table public.orders" in row
    # The refused caller sees its own denials, and no others.
    assert len((await stage.get("/v1/rejections", ANN, reason="denied")).json()["rejections"]) == 1
    assert (await stage.get("/v1/rejections", BOB, reason="denied")).json()["rejections"] == []
    assert [
        row["missing"] for row in (await stage.get("/v1/rejections", reason="token-stale")).json()["rejections"]
    ] == [None]


async def test_the_page_shows_who_was_denied_what(stage: Watched) -> None:
    for _ in range(2):
        said = (await denied(stage))["details"]
    async with stage.client(None) as client:
        await client.post("/ui/login", data={"api_key": AUDITOR}, headers={"Origin": stage.origin})
        overview = (await client.get("/ui/")).text
        lists = (await client.get("/ui/rejections?reason=denied")).text
        others = (await client.get("/ui/rejections?reason=token-stale")).text
        (listed, *_) = (await client.get("/v1/rejections", headers={"apikey": AUDITOR})).json()["rejections"]
        entry = (await client.get(f"/ui/rejections/{listed['id']}")).text
    assert listed["id"] in said
    table = overview.partition("Denied, by caller")[2].partition("</table>")[0]
    assert "<td>write for " in table
    assert "table public.orders<" in table
    assert "reason=denied" in table
    assert ">ann<" in table
    assert ">2<" in table
    assert listed["id"] in lists
    assert listed["id"] not in others
    assert "The caller ann lacks the grant write for table public.orders." in entry
    assert "gateway auth can" in entry
    assert "Denied request to" in entry
    assert "came with no token" not in entry, "the token of a denied request is not read"


async def test_the_commands_show_it(stage: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    await put(stage.database)
    await denied(stage)
    monkeypatch.setenv("GATEWAY_URL", stage.origin)
    monkeypatch.setenv("GATEWAY_API_KEY", AUDITOR)
    result = await run("search", "--reason", "denied")
    assert result.exit_code == 0, result.output
    (cells,) = (line.split("\t")[1:6] for line in result.stdout.splitlines()[1:])
    assert cells == ["denied write for table public.orders", "public.orders", "", "", "ann"]
    (exported,) = (await run("search", "--json", "--reason", "denied")).stdout.splitlines()
    assert json.loads(exported)["details"]["missing"] == LACKING


async def test_a_webhook_chooses_by_reason(dsn: str, database: Database) -> None:
    denied, used = EntryReason.DENIED, EntryReason.TOKEN_USED
    chosen: dict[str, tuple[dict[str, Any], list[str]]] = {
        "all": ({}, ["token-stale", "denied", "token-used"]),
        "no denials": ({"except_reasons": (denied,)}, ["token-stale", "token-used"]),
        "both": ({"except_reasons": (denied, used)}, ["token-stale"]),
    }
    async with receiving() as receiver:
        hooks = [webhook(name, receiver.url, **wanted) for name, (wanted, _) in chosen.items()]
        async with telling(dsn, *hooks):
            for reason in ("token-stale", "denied", "token-used"):
                details = json.dumps({"missing": LACKING}) if reason == "denied" else None
                await put(database, reason=reason, details=details)
            await receiver.until(lambda: len(receiver.entries()) == sum(len(given) for _, given in chosen.values()))
    for name, (_, given) in chosen.items():
        messages = [message for message in receiver.taken if message.data["webhook"] == name]
        assert [one["reason"] for message in messages for one in message.data["entries"]] == given
    for entry in receiver.entries():
        assert entry.get("details") == ({"missing": LACKING} if entry["reason"] == "denied" else None)


async def test_a_storm_of_denials_gives_way_to_a_holder(
    stage: Watched, trips: Trips, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is denied sends on and on. Its denials are recorded in few batches, each after a pause."""
    burst, writes = 100, 20
    # Longer than each of these requests takes, so that there are many in a batch.
    monkeypatch.setattr(refusals, "GIVING_WAY", 0.2)
    clock = asyncio.get_running_loop().time
    async with stage.client(ANN) as flooding, stage.client(BOB) as holder:
        for _ in range(3):
            assert (await write_order(holder, 2)).is_success
        trips.sizes.clear()
        begun = clock()
        storm = [asyncio.ensure_future(write_order(flooding, number % 9)) for number in range(burst)]
        for _ in range(writes):
            assert (await write_order(holder, 2)).is_success
        answers = await asyncio.gather(*storm)
        took = clock() - begun
    assert Counter(answer.status_code for answer in answers) == {403: burst}
    assert sum(trips.sizes) == burst, "each is on record, once"
    assert trips.count <= 1 + took / refusals.GIVING_WAY, "however long a busy machine takes for the storm"
    assert await counted(stage.database) == burst


async def counted(database: Database, reason: str = "denied") -> int:
    row = await database.fetchrow("SELECT count(*) AS n FROM fencing.rejection WHERE reason = $1", reason)
    assert row is not None
    return int(row["n"])


ANYONE = {"callers": ["anonymous"], "actions": ["read"], "tables": ["public.orders"]}


async def test_a_stranger_cannot_fill_the_record(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Denials without credentials have entries within a budget, and an entry has the count of the others.

    Every one is answered and counted. The refusals of an overtaken holder, and the denials of a known caller, all have
    entries, in the midst of the storm.
    """
    monkeypatch.setattr(refusals, "DENIALS_AT_ONCE", 10)
    clock, every = asyncio.get_running_loop().time, 0.2
    monkeypatch.setattr(part, "flushing", partial(flushing.flushing, interval=every))
    sent, zombies = 120, 10
    async with with_orders(dsn, ANYONE) as stage:
        async with stage.client(None) as stranger, stage.client(BOB) as bob, stage.client(ANN) as ann:
            assert (await bob.patch("/v1/tables/orders?id=eq.5", json={}, headers={"Fencing-Token": "9"})).is_success
            begun = clock()
            storm = [asyncio.ensure_future(write_order(stranger, number % 9)) for number in range(sent)]
            late = [asyncio.ensure_future(write_order(bob, 5)) for _ in range(zombies)]
            known = [asyncio.ensure_future(write_order(ann, 5)) for _ in range(zombies)]
            answers = [answer.status_code for answer in await asyncio.gather(*storm)]
            assert [answer.status_code for answer in await asyncio.gather(*late)] == [412] * zombies
            assert [answer.status_code for answer in await asyncio.gather(*known)] == [403] * zombies
        assert answers == [401] * sent
        metrics = (await stage.get("/v1/metrics")).text
        (line,) = [one for one in metrics.splitlines() if one.startswith("gateway_writes_refused") and "denied" in one]
        assert float(line.split()[-1]) == sent + zombies
        async with asyncio.timeout(PATIENCE):
            while (entries := await strangers(stage.database)) and sum(entries) != sent:
                await asyncio.sleep(0.05)
        # So many at once, and so many a second, and a count at each flush: a busy machine takes long for the storm.
        took = clock() - begun
        assert len(entries) <= refusals.DENIALS_AT_ONCE + took * refusals.A_SECOND + 1 + took / every
        assert await counted(stage.database) == len(entries) + zombies
        assert await counted(stage.database, "token-stale") == zombies
        # The overview counts requests, not entries.
        (group, *_) = [one for one in await search.count_denials(stage.database, EVER, 9) if one.caller == "anonymous"]
        assert group.count == sent


async def strangers(database: Database) -> list[int]:
    """The number of denials that each entry of an anonymous caller stands for, with its own."""
    rows = await database.fetch(
        "SELECT 1 + coalesce((details ->> 'also_denied')::int, 0) AS n FROM fencing.record "
        "WHERE reason = 'denied' AND caller = 'anonymous'"
    )
    return [row["n"] for row in rows]


async def test_a_stranger_whose_writes_pass_does_not_fill_the_record_either(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond the rate they have no entry, and each is counted: in metrics, in the log, and on the page."""
    monkeypatch.setattr(refusals, "BURST", 3)
    monkeypatch.setattr(refusals, "A_SECOND", 0.0)
    monkeypatch.setattr(refusals, "_TOLD_EVERY", 0.5)
    monkeypatch.setattr(part, "flushing", partial(flushing.flushing, interval=0.2))
    writes = [*OPEN, {"callers": ["anonymous"], "actions": ["write"], "tables": ["*"], "resources": ["**"]}]
    fencing = {"mode": Enforcement.OBSERVE}
    async with watched(dsn, grants=writes, fencing=fencing) as stage:
        for statement in ORDERS:
            await stage.database.fetch_write(statement)
        async with stage.client(None) as stranger, asyncio.timeout(PATIENCE):
            while (await stranger.get("/v1/tables/orders")).status_code != 200:
                await asyncio.sleep(0.05)
            sent = [stranger.patch("/v1/tables/orders?id=eq.5", json={"state": "x"}) for _ in range(8)]
            answers = await asyncio.gather(*sent)
        assert [one.status_code for one in answers] == [204] * 8
        assert {one.headers["fencing-would-refuse"] for one in answers} == {"token-required"}
        assert await counted(stage.database, "token-required") == 3
        metrics = (await stage.get("/v1/metrics")).text
        (line,) = [one for one in metrics.splitlines() if one.startswith("gateway_writes_observed_total{")]
        assert float(line.split()[-1]) == 8
        async with stage.client() as client, asyncio.timeout(PATIENCE):
            while not (told := [one for one in stage.events if isinstance(one, EntriesLeftOut)]):
                await asyncio.sleep(0.05)
            while "At least 5 of these writes" not in (page := (await client.get("/ui/observe?span=24h")).text):
                await asyncio.sleep(0.05)
            report = (await client.get("/v1/reports/public.orders/5")).text
        assert told == [EntriesLeftOut("tables", 5)]
        assert "8 of 8 writes would have been refused" in page
        assert "except those of anonymous callers beyond a rate" in report


async def test_strangers_that_use_up_the_rate_of_all_leave_the_least_to_another_one(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else four networks take the answer 412 from the writers of all other networks."""
    monkeypatch.setattr(refusals, "BURST", 32)
    monkeypatch.setattr(refusals, "A_SECOND", 0.0)
    async with watched(dsn, grants=OPEN) as stage, AsyncExitStack() as stack:
        # Each loopback address is a network of its own.
        networks = [
            await stack.enter_async_context(
                httpx.AsyncClient(
                    base_url=stage.origin,
                    timeout=PATIENCE,
                    transport=httpx.AsyncHTTPTransport(local_address=f"127.0.0.{number}"),
                )
            )
            for number in range(2, 7)
        ]

        async def barrier(client: httpx.AsyncClient, token: str) -> int:
            return (await client.post("/v1/fences/job/1/barrier", json={"token": token})).status_code

        assert await barrier(networks[0], "9") == 200
        greedy = [[await barrier(client, "3") for _ in range(40)] for client in networks[:4]]
        assert [answers.count(412) for answers in greedy] == [32, 32, 32, 2]
        assert {status for answers in greedy for status in answers} == {412, 503}
        assert [await barrier(networks[4], "3") for _ in range(3)] == [412, 412, 503]


async def test_a_count_is_not_lost_with_the_database(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusals, "DENIALS_AT_ONCE", 1)
    monkeypatch.setattr(refusals, "A_SECOND", 0.0)
    monkeypatch.setattr(refusals, "GIVING_WAY", 0.0)
    refusing = Denials(database, ignore)
    for _ in range(5):
        assert isinstance(await refusing.refuse(*lacking("table public.orders", ANONYMOUS)), Unauthenticated)
    async with Database("postgresql://127.0.0.1:1/nowhere", pool_size=1, connect_timeout=0.2) as nowhere:
        with pytest.raises(Unavailable):
            await refusing.flush(nowhere)
    await refusing.flush(database)
    await refusing.flush(database)
    assert await strangers(database) == [1, 4]


async def test_a_name_that_cannot_be_stored_harms_no_other_denial(database: Database) -> None:
    """A caller chooses the names of keys. All denials of a batch are one statement."""
    refusing = Denials(database, ignore)
    names, long = ["a\0b", "a\ud800b", "x" * 10_000, "table public.orders"], "é" * 10_000
    asked = [*map(lacking, names), lacking(long, resource=long)]
    errors = await asyncio.gather(*(refusing.refuse(*one) for one in asked))
    assert all(isinstance(error, Denied) and len(error.message) < 2000 for error in errors)
    rows = await database.fetch("SELECT details #>> '{missing,on}' AS name FROM (TABLE fencing.intake) AS one")
    assert len(rows) == len(asked)
    assert {row["name"] for row in rows} >= {"a\ufffdb", "a?b", "table public.orders"}


def lacking(on: str, caller: str = "ann", resource: str = "resource") -> tuple[Missing, Attempt]:
    attempt = Attempt(None, None, caller, "PATCH", "/x", None, "request", plane="tables", rule=resource)
    return Missing(Action.WRITE, on, resource), attempt
