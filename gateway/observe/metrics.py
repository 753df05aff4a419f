"""The metrics of a gateway: what events move, as they declare it, and how it is scraped.

The counters are our own, and the library only renders them: its histogram takes three times as long as ours. In the
files by which it joins processes it takes nine times as long, and also joins the gateways of one process.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from functools import partial
from operator import attrgetter
from typing import Any, cast

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from gateway import errors
from gateway.observe.events import (
    ACCEPTED,
    ALARMS,
    AREAS,
    CLASSES,
    MESSAGES,
    MOVES,
    REFUSED,
    Event,
    Labels,
    Metric,
    Observe,
    Sink,
    Sinks,
)
from gateway.observe.gauges import (
    OTHER,
    SECONDS,
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

MOST_RULES = 100
"""Rules with a label of their own: as many, of the configured ones first; all others are ``other``."""

_WAYS = {"tables": ("recipe", "statement", "transaction"), "objects": ("store",), "api": ()}
_SIZES = (1, 2, 4, 8, 16, 32, 64)


def codes() -> set[str]:
    """Return the codes of all errors of the gateway itself."""
    return {kind.code for kind in errors.kinds()}


def _known_values() -> Mapping[str, Iterable[str]]:
    """Return the values of some labels. All others are those of a configuration, or the gateway's own."""
    of_services = (errors.Unavailable.code, errors.OutcomeUnknown.code)
    return {
        "plane": AREAS,
        "status": CLASSES.values(),
        "code": codes(),
        "reason": codes(),
        "method": ("GET", "HEAD", "PUT", "POST", "DELETE", "OPTIONS"),
        "outcome": (*CLASSES.values(), *of_services, "delivered", "failed", "lost"),
    }


class EventMetrics(Sink):
    """The metrics of one gateway. It is a sink: call it with events. A scrape sets the gauges."""

    def __init__(self) -> None:
        self._rules = {
            "tables": LabelNames(most=MOST_RULES),
            "objects": LabelNames(most=MOST_RULES),
            "api": LabelNames(),
        }
        self._bounds = {label: LabelNames(known) for label, known in _known_values().items()}
        self.named: dict[str, Counter | Histogram] = {}
        self.handlers = {
            kind: Sinks(*(self._handler(kind, metric) for metric in metrics)) for kind, metrics in MOVES.items()
        }

    def announce(self, rules: Iterable[tuple[str, str]], webhooks: Iterable[str], alarms: Iterable[str]) -> None:
        """Have the labels of configured names from now on: plane and name of each of the ``rules``, and the others."""
        known: list[tuple[Metric, tuple[str, ...]]] = []
        for plane, rule in rules:
            name = self._rules[plane].of(rule)
            known += [(ACCEPTED, (plane, name, way)) for way in _WAYS[plane]]
            known.append((REFUSED, (plane, name, errors.TokenStale.code)))
        known += [(MESSAGES, (name, outcome)) for name in webhooks for outcome in ("delivered", "failed")]
        known += [(ALARMS, (name,)) for name in alarms]
        for metric, labels in known:
            cast("Counter", self.named[metric.name]).add(*labels, by=0)

    def instruments(self) -> list[Instrument]:
        """All of them, in the order in which they are declared."""
        return list(self.named.values())

    def _handler(self, kind: type, metric: Metric) -> Observe:
        """Return what moves a metric. Labels that are there already are found at once, and others are bounded first."""
        one = self.named.get(metric.name)
        if one is None:
            one = self.named[metric.name] = _instrument(metric)
        labels_of = metric.of or _members(metric.labels)
        amount_of = (lambda _: 1) if metric.by is None else attrgetter(metric.by)
        values: dict[Any, Any] = cast("dict[Any, Any]", one.values)

        def count(event: Event) -> None:
            labels = labels_of(event)
            if labels is None:
                return
            try:
                values[labels] += amount_of(event)
            except KeyError:
                counter.add(*self._bounded(counter, labels), by=amount_of(event))

        def count_as_it_is(event: Any) -> None:
            try:
                values[event] += 1
            except KeyError:
                counter.add(*self._bounded(counter, event))

        def observe(event: Event) -> None:
            labels, amount = labels_of(event), amount_of(event)
            counts = values.get(labels)
            if counts is None:
                counts = histogram.at(self._bounded(histogram, labels or ()))
            counts.buckets[bisect_left(histogram.bounds, amount)] += 1
            counts.total += amount

        if isinstance(one, Histogram):
            histogram = one
            return observe
        counter = one
        # A shorter way for what happens with each write: the event is the tuple of its labels.
        return count_as_it_is if getattr(kind, "_fields", None) == metric.labels else count

    def _bounded(self, one: Instrument, labels: Labels) -> tuple[str, ...]:
        """Return the labels with ``OTHER`` in place of each value that has no place of its own."""
        bounds = self._bounds | {"rule": self._rules.get(labels[0] or "", LabelNames())} if labels else {}
        return tuple(
            bounds[name].of(value) if name in bounds else value or OTHER
            for name, value in zip(one.labels, labels, strict=True)
        )


def _instrument(metric: Metric) -> Counter | Histogram:
    name, text, labels, known, kind, _, _ = metric
    if kind == "counter":
        return Counter(name, text, labels, known)
    return Histogram(name, text, labels, known, _SIZES if kind == "sizes" else SECONDS)


def _members(names: Sequence[str]) -> Callable[[Any], Labels]:
    if len(names) == 1:
        return lambda event: (getattr(event, names[0]),)
    return attrgetter(*names) if names else lambda _: ()


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

    def collect(self) -> Iterable[Family]:
        families: dict[str, Family] = {}
        for number, pid in self._processes.items():
            for family in ProcessCollector(pid=partial(int, pid), registry=None).collect():
                samples = [one._replace(labels={"worker": str(number)}) for one in family.samples]
                family.samples = [*(families[family.name].samples if family.name in families else ()), *samples]
                families[family.name] = family
        return families.values()


class _Instruments(Collector):
    def __init__(self, instruments: Callable[[], Iterable[Instrument]]) -> None:
        self._instruments = instruments

    def collect(self) -> Iterator[Family]:
        yield from map(_family, self._instruments())


_FAMILIES: Mapping[type, type[Any]] = {
    Counter: CounterMetricFamily,
    Gauge: GaugeMetricFamily,
    Histogram: HistogramMetricFamily,
}


def _family(instrument: Instrument) -> Family:
    family = _FAMILIES[type(instrument)](instrument.name, instrument.text, labels=instrument.labels)
    for values, value in instrument.values.items():
        if isinstance(instrument, Histogram) and isinstance(value, Distribution):
            family.add_metric(values, _cumulative(instrument.bounds, value), value.total)
        else:
            family.add_metric(values, value)
    return cast("Family", family)


def _cumulative(bounds: Iterable[float], counts: Distribution) -> list[tuple[str, float]]:
    """Each bound with how many were no larger."""
    found, cumulative = 0, []
    for bound, count in zip((*bounds, float("inf")), counts.buckets, strict=True):
        found += count
        cumulative.append((floatToGoString(bound), float(found)))  # type: ignore[no-untyped-call]
    return cumulative
