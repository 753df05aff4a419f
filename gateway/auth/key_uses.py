"""Uses of the keys of configured callers: when each was last used. To note one costs a write to memory.

An API key is shown by a fingerprint. To test a guess by it takes longer than to try the guess at a gateway.
"""

import hashlib
from enum import StrEnum
from functools import lru_cache
from time import monotonic

_PURPOSE = b"fencing-gateway fingerprint of an API key v1"
# scrypt, because the database shows four bytes of it. A guess takes some 40 ms, more than one at the gateway itself.
_COST, _BLOCK = 2**14, 8
_LENGTH = 4


class KeyKind(StrEnum):
    """The kinds of keys."""

    API = "api"
    S3 = "s3"


class KeyUse:
    """The uses of one key in this process. ``last``: the monotonic time of the last one, if there was any."""

    __slots__ = ("_content", "caller", "kind", "last")

    def __init__(self, caller: str, kind: KeyKind, content: bytes) -> None:
        """``content``: the digest of an API key, or the access key id of a pair, which is no secret."""
        self.caller, self.kind, self._content = caller, kind, content
        self.last: float | None = None

    def note(self) -> None:
        """Note a use."""
        self.last = monotonic()

    def shown(self) -> str:
        """Return the name by which people recognise the key. The first call for an API key takes 40 ms."""
        return self._content.decode() if self.kind is KeyKind.S3 else fingerprint(self.caller, self._content)


def digest_of(key: bytes) -> bytes:
    """Return the digest by which API keys are compared: all have one length, and no key stays in memory."""
    return hashlib.sha256(key).digest()


@lru_cache(maxsize=4096)
def fingerprint(caller: str, digest: bytes) -> str:
    """Return the fingerprint of an API key: the same at all gateways. ``digest``: that of the key."""
    salt = _PURPOSE + caller.encode()
    return hashlib.scrypt(digest, salt=salt, n=_COST, r=_BLOCK, p=1, dklen=_LENGTH).hex()
