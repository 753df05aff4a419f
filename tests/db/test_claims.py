"""The SQL functions read names and tokens, and decide about claims, as Python does, whatever runs beside them."""

import asyncio
import json
import random
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Self
from uuid import UUID, uuid4

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gateway.db import fences, intents
from gateway.db.database import Database, Transaction
from gateway.db.ownership import OWNERSHIP
from gateway.errors import ResourceMalformed, TokenMalformed
from gateway.fencing.decision import Decision, Equal, Fence, Presented, Tokens, decide
from gateway.fencing.resource import canonical, escape
from gateway.fencing.token import Token
from tests.waiting import PATIENCE, waiting

WRITES = (UUID(int=1), UUID(int=2))
HOLDERS = (None, "ann", "bob")
NOBODY = Tokens()
NOW = datetime.now(UTC)
NAMES = ("r/1", "r/2", "r/3", "s/1")
SETTINGS = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
several = st.dictionaries(st.sampled_from(NAMES), st.builds(Token, st.integers(0, 1), st.integers(0, 3)), min_size=1)


async def claim(
    database: Database,
    pairs: Mapping[str, Token],
    shown: Tokens = NOBODY,
    equal: Equal = Equal.ACCEPT,
    caller: str = "tester",
) -> dict[str, fences.ClaimResult]:
    """Commit a claim, and return its results by resource, whatever they are."""
    tokens = replace(shown, pairs=pairs)
    claims = await database.run(lambda transaction: fences.claim(transaction, list(pairs), tokens, equal, caller))
    assert [one.resource for one in claims] == sorted(one.resource for one in claims)
    return {one.resource: one for one in claims}


async def state(database: Database) -> dict[str, Fence]:
    """All fences, by resource, but for the time."""
    return {one.resource: replace(one, raised_at=NOW) for one in await fences.list_fences(database, "", "", 1000)}


@SETTINGS
@given(
    history=st.lists(st.tuples(several, st.sampled_from(HOLDERS), st.sampled_from(WRITES)), max_size=8),
    equal=st.sampled_from(Equal),
)
async def test_sql_and_python_decide_alike(
    database: Database, history: list[tuple[dict[str, Token], str | None, UUID]], equal: Equal
) -> None:
    """In a claim of several resources, each resource gets the decision that it would get alone."""
    await database.run(lambda transaction: transaction.execute("DELETE FROM fencing.fence"))
    known: dict[str, Fence] = {}
    for number, (pairs, holder, write_id) in enumerate(history):
        claims = await claim(database, pairs, Tokens(holder=holder, write_id=write_id), equal, str(number))
        for resource, token in pairs.items():
            expected = decide(known.get(resource), Presented(token, holder, write_id), equal)
            if expected is Decision.RAISED:
                known[resource] = Fence(resource, token, holder, str(number), NOW, write_id)
            elif expected is Decision.HELD and equal is Equal.STRICT:
                known[resource] = replace(known[resource], write_id=write_id)
            said = claims.get(resource)
            assert (said is None) is expected.passes
            if said is not None:
                assert (said.decision, replace(said.fence, raised_at=NOW)) == (expected, known[resource])
        assert await state(database) == known


@SETTINGS
@given(history=st.lists(st.tuples(several, st.sampled_from(HOLDERS)), max_size=8))
async def test_claims_for_several_senders_raise_what_python_would_and_nothing_else(
    database: Database, history: list[tuple[dict[str, Token], str | None]]
) -> None:
    await database.run(lambda transaction: transaction.execute("DELETE FROM fencing.fence"))
    recorded = "SELECT count(*) AS entries FROM fencing.intake WHERE kind = 'raised'"
    known: dict[str, Fence] = {}
    for number, (pairs, first) in enumerate(history):
        before = await database.fetchrow(recorded)
        holders = {resource: first and f"{first} {place}" for place, resource in enumerate(pairs)}
        claims = [
            {
                "resource": name,
                "epoch": token.epoch,
                "value": token.value,
                "holder": holders[name],
                "caller": str(number),
            }
            for name, token in pairs.items()
        ]
        rising = [name for name in pairs if decide(known.get(name), Presented(pairs[name])) is Decision.RAISED]
        overtaken = len(set(rising) & known.keys())
        said = await database.fetchrow_write("SELECT fencing.claim_each_v1($1) AS risen", json.dumps(claims))
        after = await database.fetchrow(recorded)
        assert said is not None
        assert before is not None
        assert after is not None
        assert (said["risen"], after["entries"] - before["entries"]) == (len(rising), overtaken)
        known |= {name: Fence(name, pairs[name], holders[name], str(number), NOW) for name in rising}
        found = await state(database)
        assert all(one.write_id is not None for one in found.values()), "each was raised by a write"
        assert {resource: replace(one, write_id=None) for resource, one in found.items()} == known
    assert (await database.fetchrow("SELECT fencing.claim_each_v1(NULL) AS risen"))["risen"] is None  # type: ignore[index]


