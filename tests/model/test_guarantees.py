"""The five guarantees of the README, tried by a client that knows nothing else of the gateway.

P1. A write to a table is applied only if its token is not lower than the fence at the moment it takes effect. Fence and
row are one transaction.
P2. Once a barrier or a write with token T has been acknowledged on a resource, no write with a lower token takes effect
on it.
P3. A write answered with a refusal (4xx) never takes effect. A write answered with success has taken effect and is
durable. Anything else is *unknown* until the next acknowledged write, which settles it.
P4. An S3 mutation takes effect only while its intent is on record.
P5. A stale write is recorded durably before its refusal is sent. A quarter of a second later its entry is sealed.
Anyone who has noted a later hash outside the database can then detect a change or a removal.

Hypothesis chooses the requests to two gateways in front of two databases and a store. The model knows for each row and
object the values that it may have, and for each resource the highest acknowledged token.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import re
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple
from urllib.parse import quote

import asyncpg
import httpx
import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from botocore.exceptions import ClientError
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from mypy_boto3_s3 import S3Client

from gateway.changes.ownership import claim_if_new
from tests.databases import fleet
from tests.doctor.test_doctor import execute
from tests.doubles.s3 import S3Double, serve
from tests.objects.clients import connect
from tests.postgres import Server, as_gateway, fresh_database
from tests.running import running
from tests.waiting import PATIENCE

README = Path(__file__).parents[2] / "README.md"
ENTRY = re.compile(r"rejection\W+([0-9a-f-]{36})\b", re.IGNORECASE)
LINK = re.compile(r"[][]|\(docs/[^)]*\)")
TABLES = ("tasks", "notes")
ROWS = (1, 2)
KEYS = ("a", "b")
SCHEMA = """
CREATE SCHEMA {0};
CREATE TABLE {0}.tasks (job text, id bigint, value bigint, PRIMARY KEY (job, id));
CREATE TABLE {0}.notes (job text, id bigint, value bigint, PRIMARY KEY (job, id));
"""
PREFIXES = {"north": "job", "south": "tenant-7"}
BUCKETS = {"north": "northern", "south": "southern"}
TOKEN: ContextVar[str | None] = ContextVar("TOKEN", default=None)


class Resource(NamedTuple):
    """A resource that covers rows of two tables, objects below a prefix, and a lock."""

    database: str
    job: str

    @property
    def name(self) -> str:
        return f"{PREFIXES[self.database]}/{self.job}"


class Thing(NamedTuple):
    """A row or an object. ``place``: its table, or None for an object."""

    resource: Resource
    place: str | None
    key: int | str


Value = int | bytes | None
Effect = Callable[[Value], Value]


@dataclass
class World:
    """The gateways, what is behind them, and what a witness has noted of the records."""

    portal: BlockingPortal
    double: S3Double
    origins: list[str]
    dsns: dict[str, str]
    apis: list[httpx.Client]
    stores: list[S3Client]
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    heads: dict[str, dict[int, str]] = field(default_factory=lambda: defaultdict(dict))

    def note_heads(self) -> None:
        for database in PREFIXES:
            head = self.apis[0].get("/v1/record/head", params={"database": database}).json()
            self.heads[database][head["position"]] = head["hash"]

    def check_chains(self) -> None:
        """Compute each record's hashes, which must lead over all that were noted."""
        for database in PREFIXES:
            lines = self.apis[0].get("/v1/events.ndjson", params={"database": database}).text.splitlines()
            computed, hash_ = {}, hashlib.sha256(b"fencing-gateway record v1").hexdigest()
            for line in lines:
                text = line.rpartition(',"hash":')[0] + "}"
                hash_ = hashlib.sha256(bytes.fromhex(hash_) + text.encode()).hexdigest()
                entry = json.loads(line)
                assert hash_ == entry["hash"], line
                computed[entry["position"]] = hash_
            assert self.heads[database].items() <= computed.items(), "P5: the record was changed"

    def query(self, database: str, query: str, *values: Any) -> list[Any]:
        async def ask() -> list[Any]:
            connection = await asyncpg.connect(self.dsns[database])
            try:
                return [row[0] for row in await connection.fetch(query, *values)]
            finally:
                await connection.close()

        return self.portal.call(ask)


