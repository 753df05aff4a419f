"""Traces: from a program through the gateway to the store in one tree, in batches, and without the collector."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
import pytest_asyncio
from opentelemetry import context as otel_context
from opentelemetry import trace as otel
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

from gateway.client import FencedClient
from gateway.demo.embedded import EmbeddedPostgres
from gateway.observe import tracing
from gateway.observe.events import ServiceUnreachable
from tests.objects.object_gateway import Stage
from tests.observe.scene import Collector, Seen, collecting, patch, scene, scrape, value
from tests.postgres import as_gateway, fresh_database
from tests.processes import free_port, started
from tests.running import API_KEY, PAIR, config, running
from tests.waiting import PATIENCE

SERVER, CLIENT = 2, 3
PARENT = "1234567890abcdef"
BALANCE = 3_133_731_337_313_373_133
"""So many digits that the ids of traces and spans, which are hexadecimal numbers, do not have them by chance."""


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    """A collector of all traces of these tests, each of which has traces of its own."""
    with collecting() as one:
        yield one


@pytest.fixture(scope="module", autouse=True)
def _soon() -> Iterator[None]:
    """Spans are sent ten times as often, because tests wait for them.

    A collector on a busy machine gets all the time it needs. A span that it takes too late is sent once more, and one
    that it has not taken when a gateway stops is lost.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tracing, "EVERY", 0.1)
        patch.setattr(tracing, "TIMEOUT", PATIENCE)
        patch.setattr(tracing, "GRACE", PATIENCE)
        yield


@asynccontextmanager
async def traced(server: EmbeddedPostgres, collector: Collector, **telemetry: Any) -> AsyncIterator[Stage]:
    async with scene(server, telemetry={"traces": collector.origin, **telemetry}) as stage:
        yield stage


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(postgres_server: EmbeddedPostgres, collector: Collector) -> AsyncIterator[Stage]:
    async with traced(postgres_server, collector) as one:
        yield one


def within(trace: str, *, sampled: bool = True) -> dict[str, str]:
    """Headers of a request that is a part of a trace."""
    return {"traceparent": f"00-{trace}-{PARENT}-0{int(sampled)}", "tracestate": "vendor=kept"}


@contextmanager
def program_in(trace: str) -> Iterator[None]:
    """Let the work inside have a program's place in a trace."""
    context = SpanContext(int(trace, 16), int(PARENT, 16), is_remote=False, trace_flags=TraceFlags(1))
    token = otel_context.attach(otel.set_span_in_context(NonRecordingSpan(context)))
    try:
        yield
    finally:
        otel_context.detach(token)


def above(found: dict[str, Seen], name: str) -> str:
    """The name of the span that one is inside of."""
    parents = {span.id: span.name for span in found.values()}
    return parents.get(found[name].parent, found[name].parent)


