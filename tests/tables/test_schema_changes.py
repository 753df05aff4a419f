"""A table that is altered under a running gateway never yields a wrong write, even without notice to the gateway.

Each change comes between two equal writes, or while the second one waits for its lock. A gateway that cannot learn the
table's new state writes nothing. A gateway that can learn it does so by that very write.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import asyncpg
import httpx
import pytest

from gateway.db.database import Database
from gateway.observe.events import Event, StepReached
from gateway.tables.schema_cache import SchemaCache
from tests.tables.asking import Send, answered, change, row, rows
from tests.tiers import first
from tests.waiting import PATIENCE, number_waiting

ACCOUNT = "/accounts?id=eq.1"
COPY = "CREATE TABLE accounts (LIKE old INCLUDING DEFAULTS); INSERT INTO accounts SELECT * FROM old;"
NOTE = {"note": "late"}


@dataclass(frozen=True)
class Change:
    """A change of a table, the write before and after it, and how the one after it is to end."""

    name: str
    ddl: str
    answer: tuple[int, str | None] = (503, "naming-changed")
    method: str = "PATCH"
    target: str = ACCOUNT
    body: Any = field(default_factory=NOTE.copy)
    prefer: str | None = None
    resource: str | None = None
    """The resource that fences the write once the gateway has learned of the change."""
    locks: bool = True
    """Whether the change waits for writes of the table that are under way, and they for it."""


DROPPED_KEY = "ALTER TABLE accounts DROP CONSTRAINT accounts_pkey; ALTER TABLE accounts ADD PRIMARY KEY"
CHANGES = [
    Change(
        "another table with another key",
        f"DROP VIEW rich; ALTER TABLE accounts RENAME TO old; {COPY} ALTER TABLE accounts ADD PRIMARY KEY (owner)",
    ),
    Change(
        "dropped and created anew",
        """DROP VIEW rich; DROP TABLE accounts; CREATE TABLE accounts (id bigint, note text PRIMARY KEY);
        INSERT INTO accounts VALUES (1, 'first')""",
        body={"note": "first"},
        target="/accounts?id=eq.1&note=eq.first",
    ),
    Change(
        "another table by that name",
        "DROP VIEW rich; ALTER TABLE accounts RENAME TO old; ALTER TABLE users RENAME TO accounts",
        answer=(204, None),
        body={"id": 1},
        resource="public.accounts/1",
    ),
    Change(
        "a schema by that name",
        """ALTER SCHEMA public RENAME TO old; CREATE SCHEMA public;
        CREATE TABLE accounts (id bigint, note text PRIMARY KEY); INSERT INTO accounts VALUES (1, 'first')""",
        locks=False,
    ),
    Change("a type without names", "DROP VIEW rich; ALTER TABLE accounts ALTER id TYPE numeric"),
    Change("another primary key", f"{DROPPED_KEY} (owner)"),
    Change("another primary key over columns that were not null", f"{DROPPED_KEY} (balance)"),
    Change(
        "columns that exchange names",
        """DROP VIEW rich; ALTER TABLE accounts RENAME id TO swapped; ALTER TABLE accounts RENAME balance TO id;
        ALTER TABLE accounts RENAME swapped TO balance; UPDATE accounts SET id = 1 WHERE balance = 2""",
        answer=(422, "resource-underivable"),
    ),
    Change(
        "another column of the template's name",
        """ALTER TABLE shipments RENAME order_id TO old; ALTER TABLE shipments ADD order_id text;
        UPDATE shipments SET order_id = '8'""",
        target="/shipments?order_id=eq.8",
        body={"state": "late"},
    ),
    Change(
        "no column of the template's name",
        "ALTER TABLE shipments RENAME order_id TO old",
        answer=(422, "resource-underivable"),
        target="/shipments?order_id=eq.8",
        body={"state": "late"},
    ),
    Change(
        "a view instead of it",
        "DROP VIEW rich; ALTER TABLE accounts RENAME TO old; CREATE VIEW accounts AS SELECT * FROM old",
        answer=(422, "resource-underivable"),
    ),
    Change(
        "a trigger for each statement",
        """CREATE TABLE log (at timestamptz); CREATE FUNCTION noted() RETURNS trigger LANGUAGE plpgsql AS
        'BEGIN INSERT INTO log VALUES (now()); RETURN NULL; END';
        CREATE TRIGGER noted AFTER UPDATE ON accounts EXECUTE FUNCTION noted()""",
        answer=(204, None),
        resource="public.accounts/1",
    ),
    Change(
        "a trigger before each row",
        """CREATE FUNCTION shout() RETURNS trigger LANGUAGE plpgsql AS
        'BEGIN NEW.note := upper(NEW.note); RETURN NEW; END';
        CREATE TRIGGER shout BEFORE UPDATE ON accounts FOR EACH ROW EXECUTE FUNCTION shout()""",
        answer=(204, None),
        resource="public.accounts/1",
    ),
    Change(
        "a child",
        "CREATE TABLE kid () INHERITS (accounts); INSERT INTO kid (id, balance) VALUES (1, 1)",
        answer=(204, None),
        resource="public.accounts/1",
        locks=False,
    ),
    Change("row security", "ALTER TABLE accounts ENABLE ROW LEVEL SECURITY", answer=(204, None)),
    Change("a rule", "CREATE RULE nothing AS ON UPDATE TO accounts DO INSTEAD NOTHING", answer=(400, None)),
    Change(
        "no unique key any more",
        "ALTER TABLE users DROP CONSTRAINT users_email_key",
        answer=(400, "42P10"),
        method="POST",
        target="/users?on_conflict=email",
        body={"id": 1, "email": "ann@x", "name": "late"},
        prefer="resolution=merge-duplicates",
    ),
    Change(
        "another default",
        "ALTER TABLE accounts ALTER balance SET DEFAULT 7",
        answer=(200, None),
        method="POST",
        target="/accounts?columns=id,balance",
        body={"id": 1},
        prefer="missing=default,resolution=merge-duplicates",
        resource="public.accounts/1",
    ),
]
BY_NAME = {one.name: one for one in CHANGES}
PLAIN = Change("", "", answer=(204, None))


# Tokens: another write of a holder takes one statement, the first one of the next holder takes a transaction.
BOTH_PATHS = (5, 6)


@pytest.fixture
def blind(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gateway goes by the catalog as it read it first, whatever it is told."""

    async def nothing(_: SchemaCache) -> None:
        return

    monkeypatch.setattr(SchemaCache, "renew", nothing)
    monkeypatch.setattr(SchemaCache, "reload", nothing)


