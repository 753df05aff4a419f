"""One history of raw bytes has the same outcome with direct answers and without."""

import asyncio
import gc
import random
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, NamedTuple, cast
from urllib.parse import urlsplit

import asyncpg
import pytest

from gateway import app
from gateway.auth.principal import Proof, Use
from gateway.db import database, rights
from gateway.http import connection as http_connection
from gateway.http import direct
from gateway.http.connection import Connection
from gateway.http.direct import Finishing, Origin
from gateway.http.head import Packet
from gateway.http.middleware import Middleware
from gateway.observe.events import RequestAnswered, WriteAccepted
from gateway.tables.execute.fast_path import FastPath
from tests.postgres import GATEWAY, Server, fresh_database
from tests.running import API_KEY, Events, config, running
from tests.tiers import first
from tests.waiting import PATIENCE

ROWS = 12
TABLES = f"""
CREATE TABLE accounts (id bigint PRIMARY KEY, balance bigint CHECK (balance < 1000), note text);
INSERT INTO accounts SELECT id, 0 FROM generate_series(1, {ROWS}) AS id;
CREATE TABLE entries (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, account_id bigint NOT NULL, amount bigint);
"""
# Each new entry shows what code in the database sees of its request.
ACTING = f"""
DO $$ BEGIN CREATE ROLE {{role}}; EXCEPTION WHEN duplicate_object THEN NULL; END $$;
GRANT {{role}} TO {GATEWAY};
GRANT SELECT, INSERT, UPDATE, DELETE ON accounts, entries TO {{role}};
CREATE FUNCTION shown() RETURNS text LANGUAGE sql STABLE AS $$
    SELECT concat_ws(' ', current_user, current_setting('request.path', true), current_setting('request.method', true),
        h ->> 'fencing-token', h ->> 'fencing-holder', h ->> 'content-length')
    FROM (SELECT nullif(current_setting('request.headers', true), '')::json) AS header (h) $$;
ALTER TABLE entries ADD COLUMN shown text DEFAULT shown();
ALTER TABLE accounts ENABLE ROW LEVEL SECURITY;
CREATE POLICY most ON accounts TO {{role}} USING (shown() IS NOT NULL AND id <> 3);
"""
RULES = [{"name": "public.entries", "resource": "account/{account_id}"}]
LENGTH = 250
REFUSED = "resource, reason, value, holder, fence_value, method, caller, payload_size"
KEY = f"Authorization: Bearer {API_KEY}"

_OWN = re.compile(rb"\r\n(date|x-request-id): [^\r]*")
_RECORD = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|\d{4}-\d\d-\d\dT[0-9:.+]+")


class Step(NamedTuple):
    """Packets of one connection, and the methods of the requests in them."""

    packets: list[bytes]
    methods: list[str]
    connection: int = 0


def asked(line: str, *headers: str, body: str | None = None, version: str = "HTTP/1.1") -> bytes:
    length = [] if body is None else [f"Content-Length: {len(body.encode())}"]
    return ("\r\n".join([f"{line} {version}", "Host: gateway", *headers, *length, "", ""]) + (body or "")).encode()


def plain(chance: random.Random) -> tuple[str, bytes]:
    """One of few heads: after some repetitions all of them are known."""
    row, token = chance.randint(1, ROWS), chance.choices([5, 4, 6], [40, 2, 1])[0]
    holder = chance.choice([(), (), (), ("Fencing-Holder: ann",), ("Fencing-Holder: bob",)])
    fencing = (KEY, "Content-Type: application/json", f"Fencing-Token: {token}", *holder)
    method = chance.choices(["PATCH", "POST", "GET", "DELETE", "PUT"], [9, 5, 6, 1, 2])[0]
    if method == "GET":
        query = chance.choice(["", "", "", "", "&select=id,note", "&balance=eq.0", "&select=nothing", "&id=gt.0"])
        return method, asked(f"GET /v1/tables/accounts?id=eq.{row}{query}", KEY)
    if method == "POST":
        body = f'{{"account_id": {row}, "amount": {chance.choice([1, 22, "null", "x", 1.5])}}}'
        return method, asked("POST /v1/tables/entries", *fencing, body=body)
    if method == "DELETE":
        return method, asked(f"DELETE /v1/tables/accounts?id=eq.{row}", *fencing)
    if method == "PUT":
        body = f'{{"id": {chance.choice([row, row, 9])}, "balance": 1, "note": null}}'
        return method, asked(f"PUT /v1/tables/accounts?id=eq.{row}", *fencing, body=body)
    value = chance.choice(["1", "22", "333", "4444", '"x"', "null", "1.5", "}"])
    prefer = chance.choice([()] * 6 + [("Prefer: return=representation",), ("Prefer: count=exact",)])
    body = chance.choice([f'{{"balance": {value}}}', f'{{"note": "{"n" * chance.choice([1, 1500])}"}}'])
    return method, asked(f"PATCH /v1/tables/accounts?id=eq.{row}", *fencing, *prefer, body=body)