@asynccontextmanager
async def _served(server: Server) -> AsyncIterator[tuple[S3Double, list[str], dict[str, str]]]:
    double = S3Double(buckets=BUCKETS.values())
    async with AsyncExitStack() as stack:
        dsns = {name: await stack.enter_async_context(fresh_database(server)) for name in PREFIXES}
        for name, dsn in dsns.items():
            await execute(dsn, SCHEMA.format(name))
        listed = fleet.databases(*map(as_gateway, dsns.values()), buckets=[BUCKETS["south"]])
        config = fleet.settings(
            listed,
            await stack.enter_async_context(serve(double)),
            tables=[
                {"name": f"{name}.{table}", "resource": prefix + "/{job}"}
                for name, prefix in PREFIXES.items()
                for table in TABLES
            ],
            objects=[
                {"match": f"{BUCKETS[name]}/{{job}}/**", "resource": prefix + "/{job}"}
                for name, prefix in PREFIXES.items()
            ],
        )
        assert await claim_if_new(config)
        yield double, [await stack.enter_async_context(running(config)) for _ in range(2)], dsns


@contextmanager
def served(server: Server) -> Iterator[World]:
    """Run two gateways in a thread, so that the machine can call them as any client does."""
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(_served(server)) as (double, origins, dsns),
    ):
        stores = [connect(origin) for origin in origins]
        for store in stores:
            store.meta.events.register("before-call.s3", _present)
        apis = [httpx.Client(base_url=at, headers=fleet.calling(at).headers, timeout=2 * PATIENCE) for at in origins]
        try:
            yield World(portal, double, origins, dsns, apis, stores)
        finally:
            for api in apis:
                api.close()


def _present(params: dict[str, Any], **_: Any) -> None:
    if (token := TOKEN.get()) is not None:
        params["headers"]["Fencing-Token"] = token


