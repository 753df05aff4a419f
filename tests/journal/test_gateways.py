"""Whole gateways with a journal: what they acknowledge survives that their database is put back."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import asyncpg
import httpx
import pytest
from mypy_boto3_s3 import S3Client

from gateway import app
from gateway.config import load
from gateway.db import rights
from gateway.demo.embedded import EmbeddedPostgres
from gateway.doctor.examination import examine
from gateway.fencing.intent import SIGNATURE_LIFETIME
from gateway.findings import Check, CheckStatus
from gateway.journal.bucket import BucketStore
from gateway.journal.contents import PREFIX
from gateway.objects.store import client
from gateway.observe.events import DatabaseOpened
from tests.doubles.s3 import S3Double, serve
from tests.journal.installation import BUCKET, Installation, connected, installed
from tests.objects.clients import connect, in_thread, outcome
from tests.postgres import GATEWAY
from tests.processes import called
from tests.running import API_KEY, GRANTS_TOML, Events, config, running
from tests.waiting import PATIENCE, end_sessions

TABLE = (
    "CREATE TABLE orders (id bigint PRIMARY KEY, note text)",
    "INSERT INTO orders SELECT n, '' FROM generate_series(1, 9) AS n",
)
DONE, STALE = (200, ""), (412, "StaleFencingToken")
LATE_AFTER = 1.0
KEY = "a"


@dataclass(slots=True)
class Stage:
    """A database that can be put back, a store with the journal, and one gateway at a time."""

    installation: Installation
    double: S3Double
    endpoint: str
    origin: str = ""
    events: Events = field(default_factory=Events)
    role: str | None = None
    """The role of the database that requests run under."""

    @property
    def dsn(self) -> str:
        return self.installation.dsn

    def config(self, tables: Sequence[dict[str, str]] = (), **journal: Any) -> Any:
        given = config(self.dsn, self.endpoint).model_dump(exclude_unset=True)
        given |= {"journal": {"mode": "sync", "bucket": BUCKET, **journal}, "tables": tables}
        given["s3"] |= {"late_after": LATE_AFTER}
        if self.role is not None:
            given["postgres"]["roles"] = [{"callers": ["*"], "role": self.role}]
        return config(self.dsn, self.endpoint, **given, limits={"pending_wait": 0.1})

    @asynccontextmanager
    async def gateway(self, **journal: Any) -> AsyncIterator["Stage"]:
        self.events = Events()
        async with running(self.config(**journal), self.events) as self.origin:
            yield self

    def appended_since(self, sequence: int) -> int:
        """Return how many segments were written since then. Snapshots are written whenever one is due."""
        keys = [one.key or "" for one in self.double.requests_since(sequence) if one.method == "PUT"]
        return len([key for key in keys if key.startswith(f"{PREFIX}segments/")])

    def holder(self, token: int) -> S3Client:
        return connect(self.origin, str(token))

    async def put(self, token: int, body: bytes = b"x", key: str = KEY) -> tuple[int, str]:
        return await outcome(self.holder(token).put_object, Bucket="bucket", Key=key, Body=body)

    async def ask(self, method: str, path: str, token: int | None = None, **given: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {API_KEY}"} | ({} if token is None else {"Fencing-Token": str(token)})
        async with httpx.AsyncClient(base_url=self.origin, headers=headers, timeout=PATIENCE) as client:
            return await client.request(method, path, **given)

    async def patch(self, token: int, row: int = 1) -> httpx.Response:
        return await self.ask("PATCH", f"/v1/tables/orders?id=eq.{row}", token, json={"note": str(token)})

    async def barrier(self, resource: str, token: int) -> httpx.Response:
        return await self.ask("POST", f"/v1/fences/{resource}/barrier", json={"token": str(token)})

    async def fetch(self, sql: str) -> list[asyncpg.Record]:
        return await self.installation.fetch(sql)

    def openings(self) -> list[DatabaseOpened]:
        return [event for event in self.events if isinstance(event, DatabaseOpened)]

    async def kinds(self, kind: str) -> list[tuple[str, str, str | None]]:
        rows = await self.fetch(
            "SELECT resource, fencing.token_v1(epoch, value), fencing.token_v1(fence_epoch, fence_value) "
            f"FROM fencing.record WHERE kind = '{kind}' ORDER BY resource"
        )
        return [tuple(row) for row in rows]


@pytest.fixture
async def stage(postgres_server: EmbeddedPostgres) -> AsyncIterator[Stage]:
    double = S3Double(buckets=["bucket", BUCKET])
    async with (
        serve(double) as endpoint,
        connected(endpoint) as upstream,
        installed(postgres_server, BucketStore(upstream, BUCKET), double) as installation,
    ):
        for statement in TABLE:
            await installation.fetch(statement)
        yield Stage(installation, double, endpoint)


async def test_rows_and_objects_of_older_holders_are_refused_after_a_restored_backup(stage: Stage) -> None:
    async with stage.gateway():
        assert (await stage.patch(1)).status_code == 204
        assert await stage.put(1) == DONE
    saved = await stage.installation.save()
    async with stage.gateway():
        assert (await stage.patch(2)).status_code == 204
        assert (await stage.patch(1, row=2)).status_code == 204
        assert await stage.put(2) == DONE
        assert (await stage.barrier("public.orders/3", 7)).status_code == 200
    await stage.installation.restore(saved)
    async with stage.gateway():
        refused = await stage.patch(1)
        assert (refused.status_code, refused.json()["code"]) == (412, "token-stale")
        assert (await stage.patch(6, row=3)).status_code == 412
        assert await stage.put(1) == STALE
        assert (await stage.patch(2)).status_code == 204, "the newest holder goes on"
        (opened,) = stage.openings()
        assert (opened.restored, opened.waiting, opened.continues) == (4, 1, False)
        assert await stage.kinds("fence-restored") == [
            ("public.orders/1", "2", "1"),
            ("public.orders/2", "1", None),
            ("public.orders/3", "7", None),
            ("s3/bucket/a", "2", "1"),
        ]
        health = (await stage.ask("GET", "/v1/health")).json()["journal"]
        assert (health["mode"], health["state"]) == ("sync", "ok")
        assert health["opened_at"]


@pytest.mark.thorough
async def test_raises_under_a_role_are_in_the_journal_first(stage: Stage) -> None:
    """The second raise and the later ones share a call with the write, which takes the role."""
    role = stage.role = f"member_{uuid4().hex[:12]}"
    await stage.fetch(f"CREATE ROLE {role}")
    await stage.fetch(f"GRANT {role} TO {GATEWAY}")
    await stage.fetch(f"GRANT SELECT, UPDATE ON orders TO {role}")
    await rights.let_act(stage.dsn, [role])
    async with stage.gateway():
        for row in range(1, 5):
            assert (await stage.patch(1, row=row)).status_code == 204
    saved = await stage.installation.save()
    async with stage.gateway():
        for row in range(1, 5):
            assert (await stage.patch(1, row=row)).status_code == 204
            assert (await stage.patch(row + 1, row=row)).status_code == 204
        stage.double.fail(503, operation="PutObject", times=None)
        for row in range(1, 5):
            refused = await stage.patch(9, row=row)
            assert (refused.status_code, refused.json()["code"]) == (503, "journal-unusable")
            assert (await stage.patch(row + 1, row=row)).status_code == 204, "its holder goes on"
        stage.double.faults.clear()
        assert [one["note"] for one in await stage.fetch("SELECT note FROM orders ORDER BY id LIMIT 4")] == [*"2345"]
    await stage.installation.restore(saved)
    async with stage.gateway():
        for row in range(1, 5):
            assert (await stage.patch(row, row=row)).status_code == 412
            assert (await stage.patch(row + 1, row=row)).status_code == 204


@pytest.mark.thorough
async def test_object_writes_wait_until_lost_ones_are_dead(stage: Stage) -> None:
    """A put whose intent is lost may still arrive. Rows of other resources do not wait."""
    async with stage.gateway():
        assert await stage.put(1) == DONE
    saved = await stage.installation.save()
    await stage.installation.restore(saved)
    async with stage.gateway():
        assert (await stage.patch(1)).status_code == 204
        assert (await stage.put(1))[0] == 503, "the same holder waits, too: forbidden ETags are lost"
        refused = await stage.barrier(f"s3/bucket/{KEY}", 2)
        assert refused.status_code == 503
        assert refused.json()["blocked_by"] == "writes of this resource that the database has forgotten"
        assert 1 <= int(refused.headers["retry-after"]) <= SIGNATURE_LIFETIME.total_seconds() + LATE_AFTER + 2
        stage.double.behave(clock_offset=SIGNATURE_LIFETIME.total_seconds() + LATE_AFTER + 2)
        assert (await stage.barrier(f"s3/bucket/{KEY}", 2)).status_code == 200
        assert await stage.put(2) == DONE
        assert await stage.kinds("settled") == []


@pytest.mark.thorough
async def test_they_wait_for_a_day_at_a_store_that_never_gives_up(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "_PATIENT", {"AmazonS3"})
    async with stage.gateway():
        assert await stage.put(1) == DONE
    saved = await stage.installation.save()
    await stage.installation.restore(saved)
    async with stage.gateway():
        refused = await stage.barrier(f"s3/bucket/{KEY}", 2)
        assert refused.status_code == 503
        assert 86_000 < int(refused.headers["retry-after"]) <= 86_400 + SIGNATURE_LIFETIME.total_seconds() + 2


@pytest.mark.thorough
async def test_without_its_journal_a_takeover_is_refused_and_a_holder_goes_on(stage: Stage) -> None:
    async with stage.gateway():
        assert (await stage.patch(1)).status_code == 204
        stage.double.fail(503, operation="PutObject", times=None)
        refused = await stage.patch(2)
        assert (refused.status_code, refused.json()["code"]) == (503, "journal-unusable")
        assert refused.headers["retry-after"]
        assert (await stage.barrier("public.orders/1", 2)).status_code == 503
        assert (await stage.patch(1)).status_code == 204
        assert (await stage.ask("GET", "/v1/health")).json()["journal"]["state"] == "unreachable"
        metrics = (await stage.ask("GET", "/v1/metrics")).text
        assert "gateway_journal_failing 1.0" in metrics
    # Another one starts without its journal.
    for operation in ("GetObject", "HeadObject"):
        stage.double.fail(503, operation=operation, times=None)
    async with stage.gateway():
        assert (await stage.patch(1)).status_code == 204
        assert (await stage.patch(2)).status_code == 503
        stage.double.faults.clear()
        assert (await stage.patch(2)).status_code == 204


@pytest.mark.thorough
async def test_a_new_epoch_and_a_lock_survive(stage: Stage) -> None:
    async with stage.gateway():
        assert (await stage.patch(5)).status_code == 204
    saved = await stage.installation.save()
    issued = []
    for holder in ("a", "b", "c"):
        async with stage.gateway():
            granted = await stage.ask("POST", "/v1/leases/job", json={"holder": holder, "ttl": 1})
            issued.append(granted.json()["token"])
        await stage.installation.restore(saved)
    assert issued == ["1", "1.1", "2.1"], "a token that was lost must not be issued again"


async def test_a_direct_writer_raises_through_the_gateway_first(stage: Stage) -> None:
    async with stage.gateway():
        assert (await stage.patch(1)).status_code == 204
        with pytest.raises(asyncpg.PostgresError, match="not in the journal") as refused:
            await stage.fetch("SELECT set_config('fencing.secured', 'job 0.3', false), fencing.hold('job', '3')")
        assert refused.value.sqlstate == "FN504"
        assert (await stage.barrier("job", 3)).status_code == 200
        assert (await stage.fetch("SELECT fencing.hold('job', '3')"))[0][0] == "held"


async def test_callers_cannot_touch_the_journal(stage: Stage) -> None:
    async with stage.gateway():
        assert (await stage.patch(1)).status_code == 204
        marker = f"{PREFIX}marker"
        holder = stage.holder(9)
        refused = (403, "AccessDenied")
        assert await outcome(holder.put_object, Bucket=BUCKET, Key=marker, Body=b"") == refused
        assert await outcome(holder.delete_object, Bucket=BUCKET, Key=marker) == refused
        source = {"Bucket": "bucket", "Key": KEY}
        assert await stage.put(1) == DONE
        assert await outcome(holder.copy_object, Bucket=BUCKET, Key=marker, CopySource=source) == refused
        assert await outcome(holder.create_multipart_upload, Bucket=BUCKET, Key=marker) == refused
        batch = {"Objects": [{"Key": marker}]}
        answer = await in_thread(holder.delete_objects, Bucket=BUCKET, Delete=batch)
        assert [error["Code"] for error in answer["Errors"]] == ["AccessDenied"]
        assert (await stage.patch(2)).status_code == 204, "the journal is whole"


async def test_a_transaction_has_all_its_raises_appended_at_once(stage: Stage) -> None:
    """Strict resources between others are claimed by statements of their own."""
    await stage.fetch("CREATE TABLE once AS SELECT id, note FROM orders")
    await stage.fetch("ALTER TABLE once ADD PRIMARY KEY (id)")
    rules = [
        {"name": "public.orders", "resource": "order/{id}/a"},
        {"name": "public.once", "resource": "order/{id}/once", "equal": "strict"},
    ]
    async with stage.gateway(tables=rules):
        assert (await stage.patch(1, row=9)).status_code == 204
        before = stage.double.sequence
        writes = [
            {"method": "PATCH", "table": table, "query": f"id=eq.{row}", "body": {"note": "x"}, "token": "5"}
            for row in range(1, 8)
            for table in ("orders", "once")
        ]
        answer = await stage.ask("POST", "/v1/transaction", json={"writes": writes})
        assert answer.status_code == 200, answer.text
        assert stage.appended_since(before) == 1


async def test_code_in_the_database_cannot_spoil_the_journal(stage: Stage) -> None:
    """It uses the SQLSTATE by which the database asks for raises to be appended."""
    await stage.fetch(
        "CREATE FUNCTION named() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION USING ERRCODE = 'FN504', DETAIL = NEW.note; END $$"
    )
    await stage.fetch("CREATE TRIGGER named BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION named()")
    async with stage.gateway():
        assert (await stage.patch(1)).status_code == 204
        before = stage.double.sequence
        for named in ("x y z", "orders/2 0.99999999999999999999", "orders/2\t0.5", "Orders /2 0.5"):
            refused = await stage.ask("POST", "/v1/tables/orders", 1, json={"id": 1, "note": named})
            assert (refused.status_code, refused.json()["code"]) == (400, "FN504"), refused.text
        assert stage.appended_since(before) == 0


async def test_sessions_of_an_older_mode_raise_no_more(stage: Stage) -> None:
    """A gateway without a journal still runs when another one begins one."""
    async with stage.gateway(mode="off"):
        assert (await stage.patch(1)).status_code == 204
        old = stage.origin
        async with running(stage.config()) as stage.origin:
            assert (await stage.patch(2)).status_code == 204
        stage.origin = old
        refused = await stage.patch(3)
        assert (refused.status_code, refused.json()["code"]) == (503, "journal-unusable")
        assert (await stage.patch(2)).status_code == 204


@pytest.mark.thorough
async def test_a_gateway_without_a_journal_remembers_its_own_raises(stage: Stage) -> None:
    """A virtual machine was put back with its memory: the run is the same, and only the gateway knows."""
    async with stage.gateway(mode="off"):
        assert (await stage.patch(5)).status_code == 204
        await stage.fetch("UPDATE fencing.fence SET value = 4")
        await end_sessions(stage.dsn)
        refused = await stage.patch(4)
        assert (refused.status_code, refused.json()["code"]) == (503, "database-closed")
        assert (await stage.ask("GET", "/v1/health")).json()["postgres"] == "closed"
        remembering = stage.origin
        async with stage.gateway(mode="off"):
            refused = await stage.patch(4)
            assert (refused.status_code, refused.json()["code"]) == (503, "database-closed"), "a gateway that is new"
        stage.origin = remembering
        opening = await app.open_database(stage.config(mode="off").default, Events(), accept_loss=True)
        assert (opening.fresh, opening.continues) == (True, False)
        assert (await stage.patch(4)).status_code == 204, "the operator has said so"


async def test_without_a_journal_the_command_and_the_doctor_say_that_fences_may_be_lost(
    stage: Stage, tmp_path: Path
) -> None:
    """Gateways open such a database by themselves, so the command does not keep it closed either."""
    file = tmp_path / "gateway.toml"
    file.write_text(f"[postgres]\ndsn = '{stage.dsn}'\n{GRANTS_TOML}")

    async def opened(*more: str) -> tuple[int, bool]:
        await stage.fetch("UPDATE fencing.opening SET started = started - interval '1 hour'")
        done = await asyncio.to_thread(called, "open", "--config", str(file), *more)
        return done.returncode, "WARNING: there is no journal" in done.stderr

    assert await opened() == (0, True)
    assert await opened("--accept-loss") == (0, False)
    await stage.fetch("UPDATE fencing.opening SET started = started - interval '1 hour'")
    report = await examine(load(file).default)
    [check] = [check for check in report.checks if check.name == "run"]
    assert check.status is CheckStatus.WARNING
    assert "gateway open --accept-loss" in check.advice


@pytest.mark.parametrize(("patient", "length"), [(set[str](), "2.0"), ({"AmazonS3"}, "3.0")], ids=["usual", "patient"])
async def test_the_command_says_how_long_it_waits_and_counts_down(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, patient: set[str], length: str
) -> None:
    """A store that never gives up on an interrupted body is waited for as long as the command waits at most."""
    monkeypatch.setattr(client, "_PATIENT", patient)
    monkeypatch.setattr(client, "SIGNATURE_LIFETIME", timedelta(seconds=1))
    monkeypatch.setattr("gateway.journal.opening_table._LONGEST_WAIT", timedelta(seconds=3))
    monkeypatch.setattr("gateway.cli._COUNTED", timedelta(seconds=1))
    file = tmp_path / "gateway.toml"
    file.write_text(
        f"[postgres]\ndsn = '{stage.dsn}'\n[journal]\nmode = 'off'\n[s3]\nendpoint = '{stage.endpoint}'\n"
        f"access_key_id = 'AKIADOUBLE'\nsecret_access_key = 'double-secret'\nlate_after = {LATE_AFTER}\n{GRANTS_TOML}"
    )
    done = await asyncio.to_thread(called, "open", "--config", str(file), "--accept-loss")
    assert done.returncode == 0, done.stderr
    first, *left = done.stderr.splitlines()
    assert first == f"Waiting for {length} seconds, until no lost write to the object store can arrive."
    assert left == [f"{number}.0 seconds left." for number in range(int(length[0]) - 1, 0, -1)]


@pytest.mark.thorough
async def test_an_object_shows_the_token_that_its_database_has_forgotten(stage: Stage) -> None:
    """Without a journal, too. Copies and forged metadata show nothing."""
    async with stage.gateway(mode="off"):
        assert await stage.put(1, b"first") == DONE
    saved = await stage.installation.save()
    async with stage.gateway(mode="off"):
        assert await stage.put(5, b"newer") == DONE
        copied = {"Bucket": "bucket", "Key": KEY}
        copy = stage.holder(1).copy_object
        assert await outcome(copy, Bucket="bucket", Key="copy", CopySource=copied, MetadataDirective="COPY") == DONE
    await stage.installation.restore(saved)
    # A copy of a database is found. A disk that was put back while no gateway ran is not.
    await stage.fetch("UPDATE fencing.opening SET identity = (fencing.run_v1()).identity")
    direct = connect(stage.endpoint, access_key="AKIADOUBLE", secret_key="double-secret")
    found = await in_thread(direct.head_object, Bucket="bucket", Key=KEY)
    forged = {**found["Metadata"], "fencing-resource": "s3/bucket/forged"}
    await in_thread(direct.put_object, Bucket="bucket", Key="forged", Body=b"f", Metadata=forged)
    async with stage.gateway(mode="off"):
        assert await stage.put(4, b"stale") == STALE
        assert await stage.put(5, b"newer still") == DONE
        assert await stage.put(2, b"c", key="copy") == DONE
        assert await stage.put(2, b"f", key="forged") == DONE
        fence = (await stage.ask("GET", f"/v1/fences/s3/bucket/{KEY}")).json()
        assert fence["token"] == "5"


@pytest.mark.thorough
async def test_the_doctor_and_the_command_tell_what_keeps_a_database_closed(stage: Stage) -> None:
    async with stage.gateway():
        assert (await stage.patch(1)).status_code == 204

    async def examined() -> dict[str, Check]:
        report = await examine(stage.config().default)
        return {check.name: check for check in report.checks}

    checks = await examined()
    assert (checks["run"].status, checks["journal"].status) == (CheckStatus.OK, CheckStatus.OK)
    assert "sync" in checks["journal"].detail
    for name in list(stage.double.service.store.buckets[BUCKET].objects):
        del stage.double.service.store.buckets[BUCKET].objects[name]
    checks = await examined()
    assert checks["run"].status is CheckStatus.PROBLEM
    assert "the journal has no marker" in checks["run"].detail
    assert "--accept-loss" in checks["run"].advice
    assert "journal" not in checks, "nothing about it is in order"
