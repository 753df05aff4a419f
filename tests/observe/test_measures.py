"""The metrics count the right events, and no label takes values that callers choose."""

import os
from datetime import UTC, datetime
from uuid import uuid4

import pytest

from gateway.fencing.record import Attempt, Rejection
from gateway.observe.events import (
    BatchSent,
    Event,
    LeaseAnswered,
    RequestAnswered,
    ServiceAnswered,
    Sinks,
    StepReached,
    WriteAccepted,
    WriteRefused,
)
from gateway.observe.gauges import SECONDS, Gathered, Histogram, LabelNames, StatusGauges
from gateway.observe.metrics import MOST_RULES, EventMetrics, Exposition


def refused(rule: str | None, reason: str = "token-stale", *, enforced: bool = True) -> WriteRefused:
    attempt = Attempt(None, None, "worker", "PATCH", "/", None, "request", plane="tables", rule=rule)
    return WriteRefused("tables", Rejection(uuid4(), datetime.now(UTC), "r", reason, enforced, attempt, None))


def answered(area: str = "tables", status: int = 204, code: str | None = None, seconds: float = 0.001) -> Event:
    return RequestAnswered("id", area, "PATCH", "/", status, code, seconds, 0, None, None, None)


def series(measures: EventMetrics) -> int:
    return sum(len(one.values) for one in measures.instruments())


@pytest.fixture
def measures() -> EventMetrics:
    announced = EventMetrics()
    announced.announce([("tables", "public.accounts"), ("objects", "bucket/**")], [], [])
    return announced


class TestCounts:
    def test_a_configured_rule_is_there_before_its_first_write(self, measures: EventMetrics) -> None:
        assert measures.accepted.values["tables", "public.accounts", "recipe"] == 0
        measures(WriteAccepted("tables", "public.accounts", "recipe"))
        measures(WriteAccepted("tables", "public.accounts", "recipe"))
        assert measures.accepted.values["tables", "public.accounts", "recipe"] == 2

    def test_what_is_enforced_is_refused_and_what_is_not_is_observed(self, measures: EventMetrics) -> None:
        measures(refused("public.accounts"))
        measures(refused("public.accounts", enforced=False))
        assert measures.refused.values["tables", "public.accounts", "token-stale"] == 1
        assert measures.observed.values == {("tables", "public.accounts", "token-stale"): 1}

    @pytest.mark.parametrize(
        ("status", "label"), [(204, "2xx"), (303, "3xx"), (412, "4xx"), (503, "5xx"), (0, "gone"), (999, "other")]
    )
    def test_statuses_are_counted_by_their_class(self, measures: EventMetrics, status: int, label: str) -> None:
        for _ in range(2):
            measures(answered(status=status))
        assert sum(measures.requests.values["tables", label].buckets) == 2

    def test_errors_of_our_own_are_named_and_all_others_are_one(self, measures: EventMetrics) -> None:
        for code in ("token-stale", "PGRST205", "42P01", "token-stale"):
            measures(answered(status=400, code=code))
        assert measures.errors.values["tables", "token-stale"] == 2
        assert measures.errors.values["tables", "other"] == 2

    def test_a_trip_is_a_batch_a_wait_and_a_statement(self, measures: EventMetrics) -> None:
        measures(BatchSent(True, 7, 0.003, 0.004))  # noqa: FBT003
        assert measures.batches.values["writes",].total == 7
        assert measures.stages.values["tables", "queue"].total == 0.003
        assert measures.stages.values["tables", "statement"].total == 0.004

    def test_a_service_that_does_not_answer_has_the_code_of_the_error(self, measures: EventMetrics) -> None:
        measures(ServiceAnswered("s3", "PUT", None, 5.0, "outcome-unknown"))
        measures(ServiceAnswered("s3", "PUT", 200, 0.1, None))
        assert set(measures.services.values) == {("s3", "PUT", "outcome-unknown"), ("s3", "PUT", "2xx")}

    def test_many_renewals_count_as_many(self, measures: EventMetrics) -> None:
        measures(LeaseAnswered("renewed", 40))
        assert measures.leases.values["renewed",] == 40


class TestBounds:
    def test_hostile_values_add_no_series(self, measures: EventMetrics) -> None:
        measures(answered(area="x", status=400, code="x"))
        measures(ServiceAnswered("s3", "BREW", None, 0.1, "x"))
        for plane in ("tables", "objects"):
            for number in range(MOST_RULES):
                measures(refused(f"public.t{number}"))
                measures(WriteAccepted(plane, f"public.t{number}", "store"))
        measures(refused("one more", "x"))
        before = series(measures)
        for number in range(10_000):
            text = f"x{number}"
            measures(refused(text, text))
            measures(WriteAccepted("tables", text, "store"))
            measures(WriteAccepted("objects", text, "store"))
            measures(answered(area=text, status=400, code=text))
            measures(ServiceAnswered("s3", text, None, 0.1, text))
        assert series(measures) == before

    def test_configured_rules_come_first(self) -> None:
        names = LabelNames(["a"], most=1)
        assert [names.of(name) for name in ("b", "c", "a", None)] == ["b", "other", "a", "other"]

    def test_buckets_reach_from_a_statement_to_a_client_that_gives_up(self) -> None:
        assert SECONDS[0] == 0.0002
        assert SECONDS[-1] == 30.0
        histogram = Histogram("h_seconds", "", bounds=(1.0, 2.0))
        for value in (1.0, 1.5, 3.0):
            histogram.observe((), value)
        assert histogram.values[()].buckets == [1, 1, 1]


