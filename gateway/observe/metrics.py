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
from gateway.fencing.record import Refusal, Rejection
from gateway.observe.events import (
    AlarmRaised,
    Answer,
    BatchSent,
    BucketAdministered,
    BypassFound,
    CatalogWarning,
    ConnectionsCrowded,
    Event,
    GuardRefused,
    IntentSettled,
    LeaseAnswered,
    OutcomeLost,
    RecordSealed,
    RefusalCounted,
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
            "Writes that have taken effect with the consent of their fences. `way`: a `recipe` (a "
            "known form of request), one `statement`, a `transaction`, or the `store`.",
            ("plane", "rule", "way"),
        )
        self.refused = Counter(
            "gateway_writes_refused_total",
            "Refused writes: one for each resource that refused it. Each is on record, except strangers over budget.",
            ("plane", "rule", "reason"),
        )
        self.observed = Counter(
            "gateway_writes_observed_total",
            "Writes that passed only because their rule observes. Each is on record, except strangers over budget.",
            ("plane", "rule", "reason"),
        )
        self.requests = Histogram(
            "gateway_request_duration_seconds",
            "From the head of a request to the end of its answer, so that a slow client counts. "
            "`plane`: `tables`, `objects`, `leases`, `api`, `page`, `streams`. `status`: `2xx` to "
            "`5xx`, or `gone` if the client had disconnected.",
            ("plane", "status"),
            [(area, status) for area in AREAS for status in STATUSES],
        )
        self.errors = Counter(
            "gateway_request_errors_total",
            "Requests that ended in an error; `other` means a code of PostgREST, the database or S3.",
            ("plane", "code"),
            [(area, code) for area in AREAS for code in (errors.Unavailable.code, errors.OutcomeUnknown.code)],
        )
        self.stages = Histogram(
            "gateway_stage_duration_seconds",
            "Duration of each stage of a request, listed below.",
            ("plane", "stage"),
            [(area, stage) for area, stages in STAGES.items() for stage in stages],
        )
        self.batches = Histogram(
            "gateway_batch_size",
            "Table statements in one round trip: `writes`, `reads`.",
            ("kind",),
            [("writes",), ("reads",)],
            bounds=_BATCHES,
        )
        self.services = Histogram(
            "gateway_service_request_duration_seconds",
            "Requests to `s3` and to the `issuer`, until the head of the answer. `outcome`: `2xx` to "
            "`5xx`, `unavailable` (nothing was sent, or a read got no answer), `outcome-unknown` (a "
            "write got no answer).",
            ("service", "method", "outcome"),
        )
        self.unreachable = Counter(
            "gateway_service_unreachable_total",
            "How often a service was found unreachable.",
            ("service",),
            [("postgres",), ("s3",)],
        )
        self.settled = Counter("gateway_intents_settled_total", "Settled object writes of older holders.")
        self.lost = Counter(
            "gateway_outcomes_lost_total", "Object writes whose outcome was unknown until a later write settled them."
        )
        self.tombstones_swept = Counter("gateway_tombstones_swept_total", "Removed tombstones.")
        self.uploads_swept = Counter("gateway_uploads_swept_total", "Aborted uploads that were left behind.")
        self.sweep_failures = Counter("gateway_sweep_failures_total", "Failures of background work, each time.")
        self.administered = Counter("gateway_buckets_administered_total", "Changes of buckets and their settings.")
        self.catalog_warnings = Counter(
            "gateway_catalog_warnings_total", "Warnings of side effects that the fence of a table does not see."
        )
        self.bypasses = Counter(
            "gateway_bypasses_found_total",
            "Changes found that bypassed the gateway.",
            ("plane",),
            [("tables",), ("objects",)],
        )
        self.guard_refusals = Counter("gateway_guard_refusals_total", "Direct SQL writes that guards have refused.")
        self.crowded_out = Counter(
            "gateway_connections_crowded_out_total",
            "Connections that were closed for new ones near the limit of open files, or that were new ones of a crowd "
            "at work. It lags a minute at most.",
        )
        self.failures = Counter("gateway_failures_total", "Requests that failed by an error in the gateway.")
        self.sealed = Counter(
            "gateway_record_sealed_total",
            "Entries that this gateway has sealed in the background; reads seal entries too.",
        )
        self.sealing = Histogram(
            "gateway_record_seal_duration_seconds", "Duration of sealing rounds that found entries."
        )
        self.leases = Counter(
            "gateway_lease_answers_total",
            "Answers: `granted`, `kept` (its holder had it already), `refused`, `renewed`, `lost`, "
            "`released`, `withdrawn`, `broken`.",
            ("answer",),
            [(answer,) for answer in get_args(Answer)],
        )
        self.webhooks = Counter(
            "gateway_webhook_messages_total",
            "Messages `delivered`, and `failed` ones, which are retried.",
            ("webhook", "outcome"),
        )
        self.alarms = Counter(
            "gateway_alarms_raised_total",
            "How often refused writes exceeded the limit of the alarm.",
            ("alarm",),
        )
        self.spans = Counter(
            "gateway_trace_spans_total",
            "Spans `delivered` to the collector, or `lost`.",
            ("outcome",),
            [("delivered",), ("lost",)],
        )
        self.handlers: dict[type, Callable[[Any], None]] = {
            WriteAccepted: self._on_accepted,
            WriteRefused: lambda event: self._count_refusal(event.plane, event.rejection),
            RefusalCounted: lambda event: self._count_refusal(event.plane, event.refusal),
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
            ConnectionsCrowded: lambda event: self.crowded_out.add(by=event.closed),
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

    def _count_refusal(self, plane: str, refused: Refusal | Rejection) -> None:
        counter = self.refused if refused.enforced else self.observed
        counter.add(plane, self._rules[plane].of(refused.attempt.rule), self._reasons.of(refused.reason))

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
        self._registry.register(_Instruments(lambda: [*standing.instruments(), *measures.instruments()]))
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
        registry.register(_Instruments(lambda: instruments))
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
    def __init__(self, instruments: Callable[[], Iterable[Instrument]]) -> None:
        self._instruments = instruments

    def collect(self) -> Iterator[Metric]:
        yield from map(_family, self._instruments())


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
