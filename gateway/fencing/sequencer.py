"""Sequencers: a token with its resource, and the proof that the lease service has issued it.

The form is ``resource:mode:token:signature``. Any client that has a sequencer can show it. So it proves that the token
was issued, and not to which client. The proof is an HMAC under a key that the operator configures. Every gateway with
that key can check it without asking another one.
"""

import base64
import hashlib
import hmac
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Self

from gateway.errors import GatewayError, SequencerMalformed
from gateway.fencing import resource as resources
from gateway.fencing import token as tokens
from gateway.fencing.lease import LockMode
from gateway.fencing.resource import MAX_BYTES as MAX_RESOURCE
from gateway.fencing.resource import canonical
from gateway.fencing.token import Token

SIGNATURE = 43
"""Characters of a signature: the 32 bytes of an HMAC-SHA256, in base64url without padding."""

MAX_CHARACTERS = MAX_RESOURCE + len(":exclusive:2147483647.9223372036854775807:") + SIGNATURE

_SIGNATURE = "[!-9;-~]+"
_MODES = "|".join(LockMode)
FORM = rf"[!-+\--~]+:({_MODES}):{tokens.FORM}:{_SIGNATURE}"
"""The wire form, as an expression without its ends. It takes names that are not canonical, too.

A signature of another length is read, and is not authentic.
"""
GRAMMAR = f"{resources.GRAMMAR}:({_MODES}):{tokens.GRAMMAR}:{_SIGNATURE}"
"""The same without most of what is refused. It takes names that are too long, too."""


@dataclass(frozen=True, slots=True)
class Sequencer:
    """A sequencer as it was read, and not yet proven.

    Its text is as good as the token itself: it is neither logged nor recorded.
    """

    resource: str
    mode: LockMode
    token: Token
    signature: str = field(repr=False)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the wire form. Raises ``SequencerMalformed``, which repeats nothing of it."""
        # From the right, for a name may contain colons, and nothing after it does.
        parts = text.rsplit(":", 3) if len(text) <= MAX_CHARACTERS else []
        if len(parts) != 4:
            raise SequencerMalformed("The sequencer is not of the form resource:mode:token:signature.")
        resource, mode, token, signature = parts
        if mode not in set(LockMode):
            raise SequencerMalformed("The mode of the sequencer must be exclusive or shared.")
        if not re.fullmatch(_SIGNATURE, signature):
            raise SequencerMalformed("The signature of the sequencer is not base64url.")
        try:
            return cls(canonical(resource), LockMode(mode), Token.parse(token), signature)
        except GatewayError:
            raise SequencerMalformed("The resource or the token of the sequencer cannot be read.") from None

    @property
    def text(self) -> str:
        """The wire form. Not ``str()``, so that it does not get into a message by accident."""
        return f"{_signed(self.resource, self.mode, self.token)}:{self.signature}"


class Signer:
    """Signs and verifies: the first of ``keys`` signs and all of them verify, so that they can be replaced."""

    def __init__(self, keys: Iterable[str] = ()) -> None:
        """Without keys nothing is signed, and nothing is authentic."""
        self._keys = [_for_this_purpose(key) for key in keys]

    def sign(self, resource: str, mode: str, token: Token) -> str | None:
        """Return the sequencer for an issued token, as text; None without a key."""
        if not self._keys:
            return None
        signed = _signed(resource, LockMode(mode), token)
        return f"{signed}:{_mac(self._keys[0], signed)}"

    def is_authentic(self, sequencer: Sequencer) -> bool:
        signed = _signed(sequencer.resource, sequencer.mode, sequencer.token)
        # All of them, and the texts rather than the bytes: base64 has several texts for the same bytes.
        found = [hmac.compare_digest(_mac(key, signed), sequencer.signature) for key in self._keys]
        return any(found)


def _signed(resource: str, mode: LockMode, token: Token) -> str:
    """Return the signed text. It is unique, because neither a mode nor a token contains a colon."""
    return f"{resource}:{mode}:{token}"


def _for_this_purpose(key: str) -> bytes:
    """Return a key for sequencers alone, so that no other proof made with the key can serve as a signature."""
    return hmac.digest(key.encode(), b"fencing-gateway sequencers v1", hashlib.sha256)


def _mac(key: bytes, signed: str) -> str:
    digest = hmac.digest(key, signed.encode(), hashlib.sha256)
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
