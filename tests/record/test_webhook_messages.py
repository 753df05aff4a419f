"""The content of a message, the secrets that it never contains, its signature, and the pauses between attempts."""

import base64
import hashlib
import hmac
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from gateway.fencing.decision import Fence
from gateway.fencing.record import Entry, Kind
from gateway.fencing.token import Token
from gateway.webhooks import delivery, messages

AT = datetime(2026, 3, 1, 3, 12, 9, 250, tzinfo=UTC)
REJECTION = Entry(
    position=7,
    hash="ab" * 32,
    id=UUID(int=7),
    at=AT,
    kind=Kind.REJECTION,
    plane="tables",
    rule="public.orders",
    resource="public.orders/5",
    reason="token-stale",
    enforced=True,
    token=Token(2, 33),
    holder="host-a",
    caller="worker",
    method="PATCH",
    target="/v1/tables/orders?id=eq.5&card=eq.4111111111111111",
    client="10.0.0.7",
    request_id="request-7",
    payload_size=28,
    payload_sha256="cd" * 32,
    fence=Fence("public.orders/5", Token(2, 34), "host-b", "worker", AT - timedelta(minutes=14)),
    details={"payload": {"kept": 28, "sha256": "ef" * 32}, "note": "n"},
)
ALARM = replace(REJECTION, kind=Kind.ALARM_RAISED, resource=None, fence=None, details={"alarm": "many", "count": 6})


def read(message: messages.Message) -> Any:
    return json.loads(message.body)


def numbered(count: int, **changes: Any) -> list[Entry]:
    return [replace(REJECTION, position=n, hash=f"{n:064x}", **changes) for n in range(1, count + 1)]


def test_an_entry_says_who_was_refused_by_whom() -> None:
    said = read(messages.about("ops", [REJECTION], 3, AT))
    assert said == {
        "type": "fencing.entries",
        "timestamp": "2026-03-01T03:12:09.000250Z",
        "data": {
            "webhook": "ops",
            "missed": 3,
            "entries": [
                {
                    "position": 7,
                    "id": "00000000-0000-0000-0000-000000000007",
                    "hash": "ab" * 32,
                    "at": "2026-03-01T03:12:09.000250Z",
                    "kind": "rejection",
                    "plane": "tables",
                    "rule": "public.orders",
                    "resource": "public.orders/5",
                    "reason": "token-stale",
                    "enforced": True,
                    "token": "2.33",
                    "holder": "host-a",
                    "caller": "worker",
                    "method": "PATCH",
                    "target": "/v1/tables/orders",
                    "client": "10.0.0.7",
                    "request_id": "request-7",
                    "payload_size": 28,
                    "fence": "2.34",
                    "fence_holder": "host-b",
                    "fence_caller": "worker",
                    "fence_raised_at": "2026-03-01T02:58:09.000250Z",
                    "details": {"note": "n"},
                }
            ],
        },
    }


def test_an_alarm_is_a_message_of_its_own_kind() -> None:
    said = read(messages.about("ops", [ALARM], 0, AT))
    assert (said["type"], said["data"]["details"]) == ("fencing.alarm.raised", {"alarm": "many", "count": 6})
    cleared = replace(ALARM, kind=Kind.ALARM_CLEARED)
    assert read(messages.about("ops", [cleared], 0, AT))["type"] == "fencing.alarm.cleared"
    before, after = numbered(2), replace(REJECTION, position=9)
    assert messages.batch([*before, ALARM, after]) == before
    assert messages.batch([ALARM, after]) == [ALARM]


def test_a_message_has_bounds() -> None:
    assert len(messages.batch(numbered(300))) == messages.MOST_ENTRIES
    large = numbered(50, resource="r" * 5000)
    some = messages.batch(large)
    assert 1 < len(some) < 50
    assert len(messages.about("ops", some, 0, AT).body) <= messages.MOST_BYTES + 1000
    huge = numbered(2, details={"d": "x" * 200_000})
    assert messages.batch(huge) == huge[:1], "what is larger by itself goes by itself"
    assert messages.batch([]) == []