@pytest.mark.asyncio(loop_scope="module")
class TestTables:
    async def test_a_write_is_a_tree(self, stage: Stage, collector: Collector) -> None:
        trace = uuid4().hex
        async with stage.api() as api:
            alone = {"prefer": "handling=strict, max-affected=1"}
            assert await patch(api, 1, 5, **alone, **within(trace)) == 204
        found = await collector.trace(trace, "PATCH tables")
        assert above(found, "PATCH tables") == PARENT
        assert above(found, "tables.transaction") == "PATCH tables"
        assert found["tables.transaction"].events == ("tables.claim.after", "tables.write.after")
        span = found["PATCH tables"]
        assert (span.kind, span.failed, span.service) == (SERVER, False, "fencing-gateway")
        expected = {
            "http.request.method": "PATCH",
            "url.path": "/v1/tables/accounts",
            "http.response.status_code": 204,
            "fencing.plane": "tables",
            "fencing.rule": "public.accounts",
            "fencing.outcome": "accepted",
            "fencing.way": "transaction",
            "fencing.caller": "writer",
        }
        assert expected.items() <= span.attributes.items()

    async def test_writes_that_share_a_trip_are_linked_with_it(self, stage: Stage, collector: Collector) -> None:
        async with stage.api() as api, asyncio.timeout(PATIENCE):
            for _ in range(2):
                await asyncio.gather(*(patch(api, key, 5) for key in range(10, 18)))
            while True:  # on a busy machine each of them may find the one before gone
                traces = {key: uuid4().hex for key in range(10, 18)}
                sent = [patch(api, key, 5, **within(trace)) for key, trace in traces.items()]
                assert set(await asyncio.gather(*sent)) == {204}
                if await self._trips(collector, list(traces.values())) < len(traces):
                    break

    @staticmethod
    async def _trips(collector: Collector, traces: list[str]) -> int:
        """How many trips have carried one write of each trace, as they are linked with one another."""
        fast = {}
        for trace in traces:
            found = await collector.trace(trace, "PATCH tables", "tables.fast")
            assert above(found, "tables.fast") == "PATCH tables"
            assert found["PATCH tables"].attributes["fencing.way"] == "recipe"
            fast[found["tables.fast"].id] = found["tables.fast"]
        while True:
            spans = [span for span in list(collector.spans) if span.name == "tables.trip" and span.trace in traces]
            members = [member for trip in spans for member in trip.links]
            if len(members) >= len(fast):
                break
            await asyncio.sleep(0.05)
        assert sorted(members) == sorted(fast)
        for trip in spans:
            assert trip.attributes["db.operation.batch.size"] == len(trip.links)
            assert trip.parent in trip.links
            assert all(trip.id in fast[member].links for member in trip.links)
        return len({trip.id for trip in spans})

    async def test_a_refusal_says_why(self, stage: Stage, collector: Collector) -> None:
        trace = uuid4().hex
        async with stage.api() as api:
            assert await patch(api, 2, 5) == 204
            assert await patch(api, 2, 4, **within(trace)) == 412
        span = (await collector.trace(trace, "PATCH tables"))["PATCH tables"]
        (rejection,) = await stage.rejections()
        expected = {
            "fencing.outcome": "refused",
            "fencing.reason": "token-stale",
            "fencing.token": "4",
            "fencing.fence": "5",
            "fencing.resource": "public.accounts/2",
            "fencing.rejection": rejection["id"],
            "error.type": "token-stale",
            "http.response.status_code": 412,
        }
        assert expected.items() <= span.attributes.items()
        assert not span.failed

    async def test_what_was_to_be_written_and_who_may_is_in_no_span(self, stage: Stage, collector: Collector) -> None:
        traces = uuid4().hex, uuid4().hex
        secret = {"Fencing-Token": "5", "X-Secret": "header-secret", "Cookie": "cookie-secret"}
        async with stage.api() as api:
            for trace, query in zip(traces, ("&apikey=query-secret", ""), strict=True):
                target = f"/v1/tables/accounts?id=eq.3{query}"
                await api.patch(target, json={"balance": BALANCE}, headers={**secret, **within(trace)})
        for trace in traces:
            await collector.trace(trace, "PATCH tables")
        for told in (API_KEY, "header-secret", "cookie-secret", "query-secret", str(BALANCE)):
            assert told not in repr(collector.spans)


