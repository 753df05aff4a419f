"""The watcher reloads the schema cache when the database announces a change, and finds changes it was not told of."""

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial

import asyncpg
import httpx
import pytest

from gateway.db.database import Database
from gateway.db.notifications import listening
from gateway.db.servers import Servers
from gateway.fencing.decision import Cascades
from gateway.observe.events import CatalogWarning, Event, ServiceUnreachable
from gateway.tables import schema_cache as module
from gateway.tables.naming.plan import Rule
from gateway.tables.pipeline import Exposure, TablePlane
from tests import ROOT
from tests.tables.asking import answered, rows
from tests.waiting import PATIENCE

LISTENS = (
    "SELECT pid FROM pg_stat_activity WHERE datname = current_database() "
    "AND application_name = 'fencing-gateway listening' AND query ~ '^LISTEN'"
)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FIRST_PAUSE", 0.01)
    monkeypatch.setattr(module, "_LONGEST_PAUSE", 0.05)


@pytest.fixture
def exposure() -> Exposure:
    """Cascades go unfenced, so they are warned of."""
    return Exposure(default_rule=Rule(cascades=Cascades.ALLOW))


@pytest.fixture
async def operator(tables: Database, dsn: str) -> AsyncIterator["asyncpg.Connection[asyncpg.Record]"]:
    """A session beside the gateway."""
    connection = await asyncpg.connect(dsn)
    yield connection
    await connection.close()


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


@pytest.mark.parametrize(
    "announcement",
    ["NOTIFY pgrst", "NOTIFY pgrst, 'reload schema'", "NOTIFY fencing_catalog", "NOTIFY fencing_catalog, 'x'"],
)
async def test_an_announced_change_reloads_the_schema_cache(
    plane: TablePlane, operator: "asyncpg.Connection[asyncpg.Record]", dsn: str, announcement: str, tables: Database
) -> None:
    async with plane.running(partial(listening, Servers(dsn, PATIENCE))):
        await until(lambda: knows(plane, "accounts"))
        await listener(tables)
        await operator.execute("CREATE TABLE fresh (id int PRIMARY KEY)")
        await operator.execute("NOTIFY pgrst, 'reload config'")
        await operator.execute(announcement)
        await until(lambda: knows(plane, "fresh"))
        await operator.execute(f"DROP TABLE fresh; {announcement}")
        await until(lambda: not knows(plane, "fresh"))


async def test_the_event_trigger_of_the_documentation_announces_changes(
    plane: TablePlane, operator: "asyncpg.Connection[asyncpg.Record]", dsn: str, tables: Database
) -> None:
    blocks = (ROOT / "docs" / "operations.md").read_text().split("```sql\n")[1:]
    (snippet,) = (block.partition("```")[0] for block in blocks if "EVENT TRIGGER" in block)
    await operator.execute(snippet)
    async with plane.running(partial(listening, Servers(dsn, PATIENCE))):
        await until(lambda: knows(plane, "accounts"))
        await listener(tables)
        await operator.execute("CREATE TABLE fresh (id int PRIMARY KEY)")
        await until(lambda: knows(plane, "fresh"))
        await operator.execute("DROP TABLE fresh")
        await until(lambda: not knows(plane, "fresh"))


async def test_a_change_announced_while_no_session_listened_is_found(
    plane: TablePlane, operator: "asyncpg.Connection[asyncpg.Record]", dsn: str, tables: Database, events: list[Event]
) -> None:
    async with plane.running(partial(listening, Servers(dsn, PATIENCE))):
        pid = await listener(tables)
        await until(lambda: knows(plane, "accounts"))
        # One after the other: in one transaction, the next session could be there before the table is.
        await operator.execute("CREATE TABLE fresh (id int PRIMARY KEY)")
        await operator.execute(f"SELECT pg_terminate_backend({pid})")
        await until(lambda: knows(plane, "fresh"))
        assert len([event for event in events if isinstance(event, ServiceUnreachable)]) == 1
        await listener(tables, other_than=pid)
        await operator.execute("CREATE TABLE fresher (id int PRIMARY KEY); NOTIFY fencing_catalog")
        await until(lambda: knows(plane, "fresher"))


async def test_the_watcher_waits_for_an_unreachable_database(
    plane: TablePlane, client: httpx.AsyncClient, dsn: str, tables: Database, events: list[Event]
) -> None:
    addresses = ["postgresql://postgres@127.0.0.1:1/nowhere"] * 3 + [dsn]
    async with plane.running(lambda: listening(Servers(addresses.pop(0), PATIENCE))):
        answered(await client.get("/accounts?id=eq.1"), 200)
        await listener(tables)
    unreachable = [event for event in events if isinstance(event, ServiceUnreachable)]
    assert [event.service for event in unreachable] == ["postgres"]


@pytest.mark.parametrize("listens", [True, False])
async def test_side_effects_are_announced_at_the_start(
    plane: TablePlane,
    operator: "asyncpg.Connection[asyncpg.Record]",
    dsn: str,
    events: list[Event],
    listens: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    await operator.execute("CREATE TABLE items (id int PRIMARY KEY, a bigint REFERENCES accounts ON DELETE CASCADE)")

    def warned() -> list[str]:
        return [event.table for event in events if isinstance(event, CatalogWarning)]

    async with plane.running(partial(listening, Servers(dsn, PATIENCE)) if listens else None):
        # The view shows accounts.
        await until(lambda: warned() == ["public.accounts", "public.rich"])
        if listens:
            await operator.execute("ALTER TABLE items ADD b bigint REFERENCES users ON DELETE SET NULL; NOTIFY pgrst")
            await until(lambda: warned() == ["public.accounts", "public.rich", "public.users"])
