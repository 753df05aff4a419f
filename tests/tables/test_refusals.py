"""Everything that must not be written: bad input, writes that reach beyond their resource, zombies, and storms of them.

Each of these answers clearly and changes nothing. A zombie's write is on record. In observe mode it passes, and is on
record all the same.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import Any

import asyncpg
import httpx
import pytest

from gateway.auth.principal import Principal
from gateway.db import database as store
from gateway.db import fences
from gateway.db.database import SHARED_LOCK_TIMEOUT, SHARED_STATEMENT_TIMEOUT, Database, Record
from gateway.db.pool import Session
from gateway.errors import SqlError
from gateway.fencing.record import ANONYMOUS
from gateway.fencing.resource import Template
from gateway.observe.events import Event, WriteRefused, ignore
from gateway.record import refusals
from gateway.tables.execute import batches
from gateway.tables.naming import Rule
from gateway.tables.pipeline import Exposure, TablePlane
from tests.patience import patient
from tests.tables.asking import TESTER, Send, answered, change, client_of, over_asgi, row, rows, send
from tests.tables.conftest import RULES
from tests.waiting import PATIENCE, waiting

TARGET = "/accounts?id=eq.1"
CALLERS = {b"known": TESTER, b"stranger": Principal(ANONYMOUS, TESTER.rights)}
EVERYTHING = """
SELECT (SELECT json_agg(t) FROM accounts t)::text, (SELECT json_agg(t) FROM users t)::text,
       (SELECT json_agg(t) FROM shipments t)::text, (SELECT json_agg(t) FROM fencing.fence t)::text
