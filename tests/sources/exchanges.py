"""Exchanges with real servers: recorded from a server, and replayed, request by request, without one.

A lane is one client of a server: a source, or the operator. Each has a port of its own. The replay checks each request
of a lane whole: method, path, query, credentials and body. It sends an answer once it has sent all answers that precede
it in the recording. A client makes up some values anew each time (UUIDs and times). The replay translates them: from
then on the sent one stands for the recorded one, in both directions.

``RECORD=1 pytest tests/sources/test_consul.py tests/sources/test_kubernetes.py -k live`` writes the recordings anew.
"""

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

import httpx
import pytest
from aiohttp import web

from gateway.client.errors import LockLost, NotAcquired
from gateway.client.source import Held, Source

PATIENCE: Final = 20.0

Json: TypeAlias = dict[str, Any]

_SENT: Final = ("X-Consul-Token", "Authorization")
_ANSWERED: Final = ("X-Consul-Index", "Content-Type")
_UUID: Final = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_TIME: Final = r"[0-9-]{10}T[0-9:]{8}\.[0-9]{6}Z"
_MADE_UP: Final = re.compile(f"({_UUID})|({_TIME})|(wait=[0-9]+ms)")


@dataclass(slots=True)
class Fault:
    """The break-off of a lane's requests whose method and path contain ``part``.

    ``lose``: after the server carried them out. ``times``: how many; ``after``: how many pass before them.
    """

    part: str
    lose: bool
    times: int = 1
    after: int = 0

    def hits(self, request: str) -> bool:
        if self.part not in request or not self.times:
            return False
        if self.after:
            self.after -= 1
            return False
        self.times -= 1
        return True


@dataclass(slots=True)
class Lane:
    """``arrived``: method and path of each request so far. ``gate``: closed, those with ``closed_to`` in them wait."""

    arrived: list[str] = field(default_factory=list)
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    closed_to: str = ""
    faults: list[Fault] = field(default_factory=list)
    on_their_way: int = 0
    url: str = ""


class Stage:
    """The lanes of one test. ``answer`` is the recorder's or the replayer's."""

    def __init__(self, answer: "Recorder | Replayer", stack: AsyncExitStack) -> None:
        self._answer = answer
        self._stack = stack
        self._lanes: dict[str, Lane] = {}
        self._changed = asyncio.Condition()

    async def lane(self, name: str, server: str = "") -> Lane:
        """The lane of this name; ``server`` is which of several it talks to."""
        if name not in self._lanes:
            lane = self._lanes[name] = Lane()
            lane.gate.set()
            lane.url = await self._listening(name, server)
        return self._lanes[name]

    async def until_sent(self, name: str, part: str, times: int = 1) -> None:
        """Wait for the request of a lane whose method, path and query have ``part`` in them."""
        lane = self._lanes[name]
        async with asyncio.timeout(PATIENCE), self._changed:
            await self._changed.wait_for(lambda: sum(part in sent for sent in lane.arrived) >= times)

    async def until_arrived(self, name: str) -> None:
        """Wait for what was on its way when the gate was opened."""
        lane = self._lanes[name]
        async with asyncio.timeout(PATIENCE), self._changed:
            await self._changed.wait_for(lambda: not lane.on_their_way)

    def _late(self, lane: Lane, name: str, server: str, sent: Json) -> "asyncio.Task[Json]":
        async def arrive() -> Json:
            try:
                await lane.gate.wait()
                return await self._answer(name, server, sent)
            finally:
                lane.on_their_way -= 1
                async with self._changed:
                    self._changed.notify_all()

        lane.on_their_way += 1
        return asyncio.create_task(arrive())

    async def _listening(self, name: str, server: str) -> str:
        async def handle(request: web.BaseRequest) -> web.StreamResponse:
            return await self._handled(name, server, request)

        runner = web.ServerRunner(web.Server(handle, handler_cancellation=True), shutdown_timeout=0.1)
        await runner.setup()
        self._stack.push_async_callback(runner.cleanup)
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        return f"http://{host}:{port}"

    async def _handled(self, name: str, server: str, request: web.BaseRequest) -> web.StreamResponse:
        lane = self._lanes[name]
        sent = await _sent(request)
        line = f"{request.method} {request.raw_path}"
        fault = next((fault for fault in lane.faults if fault.hits(line)), None)
        async with self._changed:
            lane.arrived.append(line)
            self._changed.notify_all()
        if lane.closed_to in line and not lane.gate.is_set():
            # On its way for a long time, it arrives though its sender has gone away.
            answer = await asyncio.shield(self._late(lane, name, server, sent))
        elif fault is None or fault.lose:
            answer = await self._answer(name, server, sent)
        if fault is not None:
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        headers = {key: value for key, value in answer["headers"].items() if key != "Content-Type"}
        body = answer["body"]
        text = body if isinstance(body, str) else json.dumps(body)
        kind = answer["headers"].get("Content-Type", "text/plain").partition(";")[0]
        return web.Response(status=answer["status"], headers=headers, text=text, content_type=kind)


