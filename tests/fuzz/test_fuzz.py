"""The whole gateway fuzzed at the socket, for a short while; for longer: ``python -m tests.fuzz``."""

import json
from dataclasses import replace

import pytest

from tests.crash.history import Change, Commit
from tests.fuzz.deeds import Deed, Effect
from tests.fuzz.driver import run
from tests.fuzz.grammar import Conversation, End
from tests.fuzz.invariants import Evidence, Fault, Judge, Played
from tests.fuzz.stage import staged

SEED, CONVERSATIONS = 1, 420
SECRET = "a-secret-key"
MARK = 12_345_678


@pytest.mark.thorough
def test_the_gateway_holds_whatever_is_sent() -> None:
    with staged() as stage:
        result = run(stage, SEED, lambda: False, only=range(CONVERSATIONS))
    assert not result.faults, f"python -m tests.fuzz --seed {SEED}\n{result.report()}"
    assert result.counted["writes acknowledged"] > 10, "what is sent must be good enough for some of it to take effect"


# The fuzzing is worth what its checks are worth ----------------------------------------------------------------------

PATCH = Deed(
    "fz-1-0",
    "PATCH",
    "/v1/tables/entries?account_id=eq.1",
    known=True,
    effect=Effect(MARK, "public.entries", allowed=True, certain=True, rows=2),
)
BODY = b'{"mark": 12345678}'
OK = b"HTTP/1.1 204 No Content\r\nx-request-id: own\r\n\r\n"
LINE = {"event": "request", "level": "info", "request_id": "own", "client_request_id": "fz-1-0", "method": "PATCH",
        "path": "/v1/tables/entries", "status": 204, "plane": "tables"}  # fmt: skip


def sent(deed: Deed = PATCH, length: int = len(BODY)) -> Conversation:
    start, fields = f"{deed.method} {deed.target} HTTP/1.1", f"X-Request-Id: {deed.id}\r\nContent-Length: {length}"
    head = f"{start}\r\nHost: a\r\n{fields}\r\n\r\n"
    return Conversation("1/1", "usual", [head.encode() + BODY], [], [0.0], End.READ, {deed.id: deed})


def row(mark: int | None = MARK, table: str = "public.entries") -> Change:
    return Change(table, {"id": "2", "mark": None}, {"id": "2", "mark": None if mark is None else str(mark)})


def judged(
    conversation: Conversation,
    received: bytes,
    *changes: Change,
    line: dict[str, object] | str = LINE,
    late: bool = False,
) -> set[str]:
    judge = Judge([SECRET])
    judge.sending(conversation)
    text = line if isinstance(line, str) else json.dumps(line)
    evidence = Evidence([text], [Commit(list(changes))])
    return {
        fault.invariant for fault in judge.round([Played(conversation, received, closed=False, late=late)], evidence)
    }


def test_what_is_in_order_is_not_complained_of() -> None:
    assert judged(sent(), OK, row(), row()) == set()


STRANGER = Deed(PATCH.id, PATCH.method, PATCH.target)
UNALLOWED = replace(STRANGER, effect=Effect(MARK, "public.entries", allowed=False))
REFUSED = b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\nx-request-id: own\r\n\r\n"
FAILED = b"HTTP/1.1 500 Oops\r\nx-request-id: own\r\nContent-Length: 0\r\n\r\n"
NOBODYS = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"
DELETED = Change("public.entries", {"id": "2"}, None)
UNCLAIMED, PAIR, UNSENT = (
    "no write without its claim",
    "answers pair with requests",
    "nothing is served but what was sent",
)
SIGNATURE = "X-Amz-Signature=" + "0f" * 32


def raised(resource: str) -> Change:
    return Change("fencing.fence", None, {"resource": resource, "value": "8"})


@pytest.mark.parametrize(
    ("invariant", "deed", "received", "changes"),
    [
        (UNCLAIMED, UNALLOWED, REFUSED, [row()]),
        (UNCLAIMED, PATCH, OK, [row(), row(99_999_999)]),
        (UNCLAIMED, PATCH, OK, [row(), row(None)]),
        (UNCLAIMED, PATCH, OK, [row(), DELETED]),
        (UNCLAIMED, PATCH, OK, [row(), row(), row()]),
        ("no write elsewhere", PATCH, OK, [row(table="other.entries")]),
        ("no fence but the one named", PATCH, OK, [row(), raised("fz/12345678")]),
        ("no fence without its claim", PATCH, OK, [row(), raised("account/1")]),
        ("no acknowledgement without an effect", PATCH, OK, []),
        ("no success without a caller", STRANGER, OK, []),
        (PAIR, PATCH, OK + OK, [row()]),
        (PAIR, PATCH, NOBODYS, [row()]),
        ("no 5xx but 503", PATCH, FAILED, [row()]),
    ],
)
def test_a_fault_of_answers_and_effects_is_seen(
    invariant: str, deed: Deed, received: bytes, changes: list[Change]
) -> None:
    assert judged(sent(deed), received, *changes) == {invariant}


def test_writes_of_half_a_request_are_seen() -> None:
    assert judged(sent(length=100), OK, row()) == {"no write of a request that did not arrive whole"}


def test_answers_that_do_not_come_or_are_none_are_seen() -> None:
    assert judged(sent(), b"", row(), late=True) == {"every request is answered"}
    assert judged(sent(), b"HTTP/1.1 yes\r\n\r\n", row()) >= {"every answer is HTTP"}


@pytest.mark.parametrize(
    ("invariant", "line"),
    [
        (PAIR, {**LINE, "client_request_id": "fz-9-9"}),
        (UNSENT, {**LINE, "path": "/v1/tables/accounts"}),
        ("no trailer is a header", {**LINE, "client_request_id": "fz-1-0-trailer"}),
        ("no 5xx but 503", {**LINE, "status": 500}),
        ("no error in the log", {"event": "request failed", "level": "error"}),
        ("no error in the log", "Traceback (most recent call last):"),
        ("no secret in the log", {**LINE, "x": SECRET}),
        ("no secret in the log", {**LINE, "x": SIGNATURE}),
    ],
)
def test_a_fault_of_the_log_is_seen(invariant: str, line: dict[str, object] | str) -> None:
    assert judged(sent(), OK, row(), line=line) == {invariant}


def test_requests_that_were_not_sent_are_seen() -> None:
    hidden = sent()
    hidden.deeds["fz-1-1"] = Deed("fz-1-1", "GET", "/v1/ready")
    assert UNSENT in judged(hidden, b"", row(), line={**LINE, "client_request_id": "fz-1-1"})


def test_secrets_on_record_are_seen() -> None:
    assert Judge([SECRET]).of_record(SECRET)
    assert Judge([SECRET]).of_record(SIGNATURE)


def test_a_fault_names_its_conversation() -> None:
    judge = Judge([])
    one = sent()
    judge.sending(one)
    (fault,) = judge.round([], Evidence(commits=[Commit([row(table="other.entries")])]))
    assert fault == Fault("no write elsewhere", fault.what, "1/1")
