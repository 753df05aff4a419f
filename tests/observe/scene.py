"""A gateway under a load that is a little of everything, how it is scraped, and a collector of its traces."""

import asyncio
import threading
from base64 import b64encode
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeAlias
from uuid import uuid4

import httpx
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from prometheus_client.parser import text_string_to_metric_families

from gateway.demo.embedded import EmbeddedPostgres
from gateway.fencing.token_policy import MAX_JUMP
from gateway.observe.events import Observe
from tests.doubles.s3 import S3Double, serve
from tests.objects.clients import call, connect, outcome
from tests.objects.object_gateway import Stage
from tests.patience import patient_trips
from tests.postgres import fresh_database
from tests.running import Events, config, running
from tests.waiting import PATIENCE

TABLES = """
CREATE TABLE accounts (id bigint PRIMARY KEY, balance bigint);
INSERT INTO accounts SELECT number, 0 FROM generate_series(1, 100) AS number;
CREATE TABLE watched (id bigint PRIMARY KEY, v int);
INSERT INTO watched VALUES (1, 1);
"""
RULES: Mapping[str, Any] = {
    "tables": [{"name": "public.accounts"}, {"name": "public.watched", "mode": "observe"}],
    "objects": [{"match": "bucket/reports/**"}],
    "webhooks": [{"name": "pager", "url": "http://127.0.0.1:9/", "secret": "whsec_" + b64encode(b"s" * 32).decode()}],
    "alarms": [{"name": "storm", "more_than": 1000, "minutes": 1}],
}

Samples: TypeAlias = dict[str, dict[frozenset[tuple[str, str]], float]]


@asynccontextmanager
async def scene(server: EmbeddedPostgres, observe: Observe | None = None, **sections: Any) -> AsyncIterator[Stage]:
    """A stage with two tables, one of which is only observed, and a rule for objects.

    Which way a write goes is told and counted. A shared trip that takes too long, on a busy machine, makes it another.
    """
    double, events = S3Double(buckets=["bucket"]), Events()
    async with fresh_database(server) as dsn, serve(double) as endpoint:
        settings = config(dsn, endpoint, **{**RULES, **sections})
        stage = Stage("", endpoint, double, events, dsn)
        for statement in TABLES.split(";"):
            await stage.rows(statement)
        with patient_trips():
            async with running(settings, observe or events) as origin:
                yield replace(stage, origin=origin)


async def patch(api: httpx.AsyncClient, key: int, token: int, table: str = "accounts", **headers: str) -> int:
    """Write one row; the status."""
    column = "balance" if table == "accounts" else "v"
    answer = await api.patch(
        f"/v1/tables/{table}?id=eq.{key}", json={column: token}, headers={"Fencing-Token": str(token), **headers}
    )
    return answer.status_code


async def load(stage: Stage) -> None:
    """Writes by all ways, refusals, a takeover, reads, locks, and what ends in an error."""
    async with stage.api() as api:
        for key in range(1, 4):
            # In a transaction, which raises the fence; in one statement; by the recipe of the one before.
            assert [await patch(api, key, 5) for _ in range(3)] == [204, 204, 204]
        assert await patch(api, 1, 4) == 412
        assert await patch(api, 1, MAX_JUMP * 3) == 403
        assert await patch(api, 1, 4, "watched") == 204
        assert await patch(api, 1, 3, "watched") == 204
        assert (await api.get("/v1/tables/accounts?id=eq.1")).status_code == 200
        assert (await api.get("/v1/tables/accounts?id=eq.1")).status_code == 200
        assert (await api.patch("/v1/tables/accounts?id=eq.1", json={"balance": 1})).status_code == 428
        assert (await api.get("/v1/nothing")).status_code == 404
        assert await call(connect(stage.origin, "7").put_object, Key="reports/a", Body=b"x")
        assert (await outcome(connect(stage.origin, "6").put_object, Key="reports/a", Body=b"y"))[0] == 412
        assert (await stage.barrier("s3/bucket/reports/a", "8")).status_code == 200
        assert (await stage.barrier("s3/bucket/reports/a", "7")).status_code == 412
        lock = f"/v1/leases/job/{uuid4().hex}"
        lease = (await api.post(lock, json={"holder": "me", "ttl": 60})).json()
        assert (await api.post(lock, json={"holder": "you", "ttl": 60})).status_code == 409
        assert (await api.post(lock, json={"holder": "you", "ttl": 60, "wait": 0.1})).status_code == 409
        assert (await api.put(f"{lock}/{lease['lease']}", json={})).status_code == 200
        assert (await api.delete(f"{lock}/{lease['lease']}")).status_code == 204


async def scrape(stage: Stage) -> Samples:
    """Return the result of a scrape: samples by name and labels."""
    async with stage.api() as api:
        answer = await api.get("/v1/metrics")
    assert answer.status_code == 200, answer.text
    return samples(answer.text)


def samples(text: str) -> Samples:
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[frozenset(sample.labels.items())] = sample.value
    return found


def value(found: Samples, name: str, **labels: str) -> float:
    """The sum of the samples that have these labels."""
    return sum(one for having, one in found.get(name, {}).items() if labels.items() <= dict(having).items())


@dataclass(frozen=True)
class Seen:
    """One span as it was sent. Ids are in hex; ``parent`` is empty for the root of a trace."""

    trace: str
    id: str
    parent: str
    name: str
    kind: int
    attributes: dict[str, Any]
    links: tuple[str, ...]
    events: tuple[str, ...]
    failed: bool
    service: str


@dataclass
class Collector:
    """The spans and metrics that have arrived. ``status`` is the answer to the next batches."""

    origin: str = ""
    status: int = 200
    spans: list[Seen] = field(default_factory=list)
    released: threading.Event = field(default_factory=threading.Event)

    async def trace(self, trace: str, *names: str) -> dict[str, Seen]:
        """The spans of a trace by name, as soon as these are among them."""
        async with asyncio.timeout(PATIENCE):
            while True:
                found = {span.name: span for span in list(self.spans) if span.trace == trace}
                if set(names) <= found.keys():
                    return found
                await asyncio.sleep(0.05)

    async def until(self, *names: str) -> None:
        """Until there are spans of these names, of whatever trace."""
        async with asyncio.timeout(PATIENCE):
            while not set(names) <= {span.name for span in list(self.spans)}:
                await asyncio.sleep(0.05)


@contextmanager
def collecting(*, hangs: bool = False) -> Iterator[Collector]:
    """A collector on a free port. With ``hangs`` it takes batches, and answers none before it is told to."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if hangs:
                collector.released.wait()
            if collector.status == 200:
                collector.spans += _decoded(body)
            self.send_response(collector.status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    collector.origin = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield collector
    finally:
        collector.released.set()
        server.shutdown()
        thread.join()
        server.server_close()


def _decoded(body: bytes) -> Iterator[Seen]:
    for sent in ExportTraceServiceRequest.FromString(body).resource_spans:
        service = _attributes(sent.resource.attributes)["service.name"]
        for scope in sent.scope_spans:
            for span in scope.spans:
                yield Seen(
                    span.trace_id.hex(),
                    span.span_id.hex(),
                    span.parent_span_id.hex(),
                    span.name,
                    span.kind,
                    _attributes(span.attributes),
                    tuple(link.span_id.hex() for link in span.links),
                    tuple(event.name for event in span.events),
                    span.status.code == 2,
                    service,
                )


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}