"""


@pytest.fixture
async def unchanged(tables: Database) -> Any:
    before = tuple(await row(tables, EVERYTHING))
    yield
    assert tuple(await row(tables, EVERYTHING)) == before


@pytest.mark.usefixtures("unchanged")
class TestNothingIsWritten:
    @pytest.fixture
    def dsn(self, shared_dsn: str) -> str:
        return shared_dsn

    async def test_a_missing_token_comes_before_everything_else(self, write: Send) -> None:
        for method in ("POST", "PATCH", "PUT", "DELETE"):
            answered(await write(method, "/nowhere?huh", None), 428, "token-required")

    async def test_refused_writes(self, write: Send) -> None:
        refused: list[tuple[str, str, Any, int, str]] = [
            ("PATCH", "/nowhere?id=eq.1", {"a": 1}, 404, "PGRST205"), ("PATCH", TARGET, {"nope": 1}, 400, "PGRST204"),
            ("PATCH", f"{TARGET}&columns=nope", {"nope": 1}, 400, "PGRST204"),
            ("POST", "/accounts?on_conflict=nope", {"id": 1}, 400, "PGRST204"),
            ("PATCH", f"{TARGET}&nope=eq.1", {"note": "x"}, 400, "42703"),
            ("DELETE", "/accounts?id=huh.1", None, 400, "PGRST100"),
            ("DELETE", "/accounts?id=eq.1&or=(id.eq.1", None, 400, "PGRST100"),
            ("DELETE", "/accounts?id=eq.1&films.id=eq.1", None, 400, "PGRST108"),
            ("POST", "/accounts", [{"id": 10}, {"owner": "x"}], 400, "PGRST102"),
            ("POST", "/accounts", {"id": 1}, 409, "23505"),
            ("POST", "/accounts", {"id": 10, "balance": None}, 400, "23502"),
            ("POST", "/accounts?columns=id,balance", [{"id": 10}], 400, "23502"),
            ("POST", "/accounts", {"id": 10, "balance": "many"}, 400, "22P02"),
            ("POST", "/accounts", {"id": 10, "owner": "a\0b"}, 400, "22P05"),
            ("PATCH", TARGET, [{"note": "a"}, {"note": "b"}], 400, "PGRST102"),
            ("PATCH", "/accounts", {"note": "x"}, 400, "21000"), ("PATCH", "/accounts?id", {"note": "x"}, 400, "21000"),
            ("DELETE", "/accounts", None, 400, "21000"), ("DELETE", "/accounts?id", None, 400, "21000"),
            ("DELETE", "/accounts?select=id&order=id", None, 400, "21000"),
            ("DELETE", "/accounts?limit=1", None, 400, "PGRST127"),
            ("DELETE", "/accounts?limit=eq.5", None, 400, "PGRST127"),
            ("DELETE", "/accounts?id=eq.1&offset=0", None, 400, "PGRST127"),
            ("DELETE", "/settings", None, 400, "21000"),
            ("PATCH", "/accounts?owner=eq.ann", {"note": "x"}, 422, "resource-underivable"),
            ("PATCH", "/rich?id=eq.2", {"note": "x"}, 422, "resource-underivable"),
            ("PATCH", "/floats?x=eq.1.5", {"v": 2}, 422, "resource-underivable"),
            ("PATCH", TARGET, {"id": 2}, 409, "23505"), ("PATCH", TARGET, {"id": None}, 422, "resource-underivable"),
            ("PATCH", "/shipments?order_id=eq.7", {"order_id": None}, 422, "resource-underivable"),
        ]  # fmt: skip
        for method, target, body, status, code in refused:
            answered(await write(method, target, body, token=5), status, code)

    async def test_an_explicit_resource_does_not_cover_other_rows(self, write: Send) -> None:
        for explicit in ("job/1", "public.accounts/2"):
            response = await write("PATCH", TARGET, {"note": "x"}, token=5, resource=explicit)
            answered(response, 422, "resource-mismatch")
            assert "public.accounts/1" in response.json()["message"]
        for target in ("/keyless?v=eq.1", "/rich?id=eq.2"):  # rows without names
            answered(await write("DELETE", target, token=5, resource="job/1"), 422, "resource-underivable")
        response = await write("POST", "/shipments", {"order_id": None}, token=5, resource="order/7")
        answered(response, 422, "resource-mismatch")

    async def test_a_body_over_the_limit(self, client: httpx.AsyncClient) -> None:
        async def unannounced() -> Any:
            for _ in range(20):
                yield b" " * 10_000

        for content in (b" " * 200_000, unannounced()):
            response = await client.patch(TARGET, headers={"fencing-token": "5"}, content=content)
            answered(response, 413, "body-too-large")


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("framing", [b"content-length: 12", b"transfer-encoding: chunked"])
async def test_a_body_that_ends_early_writes_nothing(origin: str, framing: bytes) -> None:
    host, port = origin.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    body = b'{"note":"x"}' if b"chunked" not in framing else b'c\r\n{"note":"x"}\r\n'
    head = b"PATCH /v1/tables/accounts?id=eq.1 HTTP/1.1\r\nhost: x\r\nfencing-token: 5\r\n" + framing + b"\r\n\r\n"
    writer.write(head + (body if b"chunked" in framing else body[:-1]))
    await writer.drain()
    writer.write_eof()
    assert not (await reader.read()).startswith(b"HTTP/1.1 2")
    writer.close()


async def test_the_touched_rows_of_the_fast_path_are_checked_too(write: Send, tables: Database) -> None:
    answered(await write("PATCH", TARGET, {"note": "raise"}, token=5), 204)
    before = await rows(tables, "SELECT * FROM accounts ORDER BY id")
    response = await write("PATCH", "/accounts?id=gt.0", {"note": "x"}, token=5, resource="public.accounts/1")
    answered(response, 422, "resource-mismatch")
    assert await rows(tables, "SELECT * FROM accounts ORDER BY id") == before


async def test_a_read_cannot_write(client: httpx.AsyncClient, tables: Database) -> None:
    """A view may call a function that writes, but the reader has presented no token for that."""
    await change(tables, """
        CREATE FUNCTION spend() RETURNS bigint LANGUAGE sql AS 'UPDATE accounts SET balance = 0 RETURNING balance';
        CREATE VIEW spending AS SELECT spend();
    """)  # fmt: skip
    answered(await client.get("/spending"), 405, "25006")
    assert (await row(tables, "SELECT sum(balance) FROM accounts"))[0] == 60


async def test_a_stale_write_fires_no_trigger(write: Send, tables: Database) -> None:
    """Triggers for each statement fire even where no row is touched."""
    await change(tables, """
        CREATE TABLE fired (at timestamptz DEFAULT now());
        CREATE FUNCTION fire() RETURNS trigger LANGUAGE plpgsql AS
            'BEGIN INSERT INTO fired DEFAULT VALUES; RETURN NULL; END';
        CREATE TRIGGER fires AFTER UPDATE ON accounts FOR EACH STATEMENT EXECUTE FUNCTION fire();
    """)  # fmt: skip
    answered(await write("PATCH", TARGET, {"note": "new"}, token=6), 204)
    answered(await write("PATCH", TARGET, {"note": "old"}, token=5), 412, "token-stale")
    assert (await row(tables, "SELECT count(*) FROM fired"))[0] == 1


REACHING = """
CREATE FOREIGN DATA WRAPPER nowhere; CREATE SERVER elsewhere FOREIGN DATA WRAPPER nowhere;
CREATE TABLE logs (id int, part int, v int) PARTITION BY LIST (part);
CREATE TABLE logs_1 PARTITION OF logs FOR VALUES IN (1);
CREATE TABLE logs_2 PARTITION OF logs FOR VALUES IN (2) PARTITION BY LIST (id);
CREATE TABLE logs_2_1 PARTITION OF logs_2 FOR VALUES IN (1);
CREATE TABLE parent (id int PRIMARY KEY, v int);
CREATE TABLE child () INHERITS (parent);
CREATE TABLE ruled (id int PRIMARY KEY, v int);
CREATE VIEW over_logs AS SELECT * FROM logs;
CREATE VIEW over_it AS SELECT * FROM over_logs;
CREATE VIEW over_parent AS SELECT * FROM parent;
CREATE FOREIGN TABLE remote (id int) SERVER elsewhere;
INSERT INTO logs VALUES (1, 1, 0), (1, 2, 0); INSERT INTO parent VALUES (1, 0); INSERT INTO ruled VALUES (1, 0);
"""
FAR = {
    "a partition": "CREATE FOREIGN TABLE logs_3 PARTITION OF logs FOR VALUES IN (3) SERVER elsewhere",
    "a partition of a partition": "CREATE FOREIGN TABLE logs_2_2 PARTITION OF logs_2 FOR VALUES IN (2) "
    "SERVER elsewhere",
    "a child": "CREATE FOREIGN TABLE far () INHERITS (parent) SERVER elsewhere",
    "a grandchild": "CREATE FOREIGN TABLE far () INHERITS (child) SERVER elsewhere",
    "a rule": "CREATE FOREIGN TABLE far (id int) SERVER elsewhere; "
    "CREATE RULE instead AS ON UPDATE TO ruled DO INSTEAD DELETE FROM far",
    "what is behind a view": "CREATE FOREIGN TABLE far (id int, part int, v int) SERVER elsewhere; "
    "CREATE OR REPLACE VIEW over_logs AS SELECT * FROM far",
}
REACHED_FROM = {
    "a partition": ("logs", "over_logs", "over_it"),
    "a partition of a partition": ("logs", "logs_2", "over_logs", "over_it"),
    "a child": ("parent", "over_parent"),
    "a grandchild": ("parent", "child", "over_parent"),
    "a rule": ("ruled",),
    "what is behind a view": ("over_logs", "over_it"),
}
NAMES = ("logs", "logs_1", "logs_2", "over_logs", "over_it", "parent", "child", "over_parent", "ruled")


@pytest.fixture
async def reaching(tables: Database) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the tables above, whose rows are named by one template."""
    await change(tables, REACHING)
    exposure = Exposure(rules={f"public.{name}": Rule(Template.parse("job/{id}")) for name in NAMES})
    async with client_of(tables, exposure) as client:
        yield client


