"""The log: one line a request where that is wanted, whose request each line is about, and never a secret."""

import json
import logging
import os
import re
import subprocess
import sys
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest
import structlog

from gateway.demo.embedded import EmbeddedPostgres
from gateway.fencing.record import Attempt, Rejection
from gateway.observe import events, logs
from tests import ROOT
from tests.objects.clients import call, connect, outcome
from tests.objects.object_gateway import Stage
from tests.observe.scene import collecting, patch, scene
from tests.running import API_KEY


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
            json={"balance": 3133731337},
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
    assert "3133731337" not in json.dumps(lines), "the log has nothing of a body"
    (missed,) = [one for one in lines.about("request") if one["path"] == "/v1/nothing"]
    assert (missed["status"], missed["code"], missed["plane"]) == (404, "not-found", "api")
    assert missed["bytes"] > 0


@pytest.mark.thorough
async def test_their_own_id_is_kept_beside_ours_if_it_is_sane(postgres_server: EmbeddedPostgres, lines: Lines) -> None:
    ids = {b"a-b_c:9": "a-b_c:9", b"x" * 128: "x" * 128, b"x" * 129: None, b"two words": None, b"caf\xe9": None}
    async with logged(postgres_server) as stage, stage.api() as api:
        answers = [await api.get("/v1/ready", headers=[(b"X-Request-Id", theirs)]) for theirs in ids]
    found = lines.about("request")[-len(ids) :]
    assert [line["client_request_id"] for line in found] == list(ids.values())
    assert [line["request_id"] for line in found] == [answer.headers["x-request-id"] for answer in answers]
    assert not {line["request_id"].encode("latin-1") for line in found} & ids.keys()


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


def test_a_line_of_the_background_is_about_no_request(lines: Lines) -> None:
    logs.log(events.SweepFailed("something", "why"))
    assert "request_id" not in lines[-1]
    assert "trace_id" not in lines[-1]


