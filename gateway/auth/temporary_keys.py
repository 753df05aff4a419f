"""Temporary S3 keys: those of an identity, and fenced credentials, which are bound to a resource and a token.

The gateway stores nothing. The session token names the caller, the resource and the token. An HMAC proves it, under a
key derived from a secret: that of the caller, or a signing key if the caller has none. Every gateway with the same
configuration accepts the keys, and a new secret ends them.
"""

import base64
import hashlib
import hmac
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from gateway.auth.principal import FencedScope
from gateway.errors import GatewayError, StoreError
from gateway.fencing.sequencer import Sequencer
from gateway.fencing.token import Token

PREFIX = "FENCE"
"""The beginning of the id of every temporary access key."""

_VERSION = "fc1"


@dataclass(frozen=True, slots=True)
class TemporaryKeys:
    """Temporary keys, in the form that S3 clients take."""

    access_key_id: str
    secret_access_key: str = field(repr=False)
    session_token: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class PresentedSession:
    """A session token, read but not proven. ``caller`` and ``groups`` are those of the alleged owner.

    ``expires`` is aware. ``scope`` is None for keys without a fencing token of their own.
    """

    caller: str
    groups: tuple[str, ...]
    expires: datetime
    scope: FencedScope | None
    _claims: str
    _proof: str = field(repr=False)

    def secret(self, access_key_id: str, signing_secret: str) -> str:
        """Return the secret of this id and token. Raises ``StoreError`` if the two were not issued together."""
        key = _key(signing_secret)
        if not hmac.compare_digest(_mac(key, "proof", access_key_id, self._claims).encode(), self._proof.encode()):
            raise _invalid()
        return _mac(key, "secret", access_key_id, self._claims)


def issue(
    caller: str,
    signing_secret: str,
    unique: str,
    expires: datetime,
    scope: FencedScope | None = None,
    groups: Sequence[str] = (),
) -> TemporaryKeys:
    """Issue keys until ``expires``, which is aware, bound to ``scope`` if there is one.

    ``unique``: letters and digits that were never used.
    """
    access_key_id = PREFIX + unique
    content: dict[str, Any] = {"caller": caller, "expires": int(expires.timestamp())}
    if groups:
        content["groups"] = list(groups)
    if scope is not None:
        content |= {"resource": scope.pattern, "token": str(scope.token), "holder": scope.holder}
        if scope.sequencer is not None:
            content["sequencer"] = scope.sequencer.text
        if scope.read:
            content["read"] = scope.read
    claims = _encoded(json.dumps(content, separators=(",", ":")).encode())
    key = _key(signing_secret)
    session_token = f"{_VERSION}.{claims}.{_mac(key, 'proof', access_key_id, claims)}"
    return TemporaryKeys(access_key_id, _mac(key, "secret", access_key_id, claims), session_token)


def is_issued(session_token: str | None) -> bool:
    """Return whether this is a session token of temporary keys, and not one in which a client presents a token."""
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
        groups = tuple(str(group) for group in content.get("groups", ()))
        scope = _scope(content) if "resource" in content else None
        return PresentedSession(str(content["caller"]), groups, expires, scope, claims, proof)
    except (GatewayError, ArithmeticError, LookupError, TypeError, ValueError, OSError, RecursionError) as error:
        raise _invalid() from error


def _scope(content: Any) -> FencedScope:
    sequencer = Sequencer.parse(str(content["sequencer"])) if "sequencer" in content else None
    token, readable = Token.parse(content["token"]), tuple(content.get("read", ()))
    return FencedScope(content["resource"], token, content["holder"], sequencer, readable)


def _key(signing_secret: str) -> bytes:
    """Return a key for this purpose alone, so that no other signature of a caller can pass for a proof."""
    return hmac.digest(signing_secret.encode(), b"fencing-gateway fenced credentials v1", hashlib.sha256)


def _mac(key: bytes, purpose: str, access_key_id: str, claims: str) -> str:
    return _encoded(hmac.digest(key, f"{purpose}\n{access_key_id}\n{claims}".encode(), hashlib.sha256))


def _encoded(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def _invalid() -> StoreError:
    return StoreError.known("InvalidToken", "It does not belong to this access key, or was changed.")
