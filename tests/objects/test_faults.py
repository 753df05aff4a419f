"""The store and the database fail in every way there is; no answer is a false one, and all recovers by itself."""

import asyncio
import hashlib
import random
from dataclasses import dataclass
from typing import Literal
from uuid import uuid4

import pytest

from gateway.demo.embedded import EmbeddedPostgres
from gateway.objects import fenced_write
from gateway.objects.protocol.mutation import candidates
from gateway.observe.events import OutcomeLost
from tests.doubles.s3 import Mutation, Rule, S3Double, serve
from tests.objects.clients import body_of, call, connect, outcome, warm_up
from tests.objects.object_gateway import Stage, module_stage, staged, store
from tests.postgres import fresh_database
from tests.processes import free_port
from tests.running import config, running
from tests.tiers import first
from tests.waiting import PATIENCE

pytestmark = pytest.mark.asyncio(loop_scope="module")

TIMEOUT = 6.0
"""Seconds that the gateway waits for the store: longer than a busy machine takes to answer when no test holds it up."""


UNKNOWN, UNAVAILABLE = (503, "FencingOutcomeUnknown"), (503, "ServiceUnavailable")


shared = module_stage(
    lambda: store("bucket"),
    lambda one: warm_up(connect(one.origin, "1"), "warm"),
    limits={"store_timeout": TIMEOUT, "pending_wait": 0.3},
)


async def assert_settled_by_the_next(shared: Stage, key: str) -> None:
    """The next holder gets through, and nothing of the write before comes after it."""
    assert await outcome(connect(shared.origin, "99").put_object, Key=key, Body=b"next") == (200, "")
    assert shared.body(key) == b"next"
    assert await shared.count("intent", key) == 0


def failing(shared: Stage, key: str, fault: str, moment: Literal["before", "after"]) -> Rule:
    """Have the answer to a put get lost, or be an error, before or after it takes effect."""
    put = {"operation": "PutObject", "key": key}
    if fault == "cut":
        return shared.double.cut(moment, **put)
    if fault == "error in 200":
        return shared.double.error_in_200(moment, **put)
    return shared.double.fail(int(fault), moment, **put)


class TestAnswersThatAreLost:
    """Whether the write took effect is told by its write-id, never by guessing."""

    @pytest.mark.parametrize("fault", first(["cut", "500", "503"]))
    async def test_after_applying_it_is_a_success(self, shared: Stage, key: str, fault: str) -> None:
        lost = failing(shared, key, fault, "after")
        assert await outcome(connect(shared.origin, "33").put_object, Key=key, Body=b"mine") == (200, "")
        assert lost.struck == 1
        assert shared.body(key) == b"mine"
        assert len(shared.double.applied(key=key)) == 1, "it was not sent again"
        assert await shared.count("intent", key) == 0
        await assert_settled_by_the_next(shared, key)

    @pytest.mark.parametrize("fault", first(["cut", "500", "503", "error in 200"]))
    async def test_before_applying_it_is_unknown(self, shared: Stage, key: str, fault: str) -> None:
        lost = failing(shared, key, fault, "before")
        assert await outcome(connect(shared.origin, "33").put_object, Key=key, Body=b"mine") == UNKNOWN
        assert lost.struck == 1
        assert shared.body(key) is None
        assert await shared.count("intent", key) == 1
        assert any(isinstance(event, OutcomeLost) and event.key == key for event in shared.events)
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


async def test_writers_of_one_holder_write_one_after_the_other(
    postgres_server: EmbeddedPostgres, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fenced_write, "TURN", PATIENCE)
    async with staged(postgres_server, S3Double(buckets=["bucket"]), limits={"pending_wait": PATIENCE}) as patient:
        s3 = connect(patient.origin, "33", "ann")
        bodies = [f"body {number}".encode() for number in range(16)]
        answers = await asyncio.gather(*(outcome(s3.put_object, Key=key, Body=body) for body in bodies))
        assert answers == [(200, "")] * 16
        sent = [each for each in patient.written(0) if each.key == key]
        assert len(sent) == len(patient.double.applied(key=key)) == 16, "none was lost, none was bumped away"
        assert patient.body(key) in bodies
        assert await patient.count("intent", key) == 0
        assert await patient.count("forbidden", key) == 0, "a writer waits for its own kind, and settles nothing"


async def test_a_newer_holder_waits_in_no_line_of_older_ones(shared: Stage, key: str) -> None:
    old, new = connect(shared.origin, "33"), connect(shared.origin, "34")
    await call(old.put_object, Key=key, Body=b"before")
    held, late = await shared.late(outcome(old.put_object, Key=key, Body=b"late"), operation="PutObject", key=key)
    waiting = [asyncio.create_task(outcome(old.put_object, Key=key, Body=b"later")) for _ in range(3)]
    await asyncio.sleep(0.2)
    assert await outcome(new.put_object, Key=key, Body=b"newer") == (200, "")
    assert not held.statuses, "the older holder's write is still under way"
    held.release()
    assert [await late, *[await one for one in waiting]] == [(412, "StaleFencingToken")] * 4
    assert shared.body(key) == b"newer"


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


# Many holders at once, over a store that loses, delays and refuses: the promises hold for what really took effect.
#
# The explorer in ``tests/model`` tries every order of a few steps; this tries a few orders of many, over real HTTP,
# against real PostgreSQL.

WRITERS = 8


WRITES = 40


HIGHEST = 6