async def test_a_traceback_has_no_local_variables(
    postgres_server: EmbeddedPostgres, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with logged(postgres_server) as stage, stage.api() as api:

        def fail(*_: object) -> None:
            raise RuntimeError("a mistake of ours")

        monkeypatch.setattr("gateway.http.body.Body.whole", fail)
        assert await patch(api, 1, 5, **{"X-Secret": "header-secret"}) == 500
    (line,) = lines.about("request failed")
    assert line["exception"][0]["exc_value"] == "a mistake of ours"
    assert all("locals" not in frame or frame["locals"] is None for frame in line["exception"][0]["frames"])
    for secret in ("header-secret", API_KEY):
        assert secret not in json.dumps(lines)


ATTEMPT = Attempt(None, "me", "worker", "PATCH", "/v1/tables/accounts?id=eq.1", None, "request")


def refused(*, enforced: bool = True) -> events.WriteRefused:
    rejection = Rejection(uuid4(), datetime.now(UTC), "public.accounts/1", "token-stale", enforced, ATTEMPT, None)
    return events.WriteRefused("tables", rejection)


def opened(*, restored: int = 0, continues: bool = True) -> events.Event:
    return events.DatabaseOpened(3, 1, datetime.now(UTC), continues, restored)


SOME: list[tuple[events.Event, str, str]] = [
    (refused(), "warning", "write refused"),
    (refused(enforced=False), "warning", "write would be refused"),
    (events.IntentSettled("r", "b", "k", "id"), "info", "write settled"),
    (events.SweepFailed("guards", "why"), "warning", "sweep failed"),
    (events.ServiceUnreachable("postgres", "why"), "error", "service unreachable"),
    (events.WebhookDelivered("w", 1, 3, failures=2), "info", "webhook delivers again"),
    (events.WebhookFailed("w", "why", 2, 1.0), "warning", "webhook failed"),
    (events.WebhookFailed("w", "why", 2, None), "error", "webhook paused: its receiver is gone"),
    (opened(), "info", "database opened"),
    (opened(continues=False), "warning", "database opened"),
    (opened(restored=2), "error", "database opened"),
    (events.RequestFailed("id", "GET", "/", ValueError()), "error", "request failed"),
]
"""Events with one line of several, or none; and some of the others, whose lines the reference has."""


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The calls of the logger. Ten seconds have passed."""
    logger = structlog.testing.CapturingLogger()
    monkeypatch.setattr(logs, "_logger", logger)
    monkeypatch.setattr(logs, "monotonic", lambda: 10.0)
    return logger.calls


@pytest.fixture
def log() -> logs.Log:
    """A log that has been told of nothing."""
    return logs.Log(logs.log.handlers)


def test_an_event_has_the_line_that_is_about_it(written: Any, log: logs.Log) -> None:
    for event in (*(event for event, _, _ in SOME), events.WebhookDelivered("w", 1, 3, failures=0)):
        log(event)
    assert [(call.method_name, call.args) for call in written] == [(level, (line,)) for _, level, line in SOME]


def test_an_event_has_the_members_that_its_lines_and_metrics_name() -> None:
    for kind in events.LINES | events.MOVES:
        members = {*kind.__annotations__, *vars(kind)}
        for line in events.LINES.get(kind, ()):
            if not callable(line.members):
                assert {one.rpartition("=")[2] for one in line.members.split()} <= members
        for metric in events.MOVES.get(kind, ()):
            assert {*([metric.by] if metric.by else ()), *(() if metric.of else metric.labels)} <= members


def test_a_storm_is_not_one_of_lines(written: Any, log: logs.Log, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(logs.MOST_IN_A_SECOND + 7):
        log(refused())
    assert [call.args for call in written] == [("write refused",)] * logs.MOST_IN_A_SECOND
    monkeypatch.setattr(logs, "monotonic", lambda: 11.0)
    log(refused())
    assert [(call.args, call.kwargs.get("left_out")) for call in written[logs.MOST_IN_A_SECOND :]] == [
        (("more writes refused, all on record",), 7),
        (("write refused",), None),
    ]


def test_a_refusal_says_whose_it_was_and_a_step_nothing(written: Any, log: logs.Log) -> None:
    log(events.StepReached("tables.fast.before"))
    log(refused())
    (call,) = written
    expected = {"resource": "public.accounts/1", "reason": "token-stale", "caller": "worker", "holder": "me"}
    assert expected.items() <= call.kwargs.items()
    assert (call.kwargs["token"], call.kwargs["fence"]) == (None, None)


def test_lines_of_libraries_are_json_without_credentials(capsys: pytest.CaptureFixture[str]) -> None:
    library = logging.getLogger("uvicorn.error")
    with pytest.MonkeyPatch.context() as patch, logs.of_libraries():
        patch.setattr(logs, "_logger", structlog.wrap_logger(structlog.PrintLogger(), processors=logs.PROCESSORS))
        library.warning("%s\n/bucket/key?X-Amz-Signature=secret", "lost")
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn("old", DeprecationWarning, stacklevel=1)
        try:
            raise ValueError("why")
        except ValueError:
            library.exception("failed")
    library.warning("no line: nothing listens any more")
    warning, old, failure = map(json.loads, capsys.readouterr().out.splitlines())
    assert (warning["level"], warning["logger"]) == ("warning", "uvicorn.error")
    assert warning["event"].startswith("lost\n/bucket/key?")
    assert "secret" not in warning["event"]
    assert (old["level"], old["logger"]) == ("warning", "py.warnings")
    assert (failure["level"], failure["exception"][0]["exc_type"]) == ("error", "ValueError")


@pytest.mark.parametrize(
    "name", ['"}\n{"event": "alarm cleared"}\r\n', "\x1b[2J\x9b31m\x00", "a\u202eb\u2028c\u2029d", "\ud800", "x" * 512]
)
def test_no_name_leaves_its_line_or_acts_on_a_terminal(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A reader of the log sees one line for each event, without control characters."""
    attempt = Attempt(None, name, name, "PATCH", name, name, name)
    rejection = Rejection(uuid4(), datetime.now(UTC), name, "token-stale", True, attempt, None)  # noqa: FBT003
    render = structlog.wrap_logger(structlog.PrintLogger(), processors=logs.PROCESSORS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logs, "_logger", render)
        logs.Log(logs.log.handlers)(events.WriteRefused("tables", rejection))
        logs.log_requests(events.RequestAnswered(name, "tables", name, name, 200, None, 0.1, 1, name, name, name))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    for line in lines:
        assert line.isascii()
        assert line.isprintable()
    refused, request = map(json.loads, lines)
    assert [refused[key] for key in ("resource", "holder", "caller", "request_id")] == [name] * 4
    assert (request["event"], request["path"], request["caller"], request["client_request_id"]) == (
        "request",
        *[name] * 3,
    )


def test_a_line_is_one_write_though_the_stream_is_unbuffered() -> None:
    """Workers share standard error. With a write for the end of a line, another worker's line would come before it."""
    reader, writer = os.pipe2(os.O_DIRECT)  # it keeps writes apart
    program = "from gateway.observe import events, logs; logs.log(events.SweepFailed('something', 'why'))"
    subprocess.run([sys.executable, "-u", "-c", program], stderr=writer, cwd=ROOT, check=True)
    os.close(writer)
    assert os.read(reader, 65536).endswith(b"}\n")
    os.close(reader)
