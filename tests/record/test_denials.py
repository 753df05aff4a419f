"""Denials are seen: on record with the missing grant, wherever refused writes are seen. A storm of them gives way."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

import asyncpg
import httpx
import pytest
import pytest_asyncio
import structlog

from gateway import part
from gateway.auth.grants import Action, Missing
from gateway.db import search
from gateway.db.database import Database, Record
from gateway.db.pool import Session
from gateway.errors import Denied, Unauthenticated, Unavailable
from gateway.fencing.record import ANONYMOUS, Attempt, EntryReason, MissingGrant
from gateway.observe import logs
from gateway.observe.events import WriteRefused, ignore
from gateway.record import denials, flushing
from gateway.record.denials import Denials
from gateway.webhooks.alarms import ConfiguredAlarm
from gateway.webhooks.rate import AlarmRule
from tests.record.receiver import receiving
from tests.record.telling import put, telling, webhook
from tests.record.test_alarms import gateway, told
from tests.record.test_audit_commands import run
from tests.record.test_stream import Stream
from tests.record.watched import ANN, AUDITOR, BOB, Watched, watched
from tests.waiting import PATIENCE

GRANTS = [
    {"groups": ["auditors"], "actions": ["audit"], "everything": True},
    {"callers": ["bob"], "actions": ["read", "write"], "tables": ["public.orders"]},
]
EVER = datetime(2026, 1, 1, tzinfo=UTC)
LACKING = {"action": "write", "on": "table public.orders"}


@pytest_asyncio.fixture
async def stage(dsn: str) -> AsyncIterator[Watched]:
    async with watched(dsn, grants=GRANTS) as one:
        await one.database.run(
            lambda transaction: transaction.execute("CREATE TABLE orders (id bigint PRIMARY KEY, state text)")
        )
        await one.database.run(
            lambda transaction: transaction.execute(
                "INSERT INTO orders SELECT n, 'new' FROM generate_series(1, 9) AS n"
            )
        )
        async with one.client(BOB) as client, asyncio.timeout(PATIENCE):
            while (await client.get("/v1/tables/orders")).status_code != 200:
                await asyncio.sleep(0.05)
        yield one


async def write(client: httpx.AsyncClient, number: int = 5) -> httpx.Response:
    sent = {"Fencing-Token": "7", "Fencing-Holder": "host-a"}
    return await client.patch(f"/v1/tables/orders?id=eq.{number}", json={"state": "x"}, headers=sent)


async def denied(stage: Watched, key: str = ANN) -> dict[str, Any]:
    async with stage.client(key) as client:
        answer = await write(client)
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
    assert event["details"] == {"missing": LACKING}
    (line,) = (await stage.get("/v1/events.ndjson", reason="denied")).text.splitlines()
    assert json.loads(line)["details"] == {"missing": LACKING}
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
    assert json.loads(exported)["details"] == {"missing": LACKING}


@pytest.mark.parametrize(
    ("wanted", "received"),
    [
        ({}, ["token-stale", "denied", "token-used"]),
        ({"reasons": (EntryReason.DENIED,)}, ["denied"]),
        ({"except_reasons": (EntryReason.DENIED,)}, ["token-stale", "token-used"]),
        (
            {"reasons": (EntryReason.DENIED, EntryReason.TOKEN_USED), "except_reasons": (EntryReason.DENIED,)},
            ["token-used"],
        ),
    ],
    ids=str,
)
async def test_a_webhook_chooses_by_reason(
    dsn: str, database: Database, wanted: dict[str, Any], received: list[str]
) -> None:
    async with receiving() as receiver, telling(dsn, webhook("ops", receiver.url, **wanted)):
        for reason in ("token-stale", "denied", "token-used"):
            details = json.dumps({"missing": LACKING}) if reason == "denied" else None
            await put(database, reason=reason, details=details)
        await receiver.until(lambda: len(receiver.entries()) == len(received))
    assert [entry["reason"] for entry in receiver.entries()] == received
    for entry in receiver.entries():
        assert entry.get("details") == ({"missing": LACKING} if entry["reason"] == "denied" else None)


async def test_alarms_count_it(dsn: str, database: Database) -> None:
    async with gateway(dsn, ConfiguredAlarm("many", "", AlarmRule(more_than=5, minutes=10))) as (watch, _):
        await put(database, 6, reason="denied", caller="ann")
        await watch.look()
    ((kind, said),) = await told(database)
    assert (kind, said["count"], said["callers"]) == ("alarm-raised", 6, [{"name": "ann", "count": 6}])


class Recording:
    """Counts the trips that put refusals on record, and how many each has."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.trips: list[int] = []
        real = asyncpg.Connection.fetch

        async def counted(session: Session, sql: str, *arguments: Sequence[Any]) -> list[Record]:
            if "INSERT INTO fencing.intake" in sql:
                self.trips.append(len(arguments[0]))
            return await real(session, sql, *arguments)

        monkeypatch.setattr(asyncpg.Connection, "fetch", counted)


