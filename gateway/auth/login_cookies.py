"""Cookies of the page: a session by an API key; of a login at an issuer, the attempt before it and the session after.

Pure: time and chance are given.

The gateway stores nothing. A cookie holds its content in the clear, and an HMAC proves it. Its key is derived from a
signing key or from the API key. So every gateway with the same keys accepts it.
"""

import base64
import hashlib
import hmac
import json
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from gateway.errors import Forbidden

LIFETIME = timedelta(hours=12)
"""That of a session by an API key."""

LONGEST_ATTEMPT = timedelta(minutes=10)
"""The time from the button to the end of the login at the issuer."""

LARGEST = 3800
"""Characters of a session. Browsers drop a cookie of more than 4,096 bytes without a word."""

_LONGEST_FOLLOWING = 2000
_ATTEMPT, _SESSION, _KEY_SESSION = "la1", "ls1", "ps1"
_UNUSED_KEY = b"a key that signs no session"


class Terms(NamedTuple):
    """The issuer of a login, and the gateway as its client. A cookie is valid for these three alone."""

    name: str
    issuer: str
    client_id: str


class Attempt(NamedTuple):
    """A login that a browser has begun. ``following``: the page that it leads to.

    ``state``, ``nonce`` and ``verifier`` are derived from the content with the gateway's key. So the cookie alone
    reveals none of them.
    """

    following: str
    state: str
    nonce: str
    verifier: str


class Session(NamedTuple):
    """The caller and groups that a login has proven, and its moment, which is aware."""

    caller: str
    groups: tuple[str, ...]
    since: datetime


def begin(terms: Terms, following: str, unique: str, now: datetime, signing_key: str) -> tuple[Attempt, str]:
    """Return an attempt and its cookie. ``unique`` is random and secret. ``now`` is aware."""
    ends = int((now + LONGEST_ATTEMPT).timestamp())
    kept = following if len(following) <= _LONGEST_FOLLOWING else ""
    content = _encoded(_json({"unique": unique, "following": kept, "ends": ends}))
    key = _key(_ATTEMPT, terms, signing_key)
    return _attempt(key, content, kept), _sealed(_ATTEMPT, key, content)


def resume(cookie: str, terms: Terms, now: datetime, signing_keys: Iterable[str]) -> Attempt | None:
    """Return the attempt of a cookie; None if it was forged, changed, for another issuer, or has ended at ``now``."""
    for signing_key in signing_keys:
        key = _key(_ATTEMPT, terms, signing_key)
        content = _opened(_ATTEMPT, key, cookie)
        if content is not None:
            found = _read(content)
            return _attempt(key, content, found["following"]) if now.timestamp() < found["ends"] else None
    return None


def issue(session: Session, terms: Terms, signing_key: str) -> str:
    """Return the cookie of a session. Raises ``Forbidden`` for a caller of so many groups that no browser keeps it."""
    content = {"caller": session.caller, "groups": list(session.groups), "since": int(session.since.timestamp())}
    cookie = _sealed(_SESSION, _key(_SESSION, terms, signing_key), _encoded(_json(content)))
    if len(cookie) > LARGEST:
        raise Forbidden(
            f"The caller {session.caller} belongs to too many groups that grants name.",
            advice="Ask the operator of the gateway to grant audit to fewer groups, or to callers.",
        )
    return cookie


def alleged_issuer(cookie: str) -> str | None:
    """Return the name of the issuer that a session would be of. None if it is no session of a login at an issuer."""
    version, _, rest = cookie.partition(".")
    if version != _SESSION:
        return None
    try:
        return str(_read(rest.partition(".")[0])["caller"]).partition(":")[0]
    except (LookupError, TypeError, ValueError, RecursionError):
        return None


def session_of(cookie: str, terms: Terms, signing_keys: Iterable[str]) -> Session | None:
    """Return the session of a cookie; None if it was forged, changed, or is of another issuer or client."""
    for signing_key in signing_keys:
        content = _opened(_SESSION, _key(_SESSION, terms, signing_key), cookie)
        if content is not None:
            found = _read(content)
            return Session(found["caller"], tuple(found["groups"]), datetime.fromtimestamp(found["since"], UTC))
    return None


def session_key(api_key: str) -> bytes:
    """Return the key that signs the sessions by an API key, and nothing else."""
    return hmac.digest(api_key.encode(), b"fencing-gateway page session v1", hashlib.sha256)


def issue_session(caller: str, session_key: bytes, now: datetime) -> str:
    """Return a session of ``caller`` by an API key, from ``now`` on, which is aware."""
    content = f"{_KEY_SESSION}.{_encoded(caller.encode())}.{int((now + LIFETIME).timestamp())}"
    return f"{content}.{_proof(session_key, content)}"


def caller_of(cookie: str, keys_of: Callable[[str], Sequence[bytes]], now: datetime) -> str | None:
    """Return the caller of a session by an API key; None if it was forged, changed, or has ended at ``now``.

    ``keys_of`` returns the keys that sign the sessions of a caller, one for each of its API keys. The check takes as
    long for an unknown caller.
    """
    content, _, proof = cookie.rpartition(".")
    parts = content.split(".")
    if len(parts) != 3 or parts[0] != _KEY_SESSION or not cookie.isascii():
        return None
    try:
        caller, expires = _decoded(parts[1]).decode(), int(parts[2])
    except ValueError:
        return None
    known = keys_of(caller)
    proven = [hmac.compare_digest(_proof(key, content).encode(), proof.encode()) for key in known or (_UNUSED_KEY,)]
    return caller if known and any(proven) and now.timestamp() < expires else None


def _proof(session_key: bytes, content: str) -> str:
    return _encoded(hmac.digest(session_key, content.encode(), hashlib.sha256))


def _attempt(key: bytes, content: str, following: str) -> Attempt:
    state, nonce, verifier = (_mac(key, purpose, content) for purpose in ("state", "nonce", "verifier"))
    return Attempt(following, state, nonce, verifier)


def _key(version: str, terms: Sequence[str], signing_key: str) -> bytes:
    """Return a key for cookies of one kind and one issuer, so that no other signature can pass for theirs."""
    context = _json(["fencing-gateway page login", version, *terms])
    return hmac.digest(signing_key.encode(), context, hashlib.sha256)


def _sealed(version: str, key: bytes, content: str) -> str:
    return f"{version}.{content}.{_mac(key, 'proof', content)}"


def _opened(version: str, key: bytes, cookie: str) -> str | None:
    found, _, rest = cookie.partition(".")
    content, _, proof = rest.partition(".")
    if found != version or not cookie.isascii():
        return None
    return content if hmac.compare_digest(_mac(key, "proof", content).encode(), proof.encode()) else None


def _mac(key: bytes, purpose: str, content: str) -> str:
    return _encoded(hmac.digest(key, f"{purpose}\n{content}".encode(), hashlib.sha256))


def _json(content: Any) -> bytes:
    return json.dumps(content, separators=(",", ":")).encode()


def _read(content: str) -> Any:
    return json.loads(_decoded(content))


def _decoded(text: str) -> bytes:
    return base64.b64decode(text.encode() + b"=" * (-len(text) % 4), altchars=b"-_", validate=True)


def _encoded(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()