class Guarantees(RuleBasedStateMachine):
    """Requests as Hypothesis chooses them, and the model that judges the answers and what can be read."""

    world: ClassVar[World]

    @initialize()
    def begin(self) -> None:
        number = next(self.world.numbers)
        self.resources = [Resource(database, f"{number}-{n}") for database in PREFIXES for n in range(2)]
        self.may: dict[Thing, set[Value]] = defaultdict(lambda: {None})
        self.acknowledged: Counter[Resource] = Counter()
        self.unsettled: set[Resource] = set()
        self.shown: Counter[Resource] = Counter()
        self.refused: Counter[tuple[Resource, int]] = Counter()
        self.named: set[str] = set()
        self.perhaps: Counter[tuple[Resource, int]] = Counter()
        self.held: dict[Resource, tuple[str, str, int]] = {}
        self.lost: dict[Resource, str] = {}
        self.issued: Counter[Resource] = Counter()
        self.uploads: list[tuple[Thing, dict[str, Any], bytes]] = []
        self.touched: set[Thing] = set()
        self.turn = 0

    # The verdict on an answer --------------------------------------------------------------------------

    def token(self, resource: Resource, age: int) -> int:
        """Return a token below (negative), at or above the highest that was acknowledged, but never 0."""
        return max(1, self.acknowledged[resource] + age)

    def judge(self, status: int, claims: dict[Resource, int], effects: dict[Thing, Effect], text: str = "") -> bool:
        """Judge the answer to a write with these tokens; return whether it was acknowledged."""
        stale = {resource: token for resource, token in claims.items() if token < self.acknowledged[resource]}
        perhaps = {resource: token for resource, token in claims.items() if token < self.shown[resource]}
        self.touched |= effects.keys()
        if 200 <= status < 300:
            assert not stale, f"P2: acknowledged below a fence: {stale}"
            for thing, effect in effects.items():
                self.may[thing] = {effect(value) for value in self.may[thing]}
            self.acknowledge(claims)
            return True
        if 400 <= status < 500:
            assert status == 412 or not stale, f"the stale token comes first: {status} {text}"
            if status == 412:
                assert perhaps, f"refused, though no newer token was shown: {text}"
                self.refuse(stale, perhaps, text=text)
            else:
                self.show(claims)
            return False
        assert status == 503, (status, text)
        for thing, effect in effects.items():
            self.may[thing] |= {effect(value) for value in self.may[thing]}
            self.unsettled.add(thing.resource)
        self.show(claims)
        return False

    def acknowledge(self, claims: dict[Resource, int]) -> None:
        self.show(claims)
        for resource, token in claims.items():
            self.acknowledged[resource] = max(token, self.acknowledged[resource])
        self.unsettled -= claims.keys()

    def show(self, claims: dict[Resource, int]) -> None:
        for resource, token in claims.items():
            self.shown[resource] = max(token, self.shown[resource])

    def refuse(self, stale: dict[Resource, int], perhaps: dict[Resource, int] | None = None, *, text: str = "") -> None:
        """Note a refusal for these tokens, of which at least the stale ones were too low."""
        perhaps = stale if perhaps is None else perhaps
        certain = perhaps if len(perhaps) == 1 else stale
        self.refused.update(certain.items())
        self.perhaps.update(perhaps.items())
        self.on_record(perhaps, text)

    def on_record(self, claims: dict[Resource, int], text: str = "") -> None:
        """P5: each refused write is on record as soon as its answer is here, at any gateway.

        ``text``: of the answer, which names the entry. No other answer names the same one.
        """
        on_record = set()
        for resource, token in claims.items():
            found = self.api().get(
                "/v1/rejections",
                params={"database": resource.database, "resource": resource.name, "token": token, "limit": 500},
            )
            entries = [one for one in found.json()["rejections"] if one["reason"] == "token-stale"]
            least, most = self.refused[resource, token], self.perhaps[resource, token]
            assert least <= len(entries) <= most, f"P5: refused {least} to {most} times: {found.text}"
            on_record |= {one["id"] for one in entries}
            for one in entries:
                assert token < int(one["fence"]) <= self.shown[resource], f"P5: refused by no such fence: {one}"
        if text:
            named = ENTRY.search(text)
            assert named is not None, f"P5: the refusal names no entry: {text}"
            assert named[1] in on_record - self.named, f"P5: the entry of another refusal, or of none: {text}"
            self.named.add(named[1])

    def api(self) -> httpx.Client:
        """Return the one gateway and the other in turn."""
        self.turn += 1
        return self.world.apis[self.turn % 2]

    def ask(self, method: str, path: str, resource: Resource, **arguments: Any) -> httpx.Response:
        api = arguments.pop("at", None) or self.api()
        return api.request(method, path, params={"resource": resource.name}, **arguments)

    def store(self, operation: str, thing: Thing, token: int | None = None, **arguments: Any) -> tuple[int, Any]:
        self.turn += 1
        place = {"Bucket": BUCKETS[thing.resource.database], "Key": f"{thing.resource.job}/{thing.key}"}
        reset = TOKEN.set(None if token is None else str(token))
        try:
            answer = getattr(self.world.stores[self.turn % 2], operation)(**place, **arguments)
            return answer["ResponseMetadata"]["HTTPStatusCode"], answer
        except ClientError as error:
            return error.response["ResponseMetadata"]["HTTPStatusCode"], error.response
        finally:
            TOKEN.reset(reset)

    # Reads ---------------------------------------------------------------------------------------------------------

    def read(self, thing: Thing) -> Value:
        if thing.place is None:
            status, answer = self.store("get_object", thing)
            assert status in (200, 404), answer
            return answer["Body"].read() if status == 200 else None
        headers = {"Accept-Profile": thing.resource.database}
        query = {"job": f"eq.{thing.resource.job}", "id": f"eq.{thing.key}", "select": "value"}
        rows = self.api().get(f"/v1/tables/{thing.place}", params=query, headers=headers).json()
        return rows[0]["value"] if rows else None

    @invariant()
    def it_is_what_was_acknowledged(self) -> None:
        """P1 to P3: refused writes have no effect, and acknowledged ones have."""
        while self.touched:
            self.look(self.touched.pop())

    def look(self, thing: Thing) -> None:
        seen = self.read(thing)
        assert seen in self.may[thing], f"P3: {thing} is {seen!r} and may be {self.may[thing]!r}"
        if thing.resource not in self.unsettled:
            self.may[thing] = {seen}

    def teardown(self) -> None:
        for thing in [*getattr(self, "may", ())]:
            self.look(thing)
        for resource, token in getattr(self, "acknowledged", Counter()).items():
            fence = self.ask("GET", "/v1/fence", resource).json()
            assert int(fence["token"] or 0) >= token, fence
        for resource, token in [*getattr(self, "refused", ())]:
            self.on_record({resource: token})
        self.world.note_heads()

    # Rows ----------------------------------------------------------------------------------------------------------

    def value(self) -> int:
        return next(self.world.numbers)

    def change(self, thing: Thing, method: str) -> tuple[dict[str, Any], Effect]:
        """Return a write of a row as a transaction has it, and its effect."""
        value = self.value()
        key = {"job": thing.resource.job, "id": thing.key}
        query = f"job=eq.{thing.resource.job}&id=eq.{thing.key}"
        write: dict[str, Any] = {"method": method, "table": thing.place, "query": query}
        if method == "POST":
            return {**write, "query": "", "body": {**key, "value": value}}, lambda _: value
        if method == "DELETE":
            return write, lambda _: None
        return {**write, "body": {"value": value}}, lambda old: None if old is None else value

    def send(self, write: dict[str, Any], thing: Thing, token: int) -> httpx.Response:
        headers = {"Fencing-Token": str(token), "Content-Profile": thing.resource.database}
        path = f"/v1/tables/{write['table']}?{write['query']}"
        return self.api().request(write["method"], path, json=write.get("body"), headers=headers)

    def row(self, which: tuple[int, int, int]) -> Thing:
        resource, table, key = which
        return Thing(self.resources[resource], TABLES[table], ROWS[key])

    PLACES = st.tuples(st.integers(0, 3), st.integers(0, 1), st.integers(0, 1))
    AGES = st.integers(-3, 3)
    METHODS = st.sampled_from(["PATCH", "POST", "POST", "DELETE"])

    @rule(which=PLACES, method=METHODS, age=AGES)
    def write_row(self, which: tuple[int, int, int], method: str, age: int) -> None:
        thing = self.row(which)
        token = self.token(thing.resource, age)
        write, effect = self.change(thing, method)
        answer = self.send(write, thing, token)
        accepted = self.judge(answer.status_code, {thing.resource: token}, {thing: effect}, answer.text)
        if not accepted and answer.status_code not in (412, 503):
            assert (answer.status_code, method) == (409, "POST"), answer.text
            self.may[thing] -= {None}

    @rule(
        which=st.lists(st.tuples(PLACES, METHODS), min_size=2, max_size=4), ages=st.lists(AGES, min_size=4, max_size=4)
    )
    def transaction(self, which: list[tuple[tuple[int, int, int], str]], ages: list[int]) -> None:
        rows = {self.row(place): method for place, method in which}  # each row once, so that effects are independent
        claims = {thing.resource: 0 for thing in rows}
        claims = {resource: self.token(resource, age) for resource, age in zip(claims, ages, strict=False)}
        writes, effects = [], {}
        for thing, method in rows.items():
            write, effects[thing] = self.change(thing, method)
            writes.append({**write, "token": str(claims[thing.resource]), "schema": thing.resource.database})
        answer = self.api().post("/v1/transaction", json={"writes": writes})
        if len({resource.database for resource in claims}) > 1:
            assert answer.status_code == 422, answer.text
            self.touched |= effects.keys()
            return
        self.judge(answer.status_code, claims, effects, answer.text)

    @rule(which=PLACES, ages=st.lists(AGES, min_size=2, max_size=6))
    def race(self, which: tuple[int, int, int], ages: list[int]) -> None:
        """Writes at the same time: the last to take effect has the highest token that was acknowledged."""
        thing = self.row(which)
        resource, before = thing.resource, self.acknowledged[thing.resource]
        if None in self.may[thing]:
            write, effect = self.change(thing, "POST")
            token = self.token(resource, 0)
            answer = self.send(write, thing, token)
            if not self.judge(answer.status_code, {resource: token}, {thing: effect}, answer.text):
                return
        before = self.acknowledged[resource]
        writes = [(self.token(resource, age), self.value()) for age in ages]

        def patch(token: int, value: int, at: httpx.Client) -> httpx.Response:
            headers = {"Fencing-Token": str(token), "Content-Profile": resource.database}
            path = f"/v1/tables/{thing.place}?job=eq.{resource.job}&id=eq.{thing.key}"
            return at.patch(path, json={"value": value}, headers=headers)

        with ThreadPoolExecutor(len(writes)) as threads:
            futures = [threads.submit(patch, *write, self.api()) for write in writes]
        told = [future.result() for future in futures]
        answers = [(*write, one.status_code) for write, one in zip(writes, told, strict=True)]
        done = [(token, value) for token, value, status in answers if status == 204]
        assert {status for *_, status in answers} <= {204, 412}, answers
        highest = max((token for token, _ in done), default=before)
        for token, _, status in answers:
            assert status == 204 or token < max(highest, self.shown[resource]), answers
            assert status == 412 or token >= before, f"P2: {answers}"
        if done:
            self.may[thing] = {value for token, value in done if token == highest}
            self.acknowledge({resource: highest})
        self.touched.add(thing)
        refused = [
            ({resource: token}, one.text) for (token, *_), one in zip(answers, told, strict=True) if one.is_error
        ]
        for claim, _ in refused:
            self.refused.update(claim.items())
            self.perhaps.update(claim.items())
        for claim, text in refused:
            self.on_record(claim, text)

    # Objects -------------------------------------------------------------------------------------------------------

    OBJECTS = st.tuples(st.integers(0, 3), st.integers(0, 1))

    def object(self, which: tuple[int, int]) -> Thing:
        return Thing(self.resources[which[0]], None, KEYS[which[1]])

    def body(self) -> bytes:
        return b"%d" % self.value()

    @rule(which=OBJECTS, age=AGES, deleted=st.booleans())
    def write_object(self, *, which: tuple[int, int], age: int, deleted: bool) -> None:
        thing, body = self.object(which), self.body()
        token = self.token(thing.resource, age)
        if deleted:
            status, answer = self.store("delete_object", thing, token)
        else:
            status, answer = self.store("put_object", thing, token, Body=body)
        effect: Value = None if deleted else body
        accepted = self.judge(status, {thing.resource: token}, {thing: lambda _: effect}, str(answer))
        assert accepted or status in (412, 503), answer

    @rule(which=OBJECTS, source=OBJECTS, age=AGES)
    def copy_object(self, which: tuple[int, int], source: tuple[int, int], age: int) -> None:
        thing, other = self.object(which), self.object(source)
        if thing == other or len(self.may[other]) > 1:
            return
        (copied,) = self.may[other]
        token = self.token(thing.resource, age)
        place = {"Bucket": BUCKETS[other.resource.database], "Key": f"{other.resource.job}/{other.key}"}
        status, answer = self.store("copy_object", thing, token, CopySource=place)
        accepted = self.judge(status, {thing.resource: token}, {thing: lambda _: copied}, str(answer))
        assert not accepted or copied is not None, "a copy of nothing"

    @rule(which=OBJECTS, age=AGES)
    def open_upload(self, which: tuple[int, int], age: int) -> None:
        thing, body = self.object(which), self.body()
        token = self.token(thing.resource, age)
        status, answer = self.store("create_multipart_upload", thing, token)
        if status == 200:
            upload = {"UploadId": answer["UploadId"]}
            status, answer = self.store("upload_part", thing, token, PartNumber=1, Body=body, **upload)
        if status == 200:
            upload["MultipartUpload"] = {"Parts": [{"PartNumber": 1, "ETag": answer["ETag"]}]}
            self.uploads.append((thing, upload, body))
            self.show({thing.resource: token})
            self.touched.add(thing)
        else:
            self.judge(status, {thing.resource: token}, {}, str(answer))

    @precondition(lambda self: self.uploads)
    @rule(age=AGES, data=st.data())
    def complete_upload(self, age: int, data: st.DataObject) -> None:
        thing, upload, body = self.uploads.pop(data.draw(st.integers(0, len(self.uploads) - 1)))
        token = self.token(thing.resource, age)
        status, answer = self.store("complete_multipart_upload", thing, token, **upload)
        self.judge(status, {thing.resource: token}, {thing: lambda _: body}, str(answer))

    @rule(which=OBJECTS, age=st.integers(0, 2), lost=st.sampled_from(["before", "after"]))
    def lose_an_answer_of_the_store(self, which: tuple[int, int], age: int, lost: str) -> None:
        thing, body = self.object(which), self.body()
        token = self.token(thing.resource, age)
        fault = self.fault("cut", thing, lost)
        status, answer = self.store("put_object", thing, token, Body=body)
        self.world.portal.call(self.world.double.faults.remove, fault)
        self.judge(status, {thing.resource: token}, {thing: lambda _: body}, str(answer))

    @rule(which=OBJECTS, age=st.integers(0, 2), newer=st.integers(1, 2))
    def delay_a_write_to_the_store(self, which: tuple[int, int], age: int, newer: int) -> None:
        """A request of one holder waits at the store, while the next holder raises the barrier."""
        thing, body = self.object(which), self.body()
        resource = thing.resource
        token = self.token(resource, age)
        late, raised = self.fault("hold", thing, "before"), None
        with ThreadPoolExecutor(1) as threads:
            writing = threads.submit(self.store, "put_object", thing, token, Body=body)
            try:
                if self.world.portal.call(self.arrived, late, writing):
                    query = "SELECT count(*) FROM fencing.intent WHERE bucket = $1 AND key = $2"
                    place = BUCKETS[resource.database], f"{resource.job}/{thing.key}"
                    assert self.world.query(resource.database, query, *place)[0] >= 1, "P4: there is no intent"
                    raised = self.ask("POST", "/v1/fence/barrier", resource, json={"token": str(token + newer)})
            finally:
                self.world.portal.call(self.world.double.faults.remove, late)
            status, answer = writing.result()
        if raised is not None:
            self.show({resource: token + newer})
        if raised is None or raised.status_code == 503:
            self.judge(status, {resource: token}, {thing: lambda _: body}, str(answer))
            return
        assert raised.status_code == 200, raised.text
        self.acknowledge({resource: token + newer})
        self.touched.add(thing)
        assert status >= 400, f"P2: acknowledged after a newer holder: {answer}"
        if status == 412:
            self.refuse({resource: token}, text=str(answer))

    def fault(self, kind: str, thing: Thing, at: str) -> Any:
        match = {
            "operation": "PutObject",
            "bucket": BUCKETS[thing.resource.database],
            "key": f"{thing.resource.job}/{thing.key}",
        }
        return self.world.portal.call(lambda: getattr(self.world.double, kind)(at, **match))

    @staticmethod
    async def arrived(late: Any, writing: Future[Any]) -> bool:
        """Wait until the store has the request. False: its sender has an answer without it."""
        arriving, answered = asyncio.ensure_future(late.arrived.wait()), asyncio.wrap_future(writing)
        await asyncio.wait({arriving, answered}, return_when=asyncio.FIRST_COMPLETED)
        arriving.cancel()
        return bool(late.arrived.is_set())

    # Fences and locks ----------------------------------------------------------------------------------------------

    RESOURCES = st.integers(0, 3)

    @rule(which=RESOURCES, age=AGES)
    def barrier(self, which: int, age: int) -> None:
        resource = self.resources[which]
        token = self.token(resource, age)
        answer = self.ask("POST", "/v1/fence/barrier", resource, json={"token": str(token)})
        accepted = self.judge(answer.status_code, {resource: token}, {}, answer.text)
        assert accepted or answer.status_code in (412, 503), answer.text

    @rule(which=RESOURCES, holder=st.sampled_from(["anna", "ben"]), barrier=st.booleans())
    def acquire(self, *, which: int, holder: str, barrier: bool) -> None:
        resource = self.resources[which]
        name, lease, token = self.held.get(resource, (None, None, 0))
        asked = {"holder": holder, "ttl": 3000, "barrier": barrier}
        answer = self.ask("POST", "/v1/lease", resource, json=asked)
        got = answer.json()
        if name not in (None, holder):
            assert answer.status_code == 409, answer.text
        elif name == holder and barrier and (token < self.acknowledged[resource] or answer.status_code == 412):
            self.judge(answer.status_code, {resource: token}, {}, answer.text)
            del self.held[resource]
        elif name == holder:
            assert (answer.status_code, got["lease"], int(got["token"])) == (200, lease, token), answer.text
        else:
            assert answer.status_code == 201, answer.text
            token = int(got["token"])
            assert token > self.issued[resource], "a token was issued twice"
            assert token >= self.acknowledged[resource], "a token was issued that the fence refuses"
            self.issued[resource] = token
            self.held[resource] = holder, got["lease"], token
        if barrier and answer.is_success:
            self.acknowledge({resource: token})

    @precondition(lambda self: self.held)
    @rule(data=st.data(), how=st.sampled_from(["renew", "release", "break", "write"]))
    def use_a_lease(self, data: st.DataObject, how: str) -> None:
        resource = data.draw(st.sampled_from(sorted(self.held)))
        _, lease, token = self.held[resource]
        if how == "write":
            thing = Thing(resource, TABLES[0], ROWS[0])
            write, effect = self.change(thing, "DELETE")
            answer = self.send(write, thing, token)
            self.judge(answer.status_code, {resource: token}, {thing: effect}, answer.text)
            return
        if how == "renew":
            assert self.ask("PUT", f"/v1/lease/{quote(lease)}", resource, json={}).status_code == 200
            return
        if how == "release":
            answer = self.ask("DELETE", f"/v1/lease/{quote(lease)}", resource)
            assert answer.status_code == 204, answer.text
        else:
            answer = self.ask("POST", "/v1/break", resource, json={"expected": str(token), "reason": "tried"})
            assert answer.status_code == 200, answer.text
        del self.held[resource]
        self.lost[resource] = lease

    @precondition(lambda self: self.lost)
    @rule(data=st.data())
    def renew_a_lost_lease(self, data: st.DataObject) -> None:
        resource = data.draw(st.sampled_from(sorted(self.lost)))
        answer = self.ask("PUT", f"/v1/lease/{quote(self.lost[resource])}", resource, json={})
        assert answer.status_code == 410, answer.text