@pytest.mark.asyncio(loop_scope="module")
class TestObjects:
    async def test_from_the_program_to_the_store_it_is_one_trace(self, stage: Stage, collector: Collector) -> None:
        trace = uuid4().hex
        keys: dict[str, Any] = PAIR
        with program_in(trace):
            async with (
                FencedClient(stage.origin, api_key=API_KEY, **keys) as client,
                client.lock("s3/bucket/traced") as lock,
                lock.s3() as s3,
            ):
                await s3.put_object(Bucket="bucket", Key="traced", Body=b"x")
                await lock.http.patch("/v1/tables/accounts?id=eq.1", json={"balance": 1})
        found = await collector.trace(
            trace, "POST leases", "PUT objects", "objects.begin", "objects.put", "s3 PUT", "DELETE leases"
        )
        for root in ("POST leases", "PUT objects", "DELETE leases"):
            assert found[root].parent == PARENT
        assert above(found, "objects.put") == "PUT objects"
        assert found["s3 PUT"].kind == CLIENT
        # The trace header sent to the store names the span of the request to the store.
        puts = [one for one in stage.double.requests if one.key == "traced" and one.operation.value == "PutObject"]
        assert [one.traceparent for one in puts] == [f"00-{trace}-{found['s3 PUT'].id}-01"]

    @pytest.mark.thorough
    async def test_a_renewal_in_the_background_is_in_no_trace(self, stage: Stage, collector: Collector) -> None:
        trace = uuid4().hex
        with program_in(trace):
            async with FencedClient(stage.origin, api_key=API_KEY) as client, client.lock("kept", ttl=6.0):
                async with asyncio.timeout(PATIENCE):
                    while value(await scrape(stage), "gateway_lease_answers_total", answer="renewed") < 1:
                        await asyncio.sleep(0.05)
        found = await collector.trace(trace, "POST leases", "DELETE leases")
        assert "PUT leases" not in found