async def dump(database: Database) -> list[tuple[Any, ...]]:
    """All rows of all tables, those of the fences included."""
    found = []
    for (name,) in await rows(
        database,
        """SELECT c.oid::regclass::text FROM pg_class c WHERE c.relkind IN ('r', 'p')
        AND c.relnamespace NOT IN ('pg_catalog'::regnamespace, 'information_schema'::regnamespace) ORDER BY 1""",
    ):
        found += [(name, *each) for each in await rows(database, f"SELECT t::text FROM {name} AS t ORDER BY 1")]
    return found


async def introduce(way: Change, write: Send) -> None:
    """The gateway has come to know the table, and has written it by both paths."""
    early = {name: "early" if value == "late" else value for name, value in way.body.items()}
    for _ in range(3):
        response = await second(replace(way, body=early), write, 5)
        assert response.status_code in (200, 201, 204), response.text


async def second(way: Change, write: Send, token: int) -> httpx.Response:
    return await write(way.method, way.target, way.body, token=token, prefer=way.prefer)


@pytest.mark.parametrize("name", first(BY_NAME))
@pytest.mark.usefixtures("blind")
async def test_no_write_uses_an_outdated_table(write: Send, tables: Database, name: str) -> None:
    way = BY_NAME[name]
    await introduce(way, write)
    await change(tables, way.ddl)
    before = await dump(tables)
    for token in BOTH_PATHS:
        response = await second(way, write, token)
        assert response.status_code >= 400, response.text
        assert await dump(tables) == before


@pytest.mark.thorough
@pytest.mark.parametrize("name", [one.name for one in CHANGES if one.locks])
@pytest.mark.usefixtures("blind")
async def test_no_write_uses_a_table_that_changes_after_it_was_sent(
    write: Send, tables: Database, stranger: asyncpg.Connection, name: str
) -> None:
    way = BY_NAME[name]
    await introduce(way, write)
    async with stranger.transaction():
        await stranger.execute(way.ddl)
        waiting = [asyncio.create_task(second(way, write, token)) for token in BOTH_PATHS]
        await until_they_wait(tables, waiting)
    responses = await asyncio.gather(*waiting)
    assert all(response.status_code >= 400 for response in responses), [response.text for response in responses]
    assert "late" not in str(await dump(tables))
    assert [found["value"] for found in await tables.fetch("SELECT value FROM fencing.fence")] == [5]


@pytest.mark.parametrize("name", first(BY_NAME))
async def test_a_write_itself_finds_the_change(write: Send, tables: Database, name: str) -> None:
    way = BY_NAME[name]
    await introduce(way, write)
    await change(tables, way.ddl)
    before = await dump(tables)
    response = await second(way, write, 5)
    answered(response, *way.answer)
    if way.resource is not None:
        assert response.headers["fencing-resource"] == way.resource
    if way.answer[0] >= 400:
        assert await dump(tables) == before
    if way.answer[0] == 503:
        answered(await second(way, write, 6), *way.answer)


