"""The log: a line for each refused write, and an end to the lines of a storm."""

from datetime import UTC, datetime
from uuid import uuid4

import pytest
import structlog

from gateway.fencing.record import Attempt, Rejection
from gateway.observe import logs
from gateway.observe.events import StepReached, WriteRefused

ATTEMPT = Attempt(None, "me", "worker", "PATCH", "/v1/tables/accounts?id=eq.1", None, "request")


def refused() -> WriteRefused:
    rejection = Rejection(uuid4(), datetime.now(UTC), "public.accounts/1", "token-stale", True, ATTEMPT, None)  # noqa: FBT003
    return WriteRefused("tables", rejection)


@pytest.fixture
def second(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock; the last one is now."""
    moments = [10.0]
    monkeypatch.setattr(logs, "monotonic", lambda: moments[-1])
    monkeypatch.setattr(logs, "_refusals", logs._Refusals())
    return moments


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
