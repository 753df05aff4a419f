"""The metrics of a gateway: each with its meaning, and the events that count towards it.

No label has a value that a caller could choose. Resources, callers and holders are named in the record only.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy
from functools import partial
from typing import Any, cast, get_args

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from gateway import errors
from gateway.observe.events import (
    AlarmRaised,
    Answer,
    BatchSent,
    BucketAdministered,
    BypassFound,
    CatalogWarning,
    Event,
    GuardRefused,
    IntentSettled,
    LeaseAnswered,
    OutcomeLost,
    RecordSealed,
    RequestAnswered,
    RequestFailed,
    ServiceAnswered,
    ServiceUnreachable,
    StageLeft,
    SweepFailed,
    TombstoneSwept,
    TracesSent,
    UploadSwept,
    WebhookDelivered,
    WebhookFailed,
    WriteAccepted,
    WriteRefused,
)
from gateway.observe.gauges import (
    OTHER,
    Counter,
    Distribution,
    Gathered,
    Gauge,
    Histogram,
    Instrument,
    LabelNames,
    Snapshot,
    StatusGauges,
    Values,
    added,
    over_workers,
)
from gateway.observe.stages import STAGES

MOST_RULES = 100
"""Rules with a label of their own: as many, of the configured ones first; all others are ``other``."""

AREAS = ("tables", "objects", "leases", "api", "page", "streams")
STATUSES = ("2xx", "4xx", "5xx")
_CLASSES = {1: "1xx", 2: "2xx", 3: "3xx", 4: "4xx", 5: "5xx", 0: "gone"}
_OUTCOMES = ("1xx", "2xx", "3xx", "4xx", "5xx", errors.Unavailable.code, errors.OutcomeUnknown.code)
_METHODS = ("GET", "HEAD", "PUT", "POST", "DELETE", "OPTIONS")
_WAYS = {"tables": ("recipe", "statement", "transaction"), "objects": ("store",), "api": ()}
_BATCHES = (1, 2, 4, 8, 16, 32, 64)


def codes() -> set[str]:
    """Return the codes of all errors of the gateway itself."""

    def below(kind: type[errors.GatewayError]) -> Iterable[type[errors.GatewayError]]:
        for one in kind.__subclasses__():
            yield one
            yield from below(one)

    return {kind.code for kind in below(errors.GatewayError)} | {errors.GatewayError.code}


class EventMetrics:
    """The metrics of one gateway. It is a sink: call it with events. A scrape sets the gauges."""

    def __init__(self) -> None:
        self._rules = {
            "tables": LabelNames(most=MOST_RULES),
            "objects": LabelNames(most=MOST_RULES),
            "api": LabelNames(),
        }
        self._codes, self._reasons = LabelNames(codes()), LabelNames(codes())
        self._methods, self._outcomes = LabelNames(_METHODS), LabelNames(_OUTCOMES)
        self._areas = LabelNames(AREAS)

        self.accepted = Counter(
            "gateway_writes_accepted_total",
            "Writes that have taken effect and that no fence had anything against.",
            ("plane", "rule", "way"),
        )
        self.refused = Counter(
            "gateway_writes_refused_total",
            "Refused writes, each put on record before it was answered: one for each resource that refused it.",
            ("plane", "rule", "reason"),
        )
        self.observed = Counter(
            "gateway_writes_observed_total",
            "Writes that passed because their rule observes, and would have been refused if it were enforced.",
            ("plane", "rule", "reason"),
        )
        self.requests = Histogram(
            "gateway_request_duration_seconds",
            "Requests, from their head to the end of their answer; gone: the client was gone.",
            ("plane", "status"),
            [(area, status) for area in AREAS for status in STATUSES],
        )
        self.errors = Counter(
            "gateway_request_errors_total",
            "Requests that ended in an error, by its code; other: those of PostgREST, of the database, of S3.",
            ("plane", "code"),
            [(area, code) for area in AREAS for code in (errors.Unavailable.code, errors.OutcomeUnknown.code)],
        )
        self.stages = Histogram(
            "gateway_stage_duration_seconds",
            "Stages of requests.",
            ("plane", "stage"),
            [(area, stage) for area, stages in STAGES.items() for stage in stages],
        )
        self.batches = Histogram(
            "gateway_batch_size",
            "Statements to tables that shared a trip to the database.",
            ("kind",),
            [("writes",), ("reads",)],
            bounds=_BATCHES,
        )
        self.services = Histogram(
            "gateway_service_request_duration_seconds",
            "Requests to the object store and to the issuer of tokens, until the head of the answer.",
            ("service", "method", "outcome"),
        )
        self.unreachable = Counter(
            "gateway_service_unreachable_total",
            "Times that a service was found to be out of reach.",
            ("service",),
            [("postgres",), ("s3",)],
        )
        self.settled = Counter(
            "gateway_intents_settled_total", "Object writes of older holders that were made unable to take effect."
        )
        self.lost = Counter(
            "gateway_outcomes_lost_total", "Object writes whose outcome was unknown until another write settled them."
        )
        self.tombstones_swept = Counter("gateway_tombstones_swept_total", "Tombstones that were cleared away.")
        self.uploads_swept = Counter("gateway_uploads_swept_total", "Uploads left behind that were given up.")
        self.sweep_failures = Counter("gateway_sweep_failures_total", "Failures of background work, each time.")
        self.administered = Counter("gateway_buckets_administered_total", "Changes of buckets and their settings.")
        self.catalog_warnings = Counter(
            "gateway_catalog_warnings_total", "Warnings of what weakens what the fence of a table can see."
        )
        self.bypasses = Counter(
            "gateway_bypasses_found_total",
            "Findings that something was changed without passing the gateway.",
            ("plane",),
            [("tables",), ("objects",)],
        )
        self.guard_refusals = Counter(
            "gateway_guard_refusals_total", "Writes of sessions beside the gateway that guards of tables have refused."
        )
        self.failures = Counter("gateway_failures_total", "Requests that ended in a mistake of the gateway's own.")
        self.sealed = Counter("gateway_record_sealed_total", "Entries that this gateway has sealed.")
        self.sealing = Histogram("gateway_record_seal_duration_seconds", "Rounds of sealing that found entries.")
        self.leases = Counter(
            "gateway_lease_answers_total",
            "Answers about leases.",
            ("answer",),
            [(answer,) for answer in get_args(Answer)],
        )
        self.webhooks = Counter(
            "gateway_webhook_messages_total",
            "Messages to webhooks, by what became of them. One that has failed is sent again.",
            ("webhook", "outcome"),
        )
        self.alarms = Counter(
            "gateway_alarms_raised_total",
            "Times that more writes were refused than an alarm allows for.",
            ("alarm",),
        )
        self.spans = Counter(
            "gateway_trace_spans_total",
            "Spans of traces, by what became of them.",
            ("outcome",),
            [("delivered",), ("lost",)],
        )
        self.handlers: dict[type, Callable[[Any], None]] = {
            WriteAccepted: self._on_accepted,
            WriteRefused: self._on_refused,
            RequestAnswered: self._on_answered,
            StageLeft: lambda event: self.stages.observe(event[:2], event.seconds),
            BatchSent: self._on_trip,
            ServiceAnswered: self._on_service,
            ServiceUnreachable: lambda event: self.unreachable.add(event.service),
            LeaseAnswered: lambda event: self.leases.add(event.answer, by=event.leases),
            RecordSealed: self._on_sealed,
            WebhookDelivered: lambda event: self.webhooks.add(event.webhook, "delivered"),
            WebhookFailed: lambda event: self.webhooks.add(event.webhook, "failed"),
            AlarmRaised: lambda event: self.alarms.add(event.alarm),
            TracesSent: lambda event: self.spans.add("delivered" if event.delivered else "lost", by=event.spans),
            IntentSettled: lambda _: self.settled.add(),
            OutcomeLost: lambda _: self.lost.add(),
            TombstoneSwept: lambda _: self.tombstones_swept.add(),
            UploadSwept: lambda _: self.uploads_swept.add(),
            SweepFailed: lambda _: self.sweep_failures.add(),
            BucketAdministered: lambda _: self.administered.add(),
            CatalogWarning: lambda _: self.catalog_warnings.add(),
            BypassFound: lambda event: self.bypasses.add(event.plane),
            GuardRefused: lambda event: self.guard_refusals.add(by=event.count),
            RequestFailed: lambda _: self.failures.add(),
        }

        # Shorter ways to the same numbers, for what happens with each write. The event is the tuple of its labels; and
        # there are only so many statuses.
        self._accepted: dict[Any, float] = cast("dict[Any, float]", self.accepted.values)
        self._served: dict[tuple[str, int], Distribution] = {}

    def announce(self, rules: Iterable[tuple[str, str]], webhooks: Iterable[str], alarms: Iterable[str]) -> None:
        """Have the labels of configured names from now on: plane and name of each of the ``rules``, and the others."""
        for plane, rule in rules:
            name = self._rules[plane].of(rule)
            for way in _WAYS[plane]:
                self.accepted.add(plane, name, way, by=0)
            self.refused.add(plane, name, errors.TokenStale.code, by=0)
        for webhook in webhooks:
            for outcome in ("delivered", "failed"):
                self.webhooks.add(webhook, outcome, by=0)
        for alarm in alarms:
            self.alarms.add(alarm, by=0)

    def __call__(self, event: Event) -> None:
        handler = self.handlers.get(type(event))
        if handler is not None:
            handler(event)

    def instruments(self) -> list[Instrument]:
        """All of them, in the order in which they are declared."""
        return [one for one in vars(self).values() if isinstance(one, Counter | Gauge | Histogram)]

    def _on_accepted(self, event: WriteAccepted) -> None:
        try:
            self._accepted[event] += 1
        except KeyError:
            self.accepted.add(event.plane, self._rules[event.plane].of(event.rule), event.way)

    def _on_refused(self, event: WriteRefused) -> None:
        rejection = event.rejection
        counter = self.refused if rejection.enforced else self.observed
        rule = self._rules[event.plane].of(rejection.attempt.rule)
        counter.add(event.plane, rule, self._reasons.of(rejection.reason))

    def _on_answered(self, event: RequestAnswered) -> None:
        served = self._served.get((event.area, event.status))
        if served is None:
            labels = self._areas.of(event.area), _CLASSES.get(event.status // 100, OTHER)
            served = self._served[event.area, event.status] = self.requests.at(labels)
        self.requests.add(served, event.seconds)
        if event.code is not None:
            self.errors.add(self._areas.of(event.area), self._codes.of(event.code))

    def _on_trip(self, event: BatchSent) -> None:
        kind, queue, trip = ("writes", "queue", "statement") if event.writes else ("reads", "read-queue", "read")
        self.batches.observe((kind,), event.size)
        self.stages.observe(("tables", queue), event.waited)
        self.stages.observe(("tables", trip), event.seconds)

    def _on_service(self, event: ServiceAnswered) -> None:
        outcome = event.failure if event.status is None else _CLASSES.get(event.status // 100)
        labels = (event.service, self._methods.of(event.method), self._outcomes.of(outcome))
        self.services.observe(labels, event.seconds)

    def _on_sealed(self, event: RecordSealed) -> None:
        self.sealed.add(by=event.sealed)
        self.sealing.observe((), event.seconds)


_OPENMETRICS = "application/openmetrics-text"


class Exposition:
    """The metrics of one gateway, to be scraped."""

    def __init__(self, measures: EventMetrics, standing: StatusGauges) -> None:
        self._measures, self._standing = measures, standing
        self._registry = CollectorRegistry()
        self._registry.register(_Instruments([*standing.instruments(), *measures.instruments()]))
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        GCCollector(registry=self._registry)

    def snapshot(self) -> Snapshot:
        """Return the values that another worker needs to answer for all."""
        return Snapshot(
            {one.name: cast("Values", one.values) for one in self._measures.instruments()},
            {
                one.name: one.values
                for one in self._standing.instruments()
                if isinstance(one, Gauge) and one.over != "one"
            },
        )

    def render(self, accept: str, gathered: Gathered | None = None) -> tuple[bytes, str]:
        """Return the body of a scrape and its media type: OpenMetrics or Prometheus' text, by the header ``Accept``.

        ``gathered``: answer for all workers.
        """
        registry = self._registry if gathered is None else self._of_all(gathered)
        # Not as prometheus_client chooses, which repeats to the sender whatever version it names.
        kinds = {one.partition(";")[0].strip().lower() for one in accept.split(",")}
        if _OPENMETRICS in kinds:
            return openmetrics.generate_latest(registry), openmetrics.CONTENT_TYPE_LATEST  # type: ignore[no-untyped-call]
        return generate_latest(registry), CONTENT_TYPE_PLAIN_0_0_4

    def _of_all(self, gathered: Gathered) -> CollectorRegistry:
        counts = gathered.past
        for snapshot in gathered.snapshots:
            counts = added(counts, snapshot.counts)
        instruments: list[Instrument] = []
        for gauge in self._standing.instruments():
            moments = [snapshot.moment.get(gauge.name, {}) for snapshot in gathered.snapshots]
            instruments.append(over_workers(gauge, moments) if isinstance(gauge, Gauge) else gauge)
        for counted in self._measures.instruments():
            total = copy(counted)
            total.values = cast("Any", counts[counted.name])
            instruments.append(total)
        registry = CollectorRegistry()
        registry.register(_Instruments(instruments))
        registry.register(_Processes(gathered.processes))
        PlatformCollector(registry=registry)
        return registry


class _Processes(Collector):
    """The kernel's figures of each worker, by its number. Garbage collections are known to the worker alone."""

    def __init__(self, processes: Mapping[int, int]) -> None:
        self._processes = processes

    def collect(self) -> Iterable[Metric]:
        families: dict[str, Metric] = {}
        for number, pid in self._processes.items():
            for family in ProcessCollector(pid=partial(int, pid), registry=None).collect():
                samples = [one._replace(labels={"worker": str(number)}) for one in family.samples]
                family.samples = [*(families[family.name].samples if family.name in families else ()), *samples]
                families[family.name] = family
        return families.values()