GET = "GET /v1/tables/accounts?id=eq.1"
PATCH = "PATCH /v1/tables/accounts?id=eq.1"
BALANCE = '{"balance": 1}'
# Each of them is alone in its packet, unless it says otherwise.
ODD = [
    *(asked(GET, KEY, "Origin: http://x"), asked(GET, KEY, "X-Request-Id: mine")),
    *(asked(GET, "Authorization: Bearer wrong"), asked(GET), asked(GET.replace("GET", "HEAD"), KEY)),
    *(asked(GET.replace("acc", "%61cc"), KEY), asked(GET.replace("1", "%31"), KEY), asked(f"{GET}#2", KEY)),
    *(asked(GET.replace("accounts", "nothing"), KEY), asked(GET, KEY, version="HTTP/1.0")),
    *(asked(GET, KEY, "Connection: close"), asked(GET, KEY, "Connection: keep-alive")),
    asked(GET, KEY, "Connection: upgrade", "Upgrade: x"),
    *(asked(GET, KEY, "Transfer-Encoding: chunked") + b"0\r\n\r\n", asked(GET, KEY, "If-None-Match: *")),
    *(asked(GET, KEY, "Range: 0-0"), asked(GET, KEY, body="x"), asked(GET, KEY, "Content-Length: 0", body="")),
    *(asked(GET, KEY, "Content-Length:0"), asked(GET, KEY, "Bad\0Name: x"), asked(GET, KEY, "X: a\r\n b")),
    *(asked(GET, KEY, KEY), b"\r\n" + asked(GET, KEY), b"GET nonsense\r\n\r\n"),
    asked(PATCH, KEY, "Fencing-Token: 5", "Expect: 100-continue", body=BALANCE),
    asked(PATCH, KEY, body=BALANCE),
    # Each of these is another token, or none, to a parser. The rest of the head may be known.
    *(
        asked(PATCH, KEY, "Content-Type: application/json", *headers, body=BALANCE)
        for headers in (
            ("Fencing-Token: x",),
            ("Fencing-Token: \0",),
            ("Fencing-Token: 5", "Fencing-Holder: \0"),
            ("Fencing-Token: 05",),
            ("Fencing-Token: 0.6",),
            ("Fencing-Token: 6 ",),
            ("Fencing-Token:  6",),
            ("Fencing-Token: 5\r\n 6",),
            ("Fencing-Token: 5\r\nX: 1",),
            ("Fencing-Token: 5", "Fencing-Token: 6"),
            ("Fencing-Token: 5", "fencing-token: 6"),
            ("Fencing-Token: 5", "Fencing_Token: 6"),
            ("Fencing-Token: public.accounts/1=6",),
            ("Fencing-Token: public.accounts/1=6,public.accounts/2=6",),
            (f"Fencing-Token: {2**60}",),
            ("Fencing-Token: 6", "Fencing-Holder: ann bob"),
            ("Fencing-Token: 6", "Fencing-Holder: %00"),
            ("Fencing-Token: 6", 'Fencing-Holder: "}]'),
            ("Fencing-Token: 6", "Fencing-Holder: "),
            ("Fencing-Token: 6", "Fencing-Resource: public.accounts/2"),
        )
    ),
    asked("GET /healthz"),
    asked("GET /bucket/key", KEY),
]


def history(seed: int) -> list[Step]:
    chance = random.Random(seed)
    return [_step(chance)._replace(connection=chance.randint(0, 1)) for _ in range(LENGTH)]


