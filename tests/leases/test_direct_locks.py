"""Locks that are asked for without a task: the same answers, events, records and leases as with one."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import orjson
import pytest

from gateway.config.access import GrantRule
from gateway.db import leases
from gateway.errors import OutcomeUnknown
from gateway.http.connection import Connection
from gateway.http.middleware import Middleware
from gateway.observe.events import LeaseAnswered, RequestAnswered, StageLeft, StepReached
from tests.leases.asking import CALLERS, OTHER_KEY
from tests.postgres import Server, fresh_database
from tests.running import API_KEY, Events, config, running
from tests.waiting import PATIENCE

STRANGER_KEY = "stranger-api-key"
LEASE = r"[0-9a-fA-F]{8}-?(?:[0-9a-fA-F]{4}-?){3}[0-9a-fA-F]{12}"
_VARIES = re.compile(rf"{LEASE}|\d{{4}}-\d\d-\d\dT[0-9:.]+Z|\r\n(?:date|x-request-id): [^\r]*|\"expires_in\":[0-9.]+")
_LENGTH = re.compile(r"\r\ncontent-length: \d+")  # that of an answer with a number of seconds
NOBODY = "00000000-0000-0000-0000-000000000000"


@dataclass(slots=True)
class Client:
    """A client with one connection, which sends each request as one packet, and keeps the leases that it gets."""

    origin: str
    leases: dict[str, str] = field(default_factory=dict)
    _open: "tuple[asyncio.StreamReader, asyncio.StreamWriter] | None" = None

    async def ask(
        self, method: str, path: str, body: object = None, key: str | None = API_KEY, headers: Sequence[str] = ()
    ) -> tuple[int, str, bytes]:
        """Return the status, the head and the body of an answer. ``{name}`` in a path is the lease of this lock."""
        address = urlsplit(self.origin)
        if self._open is None:
            self._open = await asyncio.open_connection(address.hostname, address.port)
        reader, writer = self._open
        content = b"" if body is None else body if isinstance(body, bytes) else orjson.dumps(body)
        lines = [f"{method} {path.format_map(self.leases)} HTTP/1.1", "Host: gateway", *headers]
        lines += [f"Authorization: Bearer {key}"] * (key is not None) + [f"Content-Length: {len(content)}", "", ""]
        writer.write("\r\n".join(lines).encode() + content)
        async with asyncio.timeout(PATIENCE):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            while head.startswith("HTTP/1.1 100 "):
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
            length = re.search(r"\r\ncontent-length: (\d+)", head)
            answer = await reader.readexactly(int(length[1])) if length else b""
        if "\r\nconnection: close" in head:
            self.close()
        status = int(head.split()[1])
        if method == "POST" and status in (200, 201):
            lease = orjson.loads(answer)
            self.leases[lease["resource"].replace("/", "_")] = lease["lease"]
        return status, head, answer

    def close(self) -> None:
        if self._open is not None:
            self._open[1].close()
            self._open = None


@pytest.fixture
def direct(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the statuses of answers without a task, as they are given."""
    statuses: list[int] = []
    respond = Connection.respond

    def noted(self: Connection, status: int, *rest: Any) -> None:
        statuses.append(status)
        respond(self, status, *rest)

    monkeypatch.setattr(Connection, "respond", noted)
    return statuses


@asynccontextmanager
async def serving(server: Server) -> AsyncIterator[tuple[str, Events, Client]]:
    """Serve a gateway, and let it know the heads of requests for locks. A stranger may lock nothing but ``open/**``."""
    stranger = {"name": "stranger", "api_key": STRANGER_KEY}
    grants = [
        {"callers": ["writer", "other"], "actions": ["lock", "read", "barrier"], "everything": True},
        {"callers": ["stranger"], "actions": ["lock"], "resources": ["open/**"]},
    ]
    resources = [{"match": "delayed/*", "lock_delay": 600}]
    more: dict[str, Any] = {"resources": resources, "leases": {"max_ttl": 3000}, "limits": {"max_wait": 30}}
    async with fresh_database(server) as dsn, AsyncExitStack() as stack:
        built, events = config(dsn, callers=[*CALLERS, stranger], **more), Events()
        built = built.model_copy(update={"grants": tuple(map(GrantRule.model_validate, grants))})
        client = Client(await stack.enter_async_context(running(built, events)))
        for number in range(3):
            for key in (API_KEY, OTHER_KEY, STRANGER_KEY):
                assert (await client.ask("POST", f"/v1/leases/open/{number}", WISH, key))[0] == 201
                path = f"/v1/leases/open/{number}/{{open_{number}}}"
                assert (await client.ask("PUT", path, {}, key))[0] == 200
                assert (await client.ask("DELETE", path, None, key))[0] == 204
        yield dsn, events, client
        client.close()


