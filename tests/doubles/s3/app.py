"""The double as an ASGI app, with its switches and its logs, and a server for it."""

from __future__ import annotations

import asyncio
import socket
from bisect import bisect_left, bisect_right
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from tests.doubles.s3.conditions import UNCONDITIONAL, Behaviour
from tests.doubles.s3.faults import Abandoned, Action, Details, Faults, Match, Moment, Plan, Rule, facts_of
from tests.doubles.s3.messages import Answer, Head, document_of_error, error_answer, read_head
from tests.doubles.s3.objects import Body, Content, Mutation, Origin, StoredObject
from tests.doubles.s3.operations import Operation, S3Error
from tests.doubles.s3.process import CONTROL, control
from tests.doubles.s3.service import Service
from tests.doubles.s3.signature import Verifier
from tests.doubles.s3.state import Store
from tests.doubles.s3.wire import Disconnected, Receive, Scope, Send, Wire


class Cut(Exception):
    """The connection is to be closed without an answer."""


class Life:
    """One request under its plan of faults. `evaluated` is the store's own status, None if it never came to that."""

    def __init__(self, service: Service, head: Head, write_id: str | None, plan: Plan) -> None:
        self._service = service
        self._head = head
        self._write_id = write_id
        self._plan = plan
        self.evaluated: int | None = None

    async def run(self, wire: Wire) -> Answer:
        """Take the request in, apply it, and give the answer to send. Raises Cut, Disconnected, Abandoned."""
        try:
            return await self._run(wire)
        except S3Error as error:
            return error_answer(error, self._head.raw_path)

    async def _run(self, wire: Wire) -> Answer:
        late = self._plan.find(Action.HOLD, Moment.ARRIVAL) is not None
        if not late:
            self._service.admit(self._head)
        intake = self._service.intake(self._head)
        await wire.read_into(intake.add)
        body = intake.body()
        struck = await self._strike(Moment.ARRIVAL)
        if late:
            self._service.admit(self._head)
        self._service.check_body(self._head, body)
        struck = struck or await self._strike(Moment.BEFORE)
        if struck is not None:
            return struck
        answer = await self._evaluate(body)
        repeating = self._plan.find(Action.REPEAT)
        if repeating is not None:
            repeating.repeat(partial(self._arrive_again, body))
        return await self._strike(Moment.AFTER) or answer

    async def _arrive_again(self, body: Body) -> int | None:
        """Judge a copy of the request, its signature included. Returns the unsent status; None: it was not let in."""
        try:
            self._service.admit(self._head)
            self._service.check_body(self._head, body)
        except S3Error:
            return None
        try:
            return (await self._service.evaluate(self._head, body, self._write_id)).status
        except S3Error as error:
            return error.status

    async def _evaluate(self, body: Body) -> Answer:
        try:
            answer = await self._service.evaluate(self._head, body, self._write_id)
        except S3Error as error:
            answer = error_answer(error, self._head.raw_path)
        self.evaluated = answer.status
        return answer

    async def _strike(self, at: Moment) -> Answer | None:
        """Let the faults of this moment happen; the answer is that of a fault, if one gives it."""
        await self._plan.hold(at)
        if self._plan.find(Action.CUT, at) is not None:
            raise Cut
        failing = self._plan.find(Action.FAIL, at)
        if failing is not None:
            error = S3Error(failing.details.code, status=failing.details.status)
            return error_answer(error, self._head.raw_path)
        hidden = self._plan.find(Action.ERROR_IN_200, at)
        if hidden is not None:
            return document_of_error(S3Error(hidden.details.code, status=200), self._head.raw_path)
        return None


ACCESS_KEY = "AKIADOUBLE"
SECRET_KEY = "double-secret"
REGION = "us-east-1"


@dataclass(slots=True)
class Exchange:
    """One request as the log keeps it. `status` is that of the answer, None as long as there is none."""

    sequence: int
    method: str
    operation: Operation
    bucket: str | None
    key: str | None
    write_id: str | None
    status: int | None = None
    traceparent: str | None = None


