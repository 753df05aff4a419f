"""Signatures of messages by Standard Webhooks 1.0.0, for which receivers find libraries.

HMAC-SHA256 signs ``{id}.{timestamp}.{body}``. A repeated message keeps its id. The timestamp, in seconds, is that of
the attempt: receivers use it to recognise messages that an attacker recorded and replays.
"""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Sequence

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