class TestExposition:
    @pytest.fixture
    def exposition(self, measures: EventMetrics) -> Exposition:
        return Exposition(measures, StatusGauges("1", "3", [("tables", "public.accounts", "enforce")]))

    @pytest.mark.parametrize(
        ("accept", "begins"),
        [
            ("", "text/plain"),
            ("application/openmetrics-text;version=1.0.0;q=0.8,text/plain;q=0.5", "application/openmetrics-text"),
            ("text/plain;version=0.0.4", "text/plain"),
            # The answer repeats no name from the request, and the gateway understands no invented version.
            (
                "application/openmetrics-text; version=x\x7f; escaping=evil",
                "application/openmetrics-text; version=1.0.0;",
            ),
            ("*/*" * 5000, "text/plain"),
        ],
    )
    def test_the_format_is_that_which_is_accepted(self, exposition: Exposition, accept: str, begins: str) -> None:
        content, media_type = exposition.render(accept)
        assert media_type.startswith(begins)
        assert "evil" not in media_type
        assert content.endswith(b"# EOF\n") == media_type.startswith("application/openmetrics-text")

    def test_a_histogram_is_cumulative(self, exposition: Exposition, measures: EventMetrics) -> None:
        for seconds in (0.0001, 0.3, 40.0):
            measures(answered(seconds=seconds))
        lines = exposition.render("")[0].decode().splitlines()
        at = 'gateway_request_duration_seconds_{}{{plane="tables",status="2xx"{}}}'
        assert at.format("bucket", ',le="0.0002"').replace(',le="0.0002"', "") not in lines
        found = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if line[0] != "#"}

        def bucket(bound: str) -> float:
            return found[f'gateway_request_duration_seconds_bucket{{le="{bound}",plane="tables",status="2xx"}}']

        assert [bucket(bound) for bound in ("0.0002", "0.2", "0.5", "30.0", "+Inf")] == [1, 1, 2, 2, 3]
        assert found[at.format("count", "")] == 3

    def test_what_is_not_known_is_left_out(self, measures: EventMetrics) -> None:
        standing = StatusGauges("1", "3")
        exposition = Exposition(measures, standing)
        assert b"\ngateway_intents_pending " not in exposition.render("")[0]
        standing.intents.set(3)
        assert b"\ngateway_intents_pending 3.0" in exposition.render("")[0]


class TestWorkers:
    def test_one_worker_answers_for_all(self, measures: EventMetrics) -> None:
        """Counters and histograms are sums, with those of workers that have ended; gauges have rules of their own."""
        other, past = EventMetrics(), EventMetrics()
        for sink, number in ((measures, 1), (other, 2), (past, 4)):
            for _ in range(number):
                sink(answered(seconds=0.3))
        ours, theirs = StatusGauges("1", "3"), StatusGauges("1", "3")
        for standing, number in ((ours, 3), (theirs, 5)):
            standing.connections.set(number)
            standing.journal_lag.set(number)
            standing.position.set(number)
            standing.sessions.values = {("own", "idle"): number}
        theirs.sessions.values = {("own", "idle"): 5, ("shared", "idle"): 1}
        exposition = Exposition(measures, ours)
        gathered = Gathered(
            past=Exposition(past, StatusGauges("1", "3")).snapshot().counts,
            snapshots=[exposition.snapshot(), Exposition(other, theirs).snapshot()],
            processes={1: os.getpid(), 2: os.getppid()},
            serving=2,
            counted=None,
        )
        lines = exposition.render("", gathered)[0].decode().splitlines()
        assert 'gateway_request_duration_seconds_count{plane="tables",status="2xx"} 7.0' in lines
        assert 'gateway_request_duration_seconds_bucket{le="0.2",plane="tables",status="2xx"} 0.0' in lines
        assert 'gateway_request_duration_seconds_bucket{le="0.5",plane="tables",status="2xx"} 7.0' in lines
        assert "gateway_connections 8.0" in lines
        assert "gateway_journal_lag_seconds 5.0" in lines
        assert "gateway_record_position 3.0" in lines
        assert 'gateway_sessions{pool="own",state="idle"} 8.0' in lines
        assert 'gateway_sessions{pool="shared",state="idle"} 1.0' in lines
        assert len([line for line in lines if line.startswith('process_cpu_seconds_total{worker="')]) == 2
        assert 'gateway_request_duration_seconds_count{plane="tables",status="2xx"} 1.0' in (
            exposition.render("")[0].decode().splitlines()
        ), "its own counts are as they were"


class TestSinks:
    def test_each_is_told_of_what_it_heeds_and_lists_of_sinks_are_one(self) -> None:
        everything: list[Event] = []

        class Some:
            def __init__(self) -> None:
                self.heard: list[Event] = []
                self.handlers = {StepReached: self.heard.append}

            def __call__(self, event: Event) -> None:
                raise AssertionError("it has handlers")

        some = Some()
        sinks = Sinks(Sinks(everything.append, some), everything.append)
        assert len(sinks.sinks) == 3
        step, other = StepReached("x"), LeaseAnswered("granted")
        sinks(step)
        sinks(other)
        assert some.heard == [step]
        assert everything == [step, step, other, other]