async def _patched(client: httpx.AsyncClient, name: str) -> httpx.Response:
    return await send(client, "PATCH", f"/{name}?id=eq.1&v=gte.0", {"v": 1}, token=5)


@pytest.mark.thorough
@pytest.mark.parametrize("known", ["known before", "not known before"])
@pytest.mark.parametrize("way", FAR)
async def test_a_write_that_may_reach_a_foreign_table_is_refused(
    reaching: httpx.AsyncClient, tables: Database, way: str, known: str
) -> None:
    """Its rows would be written by another transaction than the one that holds the fence."""
    if known == "known before":
        for name in NAMES:
            answered(await _patched(reaching, name), 204)
    await change(tables, FAR[way])
    for name in NAMES:
        if name not in REACHED_FROM[way]:
            answered(await _patched(reaching, name), 204)
    for name in REACHED_FROM[way]:
        answered(await _patched(reaching, name), 400, "PGRST127")
        assert (await reaching.options(f"/{name}")).headers["allow"] == "OPTIONS,GET,HEAD"


async def test_a_table_that_reaches_no_foreign_table_any_more_is_written_again(
    reaching: httpx.AsyncClient, tables: Database
) -> None:
    answered(await send(reaching, "DELETE", "/remote?id=eq.1", token=5, resource="job/1"), 400, "PGRST127")
    await change(tables, FAR["a partition"])
    answered(await _patched(reaching, "logs"), 400, "PGRST127")
    await change(tables, "ALTER TABLE logs DETACH PARTITION logs_3")
    answered(await _patched(reaching, "logs"), 204)


