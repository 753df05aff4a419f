"""Evidence in objects: their metadata name the resource and the token of the write that made them, with a signature.

Pure. An object outlives the fences that a database loses. A write that finds a higher token at its key raises the fence
to that token first, and is then refused. The signature covers bucket and key, so that a copy elsewhere proves nothing.
Callers cannot make it, so they cannot close a resource by metadata of their own.
"""

import base64
import hashlib
import hmac
import json
from collections.abc import Iterable
from dataclasses import dataclass

from gateway.errors import TokenMalformed
from gateway.fencing.token import Token


@dataclass(frozen=True, slots=True)
class Metadata:
    """The metadata of an object at a key, as they stand there; None for what it does not have."""

    bucket: str
    key: str
    resource: str | None
    token: str | None
    write_id: str | None
    signature: str | None


class Witness:
    """Signs and verifies: the first of ``keys`` signs and all of them verify, so that they can be replaced."""

    def __init__(self, keys: Iterable[str] = ()) -> None:
        """Without keys nothing is signed, and no object is evidence."""
        self._keys = [hmac.digest(key.encode(), b"fencing-gateway evidence v1", hashlib.sha256) for key in keys]

    def sign(self, bucket: str, key: str, resource: str, token: str, write_id: str) -> str | None:
        """Return the signature for the metadata of an object; None without a key, and for a write without a token."""
        signed = _signed(bucket, key, resource, token, write_id)
        return _mac(self._keys[0], signed) if self._keys and token else None

    def find(self, found: Metadata) -> Token | None:
        """Return the token that wrote an object; None where nothing proves it."""
        if not found.resource or not found.token or not found.write_id or not found.signature:
            return None
        signed = _signed(found.bucket, found.key, found.resource, found.token, found.write_id)
        given = found.signature.encode(errors="replace")
        # All of them, so that the time does not tell which one fits.
        fits = [hmac.compare_digest(_mac(key, signed).encode(), given) for key in self._keys]
        if not any(fits):
            return None
        try:
            return Token.parse(found.token)
        except TokenMalformed:
            return None


def _signed(*fields: str) -> bytes:
    return json.dumps(fields).encode()


def _mac(key: bytes, signed: bytes) -> str:
    return base64.urlsafe_b64encode(hmac.digest(key, signed, hashlib.sha256)).rstrip(b"=").decode()
