"""The double as an ASGI app, with its switches and its logs."""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from tests.doubles.s3 import control
from tests.doubles.s3.behaviour import Behaviour
from tests.doubles.s3.conditions import UNCONDITIONAL
from tests.doubles.s3.errors import S3Error
from tests.doubles.s3.faults import Abandoned, Action, Details, Faults, Match, Moment, Rule, facts_of
from tests.doubles.s3.life import Cut, Life
from tests.doubles.s3.messages import Head, error_answer, read_head
from tests.doubles.s3.objects import Content, Mutation, Origin, StoredObject
from tests.doubles.s3.operations import Operation
from tests.doubles.s3.service import Service
from tests.doubles.s3.signature import Verifier
from tests.doubles.s3.state import Store
from tests.doubles.s3.wire import Disconnected, Receive, Scope, Send, Wire

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

    `keys` maps access key ids to secrets; `clock` returns aware datetimes. Everything runs on one event loop, and a
    write is evaluated and applied without an await in between, unless `Behaviour.gaps` asks for one.
    """

    def __init__(
        self,
        *,
        buckets: Iterable[str] = (),
        keys: Mapping[str, str] | None = None,
        region: str = REGION,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        behaviour: Behaviour | None = None,
    ) -> None:
        verifier = Verifier(keys or {ACCESS_KEY: SECRET_KEY}, region)
        self.service = Service(verifier, clock, behaviour or Behaviour())
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

    def reset(self) -> None:
        """Forget objects, logs and rules; buckets and behaviour stay."""
        self.faults.clear()
        self.requests.clear()
        names = list(self.store.buckets)
        self.service.store = Store(self.behaviour)
        for name in names:
            self.store.create_bucket(name, self.service.now())

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

    def slow_body(self, seconds: float = 0.01, size: int = 1024, **match: Any) -> Rule:
        """Send the answer's body in pieces of `size` bytes with a pause behind each."""
        return self.fault(Action.SLOW_BODY, "after", Details(seconds=seconds, size=size), **match)

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
            if scope["path"].startswith(control.PREFIX):
                await wire.send(await control.answer(self, scope, await wire.read_body()))
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
