"""The sweeper removes the entries that no write needs, and never one that a write may need.

Two sweepers may run at once, and beside live writers.
"""

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from gateway.db import intents
from gateway.demo.embedded import EmbeddedPostgres
from gateway.fencing.decision import Presented
from gateway.fencing.intent import Announcement, Begin, MutationKind
from gateway.fencing.token import Token
from gateway.objects.sweeper import Swept
from gateway.observe.events import IntentSettled, SweepFailed, TombstoneSwept, UploadSwept
from tests.doubles.s3 import S3Double
from tests.objects.clients import call, connect, outcome
from tests.objects.object_gateway import Stage, entomb, staged, sweeper
from tests.patience import patient
from tests.processes import run
from tests.tiers import first
from tests.waiting import PATIENCE


def of_kind(events: list[Any], kind: type) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


class TestTombstones:
    async def test_a_tombstone_is_removed_only_when_absence_may_come_back(self, stage: Stage) -> None:
        await entomb(stage, "needed", forbidden=True)
        await entomb(stage, "not-needed")
        async with sweeper(stage) as (one, events):
            assert await one.sweep() == Swept(tombstones=1)
            assert set(stage.double.objects("bucket")) == {"needed"}
            (swept,) = of_kind(events, TombstoneSwept)
            assert (swept.resource, swept.bucket, swept.key) == ("s3/bucket/not-needed", "bucket", "not-needed")
            assert await stage.count("tombstone", "not-needed") == 0
            assert await stage.count("intent", "not-needed") == 0
            await stage.rows("UPDATE fencing.forbidden SET dead_at = now() - interval '1 minute'")
            assert await one.sweep() == Swept(tombstones=1)
        assert not stage.double.objects("bucket")
        assert await stage.rows("SELECT FROM fencing.tombstone") == []
        put = connect(stage.origin, "1").put_object
        assert await outcome(put, Key="needed", Body=b"x", IfNoneMatch="*") == (200, "")

    async def test_a_store_that_deletes_unconditionally_keeps_its_tombstones(self, stage: Stage) -> None:
        """If such a removal got lost, a writer of the key would have to wait. Housekeeping lets no holder wait."""
        stage.double.behave(ignored_conditions=frozenset({"DeleteObject"}))
        await entomb(stage, "k")
        since = stage.double.sequence
        async with sweeper(stage) as (one, _):
            assert await one.sweep() == Swept()
        assert not stage.applied(since)
        assert await stage.count("intent", "k") == 0

    async def test_a_key_that_was_written_again_is_not_touched(self, stage: Stage) -> None:
        await entomb(stage, "again")
        await call(connect(stage.origin, "1").put_object, Key="again", Body=b"x")
        await entomb(stage, "beside")
        stage.double.put("bucket", "beside", b"somebody else's")
        await stage.rows("DELETE FROM fencing.spent")  # as after half an hour
        await stage.rows("INSERT INTO fencing.tombstone VALUES ('s3/bucket/again', 'bucket', 'again')")
        since = stage.double.sequence
        async with sweeper(stage) as (one, _):
            assert await one.sweep() == Swept()
        assert not stage.applied(since)
        assert await stage.rows("SELECT FROM fencing.tombstone") == [], "neither is a tombstone any more"

    async def test_a_living_writer_is_not_disturbed(self, stage: Stage) -> None:
        """Its write is under way when the sweep comes: it succeeds, and what it wrote stays."""
        await call(connect(stage.origin, "7").put_object, Key="warm", Body=b"probed")
        await entomb(stage, "k")
        putting = outcome(connect(stage.origin, "7").put_object, Key="k", Body=b"new")
        held, put = await stage.late(putting, operation="PutObject", key="k")
        async with sweeper(stage) as (one, events):
            assert await one.sweep() == Swept()
            assert not of_kind(events, IntentSettled)
            held.release()
            assert await put == (200, "")
            assert await one.sweep() == Swept()
        assert stage.body("k") == b"new"

    async def test_writes_to_other_keys_do_not_matter(self, stage: Stage) -> None:
        """Not even those of an older holder on the same resource: a sweep settles nothing."""
        await entomb(stage, "k")
        await stage.rows("UPDATE fencing.tombstone SET resource = 'job/1'")
        await stage.barrier("job/1", "7")
        await stage.rows(
            "INSERT INTO fencing.intent (resource, bucket, key, write_id, attempt, epoch, value)"
            " VALUES ('job/1', 'bucket', 'other', gen_random_uuid(), 1, 0, 6)"
        )
        async with sweeper(stage) as (one, events):
            assert await one.sweep() == Swept(tombstones=1)
            assert not of_kind(events, IntentSettled)

    @pytest.mark.thorough
    async def test_two_sweepers_at_once(self, stage: Stage) -> None:
        await entomb(stage, *(f"k{number}" for number in range(250)))
        patient = {"pending_wait": PATIENCE}
        async with sweeper(stage, **patient) as (one, events), sweeper(stage, **patient) as (other, other_events):
            rounds = await asyncio.gather(one.sweep(), other.sweep())
            assert sum(each.tombstones for each in rounds) == 250
            assert not [*of_kind(events, SweepFailed), *of_kind(other_events, SweepFailed)]
        assert not stage.double.objects("bucket")
        assert await stage.rows("SELECT FROM fencing.tombstone UNION ALL SELECT FROM fencing.intent") == []

    async def test_a_failure_is_an_event_and_the_sweep_goes_on(self, stage: Stage) -> None:
        await entomb(stage, "a", "b")
        await entomb(stage, "lost", bucket="other")
        stage.double.store.buckets.pop("other")
        stage.double.fail(403, code="AccessDenied", operation="DeleteObject", key="a", times=1)
        async with sweeper(stage) as (one, events):
            assert await one.sweep() == Swept(tombstones=1)
            (failed,) = of_kind(events, SweepFailed)
            assert failed.what == "bucket/a"
            assert set(stage.double.objects("bucket")) == {"a"}
            assert await stage.count("tombstone", "lost") == 0, "what was in a bucket that is gone is forgotten"
            assert await one.sweep() == Swept(tombstones=1)

    @pytest.mark.thorough
    async def test_a_newer_holder_overtakes_a_sweep_that_hangs(self, stage: Stage) -> None:
        """A write of the key settles it by itself. Nothing else has to."""
        await call(connect(stage.origin, "7").put_object, Key="warm", Body=b"probed")
        await entomb(stage, "k")
        async with sweeper(stage) as (one, _):
            held, sweep = await stage.late(one.sweep(), operation="DeleteObject", key="k")
            assert (await stage.barrier("s3/bucket/k", "8")).status_code == 200
            assert await stage.count("intent", "k") == 1, "no barrier waits for it"
            assert await outcome(connect(stage.origin, "8").put_object, Key="k", Body=b"new") == (200, "")
            held.release()
            await sweep
        assert held.statuses == [412]
        assert stage.body("k") == b"new"


