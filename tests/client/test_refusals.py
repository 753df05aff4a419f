"""Every error of the gateway, on every plane, is the same typed error: rendered by the gateway's own code."""

from collections.abc import Callable
from typing import TypeAlias

import orjson
import pytest

from gateway import errors
from gateway.client.api import refusal_from
from gateway.client.errors import (
    FencingError,
    Implausible,
    LockLost,
    NotAcquired,
    OutcomeUnknown,
    Refused,
    Stale,
    Unavailable,
)
from gateway.errors import GatewayError
from gateway.http.middleware import problem
from gateway.objects.s3 import xml
from gateway.tables.dialect import errors as failures

Plane: TypeAlias = Callable[[GatewayError], FencingError]

STALE = {
    "resource": "order/5", "token": "2.33", "fence": "2.34", "raised_by": "the successor",
    "raised_at": "2026-01-02T03:04:05+00:00", "rejection": "17",
}  # fmt: skip
SENTENCE = "The fencing token 2.33 of order/5 has been overtaken by 2.34."
TWICE = "Another holder, the successor, uses the fencing token 2.33 of order/5."
CASES: list[tuple[GatewayError, type[FencingError]]] = [
    (errors.TokenStale(SENTENCE, facts=STALE), Stale),
    (errors.TokenDuplicate(TWICE, facts=STALE), Stale),
    (errors.TokenUsed("The fencing token 2.33 of order/5 has already written.", facts=STALE), Refused),
    (errors.TokenImplausible("No."), Implausible),
    (errors.OutcomeUnknown("Who knows."), OutcomeUnknown),
    (errors.Unavailable("Not now."), Unavailable),
    (errors.LeaseLost("It is gone."), LockLost),
    (errors.LockHeld("Somebody has it.", facts={"resource": "order/5", "holder": "a"}), NotAcquired),
    (errors.ResourceMismatch("Not covered.", facts={"touched": "order/6"}), Refused),
    (errors.Forbidden("No."), Refused),
    (errors.StoreUnfit("No."), Refused),
    (errors.SqlError("XX000", "What happened?"), OutcomeUnknown),
]


def as_problem(error: GatewayError) -> FencingError:
    return refusal_from(error.status, {}, orjson.dumps(problem(error)))


def as_table(error: GatewayError) -> FencingError:
    answer = failures.answer(error)
    headers = {name.decode(): value.decode() for name, value in answer.headers}
    assert isinstance(answer.body, bytes)
    return refusal_from(answer.status, headers, answer.body)


def as_table_without_body(error: GatewayError) -> FencingError:
    answer = failures.answer(error)
    return refusal_from(answer.status, {name.decode(): value.decode() for name, value in answer.headers}, b"")


def as_s3(error: GatewayError) -> FencingError:
    return refusal_from(error.status, {}, xml.render(error, path="/bucket/key", request_id="1"))


PLANES: list[Plane] = [as_problem, as_table, as_table_without_body, as_s3]
OF_LOCKS = (errors.LeaseLost, errors.LockHeld)
"""Of these S3 knows nothing."""


@pytest.mark.parametrize(
    ("error", "kind", "plane"),
    [(*case, plane) for case in CASES for plane in PLANES if plane is not as_s3 or not isinstance(case[0], OF_LOCKS)],
    ids=lambda value: getattr(value, "code", getattr(value, "__name__", "")),
)
def test_kinds(error: GatewayError, kind: type[FencingError], plane: Plane) -> None:
    found = plane(error)
    assert type(found) is kind
    if isinstance(found, Refused):
        assert found.status == error.status
    if plane is not as_table_without_body and kind is not NotAcquired:
        assert error.message in found.message


@pytest.mark.parametrize("plane", [as_problem, as_table, as_s3])
def test_all_there_is_to_know_of_a_takeover(plane: Plane) -> None:
    found = plane(CASES[0][0])
    assert isinstance(found, Stale)
    known = {name: getattr(found, name) for name in STALE}
    assert known == STALE
    assert found.code == "token-stale"
    assert "retrying cannot succeed" in str(found)


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (502, b"<html>Bad Gateway</html>", OutcomeUnknown),
        (504, b"", OutcomeUnknown),
        (429, b"slow down", Unavailable),
        (404, b"[]", Refused),
        (412, b"", Refused),
        (400, b"\xff\xfe", Refused),
        (403, b'{"message": "no", "code": null}', Refused),
        (403, b"<Error><Code>AccessDenied</Code><Message>a &lt; b</Message></Error>", Refused),
    ],
)
def test_answers_of_others(status: int, body: bytes, kind: type[FencingError]) -> None:
    found = refusal_from(status, {}, body)
    assert type(found) is kind
    if b"&lt;" in body:
        assert (found.code, found.message) == ("AccessDenied", "a < b")


def test_what_a_lock_says_of_who_has_it() -> None:
    facts = {"resource": "order/5", "holder": "a", "expires_in": 2.5}
    found = refusal_from(409, {}, orjson.dumps({**problem(errors.LockHeld("No.")), **facts}))
    assert isinstance(found, NotAcquired)
    assert (found.resource, found.holder, found.expires_in) == ("order/5", "a", 2.5)
    assert str(found).startswith("The lock order/5 is held by a.")