class _Instruments(Collector):
    def __init__(self, instruments: Iterable[Instrument]) -> None:
        self._instruments = tuple(instruments)

    def collect(self) -> Iterator[Metric]:
        yield from map(_family, self._instruments)


def _family(instrument: Instrument) -> Metric:
    match instrument:
        case Counter(name, text, labels):
            counter = CounterMetricFamily(name, text, labels=labels)
            for values, count in instrument.values.items():
                counter.add_metric(values, count)
            return counter
        case Gauge(name, text, labels):
            gauge = GaugeMetricFamily(name, text, labels=labels)
            for values, value in instrument.values.items():
                gauge.add_metric(values, value)
            return gauge
        case Histogram(name, text, labels):
            histogram = HistogramMetricFamily(name, text, labels=labels)
            for values, counts in instrument.values.items():
                histogram.add_metric(values, _cumulative(instrument.bounds, counts), counts.total)
            return histogram


def _cumulative(bounds: Iterable[float], counts: Distribution) -> list[tuple[str, float]]:
    """Each bound with how many were no larger."""
    found, cumulative = 0, []
    for bound, count in zip((*bounds, float("inf")), counts.buckets, strict=True):
        found += count
        cumulative.append((floatToGoString(bound), float(found)))  # type: ignore[no-untyped-call]
    return cumulative