@pytest.mark.thorough
class TestUploads:
    @pytest.mark.parametrize(("minutes", "staged_by_us", "swept"), [(16, True, 1), (14, True, 0), (600, False, 0)])
    async def test_an_upload_that_was_left_behind_is_aborted(
        self, stage: Stage, minutes: int, *, staged_by_us: bool, swept: int
    ) -> None:
        client = connect(stage.origin, "1")
        upload_id = (await call(client.create_multipart_upload, Key="k"))["UploadId"]
        await stage.rows(
            "UPDATE fencing.upload SET staged = $1, touched_at = clock_timestamp() - make_interval(mins => $2)",
            staged_by_us, minutes,
        )  # fmt: skip
        async with sweeper(stage) as (one, events):
            assert await one.sweep() == Swept(uploads=swept)
            assert [each.upload_id for each in of_kind(events, UploadSwept)] == [upload_id] * swept
        assert len(stage.double.store.bucket("bucket").uploads.running(stage.double.service.now())) == 1 - swept
        assert await stage.count("upload", "k") == 1 - swept

    async def test_an_abort_that_takes_its_time_is_tried_again(self, stage: Stage) -> None:
        await call(connect(stage.origin, "1").create_multipart_upload, Key="k")
        await stage.rows("UPDATE fencing.upload SET staged = true, touched_at = now() - interval '1 hour'")
        stage.double.fail(503, operation="ListMultipartUploads", times=None)
        stage.double.fail(503, operation="ListParts", times=None)
        async with sweeper(stage) as (one, events):
            assert await one.sweep() == Swept()
            assert await stage.count("upload", "k") == 1
            assert [failed.what for failed in of_kind(events, SweepFailed)] == ["bucket/k"]
            stage.double.faults.clear()
            assert await one.sweep() == Swept(), "those that were not tried yet come first"
            await stage.rows("UPDATE fencing.upload SET touched_at = now() - interval '1 hour'")
            assert await one.sweep() == Swept(uploads=1)
        assert await stage.count("upload", "k") == 0

    async def test_completed_uploads_are_forgotten_after_a_day(self, stage: Stage) -> None:
        for key, age in (("young", 23), ("old", 25)):
            await call(connect(stage.origin, "1").create_multipart_upload, Key=key)
            await stage.rows(
                "UPDATE fencing.upload SET completed_at = now() - make_interval(hours => $1) WHERE key = $2", age, key
            )
        async with sweeper(stage) as (one, _):
            await one.sweep()
        assert (await stage.count("upload", "young"), await stage.count("upload", "old")) == (1, 0)


