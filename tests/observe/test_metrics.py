"""Metrics count the right events, a real load moves them, and no label takes values that callers choose."""

import asyncio
import os
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import asyncpg
import httpx
import pytest
import pytest_asyncio
from uvicorn.protocols.http import httptools_impl

from gateway.demo.embedded import EmbeddedPostgres
from gateway.fencing.record import Attempt, Rejection
from gateway.observe.events import (
    Event,
    LeaseAnswered,
    RequestAnswered,
    ServiceAnswered,
    WriteAccepted,
    WriteRefused,
)
from gateway.observe.gauges import Gathered, LabelNames, StatusGauges
from gateway.observe.metrics import MOST_RULES, EventMetrics, Exposition
from tests.objects.clients import connect, outcome
from tests.objects.object_gateway import Stage
from tests.observe.scene import Samples, load, patch, samples, scene, scrape, value
from tests.running import API_KEY, config, running
from tests.waiting import PATIENCE


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(postgres_server: EmbeddedPostgres) -> AsyncIterator[Stage]:
    async with scene(postgres_server) as one:
        yield one


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def moved(stage: Stage) -> Samples:
    """The samples after the load, once its entries are sealed. Gauges may be a second old."""
    await load(stage)
    async with asyncio.timeout(PATIENCE):
        while True:
            found = await scrape(stage)
            # A service that takes seconds to answer counts as one that is away.
            if (
                value(found, "gateway_record_sealed_total")
                and value(found, "gateway_record_position")
                and value(found, "gateway_service_up") == 2
            ):
                return found
            await asyncio.sleep(0.05)


COUNTED: list[tuple[str, dict[str, str], float]] = [
    ("gateway_writes_accepted_total", {"rule": "public.accounts", "way": "statement"}, 1),
    ("gateway_writes_accepted_total", {"rule": "public.accounts", "way": "recipe"}, 8),
    ("gateway_writes_accepted_total", {"rule": "public.watched", "way": "transaction"}, 1),
    ("gateway_writes_accepted_total", {"rule": "bucket/reports/**", "way": "store"}, 1),
    ("gateway_writes_refused_total", {"rule": "public.accounts", "reason": "token-stale"}, 1),
    ("gateway_writes_refused_total", {"rule": "bucket/reports/**", "reason": "token-stale"}, 1),
    ("gateway_writes_refused_total", {"plane": "api"}, 1),
    ("gateway_writes_observed_total", {"rule": "public.watched", "reason": "token-stale"}, 1),
    ("gateway_request_duration_seconds_count", {"plane": "tables", "status": "2xx"}, 13),
    ("gateway_writes_refused_total", {"rule": "public.accounts", "reason": "token-implausible"}, 1),
    ("gateway_request_duration_seconds_count", {"plane": "tables", "status": "4xx"}, 3),
    ("gateway_request_duration_seconds_count", {"plane": "objects"}, 2),
    ("gateway_request_duration_seconds_count", {"plane": "leases"}, 5),
    ("gateway_request_errors_total", {"plane": "tables", "code": "token-required"}, 1),
    ("gateway_request_errors_total", {"plane": "objects", "code": "token-stale"}, 1),
    ("gateway_request_errors_total", {"plane": "api", "code": "not-found"}, 1),
    ("gateway_request_errors_total", {"plane": "leases", "code": "lock-held"}, 2),
    ("gateway_stage_duration_seconds_count", {"plane": "tables", "stage": "transaction"}, 2),
    ("gateway_stage_duration_seconds_count", {"plane": "tables", "stage": "record"}, 2),
    ("gateway_stage_duration_seconds_count", {"plane": "objects", "stage": "put"}, 1),
    ("gateway_stage_duration_seconds_count", {"plane": "objects", "stage": "raise"}, 2),
    ("gateway_stage_duration_seconds_count", {"plane": "leases", "stage": "wait"}, 1),
    ("gateway_lease_answers_total", {"answer": "granted"}, 1),
    ("gateway_lease_answers_total", {"answer": "refused"}, 2),
    ("gateway_lease_answers_total", {"answer": "released"}, 1),
    ("gateway_rule_info", {"rule": "public.watched", "mode": "observe"}, 1),
    ("gateway_sessions_limit", {"pool": "own"}, 16),
    ("gateway_build_info", {}, 1),
    ("gateway_failures_total", {}, 0),
]
"""Metrics after the load, by name and labels."""
SOME: list[tuple[str, dict[str, str]]] = [
    ("gateway_record_position", {}),
    ("gateway_record_sealed_total", {}),
    ("gateway_service_request_duration_seconds_count", {}),
    ("gateway_connections", {}),
    ("process_resident_memory_bytes", {}),
    ("gateway_batch_size_count", {"kind": "writes"}),
    ("gateway_stage_duration_seconds_count", {"plane": "tables", "stage": "queue"}),
    ("gateway_stage_duration_seconds_count", {"plane": "tables", "stage": "statement"}),
]
"""Metrics of which there are some."""


