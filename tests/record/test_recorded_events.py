"""Takeovers, events of locks and privileged actions are on record: once, with all sides, and in their transaction."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import pairwise
from typing import Any
from uuid import UUID, uuid4

import pytest
import pytest_asyncio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.db import fences, intents, leases
from gateway.db.database import Database, Transaction
from gateway.demo.embedded import EmbeddedPostgres
from gateway.errors import SqlError
from gateway.fencing.decision import Decision, Equal, Fence, Presented, Tokens, decide
from gateway.fencing.intent import Announcement, Begin
from gateway.fencing.record import Kind
from gateway.fencing.token import Token
from tests.db.test_claims import Holder
from tests.doubles.s3 import S3Double
from tests.leases.stage import Gateway, gateway, gone, pass_time
from tests.objects.clients import call, connect, outcome
from tests.objects.object_gateway import Stage, staged
from tests.record.entries import entries, flaws, lines
from tests.running import KEYS
from tests.tiers import first
from tests.waiting import waiting

TAKEOVERS = ("raised", "barrier", "epoch")
NAMES = ("r/1", "r/2", "r/3", "s/1")

Raise = Callable[[Database, str, Token, str | None, str], Awaitable[object]]


async def by_claim(database: Database, resource: str, token: Token, holder: str | None, caller: str) -> None:
    """As a write to a table does."""
    await by_claims(database, {resource: token}, holder, caller)


async def by_claims(
    database: Database, pairs: dict[str, Token], holder: str | None, caller: str, equal: Equal = Equal.ACCEPT
) -> None:
    """As a write to several resources does, committed whatever it is told."""
    tokens = Tokens(pairs=pairs, holder=holder)
    await database.run(lambda transaction: fences.claim(transaction, list(pairs), tokens, equal, caller))


async def by_begin(database: Database, resource: str, token: Token, holder: str | None, caller: str) -> None:
    """As a write to an object does."""
    announced = Announcement(resource, "bucket", "key", uuid4(), Presented(token, holder), caller)
    await intents.begin(database, [Begin(announced, None)], patient=True)
    await database.fetch_write("DELETE FROM fencing.intent")


async def by_barrier(database: Database, resource: str, token: Token, holder: str | None, caller: str) -> None:
    await intents.raise_fence(database, resource, Presented(token, holder), caller)


async def by_hold(database: Database, resource: str, token: Token, holder: str | None, _: str) -> None:
    """Raise the fence from a session beside the gateway. The caller is the login role. A refusal undoes the raise."""
    try:
        await database.fetchrow_write("SELECT fencing.hold($1, $2, $3)", resource, str(token), holder)
    except SqlError as error:
        if not error.sqlstate.startswith("FN"):
            raise


WAYS: dict[str, Raise] = {
    "claim": by_claim,
    "begin": by_begin,
    "barrier": by_barrier,
    "hold": by_hold,
}


def new_side(entry: dict[str, Any]) -> tuple[Any, ...]:
    return entry["epoch"], entry["value"], entry["holder"], entry["caller"]


def old_side(entry: dict[str, Any]) -> tuple[Any, ...]:
    return entry["fence_epoch"], entry["fence_value"], entry["fence_holder"], entry["fence_caller"]


@pytest.mark.parametrize("names", [("r/1",), NAMES], ids=["one", "several"])
async def test_a_takeover_that_is_undone_was_none(database: Database, names: tuple[str, ...]) -> None:
    await by_claims(database, dict.fromkeys(names, Token(0, 1)), "ann", "ann's")

    async def work(transaction: Transaction) -> None:
        pairs = dict.fromkeys(names, Token(0, 2))
        await fences.claim(transaction, list(names), Tokens(pairs=pairs), Equal.ACCEPT, "bob's")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await database.run(work)
    assert await entries(database, *TAKEOVERS) == []


async def test_a_new_epoch_is_on_record_as_what_it_is(database: Database) -> None:
    await by_claim(database, "r/1", Token(1, 33), "ann", "ann's")
    before = await fences.read(database, "r/1")
    assert before is not None
    bumped = await fences.bump_epoch(database, "r/1", Token(1, 33), "admin", "etcd was restored")
    assert bumped.fence is not None
    (entry,) = await entries(database, *TAKEOVERS)
    assert (entry["kind"], new_side(entry), old_side(entry)) == (
        "epoch",
        (2, 0, None, "admin"),
        (1, 33, "ann", "ann's"),
    )
    assert (entry["fence_raised_at"], entry["at"]) == (before.raised_at, bumped.fence.raised_at)
    assert '"etcd was restored"' in entry["details"]


@pytest.mark.parametrize("earlier", ["one", "many", "barrier"])
@pytest.mark.parametrize("later", first(["one", "many", "barrier"]))
async def test_who_waits_behind_another_overtakes_that_one(database: Database, earlier: str, later: str) -> None:
    """A claim reports the fence that it overtakes, not the one that it saw before it waited."""

    async def take(way: str, token: Token, holder: str) -> None:
        if way == "barrier":
            await by_barrier(database, "r/1", token, holder, "x")
        else:
            await by_claims(database, dict.fromkeys(NAMES if way == "many" else NAMES[:1], token), holder, "x")

    await by_claims(database, dict.fromkeys(NAMES, Token(0, 1)), "ann", "x")
    async with Holder(database, dict.fromkeys(NAMES, Token(0, 1))):
        bob = asyncio.create_task(take(earlier, Token(0, 2), "bob"))
        await waiting(database, 1)
        cid = asyncio.create_task(take(later, Token(0, 3), "cid"))
        await waiting(database, 2)
    await asyncio.gather(bob, cid)
    found = [entry for entry in await entries(database, *TAKEOVERS) if entry["resource"] == "r/1"]
    assert [(entry["fence_holder"], entry["holder"]) for entry in found] == [("ann", "bob"), ("bob", "cid")]
    assert [(entry["fence_value"], entry["value"]) for entry in found] == [(1, 2), (2, 3)]
    assert found[1]["fence_raised_at"] == found[0]["at"]


async def test_storms_of_takeovers_make_one_line_of_succession(database: Database) -> None:
    """Many claims race, each way against each other. Each holder appears once, directly after the one before it."""
    ways = [by_claim, by_begin, by_barrier, by_hold]

    async def storm(number: int) -> None:
        token, holder = Token(number % 2, number), f"holder-{number}"
        if number % 5 == 0:
            await by_claims(database, dict.fromkeys(NAMES, token), holder, "x")
        else:
            await ways[number % 4](database, NAMES[number % 3], token, holder, "x")

    await asyncio.gather(*(storm(number) for number in range(120)))
    found = await entries(database, *TAKEOVERS)
    assert len(found) > len(NAMES)
    for name in NAMES:
        line = [entry for entry in found if entry["resource"] == name]
        line.sort(key=lambda entry: (entry["epoch"], entry["value"]))
        for before, after in pairwise(line):
            assert old_side(after) == new_side(before)
            assert after["fence_raised_at"] == before["at"]
        fence = await fences.read(database, name)
        assert fence is not None
        last = line[-1]
        assert new_side(last) == (fence.token.epoch, fence.token.value, fence.holder, fence.caller)
        assert last["at"] == fence.raised_at
    assert flaws(await lines(database)) == []


some = st.dictionaries(st.sampled_from(NAMES), st.builds(Token, st.integers(0, 1), st.integers(0, 3)), min_size=1)
holders = st.sampled_from([None, "ann", "bob"])
writes = st.sampled_from([UUID(int=1), UUID(int=2)])
steps = st.one_of(
    st.tuples(st.just("claim"), some, holders, writes),
    st.tuples(st.sampled_from(["begin", "barrier", "hold", "bump"]), some, holders, writes),
)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(history=st.lists(steps, max_size=10), equal=st.sampled_from(Equal))
async def test_any_history_is_on_record_as_it_was(
    database: Database, history: list[tuple[str, dict[str, Token], str | None, UUID]], equal: Equal
) -> None:
    """Against a model: what was decided by the rules, step by step, and what that took over from whom."""
    await database.fetch_write("DELETE FROM fencing.fence")
    start = len(await entries(database, *TAKEOVERS))
    known: dict[str, Fence] = {}
    expected: list[tuple[Any, ...]] = []

    def raised(kind: str, resource: str, token: Token, holder: str | None, caller: str, write: UUID | None) -> None:
        old = known.get(resource)
        if old is not None or kind == "barrier":
            side = (old.token.epoch, old.token.value, old.holder, old.caller) if old else (None,) * 4
            expected.append((kind, resource, (token.epoch, token.value, holder, caller), side))
        known[resource] = Fence(resource, token, holder, caller, fence_time, write)

    fence_time = await database.now()
    for number, (step, pairs, holder, write) in enumerate(history):
        caller = "role:postgres" if step == "hold" else f"caller-{number}"
        if step == "claim":
            tokens = Tokens(pairs=pairs, holder=holder, write_id=write)
            await database.run(
                lambda transaction, pairs=pairs, tokens=tokens, caller=caller: fences.claim(  # type: ignore[misc]
                    transaction, list(pairs), tokens, equal, caller
                )
            )
            for resource, token in sorted(pairs.items()):
                if decide(known.get(resource), Presented(token, holder, write), equal) is Decision.RAISED:
                    raised("raised", resource, token, holder, caller, write)
            continue
        resource, token = min(pairs.items())
        if step == "bump":
            old = known.get(resource)
            await fences.bump_epoch(database, resource, token, caller, "why not")
            if old is not None and old.token == token:
                raised("epoch", resource, Token(token.epoch + 1, 0), None, caller, None)
            continue
        await WAYS[step](database, resource, token, holder, caller)
        if decide(known.get(resource), Presented(token, holder, write)) is Decision.RAISED:
            raised("barrier" if step == "barrier" else "raised", resource, token, holder, caller, write)
    found = (await entries(database, *TAKEOVERS))[start:]
    assert [(entry["kind"], entry["resource"], new_side(entry), old_side(entry)) for entry in found] == expected


KINDS = [kind for kind in Kind if kind.startswith("lease-")]


@pytest.fixture
async def one(dsn: str) -> AsyncIterator[Gateway]:
    async with gateway(dsn) as opened:
        yield opened


async def told(one: Gateway) -> list[tuple[Any, ...]]:
    """Kind, token, holder and caller of each."""
    found = await entries(one.database, *KINDS)
    return [(entry["kind"], entry["value"], entry["holder"], entry["caller"]) for entry in found]


async def details(one: Gateway, kind: Kind) -> dict[str, Any]:
    (entry,) = await entries(one.database, kind)
    found: dict[str, Any] = json.loads(entry["details"])
    return found


async def test_from_one_holder_to_the_next(one: Gateway) -> None:
    """A lock that a client waited for is granted when the client collects it, and not before."""
    first = await one.acquire("job/1", "ann")
    waiting = await one.waits("job/1", "bob", caller="other")
    await one.release(first)
    second = await waiting
    await one.renew(second)
    await one.release(second)
    assert await told(one) == [
        ("lease-granted", 1, "ann", "writer"),
        ("lease-released", 1, "ann", "writer"),
        ("lease-granted", 2, "bob", "other"),
        ("lease-released", 2, "bob", "other"),
    ]
    exported = await lines(one.database)
    assert flaws(exported) == []
    # Any caller that knows the id of a lease can end it.
    assert not [line for line in exported if str(first.id) in line or str(second.id) in line]


async def test_to_ask_twice_is_to_get_it_once_and_so_it_is_with_a_withdrawal(one: Gateway) -> None:
    for _ in range(2):
        await one.acquire("job/1", "ann", request="r-1")
    assert await told(one) == [("lease-granted", 1, "ann", "writer")]
    granted = await details(one, Kind.LEASE_GRANTED)
    assert (granted["mode"], granted["ttl"], set(granted)) == ("exclusive", 30, {"mode", "ttl", "acquired_at"})
    for _ in range(2):
        await leases.withdraw(one.database, "job/1", "ann", "writer", "r-1")
    assert (await told(one))[1:] == [("lease-released", 1, "ann", "writer")]


async def test_those_who_share_a_lock_each_have_their_own(one: Gateway) -> None:
    held = [await one.acquire("job/1", holder, mode="shared") for holder in ("ann", "bob")]
    await one.release(held[0])
    assert await told(one) == [
        ("lease-granted", 1, "ann", "writer"),
        ("lease-granted", 1, "bob", "writer"),
        ("lease-released", 1, "ann", "writer"),
    ]


async def test_one_that_lapses_is_over_before_the_next_begins(one: Gateway) -> None:
    await one.acquire("job/1", "ann")
    await pass_time(one, "job/1", 31)
    await one.acquire("job/1", "bob")
    assert await told(one) == [
        ("lease-granted", 1, "ann", "writer"),
        ("lease-expired", 1, "ann", "writer"),
        ("lease-granted", 2, "bob", "writer"),
    ]
    assert set(await details(one, Kind.LEASE_EXPIRED)) == {"mode", "acquired_at", "expires_at"}


async def test_one_that_is_broken_says_by_whom_and_why(one: Gateway) -> None:
    lease = await one.acquire("job/1", "ann")
    await one.service.break_lock("job/1", lease.token, "operator", "it hangs")
    assert (await told(one))[1:] == [("lease-broken", 1, "ann", "operator")]
    broken = await details(one, Kind.LEASE_BROKEN)
    assert (broken["of"], broken["reason"]) == ("writer", "it hangs")


@pytest.mark.parametrize("withdrawn", [False, True])
async def test_what_nobody_was_told_of_is_not_on_record(one: Gateway, dsn: str, *, withdrawn: bool) -> None:
    """The gateway handed the lock over to a client that had hung up, and that may have withdrawn its request."""
    lease = await one.acquire("job/1", "ann")
    async with gateway(dsn, running=False) as deaf:
        dead = await deaf.waits("job/1", "bob", request="r-1")
        await one.release(lease)
        if withdrawn:
            await leases.withdraw(one.database, "job/1", "bob", "writer", "r-1")
            assert (await one.service.inspect("job/1")).holders == ()
        else:
            await pass_time(one, "job/1", 31)
        await one.acquire("job/1", "cid")
        assert [entry[2] for entry in await told(one)] == ["ann", "ann", "cid"]
        await gone([dead])


async def test_the_life_of_a_database_that_came_back_is_an_epoch(one: Gateway) -> None:
    await one.acquire("job/1", "ann")
    await one.database.fetch_write("UPDATE fencing.issuer SET timeline = 'another'")
    await one.acquire("job/2", "ann")
    (entry,) = await entries(one.database, "epoch")
    assert (entry["resource"], entry["epoch"], entry["value"], entry["fence_value"]) == (None, 1, 0, None)
    assert json.loads(entry["details"])["before"]["timeline"] == "another"


# Administration -------------------------------------------------------------------------------------------------------


STALE = (412, "StaleFencingToken")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(postgres_server: EmbeddedPostgres) -> AsyncIterator[Stage]:
    callers = [{"name": "writer", "groups": ["admins"], **KEYS}]
    double, limits = S3Double(buckets=["bucket"]), {"pending_wait": 0.2}
    async with staged(postgres_server, double, callers=callers, limits=limits) as one:
        yield one


async def recorded(stage: Stage, kind: str, **details: str) -> list[dict[str, Any]]:
    """Return the entries of a kind whose details contain these."""
    found = await stage.rows(
        "SELECT * FROM fencing.record WHERE kind = $1 AND details @> $2::jsonb ORDER BY at", kind, json.dumps(details)
    )
    return [{**row, "details": json.loads(row["details"])} for row in found]


@pytest.mark.asyncio(loop_scope="module")
class TestAdministration:
    @pytest.mark.parametrize(("pattern", "plain"), [("job/{0}", True), ("s3/bucket/{0}/**", False)])
    async def test_issued_credentials(self, shared: Stage, pattern: str, plain: bool) -> None:  # noqa: FBT001
        resource = pattern.format(uuid4().hex)
        async with shared.api() as api:
            wanted = {"resource": resource, "token": "1.34", "holder": "ann", "ttl": 900}
            issued = (await api.post("/v1/credentials", json=wanted)).json()
        (entry,) = await recorded(shared, "administration", pattern=resource)
        assert entry["details"] == {
            "operation": "IssueCredentials",
            "pattern": resource,
            "access_key_id": issued["access_key_id"],
            "expiration": issued["expiration"].replace("Z", "+00:00"),
        }
        assert entry["resource"] == (resource if plain else None)
        assert (entry["plane"], entry["epoch"], entry["value"], entry["holder"]) == ("api", 1, 34, "ann")
        (text,) = await shared.rows("SELECT r::text FROM fencing.record AS r WHERE id = $1", entry["id"])
        assert issued["secret_access_key"] not in text["r"]
        assert issued["session_token"] not in text["r"]

    async def test_no_credentials_are_given_out_that_are_not_on_record(self, shared: Stage) -> None:
        await shared.rows("ALTER TABLE fencing.intake RENAME TO lost")
        try:
            async with shared.api() as api:
                answer = await api.post("/v1/credentials", json={"resource": "job/1", "token": "34"})
        finally:
            await shared.rows("ALTER TABLE fencing.lost RENAME TO intake")
        assert answer.status_code >= 500
        assert "secret" not in answer.text


@pytest.mark.asyncio(loop_scope="module")
class TestSettled:
    """A zombie's put is on its way when its successor comes."""

    @pytest_asyncio.fixture(loop_scope="module")
    async def key(self) -> str:
        return f"key-{uuid4().hex}"

    async def _settled(self, shared: Stage, key: str) -> tuple[dict[str, Any], Any]:
        (entry,) = await recorded(shared, "settled", key=key)
        said = (entry["plane"], entry["resource"], entry["value"])
        assert said == ("objects", f"s3/bucket/{key}", 33)
        return entry, entry["details"]

    @pytest.mark.parametrize("how", ["barrier", "write"])
    async def test_what_never_takes_effect(self, shared: Stage, key: str, how: str) -> None:
        await call(connect(shared.origin, "33").put_object, Key=key, Body=b"before")
        held = shared.double.hold(operation="PutObject", key=key)
        zombie = asyncio.ensure_future(outcome(connect(shared.origin, "33").put_object, Key=key, Body=b"late"))
        await held.arrived.wait()
        (intent,) = await shared.rows("SELECT write_id, signed_at FROM fencing.intent WHERE key = $1", key)
        if how == "barrier":
            assert (await shared.barrier(f"s3/bucket/{key}", "34", "bob")).status_code == 200
        else:
            await call(connect(shared.origin, "34", "bob").put_object, Key=key, Body=b"new")
        held.release()
        assert await zombie == STALE
        entry, details = await self._settled(shared, key)
        assert (entry["fence_value"], entry["fence_holder"], entry["fence_caller"]) == (34, "bob", "writer")
        assert entry["fence_raised_at"] is not None
        assert (details["bucket"], details["write_id"]) == ("bucket", str(intent["write_id"]))
        assert (details["mutation"], details["seen"]) == ("conditional", False)
        assert details["announced_at"]

    async def test_what_had_taken_effect(self, shared: Stage, key: str) -> None:
        """Its answer was lost: the gateway cannot say so, and its successor finds it there."""
        lost = shared.double.hold("after", operation="PutObject", key=key)
        writing = asyncio.ensure_future(outcome(connect(shared.origin, "33").put_object, Key=key, Body=b"there"))
        await lost.arrived.wait()
        assert (await shared.barrier(f"s3/bucket/{key}", "34")).status_code == 200
        lost.release()
        await writing
        _, details = await self._settled(shared, key)
        assert details["seen"] is True

    async def test_ones_own_write_is_no_zombies(self, shared: Stage, key: str) -> None:
        """It waits for the one before, of its own holder, and settles that where it takes too long."""
        await call(connect(shared.origin, "33").put_object, Key=key, Body=b"before")
        held = shared.double.hold(operation="PutObject", key=key)
        first = asyncio.ensure_future(outcome(connect(shared.origin, "33").put_object, Key=key, Body=b"first"))
        await held.arrived.wait()
        assert await outcome(connect(shared.origin, "33").put_object, Key=key, Body=b"second") == (200, "")
        held.release()
        await first
        assert await recorded(shared, "settled", key=key) == []