def _step(chance: random.Random) -> Step:
    kind = chance.random()
    if kind < 0.25:
        odd = chance.choice(ODD)
        return Step([odd], [odd.split()[0].decode()])
    method, packet = plain(chance)
    if kind < 0.7:
        return Step([packet], [method])
    if kind < 0.8:  # in two packets, cut anywhere
        cut = chance.randint(1, len(packet) - 1)
        return Step([packet[:cut], packet[cut:]], [method])
    others = [plain(chance) for _ in range(chance.randint(1, 3))]
    methods, packets = [method, *(name for name, _ in others)], [packet, *(text for _, text in others)]
    if kind < 0.9:  # behind one another in one packet
        return Step([b"".join(packets)], methods)
    whole = b"".join(packets)  # behind one another, in packets of their own that do not end with a request
    cuts = sorted({0, len(packet), chance.randint(1, len(whole)), len(whole)})
    return Step([whole[start:end] for start, end in pairwise(cuts)], methods)


@dataclass(slots=True)
class Client:
    """Connections of one client, which are opened again after the gateway has closed them."""

    origin: str
    _open: dict[int, tuple[asyncio.StreamReader, asyncio.StreamWriter]] = field(default_factory=dict)

    async def play(self, step: Step) -> list[bytes]:
        """Send the packets of a step. Return the answers to it, and the rest if the gateway has closed."""
        if step.connection not in self._open:
            address = urlsplit(self.origin)
            self._open[step.connection] = await asyncio.open_connection(address.hostname, address.port)
        reader, writer = self._open[step.connection]
        answers: list[bytes] = []
        async with asyncio.timeout(PATIENCE):
            try:
                for packet in step.packets:
                    writer.write(packet)
                    await writer.drain()
                    await asyncio.sleep(0)
                for method in step.methods:
                    answers.append(_OWN.sub(b"", await _answer(reader, method)))
                    if b"connection: close" in answers[-1]:
                        raise EOFError
            except (EOFError, OSError):
                answers.append(b"closed")
                writer.close()
                del self._open[step.connection]
        return answers

    def close(self) -> None:
        for _, writer in self._open.values():
            writer.close()


async def _answer(reader: asyncio.StreamReader, method: str) -> bytes:
    """Read one answer with everything before it, such as ``100 Continue``."""
    head = await reader.readuntil(b"\r\n\r\n")
    status = int(head.split()[1])
    if status < 200:
        return head + await _answer(reader, method)
    if method == "HEAD" or status in (204, 304):
        return head
    length = re.search(rb"\r\ncontent-length: (\d+)", head)
    assert length is not None, head
    return head + await reader.readexactly(int(length[1]))


async def _left(dsn: str) -> list[object]:
    """Return rows, fences and refusals, without ids and times."""
    connection = await asyncpg.connect(dsn)
    try:
        return [
            [tuple(row) for row in await connection.fetch(sql)]
            for sql in (
                "SELECT * FROM accounts ORDER BY id",
                "SELECT * FROM entries ORDER BY id",
                "SELECT resource, epoch, value, holder FROM fencing.fence ORDER BY resource",
                f"SELECT {REFUSED} FROM fencing.rejection ORDER BY at, resource",
            )
        ]
    finally:
        await connection.close()


def _told(events: Events) -> list[object]:
    """Return what metrics and the log of requests are made of, without ids and times."""
    told: list[object] = []
    for event in events:
        if isinstance(event, RequestAnswered):
            told.append(event._replace(request_id="", seconds=0.0))
        elif isinstance(event, WriteAccepted):
            told.append(event)
    return told


async def _outcome(
    server: Server, steps: list[Step], role: str | None = None
) -> tuple[list[object], list[object], list[object]]:
    async with fresh_database(server) as dsn:
        connection = await asyncpg.connect(dsn)
        await connection.execute(TABLES)
        roles = []
        if role is not None:
            await connection.execute(ACTING.format(role=role))
            await rights.let_act(dsn, [role])
            roles = [{"callers": ["*"], "role": role}]
        await connection.close()
        events = Events()
        async with running(config(dsn, tables=RULES, postgres={"roles": roles}), events) as origin:
            client = Client(origin)
            answers: list[object] = [
                (step, [_RECORD.sub("", one.decode("latin-1")) for one in await client.play(step)]) for step in steps
            ]
            client.close()
        return answers, await _left(dsn), _told(events)


