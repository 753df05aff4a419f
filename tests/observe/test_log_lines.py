"""The log: a line for each refused write, and an end to the lines of a storm."""

import json
import logging
import warnings
from datetime import UTC, date, datetime
from uuid import uuid4

import pytest
import structlog

from gateway.fencing.record import Attempt, Rejection
from gateway.observe import logs
from gateway.observe.events import (
    AlarmCleared,
    AlarmRaised,
    BucketAdministered,
    BypassFound,
    CatalogWarning,
    ConfigurationNoted,
    ConfigurationReloaded,
    DatabaseOpened,
    Event,
    GuardRefused,
    HeadNoted,
    IntentSettled,
    KeysChanged,
    Listening,
    OutcomeLost,
    PartitionDropped,
    ReloadFailed,
    RequestAnswered,
    RequestFailed,
    SchemaIsNewer,
    ServiceUnreachable,
    StepReached,
    SweepFailed,
    TombstoneSwept,
    UploadSwept,
    WebhookDelivered,
    WebhookFailed,
    WorkerEnded,
    WriteRefused,
)

ATTEMPT = Attempt(None, "me", "worker", "PATCH", "/v1/tables/accounts?id=eq.1", None, "request")


def refused() -> WriteRefused:
    rejection = Rejection(uuid4(), datetime.now(UTC), "public.accounts/1", "token-stale", True, ATTEMPT, None)  # noqa: FBT003
    return WriteRefused("tables", rejection)


WORDS: list[tuple[Event, str, str]] = [
    (refused(), "warning", "write refused"),
    (IntentSettled("r", "b", "k", "id"), "info", "write settled"),
    (OutcomeLost("r", "b", "k", "id"), "warning", "outcome lost"),
    (TombstoneSwept("r", "b", "k"), "info", "tombstone swept"),
    (UploadSwept("b", "k", "id"), "info", "upload swept"),
    (SweepFailed("guards", "why"), "warning", "sweep failed"),
    (HeadNoted(3, "00"), "info", "record ends"),
    (PartitionDropped(date(2026, 1, 4)), "info", "partition of the record dropped"),
    (BypassFound("tables", "row-vanished", None, "t", "sweep"), "warning", "bypass found"),
    (GuardRefused("t", "token-stale", 2), "warning", "guard refused"),
    (Listening("http://127.0.0.1:8080"), "info", "listening"),
    (ServiceUnreachable("postgres", "why"), "error", "service unreachable"),
    (KeysChanged("id", 2), "info", "keys of an issuer changed"),
    (BucketAdministered("ann", "PutBucketPolicy", "b", 200), "info", "bucket administered"),
    (WebhookDelivered("w", 1, 3, failures=2), "info", "webhook delivers again"),
    (WebhookFailed("w", "why", 2, 1.0), "warning", "webhook failed"),
    (WebhookFailed("w", "why", 2, None), "error", "webhook paused: its receiver is gone"),
    (AlarmRaised("a", 9, 5), "warning", "alarm raised"),
    (AlarmCleared("a", 9), "info", "alarm cleared"),
    (CatalogWarning("t", "why"), "warning", "catalog warning"),
    (ConfigurationReloaded("SIGHUP", "gateway-process", ["a"]), "info", "configuration reloaded"),
    (ReloadFailed("why"), "error", "reload failed"),
    (WorkerEnded(2, 17, -9, 0.1), "error", "worker ended"),
    (DatabaseOpened(3, 1, datetime.now(UTC), continues=True), "info", "database opened"),
    (ConfigurationNoted("why"), "warning", "configuration noted"),
    (SchemaIsNewer("why"), "info", "schema is newer"),
    (RequestFailed("id", "GET", "/", ValueError()), "error", "request failed"),
]


@pytest.fixture
def second(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock; the last one is now."""
    moments = [10.0]
    monkeypatch.setattr(logs, "monotonic", lambda: moments[-1])
    monkeypatch.setattr(logs, "_refusals", logs._Refusals())
    return moments


def test_every_event_that_the_log_is_told_of_is_a_line(second: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    written = structlog.testing.CapturingLogger()
    monkeypatch.setattr(logs, "_logger", written)
    for event, _, _ in WORDS:
        logs.log(event)
    assert [(call.method_name, call.args) for call in written.calls] == [(level, (line,)) for _, level, line in WORDS]
    assert {type(event) for event, _, _ in WORDS} == set(logs.log.handlers)  # type: ignore[attr-defined]


def test_a_storm_is_not_one_of_lines(second: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    written = structlog.testing.CapturingLogger()
    monkeypatch.setattr(logs, "_logger", written)
    for _ in range(logs.REFUSALS + 7):
        logs.log(refused())
    assert [call.args for call in written.calls] == [("write refused",)] * logs.REFUSALS
    second.append(11.0)
    logs.log(refused())
    assert [(call.args, call.kwargs.get("left_out")) for call in written.calls[logs.REFUSALS :]] == [
        (("more writes refused, all on record",), 7),
        (("write refused",), None),
    ]


def test_a_refusal_says_whose_it_was_and_a_step_nothing(second: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    written = structlog.testing.CapturingLogger()
    monkeypatch.setattr(logs, "_logger", written)
    logs.log(StepReached("tables.fast.before"))
    logs.log(refused())
    (call,) = written.calls
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
        patch.setattr(logs, "_refusals", logs._Refusals())
        logs.log(WriteRefused("tables", rejection))
        logs.log_requests(RequestAnswered(name, "tables", name, name, 200, None, 0.1, 1, name, name, name))
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
