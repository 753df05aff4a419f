"""Fenced credentials: temporary S3 keys that are bound to a resource and a token.

The gateway stores nothing. The session token names the resource and the token. An HMAC proves it, under a key derived
from the caller's secret. Every gateway with the same configuration accepts the keys, and a new secret of the caller
ends them.
"""

import base64
import hashlib
import hmac
import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from gateway.auth.principal import FencedScope
from gateway.errors import GatewayError, StoreError
from gateway.fencing.sequencer import Sequencer
from gateway.fencing.token import Token

PREFIX = "FENCE"
"""The beginning of every access key id of fenced credentials."""

_VERSION = "fc1"


@dataclass(frozen=True, slots=True)
class FencedCredentials:
    """Temporary keys, in the form that S3 clients take."""

    access_key_id: str
    secret_access_key: str = field(repr=False)
    session_token: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class PresentedSession:
    """A session token, read but not proven. ``caller`` is the alleged owner."""

    caller: str
    scope: FencedScope
    _claims: str
    _proof: str = field(repr=False)

    def secret(self, access_key_id: str, caller_secret: str) -> str:
        """Return the secret of this id and token. Raises ``StoreError`` if the two were not issued together."""
        key = _key(caller_secret)
        if not hmac.compare_digest(_mac(key, "proof", access_key_id, self._claims).encode(), self._proof.encode()):
            raise _invalid()
        return _mac(key, "secret", access_key_id, self._claims)


def issue(caller: str, caller_secret: str, scope: FencedScope, unique: str) -> FencedCredentials:
    """Issue keys for ``scope``, whose ``expires`` must be set. ``unique``: letters and digits that were never used."""
    assert scope.expires is not None
    access_key_id = PREFIX + unique
    content: dict[str, Any] = {
        "caller": caller,
        "resource": scope.pattern,
        "token": str(scope.token),
        "holder": scope.holder,
        "expires": int(scope.expires.timestamp()),
    }
    if scope.sequencer is not None:
        content["sequencer"] = scope.sequencer.text
    if scope.read:
        content["read"] = scope.read
    claims = _encoded(json.dumps(content, separators=(",", ":")).encode())
    key = _key(caller_secret)
    session_token = f"{_VERSION}.{claims}.{_mac(key, 'proof', access_key_id, claims)}"
    return FencedCredentials(access_key_id, _mac(key, "secret", access_key_id, claims), session_token)


def is_fenced(session_token: str | None) -> bool:
    """Return whether this is a session token of fenced credentials, and not one in which a client presents a token."""
    return session_token is not None and session_token.startswith(f"{_VERSION}.")


def read_session_token(session_token: str) -> PresentedSession:
    """Read a session token. Raises ``StoreError`` (InvalidToken) for one that cannot have been issued."""
    parts = session_token.split(".")
    if len(parts) != 3 or parts[0] != _VERSION:
        raise _invalid()
    _, claims, proof = parts
    try:
        padded = claims.encode() + b"=" * (-len(claims) % 4)
        content: Any = json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
        expires = datetime.fromtimestamp(content["expires"], UTC)
        sequencer = Sequencer.parse(str(content["sequencer"])) if "sequencer" in content else None
        token, readable = Token.parse(content["token"]), tuple(content.get("read", ()))
        scope = FencedScope(content["resource"], token, content["holder"], expires, sequencer, readable)
        return PresentedSession(str(content["caller"]), scope, claims, proof)
    except (GatewayError, ArithmeticError, LookupError, TypeError, ValueError, OSError, RecursionError) as error:
        raise _invalid() from error


def _key(caller_secret: str) -> bytes:
    """Return a key for this purpose alone, so that no other signature of a caller can pass for a proof."""
    return hmac.digest(caller_secret.encode(), b"fencing-gateway fenced credentials v1", hashlib.sha256)


def _mac(key: bytes, purpose: str, access_key_id: str, claims: str) -> str:
    return _encoded(hmac.digest(key, f"{purpose}\n{access_key_id}\n{claims}".encode(), hashlib.sha256))


def _encoded(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def _invalid() -> StoreError:
    return StoreError("InvalidToken", 400, "The session token does not belong to this access key, or was changed.")