@pytest.mark.asyncio(loop_scope="module")
class TestOfAGateway:
    async def test_the_load_is_counted(self, moved: Samples) -> None:
        assert [(name, labels, value(moved, name, **labels)) for name, labels, _ in COUNTED] == COUNTED
        assert [(name, labels) for name, labels in SOME if value(moved, name, **labels) > 0] == SOME

    async def test_writes_that_come_together_are_a_batch(self, stage: Stage) -> None:
        async with stage.api() as api:
            for _ in range(2):  # so that the next ones are of a known form, and confirm their fences
                assert set(await asyncio.gather(*(patch(api, key, 50) for key in range(10, 26)))) == {204}
            async with asyncio.timeout(PATIENCE):
                while True:  # on a busy machine each of them may find the one before gone
                    before = await scrape(stage)
                    assert set(await asyncio.gather(*(patch(api, key, 50) for key in range(10, 26)))) == {204}
                    after = await scrape(stage)
                    grown = {
                        name: value(after, name, kind="writes") - value(before, name, kind="writes")
                        for name in ("gateway_batch_size_sum", "gateway_batch_size_count")
                    }
                    assert grown["gateway_batch_size_sum"] == 16
                    if grown["gateway_batch_size_count"] < 16:
                        break

    async def test_a_stream_is_seen_and_is_no_request_of_the_api(self, stage: Stage) -> None:
        async with stage.api() as api, api.stream("GET", "/v1/rejections/stream") as streaming:
            assert streaming.status_code == 200
            assert value(await once(stage, "gateway_streams", 1), "gateway_streams") == 1
        await once(stage, "gateway_streams", 0)
        await once(stage, "gateway_request_duration_seconds_count", 1, plane="streams")

    async def test_who_waits_for_a_lock_is_seen(self, stage: Stage) -> None:
        async with stage.api() as api:
            held = (await api.post("/v1/leases/job/seen", json={"holder": "me", "ttl": 60})).json()
            asked = {"holder": "you", "ttl": 60, "wait": 20}
            waiting = asyncio.create_task(api.post("/v1/leases/job/seen", json=asked))
            await once(stage, "gateway_lease_waiting", 1)
            found = await once(stage, "gateway_lease_waiters", 1)
            assert value(found, "gateway_leases_held") >= 1
            await api.delete(f"/v1/leases/job/seen/{held['lease']}")
            assert (await waiting).status_code == 201

    @pytest.mark.thorough
    async def test_a_write_under_way_is_a_pending_intent_and_a_lost_one_an_unknown_outcome(self, stage: Stage) -> None:
        key = "reports/lost"
        stage.double.cut("before", operation="PutObject", key=key)
        before = await scrape(stage)
        assert (await outcome(connect(stage.origin, "1").put_object, Key=key, Body=b"x"))[0] == 503
        after = await once(stage, "gateway_intents_pending", 1)

        def grown(name: str, **labels: str) -> float:
            return value(after, name, **labels) - value(before, name, **labels)

        assert grown("gateway_outcomes_lost_total") == 1
        assert grown("gateway_request_errors_total", plane="objects", code="outcome-unknown") == 1
        assert grown("gateway_service_request_duration_seconds_count", method="PUT", outcome="outcome-unknown") == 1
        assert (await stage.barrier(f"s3/bucket/{key}", "2")).status_code == 200
        after = await once(stage, "gateway_intents_pending", 0)
        assert grown("gateway_intents_settled_total") == 1
        assert value(after, "gateway_stage_duration_seconds_count", plane="objects", stage="forbid") == 1

    async def test_a_pool_that_is_used_up_is_seen(self, stage: Stage) -> None:
        blocker = await asyncpg.connect(stage.dsn)
        async with blocker.transaction():
            # One that writes waits for the row inside its transaction, and keeps its session so long.
            await blocker.execute("SELECT FROM accounts WHERE id = 90 FOR UPDATE")
            async with stage.api() as api:
                writing = asyncio.create_task(patch(api, 90, 1))
                async with asyncio.timeout(PATIENCE):
                    while not value(await scrape(stage), "gateway_sessions", pool="own", state="in_use"):
                        await asyncio.sleep(0.02)
                await blocker.execute("ROLLBACK")
                assert await writing == 204
        await blocker.close()

    async def test_a_gateway_whose_services_are_away_says_so_and_tells_the_rest(self) -> None:
        settings = config("postgresql://nobody@127.0.0.1:9/none", "http://127.0.0.1:9")
        async with running(settings) as origin:
            headers = {"Authorization": f"Bearer {API_KEY}"}
            async with httpx.AsyncClient(base_url=origin, headers=headers, timeout=PATIENCE) as api:
                answer = await api.get("/v1/metrics")
        found = samples(answer.text)
        assert answer.status_code == 200
        assert found["gateway_service_up"] == {
            frozenset({("service", "postgres")}): 0,
            frozenset({("service", "s3")}): 0,
        }
        assert "gateway_intents_pending" not in found
        assert value(found, "gateway_service_unreachable_total", service="postgres") >= 1