async def test_a_stale_write_fires_no_new_trigger(write: Send, tables: Database) -> None:
    """A statement that finds its fence overtaken writes no row, but would fire triggers all the same."""
    way = BY_NAME["a trigger for each statement"]
    await introduce(way, write)
    answered(await write("PATCH", ACCOUNT, {"note": "new"}, token=6), 204)
    await change(tables, way.ddl)
    answered(await write("PATCH", ACCOUNT, NOTE, token=5), 412, "token-stale")
    assert await rows(tables, "SELECT * FROM log") == []


async def test_an_irrelevant_change_keeps_the_fast_path(write: Send, tables: Database, events: list[Event]) -> None:
    """Housekeeping is no change of a table: its writes keep to the fast path."""
    way = PLAIN
    await introduce(way, write)
    for ddl in ("ANALYZE accounts", "GRANT SELECT ON accounts TO public", "CREATE INDEX ON accounts (owner)"):
        await tables.run(lambda transaction, ddl=ddl: transaction.execute(ddl))  # type: ignore[misc]
        events.clear()
        answered(await second(way, write, 5), 204)
        assert StepReached("tables.commit.after") not in events, ddl


async def test_concurrent_writes_all_find_the_change(write: Send, tables: Database) -> None:
    """Writes that share a batch: each of them ends as it would have by itself."""
    await introduce(PLAIN, write)
    await change(tables, "ALTER TABLE accounts ADD COLUMN colour text")
    responses = await asyncio.gather(*(write("PATCH", ACCOUNT, NOTE, token=5) for _ in range(40)))
    assert {response.status_code for response in responses} == {204}


@pytest.mark.usefixtures("blind")
async def test_a_read_of_a_table_replaced_by_a_view_writes_nothing(client: httpx.AsyncClient, tables: Database) -> None:
    """A view in the place of a table may call what writes: that is no read any more."""
    target = "/accounts?id=eq.1&select=id"
    for _ in range(2):
        assert (await client.get(target)).json() == [{"id": 1}]
    await change(tables, """
        CREATE TABLE log (at timestamptz); CREATE FUNCTION spy() RETURNS bigint LANGUAGE sql VOLATILE AS
            'INSERT INTO log VALUES (now()); SELECT 1::bigint'; DROP VIEW rich; ALTER TABLE accounts RENAME TO old;
            CREATE VIEW accounts AS SELECT spy() AS id, note FROM old""")  # fmt: skip
    before = await dump(tables)
    for each in (target, "/accounts?select=id"):
        response = await client.get(each)
        assert response.status_code >= 400, response.text
    assert await dump(tables) == before


async def test_reads_find_the_change(client: httpx.AsyncClient, tables: Database) -> None:
    target = "/accounts?id=eq.1"
    for _ in range(2):
        assert (await client.get(target)).json()[0]["owner"] == "ann"
    await change(tables, "DROP VIEW rich; ALTER TABLE accounts RENAME TO old; ALTER TABLE users RENAME TO accounts")
    assert (await client.get(target)).json() == [{"id": 1, "email": "ann@x", "name": "Ann"}]
    await change(tables, "ALTER TABLE accounts ALTER id TYPE text USING 'a' || id")
    assert (await client.get("/accounts?id=eq.a1&select=name")).json() == [{"name": "Ann"}]


async def test_names_of_types_do_not_depend_on_the_session(write: Send, tables: Database) -> None:
    """Sessions to come look elsewhere for names: for the table's own, and for those of types."""
    await change(tables, """CREATE TYPE mood AS ENUM ('glad', 'sad'); CREATE TABLE moods (mood mood PRIMARY KEY, v int);
            INSERT INTO moods VALUES ('glad', 1); CREATE SCHEMA odd; CREATE TYPE odd.mood AS ENUM ('odd');
            CREATE TABLE odd.moods (mood odd.mood PRIMARY KEY, v int);
            INSERT INTO odd.moods VALUES ('odd', 1)
    """)  # fmt: skip
    answered(await write("PATCH", "/moods?mood=eq.glad", {"v": 2}, token=5), 204)
    found = await row(tables, "SELECT current_database() AS name")
    await change(tables, f'ALTER DATABASE "{found["name"]}" SET search_path = odd, public')
    responses = await asyncio.gather(
        *(write("PATCH", "/moods?mood=eq.glad", {"v": 3}, token=token) for token in (5, 5, 5, 6))
    )
    assert {response.status_code for response in responses} <= {204, 412}
    assert await rows(tables, "SELECT mood::text, v FROM public.moods") == [("glad", 3)]
    assert await rows(tables, "SELECT v FROM odd.moods") == [(1,)]


async def until_they_wait(database: Database, waiting: Sequence["asyncio.Task[Any]"]) -> None:
    """Until each of them waits for a lock on a table, or is over."""
    async with asyncio.timeout(PATIENCE):
        while sum(not each.done() for each in waiting) > await number_waiting(database, "relation"):
            await asyncio.sleep(0.005)