def play(world: World, examples: int, steps: int, **more: Any) -> None:
    """Let the machine run against a world."""
    checks = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        database=None,
        **more,
    )
    run_state_machine_as_test(type("Machine", (Guarantees,), {"world": world}), settings=checks)


@pytest.fixture(scope="module")
def world(postgres_server: Server) -> Iterator[World]:
    with served(postgres_server) as one:
        yield one


def test_the_sentences_are_those_of_the_readme() -> None:
    promised = re.findall(r"^\| \*\*(P\d)\*\* \| (.*) \|$", README.read_text(), re.MULTILINE)
    told = [f"{name}. {re.sub(LINK, '', sentence)}" for name, sentence in promised]
    assert " ".join(told) in " ".join((__doc__ or "").split())
    assert len(told) == 5


def test_a_client_finds_what_is_promised(world: World) -> None:
    play(world, 4, 20)
    world.check_chains()


@pytest.mark.nightly
def test_a_client_finds_it_at_length(world: World) -> None:
    play(world, 400, 50, derandomize=False, print_blob=True)
    world.check_chains()


OFF_BY_ONE = {
    "claim_v1": ("< (fence.epoch, fence.value) THEN", "< (fence.epoch, fence.value - 1) THEN"),
    "claim_many_v1": ("< ((f.fence).epoch, (f.fence).value)", "< ((f.fence).epoch, (f.fence).value - 1)"),
}
DISGUISED = """
CREATE FUNCTION public.disguise() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.kind := ''settled''; RETURN NEW; END';
CREATE TRIGGER disguise BEFORE INSERT ON fencing.intake FOR EACH ROW WHEN (NEW.kind = 'rejection')
EXECUTE FUNCTION public.disguise()
"""


def test_a_fence_that_is_off_by_one_is_found(world: World) -> None:
    whole = {
        name: world.query("north", f"SELECT pg_get_functiondef('fencing.{name}'::regproc)")[0] for name in OFF_BY_ONE
    }
    try:
        for name, (right, wrong) in OFF_BY_ONE.items():
            assert right in whole[name]
            world.query("north", whole[name].replace(right, wrong))
        with pytest.raises(AssertionError, match="P2"):
            play(world, 50, 20, phases=[Phase.generate])
    finally:
        for definition in whole.values():
            world.query("north", definition)


@pytest.mark.thorough
def test_a_refusal_without_its_entry_is_found(world: World) -> None:
    world.portal.call(execute, world.dsns["north"], DISGUISED)
    try:
        with pytest.raises(AssertionError, match="P5"):
            play(world, 50, 20, phases=[Phase.generate])
    finally:
        world.query("north", "DROP FUNCTION public.disguise() CASCADE")
