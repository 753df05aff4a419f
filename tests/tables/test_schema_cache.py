"""The schema cache reads the catalog when it is needed, after a change, and after an outage of the database.

The watcher renews it when the database announces a change, and finds changes that it was not told of.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import asyncpg
import httpx
import pytest

from gateway.db import migrations
from gateway.db.database import Database
from gateway.db.notifications import listening
from gateway.db.servers import Servers
from gateway.demo.embedded import postgres
from gateway.fencing.decision import Cascades
from gateway.observe.events import CatalogWarning, Event, ServiceUnreachable
from gateway.tables import schema_cache
from gateway.tables.naming import Rule
from gateway.tables.pipeline import Exposure, TablePlane
from tests import ROOT
from tests.tables.asking import Send, answered, change, client_of, row, rows, send
from tests.tiers import first
from tests.waiting import PATIENCE


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reload as often as asked."""
    monkeypatch.setattr(schema_cache, "_PAUSE_BETWEEN_RELOADS", 0.0)


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("token", [5, 6], ids=["fast path", "transaction"])
async def test_a_write_follows_a_changed_table(write: Send, tables: Database, token: int) -> None:
    answered(await write("PATCH", "/accounts?id=eq.1", {"note": "x"}, token=5), 204)
    await change(tables, "ALTER TABLE accounts ADD COLUMN colour text")
    answered(await write("PATCH", "/accounts?id=eq.1", {"colour": "red"}, token=token), 204)
    await change(tables, "ALTER TABLE accounts RENAME COLUMN note TO remark")
    answered(await write("PATCH", "/accounts?id=eq.1", {"note": "x"}, token=token), 400, "PGRST204")
    answered(await write("PATCH", "/accounts?id=eq.1", {"remark": "y"}, token=token), 204)
    await change(tables, "CREATE TABLE fresh (id int PRIMARY KEY)")
    answered(await write("POST", "/fresh", {"id": 1}, token=token), 201)
    await change(tables, "DROP TABLE fresh")
    answered(await write("POST", "/fresh", {"id": 2}, token=token), 404, "PGRST205")


async def test_a_burst_of_bad_requests_reads_the_catalog_once(
    write: Send, tables: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema_cache, "_PAUSE_BETWEEN_RELOADS", 3600.0)
    answered(await write("POST", "/nowhere", {"id": 1}, token=5), 404, "PGRST205")
    await change(tables, "CREATE TABLE nowhere (id int PRIMARY KEY)")
    answered(await write("POST", "/nowhere", {"id": 1}, token=5), 404, "PGRST205")
    monkeypatch.setattr(schema_cache, "_PAUSE_BETWEEN_RELOADS", 0.0)
    answered(await write("POST", "/nowhere", {"id": 1}, token=5), 201)


async def test_tables_may_have_many_columns(write: Send, tables: Database) -> None:
    """PostgreSQL's functions take a hundred arguments; rows have more columns."""
    columns = [f"c{number}" for number in range(200)]
    await change(tables, f"CREATE TABLE wide (id int PRIMARY KEY, {', '.join(f'{name} int' for name in columns)})")
    values = dict.fromkeys(columns, 1)
    response = await write(
        "POST", f"/wide?select={','.join(columns)}", {"id": 1, **values}, token=5, prefer="return=representation"
    )
    assert (response.status_code, response.json()) == (201, [values])


async def test_partitioned_tables_are_served(write: Send, tables: Database) -> None:
    await change(tables, """
        CREATE TABLE parted (id int, region int, v int, PRIMARY KEY (id, region)) PARTITION BY LIST (region);
        CREATE TABLE parted_1 PARTITION OF parted FOR VALUES IN (1)""")  # fmt: skip
    prefer = "resolution=merge-duplicates,return=representation"
    for token in (5, 5):
        response = await write("POST", "/parted", {"id": 1, "region": 1, "v": token}, token=token, prefer=prefer)
        assert (response.status_code, response.json()) == (201, [{"id": 1, "region": 1, "v": 5}])
        assert response.headers["fencing-resource"] == "public.parted/1/1"


@pytest.mark.thorough
async def test_the_database_may_be_down_at_the_start_and_later() -> None:
    """503 while it is away, nothing lost, and no restart needed."""
    with TemporaryDirectory(prefix="pg") as directory:
        data = Path(directory) / "data"
        with postgres(data) as server:
            dsn = server.dsn()
            await asyncio.to_thread(migrations.upgrade, dsn)
        database = Database(dsn, connect_timeout=PATIENCE)
        async with client_of(database, Exposure()) as client:

            async def refused() -> None:
                for response in (
                    await client.get("/accounts"),
                    await send(client, "PATCH", "/accounts?id=eq.1", {"v": 3}, token=5),
                ):
                    answered(response, 503, "unavailable")
                    assert response.headers["retry-after"] == "1"

            await refused()
            with postgres(data):
                await change(
                    database, "CREATE TABLE accounts (id int PRIMARY KEY, v int); INSERT INTO accounts VALUES (1, 1)"
                )
                answered(await send(client, "PATCH", "/accounts?id=eq.1", {"v": 2}, token=5), 204)
            await refused()
            with postgres(data):
                assert await rows(database, "SELECT v FROM accounts") == [(2,)]
                answered(await send(client, "PATCH", "/accounts?id=eq.1", {"v": 4}, token=4), 412, "token-stale")
                answered(await send(client, "PATCH", "/accounts?id=eq.1", {"v": 5}, token=5), 204)
                assert (await row(database, "SELECT v FROM accounts"))[0] == 5
                await database.close()


