"""The store and the database fail in every way there is; no answer is a false one, and all recovers by itself."""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import pytest
import pytest_asyncio

from gateway.demo.embedded import EmbeddedPostgres, postgres
from gateway.observe.events import IntentSettled, OutcomeLost
from tests.doubles.s3 import S3Double, serve
from tests.objects.clients import body_of, call, connect, outcome, warm_up
from tests.objects.object_gateway import Stage, staged
from tests.objects.raw import head, send
from tests.postgres import fresh_database, install
from tests.processes import free_port
from tests.running import config, running
from tests.waiting import PATIENCE, end_sessions

pytestmark = pytest.mark.asyncio(loop_scope="module")

TIMEOUT = 6.0
"""Seconds that the gateway waits for the store: longer than a busy machine takes to answer when no test holds it up."""

UNKNOWN, UNAVAILABLE = (503, "FencingOutcomeUnknown"), (503, "ServiceUnavailable")
STALE = (412, "StaleFencingToken")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(postgres_server: EmbeddedPostgres) -> AsyncIterator[Stage]:
    double = S3Double(buckets=["bucket"])
    async with staged(postgres_server, double, s3={"timeout": TIMEOUT, "pending_wait": 0.3}) as one:
        await warm_up(connect(one.origin, "1"), "warm")
        yield one


async def assert_settled_by_the_next(shared: Stage, key: str) -> None:
    """The next holder gets through, and nothing of the write before comes after it."""
    assert await outcome(connect(shared.origin, "99").put_object, Key=key, Body=b"next") == (200, "")
    assert shared.body(key) == b"next"
    assert await shared.count("intent", key) == 0


class TestAnswersThatAreLost:
    """Whether the write took effect is told by its write-id, never by guessing."""

    async def test_cut_after_applying_is_a_success(self, shared: Stage, key: str) -> None:
        cut = shared.double.cut("after", operation="PutObject", key=key)
        assert await outcome(connect(shared.origin, "33").put_object, Key=key, Body=b"mine") == (200, "")
        assert cut.struck == 1
        assert shared.body(key) == b"mine"
        assert len(shared.double.applied(key=key)) == 1, "it was not sent again"
        assert await shared.count("intent", key) == 0

    async def test_cut_before_applying_is_unknown(self, shared: Stage, key: str) -> None:
        cut = shared.double.cut("before", operation="PutObject", key=key)
        assert await outcome(connect(shared.origin, "33").put_object, Key=key, Body=b"mine") == UNKNOWN
        assert cut.struck == 1
        assert await shared.count("intent", key) == 1
        assert any(isinstance(event, OutcomeLost) and event.key == key for event in shared.events)
        await assert_settled_by_the_next(shared, key)

    @pytest.mark.parametrize("status", [500, 503])
    async def test_an_error_after_applying_is_a_success(self, shared: Stage, key: str, status: int) -> None:
        shared.double.fail(status, "after", operation="PutObject", key=key)
        assert await outcome(connect(shared.origin, "33").put_object, Key=key, Body=b"mine") == (200, "")
        assert shared.body(key) == b"mine"
        await assert_settled_by_the_next(shared, key)

    @pytest.mark.parametrize("status", [500, 503])
    async def test_an_error_before_applying_is_unknown(self, shared: Stage, key: str, status: int) -> None:
        shared.double.fail(status, "before", operation="PutObject", key=key)
        assert await outcome(connect(shared.origin, "33").put_object, Key=key, Body=b"mine") == UNKNOWN
        assert shared.body(key) is None
        await assert_settled_by_the_next(shared, key)

    async def test_an_error_within_a_success_is_unknown(self, shared: Stage, key: str) -> None:
        shared.double.error_in_200("before", operation="PutObject", key=key)
        assert await outcome(connect(shared.origin, "33").put_object, Key=key, Body=b"mine") == UNKNOWN
        await assert_settled_by_the_next(shared, key)

    async def test_a_write_that_cannot_be_looked_up_is_unknown(self, shared: Stage, key: str) -> None:
        """It took effect, but the look afterwards fails as well: not a success, not a failure."""
        s3 = connect(shared.origin, "33")
        await call(s3.put_object, Key=key, Body=b"first")
        shared.double.cut("after", operation="PutObject", key=key)
        shared.double.fail(503, operation="HeadObject", key=key, times=None)
        assert await outcome(s3.put_object, Key=key, Body=b"second") == UNKNOWN
        shared.double.faults.clear()
        assert shared.body(key) == b"second"
        await assert_settled_by_the_next(shared, key)

    @pytest.mark.parametrize("moment", ["before", "after"])
    async def test_a_delete_without_an_answer_is_never_a_false_success(
        self, shared: Stage, key: str, moment: str
    ) -> None:
        s3 = connect(shared.origin, "33")
        await call(s3.put_object, Key=key, Body=b"mine")
        shared.double.cut(moment, operation="DeleteObject", key=key)
        answer = await outcome(s3.delete_object, Key=key)
        gone = shared.body(key) is None
        assert gone == (moment == "after")
        assert answer == UNKNOWN or (gone and answer == (204, ""))
        await assert_settled_by_the_next(shared, key)

    @pytest.mark.thorough
    async def test_the_same_holder_settles_its_own_lost_write(self, shared: Stage, key: str) -> None:
        """The advice is to write again with the same token: that must work, and leave the last body."""
        held = shared.double.hold(operation="PutObject", key=key)
        s3 = connect(shared.origin, "33")
        assert await outcome(s3.put_object, Key=key, Body=b"lost") == UNKNOWN
        assert await outcome(s3.put_object, Key=key, Body=b"again") == (200, "")
        held.release()
        await held.finished.wait()
        assert held.statuses == [412]
        assert shared.body(key) == b"again"