async def test_a_case_insensitive_collation_does_not_make_two_names_equal(write: Send, tables: Database) -> None:
    try:
        await change(tables, """
            CREATE COLLATION ignorant (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
            CREATE TABLE folded (name text COLLATE ignorant PRIMARY KEY, v int);
            INSERT INTO folded VALUES ('Ann', 1);
        """)  # fmt: skip
    except SqlError as error:
        pytest.skip(f"this PostgreSQL cannot make such a collation: {error.message}")
    answered(await write("PATCH", "/folded?name=eq.ann", {"v": 2}, token=5), 422, "resource-underivable")
    response = await write("PATCH", "/folded?name=eq.ann", {"v": 2}, token=5, resource="public.folded/ann")
    answered(response, 422, "resource-mismatch")
    answered(await write("PATCH", "/folded?name=eq.ann", {"v": 2}, token=5, resource="public.folded/Ann"), 204)


async def test_a_stale_write_is_on_record_before_it_is_answered(
    write: Send, tables: Database, events: list[Event]
) -> None:
    answered(await write("PATCH", TARGET, {"note": "new"}, token=6, holder="ann"), 204)
    response = await write("PATCH", TARGET, {"note": "old"}, token=5, holder="zed")
    answered(response, 412, "token-stale")
    assert "retry-after" not in response.headers
    found = await row(tables, "SELECT * FROM fencing.rejection")
    assert (found["resource"], found["reason"], found["enforced"]) == ("public.accounts/1", "token-stale", True)
    assert (found["value"], found["holder"], found["caller"]) == (5, "zed", "tester")
    assert (found["fence_value"], found["fence_holder"]) == (6, "ann")
    assert (found["method"], found["target"]) == ("PATCH", "/v1/tables/accounts?id=eq.1")
    assert (found["payload_size"], len(found["payload_sha256"])) == (14, 64)
    details = response.json()["details"]
    for fact in ("public.accounts/1", "presented token 5, the fence is 6, raised by ann", str(found["id"])):
        assert fact in details
    assert [event.rejection.id for event in events if isinstance(event, WriteRefused)] == [found["id"]]
    assert (await row(tables, "SELECT note FROM accounts WHERE id = 1"))[0] == "new"