WISH: dict[str, Any] = {"holder": "ann", "ttl": 30}
LONG = "x" * 513
ASKED: list[tuple[Any, ...]] = [
    ("POST", "/v1/leases/job/1", WISH),
    ("POST", "/v1/leases/job/1", {**WISH, "ttl": 60}),
    ("POST", "/v1/leases/job/1", {"holder": "bob"}),
    ("POST", "/v1/leases/job/1", {"holder": "bob", "wait": 0.1}),
    ("POST", "/v1/leases/job/1", {"holder": "bob", "wait": 0.1, "request": "r1"}),
    ("POST", "/v1/withdrawals/job/1", {"holder": "bob", "request": "r1"}),
    ("POST", "/v1/leases/job/1", WISH, OTHER_KEY),
    ("PUT", "/v1/leases/job/1/{job_1}", {}),
    ("PUT", "/v1/leases/job/1/{job_1}", {"ttl": 45}),
    ("PUT", "/v1/leases/job/1/{job_1}", None),
    ("PUT", "/v1/leases/job/1/{job_1}", {"ttl": 3001}),
    ("PUT", "/v1/leases/job/1/{job_1}", {"ttl": "45"}),
    ("PUT", "/v1/leases/job/1/{job_1}", {"tll": 45}),
    ("PUT", "/v1/leases/job/1/{job_1}", {}, OTHER_KEY),
    ("PUT", "/v1/leases/job/1/{job_1}", {}, STRANGER_KEY),
    ("PUT", "/v1/leases/job/2/{job_1}", {}),
    ("PUT", f"/v1/leases/job/1/{NOBODY}", {}),
    ("PUT", "/v1/leases/job/1/lease", {}),
    ("PUT", "/v1/leases/job", {}),
    ("PUT", "/v1/leases/job/", {}),
    ("PUT", "/v1/leases//", {}),
    ("DELETE", "/v1/leases/job/1/{job_1}", None, OTHER_KEY),
    ("DELETE", "/v1/leases/job/1/{job_1}", None, STRANGER_KEY),
    ("DELETE", "/v1/leases/job/1/lease"),
    ("DELETE", f"/v1/leases/job/1/{NOBODY}"),
    ("DELETE", "/v1/leases/job"),
    ("DELETE", "/v1/leases/job/1/{job_1}", {"a": "body that nothing reads"}),
    ("DELETE", "/v1/leases/job/1/{job_1}"),
    ("PUT", "/v1/leases/job/1/{job_1}", {}),
    ("POST", "/v1/leases/job/1", {**WISH, "wait": 5}),
    ("POST", "/v1/leases/job/1", {**WISH, "wait": 5}),
    ("POST", "/v1/leases/job/3", {**WISH, "barrier": True}),
    ("POST", "/v1/leases/job/3", WISH),
    ("POST", "/v1/leases/job/3", {**WISH, "barrier": 1}),
    ("POST", "/v1/leases/shared/1", {**WISH, "mode": "shared"}),
    ("POST", "/v1/leases/shared/1", {"holder": "bob", "mode": "shared", "request": "r2"}),
    ("POST", "/v1/leases/shared/1", WISH),
    ("POST", "/v1/leases/shared/1", {**WISH, "wait": 1}),
    ("POST", "/v1/leases/delayed/1", WISH),
    ("POST", "/v1/leases/job/4", {**WISH, "wait": 31}),
    ("POST", "/v1/leases/job/4", {**WISH, "ttl": 3001}),
    ("POST", "/v1/leases/job/4", {**WISH, "ttl": 0.01}),
    ("POST", "/v1/leases/job/4", {**WISH, "ttl": "30"}),
    ("POST", "/v1/leases/job/4", {**WISH, "mode": "other"}),
    ("POST", "/v1/leases/job/4", {**WISH, "more": 1}),
    ("POST", "/v1/leases/job/4", {"ttl": 30}),
    ("POST", "/v1/leases/job/4", {**WISH, "holder": "\0"}),
    ("POST", "/v1/leases/job/4", {**WISH, "holder": "x" * 201}),
    ("POST", "/v1/leases/job/4", b"{"),
    ("POST", "/v1/leases/job/4", b"[" * 5001),
    ("POST", "/v1/leases/job/4", None),
    ("POST", "/v1/leases/job/../4", WISH),
    ("POST", "/v1/leases/job/.", WISH),
    ("POST", "/v1/leases/.job", WISH),
    ("POST", "/v1/leases/job%2F4", WISH),
    ("POST", "/v1/leases/job/%61", WISH),
    ("POST", "/v1/leases/job/%C3%A4", WISH),
    ("POST", "/v1/leases/job,4", WISH),
    ("POST", f"/v1/leases/{LONG}", WISH),
    ("POST", "/v1/leases/", WISH),
    ("POST", "/v1/leases//", WISH),
    ("POST", "/v1/leases", WISH),
    ("POST", "/v1/lease?resource=job/5", WISH),
    ("POST", "/v1/leases/job/6?resource=job/5&x=1", WISH),
    ("POST", "/v1/leases/job/1", WISH, STRANGER_KEY),
    ("POST", "/v1/leases/open/9", WISH, STRANGER_KEY),
    ("POST", "/v1/leases/open/9", WISH, "wrong-key"),
    ("POST", "/v1/leases/open/9", WISH, None),
    ("POST", "/v1/leases/job/7", WISH, API_KEY, ["X-Request-Id: mine"]),
    ("POST", "/v1/leases/job/8", WISH, API_KEY, ["Expect: 100-continue"]),
    ("POST", "/v1/leases/job/9", WISH, API_KEY, ["Origin: https://elsewhere.example", "Sec-Fetch-Site: cross-site"]),
    ("POST", "/v1/leases/job/10", WISH, API_KEY, ["Fencing-Token: 7", "Fencing-Holder: eve"]),
    ("PUT", "/v1/leases", {"leases": [{"resource": "job/1", "lease": NOBODY}]}),
    ("GET", "/v1/leases/job/7"),
    ("POST", f"/v1/leases/{NOBODY}", WISH),
]
RECORDED = """
SELECT kind, resource, epoch, value, holder, caller, method, target, details - 'acquired_at' - 'expires_at'
FROM (SELECT * FROM fencing.intake) AS entry ORDER BY number
"""
HELD = "SELECT resource, holder, caller, mode, epoch, value, request, ttl, confirmed FROM fencing.lease ORDER BY 1, 2"
ISSUED = "SELECT resource, epoch, value FROM fencing.lock ORDER BY resource"