@pytest.mark.thorough
async def test_a_request_that_hangs_is_unknown_and_has_no_late_effect(shared: Stage, key: str) -> None:
    held = shared.double.hold(operation="PutObject", key=key)
    put = head(shared.origin, "PUT", f"/bucket/{key}", [("fencing-token", "33")], unsigned=[("content-length", "6")])
    reply = await send(shared.origin, put + b"zombie")
    assert reply is not None
    assert (reply.status, reply.code) == UNKNOWN
    assert int(reply.headers["retry-after"]) >= 1
    assert await shared.count("intent", key) == 1
    await assert_settled_by_the_next(shared, key)
    assert any(isinstance(event, IntentSettled) and event.key == key for event in shared.events)
    held.release()
    await held.finished.wait()
    assert held.statuses == [412], "its condition is broken"
    assert shared.body(key) == b"next"


async def test_a_takeover_does_not_wait_for_a_zombie(shared: Stage, key: str) -> None:
    """The zombie's request is still under way; the new holder has its answer long before it."""
    held = shared.double.hold(operation="PutObject", key=key)
    zombie = asyncio.ensure_future(outcome(connect(shared.origin, "33").put_object, Key=key, Body=b"zombie"))
    await held.arrived.wait()
    barrier = await shared.barrier(f"s3/bucket/{key}", "34")
    assert barrier.status_code == 200, barrier.text
    held.release()
    assert await zombie in [STALE, UNKNOWN]
    await held.finished.wait()
    assert held.statuses == [412]
    assert await outcome(connect(shared.origin, "34").get_object, Key=key) == (404, "NoSuchKey")


@pytest.mark.thorough
async def test_a_settlers_tombstone_is_no_success_of_the_write_it_settles(shared: Stage, key: str) -> None:
    """The zombie gets no answer and looks for itself. The object that it finds at its key is not its own write."""
    held = shared.double.hold(operation="PutObject", key=key)
    zombie = asyncio.ensure_future(outcome(connect(shared.origin, "33").put_object, Key=key, Body=b"zombie"))
    await held.arrived.wait()
    assert (await shared.barrier(f"s3/bucket/{key}", "34")).status_code == 200
    assert shared.double.objects("bucket")[key].content.metadata["fencing-tombstone"] == "true"
    assert await zombie == UNKNOWN
    held.release()
    await held.finished.wait()
    assert held.statuses == [412]


async def test_two_writers_of_one_holder_write_one_after_the_other(postgres_server: EmbeddedPostgres, key: str) -> None:
    async with staged(postgres_server, S3Double(buckets=["bucket"]), s3={"pending_wait": PATIENCE}) as patient:
        s3 = connect(patient.origin, "33", "ann")
        bodies = [f"body {number}".encode() for number in range(2)]
        answers = await asyncio.gather(*(outcome(s3.put_object, Key=key, Body=body) for body in bodies))
        assert answers == [(200, ""), (200, "")]
        assert len(patient.double.applied(key=key)) == 2, "neither was lost, neither was bumped away"
        assert patient.body(key) in bodies
        assert await patient.count("intent", key) == 0
        assert await patient.count("forbidden", key) == 0, "a writer waits for its own kind, and settles nothing"


async def test_of_many_writers_the_highest_that_was_acknowledged_stays(shared: Stage, key: str) -> None:
    async def write(token: int) -> tuple[int, tuple[int, str]]:
        await asyncio.sleep(0.002 * (token * 7 % 20))
        s3 = clients[token]
        return token, await outcome(s3.put_object, Key=key, Body=f"body {token}".encode())

    clients = {token: connect(shared.origin, str(token)) for token in range(1, 21)}
    answers = dict(await asyncio.gather(*(write(token) for token in range(1, 21))))
    acknowledged = [token for token, answer in answers.items() if answer == (200, "")]
    assert all(answer in [(200, ""), STALE, UNKNOWN, UNAVAILABLE] for answer in answers.values()), answers
    assert acknowledged
    fence = await shared.fence(f"s3/bucket/{key}")
    assert fence == "20", "the highest has claimed, whatever became of its write"
    body = shared.body(key)
    assert body is not None
    written = int(body.decode().removeprefix("body "))
    assert written == max(acknowledged) or answers[written] == UNKNOWN
    assert written >= max(acknowledged)
    await assert_settled_by_the_next(shared, key)


