"""Many holders at once, over a store that loses, delays and refuses: the promise holds for what really took effect.

The explorer in ``tests/model`` tries every order of a few steps; this tries a few orders of many, over real HTTP,
against real PostgreSQL.
"""

import asyncio
import hashlib
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass
from uuid import uuid4

import pytest
import pytest_asyncio

from gateway.demo.embedded import EmbeddedPostgres
from gateway.objects.protocol.mutation import candidates
from tests.doubles.s3 import Mutation, Rule, S3Double
from tests.objects.clients import connect, outcome, warm_up
from tests.objects.object_gateway import Stage, staged
from tests.tiers import first

pytestmark = pytest.mark.asyncio(loop_scope="module")

WRITERS = 8
WRITES = 40
HIGHEST = 6
TIMEOUT = 2.0
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


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(postgres_server: EmbeddedPostgres) -> AsyncIterator[Stage]:
    rules = [{"match": "bucket/{job}/**", "resource": "job/{job}"}]
    store = {"timeout": TIMEOUT, "pending_wait": 0.3}
    async with staged(postgres_server, S3Double(buckets=["bucket"]), objects=rules, s3=store) as one:
        await warm_up(connect(one.origin, "1"), "warm/up")
        yield one


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
        asyncio.get_running_loop().call_later(self._random.random() * 2 * TIMEOUT, rule.release)


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
async def test_nothing_older_takes_effect_after_an_acknowledged_write(shared: Stage, seed: int) -> None:
    storm = Storm(shared, seed)
    before = shared.double.sequence
    await storm.blow()
    expected = {(200, ""), (204, ""), (412, "StaleFencingToken"), (503, "FencingOutcomeUnknown")}
    expected |= {(503, "ServiceUnavailable")}
    assert {one.answer for one in storm.tried} <= expected
    assert sum(one.acknowledged for one in storm.tried) >= 2, "a storm in which nothing gets through shows nothing"
    tokens = tokens_by_etag(storm.tried)
    applied = [one for one in originals(shared.double.applied(after=before)) if one.key in storm.keys]
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


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(4, 6))
async def test_the_last_holder_has_the_last_word(shared: Stage, seed: int) -> None:
    """However much was left hanging, a barrier settles it, and from then on nothing moves."""
    storm = Storm(shared, seed)
    await storm.blow()
    barrier = await shared.barrier(f"job/{storm.keys[0].split('/')[0]}", "100")
    settled = {key: shared.body(key) for key in storm.keys}
    left = await shared.rows("SELECT FROM fencing.intent WHERE key = ANY($1)", storm.keys)
    if barrier.status_code == 503:
        # Every form of some bytes is forbidden by now: only time settles that, and nothing was acknowledged.
        assert left
        return
    assert (barrier.status_code, left) == (200, [])
    await asyncio.sleep(0.3)
    assert {key: shared.body(key) for key in storm.keys} == settled
    last = connect(shared.origin, "100")
    for key in storm.keys:
        assert await outcome(last.put_object, Key=key, Body=b"the last word") == (200, "")
        assert shared.body(key) == b"the last word"