@pytest.fixture
def direct_answers(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the statuses of direct answers, as they are given."""
    statuses: list[int] = []
    respond = Connection.respond

    def noted(self: Connection, status: int, *rest: Any) -> None:
        statuses.append(status)
        respond(self, status, *rest)

    monkeypatch.setattr(Connection, "respond", noted)
    # On a busy machine, a statement of a shared trip may take a second. It would go by another way then.
    monkeypatch.setattr(database, "SHARED_STATEMENT_TIMEOUT", PATIENCE)
    return statuses


@pytest.mark.thorough
@pytest.mark.parametrize("role", [None, "direct"])
@pytest.mark.parametrize("seed", first(range(6), pytest.mark.nightly))
async def test_no_client_sees_whether_a_request_had_a_task(
    postgres_server: Server,
    monkeypatch: pytest.MonkeyPatch,
    direct_answers: list[int],
    role: str | None,
    seed: int,
) -> None:
    """Under a role, the history is compared with planned requests, of which metrics and logs tell other things."""
    steps, compared = history(seed), 3 if role is None else 2
    with monkeypatch.context() as without:
        without.setattr(Middleware, "learn", lambda *_: None)
        if role is not None:
            without.setattr(FastPath, "begin", lambda *_: None)
            without.setattr(FastPath, "_is_eligible", lambda *_: False)
        expected = await _outcome(postgres_server, steps, role)
    assert direct_answers == []
    found = await _outcome(postgres_server, steps, role)
    for one, other in zip(expected[:compared], found[:compared], strict=True):
        assert [pair for pair in zip(one, other, strict=True) if pair[0] != pair[1]] == []
    assert {200, 201, 204} <= set(direct_answers)


@dataclass(slots=True)
class Stage:
    """A gateway whose direct answers are held up by a lock, and a connection whose head is known to it."""

    serving: Any
    events: Events
    lock: "asyncpg.Connection[asyncpg.Record]"
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def begin(self, *packets: bytes) -> None:
        """Lock all fences, send the packets, and return once the first of them waits for the lock."""
        await self.lock.execute("BEGIN")
        await self.lock.execute("LOCK TABLE fencing.fence IN ACCESS EXCLUSIVE MODE")
        self.writer.write(packets[0])
        async with asyncio.timeout(PATIENCE):
            while not await self.lock.fetchval(WAITING):
                await asyncio.sleep(0.01)
        for packet in packets[1:]:
            self.writer.write(packet)
            await asyncio.sleep(0.05)

    async def go_on(self, change: str = "SELECT") -> None:
        """Change the fence by a statement, and give up the lock."""
        await self.lock.execute(f"{change}; COMMIT")

    async def answer(self, method: str = "PATCH") -> bytes:
        async with asyncio.timeout(PATIENCE):
            return await _answer(self.reader, method)


PLAIN = asked(PATCH, KEY, "Fencing-Token: 5", body=BALANCE)
WAITING = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND wait_event_type = 'Lock' AND wait_event = 'relation'
"""
RAISED = "UPDATE fencing.fence SET value = 9 WHERE resource = 'public.accounts/1'"
GONE = "DELETE FROM fencing.fence WHERE resource = 'public.accounts/1'"


@pytest.fixture
async def stage(
    postgres_server: Server, monkeypatch: pytest.MonkeyPatch, direct_answers: list[int]
) -> AsyncIterator[Stage]:
    built: list[Any] = []
    build = app.build

    def kept(*given: Any) -> Any:
        built.append(build(*given))
        return built[-1]

    monkeypatch.setattr(app, "build", kept)
    async with fresh_database(postgres_server) as dsn:
        connection = await asyncpg.connect(dsn)
        await connection.execute(TABLES)
        events = Events()
        async with running(config(dsn, tables=RULES), events) as origin:
            address = urlsplit(origin)
            reader, writer = await asyncio.open_connection(address.hostname, address.port)
            stage = Stage(built[0], events, connection, reader, writer)
            for _ in range(4):
                writer.write(PLAIN)
                assert b" 204 " in await stage.answer()
            assert direct_answers == [204, 204], "the head and the form are known by now"
            direct_answers.clear()
            yield stage
            writer.close()
        await connection.close()


async def test_known_heads_keep_no_api_key(stage: Stage) -> None:
    for _ in range(3):
        stage.writer.write(asked(PATCH, KEY, "User-Agent: x?api_key=secret", "Fencing-Token: 5", body=BALANCE))
        assert b" 204 " in await stage.answer()
    kept = repr(vars(stage.serving.app.known_heads))
    assert "/v1/tables/accounts" in kept
    assert API_KEY not in kept
    assert "x?api_key=[redacted]" in kept
    assert "api_key=secret" not in kept


class Proven(Use):
    """Requests with one head, whose caller has shown a key and a certificate. Each of them needs a task after all."""

    origin = Origin("tables", "GET", "ann", None)

    def __init__(self, left: int) -> None:
        """``left``: the seconds for which the certificate lasts."""
        now, self.steps = datetime.now(UTC), list[str]()
        self.proof, self.use = Proof(now + timedelta(seconds=left), lambda: now), self

    def note(self) -> None:
        self.steps.append("noted")

    def begin(self, *_: object) -> None:
        self.steps.append("begun")


@pytest.mark.parametrize(("left", "steps"), [(1, ["noted", "begun"]), (0, [])])
def test_a_request_begins_without_a_task_only_while_its_caller_is_proven(left: int, steps: list[str]) -> None:
    """It may be for any app: no app has to look at that itself."""
    prepared: Any = Proven(left)
    exchange: Any = SimpleNamespace(client=None)
    assert not Middleware(cast("Any", None), lambda _: None).begin(prepared, Packet(b"", b"", b"", {}), exchange)
    assert prepared.steps == steps


async def test_a_zero_byte_stands_for_no_token_of_another_request(stage: Stage, direct_answers: list[int]) -> None:
    """It marks the place of a token in a known head. The parser refuses it."""
    stage.writer.write(PLAIN.replace(b"Token: 5", b"Token: \0"))
    assert b" 400 " in await stage.answer()
    assert direct_answers == []


async def test_requests_behind_a_direct_one_wait_for_it(stage: Stage, direct_answers: list[int]) -> None:
    follower = asked(GET, KEY)
    await stage.begin(PLAIN, follower[:20], follower[20:] + PLAIN + follower)
    assert direct_answers == []
    await stage.go_on()
    for method, status in (("PATCH", b" 204 "), ("GET", b" 200 "), ("PATCH", b" 204 "), ("GET", b" 200 ")):
        assert status in await stage.answer(method)
    assert direct_answers == [204]


async def test_a_direct_request_ends_in_the_gateway_that_it_began_with(stage: Stage, direct_answers: list[int]) -> None:
    """Its fence is gone, so a task has to raise it again, and that task belongs to the former gateway, too."""

    async def other(_: Any, __: Any, ___: Any) -> None:
        raise AssertionError("a request went to another gateway than it began with")

    former = stage.serving.app
    await stage.begin(PLAIN)
    stage.serving.app = other
    former.retire()
    await stage.go_on(GONE)
    assert b" 204 " in await stage.answer()
    assert direct_answers == []
    async with asyncio.timeout(PATIENCE):
        await former._idle.wait()  # it counts the request once, and so ends after it


async def test_a_direct_request_whose_client_is_gone_is_refused_on_record(stage: Stage) -> None:
    await stage.begin(PLAIN)
    stage.writer.transport.abort()
    await asyncio.sleep(0.05)
    await stage.go_on(RAISED)
    async with asyncio.timeout(PATIENCE):
        while not await stage.lock.fetchval("SELECT count(*) FROM fencing.rejection WHERE value = 5"):
            await asyncio.sleep(0.01)
        while not [event for event in stage.events if isinstance(event, RequestAnswered) and event.status == 412]:
            await asyncio.sleep(0.01)


STALE = "SELECT * FROM fencing.record WHERE reason = 'token-stale' ORDER BY at"
OWN = ("id", "at", "request_id", "position", "day", "hash")


@pytest.fixture
async def overtaken(stage: Stage, direct_answers: list[int]) -> Stage:
    """Return a gateway that has refused one stale write, in a task. It knows from then on that the fence is higher."""
    await stage.lock.execute(RAISED)
    stage.writer.write(PLAIN)
    assert b" 412 " in await stage.answer()
    assert direct_answers == []
    return stage


async def test_a_stale_write_is_refused_without_a_task_and_as_in_one(
    overtaken: Stage, direct_answers: list[int]
) -> None:
    overtaken.writer.write(PLAIN)
    answer = await overtaken.answer()
    assert direct_answers == [412]
    by_task, direct = map(dict, await overtaken.lock.fetch(STALE))
    assert str(direct["id"]) in answer.decode()
    assert direct["request_id"] in answer.decode()
    assert by_task["request_id"] != direct["request_id"]
    assert {name: by_task[name] for name in by_task if name not in OWN} == {
        name: direct[name] for name in direct if name not in OWN
    }
    told = [one for one in overtaken.events if isinstance(one, RequestAnswered) and one.status == 412]
    assert told[0]._replace(request_id="", seconds=0.0) == told[1]._replace(request_id="", seconds=0.0)
    assert told[1].code == "token-stale"


async def test_each_refusal_of_a_zombie_names_its_own_entry_and_the_fence_of_that_moment(
    overtaken: Stage, direct_answers: list[int]
) -> None:
    answers = []
    for fence in (9, 9, 10):
        await overtaken.lock.execute(f"UPDATE fencing.fence SET value = {fence}")
        overtaken.writer.write(PLAIN)
        answers.append((await overtaken.answer()).decode())
    assert direct_answers == [412, 412, 412]
    recorded = (await overtaken.lock.fetch(STALE))[1:]
    assert [entry["fence_value"] for entry in recorded] == [9, 9, 10]
    assert [entry["id"].version for entry in recorded] == [4, 4, 4]
    for entry, answer in zip(recorded, answers, strict=True):
        assert f"the fence is {entry['fence_value']}," in answer
        assert f"rejection {entry['id']}." in answer


async def test_a_stale_write_without_a_task_is_on_record_before_its_answer(
    overtaken: Stage, direct_answers: list[int]
) -> None:
    await overtaken.lock.execute("BEGIN; LOCK TABLE fencing.intake IN EXCLUSIVE MODE")
    overtaken.writer.write(PLAIN)
    async with asyncio.timeout(PATIENCE):
        while not await overtaken.lock.fetchval(WAITING):
            await asyncio.sleep(0.01)
    assert direct_answers == []
    overtaken.writer.transport.abort()  # its client does not wait, and it is on record nevertheless
    await overtaken.go_on()
    async with asyncio.timeout(PATIENCE):
        while len(await overtaken.lock.fetch(STALE)) < 2:
            await asyncio.sleep(0.01)


async def test_a_stale_write_without_a_task_that_cannot_be_recorded_is_not_answered_as_one(
    overtaken: Stage, direct_answers: list[int]
) -> None:
    await overtaken.lock.execute("ALTER TABLE fencing.intake ADD CHECK (reason IS NULL) NOT VALID")
    overtaken.writer.write(PLAIN)
    assert b" 503 " in await overtaken.answer()
    assert direct_answers == []
    assert len(await overtaken.lock.fetch(STALE)) == 1


async def test_a_write_without_a_task_is_executed_if_its_fence_is_not_higher_after_all(
    overtaken: Stage, direct_answers: list[int]
) -> None:
    await overtaken.lock.execute(GONE)
    overtaken.writer.write(PLAIN)
    assert b" 204 " in await overtaken.answer()
    assert direct_answers == []
    assert len(await overtaken.lock.fetch(STALE)) == 1


async def test_a_refusal_whose_answer_fails_is_on_record_once(
    overtaken: Stage, direct_answers: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its task finds the entry that is there already."""

    def broken(*_: Any) -> None:
        raise RuntimeError

    with monkeypatch.context() as patched:
        patched.setattr(FastPath, "confirmed", broken)
        overtaken.writer.write(PLAIN)
        assert b" 412 " in await overtaken.answer()
    assert direct_answers == []
    assert len(await overtaken.lock.fetch(STALE)) == 2


async def test_the_body_of_a_direct_request_may_come_in_a_packet_of_its_own(
    stage: Stage, direct_answers: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    [connection] = _connections(stage)
    monkeypatch.setattr(http_connection, "HOLD", PATIENCE)
    for _ in range(2):
        stage.writer.write(PLAIN[:-13])
        await _until(lambda: connection._held == PLAIN[:-13])
        stage.writer.write(PLAIN[-13:])
        assert b" 204 " in await stage.answer()
    assert direct_answers == [204, 204]
    monkeypatch.setattr(http_connection, "HOLD", 0.02)
    stage.writer.write(PLAIN[:-13])
    await _until(lambda: not connection._is_idle())
    stage.writer.write(PLAIN[-13:])
    assert b" 204 " in await stage.answer()
    assert direct_answers == [204, 204], "a body that comes late is waited for in a task"


async def _until(seen: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not seen():
            await asyncio.sleep(0.001)


async def test_a_request_whose_body_is_missing_ends_with_its_connection(stage: Stage) -> None:
    before = len(_told(stage.events))
    stage.writer.write(PLAIN[:-13])
    await asyncio.sleep(0.001)
    stage.writer.close()
    async with asyncio.timeout(PATIENCE):
        while len(_told(stage.events)) == before:
            await asyncio.sleep(0.01)
    (answered,) = _told(stage.events)[before:]
    assert isinstance(answered, RequestAnswered)
    assert answered.status == 0


async def test_a_direct_request_is_answered_while_the_gateway_stops(stage: Stage, direct_answers: list[int]) -> None:
    await stage.begin(PLAIN)
    for connection in list(_connections(stage)):
        connection.shutdown()
    await stage.go_on()
    answer = await stage.answer()
    assert b" 204 " in answer
    assert b"connection: close" in answer
    assert await stage.reader.read() == b""
    assert direct_answers == [204]


async def test_a_connection_is_kept_alive_from_its_last_direct_answer_on(stage: Stage) -> None:
    """The clock of uvicorn began with an answer of a task, before. It is not stopped at each request."""
    [connection] = _connections(stage)
    connection.timeout_keep_alive_handler()
    assert not connection.transport.is_closing()
    assert connection.timeout_keep_alive_task is not None, "it looks again later"
    await stage.begin(PLAIN)
    connection._answered = float("-inf")
    connection.timeout_keep_alive_handler()
    await stage.go_on()
    assert b" 204 " in await stage.answer()
    assert connection.timeout_keep_alive_task is not None, "the answer has started the clock again"
    connection._answered = float("-inf")
    connection.timeout_keep_alive_handler()
    assert await stage.reader.read() == b""


class Noted:
    """A request without a task that notes what happens to it."""

    def __init__(self, number: int, steps: list[str], *, fails: bool = False) -> None:
        self.row: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._number, self._steps, self._fails = number, steps, fails

    def answer(self) -> None:
        self._steps.append(f"made {self._number}")

    def finish(self, _: None) -> None:
        self._steps.append(f"sent {self._number}")
        if self._fails:
            raise ValueError(self._number)


async def _steps(*rows: int, fails: bool = False) -> list[str]:
    """Return what happens to four requests whose rows are done in this order, but for those that are not."""
    steps: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: steps.append(f"failed {context['exception']}"))
    finishing, requests = Finishing(), [Noted(number, steps, fails=fails) for number in range(4)]
    for one in requests:
        finishing.await_row(one.row, cast("Any", one))
    for number in rows:
        requests[number].row.set_result(None)
    await asyncio.sleep(0)
    for one in requests:
        one.row.cancel()
    return steps


async def test_all_answers_to_a_batch_are_made_before_the_first_is_sent() -> None:
    assert await _steps(2, 0, 3) == ["made 2", "made 0", "made 3", "sent 2", "sent 0", "sent 3"]


async def test_a_request_that_cannot_be_finished_holds_up_no_other() -> None:
    made = ["made 1", "made 0"]
    assert await _steps(1, 0, fails=True) == [*made, "sent 1", "failed 1", "sent 0", "failed 0"]


async def test_a_request_behind_many_others_is_finished_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct, "_OLDEST", 1)
    assert await _steps(3, 2) == ["made 3", "sent 3", "made 2", "sent 2"]


def _connections(stage: Stage) -> set[Connection]:
    # By their types: some objects of libraries come to life when they are asked for their class.
    connections = [one for one in gc.get_objects() if issubclass(type(one), Connection)]
    return {one for one in connections if one.app is stage.serving}
