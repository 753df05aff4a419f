"""Signatures of messages, as Standard Webhooks 1.0.0 has them, so that receivers find a library for it.

Signed is ``{id}.{timestamp}.{body}``, with HMAC-SHA256. The id stays when a message is sent again; the timestamp, in
seconds, is that of the attempt, which is what tells receivers of messages that somebody has recorded and plays back.
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
    """The key that a secret stands for. Raises ``ValueError``, in which the secret does not stand."""
    try:
        key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not secret.startswith(PREFIX) or not SHORTEST <= len(key) <= LONGEST:
        raise ValueError(f"must be {PREFIX} and the base64 of {SHORTEST} to {LONGEST} random bytes")
    return key


def signature(key: bytes, message_id: str, timestamp: int, body: bytes) -> str:
    """One signature, with its version. ``timestamp`` is in seconds since 1970."""
    signed = f"{message_id}.{timestamp}.".encode() + body
    return "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()


def headers(keys: Sequence[bytes], message_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """What a message is sent with. Several keys sign side by side while receivers change over to another one."""
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(signature(key, message_id, timestamp, body) for key in keys),
    }