class Recorder:
    """Passes requests on to real servers, and writes down what was sent and answered, in the order of the answers."""

    def __init__(self, servers: Callable[[str], str]) -> None:
        self.exchanges: list[Json] = []
        self._servers = servers
        self._client = httpx.AsyncClient(timeout=PATIENCE)

    async def __call__(self, lane: str, server: str, sent: Json) -> Json:
        exchange: Json = {"lane": lane, "sent": sent, "answer": None}
        try:
            response = await self._client.request(
                sent["method"], self._servers(server) + sent["path"], headers=sent["headers"], json=sent["body"]
            )
            headers = {name: response.headers[name] for name in _ANSWERED if name in response.headers}
            exchange["answer"] = {"status": response.status_code, "headers": headers, "body": _body(response)}
        finally:
            self._note(exchange)
        answer: Json = exchange["answer"]
        return answer

    def _note(self, exchange: Json) -> None:
        """Note an exchange. Repeated equal exchanges of a polling client become one, with a mark."""
        before = next((other for other in reversed(self.exchanges) if other["lane"] == exchange["lane"]), None)
        if before is not None and {**before, "again": 0} == {**exchange, "again": 0} and _is_a_look(exchange["sent"]):
            before["again"] = True
        else:
            self.exchanges.append(exchange)

    async def aclose(self) -> None:
        await self._client.aclose()

    def write(self, path: Path, server: str) -> None:
        """Keep the exchanges. ``server``: what the real one says of itself."""
        note = f"Recorded from {server} by tests/sources/exchanges.py; metadata.managedFields is left out."
        text = ",\n".join(json.dumps(exchange) for exchange in self.exchanges)
        path.parent.mkdir(exist_ok=True)
        path.write_text(f'{{"note": {json.dumps(note)},\n"exchanges": [\n{text}\n]}}\n')


class Replayer:
    """Answers requests as the recording does. ``problems``: the requests that are not in the recording."""

    def __init__(self, exchanges: Sequence[Json]) -> None:
        self.problems: list[str] = []
        self._exchanges = exchanges
        self._answered = [False] * len(exchanges)
        self._last: dict[str, Json] = {}
        self._made_up: dict[str, str] = {}
        self._changed = asyncio.Condition()

    async def __call__(self, lane: str, server: str, sent: Json) -> Json:
        last = self._last.get(lane)
        expected = [number for number, exchange in enumerate(self._exchanges) if exchange["lane"] == lane]
        number = next((number for number in expected if not self._answered[number]), None)
        due = number is not None and all(self._answered[:number]) and self._match(self._exchanges[number]["sent"], sent)
        if last is not None and last.get("again") and not due and self._match(last["sent"], sent):
            return self._translated(last["answer"])
        if number is None or not self._match(self._exchanges[number]["sent"], sent):
            recorded = "nothing more" if number is None else self._as_sent(self._exchanges[number]["sent"])
            self.problems.append(f"{lane} has sent {_text(sent)}\n  where the recording has {recorded}")
            return {"status": 500, "headers": {}, "body": "This is not in the recording."}
        self._last[lane] = exchange = self._exchanges[number]
        try:
            if exchange["answer"] is None:
                # Here the client had gone away before it was answered.
                await asyncio.sleep(PATIENCE)
                self.problems.append(f"{lane} has waited for an answer that was not waited for: {_text(sent)}")
            async with asyncio.timeout(PATIENCE), self._changed:
                await self._changed.wait_for(lambda: all(self._answered[:number]))
            if not any(_is_a_look(self._exchanges[later]["sent"]) for later in expected if later > number):
                # Whether there is any time left is what happens next; nothing else is waited for.
                await asyncio.sleep(_held_back(sent, exchange["answer"]))
        finally:
            self._answered[number] = True
            async with self._changed:
                self._changed.notify_all()
        return self._translated(exchange["answer"])

    @property
    def left(self) -> list[str]:
        """The recorded requests that no client has sent."""
        pairs = zip(self._exchanges, self._answered, strict=True)
        return [f"{exchange['lane']}: {_text(exchange['sent'])}" for exchange, answered in pairs if not answered]

    def _match(self, recorded: Json, sent: Json) -> bool:
        """Whether this was sent in the recording, but for what is made up; which is noted."""
        theirs, ours = _MADE_UP.split(_text(recorded)), _MADE_UP.split(_text(sent))
        if theirs[::4] != ours[::4]:
            return False
        pairs = [(a, b) for a, b in zip(theirs, ours, strict=True) if a != b and a and b]
        known = {**self._made_up}
        for a, b in pairs:
            if known.setdefault(a, b) != b and not a.startswith("wait="):
                return False
        # Equal UUIDs in the recording are equal now, and different ones are different.
        if any(known.get(a, a) != b for a, b in zip(theirs[1::4], ours[1::4], strict=True)):
            return False
        if len({b for a, b in known.items() if len(a) == 36}) < sum(len(a) == 36 for a in known):
            return False
        self._made_up = known
        return True

    def _translated(self, answer: Json) -> Json:
        text = json.dumps(answer)
        translated: Json = json.loads(_MADE_UP.sub(lambda found: self._made_up.get(found[0], found[0]), text))
        return translated

    def _as_sent(self, recorded: Json) -> str:
        return _MADE_UP.sub(lambda found: self._made_up.get(found[0], found[0]), _text(recorded))