async def outcome(server: Server) -> tuple[list[Any], list[Any], list[Any]]:
    """Ask everything twice, so that all heads that can be known are known. Return what clients, others and rows saw."""
    seen: list[Any] = []
    async with serving(server) as (dsn, events, client):
        events.clear()
        for round_ in range(3):
            for one in ASKED:
                method, path, *more = one
                status, head, body = await client.ask(method, path, *more)
                head = _LENGTH.sub("", head) if b"expires_in" in body else head
                seen.append((round_, one, status, _VARIES.sub("", head), _VARIES.sub("", body.decode())))
            for name, lease in list(client.leases.items()):
                for key in (API_KEY, OTHER_KEY, STRANGER_KEY):
                    path = f"/v1/leases/{name.replace('_', '/')}/{lease}"
                    seen.append((round_, name, (await client.ask("DELETE", path, None, key))[0]))
            client.leases.clear()
            client.leases["job_1"] = NOBODY
        told: list[Any] = [
            one._replace(request_id="", seconds=0.0, sent=0)
            if isinstance(one, RequestAnswered)
            else one._replace(seconds=0.0)
            if isinstance(one, StageLeft)
            else one
            for one in events
            if isinstance(one, (RequestAnswered, LeaseAnswered))
            or (isinstance(one, StepReached) and one.name.startswith("leases."))
            or (isinstance(one, StageLeft) and one.area == "leases")
        ]
        assert not re.search(LEASE.replace("[0-9a-fA-F]", "[0-9a-f]"), "".join(str(one) for one in told))
        rows = await rows_of(dsn, RECORDED, HELD, ISSUED)
    return seen, told, rows