class S3Double:
    """A strictly atomic S3 in memory with AWS's conditional writes, and switches for faults.

    Everything runs on one event loop, and a write is evaluated and applied without an await in between, unless
    `Behaviour.gaps` asks for one.
    """

    def __init__(self, *, buckets: Iterable[str] = ()) -> None:
        self.service = Service(Verifier({ACCESS_KEY: SECRET_KEY}, REGION))
        self.faults = Faults()
        self.requests: list[Exchange] = []
        for name in buckets:
            self.store.create_bucket(name, self.service.now())

    # The parts of the double, and its state.

    @property
    def store(self) -> Store:
        """The state."""
        return self.service.store

    @property
    def behaviour(self) -> Behaviour:
        """The store's lasting traits."""
        return self.store.behaviour

    @property
    def mutations(self) -> list[Mutation]:
        """Everything that took effect on objects, in order."""
        return self.store.mutations

    @property
    def sequence(self) -> int:
        """The number of the last step; keep it, and ask later what came after it."""
        return self.store.sequence

    def behave(self, **changes: Any) -> None:
        """Change traits of `Behaviour`, for every request that is evaluated from now on."""
        self.store.behaviour = replace(self.store.behaviour, **changes)

    def put(self, bucket: str, key: str, body: bytes, metadata: Mapping[str, str] | None = None) -> StoredObject:
        """Place an object directly and unconditionally; it is logged like any write."""
        metadata = metadata or {}
        origin = Origin(self.service.now(), metadata.get("fencing-write-id"))
        return self.store.put(bucket, key, Content(body, metadata=metadata), UNCONDITIONAL, origin)

    def objects(self, bucket: str) -> dict[str, StoredObject]:
        """A copy of what is in the bucket, by key."""
        return dict(self.store.bucket(bucket).objects)

    def applied(self, *, write_id: str | None = None, key: str | None = None, after: int = 0) -> list[Mutation]:
        """The mutations (of a write, of a key) that took effect after a sequence number."""
        wanted = self.mutations[bisect_right(self.mutations, after, key=lambda each: each.sequence) :]
        return [each for each in wanted if write_id in (None, each.write_id) and key in (None, each.key)]

    def requests_since(self, sequence: int) -> list[Exchange]:
        """The requests that came when the last step had this number, or later."""
        return self.requests[bisect_left(self.requests, sequence, key=lambda each: each.sequence) :]

    # Faults; `match` is the fields of Match (method, operation, bucket, key, write_id), nth and times.

    def hold(self, at: str = "before", **match: Any) -> Rule:
        """Hold a request at "arrival", "before" or "after"; it outlives its client and goes on at `Rule.release`."""
        return self.fault(Action.HOLD, at, **match)

    def cut(self, at: str = "before", **match: Any) -> Rule:
        """Close the connection without an answer, "before" or "after" the request takes effect."""
        return self.fault(Action.CUT, at, **match)

    def fail(self, status: int = 503, at: str = "before", code: str | None = None, **match: Any) -> Rule:
        """Answer an error, "before" (nothing is applied) or "after" the request takes effect."""
        details = Details(status, code or ("SlowDown" if status == 503 else "InternalError"))
        return self.fault(Action.FAIL, at, details, **match)

    def error_in_200(self, at: str = "before", code: str = "InternalError", **match: Any) -> Rule:
        """Answer 200 with an error document, "before" (nothing is applied) or "after" the request takes effect."""
        return self.fault(Action.ERROR_IN_200, at, Details(200, code), **match)

    def cut_body(self, size: int = 1024, **match: Any) -> Rule:
        """Close the connection behind the first `size` bytes of the answer's body."""
        return self.fault(Action.CUT_BODY, "after", Details(size=size), **match)

    def repeat(self, **match: Any) -> Rule:
        """Answer a request, and deliver a copy of it at `Rule.release`, as a proxy does that sends it again."""
        return self.fault(Action.REPEAT, "after", **match)

    def fault(
        self,
        action: Action,
        at: str,
        details: Details | None = None,
        *,
        nth: int = 1,
        times: int | None = 1,
        **match: Any,
    ) -> Rule:
        """Set a rule and return it: it is the handle on the requests it strikes."""
        return self.faults.add(Rule(action, Moment(at), Match(**match), nth=nth, times=times, details=details))

    # Requests.

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http"
        wire = Wire(scope, receive, send, self.service.now)
        try:
            if scope["path"].startswith(CONTROL):
                await wire.send(await control(self, scope, await wire.read_body()))
            else:
                await self._serve(scope, wire)
        except (Disconnected, Abandoned, asyncio.CancelledError):
            # The client is gone or the server stops: no client is left to answer.
            return

    async def _serve(self, scope: Scope, wire: Wire) -> None:
        try:
            head = read_head(scope)
        except S3Error as error:
            await wire.send(error_answer(error, scope["path"]))
        else:
            await self._live(replace(head, key=self.behaviour.key(head.key)), wire)

    async def _live(self, head: Head, wire: Wire) -> None:
        write_id = self.service.write_id(head)
        plan = self.faults.plan(facts_of(head, write_id))
        exchange = Exchange(self.sequence, head.method, head.operation, head.bucket, head.key, write_id)
        exchange.traceparent = head.headers.get("traceparent")
        self.requests.append(exchange)
        life = Life(self.service, head, write_id, plan)
        try:
            answer = await life.run(wire)
            exchange.status = answer.status
            await wire.send(answer, plan)
        except Cut:
            await wire.cut()
        finally:
            plan.finish(life.evaluated)


_HOST = "127.0.0.1"
# Longer than any client keeps an idle connection, so that a reused one is never closed under a request.
_KEEP_ALIVE = 300


@asynccontextmanager
async def serve(double: S3Double, port: int = 0) -> AsyncIterator[str]:
    """Serve the double and yield its endpoint, e.g. "http://127.0.0.1:40123"; port 0 takes a free one.

    Leaving stops at once: connections are reset and held requests are dropped. The double keeps its state and can be
    served again, on the same port too, as a store that was down does.
    """
    state = ServerState()
    server = await asyncio.get_running_loop().create_server(_protocols(double, state), sock=_listen(port))
    try:
        yield f"http://{_HOST}:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await _stop(double, state)


def _listen(port: int) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # asyncio does this by itself only for sockets that name their protocol; without it answers wait 40 ms for an ACK.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    listener.bind((_HOST, port))
    return listener


def _protocols(double: S3Double, state: ServerState) -> Callable[[], asyncio.Protocol]:
    """uvicorn's server polls ten times a second for its end, and knows no way to reset one connection; this does."""
    config = Config(
        double,
        interface="asgi3",
        lifespan="off",
        ws="none",
        access_log=False,
        log_config=None,
        proxy_headers=False,
        date_header=False,
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE,
    )
    config.load()

    def protocol() -> asyncio.Protocol:
        own: dict[str, Any] = {}
        connection = HttpToolsProtocol(config=config, server_state=state, app_state=own)

        def abort() -> None:
            connection.transport.abort()

        own["abort_connection"] = abort
        return connection

    return protocol


async def _stop(double: S3Double, state: ServerState) -> None:
    for connection in list(state.connections):
        connection.transport.abort()
    double.faults.abandon()
    tasks = list(state.tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
