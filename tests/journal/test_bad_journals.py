"""A journal that cannot be used is a clear state: nothing is written that needs it, and nothing crashes."""

import traceback
from collections.abc import Awaitable, Callable
from datetime import timedelta
from uuid import UUID

import pytest

from gateway.db.database import Database
from gateway.errors import JournalUnusable
from gateway.fencing.token import Token
from gateway.journal import format as encoding
from gateway.journal.archive import Archive
from gateway.journal.bucket import BucketStore
from gateway.journal.contents import ACCEPTABLE, MARKER, SEGMENTS, SNAPSHOTS, Entry, Flaw, Problem, Segment
from gateway.journal.journal import Journal
from gateway.journal.rows import RowStore
from gateway.journal.trust import Mode
from tests.doubles.s3 import S3Double, serve
from tests.journal.installation import BUCKET, Gateway, Installation, connected
from tests.patience import patient
from tests.postgres import GATEWAY, as_gateway
from tests.processes import free_port
from tests.tiers import first

THEIRS = UUID(int=9)


async def rewrite(installation: Installation, name: str, change: Callable[[bytes], bytes]) -> None:
    """Replace an object of the journal."""
    found = await installation.store.read(name)
    assert found is not None
    assert await installation.store.replace(name, change(found[0]), found[1])


@pytest.fixture
async def gateway(installation: Installation) -> Gateway:
    """A gateway by which a holder has raised a fence."""
    one = installation.gateway()
    await one.raised("order/5", 1)
    return one


async def remove(installation: Installation, prefix: str) -> None:
    for name in await installation.store.names(prefix):
        await installation.store.remove(name)


def of_another_installation(content: bytes) -> bytes:
    marker = encoding.read_marker(content, MARKER, None)
    assert not isinstance(marker, Flaw)
    return encoding.write_marker(type(marker)(THEIRS, marker.term, marker.base, marker.run, marker.at))


async def last_segment(installation: Installation, change: Callable[[bytes], bytes]) -> None:
    await rewrite(installation, max(await installation.store.names(SEGMENTS), key=lambda name: name[-12:]), change)


async def add_foreign_segment(installation: Installation) -> None:
    at = (await installation.gateway().side.ask()).now
    await Archive(installation.store).append(Segment(THEIRS, THEIRS, 1, 0, 1, 0, at))


BAD: dict[str, tuple[Problem, Callable[[Installation], Awaitable[None]]]] = {
    "marker of another installation": (Problem.FOREIGN, lambda one: rewrite(one, MARKER, of_another_installation)),
    "segment of another installation": (Problem.FOREIGN, add_foreign_segment),
    "newer marker": (Problem.NEWER, lambda one: rewrite(one, MARKER, lambda old: old.replace(b" 1 ", b" 2 ", 1))),
    "newer segment": (Problem.NEWER, lambda one: last_segment(one, lambda old: old.replace(b" 1 ", b" 2 ", 1))),
    "truncated marker": (Problem.TRUNCATED, lambda one: rewrite(one, MARKER, lambda old: old[:40])),
    "truncated segment": (Problem.TRUNCATED, lambda one: last_segment(one, lambda old: old[:-1])),
    "empty segment": (Problem.TRUNCATED, lambda one: last_segment(one, lambda _: b"")),
    "corrupt marker": (Problem.CORRUPT, lambda one: rewrite(one, MARKER, lambda _: b"<html>not found</html>")),
    "corrupt segment": (Problem.CORRUPT, lambda one: last_segment(one, lambda old: old[:-2] + b"6\n")),
    "no marker": (Problem.MISSING, lambda one: remove(one, MARKER)),
    "no snapshot": (Problem.MISSING, lambda one: remove(one, SNAPSHOTS)),
    "nothing": (Problem.MISSING, lambda one: remove(one, "")),
}


async def filled(installation: Installation) -> None:
    """A journal with a snapshot and segments, of a database whose server has been restarted."""
    gateway = installation.gateway()
    for token in (1, 2):
        await gateway.raised("order/5", token)
    await gateway.journal.compact(gateway.side)
    await gateway.raised("order/5", 3)
    await installation.restart()


@pytest.mark.parametrize("installation", first(("bucket", "rows")), indirect=True)
@pytest.mark.parametrize("bad", BAD)
async def test_a_bad_journal_keeps_the_database_closed(installation: Installation, bad: str) -> None:
    problem, spoil = BAD[bad]
    await filled(installation)
    await spoil(installation)
    gateway = installation.gateway()
    before = (await gateway.side.ask()).opened
    for _ in range(2):
        with pytest.raises(JournalUnusable) as refused:
            await gateway.raised("order/5", 4)
        assert refused.value.facts == {"problem": problem}
        assert refused.value.message.endswith(".")
        assert refused.value.advice.startswith("Nothing was written. ")
    assert (await gateway.side.ask()).opened == before
    assert await installation.tokens() == {"order/5": 3}