async def test_an_api_key_in_the_query_does_not_go_on_record(write: Send, tables: Database) -> None:
    answered(await write("PATCH", TARGET, {"note": "new"}, token=6), 204)
    answered(await write("PATCH", f"{TARGET}&%61pikey=secret&note=eq.x", {"note": "old"}, token=5), 412, "token-stale")
    found = await row(tables, "SELECT target FROM fencing.rejection")
    assert found["target"] == "/v1/tables/accounts?id=eq.1&%61pikey=[redacted]&note=eq.x"


async def test_a_refusal_that_cannot_be_recorded_is_not_answered_as_one(write: Send, tables: Database) -> None:
    """P5: no 412 without a record."""
    answered(await write("PATCH", TARGET, {"note": "new"}, token=6), 204)
    await change(tables, "ALTER TABLE fencing.intake RENAME TO lost")
    for response in await asyncio.gather(*(write("PATCH", TARGET, {"note": "old"}, token=5) for _ in range(20))):
        answered(response, 503, "unavailable")
        assert response.headers["retry-after"] == "1"


async def test_a_failed_write_takes_its_raise_back(write: Send, tables: Database) -> None:
    answered(await write("POST", "/accounts", {"id": 1}, token=5), 409, "23505")
    assert await fences.read(tables, "public.accounts/1") is None


ON_RECORD = "SELECT resource, reason, enforced, fence_value FROM fencing.rejection ORDER BY at"


async def test_a_stale_write_passes_and_is_noted(write: Send, tables: Database, events: list[Event]) -> None:
    answered(accepted := await write("PATCH", "/watched?id=eq.1", {"v": 5}, token=5), 204)
    answered(stale := await write("PATCH", "/watched?id=eq.1", {"v": 4}, token=4), 204)
    assert "fencing-would-refuse" not in accepted.headers
    assert stale.headers["fencing-would-refuse"] == "token-stale; fence=5"
    assert await rows(tables, ON_RECORD) == [("public.watched/1", "token-stale", False, 5)]
    assert (await row(tables, "SELECT v FROM watched WHERE id = 1"))[0] == 4
    assert [event.rejection.enforced for event in events if isinstance(event, WriteRefused)] == [False]


@pytest.mark.parametrize(
    ("target", "token", "resource", "noted"),
    [
        ("/watched?id=eq.1", None, None, ("public.watched/1", "token-required", False, None)),
        ("/watched?v=eq.1", None, None, ("public.watched", "token-required", False, None)),
        ("/watched?v=eq.1", 5, None, ("public.watched", "resource-underivable", False, None)),
        ("/watched?id=eq.1", 5, "job/1", ("public.watched/1", "resource-mismatch", False, None)),
    ],
)
async def test_other_objections_are_noted(
    write: Send, tables: Database, target: str, token: int | None, resource: str | None, noted: tuple[object, ...]
) -> None:
    response = await write("PATCH", target, {"v": 7}, token=token, resource=resource)
    assert (response.status_code, response.headers["content-range"]) == (204, "0-0/*")
    assert response.headers["fencing-would-refuse"] == noted[1]
    assert await rows(tables, ON_RECORD) == [noted]


async def test_a_moved_row_is_noted(write: Send, tables: Database) -> None:
    answered(await write("PATCH", "/watched?id=eq.2", {"id": 8}, token=5), 204)  # both names are claimed
    answered(await write("PATCH", "/watched?id=eq.1", {"id": 9}, token=5, resource="public.watched/1"), 204)
    assert await rows(tables, ON_RECORD) == [("public.watched/9", "resource-mismatch", False, None)]


async def test_a_table_whose_rows_have_no_names(write: Send, tables: Database) -> None:
    for resource, status in ((None, 201), ("job/1", 201)):
        answered(await write("POST", "/unnamed", {"v": 1}, token=5, resource=resource), status)
    assert await rows(tables, ON_RECORD) == [("public.unnamed", "resource-underivable", False, None)] * 2
    assert await rows(tables, "SELECT count(*) FROM fencing.fence") == [(0,)]