class TestTheIssuer:
    async def test_what_another_gateway_is_asked_is_in_the_trace(
        self, postgres_server: EmbeddedPostgres, collector: Collector, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        telemetry = {"traces": collector.origin}
        monkeypatch.setenv("OTEL_SERVICE_NAME", "issuer")
        async with (
            scene(postgres_server, telemetry=telemetry, leases={"signing_keys": ["k" * 32]}) as issuer,
            issuer.api() as locks,
            fresh_database(postgres_server) as dsn,
        ):
            lease = (await locks.post("/v1/leases/order/5", json={"holder": "me"})).json()
            leases = {"issuer": issuer.origin, "issuer_api_key": API_KEY}
            monkeypatch.delenv("OTEL_SERVICE_NAME")
            asking = config(
                dsn,
                leases=leases,
                resources=[{"match": "**", "tokens": "issued"}],
                telemetry={"traces": collector.origin},
            )
            async with running(asking) as origin:
                trace = uuid4().hex
                headers = {"Authorization": f"Bearer {API_KEY}", **within(trace)}
                async with httpx.AsyncClient(base_url=origin, headers=headers, timeout=PATIENCE) as api:
                    shown = {"token": lease["token"], "sequencer": lease["sequencer"]}
                    answer = await api.post("/v1/fences/order/5/barrier", json=shown)
        assert answer.status_code == 200, answer.text
        found = {(span.service, span.name): span for span in collector.spans if span.trace == trace}
        asked = found["fencing-gateway", "issuer POST"]
        assert asked.parent == found["fencing-gateway", "POST api"].id
        assert found["issuer", "POST api"].parent == asked.id


@pytest.mark.asyncio(loop_scope="module")
class TestWhoseTrace:
    async def test_one_that_is_not_sent_is_carried_on_and_costs_no_spans(
        self, stage: Stage, collector: Collector
    ) -> None:
        left_out, sent = uuid4().hex, uuid4().hex
        async with stage.api() as api:
            await patch(api, 4, 5, **within(left_out, sampled=False))
            await patch(api, 4, 6, **within(sent))
        await collector.trace(sent, "PATCH tables")
        assert left_out not in {span.trace for span in collector.spans}

    @pytest.mark.thorough
    @pytest.mark.parametrize("sample", [0.0, 1.0])
    async def test_the_share_of_those_begun_here(
        self, postgres_server: EmbeddedPostgres, collector: Collector, sample: float, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        west = f"west-{sample}"
        monkeypatch.setenv("OTEL_SERVICE_NAME", west)
        monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
        monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", str(sample))
        async with traced(postgres_server, collector) as stage, stage.api() as api:
            assert await patch(api, 1, 5) == 204
            trace = uuid4().hex
            assert await patch(api, 1, 6, **within(trace)) == 204
            found = await collector.trace(trace, "PATCH tables")
        assert found["PATCH tables"].service == west
        begun = [one for one in collector.spans if (one.service, one.name) == (west, "PATCH tables")]
        begun = [one for one in begun if one.trace != trace]
        assert bool(begun) == bool(sample)

    @pytest.mark.thorough
    @pytest.mark.parametrize(
        "header",
        ["", "00-zz", f"00-{'0' * 32}-{PARENT}-01", "ff-" + "a" * 32 + f"-{PARENT}-01", "x" * 5000, "\xff\xfe"],
    )
    async def test_what_is_no_trace_begins_one(self, stage: Stage, collector: Collector, header: str) -> None:
        path = f"/v1/{uuid4()}"
        async with stage.api() as api:
            headers = [(b"Traceparent", header.encode("latin-1")), (b"Tracestate", b"x" * 5000)]
            assert (await api.get(path, headers=headers)).status_code == 404
        async with asyncio.timeout(PATIENCE):
            while not (found := [one for one in list(collector.spans) if one.attributes.get("url.path") == path]):
                await asyncio.sleep(0.05)
        assert [(one.name, one.parent) for one in found] == [("GET api", "")]


@pytest.mark.thorough
class TestWithoutTheCollector:
    @pytest.mark.parametrize("origin", ["http://127.0.0.1:9", None], ids=["refuses", "hangs"])
    async def test_writes_go_on_and_the_gateway_stops_in_time(
        self, postgres_server: EmbeddedPostgres, origin: str | None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(tracing, "TIMEOUT", 1.0)
        monkeypatch.setattr(tracing, "GRACE", 2.0)
        async with asyncio.timeout(60):
            with collecting(hangs=True) as away:
                async with traced(postgres_server, away, traces=origin or away.origin) as stage, stage.api() as api:
                    for number in range(50):
                        assert await patch(api, 1, 5 + number) == 204
                    if origin is not None:
                        while not value(await scrape(stage), "gateway_trace_spans_total", outcome="lost"):
                            await asyncio.sleep(0.1)
                        unreachable = [one for one in stage.events if isinstance(one, ServiceUnreachable)]
                        assert [one.service for one in unreachable] == ["collector"]
                assert away.spans == []

    @pytest.mark.parametrize("hangs", [False, True], ids=["answers", "hangs"])
    async def test_a_clean_stop_logs_no_error(self, dsn: str, tmp_path: Path, *, hangs: bool) -> None:
        with collecting(hangs=hangs) as away:
            file = tmp_path / "gateway.toml"
            file.write_text(
                f'[server]\nlisten = "127.0.0.1:{free_port()}"\n'
                f'[postgres]\ndsn = "{as_gateway(dsn)}"\n[telemetry]\ntraces = "{away.origin}"\n'
            )
            with started("serve", "--config", str(file)) as process:
                process.wait_for(lambda: '"listening"' in process.errors.read_text())
                assert await asyncio.to_thread(process.stop) == 0, process.said()
                assert '"level": "error"' not in process.said(), process.said()


_OF_THE_GATEWAY = """
import sys
from gateway import app
from gateway.config import Config
app.build(Config.model_validate({"postgres": {"dsn": "postgresql://x@127.0.0.1:9/x"}}))
assert "opentelemetry" not in sys.modules
"""
_OF_THE_CLIENT = """
import sys
from gateway.client import FencedClient, api
headers = {}
api.carry_trace(headers)
assert not headers
assert "opentelemetry" not in sys.modules
"""


@pytest.mark.thorough
@pytest.mark.parametrize("program", [_OF_THE_GATEWAY, _OF_THE_CLIENT], ids=["gateway", "client"])
def test_nothing_is_loaded_unless_it_is_wanted(program: str) -> None:
    subprocess.run([sys.executable, "-c", program], check=True)
