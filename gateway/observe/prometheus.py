"""What is measured, in the words of Prometheus: the one door to prometheus_client.

Each gateway app has a registry of its own; of the process there is what prometheus_client's own collectors tell.
"""

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from gateway.observe.gauges import Standing
from gateway.observe.instruments import Counter, Distribution, Gauge, Histogram
from gateway.observe.metrics import Instrument, Measures

_OPENMETRICS = "application/openmetrics-text"


class Exposition:
    """The metrics of one gateway, to be scraped."""

    def __init__(self, measures: Measures, standing: Standing) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_Instruments([*standing.instruments(), *measures.instruments()]))
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        GCCollector(registry=self._registry)

    def render(self, accept: str) -> tuple[bytes, str]:
        """What a scrape gets, and its media type: OpenMetrics or Prometheus' text, by the header ``Accept``."""
        # Not as prometheus_client chooses, which repeats to the sender whatever version it names.
        kinds = {one.partition(";")[0].strip().lower() for one in accept.split(",")}
        if _OPENMETRICS in kinds:
            return openmetrics.generate_latest(self._registry), openmetrics.CONTENT_TYPE_LATEST  # type: ignore[no-untyped-call]
        return generate_latest(self._registry), CONTENT_TYPE_PLAIN_0_0_4


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
