"""Traces: a span for each request, and for each of its stages. The one door to opentelemetry.

It is a sink, like the log: spans derive from the events that call sites announce. An event without a request makes no
span. A request is part of the trace that its caller sends (W3C ``traceparent``). So are the gateway's requests to the
store and the issuer. A thread of its own sends all spans: a slow or unreachable collector costs only spans.
"""

import asyncio
import logging
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.fencing.credential_redaction import redacted
from gateway.observe.events import (
    BatchBegun,
    BatchSent,
    Observe,
    RequestAnswered,
    ServiceAnswered,
    ServiceAsked,
    ServiceUnreachable,
    Sink,
    StageEntered,
    StageLeft,
    StepReached,
    TracesSent,
    WriteAccepted,
    WriteRefused,
    refusal_facts,
)
from gateway.observe.stages import ORIGIN, SENT_ALONG, TRACE_IDS

QUEUE = 4096
"""Spans that wait to be sent; what comes beyond pushes the oldest out."""
BATCH = 512
EVERY = 1.0
TIMEOUT = 5.0
GRACE = 2.0
"""Seconds: between two batches; for the collector to take one; to hand over what is left when the gateway stops."""

_MAX_PATH = 1024
_FAST = "tables.fast"
_TRIP = "tables.trip"
_HEADERS = {b"traceparent": "traceparent", b"tracestate": "tracestate"}
_W3C = TraceContextTextMapPropagator()


@dataclass(frozen=True, slots=True)
class _Open:
    name: str
    span: Span
    outer: "_Open | None" = None


_OPEN: ContextVar[_Open | None] = ContextVar("open", default=None)