@pytest.mark.thorough
@pytest.mark.parametrize("bad", BAD)
async def test_an_operator_may_open_it_with_the_loss_unless_it_is_not_its_own(
    installation: Installation, bad: str
) -> None:
    problem, spoil = BAD[bad]
    await filled(installation)
    await spoil(installation)
    if problem not in ACCEPTABLE:
        with pytest.raises(JournalUnusable):
            await installation.gateway().runner.open(accept_loss=True)
        return
    opening = await installation.gateway().runner.open(accept_loss=True)
    assert opening.accepted is not None
    assert (opening.continues, opening.waits) == (False, None)
    assert opening.term > 1_000_000
    gateway = installation.gateway()
    assert await gateway.raised("order/5", 2) == "token-stale"
    assert await gateway.raised("order/5", 4) == "raised"


async def test_a_marker_that_is_spoilt_while_the_database_is_open_stops_raises(
    installation: Installation, gateway: Gateway
) -> None:
    await rewrite(installation, MARKER, of_another_installation)
    with pytest.raises(JournalUnusable, match="belongs to the installation") as refused:
        await gateway.raised("order/5", 2)
    assert refused.value.facts == {"problem": Problem.FOREIGN}
    assert await installation.tokens() == {"order/5": 1}
    assert await gateway.raised("order/5", 1) == "held", "the holder goes on"
    assert gateway.journal.status.failure is not None
    await remove(installation, MARKER)
    with pytest.raises(JournalUnusable, match="marker is gone"):
        await gateway.raised("order/5", 2)


async def test_a_backup_from_before_the_journal_needs_an_operator(installation: Installation) -> None:
    await installation.gateway(Mode.OFF).raised("order/5", 1)
    backup = await installation.save()
    await installation.gateway().raised("order/5", 2)
    await installation.restore(backup)
    with pytest.raises(JournalUnusable) as refused:
        await installation.gateway().raised("order/5", 1)
    assert refused.value.facts == {"problem": Problem.TOO_OLD}
    assert "--accept-loss" in refused.value.advice
    opening = await installation.gateway().runner.open(accept_loss=True)
    assert {loss.entry.token for loss in opening.losses} == {Token(0, 2)}
    assert await installation.gateway().raised("order/5", 1) == "token-stale"


async def test_a_clock_in_the_future_stops_nothing(installation: Installation) -> None:
    gateway = installation.gateway()
    await gateway.runner.open()
    at = (await gateway.side.ask()).now + timedelta(days=400)
    await gateway.journal.append([Entry("order/5", Token(0, 5), at)])
    await installation.restart()
    opening = await installation.gateway().runner.open()
    assert opening.contents.ahead > timedelta(days=399)
    assert await installation.tokens() == {"order/5": 5}
    assert await gateway.journal.compact(gateway.side)


# Stores ---------------------------------------------------------------------------------------------------------------


async def refused(gateway: Gateway, problem: Problem) -> None:
    with pytest.raises(JournalUnusable) as error:
        await gateway.raised("order/5", 2)
    assert error.value.facts == {"problem": problem}, error.value.message
    assert (error.value.retry_after == 1) is (problem is Problem.UNREACHABLE)


async def test_a_store_that_is_not_there(installation: Installation, gateway: Gateway) -> None:
    address = f"postgresql://nobody@127.0.0.1:{free_port()}/none"
    async with (
        Database(address, connect_timeout=0.5) as nowhere,
        connected(f"http://127.0.0.1:{free_port()}") as upstream,
    ):
        for store in (BucketStore(upstream, BUCKET), RowStore(nowhere)):
            await refused(installation.gateway(store=store), Problem.UNREACHABLE)
    assert await installation.tokens() == {"order/5": 1}


@pytest.mark.parametrize("installation", ["bucket"], indirect=True)
@pytest.mark.parametrize(
    ("status", "operation", "problem"),
    [
        (403, "PutObject", Problem.UNWRITABLE),
        (503, "PutObject", Problem.UNREACHABLE),
        (403, "GetObject", Problem.UNREACHABLE),
        (503, "GetObject", Problem.UNREACHABLE),
    ],
)
async def test_a_bucket_that_refuses(
    installation: Installation, gateway: Gateway, status: int, operation: str, problem: Problem
) -> None:
    assert installation.double is not None
    installation.double.fail(status, operation=operation, code="AccessDenied" if status == 403 else None, times=None)
    await refused(gateway, problem)
    assert gateway.journal.status.failure is not None
    installation.double.faults.clear()
    assert await installation.tokens() == {"order/5": 1}
    assert await gateway.raised("order/5", 2) == "raised"
    assert gateway.journal.status.failure is None


