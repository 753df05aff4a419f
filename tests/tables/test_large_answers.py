"""No answer takes more memory than its caller's share, and no slow read more than its share of sessions and of time."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import httpx
import pytest

from gateway.auth.principal import Principal
from gateway.budget import Budget, one_request
from gateway.db.database import Database, Record, Transaction
from gateway.errors import SqlError
from gateway.fencing.record import ANONYMOUS
from gateway.http.body import SMALL, BodyReader
from gateway.http.middleware import Middleware
from gateway.observe.events import ignore
from gateway.tables.execute import reads
from gateway.tables.execute.reads import AnswerLimit
from gateway.tables.pipeline import Exposure, TablePlane
from tests.callers import known
from tests.tables.asking import answered, change, over_asgi, row
from tests.waiting import PATIENCE

MOST = 100_000
LARGE = SMALL + 1000
"""Characters of a note that is too large for a shared trip, and not for an answer."""
SQL = f"""
    CREATE TABLE notes (id bigint PRIMARY KEY, note text, mark text);
    CREATE TABLE replies (id bigint PRIMARY KEY, note bigint REFERENCES notes);
    INSERT INTO notes VALUES (1, repeat('x', {LARGE})), (2, 'short');
    CREATE FUNCTION much(size int) RETURNS text LANGUAGE sql STABLE AS $$ SELECT repeat('x', size) $$;
    CREATE FUNCTION write_much(size int) RETURNS text LANGUAGE sql
    AS $$ UPDATE notes SET note = 'called' WHERE id = 2; SELECT repeat('x', size) $$;
    CREATE FUNCTION slow(seconds float) RETURNS int LANGUAGE sql STABLE AS $$ SELECT 1 FROM pg_sleep(seconds) $$;
    CREATE FUNCTION pause(seconds float) RETURNS int LANGUAGE sql AS $$ SELECT 1 FROM pg_sleep(seconds) $$;
