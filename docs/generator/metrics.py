"""The page of metrics: each with its kind, labels and meaning, and the stages of requests."""

from collections.abc import Mapping

from docs.generator import markdown, page
from gateway.observe.events import STAGES
from gateway.observe.gauges import Gauge, Instrument, StatusGauges
from gateway.observe.metrics import EventMetrics

INTRODUCTION = """\
`GET /v1/metrics` has these metrics, each with its kind and its labels. [Observability](../observability.md#metrics)
says how to read them, and has a runbook for each alert. Of several workers, counters, histograms and the gauges marked
*sum* are sums; gauges marked *maximum* have the highest value."""

SUBJECTS: Mapping[str, tuple[str, ...]] = {
    "Writes": ("gateway_writes_", "gateway_bypasses_", "gateway_guard_", "gateway_rule_"),
    "Requests": (
        *("gateway_request_", "gateway_stage_", "gateway_batch_", "gateway_failures_"),
        *("gateway_connections", "gateway_streams"),
    ),
    "Locks": ("gateway_lease",),
    "The record": ("gateway_record_",),
    "Services": ("gateway_service_", "gateway_sessions"),
    "The journal": ("gateway_journal_",),
    "Objects": (
        *("gateway_body_", "gateway_intent", "gateway_outcomes_", "gateway_tombstones", "gateway_uploads_"),
        "gateway_buckets_",
    ),
    "Webhooks and alarms": ("gateway_webhook_", "gateway_alarm"),
    "The gateway itself": ("gateway_",),
}
"""The beginnings of the names about each subject. A metric is under the first that fits."""

LIBRARY = """\
`process_…` and `python_…` are those of prometheus_client: memory, processor time, open files, garbage collections. With
several workers each `process_…` has the label `worker`, and `python_gc_…` is left out."""

JOINED = {"one": "", "sum": ", sum", "max": ", maximum"}


def instruments() -> list[Instrument]:
    """Return all instruments of a gateway."""
    return [*EventMetrics().instruments(), *StatusGauges("", "").instruments()]


def make() -> str:
    """Return the page."""
    subjects: dict[str, list[Instrument]] = {title: [] for title in SUBJECTS}
    for one in instruments():
        title = next(title for title, names in SUBJECTS.items() if one.name.startswith(names))
        subjects[title].append(one)
    parts = [part for title, found in subjects.items() for part in (f"## {title}", "\n".join(map(_row, found)))]
    stages = [
        f"- `{area}`\n" + "\n".join(f"  - `{name}`: {markdown(text)}" for name, text in own.items())
        for area, own in STAGES.items()
    ]
    about = "The labels `plane` and `stage` of `gateway_stage_duration_seconds`, and the names of spans in traces."
    return page("Metrics", INTRODUCTION, *parts, LIBRARY, "## Stages", about, "\n".join(stages))


def _row(one: Instrument) -> str:
    joined = JOINED[one.over] if isinstance(one, Gauge) else ""
    labels = f" by {', '.join(f'`{label}`' for label in one.labels)}" if one.labels else ""
    return f"- `{one.name}` ({type(one).__name__.lower()}{joined}{labels}). {markdown(one.text)}"