LISTENS = (
    "SELECT pid FROM pg_stat_activity WHERE datname = current_database() "
    "AND application_name = 'fencing-gateway listening' AND query ~ '^LISTEN'"
)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_cache, "_FIRST_PAUSE", 0.01)
    monkeypatch.setattr(schema_cache, "_LONGEST_PAUSE", 0.05)


@pytest.fixture
def exposure() -> Exposure:
    """Cascades go unfenced, so they are warned of."""
    return Exposure(default_rule=Rule(cascades=Cascades.ALLOW))


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.01)


async def listener(tables: Database, *, other_than: int = 0) -> int:
    """The session that listens, once there is one."""
    async with asyncio.timeout(PATIENCE):
        while True:
            for (pid,) in await rows(tables, LISTENS):
                if pid != other_than:
                    return int(pid)
            await asyncio.sleep(0.01)


def knows(plane: TablePlane, name: str) -> bool:
    """Whether the gateway has read of this table already."""
    snapshot = plane._schema_cache._snapshot
    return snapshot is not None and ("public", name) in snapshot.tables


def documented_trigger() -> str:
    """The event trigger of the documentation, which announces changes by itself."""
    blocks = (ROOT / "docs" / "operations.md").read_text().split("```sql\n")[1:]
    (snippet,) = (block.partition("```")[0] for block in blocks if "EVENT TRIGGER" in block)
    return snippet


@pytest.mark.parametrize(
    "announcement",
    [
        "SELECT",
        *first(
            ["NOTIFY pgrst", "NOTIFY pgrst, 'reload schema'", "NOTIFY fencing_catalog", "NOTIFY fencing_catalog, 'x'"]
        ),
    ],
)
async def test_an_announced_change_reloads_the_schema_cache(
    plane: TablePlane, stranger: asyncpg.Connection, dsn: str, announcement: str, tables: Database
) -> None:
    if announcement == "SELECT":
        await stranger.execute(documented_trigger())
    async with plane.running(partial(listening, Servers(dsn, PATIENCE))):
        await until(lambda: knows(plane, "accounts"))
        await listener(tables)
        await stranger.execute("CREATE TABLE fresh (id int PRIMARY KEY)")
        await stranger.execute("NOTIFY pgrst, 'reload config'")
        await stranger.execute(announcement)
        await until(lambda: knows(plane, "fresh"))
        await stranger.execute(f"DROP TABLE fresh; {announcement}")
        await until(lambda: not knows(plane, "fresh"))


async def test_a_change_announced_while_no_session_listened_is_found(
    plane: TablePlane, stranger: asyncpg.Connection, dsn: str, tables: Database, events: list[Event]
) -> None:
    async with plane.running(partial(listening, Servers(dsn, PATIENCE))):
        pid = await listener(tables)
        await until(lambda: knows(plane, "accounts"))
        # One after the other: in one transaction, the next session could be there before the table is.
        await stranger.execute("CREATE TABLE fresh (id int PRIMARY KEY)")
        await stranger.execute(f"SELECT pg_terminate_backend({pid})")
        await until(lambda: knows(plane, "fresh"))
        assert len([event for event in events if isinstance(event, ServiceUnreachable)]) == 1
        await listener(tables, other_than=pid)
        await stranger.execute("CREATE TABLE fresher (id int PRIMARY KEY); NOTIFY fencing_catalog")
        await until(lambda: knows(plane, "fresher"))


async def test_the_watcher_waits_for_an_unreachable_database(
    plane: TablePlane, client: httpx.AsyncClient, dsn: str, tables: Database, events: list[Event]
) -> None:
    addresses = ["postgresql://postgres@127.0.0.1:1/nowhere"] * 3 + [dsn]
    async with plane.running(lambda: listening(Servers(addresses.pop(0), PATIENCE))):
        answered(await client.get("/accounts?id=eq.1"), 200)
        await listener(tables)
    unreachable = [event for event in events if isinstance(event, ServiceUnreachable)]
    assert {event.service for event in unreachable} == {"postgres"}


@pytest.mark.parametrize("listens", [True, False])
async def test_side_effects_are_announced_at_the_start(
    plane: TablePlane,
    stranger: asyncpg.Connection,
    dsn: str,
    events: list[Event],
    listens: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    await stranger.execute("CREATE TABLE items (id int PRIMARY KEY, a bigint REFERENCES accounts ON DELETE CASCADE)")

    def warned() -> list[str]:
        return [event.table for event in events if isinstance(event, CatalogWarning)]

    async with plane.running(partial(listening, Servers(dsn, PATIENCE)) if listens else None):
        # The view shows accounts.
        await until(lambda: warned() == ["public.accounts", "public.rich"])
        if listens:
            await stranger.execute("ALTER TABLE items ADD b bigint REFERENCES users ON DELETE SET NULL; NOTIFY pgrst")
            await until(lambda: warned() == ["public.accounts", "public.rich", "public.users"])