"""
FUNCTIONS = frozenset(("public.much", "public.write_much", "public.slow", "public.pause"))
ANN, BEN = known("ann"), known("ben")
STRANGER = Principal(ANONYMOUS, ANN.rights)


class Stage:
    """A table plane behind the middleware. Its memory is for one answer of the largest size for each caller."""

    def __init__(self, database: Database) -> None:
        self.memory = Budget(8 * MOST, "bytes of memory", patience=0.2)
        self._database = database
        self.planes: list[TablePlane] = []

    def client(self, caller: Principal, other: Principal | None = None) -> httpx.AsyncClient:
        """Return a client of a new plane. A request with the header Authorization is that of the ``other`` caller."""
        plane = TablePlane(
            self._database,
            Exposure(max_body=MOST, functions=FUNCTIONS),
            authenticate=lambda head: other if other and head.value(b"authorization") else caller,
            observe=ignore,
            bodies=BodyReader(self.memory),
        )
        self.planes.append(plane)
        middleware: Any = Middleware(plane, ignore)
        return over_asgi(middleware)


@pytest.fixture
async def database(dsn: str) -> AsyncIterator[Database]:
    opened = Database(dsn, pool_size=16, connect_timeout=0.5, idle_timeout=PATIENCE)
    await change(opened, SQL)
    yield opened
    await opened.close()


@pytest.fixture
async def stage(database: Database) -> AsyncIterator[Stage]:
    one = Stage(database)
    yield one
    assert one.memory.used == 0


def aliases(number: int) -> str:
    return ",".join(f"a{each}:note" for each in range(number))


async def test_an_answer_beyond_the_limit_is_refused_with_advice(stage: Stage) -> None:
    reading = [f"/notes?select={aliases(40)}", "/rpc/much?size=100000"]
    async with stage.client(ANN) as client:
        for path in reading:
            answer = await client.get(path)
            answered(answer, 413, "body-too-large")
            assert answer.json()["message"].startswith("The answer has more than 100,000 bytes.")
            assert answer.json()["hint"].startswith("Ask for fewer rows at one time, with limit and offset")
        assert len((await client.get("/rpc/much?size=90000")).content) == 90_002


async def test_a_write_with_an_answer_beyond_the_limit_changes_nothing(stage: Stage, database: Database) -> None:
    writes = [
        ("PATCH", f"/notes?id=eq.1&select={aliases(2)}", {"note": "y" * LARGE}),
        ("POST", "/rpc/write_much", {"size": MOST}),
    ]
    headers = {"Fencing-Token": "5", "Prefer": "return=representation"}
    async with stage.client(ANN) as client:
        for method, path, body in writes:
            named = {"Fencing-Resource": "notes/2"} if "rpc" in path else {}
            for _ in range(2):
                answered(await client.request(method, path, json=body, headers=headers | named), 413)
    found = await row(database, "SELECT string_agg(left(note, 6), ' ' ORDER BY id) AS notes FROM notes")
    assert found["notes"] == "xxxxxx short"
    assert (await row(database, "SELECT count(*) AS fences FROM fencing.fence"))["fences"] == 0


async def test_a_row_that_is_too_large_for_a_shared_trip_is_read_and_written_alone(stage: Stage) -> None:
    headers = {"Fencing-Token": "5", "Prefer": "return=representation"}
    async with stage.client(ANN) as client:
        for token in ("5", "6", "7"):  # the second time by a recipe
            assert len((await client.get("/notes?id=eq.1")).json()[0]["note"]) == LARGE
            headers["Fencing-Token"] = token
            answer = await client.patch("/notes?id=eq.1", json={"note": token * LARGE}, headers=headers)
            answered(answer, 200)
            assert answer.json()[0]["note"] == token * LARGE


async def test_an_answer_that_is_known_to_be_large_undoes_no_batch(
    stage: Stage, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    undone: list[int] = []
    send = database.fetchmany_write

    async def noted(sql: str, arguments: Sequence[Sequence[object]]) -> list[Record]:
        try:
            return await send(sql, arguments)
        except SqlError:
            undone.append(len(arguments))
            raise

    monkeypatch.setattr(database, "fetchmany_write", noted)
    await change(database, "INSERT INTO notes SELECT id, 'short' FROM generate_series(3, 9) AS id")
    async with stage.client(ANN) as client:

        async def write(number: int) -> None:
            headers = {"Fencing-Token": "5", "Prefer": "return=representation"}
            answered(await client.patch(f"/notes?id=eq.{number}", json={"mark": "x"}, headers=headers), 200)

        order = [*range(4, 10), 1, 2, 3]
        await change(database, "UPDATE notes SET note = 'short' WHERE id = 1")
        for number in order:  # no fence has to rise later on
            await write(number)
        await change(database, f"UPDATE notes SET note = repeat('z', {LARGE}) WHERE id = 1")
        await asyncio.gather(*map(write, order))
        assert undone
        undone.clear()
        await asyncio.gather(*map(write, order))
        assert not undone


async def test_wide_characters_take_the_memory_that_they_need() -> None:
    memory, used = Budget(64 * LARGE, "bytes of memory"), []
    limit = AnswerLimit(4 * LARGE, memory)

    async def answer(text: str) -> None:
        limit.keep_text(text)
        used.append(memory.used)

    for character in ("x", "\N{PILE OF POO}"):
        await one_request(answer(character * LARGE))
    narrow, wide = used
    assert 3.9 < wide / narrow <= 4


async def test_locked_rows_of_one_caller_take_its_share_of_sessions(dsn: str, database: Database) -> None:
    locked, over = asyncio.Event(), asyncio.Event()

    async def lock(transaction: Transaction) -> None:
        await transaction.fetch("SELECT FROM notes WHERE id > 2 FOR UPDATE")
        locked.set()
        await over.wait()

    await change(database, "INSERT INTO notes SELECT id, 'short' FROM generate_series(3, 40) AS id")
    fenced = {"Fencing-Token": "5"}
    async with (
        Database(dsn, pool_size=16) as patient,
        Stage(patient).client(ANN, BEN) as client,
        asyncio.TaskGroup() as tasks,
    ):
        for number in range(3, 41):  # no fence has to rise later on
            answered(await client.patch(f"/notes?id=eq.{number}", json={"note": "y"}, headers=fenced), 204)
        tasks.create_task(database.run(lock))
        await locked.wait()
        stuck = [
            tasks.create_task(client.patch(f"/notes?id=eq.{number}", json={"note": "y"}, headers=fenced))
            for number in range(3, 41)
        ]
        async with asyncio.timeout(PATIENCE):  # statements that share a trip give up, and are sent again alone
            while patient.use()["own"].in_use != 4:
                await asyncio.sleep(0.05)
        own = fenced | {"Prefer": "timezone=Asia/Tokyo", "Authorization": "ben"}
        answered(await client.patch("/notes?id=eq.1", json={"note": "z"}, headers=own), 204)
        assert not any(one.done() for one in stuck)
        over.set()
    assert {one.result().status_code for one in stuck} == {204}


async def test_answers_that_a_caller_does_not_read_take_its_own_share_of_the_memory(stage: Stage) -> None:
    reading, go_on = asyncio.Event(), asyncio.Event()

    async def unread(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.body":
            reading.set()
            await go_on.wait()

    async def nothing() -> dict[str, Any]:
        return {"type": "http.request", "body": b""}

    async with stage.client(ANN) as greedy, stage.client(BEN) as other:
        transport: Any = greedy._transport
        path = "/v1/tables/notes"
        scope: dict[str, Any] = {"type": "http", "method": "GET", "path": path, "raw_path": path.encode()}
        scope |= {"query_string": b"id=eq.1", "headers": [], "client": None}
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(transport.app(scope, nothing, unread))
            await reading.wait()
            refused = await greedy.get("/notes?id=eq.1")
            answered(refused, 503, "unavailable")
            assert refused.headers["retry-after"] == "1"
            assert refused.json()["message"] == "The bytes of memory that ann may use at one time are in use."
            answered(await other.get("/notes?id=eq.1"), 200)
            go_on.set()


async def test_slow_reads_take_no_session_of_others_and_none_of_writes(stage: Stage) -> None:
    async with stage.client(ANN) as greedy, stage.client(BEN) as other:
        slow = [asyncio.create_task(greedy.get("/rpc/slow?seconds=2")) for _ in range(12)]
        await asyncio.sleep(0.2)
        for _ in range(3):
            answered(await other.get("/notes?select=id"), 200)
            fenced = {"Fencing-Token": "5", "Prefer": "timezone=Asia/Tokyo"}
            answered(await other.patch("/notes?id=eq.2", json={"note": "z"}, headers=fenced), 204)
        answers = [await one for one in slow]
    said = {answer.json()["message"] for answer in answers if answer.status_code == 503}
    assert said == {"The sessions with the database that ann may use at one time are in use."}
    assert sum(answer.status_code == 200 for answer in answers) == 2


async def test_a_read_without_credentials_has_less_time(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reads, "ANONYMOUS_TIMEOUT", 0.2)
    async with stage.client(STRANGER) as stranger, stage.client(ANN) as client:
        answered(await client.get("/rpc/slow?seconds=0.5"), 200)
        answer = await stranger.get("/rpc/slow?seconds=0.5")
        answered(answer, 503)
        assert "statement timeout" in answer.json()["message"]
        answered(await stranger.get("/notes?id=eq.2"), 200)


async def test_a_slow_pattern_of_a_stranger_ends_and_keeps_no_other_waiting(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reads, "ANONYMOUS_TIMEOUT", 0.5)
    async with stage.client(STRANGER) as stranger, stage.client(ANN) as client:
        fenced = {"Fencing-Token": "5", "Content-Type": "application/json"}
        answered(await client.post("/notes", json={"id": 99, "note": "a" * 2999 + "b"}, headers=fenced), 201)
        slow = asyncio.create_task(stranger.get("/notes?id=eq.99&note=match.^(a*)(a*)(a*)\\1\\2\\3b$"))
        for _ in range(3):
            answered(await client.get("/notes?id=eq.2"), 200)
        assert not slow.done()
        answer = await slow
    answered(answer, 503)
    assert "statement timeout" in answer.json()["message"]


async def test_a_read_has_less_time_than_a_write(dsn: str, database: Database) -> None:
    async with Database(dsn, read_timeout=0.2) as impatient, Stage(impatient).client(ANN) as client:
        answer = await client.get("/rpc/slow?seconds=0.5")
        answered(answer, 503)
        assert "statement timeout" in answer.json()["message"]
        fenced = {"Fencing-Token": "5", "Fencing-Resource": "notes/2"}
        answered(await client.post("/rpc/pause", json={"seconds": 0.5}, headers=fenced), 200)


async def test_a_read_of_a_known_form_takes_no_session_of_writes(dsn: str, database: Database) -> None:
    over = asyncio.Event()

    async def hold(_: Transaction) -> None:
        await over.wait()

    async with Database(dsn, pool_size=1) as small, Stage(small).client(ANN) as client:
        for _ in range(2):
            answered(await client.get("/notes?id=eq.2"), 200)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(small.run(hold))
            await asyncio.sleep(0.1)
            answered(await client.get("/notes?id=eq.2"), 200)
            over.set()


async def test_a_read_with_embedded_tables_shares_no_trip(stage: Stage) -> None:
    """One row by its key may have any number of rows of another table in it."""
    async with stage.client(ANN) as client:
        for _ in range(2):
            answered(await client.get("/notes?id=eq.2&select=id,replies(*)"), 200)
    assert stage.planes[0]._fast_path._learnt == {}
