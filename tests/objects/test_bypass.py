"""The gateway finds each change that bypassed it once, by the next write or a sweep. It reports no other change."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import product
from typing import Any, TypeAlias
from uuid import uuid4

import pytest
import pytest_asyncio

from gateway.db import bypasses, intents
from gateway.db.bypasses import FoundObject
from gateway.db.database import Database
from gateway.demo.embedded import EmbeddedPostgres
from gateway.errors import Unavailable
from gateway.fencing.decision import Presented
from gateway.fencing.intent import Announcement, Begin, Finish, Intent
from gateway.fencing.token import Token
from gateway.objects.bypass import BypassScan
from gateway.objects.key_rules import KeyRule, Resources
from gateway.objects.protocol import settling
from gateway.objects.store.operations import Upstream
from gateway.observe.events import BypassFound, SweepFailed
from tests.doubles.s3 import S3Double
from tests.objects.clients import call, connect, opened, outcome
from tests.objects.object_gateway import ADMIN, Stage, forgetful, module_stage, staged, sweeper
from tests.patience import patient
from tests.running import Events
from tests.tiers import first

over_http = pytest.mark.asyncio(loop_scope="module")

Entry: TypeAlias = tuple[str, str | None, dict[str, Any]]
BODY = b"as the gateway wrote it"
SETTINGS: dict[str, Any] = {"callers": [ADMIN]}


shared = module_stage(**SETTINGS)


@pytest_asyncio.fixture(loop_scope="module")
async def stage(shared: Stage) -> Stage:
    """The shared stage, once everything that other tests have left there is found."""
    shared.double.faults.clear()
    await swept(shared)
    return shared


@pytest_asyncio.fixture(loop_scope="module")
async def alone(postgres_server: EmbeddedPostgres) -> AsyncIterator[Stage]:
    """A stage for a test that counts everything there is."""
    async with staged(postgres_server, **SETTINGS) as one:
        yield one


async def on_record(stage: Stage, place: str = "") -> list[Entry]:
    """Return the entries about keys that begin like this, and about a bucket of this name."""
    rows = await stage.rows(
        "SELECT reason, resource, details::text FROM fencing.record WHERE kind = 'bypass'"
        " AND (starts_with(details->>'key', $1) OR details->>'bucket' = $1) ORDER BY at",
        place,
    )
    return [(row[0], row[1], json.loads(row[2])) for row in rows]


async def reasons(stage: Stage, key: str) -> list[str]:
    return [reason for reason, *_ in await on_record(stage, key)]


@asynccontextmanager
async def patrol(stage: Stage, page: int = 1000, *rules: KeyRule) -> AsyncIterator[tuple[BypassScan, Events]]:
    """A patrol like that of another gateway."""
    events, database = Events(), patient(stage.dsn)
    try:
        async with Upstream(stage.settings()) as upstream:
            yield BypassScan(database, upstream, Resources(rules), events, page), events
    finally:
        await database.close()


async def swept(stage: Stage, page: int = 1000, *rules: KeyRule) -> int:
    """How much one whole round finds."""
    async with patrol(stage, page, *rules) as (one, _):
        return await one.round(10_000)


async def bypass(stage: Stage, how: str, key: str, bucket: str = "bucket") -> None:
    """Leave ``key`` as a write through the gateway does, and then do something to it behind its back."""
    writer, where = connect(stage.origin, "5"), {"Key": key, "Bucket": bucket}
    await call(writer.put_object, **where, Body=BODY)
    if how == "appeared":
        await call(writer.delete_object, **where)
    if how == "vanished":
        await call(stage.beside().delete_object, **where)
    else:
        await call(stage.beside().put_object, **where, Body=how.encode())


HOW = ["changed", "vanished", "appeared"]


@over_http
class TestByTheNextWrite:
    @pytest.mark.parametrize("how", first(HOW))
    async def test_of_the_key(self, stage: Stage, key: str, how: str) -> None:
        await bypass(stage, how, key)
        assert await outcome(connect(stage.origin, "6").put_object, Key=key, Body=b"next") == (200, "")
        assert stage.body(key) == b"next", "the write goes on as ever"
        ((reason, resource, details),) = await on_record(stage, key)
        assert (reason, resource) == (f"object-{how}", f"s3/bucket/{key}")
        assert (details["bucket"], details["key"], details["found_by"]) == ("bucket", key, "write")
        assert ("expected" in details, "found" in details) == (how != "appeared", how != "vanished")
        found = [event for event in stage.events if isinstance(event, BypassFound) and key in event.target]
        assert [(event.reason, event.target) for event in found] == [(f"object-{how}", f"/bucket/{key}")]
        await call(connect(stage.origin, "6").put_object, Key=key, Body=b"and again")
        assert await swept(stage) == 0
        assert len(await on_record(stage, key)) == 1

    @pytest.mark.thorough
    @pytest.mark.parametrize("how", HOW)
    @pytest.mark.parametrize("kind", ["matches", "does-not-match", "delete", "tags", "completion"])
    async def test_whatever_it_is(self, alone: Stage, key: str, kind: str, how: str) -> None:
        """Writes with a condition of their own look at the key before their announcement. Others look afterwards."""
        await bypass(alone, how, key)
        writer = connect(alone.origin, "6")
        if kind == "matches":
            etag = {} if how == "vanished" else {"IfMatch": alone.double.objects("bucket")[key].etag}
            await outcome(writer.put_object, Key=key, Body=b"next", **(etag or {"IfNoneMatch": "*"}))
        elif kind == "does-not-match":
            assert await outcome(writer.put_object, Key=key, Body=b"next", IfMatch='"0"') != (200, "")
        elif kind == "delete":
            assert await outcome(writer.delete_object, Key=key) == (204, "")
        elif kind == "tags":
            await outcome(writer.put_object_tagging, Key=key, Tagging={"TagSet": [{"Key": "a", "Value": "b"}]})
        else:
            await call(writer.complete_multipart_upload, **await opened(writer, key, [b"part"]))
        # Tags of what is not there are refused before anything is announced, when nothing is certain yet.
        by_write = (kind, how) != ("tags", "vanished")
        assert await swept(alone) == (not by_write)
        assert await reasons(alone, key) == [f"object-{how}"]
        assert (await on_record(alone, key))[0][2]["found_by"] == ("write" if by_write else "sweep")


@over_http
class TestByASweep:
    @pytest.mark.parametrize("how", first(HOW))
    async def test_each_change_is_found_once(self, stage: Stage, key: str, how: str) -> None:
        await bypass(stage, how, key)
        assert await swept(stage) == 1
        ((reason, resource, details),) = await on_record(stage, key)
        assert (reason, resource, details["found_by"]) == (f"object-{how}", f"s3/bucket/{key}", "sweep")
        assert ("owner" in details) == (how != "vanished")
        assert await swept(stage) == 0
        assert await outcome(connect(stage.origin, "6").put_object, Key=key, Body=b"next") == (200, "")
        assert len(await on_record(stage, key)) == 1, "nor is it found again by the next write"
        await call(stage.beside().put_object, Key=key, Body=b"another change")
        assert await swept(stage) == 1

    async def test_two_sweeps_at_once_find_it_once(self, stage: Stage, key: str) -> None:
        for number in range(5):
            await bypass(stage, "changed", f"{key}/{number}")
        async with patrol(stage) as (one, _), patrol(stage) as (other, _):
            assert sum(await asyncio.gather(one.round(), other.round())) == 5
        assert len(await on_record(stage, key)) == 5

    async def test_it_asks_only_for_what_differs(self, alone: Stage) -> None:
        writer = connect(alone.origin, "5")
        for number in range(10):
            await call(writer.put_object, Key=f"k{number}", Body=b"x")
            alone.double.put("bucket", f"unknown{number}", b"nobody's")
        await call(writer.delete_object, Key="k3")
        alone.double.put("bucket", "k7", b"changed")
        since = len(alone.double.requests)
        assert await swept(alone) == 1
        asked = [(each.operation.value, each.key) for each in alone.double.requests[since:]]
        assert asked == [("ListObjectsV2", None), ("HeadObject", "k7")]

    @pytest.mark.thorough
    @pytest.mark.parametrize("page", [1, 2, 3, 7])
    async def test_page_by_page_and_on_where_it_ended(self, alone: Stage, page: int) -> None:
        writer = connect(alone.origin, "5")
        names = ["a", "a/", "a/1", "a/2", "b", "ä", "z z", "\U0001f600", "x\x01", "~"]
        for name in names:
            await call(writer.put_object, Key=name, Body=b"x")
            await call(writer.put_object, Key=name, Body=b"x", Bucket="other")
            alone.double.put("bucket", f"{name}-", b"nobody's")
        for name in names[::2]:
            alone.double.put("bucket", name, b"changed")
            alone.double.put("other", name, b"changed")
        found = 0
        for _ in range(60):
            async with patrol(alone, page) as (one, events):
                found += await one.round(1)
            assert [event for event in events if isinstance(event, SweepFailed)] == []
        assert found == 10
        assert sorted(details["key"] for *_, details in await on_record(alone)) == sorted(2 * names[::2])

    async def test_few_known_keys_in_a_large_bucket_cost_few_pages(self, alone: Stage) -> None:
        for number in range(200):
            alone.double.put("bucket", f"a/{number:03}", b"nobody's")
            alone.double.put("bucket", f"k{number:03}", b"nobody's")
        etag = alone.double.objects("bucket")["k100"].etag
        await call(connect(alone.origin, "5").put_object, Key="k100", Body=b"x", IfMatch=etag)
        since = len(alone.double.requests)
        assert await swept(alone, 10) == 0
        assert len([each for each in alone.double.requests[since:] if each.operation.value == "ListObjectsV2"]) <= 2

    async def test_a_bucket_that_is_gone_is_one_entry(self, stage: Stage, key: str) -> None:
        await call(connect(stage.origin).create_bucket, Bucket=key)
        for number in range(3):
            await bypass(stage, "vanished", f"k{number}", key)
        await call(stage.beside().delete_bucket, Bucket=key)
        assert await swept(stage) == 1
        assert await on_record(stage, key) == [
            ("bucket-vanished", None, {"bucket": key, "objects": 3, "found_by": "sweep"})
        ]
        assert await swept(stage) == 0

    async def test_a_tombstone_that_was_deleted_at_the_store(self, postgres_server: EmbeddedPostgres) -> None:
        """It stands there because absence must not come back."""
        async with staged(postgres_server, forgetful()) as stage:
            writer = connect(stage.origin, "5")
            await call(writer.put_object, Key="k", Body=BODY)
            await call(writer.delete_object, Key="k")
            assert await swept(stage) == 0
            await call(stage.beside().delete_object, Key="k")
            assert await swept(stage) == 1
            ((reason, _, details),) = await on_record(stage)
            assert (reason, details["tombstone"]) == ("object-vanished", True)


@over_http
class TestNothingElse:
    async def test_a_key_never_written_through_the_gateway(self, alone: Stage) -> None:
        writer = connect(alone.origin, "1")
        alone.double.put("bucket", "k", b"before the gateway")
        alone.double.put("bucket", "l", b"before the gateway")
        assert await swept(alone) == 0
        await call(writer.put_object, Key="k", Body=b"x")
        await call(writer.put_object_tagging, Key="l", Tagging={"TagSet": []})
        alone.double.put("bucket", "l", b"nobody has seen what was there")
        assert await swept(alone) == 0
        await alone.rows("DELETE FROM fencing.object")
        alone.double.put("bucket", "k", b"nor can it be told here")
        await call(writer.put_object, Key="k", Body=b"x")
        assert await swept(alone) == 0
        assert await on_record(alone) == []

    @pytest.mark.parametrize("etags", first(["content", "unique"]))
    async def test_every_way_of_writing(self, postgres_server: EmbeddedPostgres, etags: str) -> None:
        double = S3Double(buckets=["bucket"])
        double.behave(etags=etags)
        async with staged(postgres_server, double, limits={"memory_threshold": 1024}) as stage:
            writer = connect(stage.origin, "1")
            await call(writer.put_object, Key="put", Body=BODY)
            await call(writer.put_object, Key="large", Body=b"x" * 100_000)
            await call(writer.copy_object, Key="copy", CopySource="bucket/put")
            await call(writer.copy_object, Key="put", CopySource="bucket/put", MetadataDirective="REPLACE")
            await call(writer.complete_multipart_upload, **await opened(writer, "parts", [b"part"]))
            await call(writer.put_object_tagging, Key="parts", Tagging={"TagSet": [{"Key": "a", "Value": "b"}]})
            await call(writer.put_object_acl, Key="put", ACL="private")
            await call(writer.put_object, Key="gone", Body=b"x")
            await call(writer.delete_objects, Delete={"Objects": [{"Key": "gone"}, {"Key": "never"}]})
            for _ in range(2):
                assert await swept(stage) == 0
                for key in ("put", "large", "copy", "parts", "gone"):
                    await call(connect(stage.origin, "2").put_object, Key=key, Body=key.encode())
            assert await on_record(stage) == []

    async def test_a_write_at_each_moment_of_a_scan(self, stage: Stage, key: str) -> None:
        """The patrol is held, a write gets to a moment of its life, the patrol goes on, and then the write."""
        writer = connect(stage.origin, "1")
        patrol_at = [("ListObjectsV2", "before"), ("ListObjectsV2", "after"), ("HeadObject", "after")]
        writes = list(product(["PutObject", "DeleteObject"], ["before", "after", "over"]))
        async with patrol(stage) as (one, _):
            for number, ((look, at), (kind, moment)) in enumerate(product(patrol_at, writes)):
                where = f"{key}/{number}"
                await call(writer.put_object, Key=where, Body=b"x")
                if look == "HeadObject":  # a write that has landed and is not over makes the patrol ask for the key
                    first_put = call(writer.put_object, Key=where, Body=b"first")
                    landed, landing = await stage.late(first_put, at="after", operation="PutObject", key=where)
                held, sweep = await stage.late(one.round(), at=at, operation=look, bucket="bucket")
                if look == "HeadObject":
                    landed.release()
                    await landing
                under_way = None if moment == "over" else stage.double.hold(at=moment, operation=kind, key=where)
                what = {"Body": b"y"} if kind == "PutObject" else {}
                operation = writer.put_object if kind == "PutObject" else writer.delete_object
                write = asyncio.ensure_future(call(operation, Key=where, **what))
                await (write if under_way is None else under_way.arrived.wait())
                held.release()
                assert await sweep == 0, (look, at, kind, moment)
                if under_way is not None:
                    under_way.release()
                await write
                assert await one.round() == 0, (look, at, kind, moment)
        assert await on_record(stage, key) == []

    @pytest.mark.parametrize("lost", first([True, False]))
    async def test_a_zombies_write_that_a_newer_holder_settles(self, stage: Stage, key: str, *, lost: bool) -> None:
        writer = connect(stage.origin, "1")
        await call(writer.put_object, Key=key, Body=b"x")
        at, putting = "after" if lost else "before", outcome(writer.put_object, Key=key, Body=b"y")
        held, zombie = await stage.late(putting, at=at, operation="PutObject", key=key)
        assert (await stage.barrier(f"s3/bucket/{key}", "2")).status_code == 200
        assert await swept(stage) == 0
        held.release()
        await zombie
        assert await swept(stage) == 0
        await call(connect(stage.origin, "2").put_object, Key=key, Body=b"z")
        assert await swept(stage) == 0
        assert await on_record(stage, key) == []

    async def test_a_sweepers_delete_whose_answer_was_lost(self, postgres_server: EmbeddedPostgres) -> None:
        double = forgetful()
        async with staged(postgres_server, double) as stage:
            writer = connect(stage.origin, "1")
            await call(writer.put_object, Key="k", Body=BODY)
            await call(writer.delete_object, Key="k")
            double.behave(ignored_conditions=frozenset[str]())  # so that another gateway may sweep
            double.cut(at="after", operation="DeleteObject", key="k")
            async with sweeper(stage) as (one, _):
                await one.sweep()
            assert stage.body("k") is None, "it is gone"
            assert await swept(stage) == 0
            assert await on_record(stage) == []

    async def test_a_bucket_that_was_deleted_through_the_gateway(self, stage: Stage, key: str) -> None:
        writer, where = connect(stage.origin, "1"), {"Bucket": key}
        await call(writer.create_bucket, **where)
        await call(writer.put_object, **where, Key="k", Body=b"x")
        await call(writer.delete_object, **where, Key="k")
        await call(writer.delete_bucket, **where)
        assert await swept(stage) == 0
        assert await stage.rows("SELECT FROM fencing.object WHERE bucket = $1", key) == []
        await call(writer.create_bucket, **where)
        await call(writer.put_object, **where, Key="k", Body=b"x")
        assert await swept(stage) == 0

    async def test_a_bucket_that_is_made_anew_while_it_is_looked_for(self, stage: Stage, key: str) -> None:
        """The store has said that there is none, and by the time that is put on record there is another one."""
        writer, where = connect(stage.origin, "1"), {"Bucket": key}
        await call(writer.create_bucket, **where)
        await call(writer.put_object, **where, Key="k", Body=b"x")
        await call(writer.delete_object, **where, Key="k")
        asked, answered = (
            stage.double.hold(at=at, operation="ListObjectsV2", bucket=key) for at in ("before", "after")
        )
        async with patrol(stage) as (one, _):
            sweep = asyncio.ensure_future(one.round(10_000))
            await asked.arrived.wait()
            await call(writer.delete_bucket, **where)
            asked.release()
            await answered.arrived.wait()
            await call(writer.create_bucket, **where)
            await call(writer.put_object, **where, Key="k", Body=b"y")
            await call(writer.put_object, **where, Key="l", Body=b"y")
            answered.release()
            assert await sweep == 0
        assert await on_record(stage, key) == []
        await call(stage.beside().delete_object, **where, Key="l")
        assert await swept(stage) == 1
        assert await reasons(stage, key) == ["object-vanished"], "what is remembered of the new one is there still"

    async def test_a_key_that_belongs_to_another_resource_by_now(self, alone: Stage) -> None:
        await call(connect(alone.origin, "1").put_object, Key="k", Body=b"x")
        rule = KeyRule.compile("bucket/**", "all")
        alone.double.put("bucket", "k", b"written under the new rule, by another gateway")
        etag = alone.double.objects("bucket")["k"].etag.strip('"')
        await alone.rows("INSERT INTO fencing.object VALUES ('all', 'bucket', 'k', $1, false, true)", etag)
        await call(connect(alone.origin, "1").put_object, Key="k", Body=b"y")
        assert await on_record(alone) == [], "the row of the other resource says who it was"
        await alone.rows("DELETE FROM fencing.object WHERE resource = 'all'")
        alone.double.put("bucket", "k", b"once more")
        assert await swept(alone, 1000, rule) == 0
        assert await alone.rows("SELECT FROM fencing.object") == []


@over_http
async def test_a_sweep_records_no_bypass_of_the_gateways_own_bump(
    stage: Stage, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A settler has bumped an object, and the database is gone before it can forget what was remembered."""
    await call(connect(stage.origin, "33").put_object, Key=key, Body=BODY)
    (row,) = await stage.rows("SELECT etag, now() FROM fencing.object WHERE key = $1", key)
    # Listed as pending a moment ago; it has ended since, so that nothing at the key says who settles there.
    intent = Intent(f"s3/bucket/{key}", "bucket", key, uuid4(), Token(0, 33), *row)

    async def restart(*_: object, **__: object) -> None:
        raise Unavailable("The database was restarted.")

    async with sweeper(stage) as (one, _):
        with monkeypatch.context() as patched:
            patched.setattr(intents, "settle", restart)
            with pytest.raises(Unavailable):
                await one._runner.run(settling.settle(intent))
    assert stage.double.objects("bucket")[key].etag != row[0], "the bump has landed"
    assert await swept(stage) == 0
    assert await on_record(stage, key) == []
    await stage.rows("DELETE FROM fencing.forbidden")
    assert await swept(stage) == 0, "nor when the prohibition has been forgotten"
    await call(connect(stage.origin, "34").put_object, Key=key, Body=b"next")
    await call(stage.beside().put_object, Key=key, Body=b"from elsewhere")
    assert await swept(stage) == 1, "later writes are checked again"
    assert await reasons(stage, key) == ["object-changed"]