@asynccontextmanager
async def recording(
    servers: Callable[[str], str], write: Callable[[Recorder], None] | None = None
) -> AsyncIterator[Stage]:
    """A stage with real servers. ``write``: what to do with the recording."""
    recorder = Recorder(servers)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(recorder.aclose)
        yield Stage(recorder, stack)
    if write is not None:
        write(recorder)


@asynccontextmanager
async def replaying(path: Path) -> AsyncIterator[Stage]:
    """A stage with a recording. Fails where the test has asked for something else, or not for all of it."""
    replayer = Replayer(json.loads(path.read_text())["exchanges"])
    async with AsyncExitStack() as stack:
        yield Stage(replayer, stack)
    assert not replayer.problems, "\n".join(replayer.problems)
    assert not replayer.left, "\n".join(replayer.left)


async def _sent(request: web.BaseRequest) -> Json:
    text = await request.text()
    headers = {name: request.headers[name] for name in _SENT if name in request.headers}
    body = _without_noise(json.loads(text)) if text else None
    return {"method": request.method, "path": request.raw_path, "headers": headers, "body": body}


def _body(response: httpx.Response) -> object:
    if "json" in response.headers.get("Content-Type", ""):
        return _without_noise(response.json())
    return response.text


def _without_noise(body: Any) -> Any:
    """Kubernetes notes for each field who has set it, which is more than all the rest."""
    if isinstance(body, dict) and isinstance(body.get("metadata"), dict):
        body["metadata"].pop("managedFields", None)
    return body


def _held_back(sent: Json, answer: Json) -> float:
    """Seconds for which Consul keeps an answer that has nothing new in it."""
    query = httpx.QueryParams(sent["path"].partition("?")[2])
    unchanged = "index" in query and query["index"] == answer["headers"].get("X-Consul-Index")
    # A little longer, as Consul does it: who has asked for so much time has none left then.
    return int(query["wait"].removesuffix("ms")) / 1000 * 17 / 16 if unchanged else 0.0


def _is_a_look(sent: Json) -> bool:
    return bool(sent["method"] == "GET")


def _text(sent: Json) -> str:
    return json.dumps(sent, sort_keys=True)


S = TypeVar("S", bound=Source)

MODES = ("recorded", pytest.param("live", marks=pytest.mark.installed))


class Cast:
    """The sources and the operator of a test. All are closed in the end."""

    def __init__(self, stage: Stage, stack: AsyncExitStack) -> None:
        self.stage = stage
        self._stack = stack

    async def lane(self, name: str, server: str = "") -> Lane:
        return await self.stage.lane(name, server)

    async def source(self, make: Callable[[str], S], name: str, server: str = "") -> S:
        """The source that ``make`` makes of the address of its lane."""
        source = make((await self.lane(name, server)).url)
        self._stack.push_async_callback(source.aclose)
        return source

    async def operator(self, server: str = "", **headers: str) -> httpx.AsyncClient:
        lane = await self.lane(f"operator {server}".strip(), server)
        client = httpx.AsyncClient(base_url=lane.url, headers=headers)
        return await self._stack.enter_async_context(client)


@asynccontextmanager
async def cast_of(request: pytest.FixtureRequest, directory: Path, version: Callable[[], str]) -> AsyncIterator[Cast]:
    """The cast of this test. ``request.param``: its mode; live, the fixture ``servers`` says where servers are.

    ``directory``: of the recordings. ``version``: what the real server says of itself.
    """
    # One for all modes: the rest of the parameters is part of the name.
    name = request.node.name.replace(f"{request.param}-", "").replace(f"[{request.param}]", "")
    recorded = directory / f"{name.replace('[', '-').strip(']')}.json"

    def write(recorder: Recorder) -> None:
        recorder.write(recorded, version())

    async with AsyncExitStack() as stack:
        if request.param == "recorded":
            stage = await stack.enter_async_context(replaying(recorded))
        else:
            servers: Callable[[str], str] = request.getfixturevalue("servers")
            servers("")
            stage = await stack.enter_async_context(recording(servers, write if "RECORD" in os.environ else None))
        async with AsyncExitStack() as actors:
            yield Cast(stage, actors)


async def acquire(source: Source, resource: str, holder: str, *, ttl: float = 10.0, wait: float | None = 0) -> Held:
    return await source.acquire(resource, holder=holder, ttl=ttl, wait=wait, mode="exclusive")


async def assert_held_by(holder: str, source: Source, resource: str) -> NotAcquired:
    """Check that another source does not get the lock, and why. Return the refusal."""
    with pytest.raises(NotAcquired) as refused:
        await acquire(source, resource, "other")
    assert refused.value.holder == holder
    return refused.value


async def assert_overtaken(paused: Source, held: Held, other: Source, taken: Held) -> None:
    """Check that a holder which was paused finds out, and that it does no harm to its successor."""
    assert not await paused.holds(held)
    with pytest.raises(LockLost):
        await paused.renew(held, 1)
    await paused.release(held)
    assert await other.holds(taken)