@pytest.mark.asyncio(loop_scope="module")
class TestWhoMayLook:
    async def test_anybody_where_they_are_public(self, stage: Stage, moved: Samples) -> None:
        """A second gateway of the process counts for itself."""
        settings = config(stage.dsn, telemetry={"public_metrics": True})
        async with running(settings) as origin, httpx.AsyncClient(base_url=origin, timeout=PATIENCE) as anybody:
            answer = await anybody.get("/v1/metrics", headers={"Accept": "application/openmetrics-text"})
            assert answer.status_code == 200
            assert answer.text.endswith("# EOF\n")
            assert answer.headers["content-type"].startswith("application/openmetrics-text")
            found = samples((await anybody.get("/v1/metrics")).text)
        assert value(found, "gateway_writes_accepted_total") == 0
        assert value(moved, "gateway_writes_accepted_total") > 0

    async def test_programs_on_this_host_and_callers_that_audit(
        self, stage: Stage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        callers = [
            {"name": "scraper", "groups": ["auditors"], "api_key": API_KEY},
            {"name": "other", "api_key": "other-key"},
        ]
        settings = config(stage.dsn, callers=callers)
        named = {"Authorization": f"Bearer {API_KEY}"}, {"Authorization": "Bearer other-key"}
        peers = {"127.0.0.1": 200, "::1": 200, "::ffff:127.0.0.9": 200, "192.0.2.7": 401, "2001:db8::1": 401, None: 401}
        async with running(settings) as origin:
            for peer, expected in peers.items():
                # Stands in for a client on another host.
                address = None if peer is None else (peer, 4711)
                monkeypatch.setattr(httptools_impl, "get_remote_addr", lambda _, of=address: of)
                async with httpx.AsyncClient(base_url=origin, timeout=PATIENCE) as client:
                    for path in ("/metrics", "/v1/metrics"):
                        found = [(await client.get(path, headers=headers)).status_code for headers in ({}, *named)]
                        assert found == [expected, 200, 200 if expected == 200 else 403], (peer, path)
                        assert (await client.head("/metrics")).status_code == expected
                    for header in ("X-Forwarded-For", "Forwarded", "X-Real-IP", "Via"):
                        answer = await client.get("/v1/metrics", headers={header: "127.0.0.1"})
                        assert answer.status_code == 401, "a proxy on this host asks for others"

    async def test_a_program_on_this_host_calls_it_by_a_loopback_name(self, stage: Stage) -> None:
        """A page in a browser on this host has another name, if its owner leads that name to a loopback address."""
        own = ("localhost", "LOCALHOST:8080", "127.0.0.1:9", "127.1.2.3", "[::1]", "[::1]:8080")
        others = (
            "gateway.example.com",
            "localhost.example.com",
            "127.0.0.1.example.com",
            "0x7f.1",
            "[::1]a",
            "::1",
            "",
        )
        async with running(config(stage.dsn)) as origin, httpx.AsyncClient(base_url=origin, timeout=PATIENCE) as client:
            for path in ("/metrics", "/v1/metrics"):
                for names, expected in ((own, 200), (others, 401)):
                    for name in names:
                        assert (await client.get(path, headers={"Host": name})).status_code == expected, name


async def once(stage: Stage, name: str, expected: float, **labels: str) -> Samples:
    """Scrape until there is this number, and return the samples. Gauges may be a second old."""
    async with asyncio.timeout(PATIENCE):
        while value(found := await scrape(stage), name, **labels) != expected:
            await asyncio.sleep(0.05)
    return found


def refused(rule: str | None, reason: str = "token-stale", *, enforced: bool = True) -> WriteRefused:
    attempt = Attempt(None, None, "worker", "PATCH", "/", None, "request", plane="tables", rule=rule)
    return WriteRefused("tables", Rejection(uuid4(), datetime.now(UTC), "r", reason, enforced, attempt, None))


def answered(area: str = "tables", status: int = 204, code: str | None = None, seconds: float = 0.001) -> Event:
    return RequestAnswered("id", area, "PATCH", "/", status, code, seconds, 0, None, None, None)


def values(measures: EventMetrics, name: str) -> dict[Any, Any]:
    return measures.named[name].values


def series(measures: EventMetrics) -> int:
    return sum(len(one.values) for one in measures.instruments())


@pytest.fixture
def measures() -> EventMetrics:
    announced = EventMetrics()
    announced.announce([("tables", "public.accounts"), ("objects", "bucket/**")], [], [])
    return announced


class TestCounts:
    def test_statuses_are_counted_by_their_class(self, measures: EventMetrics) -> None:
        for status, label in ((204, "2xx"), (303, "3xx"), (412, "4xx"), (503, "5xx"), (0, "gone"), (999, "other")):
            for _ in range(2):
                measures(answered(status=status))
            assert sum(values(measures, "gateway_request_duration_seconds")["tables", label].buckets) == 2

    def test_errors_of_our_own_are_named_and_all_others_are_one(self, measures: EventMetrics) -> None:
        for code in ("token-stale", "PGRST205", "42P01", "token-stale"):
            measures(answered(status=400, code=code))
        assert values(measures, "gateway_request_errors_total")["tables", "token-stale"] == 2
        assert values(measures, "gateway_request_errors_total")["tables", "other"] == 2

    def test_a_service_that_does_not_answer_has_the_code_of_the_error(self, measures: EventMetrics) -> None:
        measures(ServiceAnswered("s3", "PUT", None, 5.0, "outcome-unknown"))
        measures(ServiceAnswered("s3", "PUT", 200, 0.1, None))
        assert set(values(measures, "gateway_service_request_duration_seconds")) == {
            ("s3", "PUT", "outcome-unknown"),
            ("s3", "PUT", "2xx"),
        }

    def test_many_renewals_count_as_many(self, measures: EventMetrics) -> None:
        measures(LeaseAnswered("renewed", 40))
        assert values(measures, "gateway_lease_answers_total")["renewed",] == 40


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
            of_database = standing.databases[None]
            of_database.journal_lag.set(number)
            of_database.position.set(number)
            of_database.sessions.values = {("own", "idle"): number}
        theirs.databases[None].sessions.values = {("own", "idle"): 5, ("shared", "idle"): 1}
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
