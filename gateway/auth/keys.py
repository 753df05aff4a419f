"""The configured callers: whose API key a request carries, and whose secret an access key id belongs to."""

import hashlib
import hmac
from collections.abc import Iterable

from gateway.auth.principal import ANONYMOUS, Principal
from gateway.config import CallerKeys
from gateway.errors import Unauthenticated


class Keys:
    """All callers there are. ``anonymous`` lets requests in that show no credentials at all."""

    def __init__(self, callers: Iterable[CallerKeys], *, anonymous: bool) -> None:
        self._anonymous = anonymous
        self._digests: list[tuple[bytes, Principal]] = []
        self._secrets: dict[str, tuple[Principal, str]] = {}
        for caller in callers:
            principal = Principal(caller.name)
            if caller.api_key is not None:
                self._digests.append((_digest(caller.api_key.get_secret_value().encode()), principal))
            if caller.access_key_id is not None and caller.secret_access_key is not None:
                self._secrets[caller.access_key_id] = principal, caller.secret_access_key.get_secret_value()

    def by_bearer(self, headers: Iterable[tuple[bytes, bytes]]) -> Principal:
        """Who sends ``Authorization: Bearer …`` or, as PostgREST clients do as well, ``apikey: …``.

        Where both stand they must prove the same caller. Raises ``Unauthenticated``; a wrong key does so even where
        anonymous callers are let in, because its sender believes to be somebody.
        """
        presented = _presented(headers)
        if not presented:
            if self._anonymous:
                return ANONYMOUS
            raise Unauthenticated("The request carries no API key.")
        proven = {self._owner(key) for key in presented}
        if len(proven) != 1:
            raise Unauthenticated("The headers Authorization and apikey belong to two callers.")
        return proven.pop()

    def secret_of(self, access_key_id: str) -> tuple[Principal, str] | None:
        """The owner of an access key id and its secret, to check a signature with."""
        return self._secrets.get(access_key_id)

    def _owner(self, key: bytes) -> Principal:
        digest, owner = _digest(key), None
        for known, principal in self._digests:  # all of them, so that the time taken tells nothing
            if hmac.compare_digest(known, digest):
                owner = principal
        if owner is None or not key:
            raise Unauthenticated("The API key is not known here.")
        return owner


def _digest(key: bytes) -> bytes:
    """Keys are compared by digest: equal lengths, and no key is kept in memory."""
    return hashlib.sha256(key).digest()


def _presented(headers: Iterable[tuple[bytes, bytes]]) -> list[bytes]:
    """The keys a request shows: at most one of each header."""
    found: dict[bytes, bytes] = {}
    for raw_name, value in headers:
        name = raw_name.lower()
        if name not in (b"authorization", b"apikey"):
            continue
        if name in found:
            raise Unauthenticated(f"The header {name.decode()} stands twice.")
        found[name] = _bearer(value) if name == b"authorization" else value.strip()
    return list(found.values())


def _bearer(value: bytes) -> bytes:
    scheme, _, key = value.strip().partition(b" ")
    if scheme.lower() != b"bearer":
        raise Unauthenticated("The Authorization header must be of the form 'Bearer …'.")
    return key.strip()
