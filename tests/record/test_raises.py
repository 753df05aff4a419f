"""Every takeover is on record once, in the transaction that made it, with both sides as they were."""

import asyncio
from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.db import fences, intents
from gateway.db.database import Database, Transaction
from gateway.errors import SqlError
from gateway.fencing.decision import Decision, Equal, Fence, Presented, Tokens, decide
from gateway.fencing.intent import Announcement
from gateway.fencing.token import Token
from tests.db.test_claims import Holder
from tests.record.sealed import entries, flaws, lines
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
    await intents.begin(database, intents.Begin(announced, None))
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


@pytest.mark.parametrize("way", WAYS)
async def test_a_takeover_is_on_record_with_both_sides(database: Database, way: str) -> None:
    raise_fence, caller = WAYS[way], "role:postgres" if way == "hold" else "bob's"
    await by_claim(database, "r/1", Token(0, 33), "ann", "ann's")
    before = await fences.read(database, "r/1")
    assert before is not None
    await raise_fence(database, "r/1", Token(2, 1), "bob", caller)
    after = await fences.read(database, "r/1")
    assert after is not None
    (entry,) = await entries(database, *TAKEOVERS)
    assert (entry["kind"], entry["resource"]) == ("barrier" if way == "barrier" else "raised", "r/1")
    assert new_side(entry) == (2, 1, "bob", caller)
    assert old_side(entry) == (0, 33, "ann", "ann's")
    assert (entry["fence_raised_at"], entry["at"]) == (before.raised_at, after.raised_at)
    assert before.raised_at < after.raised_at


@pytest.mark.parametrize("way", WAYS)
async def test_who_takes_over_from_nobody_is_not_on_record_but_for_its_barrier(database: Database, way: str) -> None:
    await WAYS[way](database, "r/1", Token(0, 33), "ann", "ann's")
    found = await entries(database, *TAKEOVERS)
    if way == "barrier":
        (entry,) = found
        assert (entry["kind"], new_side(entry)) == ("barrier", (0, 33, "ann", "ann's"))
        assert old_side(entry) == (None,) * 4
        assert entry["fence_raised_at"] is None
    else:
        assert found == []


@pytest.mark.parametrize("way", WAYS)
async def test_who_does_not_take_over_is_not_on_record(database: Database, way: str) -> None:
    await by_claim(database, "r/1", Token(0, 33), "ann", "ann's")
    for token in (Token(0, 33), Token(0, 32)):
        await WAYS[way](database, "r/1", token, "ann", "ann's")
    assert await entries(database, *TAKEOVERS) == []


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


@pytest.mark.parametrize("strict", Equal)
async def test_of_many_resources_each_has_its_own_takeover(database: Database, strict: Equal) -> None:
    """New ones, held ones, lower ones and stale ones in one claim."""
    await by_claims(database, {"r/1": Token(0, 1), "r/3": Token(0, 3), "s/1": Token(0, 5)}, "ann", "ann's")
    await by_claim(database, "r/1", Token(0, 2), "bob", "bob's")
    await by_claims(database, dict.fromkeys(NAMES, Token(0, 4)), "cid", "cid's", strict)
    assert [(entry["resource"], old_side(entry), new_side(entry)) for entry in await entries(database, *TAKEOVERS)] == [
        ("r/1", (0, 1, "ann", "ann's"), (0, 2, "bob", "bob's")),
        ("r/1", (0, 2, "bob", "bob's"), (0, 4, "cid", "cid's")),
        ("r/3", (0, 3, "ann", "ann's"), (0, 4, "cid", "cid's")),
    ]


@pytest.mark.parametrize("first", ["one", "many", "barrier"])
@pytest.mark.parametrize("second", ["one", "many", "barrier"])
async def test_who_waits_behind_another_overtakes_that_one(database: Database, first: str, second: str) -> None:
    """A claim reports the fence that it overtakes, not the one that it saw before it waited."""

    async def take(way: str, token: Token, holder: str) -> None:
        if way == "barrier":
            await by_barrier(database, "r/1", token, holder, "x")
        else:
            await by_claims(database, dict.fromkeys(NAMES if way == "many" else NAMES[:1], token), holder, "x")

    await by_claims(database, dict.fromkeys(NAMES, Token(0, 1)), "ann", "x")
    async with Holder(database, dict.fromkeys(NAMES, Token(0, 1))):
        bob = asyncio.create_task(take(first, Token(0, 2), "bob"))
        await waiting(database, 1)
        cid = asyncio.create_task(take(second, Token(0, 3), "cid"))
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