async def test_what_is_refused_in_either_mode(write: Send, tables: Database) -> None:
    answered(await write("DELETE", "/watched"), 400, "21000")
    answered(await write("DELETE", "/watched?id=eq.1", token="05"), 400, "token-malformed")
    answered(await write("POST", "/watched", {"id": 1}, token=5), 409, "23505")
    assert await rows(tables, ON_RECORD) == []
    assert (await row(tables, "SELECT count(*) FROM watched"))[0] == 2


BURST = 300


@pytest.fixture
async def overtaken(tables: Database, write: Send) -> Database:
    """Account 1 belongs to token 9 by now; its writers with lower ones are zombies."""
    answered(await write("PATCH", TARGET, {"note": "9's"}, token=9, holder="successor"), 204)
    return tables


@pytest.fixture
def recording(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of refusals in each trip that puts them on record."""
    trips: list[int] = []
    real = asyncpg.Connection.fetch

    async def counted(session: Session, sql: str, *arguments: Sequence[Any]) -> list[Record]:
        if "INSERT INTO fencing.intake" in sql:
            trips.append(len(arguments[0]))
        return await real(session, sql, *arguments)

    monkeypatch.setattr(asyncpg.Connection, "fetch", counted)
    return trips


async def test_each_of_a_burst_is_refused_and_on_record(write: Send, overtaken: Database, recording: list[int]) -> None:
    answers = await asyncio.gather(
        *(write("PATCH", TARGET, {"note": f"zombie {n}"}, token=n % 9, holder=f"zombie-{n}") for n in range(BURST))
    )
    ids = set()
    for number, response in enumerate(answers):
        answered(response, 412, "token-stale")
        details = response.json()["details"]
        assert f"presented token {number % 9}, the fence is 9, raised by successor" in details
        ids.add(details.rpartition("rejection ")[2].rstrip("."))
    recorded = await rows(
        overtaken,
        "SELECT id::text, holder, value, fence_value, fence_holder, reason, method, target, payload_size "
        "FROM fencing.rejection",
    )
    assert {one[0] for one in recorded} == ids
    assert len(ids) == BURST
    assert Counter(one[1] for one in recorded) == Counter(f"zombie-{number}" for number in range(BURST))
    for _, holder, value, *others in recorded:
        number = int(holder.removeprefix("zombie-"))
        assert value == number % 9
        size = len(f'{{"note":"zombie {number}"}}')
        assert others == [9, "successor", "token-stale", "PATCH", "/v1/tables/accounts?id=eq.1", size]
    assert sum(recording) == BURST
    assert len(recording) < BURST / 10
    assert (await row(overtaken, "SELECT note FROM accounts WHERE id = 1"))[0] == "9's"


async def test_others_write_on_meanwhile(write: Send, overtaken: Database) -> None:
    """A zombie that hangs up takes no other caller with it."""
    answered(await write("PATCH", "/accounts?id=eq.2", {"note": "0"}, token=1), 204)
    hasty, *storm = [asyncio.ensure_future(write("PATCH", TARGET, {"note": "zombie"}, token=1)) for _ in range(BURST)]
    await asyncio.sleep(0)
    hasty.cancel()
    for number in range(10):
        answered(await write("PATCH", "/accounts?id=eq.2", {"note": str(number)}, token=1), 204)
    for response in await asyncio.gather(*storm):
        answered(response, 412, "token-stale")
    assert (await row(overtaken, "SELECT count(*) FROM fencing.rejection"))[0] >= len(storm)
    assert (await row(overtaken, "SELECT note FROM accounts WHERE id = 2"))[0] == "9"


@pytest.mark.thorough
class TestSlowDatabase:
    @pytest.fixture
    async def database(self, dsn: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Database]:
        """Trips give up as soon as those of a real gateway: a refusal has to outlast that."""
        monkeypatch.setattr(store, "SHARED_STATEMENT_TIMEOUT", SHARED_STATEMENT_TIMEOUT)
        opened = patient(dsn)
        yield opened
        await opened.close()

    async def test_it_makes_nobody_less_of_a_zombie(
        self, write: Send, overtaken: Database, stranger: asyncpg.Connection
    ) -> None:
        """Writes that share a trip soon give up, because each can go by itself. Refusals cannot: they wait."""
        async with stranger.transaction():
            await stranger.execute("LOCK TABLE fencing.intake IN EXCLUSIVE MODE")
            zombie = asyncio.ensure_future(write("PATCH", TARGET, {"note": "zombie's"}, token=5))
            await waiting(overtaken)
            await asyncio.sleep(max(SHARED_LOCK_TIMEOUT, SHARED_STATEMENT_TIMEOUT) * 1.1)
            assert not zombie.done()
        answered(await zombie, 412, "token-stale")


async def test_a_fence_that_was_seen_to_be_higher_lets_the_next_holder_through(
    write: Send, overtaken: Database
) -> None:
    """The fence that the gateway remembers may be old, but a fence never goes down."""
    answered(await write("PATCH", TARGET, {"note": "zombie"}, token=8), 412, "token-stale")
    answered(await write("PATCH", TARGET, {"note": "9's again"}, token=9), 204)
    answered(await write("PATCH", TARGET, {"note": "10's"}, token=10), 204)
    answered(await write("PATCH", TARGET, {"note": "zombie"}, token=9), 412, "token-stale")
    response = await write("PATCH", TARGET, {"note": "zombie"}, token=8)
    assert "the fence is 10" in response.json()["details"]


async def test_trips_for_zombies_keep_their_distance_while_others_write(
    write: Send, overtaken: Database, recording: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A zombie that sends one write after the other would make a trip with each, as fast as it is answered."""
    monkeypatch.setattr(refusals, "GIVING_WAY", 0.1)
    # However long a busy machine lets the living one rest between two writes.
    monkeypatch.setattr(batches, "LULL", PATIENCE)
    writing = True

    async def living() -> None:
        while writing:
            answered(await write("PATCH", "/accounts?id=eq.2", {"note": "alive"}, token=1), 204)

    clock = asyncio.get_running_loop().time
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(living())
        start = clock()
        for _ in range(6):
            answered(await write("PATCH", TARGET, {"note": "zombie"}, token=1), 412, "token-stale")
        writing = False
    assert recording == [1] * 6
    assert clock() - start >= 5 * refusals.GIVING_WAY


@pytest.mark.parametrize("together", [False, True])
async def test_a_stranger_does_not_fill_the_record(
    database: Database, overtaken: Database, monkeypatch: pytest.MonkeyPatch, *, together: bool
) -> None:
    """Beyond its rate, its writes are not answered as refused. A known caller gets its refusals, each with an entry."""
    monkeypatch.setattr(refusals, "BURST", 3)
    monkeypatch.setattr(refusals, "A_SECOND", 0.0)
    exposure = Exposure(rules=RULES)
    plane = TablePlane(database, exposure, authenticate=lambda head: CALLERS[head.value(b"who") or b""], observe=ignore)
    async with over_asgi(plane) as client:

        async def zombie(who: str) -> httpx.Response:
            headers = {"fencing-token": "8", "who": who}
            return await client.patch(TARGET, json={"note": "late"}, headers=headers)

        for _ in range(2):
            assert (await zombie("known")).status_code == 412  # the form is known from here on
        strangers = [zombie("stranger") for _ in range(8)]
        answers = await asyncio.gather(*strangers) if together else [await one for one in strangers]
        assert Counter(answer.status_code for answer in answers) == {412: 3, 503: 5}
        [said] = {answer.json()["message"] for answer in answers if answer.status_code == 503}
        assert said.startswith("Too many writes of anonymous callers at ")
        answered(await zombie("known"), 412, "token-stale")
    recorded = await rows(overtaken, "SELECT caller FROM fencing.rejection")
    assert Counter(caller for [caller] in recorded) == {"anonymous": 3, "tester": 3}
    assert (await row(overtaken, "SELECT note FROM accounts WHERE id = 1"))[0] == "9's"