async def test_a_storm_of_denials_gives_way_to_a_holder(stage: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is denied sends on and on. Its denials are recorded in few batches, each after a pause."""
    recording, burst, writes = Recording(monkeypatch), 200, 40
    # Longer than each of these requests takes, so that there are many in a batch.
    monkeypatch.setattr(denials, "GIVING_WAY", 0.2)
    clock = asyncio.get_running_loop().time
    async with stage.client(ANN) as flooding, stage.client(BOB) as holder:
        for _ in range(3):
            assert (await write(holder, 2)).is_success
        begun = clock()
        storm = [asyncio.ensure_future(write(flooding, number % 9)) for number in range(burst)]
        for _ in range(writes):
            assert (await write(holder, 2)).is_success
        answers = await asyncio.gather(*storm)
        took = clock() - begun
    assert Counter(answer.status_code for answer in answers) == {403: burst}
    assert sum(recording.trips) == burst, "each is on record, once"
    assert len(recording.trips) <= 1 + took / denials.GIVING_WAY, "however long a busy machine takes for the storm"
    assert await counted(stage.database) == burst


async def counted(database: Database) -> int:
    row = await database.fetchrow("SELECT count(*) AS n FROM fencing.rejection WHERE reason = 'denied'")
    assert row is not None
    return int(row["n"])


async def test_between_two_batches_of_denials_there_is_a_pause(
    dsn: str, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(denials, "GIVING_WAY", 0.1)
    refusing, clock = Denials(database, ignore), asyncio.get_running_loop().time
    start = clock()
    for number in range(4):
        assert isinstance(await refusing.refuse(*lacking(f"table public.t{number}")), Denied)
    assert clock() - start >= 3 * denials.GIVING_WAY


ANYONE = {"callers": ["anonymous"], "actions": ["read"], "tables": ["public.orders"]}


async def test_a_stranger_cannot_fill_the_record(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Denials without credentials have entries within a budget, and an entry has the count of the others.

    Every one is answered and counted. The refusals of an overtaken holder, and the denials of a known caller, all have
    entries, in the midst of the storm.
    """
    monkeypatch.setattr(denials, "BURST", 10)
    clock, every = asyncio.get_running_loop().time, 0.2
    monkeypatch.setattr(part, "flushing", partial(flushing.flushing, interval=every))
    sent, zombies = 300, 20
    async with watched(dsn, grants=[*GRANTS, ANYONE]) as stage:
        await stage.database.run(
            lambda transaction: transaction.execute("CREATE TABLE orders (id bigint PRIMARY KEY, state text)")
        )
        async with stage.client(None) as stranger, stage.client(BOB) as bob, stage.client(ANN) as ann:
            async with asyncio.timeout(PATIENCE):
                while (await bob.get("/v1/tables/orders")).status_code != 200:
                    await asyncio.sleep(0.05)
            assert (await bob.patch("/v1/tables/orders?id=eq.5", json={}, headers={"Fencing-Token": "9"})).is_success
            begun = clock()
            storm = [asyncio.ensure_future(write(stranger, number % 9)) for number in range(sent)]
            late = [asyncio.ensure_future(write(bob, 5)) for _ in range(zombies)]
            known = [asyncio.ensure_future(write(ann, 5)) for _ in range(zombies)]
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
        assert len(entries) <= denials.BURST + took * denials.A_SECOND + 1 + took / every
        assert await counted(stage.database) == len(entries) + zombies
        row = await stage.database.fetchrow("SELECT count(*) AS n FROM fencing.rejection WHERE reason = 'token-stale'")
        assert row is not None
        assert row["n"] == zombies
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


async def test_a_count_is_not_lost_with_the_database(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(denials, "BURST", 1)
    monkeypatch.setattr(denials, "A_SECOND", 0.0)
    monkeypatch.setattr(denials, "GIVING_WAY", 0.0)
    refusing = Denials(database, ignore)
    for _ in range(5):
        assert isinstance(await refusing.refuse(*lacking("table public.orders", ANONYMOUS)), Unauthenticated)
    nowhere = Database("postgresql://127.0.0.1:1/nowhere", pool_size=1, connect_timeout=0.2)
    with pytest.raises(Unavailable):
        await refusing.flush(nowhere)
    await nowhere.close()
    await refusing.flush(database)
    await refusing.flush(database)
    assert await strangers(database) == [1, 4]


async def test_a_name_that_cannot_be_stored_harms_no_other_denial(database: Database) -> None:
    """A caller chooses the names of keys. All denials of a batch are one statement."""
    refusing = Denials(database, ignore)
    names = ["a\0b", "a\ud800b", "x" * 10_000, "table public.orders"]
    errors = await asyncio.gather(*(refusing.refuse(*lacking(name)) for name in names))
    assert all(isinstance(error, Denied) for error in errors)
    rows = await database.fetch("SELECT details #>> '{missing,on}' AS name FROM (TABLE fencing.intake) AS one")
    assert {row["name"] for row in rows} >= {"a\ufffdb", "a?b", "table public.orders"}


def lacking(on: str, caller: str = "ann") -> tuple[Missing, Attempt]:
    attempt = Attempt(None, None, caller, "PATCH", "/x", None, "request", plane="tables")
    return Missing(Action.WRITE, on, "resource"), attempt
