"""P2 on tables: once a newer holder has been acknowledged, no older holder's write takes effect. Real transactions."""

import asyncio
import random

import asyncpg
import httpx
import pytest

from gateway.db.database import Database
from gateway.errors import Unavailable
from gateway.fencing.decision import Presented
from gateway.observe.events import Event
from gateway.tables.execute.fast_path import FAST_AFTER
from gateway.tables.pipeline import Exposure
from tests.tables.asking import Send, answered, change, client_of, row, rows, send
from tests.waiting import waiting

TARGET = "/accounts?id=eq.1"


@pytest.mark.parametrize("fence", [None, 5], ids=["transaction", "fast path"])
async def test_a_newer_holder_waits_for_the_write_under_way(
    write: Send, tables: Database, stranger: asyncpg.Connection, fence: int | None
) -> None:
    """The old holder has passed its check and is in the middle of its write when the new one comes."""
    # In a transaction that is shared, it would not wait for so long.
    alone = "handling=strict, max-affected=1" if fence is None else None
    if fence is not None:
        answered(await write("PATCH", TARGET, {"note": "raised"}, token=fence), 204)
    async with asyncio.TaskGroup() as tasks, stranger.transaction():
        await stranger.execute("SELECT FROM accounts WHERE id = 1 FOR UPDATE")
        old = tasks.create_task(write("PATCH", TARGET, {"note": "old", "owner": "old"}, token=5, prefer=alone))
        await waiting(tables, 1)
        new = tasks.create_task(write("PATCH", TARGET, {"note": "new"}, token=6))
        await waiting(tables, 2)
        assert not new.done()
    answered(old.result(), 204)
    answered(new.result(), 204)
    assert tuple(await row(tables, "SELECT note, owner FROM accounts WHERE id = 1")) == ("new", "old")
    answered(await write("PATCH", TARGET, {"note": "zombie"}, token=5), 412, "token-stale")


async def test_the_successor_sees_what_its_predecessor_has_just_inserted(
    write: Send, tables: Database, stranger: asyncpg.Connection
) -> None:
    """With the raise and the write in one statement, the successor's snapshot would be older than that row."""
    answered(await write("PATCH", "/settings?name=eq.none", {"value": "raised"}, token=5), 204)
    async with asyncio.TaskGroup() as tasks:
        transaction = stranger.transaction()
        await transaction.start()
        await stranger.execute("INSERT INTO settings VALUES ('late', 'x')")
        old = tasks.create_task(write("POST", "/settings", {"name": "late", "value": "old"}, token=5))
        await waiting(tables, 1)
        new = tasks.create_task(write("PATCH", "/settings?name=neq.none", {"value": "new"}, token=6))
        await waiting(tables, 2)
        await transaction.rollback()
    answered(old.result(), 201)
    answered(new.result(), 204)
    assert new.result().headers["content-range"] == "0-1/*"
    assert await rows(tables, "SELECT name, value FROM settings ORDER BY name") == [("colour", "new"), ("late", "new")]


async def test_the_fast_path_finds_its_fence_raised_while_it_waited(
    write: Send, tables: Database, stranger: asyncpg.Connection
) -> None:
    """The statement saw its own token in its snapshot; the row it locks in the end is another version."""
    answered(await write("PATCH", TARGET, {"note": "raised"}, token=5), 204)
    async with asyncio.TaskGroup() as tasks, stranger.transaction():
        await stranger.execute("UPDATE fencing.fence SET value = 6 WHERE resource = 'public.accounts/1'")
        old = tasks.create_task(write("PATCH", TARGET, {"note": "old"}, token=5))
        await waiting(tables, 1)
    answered(old.result(), 412, "token-stale")
    assert (await row(tables, "SELECT note FROM accounts WHERE id = 1"))[0] == "raised"