async def test_the_store_is_down_and_comes_back(shared: Stage, postgres_server: EmbeddedPostgres) -> None:
    double = S3Double(buckets=["bucket"])
    port = free_port()
    async with fresh_database(postgres_server) as dsn, running(config(dsn, f"http://127.0.0.1:{port}")) as origin:
        s3 = connect(origin, "33")
        assert await outcome(s3.put_object, Key="k", Body=b"x") == UNAVAILABLE, "not probed yet"
        assert await outcome(s3.list_buckets) == UNAVAILABLE
        async with serve(double, port):
            assert await outcome(s3.put_object, Key="k", Body=b"x") == (200, "")
        for _ in range(2):
            assert await outcome(s3.put_object, Key="k", Body=b"y") == UNAVAILABLE, "nothing was sent: not unknown"
            assert await outcome(s3.delete_object, Key="k") == UNAVAILABLE
            assert await outcome(s3.get_object, Key="k") == UNAVAILABLE
        assert double.objects("bucket")["k"].content.body == b"x"
        async with serve(double, port):
            assert await outcome(s3.put_object, Key="k", Body=b"z") == (200, "")
            assert await body_of(s3, "k") == b"z"


@pytest.mark.thorough
async def test_sessions_of_the_database_end_at_any_time(shared: Stage, key: str) -> None:
    s3 = connect(shared.origin, "33")
    await call(s3.put_object, Key=key, Body=b"first")
    for round_ in range(3):
        body = f"round {round_}".encode()
        held = shared.double.hold(operation="PutObject", key=key)
        writing = asyncio.ensure_future(outcome(s3.put_object, Key=key, Body=body))
        await held.arrived.wait()
        await end_sessions(shared.dsn)
        held.release()
        answer = await writing
        assert answer in [(200, ""), UNKNOWN]
        assert shared.body(key) == body
        shared.double.faults.remove(held)
    await assert_settled_by_the_next(shared, key)


@pytest.mark.thorough
async def test_writes_while_sessions_end_are_never_falsely_acknowledged(shared: Stage) -> None:
    """Each acknowledged write is there; each that was refused is not."""
    keys = [f"storm-{uuid4().hex[:8]}" for _ in range(24)]
    s3 = connect(shared.origin, "33")

    async def write(number: int, key: str) -> tuple[str, tuple[int, str]]:
        await asyncio.sleep(0.01 * (number % 6))
        return key, await outcome(s3.put_object, Key=key, Body=key.encode())

    async def storm() -> None:
        for _ in range(8):
            await end_sessions(shared.dsn)
            await asyncio.sleep(0.01)

    *answers, _ = await asyncio.gather(*(write(*one) for one in enumerate(keys)), storm())
    for key, answer in (one for one in answers if one is not None):
        assert answer in [(200, ""), UNKNOWN, UNAVAILABLE]
        if answer == (200, ""):
            assert shared.body(key) == key.encode()
        if answer == UNAVAILABLE:
            assert shared.body(key) is None, "it was said that nothing was written"
    for key in keys:
        await assert_settled_by_the_next(shared, key)


@pytest.mark.thorough
async def test_the_database_stops_under_a_write_and_starts_again() -> None:
    """Nothing is acknowledged without it, and nothing has to be restarted but it."""
    double = S3Double(buckets=["bucket"])
    with tempfile.TemporaryDirectory(prefix="pg") as directory, postgres(Path(directory) / "data") as server:
        dsn = server.dsn("postgres")
        await asyncio.to_thread(install, dsn)
        async with serve(double) as endpoint, running(config(dsn, endpoint)) as origin:
            s3 = connect(origin, "33")
            assert await outcome(s3.put_object, Key="k", Body=b"first") == (200, "")
            held = double.hold(operation="PutObject", key="k")
            writing = asyncio.ensure_future(outcome(s3.put_object, Key="k", Body=b"second"))
            await held.arrived.wait()
            await asyncio.to_thread(server.server.stop)
            held.release()
            assert await writing == UNKNOWN, "it took effect, but that could not be noted"
            for operation, arguments in ((s3.put_object, {"Body": b"third"}), (s3.delete_object, {})):
                assert await outcome(operation, Key="k", **arguments) == UNAVAILABLE
            assert double.objects("bucket")["k"].content.body == b"second"
            assert await body_of(s3, "k") == b"second", "reads need no database"
            await asyncio.to_thread(server.server.ensure_postgres_running)
            assert await outcome(s3.put_object, Key="k", Body=b"third") == (200, "")
            assert double.objects("bucket")["k"].content.body == b"third"
            assert await outcome(connect(origin, "32").put_object, Key="k", Body=b"x") == STALE, "the fence is kept"
