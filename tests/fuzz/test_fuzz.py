"""The whole gateway fuzzed at the socket, for a short while; for longer: ``python -m tests.fuzz``."""

import json

import pytest

from tests.crash.replication import Change, Commit
from tests.fuzz.deeds import Deed, Effect
from tests.fuzz.driver import run
from tests.fuzz.grammar import Conversation, End, conversation
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


def test_the_seed_decides_what_is_sent() -> None:
    def sent(number: int) -> list[list[str]]:
        made = [conversation(7, one, "cookie") for one in range(number)]
        return [list(one.deeds) for one in made]

    assert sent(20) == sent(20)
    assert conversation(7, 3, "cookie").sent != conversation(8, 3, "cookie").sent


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


def sent(deed: Deed = PATCH, length: int = len(BODY), more: bytes = b"") -> Conversation:
    start, fields = f"{deed.method} {deed.target} HTTP/1.1", f"X-Request-Id: {deed.id}\r\nContent-Length: {length}"
    head = f"{start}\r\nHost: a\r\n{fields}\r\n\r\n"
    return Conversation("1/1", "usual", [head.encode() + BODY + more], [], [0.0], End.READ, {deed.id: deed})


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


def test_writes_without_their_claim_are_seen() -> None:
    stranger = Deed(PATCH.id, PATCH.method, PATCH.target, effect=Effect(MARK, "public.entries", allowed=False))
    refused = OK.replace(b"204 No Content", b"401 Unauthorized\r\nContent-Length: 0")
    assert judged(sent(stranger), refused, row()) == {"no write without its claim"}
    assert judged(sent(), OK, row(), row(99_999_999)) == {"no write without its claim"}
    assert judged(sent(), OK, row(), row(None)) == {"no write without its claim"}
    assert judged(sent(), OK, row(), Change("public.entries", {"id": "2"}, None)) == {"no write without its claim"}
    assert judged(sent(), OK, row(), row(), row()) == {"no write without its claim"}


def test_writes_elsewhere_are_seen() -> None:
    assert judged(sent(), OK, row(table="other.entries")) == {"no write elsewhere"}


def test_fences_without_their_claim_are_seen() -> None:
    raised = Change("fencing.fence", None, {"resource": "fz/12345678", "value": "8"})
    assert judged(sent(), OK, row(), raised) == {"no fence but the one named"}
    raised = Change("fencing.fence", None, {"resource": "account/1", "value": "8"})
    assert judged(sent(), OK, row(), raised) == {"no fence without its claim"}


def test_writes_of_half_a_request_are_seen() -> None:
    assert judged(sent(length=100), OK, row()) == {"no write of a request that did not arrive whole"}


def test_acknowledgements_without_an_effect_are_seen() -> None:
    assert judged(sent(), OK) == {"no acknowledgement without an effect"}


def test_successes_of_strangers_are_seen() -> None:
    stranger = Deed(PATCH.id, PATCH.method, PATCH.target)
    assert judged(sent(stranger), OK) == {"no success without a caller"}


def test_answers_to_other_requests_are_seen() -> None:
    pair = "answers pair with requests"
    assert judged(sent(), OK, row(), line={**LINE, "client_request_id": "fz-9-9"}) == {pair}
    assert judged(sent(), OK + OK, row()) == {pair}
    nobodys = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"
    assert judged(sent(), nobodys, row()) == {pair}
    assert judged(sent(), b"", row(), late=True) == {"every request is answered"}
    assert judged(sent(), b"HTTP/1.1 yes\r\n\r\n", row()) >= {"every answer is HTTP"}


def test_requests_that_were_not_sent_are_seen() -> None:
    hidden = sent(more=b"")
    hidden.deeds["fz-1-1"] = Deed("fz-1-1", "GET", "/v1/ready")
    assert judged(hidden, b"", row(), line={**LINE, "client_request_id": "fz-1-1"}) >= {
        "nothing is served but what was sent"
    }
    assert judged(sent(), OK, row(), line={**LINE, "path": "/v1/tables/accounts"}) == {
        "nothing is served but what was sent"
    }
    assert "no trailer is a header" in judged(sent(), OK, row(), line={**LINE, "client_request_id": "fz-1-0-trailer"})


def test_failures_are_seen() -> None:
    failed = b"HTTP/1.1 500 Oops\r\nx-request-id: own\r\nContent-Length: 0\r\n\r\n"
    assert judged(sent(), failed, row()) == {"no 5xx but 503"}
    assert judged(sent(), OK, row(), line={**LINE, "status": 500}) == {"no 5xx but 503"}
    assert judged(sent(), OK, row(), line={"event": "request failed", "level": "error"}) == {"no error in the log"}
    assert judged(sent(), OK, row(), line="Traceback (most recent call last):") == {"no error in the log"}


def test_secrets_are_seen() -> None:
    for text in (SECRET, "X-Amz-Signature=" + "0f" * 32):
        assert judged(sent(), OK, row(), line={**LINE, "path": "/v1/tables/entries", "x": text}) == {
            "no secret in the log"
        }
        assert Judge([SECRET]).of_record(text)


def test_a_fault_names_its_conversation() -> None:
    judge = Judge([])
    one = sent()
    judge.sending(one)
    (fault,) = judge.round([], Evidence(commits=[Commit([row(table="other.entries")])]))
    assert fault == Fault("no write elsewhere", fault.what, "1/1")