class TestWhatIsRemembered:
    """Some of it is good for a guess, and no witness."""

    @staticmethod
    def write() -> Announcement:
        return Announcement("r", "b", "k", uuid4(), Presented(Token(0, 1)), "tester")

    @staticmethod
    async def remembered(database: Database) -> list[tuple[str | None, bool]]:
        return [tuple(row) for row in await database.fetch("SELECT etag, witnessed FROM fencing.object")]

    async def finished(self, database: Database, etag: str, *, certain: bool) -> None:
        write = self.write()
        assert (await intents.begin(database, [Begin(write)], patient=True))[0].signed_at is not None
        assert await intents.finish(
            database, [Finish(write, etag, tombstone=False, certain=certain)], patient=True
        ) == [True]

    async def test_a_write_that_another_holder_has_begun_to_settle(self, database: Database) -> None:
        """The settler may be about to bump it, and may be gone before it has forgotten the row."""
        await self.finished(database, "e1", certain=True)
        write = self.write()
        await intents.begin(database, [Begin(write)], patient=True)
        (intent,) = await intents.list_pending(database, 1)
        await intents.forbid(database, intent)
        assert await intents.finish(database, [Finish(write, "e2", tombstone=False)], patient=True) == [False]
        assert await self.remembered(database) == [("e1", False)]

    @pytest.mark.parametrize("disturbed", ["settling", "another-write", "another-row", "nothing"])
    async def test_a_write_is_believed_only_while_it_alone_is_announced(
        self, database: Database, disturbed: str
    ) -> None:
        await self.finished(database, "e1", certain=True)
        write = self.write()
        await intents.begin(database, [Begin(write)], patient=True)
        if disturbed == "settling":
            await intents.forbid(database, (await intents.list_pending(database, 1))[0])
        elif disturbed == "another-write":
            await intents.abandon(database, write)
            await self.finished(database, "e1", certain=True)
        elif disturbed == "another-row":
            await database.fetch_write("INSERT INTO fencing.object VALUES ('s', 'b', 'k', 'e2', false, true)")
        seen = FoundObject("b", "k", "e2", "s3", "/b/k", {})
        reason = await bypasses.record_by_write(database, write, seen)
        assert reason == (None if disturbed != "nothing" else "object-changed")