class Tracing(Sink):
    """The traces of one gateway."""

    def __init__(self, endpoint: str, *, version: str, observe: Observe) -> None:
        """``endpoint``: the origin of an OTLP/HTTP collector. The library reads its own variables, such as
        ``OTEL_SERVICE_NAME`` and ``OTEL_TRACES_SAMPLER``.

        ``observe`` is told what has become of them, from another thread.
        """
        # The library's own messages would be lines of another form. Counters show the sent and the lost spans.
        logging.getLogger("opentelemetry").addHandler(logging.NullHandler())
        logging.getLogger("opentelemetry").propagate = False
        own = Resource({"service.name": "fencing-gateway", "service.version": version})
        resource = Resource.create().merge(own).merge(OTELResourceDetector().detect())
        exporter = OTLPSpanExporter(f"{endpoint.rstrip('/')}/v1/traces", timeout=TIMEOUT)
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(
            BatchSpanProcessor(
                _Told(exporter, observe),
                max_queue_size=QUEUE,
                schedule_delay_millis=EVERY * 1000,
                max_export_batch_size=BATCH,
            )
        )
        self._tracer = self._provider.get_tracer("fencing-gateway", version)
        self._requests: dict[str, Span] = {}
        self.handlers = {
            StepReached: self._step,
            StageEntered: self._begin,
            StageLeft: lambda event: self._leave(f"{event.area}.{event.stage}", event.failure),
            BatchBegun: self._set_out,
            BatchSent: lambda event: self._leave(_TRIP, None, {"db.operation.batch.size": event.size}),
            ServiceAsked: self._ask,
            ServiceAnswered: self._service_answered,
            WriteAccepted: self._accepted,
            WriteRefused: self._refused,
            RequestAnswered: self._answered,
        }

    def around(self, app: ASGIApp) -> ASGIApp:
        """``app``, with a span for each of its requests."""

        async def traced(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "http":
                self._arrived(scope)
            await app(scope, receive, send)

        return traced

    async def close(self) -> None:
        """Hand over what is left, if the collector takes it soon."""
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        def hand_over() -> None:
            self._provider.shutdown()
            with suppress(RuntimeError):  # no task waits any more, and the loop is closed
                loop.call_soon_threadsafe(done.set)

        threading.Thread(target=hand_over, name="traces", daemon=True).start()
        with suppress(TimeoutError):
            async with asyncio.timeout(GRACE):
                await done.wait()

    def _step(self, event: StepReached) -> None:
        if event.name == f"{_FAST}.before":
            self._enter(_FAST)
        elif event.name == f"{_FAST}.after":
            self._leave(_FAST)
        elif opened := _OPEN.get():
            opened.span.add_event(event.name)

    def _begin(self, event: StageEntered) -> None:
        self._enter(f"{event.area}.{event.stage}")

    def _arrived(self, scope: Scope) -> None:
        carrier = {_HEADERS[name]: value.decode("latin-1") for name, value in scope["headers"] if name in _HEADERS}
        state, method = scope["state"], scope["method"]
        span = self._tracer.start_span(
            method,
            _W3C.extract(carrier),
            SpanKind.SERVER,
            {
                "http.request.method": method,
                "url.scheme": scope.get("scheme", "http"),
                "client.address": state["client"] or "",
                "fencing.request_id": state["request_id"],
            },
        )
        TRACE_IDS[state["request_id"]] = f"{span.get_span_context().trace_id:032x}"
        self._requests[state["request_id"]] = span
        _move_to(_Open("request", span))

    def _answered(self, event: RequestAnswered) -> None:
        TRACE_IDS.pop(event.request_id, None)
        span = self._requests.pop(event.request_id, None)
        if span is None:
            return
        # A stage that an error has left open ends with its request.
        opened = _OPEN.get()
        while opened is not None and opened.outer is not None:
            self._leave(opened.name, event.code)
            opened = _OPEN.get()
        span.update_name(f"{event.method} {event.area}")
        span.set_attribute("fencing.plane", event.area)
        span.set_attribute("url.path", redacted(event.path[:_MAX_PATH]))
        if event.status:
            span.set_attribute("http.response.status_code", event.status)
        if event.caller is not None:
            span.set_attribute("fencing.caller", event.caller)
        if event.code is not None:
            span.set_attribute("error.type", event.code)
        if event.status >= 500:
            span.set_status(Status(StatusCode.ERROR))
        span.end()

    def _accepted(self, event: WriteAccepted) -> None:
        opened = _OPEN.get()
        if opened is not None:
            span = _outermost(opened).span
            span.set_attributes(
                {"fencing.outcome": "accepted", "fencing.rule": event.rule or "", "fencing.way": event.way}
            )

    def _refused(self, event: WriteRefused) -> None:
        rejection = event.rejection
        span = self._requests.get(rejection.attempt.request_id)
        if span is None:
            return
        facts = {"outcome": "refused" if rejection.enforced else "observed", "rule": rejection.attempt.rule}
        facts |= {name: refusal_facts(event)[name] for name in ("reason", "resource", "token", "fence", "rejection")}
        span.set_attributes({f"fencing.{name}": value or "" for name, value in facts.items()})

    def _enter(
        self, name: str, kind: SpanKind = SpanKind.INTERNAL, attributes: dict[str, Any] | None = None
    ) -> Span | None:
        """Begin a span inside the one that is under way; None where there is none."""
        outer = _OPEN.get()
        if outer is None:
            return None
        span = outer.span  # an unsampled trace needs no more than its id
        if span.is_recording():
            span = self._tracer.start_span(name, set_span_in_context(span), kind, attributes)
        _move_to(_Open(name, span, outer))
        return span

    def _leave(self, name: str, failure: str | None = None, attributes: dict[str, Any] | None = None) -> None:
        """End the span of this name, and what was left open inside it."""
        opened = _OPEN.get()
        if not any(one.name == name for one in _chain(opened)):
            return
        for one in _chain(opened):
            _end(one, failure, attributes if one.name == name else None)
            if one.name == name:
                _move_to(one.outer)
                return

    def _ask(self, event: ServiceAsked) -> None:
        attributes = {"http.request.method": event.method, "url.path": redacted(event.path[:_MAX_PATH])}
        span = self._enter(f"{event.service} {event.method}", SpanKind.CLIENT, attributes)
        if span is not None:
            carrier: dict[str, str] = {}
            _W3C.inject(carrier, set_span_in_context(span))
            SENT_ALONG.set(tuple(carrier.items()))

    def _service_answered(self, event: ServiceAnswered) -> None:
        answered = {} if event.status is None else {"http.response.status_code": event.status}
        self._leave(f"{event.service} {event.method}", event.failure, answered)

    def _set_out(self, event: BatchBegun) -> None:
        """Start the span of a batch in the trace of its first member, and link it with all."""
        members = [origin for origin in event.origins if isinstance(origin, Span) and origin.is_recording()]
        if not members:
            return
        links = [Link(member.get_span_context()) for member in members]
        attributes = {"db.system.name": "postgresql", "fencing.kind": "writes" if event.writes else "reads"}
        parent = set_span_in_context(members[0])
        span = self._tracer.start_span(_TRIP, parent, SpanKind.CLIENT, attributes, links)
        for member in members:
            member.add_link(span.get_span_context())
        _move_to(_Open(_TRIP, span))


class _Told(SpanExporter):
    """An exporter that tells what has become of its spans, and the beginning of an outage."""

    def __init__(self, exporter: SpanExporter, observe: Observe) -> None:
        self._exporter, self._observe, self._works = exporter, observe, True

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._exporter.export(spans)
        delivered = result is SpanExportResult.SUCCESS
        self._observe(TracesSent(len(spans), delivered))
        if self._works and not delivered:
            self._observe(ServiceUnreachable("collector", "Spans are not taken, and lost."))
        self._works = delivered
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._exporter.force_flush(timeout_millis)


def _move_to(opened: _Open | None) -> None:
    """Make this span the current one; None: none is."""
    _OPEN.set(opened)
    ORIGIN.set(None if opened is None else opened.span)
    SENT_ALONG.set(())


def _chain(opened: _Open | None) -> Iterable[_Open]:
    while opened is not None:
        yield opened
        opened = opened.outer


def _outermost(opened: _Open) -> _Open:
    *_, outermost = _chain(opened)
    return outermost


def _end(opened: _Open, failure: str | None, attributes: dict[str, Any] | None) -> None:
    if opened.outer is not None and opened.outer.span is opened.span:
        return
    if attributes:
        opened.span.set_attributes(attributes)
    if failure is not None:
        opened.span.set_attribute("error.type", failure)
        opened.span.set_status(Status(StatusCode.ERROR))
    opened.span.end()