@pytest.mark.parametrize("schema", ["public", "fencing"], ids=["transaction", "fast path"])
async def test_applied_tokens_never_go_backwards(
    write: Send, tables: Database, events: list[Event], schema: str
) -> None:
    """Every version of the row is on record, in the order that the row lock gave.

    A foreign trigger keeps writes off the fast path. A trigger whose function is in the gateway's schema does not.
    """
    await change(tables, f"""
        CREATE TABLE applied (place bigint GENERATED ALWAYS AS IDENTITY, token bigint);
        CREATE FUNCTION {schema}.note() RETURNS trigger LANGUAGE plpgsql AS
            'BEGIN INSERT INTO applied (token) VALUES (NEW.balance); RETURN NEW; END';
        CREATE TRIGGER notes AFTER UPDATE ON accounts FOR EACH ROW EXECUTE FUNCTION {schema}.note();
    """)  # fmt: skip
    tokens = [token for token in range(1, 41) for _ in range(4)]
    random.Random(7).shuffle(tokens)
    acknowledged: list[int] = []

    async def writer() -> None:
        while tokens:
            token = tokens.pop()
            highest = max(acknowledged, default=0)
            response = await write("PATCH", TARGET, {"balance": token}, token=token)
            assert response.status_code == (204 if response.is_success else 412), response.text
            if response.is_success:
                assert token >= highest
                acknowledged.append(token)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(8):
            tasks.create_task(writer())
    applied = [token for (token,) in await rows(tables, "SELECT token FROM applied ORDER BY place")]
    assert applied == sorted(applied)
    assert sorted(acknowledged) == applied
    assert (FAST_AFTER in events) is (schema == "fencing")
    refused = (await row(tables, "SELECT count(*) FROM fencing.rejection"))[0]
    assert refused == 160 - len(acknowledged)


async def test_all_writes_of_one_holder_to_one_row_take_effect(write: Send) -> None:
    """On the fast path, a row that another statement has changed meanwhile is still found and still checked."""
    answered(await write("PATCH", TARGET, {"note": "raised"}, token=5), 204)
    responses = await asyncio.gather(
        *(write("PATCH", TARGET, {"note": str(number)}, token=5, prefer="count=exact") for number in range(60))
    )
    assert {(one.status_code, one.headers["content-range"]) for one in responses} == {(204, "0-0/1")}


PENDING = """
INSERT INTO fencing.intent (resource, bucket, key, write_id, epoch, value, attempt)
VALUES ('public.accounts/1', 'reports', 'k', gen_random_uuid(), 0, 4, 1)
"""


@pytest.mark.parametrize("fence", [None, 5], ids=["raised", "held"])
async def test_no_write_is_acknowledged_while_an_older_object_write_is_pending(
    tables: Database, exposure: Exposure, events: list[Event], fence: int | None
) -> None:
    """A resource may span rows and objects: the older holder's object write must be settled first."""
    settled: list[tuple[str, Presented, str]] = []

    async def settle(resource: str, presented: Presented, caller: str) -> None:
        assert (await row(tables, "SELECT note FROM accounts WHERE id = 1"))[0] != "new"
        settled.append((resource, presented, caller))
        await change(tables, "DELETE FROM fencing.intent")

    async with client_of(tables, exposure, observe=events.append, settle=settle) as client:
        if fence is not None:
            answered(await send(client, "PATCH", TARGET, {"note": "raised"}, token=fence), 204)
        await change(tables, PENDING)
        answered(await send(client, "PATCH", TARGET, {"note": "new"}, token=5), 204)
    ((resource, presented, caller),) = settled
    assert (resource, str(presented.token), caller) == ("public.accounts/1", "5", "tester")
    assert (await row(tables, "SELECT note FROM accounts WHERE id = 1"))[0] == "new"


async def test_a_write_is_refused_if_older_mutations_cannot_be_settled(
    tables: Database, exposure: Exposure, events: list[Event], client: httpx.AsyncClient
) -> None:
    async def settle(resource: str, presented: Presented, caller: str) -> None:
        raise Unavailable("The object store cannot be reached.")

    await change(tables, PENDING)
    async with client_of(tables, exposure, observe=events.append, settle=settle) as other:
        for asked in (client, other):
            answered(await send(asked, "PATCH", TARGET, {"note": "new"}, token=5), 503, "unavailable")
    assert (await row(tables, "SELECT note FROM accounts WHERE id = 1"))[0] == "first"