@pytest.mark.parametrize("installation", ["bucket"], indirect=True)
async def test_a_bucket_that_does_not_exist_or_list(installation: Installation, gateway: Gateway) -> None:
    assert installation.double is not None
    async with serve(S3Double(buckets=("another",))) as endpoint, connected(endpoint) as upstream:
        await refused(installation.gateway(store=BucketStore(upstream, "absent")), Problem.UNREACHABLE)
    await installation.restart()
    installation.double.fail(403, operation="ListObjectsV2", code="AccessDenied", times=None)
    await refused(installation.gateway(), Problem.UNREACHABLE)


@pytest.mark.parametrize("installation", ["bucket"], indirect=True)
async def test_an_append_whose_answer_is_lost_commits_nothing(installation: Installation, gateway: Gateway) -> None:
    assert installation.double is not None
    installation.double.cut("after", operation="PutObject")
    await refused(gateway, Problem.UNREACHABLE)
    assert await installation.tokens() == {"order/5": 1}
    await installation.restart()
    assert await gateway.raised("order/5", 2) == "held", "the journal has it, and the next opening raises it"


@pytest.mark.parametrize("installation", ["bucket"], indirect=True)
async def test_a_request_that_a_proxy_repeats_is_one(installation: Installation) -> None:
    gateway = installation.gateway()
    await gateway.runner.open()
    assert installation.double is not None
    repeated = installation.double.repeat(operation="PutObject")
    assert await gateway.raised("order/5", 1) == "raised"
    repeated.release()
    assert await gateway.raised("order/5", 2) == "raised"


@pytest.mark.parametrize(
    "weak",
    [
        {"ignored_conditions": frozenset({"PutObject"})},
        {"gaps": {"PutObject": 0.0}},
        {"refused_conditions": frozenset({"PutObject"})},
    ],
    ids=["ignores conditions", "checks first and writes later", "knows no conditions"],
)
async def test_a_bucket_that_is_not_linearizable_is_unfit(weak: dict[str, object]) -> None:
    double = S3Double(buckets=(BUCKET,))
    double.behave(**weak)
    async with serve(double) as endpoint, connected(endpoint) as upstream:
        found = await Journal(BucketStore(upstream, BUCKET)).find_unfit()
    assert found is not None
    assert found.problem is Problem.UNFIT


@pytest.mark.parametrize("installation", ["bucket"], indirect=True)
async def test_mode_sync_refuses_an_unfit_bucket(installation: Installation) -> None:
    assert isinstance(installation.store, BucketStore)
    installation.store._profiles.forget(BUCKET)
    assert installation.double is not None
    installation.double.behave(ignored_conditions=frozenset({"PutObject"}))
    with pytest.raises(JournalUnusable, match="does not hold to conditions") as refused:
        await installation.gateway(checks=True).raised("order/5", 1)
    assert refused.value.facts == {"problem": Problem.UNFIT}
    assert await installation.gateway(Mode.ASYNC, checks=True).raised("order/5", 1) == "raised"


async def test_a_sound_store_is_fit(installation: Installation) -> None:
    if isinstance(installation.store, BucketStore):
        installation.store._profiles.forget(BUCKET)
    assert await installation.gateway(checks=True).raised("order/5", 1) == "raised"
    assert not await installation.store.names("probe/")


@pytest.mark.parametrize("installation", ["rows"], indirect=True)
async def test_rows_without_a_table_or_a_right(installation: Installation, gateway: Gateway, dsn: str) -> None:
    without, reader = patient(dsn), patient(as_gateway(dsn))
    await refused(installation.gateway(store=RowStore(without)), Problem.MISSING)
    await RowStore(without).install()
    await without.fetch(f"GRANT USAGE ON SCHEMA fencing_journal TO {GATEWAY}")
    await without.fetch(f"REVOKE INSERT, UPDATE, DELETE ON fencing_journal.object FROM {GATEWAY}")
    for name in await installation.store.names(""):
        found = await installation.store.read(name)
        assert found is not None
        await RowStore(without).add(name, found[0])
    await refused(installation.gateway(store=RowStore(reader)), Problem.UNWRITABLE)
    await without.close()
    await reader.close()


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://role:hunter2/secret@server/journal",
        "postgresql://role:hunter2-secret@one,two:port/journal",
        "postgresql://role:hunter2-secret@/journal?host=one,two&port=1,2,3",
    ],
)
async def test_an_address_that_cannot_be_read_is_told_without_its_password(dsn: str) -> None:
    async with Database(dsn, connect_timeout=1.0) as database:
        with pytest.raises(JournalUnusable, match=r"journal\.dsn is not the address of a database") as refused:
            await RowStore(database).read("marker")
    assert "hunter2" not in "".join(traceback.format_exception(refused.value))
