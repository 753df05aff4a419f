"""Messages of webhooks: several entries of the record as JSON, or one alarm; and their signatures. Pure.

A message says which caller wrote which resource when. It contains no payload and no digest of one. Of an address it
contains only the path, because a query may quote values of rows. A message is ASCII, whatever a name contains.

Signatures are by Standard Webhooks 1.0.0, for which receivers find libraries. HMAC-SHA256 signs
``{id}.{timestamp}.{body}``. A repeated message keeps its id. The timestamp, in seconds, is that of the attempt:
receivers use it to recognise messages that an attacker recorded and replays.
"""

import base64
import binascii
import hashlib
import hmac
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from gateway.fencing.record import Entry, Kind, facts
from gateway.text import machine_time

MOST_ENTRIES = 100
MOST_BYTES = 128 * 1024
"""Bytes of one message. A larger entry is sent alone."""
MOST_TARGET = 1024
"""Characters of an address."""

ALARMS: Mapping[str, str] = {Kind.ALARM_RAISED: "fencing.alarm.raised", Kind.ALARM_CLEARED: "fencing.alarm.cleared"}


@dataclass(frozen=True, slots=True)
class Message:
    """A message. Its ``id`` derives from its content, so a repeated message has the same one."""

    id: str
    body: bytes


def batch(entries: Sequence[Entry]) -> Sequence[Entry]:
    """Return the first entries, at least one, up to an alarm and within the bounds of one message."""
    size = 0
    for index, entry in enumerate(entries[:MOST_ENTRIES]):
        size += len(_json(document(entry)))
        if index and (size > MOST_BYTES or entry.kind in ALARMS):
            return entries[:index]
        if entry.kind in ALARMS:
            return entries[:1]
    return entries[:MOST_ENTRIES]


def about(webhook: str, entries: Sequence[Entry], missed: int, now: datetime) -> Message:
    """Return the message with these entries, which are a batch.

    ``missed`` entries were dropped from the record before they could be sent; some might not have matched. If there are
    any, ``entries`` may be empty, and the message has the time ``now``.
    """
    told = {"webhook": webhook, "missed": missed}
    if not entries:
        return _message(
            "fencing.entries", f"{webhook}/missed/{missed}/{machine_time(now)}", now, {**told, "entries": []}
        )
    first, last = entries[0], entries[-1]
    content = f"{webhook}/{first.position}/{last.hash}"
    if first.kind in ALARMS:
        return _message(ALARMS[first.kind], content, last.at, {**told, **document(first)})
    return _message("fencing.entries", content, last.at, {**told, "entries": [document(entry) for entry in entries]})


def test(webhook: str, now: datetime) -> Message:
    return _message("fencing.test", f"{webhook}/test/{machine_time(now)}", now, {"webhook": webhook})


def document(entry: Entry) -> dict[str, object]:
    """Return one entry without its unknown fields, and without the digest of its payload."""
    said = {
        **facts(entry),
        "id": str(entry.id),
        "at": machine_time(entry.at),
        "target": None if entry.target is None else entry.target.partition("?")[0][:MOST_TARGET],
        "payload_sha256": None,
        "fence_raised_at": None if entry.fence is None else machine_time(entry.fence.raised_at),
        "details": {key: value for key, value in (entry.details or {}).items() if key != "payload"} or None,
    }
    return {key: value for key, value in said.items() if value is not None}


def _message(kind: str, content: str, at: datetime, data: Mapping[str, object]) -> Message:
    body = _json({"type": kind, "timestamp": machine_time(at), "data": data})
    return Message(f"msg_{hashlib.sha256(content.encode()).hexdigest()[:32]}", body)


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode("ascii")


PREFIX = "whsec_"
SHORTEST, LONGEST = 24, 64
"""Bytes of a secret."""


def key_of(secret: str) -> bytes:
    """Return the key that a secret encodes. Raise ``ValueError``, which does not contain the secret."""
    try:
        key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not secret.startswith(PREFIX) or not SHORTEST <= len(key) <= LONGEST:
        raise ValueError(f"must be {PREFIX} and the base64 of {SHORTEST} to {LONGEST} random bytes")
    return key


def signature(key: bytes, message_id: str, timestamp: int, body: bytes) -> str:
    """Return one signature with its version. ``timestamp`` is in seconds since 1970."""
    signed = f"{message_id}.{timestamp}.".encode() + body
    return "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()


def headers(keys: Sequence[bytes], message_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """Return the headers of a message. Several keys sign side by side while receivers change to another one."""
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(signature(key, message_id, timestamp, body) for key in keys),
    }
