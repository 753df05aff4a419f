"""Sessions of people at the page: a signed value that their browser keeps.

Nothing is stored. The value is signed under a key that comes from the caller's own API key: every gateway with the same
configuration takes it, and a new API key of the caller ends it.
"""

import base64
import hashlib
import hmac
from collections.abc import Callable
from datetime import datetime, timedelta

LIFETIME = timedelta(hours=12)

_VERSION = "ps1"
_NOBODY = b"a key that nobody signs with"


def key(api_key: str) -> bytes:
    """What sessions of a caller are signed with: a key for this purpose alone."""
    return hmac.digest(api_key.encode(), b"fencing-gateway page session v1", hashlib.sha256)


def issue(caller: str, session_key: bytes, now: datetime) -> str:
    """A session of ``caller`` that begins ``now``, which is aware; printable ASCII, fit for a cookie."""
    content = f"{_VERSION}.{_encoded(caller.encode())}.{int((now + LIFETIME).timestamp())}"
    return f"{content}.{_proof(session_key, content)}"


def caller_of(session: str, key_of: Callable[[str], bytes | None], now: datetime) -> str | None:
    """Whose session it is; None where it is nobody's, has been changed, or is over at ``now``.

    ``key_of`` knows what sessions of a caller are signed with. A caller it does not know takes as long as one it does.
    """
    content, _, proof = session.rpartition(".")
    parts = content.split(".")
    if len(parts) != 3 or parts[0] != _VERSION or not session.isascii():
        return None
    try:
        caller = base64.b64decode(parts[1].encode() + b"=" * (-len(parts[1]) % 4), altchars=b"-_").decode()
        expires = int(parts[2])
    except ValueError:
        return None
    known = key_of(caller)
    proven = hmac.compare_digest(_proof(known or _NOBODY, content).encode(), proof.encode())
    if known is None or not proven or now.timestamp() >= expires:
        return None
    return caller


def _proof(session_key: bytes, content: str) -> str:
    return _encoded(hmac.digest(session_key, content.encode(), hashlib.sha256))


def _encoded(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()