async def rows_of(dsn: str, *queries: str) -> list[list[tuple[Any, ...]]]:
    connection = await asyncpg.connect(dsn)
    try:
        return [[tuple(row) for row in await connection.fetch(sql)] for sql in queries]
    finally:
        await connection.close()


async def test_no_client_sees_whether_a_lock_had_a_task(
    postgres_server: Server, monkeypatch: pytest.MonkeyPatch, direct: list[int]
) -> None:
    # Sealing would take rows out of the intake while they are read.
    monkeypatch.setattr("gateway.record.sealing.Sealing.running", _no_sealing)
    with monkeypatch.context() as without:
        without.setattr(Middleware, "learn", lambda *_: None)
        expected = await outcome(postgres_server)
    assert direct == []
    found = await outcome(postgres_server)
    for one, other in zip(expected, found, strict=True):
        assert [pair for pair in zip(one, other, strict=True) if pair[0] != pair[1]][:1] == []
    assert {200, 201, 204} == set(direct)


@asynccontextmanager
async def _no_sealing(_: Any) -> AsyncIterator[None]:
    yield


async def test_one_question_is_asked_for_each_request_that_is_granted(
    postgres_server: Server, monkeypatch: pytest.MonkeyPatch, direct: list[int]
) -> None:
    """A task goes on with the answer to the question that its request has asked, so it asks that no second time."""
    asked = _counted(monkeypatch)
    async with serving(postgres_server) as (_, _, client):
        asked.clear()
        direct.clear()
        lock = "/v1/leases/job/1"
        answers = [
            *(await client.ask("POST", lock, WISH), await client.ask("POST", lock, {**WISH, "wait": 5})),
            await client.ask("POST", lock, {"holder": "bob"}),
            *(
                await client.ask("PUT", lock + "/{job_1}", {}),
                await client.ask("PUT", lock + "/{job_1}", {}, OTHER_KEY),
            ),
            *(await client.ask("DELETE", lock + "/{job_1}"), await client.ask("DELETE", lock + "/{job_1}")),
        ]
    assert [status for status, _, _ in answers] == [201, 200, 409, 200, 403, 204, 410]
    assert direct == [201, 200, 204]
    assert asked == [*["acquire_free"] * 2, *["acquire"] * 2, *["renew"] * 2, *["release_free"] * 2, "release"]


async def test_a_lock_that_is_held_is_asked_for_by_one_question(
    postgres_server: Server, monkeypatch: pytest.MonkeyPatch, direct: list[int]
) -> None:
    """Clients try again and again. The first of them that gets the lock makes it an ordinary one again."""
    asked = _counted(monkeypatch)
    async with serving(postgres_server) as (_, _, client):
        lock, release, bob = "/v1/leases/job/1", "/v1/leases/job/1/{job_1}", {"holder": "bob"}
        assert (await client.ask("POST", lock, WISH))[0] == 201
        assert (await client.ask("POST", lock, bob))[0] == 409
        asked.clear()
        assert [(await client.ask("POST", lock, bob))[0] for _ in range(3)] == [409] * 3
        assert (await client.ask("DELETE", release))[0] == 204
        direct.clear()
        assert [(await client.ask("POST", lock, bob))[0], (await client.ask("DELETE", release))[0]] == [201, 204]
        assert [(await client.ask("POST", lock, bob))[0], (await client.ask("DELETE", release))[0]] == [201, 204]
    assert direct == [204, 201, 204]
    assert asked == [*["acquire"] * 3, "release_free", "acquire", "release_free", "acquire_free", "release_free"]