class TestIntents:
    @staticmethod
    async def announce(stage: Stage, kind: MutationKind, age: timedelta) -> None:
        """Leave the intent of a write that was signed so long ago."""
        upload_id = "lost" if kind is MutationKind.UPLOAD else None
        presented = Presented(Token(0, 5))
        write = Announcement("s3/bucket/k", "bucket", "k", uuid4(), presented, "w", kind=kind, upload_id=upload_id)
        database = patient(stage.dsn)
        await intents.begin(database, [Begin(write)], patient=True)
        await database.close()
        await stage.rows("UPDATE fencing.intent SET signed_at = now() - $1::interval", age)

    @pytest.mark.parametrize("kind", first(MutationKind))
    @pytest.mark.parametrize(("age", "swept"), [(timedelta(minutes=4), 0), (timedelta(minutes=6), 1)])
    async def test_an_intent_that_can_have_no_effect_any_more_is_forgotten(
        self, stage: Stage, kind: MutationKind, age: timedelta, swept: int
    ) -> None:
        """Without any write: nothing has to be put in the way of a request that the store refuses."""
        stage.double.put("bucket", "k", b"x")
        await self.announce(stage, kind, age)
        since = stage.double.sequence
        async with sweeper(stage) as (one, events):
            assert await one.sweep() == Swept(intents=swept)
            assert len(of_kind(events, IntentSettled)) == swept
        assert await stage.count("intent", "k") == 1 - swept
        assert await stage.rows("SELECT FROM fencing.forbidden UNION ALL SELECT FROM fencing.tombstone") == []
        assert not stage.applied(since)

    async def test_the_stores_clock_has_the_last_word(self, stage: Stage) -> None:
        """The database may be ahead: the store would still take the request."""
        stage.double.behave(clock_offset=-3600.0, check_signatures=False)
        await self.announce(stage, MutationKind.CONDITIONAL, timedelta(hours=1))
        async with sweeper(stage) as (one, _):
            assert await one.sweep() == Swept()
        assert await stage.count("intent", "k") == 1


async def buried_and_swept(stage: Stage) -> None:
    """Leave a tombstone, and wait until the gateway has swept it."""
    await entomb(stage, "k")
    async with asyncio.timeout(PATIENCE):
        while stage.double.objects("bucket"):
            await asyncio.sleep(0.02)


OFTEN = {"sweep_interval": 0.05}


class TestAtWork:
    async def test_a_gateway_sweeps_by_itself(self, postgres_server: EmbeddedPostgres) -> None:
        async with staged(postgres_server, S3Double(buckets=["bucket"]), limits=OFTEN) as stage:
            await buried_and_swept(stage)
            stage.double.cut(operation="ListBuckets", times=4)  # a read is tried twice
            async with asyncio.timeout(PATIENCE):
                while len(of_kind(stage.events, SweepFailed)) < 2:
                    await asyncio.sleep(0.02)
            await buried_and_swept(stage)

    async def test_a_sweep_under_way_finishes_when_the_gateway_stops(self, postgres_server: EmbeddedPostgres) -> None:
        double = S3Double(buckets=["bucket"])
        async with staged(postgres_server, double, limits=OFTEN) as stage:
            held = double.hold(operation="DeleteObject", key="k")
            await entomb(stage, "k")
            await held.arrived.wait()
            asyncio.get_running_loop().call_later(0.3, held.release)
        assert not double.objects("bucket")
        assert not of_kind(stage.events, SweepFailed)

    @pytest.mark.thorough
    async def test_the_command_runs_one_round_and_reports_it(self, stage: Stage, tmp_path: Path) -> None:
        await entomb(stage, "a", "b")
        path = tmp_path / "gateway.toml"
        path.write_text(
            f'[postgres]\ndsn = "{stage.dsn}"\n[s3]\nendpoint = "{stage.endpoint}"\n'
            'access_key_id = "AKIADOUBLE"\nsecret_access_key = "double-secret"\n'
        )
        done = await asyncio.to_thread(run, "sweep", "--config", str(path))
        assert done.returncode == 0, done.stderr
        assert done.stdout == (
            "swept: 2 tombstones, 0 uploads, 0 pending writes\nfound: 0 changes that bypassed the gateway\n"
        )
        path.write_text(f'[postgres]\ndsn = "{stage.dsn}"\n')
        done = await asyncio.to_thread(run, "sweep", "--config", str(path))
        assert done.returncode == 0, "there may be rows to look at"
        assert done.stdout.startswith("swept: 0 tombstones")