async def test_only_what_has_something_older_pending_needs_attention(database: Database) -> None:
    pending = """
        INSERT INTO fencing.intent (resource, bucket, key, write_id, epoch, value, attempt)
        SELECT resource, 'b', 'k', gen_random_uuid(), 0, 4, 1 FROM unnest(ARRAY['r/1', 'r/2', 'other']) u (resource)
    """
    await database.run(lambda transaction: transaction.execute(pending))
    for _ in range(2):  # raised, then held
        claims = await claim(database, {"r/1": Token(0, 5), "r/2": Token(0, 4), "r/3": Token(0, 5)})
        assert [(one.resource, one.decision.passes, one.pending) for one in claims.values()] == [("r/1", True, True)]


async def test_a_barrier_does_not_use_up_the_token_of_a_strict_resource(database: Database) -> None:
    token = Token(0, 7)
    assert (await intents.raise_fence(database, "r/1", Presented(token), "tester")).decision is Decision.RAISED
    first, second = (Tokens(write_id=uuid4()) for _ in range(2))
    assert not await claim(database, {"r/1": token}, first, Equal.STRICT)
    assert not await claim(database, {"r/1": token, "r/2": token}, first, Equal.STRICT)
    claims = await claim(database, {"r/1": token, "r/2": token, "r/3": token}, second, Equal.STRICT)
    assert [one.decision for one in claims.values()] == [Decision.USED, Decision.USED]


class Holder:
    """A claim in a transaction that stays open until it is let go."""

    def __init__(self, database: Database, pairs: Mapping[str, Token]) -> None:
        self._database, self._pairs = database, pairs
        self._claimed, self._over = asyncio.Event(), asyncio.Event()

    async def __aenter__(self) -> Self:
        async def work(transaction: Transaction) -> None:
            await fences.claim(transaction, list(self._pairs), Tokens(pairs=self._pairs), Equal.ACCEPT, "holder")
            self._claimed.set()
            await self._over.wait()

        self._task = asyncio.create_task(self._database.run(work))
        await self._claimed.wait()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._over.set()
        await self._task


@pytest.mark.parametrize("before", [{}, {"r/2": 1}, {"r/1": 1, "r/2": 1, "r/3": 1}], ids=["new", "held", "all held"])
async def test_a_raise_waits_for_the_writes_of_the_holder_before(database: Database, before: dict[str, int]) -> None:
    """P2 for tables: the old holder's transaction is over before the new holder's claim returns."""
    if before:
        await claim(database, {name: Token(0, value) for name, value in before.items()})
    async with Holder(database, {"r/2": Token(0, 1)}):
        new = asyncio.create_task(claim(database, {name: Token(0, 2) for name in ("r/1", "r/2", "r/3")}))
        await waiting(database, 1)
        assert not new.done()
    assert not await new
    assert {one.token for one in (await state(database)).values()} == {Token(0, 2)}


@pytest.mark.parametrize("others", [{}, {"r/1": 2}, {"r/1": 2, "r/3": 2}], ids=["rests", "rises", "both sides"])
async def test_what_has_been_raised_meanwhile_is_judged_by_its_new_fence(
    database: Database, others: dict[str, int]
) -> None:
    """The look before the lock saw an older fence: equal or lower, and higher by the time the lock is there."""
    await claim(database, {"r/2": Token(0, 2)})
    async with Holder(database, {"r/2": Token(0, 3)}):
        late = asyncio.create_task(claim(database, {"r/2": Token(0, 2)} | {n: Token(0, v) for n, v in others.items()}))
        await waiting(database, 1)
    assert {name: one.decision for name, one in (await late).items()} == {"r/2": Decision.STALE}
    assert (await state(database))["r/2"].token == Token(0, 3)


async def test_a_name_that_two_claim_for_the_first_time(database: Database) -> None:
    """The second finds, once the first is over, a row that was not there when it looked."""
    for first, second, decision in ((5, 6, None), (5, 5, None), (6, 5, Decision.STALE)):
        await database.run(lambda transaction: transaction.execute("DELETE FROM fencing.fence"))
        async with Holder(database, {"r/2": Token(0, first)}):
            late = asyncio.create_task(claim(database, {name: Token(0, second) for name in ("r/1", "r/2", "r/3")}))
            await waiting(database, 1)
        assert {one.decision for one in (await late).values()} == ({decision} if decision else set())
        assert (await state(database))["r/2"].token == Token(0, max(first, second))


