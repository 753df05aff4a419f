"""The log: one line a request where that is wanted, whose request each line is about, and never a secret."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import httpx
import pytest
import structlog

from gateway.demo.embedded import EmbeddedPostgres
from gateway.observe import logs
from gateway.observe.events import SweepFailed
from tests.objects.clients import call, connect, outcome
from tests.objects.object_gateway import Stage
from tests.observe.collector import collecting
from tests.observe.scene import patch, scene
from tests.running import API_KEY, SECRET_KEY
from tests.waiting import PATIENCE

SECRETS = ("header-secret", "cookie-secret", "query-secret", "body-secret", API_KEY, SECRET_KEY, "X-Amz-Signature")


class Lines(list[dict[str, Any]]):
    """The log, as the lines come."""

    def about(self, event: str) -> list[dict[str, Any]]:
        return [line for line in self if line["event"] == event]


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Lines:
    """The lines written to the log, each parsed again."""
    written = Lines()

    class Paper:
        def msg(self, line: str) -> None:
            written.append(json.loads(line))

        info = warning = error = msg

    monkeypatch.setattr(logs, "_logger", structlog.wrap_logger(Paper(), processors=logs.PROCESSORS))
    return written


@asynccontextmanager
async def logged(server: EmbeddedPostgres, **telemetry: Any) -> AsyncIterator[Stage]:
    async with scene(server, logs.log, telemetry={"access_log": True, **telemetry}) as stage:
        yield stage


async def test_each_request_is_a_line(postgres_server: EmbeddedPostgres, lines: Lines) -> None:
    async with logged(postgres_server) as stage, stage.api() as api:
        answer = await api.patch(
            "/v1/tables/accounts?id=eq.1",
            json={"balance": 1},
            headers={"Fencing-Token": "5", "X-Request-Id": "their-42"},
        )
        assert (await api.get("/v1/nothing")).status_code == 404
    (line,) = [one for one in lines.about("request") if one["plane"] == "tables"]
    assert line.pop("duration") > 0
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT.*Z", line.pop("timestamp"))
    assert line == {
        "event": "request",
        "level": "info",
        "method": "PATCH",
        "path": "/v1/tables/accounts",
        "status": 204,
        "code": None,
        "bytes": 0,
        "plane": "tables",
        "caller": "writer",
        "client": "127.0.0.1",
        "request_id": answer.headers["x-request-id"],
        "client_request_id": "their-42",
    }
    (missed,) = [one for one in lines.about("request") if one["path"] == "/v1/nothing"]
    assert (missed["status"], missed["code"], missed["plane"]) == (404, "not-found", "api")
    assert missed["bytes"] > 0


async def test_no_line_is_written_unless_it_is_wanted(postgres_server: EmbeddedPostgres, lines: Lines) -> None:
    async with scene(postgres_server, logs.log) as stage, stage.api() as api:
        assert await patch(api, 1, 5) == 204
    assert lines.about("request") == []


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("theirs", "kept"),
    [(b"a-b_c:9", "a-b_c:9"), (b"x" * 128, "x" * 128), (b"x" * 129, None), (b"two words", None), (b"caf\xe9", None)],
)
async def test_their_own_id_is_kept_beside_ours_if_it_is_sane(
    postgres_server: EmbeddedPostgres, lines: Lines, theirs: bytes, kept: str | None
) -> None:
    async with logged(postgres_server) as stage, stage.api() as api:
        answer = await api.get("/v1/ready", headers=[(b"X-Request-Id", theirs)])
    line = lines.about("request")[-1]
    assert line["client_request_id"] == kept
    assert line["request_id"] == answer.headers["x-request-id"] != theirs.decode("latin-1")


async def test_what_happens_in_the_service_of_a_request_carries_its_id_and_its_trace(
    postgres_server: EmbeddedPostgres, lines: Lines
) -> None:
    trace = uuid4().hex
    parent = {"traceparent": f"00-{trace}-1234567890abcdef-01"}
    with collecting() as collector:
        async with logged(postgres_server, traces=collector.origin) as stage, stage.api() as api:
            assert await patch(api, 1, 5) == 204
            # By the transaction; and from then on by the path on which many refusals are recorded together.
            for _ in range(3):
                assert await patch(api, 1, 4, **parent) == 412
            kept = (await api.get("/v1/rejections")).json()["rejections"]
            assert [one["trace_id"] for one in kept] == [trace] * 3
            stage.double.cut("before", operation="PutObject", key="k")
            assert (await outcome(connect(stage.origin, "1").put_object, Key="k", Body=b"x"))[0] == 503
            await call(connect(stage.origin, "2").put_object, Key="k", Body=b"y")
    requests = {line["request_id"]: line for line in lines.about("request")}
    assert len(requests) == len(lines.about("request"))
    refused = lines.about("write refused")
    assert [line["trace_id"] for line in refused] == [trace] * 3
    assert [requests[line["request_id"]]["trace_id"] for line in refused] == [trace] * 3
    (lost,), (settled,) = lines.about("outcome lost"), lines.about("write settled")
    assert requests[lost["request_id"]]["status"] == 503
    assert requests[settled["request_id"]]["status"] == 200
    assert lost["trace_id"] == requests[lost["request_id"]]["trace_id"] != trace


async def test_a_line_of_the_background_is_about_no_request(postgres_server: EmbeddedPostgres, lines: Lines) -> None:
    logs.log(SweepFailed("something", "why"))
    assert "request_id" not in lines[-1]
    assert "trace_id" not in lines[-1]


class TestSecrets:
    async def test_none_of_headers_queries_and_bodies(self, postgres_server: EmbeddedPostgres, lines: Lines) -> None:
        async with logged(postgres_server) as stage, stage.api() as api:
            headers = {"X-Secret": "header-secret", "Cookie": "cookie-secret", "Fencing-Token": "5"}
            body = {"balance": 1, "note": "body-secret"}
            for _ in range(2):
                await api.patch("/v1/tables/accounts?id=eq.1&apikey=query-secret", json=body, headers=headers)
                await api.patch("/v1/tables/accounts?id=eq.1", json={"balance": 1}, headers=headers)
            await api.patch(
                "/v1/tables/accounts?id=eq.1&apikey=query-secret", json=body, headers={**headers, "Fencing-Token": "4"}
            )
            await api.post(
                "/v1/leases/x?key=query-secret", json={"holder": "me", "note": "body-secret"}, headers=headers
            )
            s3 = connect(stage.origin, "1")
            await call(s3.put_object, Key="k", Body=b"body-secret", Metadata={"note": "header-secret"})
            url = s3.generate_presigned_url("get_object", {"Bucket": "bucket", "Key": "k"}, ExpiresIn=60)
            async with httpx.AsyncClient(timeout=PATIENCE) as anybody:
                assert (await anybody.get(url)).status_code == 200
                assert (await anybody.get(url[:-1] + ("1" if url.endswith("0") else "0"))).status_code == 403
        assert len(lines.about("request")) >= 8
        for secret in SECRETS:
            assert secret not in json.dumps(lines)

    async def test_the_id_of_a_lease_which_is_a_key_to_it(
        self, postgres_server: EmbeddedPostgres, lines: Lines
    ) -> None:
        with collecting() as collector:
            async with logged(postgres_server, traces=collector.origin) as stage, stage.api() as api:
                lease = (await api.post("/v1/leases/order/5", json={"holder": "me"})).json()["lease"]
                for name in (lease, lease.upper(), lease.replace("-", ""), f"urn:uuid:{lease}"):
                    assert (await api.put(f"/v1/leases/order/5/{name}", json={})).status_code == 200
                    for path in (f"/v1/leases/{name}", f"/v1/leases/order/5/{name}/", f"/v1/withdrawals/{name}"):
                        for method in ("GET", "POST", "PUT", "DELETE"):
                            await api.request(method, path)
                assert (await api.delete(f"/v1/leases/order/5/{lease}")).status_code == 204
                # At its end, a gateway waits for a busy collector only for a moment.
                async with asyncio.timeout(PATIENCE):
                    while "/v1/leases/order/5/{lease}" not in {
                        span.attributes.get("url.path") for span in list(collector.spans)
                    }:
                        await asyncio.sleep(0.05)
            told = f"{json.dumps(lines)} {collector.spans!r}".lower()
        assert "/v1/leases/order/5/{lease}" in told
        assert lease not in told
        assert lease.replace("-", "") not in told

    async def test_a_traceback_has_no_local_variables(
        self, postgres_server: EmbeddedPostgres, lines: Lines, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with logged(postgres_server) as stage, stage.api() as api:

            def fail(*_: object) -> None:
                raise RuntimeError("a mistake of ours")

            monkeypatch.setattr("gateway.http.body.Body.whole", fail)
            headers = {"X-Secret": "header-secret", "Fencing-Token": "5"}
            assert (
                await api.patch("/v1/tables/accounts?id=eq.1", json={"balance": 1}, headers=headers)
            ).status_code == 500
        (line,) = lines.about("request failed")
        assert line["exception"][0]["exc_value"] == "a mistake of ours"
        assert all("locals" not in frame or frame["locals"] is None for frame in line["exception"][0]["frames"])
        for secret in SECRETS:
            assert secret not in json.dumps(lines)