SHORT = 2.0
"""Seconds after which the gateway gives up on the store: more than that passes only where a request is held."""


WRITING = ("PutObject", "DeleteObject", "CompleteMultipartUpload")


@dataclass(slots=True)
class Tried:
    """One write and what came of it; ``sequence`` is how far the store had come when the answer was there."""

    key: str
    token: int
    body: bytes | None
    answer: tuple[int, str] = (0, "")
    sequence: int = 0

    @property
    def acknowledged(self) -> bool:
        return self.answer[0] in (200, 204)

    @property
    def refused(self) -> bool:
        return self.answer[0] == 412


stormy = module_stage(
    lambda: store("bucket"),
    lambda one: warm_up(connect(one.origin, "1"), "warm/up"),
    objects=[{"match": "bucket/{job}/**", "resource": "job/{job}"}],
    limits={"store_timeout": SHORT, "pending_wait": 0.3},
)


class Storm:
    """Writes to a few keys of one resource, with tokens that mostly grow, and as much trouble as there are writes.

    Both go by what has been sent: by the clock, a busy machine would have nothing but trouble.
    """

    def __init__(self, stage: Stage, seed: int) -> None:
        self._stage = stage
        self._random = random.Random(seed)
        self._job = uuid4().hex
        self.keys = [f"{self._job}/{number}" for number in range(3)]
        self._numbers = iter(range(WRITES))
        self.tried: list[Tried] = []

    async def blow(self) -> None:
        try:
            await asyncio.gather(*(self._writer() for _ in range(WRITERS)))
        finally:
            self._stage.double.faults.clear()
        # The store begins to process the requests that were held.
        await asyncio.sleep(0.2)

    async def _writer(self) -> None:
        for number in self._numbers:
            await asyncio.sleep(self._random.random() * 0.1)
            await self._write(number)

    async def _write(self, number: int) -> None:
        token = max(1, round(number / WRITES * HIGHEST) - self._random.choice((0, 0, 0, 1, 2)))
        # A few bodies come again and again, and their ETags with them.
        body = self._random.choice((None, b"same", b"same", f"{token} {uuid4().hex}".encode()))
        tried = Tried(self._random.choice(self.keys), token, body)
        for _ in range(self._random.choice((0, 1, 2))):
            self._trouble()
        s3 = connect(self._stage.origin, str(token))
        if body is None:
            tried.answer = await outcome(s3.delete_object, Key=tried.key)
        else:
            tried.answer = await outcome(s3.put_object, Key=tried.key, Body=body)
        tried.sequence = self._stage.double.sequence
        self.tried.append(tried)

    def _trouble(self) -> None:
        double = self._stage.double
        operation, key = self._random.choice(WRITING), self._random.choice(self.keys)
        moment = self._random.choice(("before", "after"))
        match self._random.choice(("cut", "fail", "hold", "hold")):
            case "cut":
                double.cut(moment, operation=operation, key=key)
            case "fail":
                double.fail(500, moment, operation=operation, key=key)
            case "hold":
                self._release_later(double.hold(operation=operation, key=key))

    def _release_later(self, rule: Rule) -> None:
        asyncio.get_running_loop().call_later(self._random.random() * 2 * SHORT, rule.release)


def tokens_by_etag(tried: list[Tried]) -> dict[str, int]:
    """Return the token of the write that an ETag betrays: a write of unique bytes, in any form."""
    unique = [one for one in tried if one.body not in (None, b"same")]
    return {
        candidate.etag: one.token
        for one in unique
        for candidate in candidates(hashlib.md5(one.body or b"").hexdigest())
    }


def originals(mutations: list[Mutation]) -> list[Mutation]:
    """Without bumps, which put again what is there: the same write-id as before on that key."""
    last: dict[str, str | None] = {}
    found = []
    for mutation in mutations:
        if mutation.write_id is None or last.get(mutation.key) != mutation.write_id:
            found.append(mutation)
        last[mutation.key] = mutation.write_id
    return found


@pytest.mark.parametrize("seed", first(range(4)))
async def test_nothing_older_takes_effect_after_an_acknowledged_write(stormy: Stage, seed: int) -> None:
    storm = Storm(stormy, seed)
    before = stormy.double.sequence
    await storm.blow()
    expected = {(200, ""), (204, ""), (412, "StaleFencingToken"), (503, "FencingOutcomeUnknown")}
    expected |= {(503, "ServiceUnavailable")}
    assert {one.answer for one in storm.tried} <= expected
    assert sum(one.acknowledged for one in storm.tried) >= 2, "a storm in which nothing gets through shows nothing"
    tokens = tokens_by_etag(storm.tried)
    applied = [one for one in originals(stormy.double.applied(after=before)) if one.key in storm.keys]
    for mutation in applied:
        token = tokens.get(mutation.etag or "")
        overtaken = [one for one in storm.tried if one.acknowledged and one.sequence < mutation.sequence]
        if token is not None and overtaken:
            assert token >= max(one.token for one in overtaken), "P2: it came after it had been overtaken"
    there = {mutation.etag for mutation in applied}
    for one in storm.tried:
        if one.body not in (None, b"same"):
            forms = {candidate.etag for candidate in candidates(hashlib.md5(one.body or b"").hexdigest())}
            assert not (one.acknowledged and there.isdisjoint(forms)), "P3: success without effect"
            assert not (one.refused and there & forms), "P3: refused, and yet it took effect"