async def test_an_answer_that_was_lost_is_asked_for_again(
    postgres_server: Server, monkeypatch: pytest.MonkeyPatch, direct: list[int]
) -> None:
    """The first attempt has taken effect. No client learns of it: it gets the lease, and has ended it."""
    asked = _counted(monkeypatch, lose=lambda: losing)
    losing = False
    async with serving(postgres_server) as (dsn, _, client):
        asked.clear()
        direct.clear()
        losing = True
        acquired, _, first = await client.ask("POST", "/v1/leases/job/1", WISH)
        renewed, _, second = await client.ask("PUT", "/v1/leases/job/1/{job_1}", {"ttl": 60})
        released, _, _ = await client.ask("DELETE", "/v1/leases/job/1/{job_1}")
        assert (acquired, renewed, released) == (200, 200, 204)
        assert orjson.loads(first)["token"] == orjson.loads(second)["token"] == "1"
        assert await rows_of(dsn, HELD) == [[]]
    assert asked == ["acquire_free", *["acquire"] * 2, *["renew"] * 2, "release_free", "release"]
    assert direct == []


async def test_waiters_keep_their_order(postgres_server: Server, direct: list[int]) -> None:
    """The first of them has asked before it had a task, and the others have had tasks from the start."""
    async with serving(postgres_server) as (_, events, client), asyncio.TaskGroup() as tasks:
        lock, others = "/v1/leases/job/1", [Client(client.origin) for _ in range(4)]
        direct.clear()
        assert (await client.ask("POST", lock, {**WISH, "wait": 5}))[0] == 201
        waiting = []
        for number, other in enumerate(others):
            wish = {"holder": f"holder-{number}", "wait": PATIENCE / 2}
            waiting.append(tasks.create_task(other.ask("POST", lock, wish)))
            await _until_waiting(client, lock, number + 1)
        assert direct == [201]
        holders = [client]
        for number, (task, other) in enumerate(zip(waiting, others, strict=True)):
            assert (await holders[-1].ask("DELETE", lock + "/{job_1}"))[0] == 204
            status, _, answer = await task
            assert (status, orjson.loads(answer)["token"]) == (201, str(number + 2))
            holders.append(other)
        assert direct == [201], "a lock that others wait for is handed over by a task"
        for other in others:
            other.close()
    assert [one.answer for one in events if isinstance(one, LeaseAnswered)][-9:].count("granted") == 5


async def test_a_client_that_hangs_up_before_it_has_a_task_leaves_the_queue(postgres_server: Server) -> None:
    async with serving(postgres_server) as (dsn, _, client):
        assert (await client.ask("POST", "/v1/leases/job/1", WISH))[0] == 201
        gone = Client(client.origin)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await gone.ask("POST", "/v1/leases/job/1", {"holder": "bob", "wait": PATIENCE / 2})
        gone.close()
        await _until_waiting(client, "/v1/leases/job/1", 0)
        assert (await client.ask("DELETE", "/v1/leases/job/1/{job_1}"))[0] == 204
        assert await rows_of(dsn, HELD) == [[]]


def _counted(monkeypatch: pytest.MonkeyPatch, lose: Callable[[], bool] = lambda: False) -> list[str]:
    """Return the kind of each question to the database, as they are asked. ``lose``: the first answers of each are."""
    asked: list[str] = []

    def counting(name: str) -> Callable[..., Awaitable[Any]]:
        ask = getattr(leases, name)

        async def counted(*given: Any, **patience: bool) -> Any:
            asked.append(name)
            answers = await ask(*given, **patience)
            if lose() and not patience.get("patient"):
                raise OutcomeUnknown("The answer was lost.")
            return answers

        return counted

    for name in ("acquire_free", "acquire", "renew", "release_free", "release"):
        monkeypatch.setattr(leases, name, counting(name))
    return asked


async def _until_waiting(client: Client, path: str, number: int) -> None:
    asking = Client(client.origin)
    async with asyncio.timeout(PATIENCE):
        while orjson.loads((await asking.ask("GET", path))[2])["waiters"] != number:
            await asyncio.sleep(0.01)
    asking.close()