@pytest.mark.parametrize("names", [("r/1",), ("r/1", "r/2", "r/3")])
async def test_writers_of_one_holder_do_not_wait_for_each_other(database: Database, names: tuple[str, ...]) -> None:
    pairs = {name: Token(0, 1) for name in names}
    await claim(database, pairs)
    async with asyncio.timeout(PATIENCE), Holder(database, pairs), Holder(database, pairs):
        pass


async def test_a_zombie_keeps_nobody_waiting(database: Database) -> None:
    """A claim locks a stale resource FOR SHARE at most, even beside resources whose fences the zombie raises."""
    await claim(database, {"r/2": Token(0, 5)})
    async with (
        asyncio.timeout(PATIENCE),
        Holder(database, {"r/1": Token(0, 4), "r/2": Token(0, 4), "r/3": Token(0, 4)}),
    ):
        assert not await claim(database, {"r/2": Token(0, 5)})


@pytest.mark.parametrize("seed", range(3))
async def test_many_writers_neither_deadlock_nor_go_backwards(database: Database, seed: int) -> None:
    """Overlapping sets, growing and repeated tokens, each resource with its own: shares, raises, and first claims."""
    dice = random.Random(seed)
    names = [f"r/{number}" for number in range(12)]
    accepted: list[dict[str, Token]] = []
    tries = 0

    async def write(number: int) -> None:
        pairs = {name: Token(0, number // 4 + dice.randrange(3)) for name in dice.sample(names, dice.randrange(1, 9))}

        async def work(transaction: Transaction) -> None:
            nonlocal tries
            tries += 1
            if not await fences.claim(transaction, list(pairs), Tokens(pairs=pairs), Equal.ACCEPT, "tester"):
                # Under the locks: once they are free, the news of two commits may arrive in either order.
                accepted.append(pairs)

        await database.run(work)

    async with asyncio.TaskGroup() as tasks:
        for number in range(120):
            tasks.create_task(write(number))
    for name in names:
        tokens = [pairs[name] for pairs in accepted if name in pairs]
        assert tokens == sorted(tokens)
    # The database would have undone one of a deadlock, and it would have been tried again.
    assert tries == 120


@SETTINGS
@given(value=st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40))
async def test_sql_and_python_escape_alike(database: Database, value: str) -> None:
    row = await database.fetchrow("SELECT fencing.escape_v1($1) AS escaped", value)
    assert row is not None
    assert (row["escaped"] or "") == escape(value)


# Names and tokens, which SQL reads exactly as Python does -----------------------------------------------------------

PIECES = st.sampled_from(
    ["a", "Z", "0", "/", "%", "%2F", "%2f", "%41", "%7E", "%C3%A4", "=", ",", "ä", " ", "~", "$", "\n"]
)
names = st.lists(PIECES, max_size=8).map("".join) | st.integers(0, 255).map(lambda byte: f"%{byte:02X}")
tokens = st.lists(
    st.sampled_from(["0", "1", "9", ".", "-", " ", "٣", "\n", "2147483647", "2147483648"]), max_size=5
).map("".join)


@SETTINGS
@given(name=names)
@example(name="a" * 512)
@example(name="a" * 513)
async def test_sql_and_python_know_the_same_names(database: Database, name: str) -> None:
    row = await database.fetchrow("SELECT fencing.canonical_v1($1) AS canonical", name)
    assert row is not None
    try:
        expected = canonical(name) == name
    except ResourceMalformed:
        expected = False
    assert row["canonical"] is expected


async def test_no_resource_has_the_name_of_the_fence_of_ownership(database: Database) -> None:
    """A raise of that fence would keep all gateways out (decision 103)."""
    with pytest.raises(ResourceMalformed):
        canonical(OWNERSHIP)
    row = await database.fetchrow("SELECT fencing.canonical_v1($1) AS canonical", OWNERSHIP)
    assert row is not None
    assert row["canonical"] is False


@SETTINGS
@given(text=tokens)
@example(text="9223372036854775807")
@example(text="9223372036854775808")
@example(text="2147483647.9223372036854775807")
@example(text="9999999999.1")
async def test_sql_and_python_read_the_same_tokens(database: Database, text: str) -> None:
    row = await database.fetchrow("SELECT epoch, value FROM fencing.read_token_v1($1)", text)
    assert row is not None
    try:
        token = Token.parse(text)
    except TokenMalformed:
        assert (row["epoch"], row["value"]) == (None, None)
    else:
        assert (row["epoch"], row["value"]) == (token.epoch, token.value)
