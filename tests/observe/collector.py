"""A collector of traces: OTLP over HTTP, decoded, and read as trees."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.waiting import PATIENCE


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
    batches: int = 0
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
            collector.batches += 1
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