def test_the_id_is_that_of_the_content() -> None:
    some, more = numbered(3), numbered(4)
    once = messages.about("ops", some, 0, AT)
    assert messages.about("ops", some, 0, AT + timedelta(hours=1)).id == once.id
    others = [
        messages.about("ops", more, 0, AT),
        messages.about("other", some, 0, AT),
        messages.about("ops", [], 1, AT),
    ]
    assert len({once.id, *(other.id for other in others)}) == 4
    assert "." not in once.id, "the dot separates what is signed"


def test_hostile_names_are_ascii_and_come_back_as_they_were() -> None:
    name = '\x1b[2J<script>=1+1\u202e\u2028\U0001f9df"\\'
    message = messages.about("ops", [replace(REJECTION, holder=name, resource=name)], 0, AT)
    assert message.body.isascii()
    assert all(byte >= 0x20 for byte in message.body)
    assert read(message)["data"]["entries"][0]["holder"] == name


NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def test_from_a_second_to_an_hour_and_never_all_at_once() -> None:
    for failures in range(1, 200):
        shortest, longest = delivery.retry_pause(failures, 0.0), delivery.retry_pause(failures, 1.0)
        assert 1.0 <= shortest < longest <= 3600.0
        assert longest == min(3600.0, 2.0**failures)
        assert shortest == longest / 2
    assert delivery.retry_pause(100_000, 1.0) == 3600.0


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, 0.0),
        ("", 0.0),
        ("120", 120.0),
        (" 7 ", 7.0),
        ("Sun, 01 Mar 2026 12:02:00 GMT", 120.0),
        ("Sun, 01 Mar 2026 11:00:00 GMT", 0.0),
        ("999999999999999999", 86400.0),
        ("Fri, 31 Dec 9999 23:59:59 GMT", 86400.0),
        ("-5", 0.0),
        ("1.5", 0.0),
        ("soon", 0.0),
        ("Sun, 01 Mar 2026 12:02:00", 0.0),
        ("Sun, 99 Mar 2026 12:02:00 GMT", 0.0),
        ("٣", 0.0),
    ],
)
def test_what_a_receiver_asks_for(header: str | None, seconds: float) -> None:
    assert delivery.asked_pause(header, NOW) == seconds


# The test vectors of the reference implementations of Standard Webhooks.
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
ID, TIMESTAMP, BODY = "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}'
PUBLISHED = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_a_message_is_sent_with_its_id_the_time_and_one_signature_for_each_key() -> None:
    other = base64.b64encode(b"o" * 24).decode()
    keys = [messages.key_of(SECRET), messages.key_of(f"whsec_{other}")]
    headers = messages.headers(keys, ID, TIMESTAMP, BODY)
    second = hmac.new(b"o" * 24, f"{ID}.{TIMESTAMP}.".encode() + BODY, hashlib.sha256).digest()
    assert headers == {
        "webhook-id": ID,
        "webhook-timestamp": str(TIMESTAMP),
        "webhook-signature": f"{PUBLISHED} v1,{base64.b64encode(second).decode()}",
    }


@pytest.mark.parametrize(
    "secret",
    [
        "",
        "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
        "whsec_",
        "whsec_not base64, whatever it is",
        f"whsec_{base64.b64encode(b'x' * 23).decode()}",
        f"whsec_{base64.b64encode(b'x' * 65).decode()}",
        "whsec_" + "ä" * 32,
    ],
)
def test_what_cannot_be_a_secret_is_not_repeated(secret: str) -> None:
    with pytest.raises(ValueError, match=r"must be whsec_ and the base64 of 24 to 64 random bytes") as caught:
        messages.key_of(secret)
    assert not secret or secret not in str(caught.value).removeprefix("must be whsec_")
    assert caught.value.__cause__ is None
