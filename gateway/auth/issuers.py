"""Trusted issuers of identity tokens: which caller a token proves. Proven tokens are remembered."""

import hashlib
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TypeAlias

from gateway.auth import identity_tokens
from gateway.auth.identity_tokens import Identity, TrustedIssuer, Unverified
from gateway.auth.key_sets import KeySet, KeySource, keeping
from gateway.auth.principal import Principal
from gateway.errors import GatewayError, Unauthenticated
from gateway.observe.events import Observe

MOST_REMEMBERED = 4096

Admit: TypeAlias = Callable[[Identity], Principal]
"""Returns the caller of a proven identity, with its rights."""


@dataclass(frozen=True, slots=True)
class TokenProof:
    """A token that was proven by one version of its issuer's keys. ``expires`` is aware."""

    expires: datetime
    keys: KeySet
    version: int
    clock: Callable[[], datetime]

    def holds(self) -> bool:
        """Return whether the token has not expired, and its issuer has the same keys as then."""
        return self.keys.version == self.version and self.clock() < self.expires


class Issuers:
    """All trusted issuers. ``clock`` returns an aware moment."""

    def __init__(
        self,
        issuers: Iterable[tuple[TrustedIssuer, KeySource]],
        clock: Callable[[], datetime],
        observe: Observe,
    ) -> None:
        self._clock = clock
        self._trusted = [(one, KeySet(one.name, source, observe)) for one, source in issuers]
        self._remembered: dict[bytes, Principal] = {}

    def __bool__(self) -> bool:
        return bool(self._trusted)

    def trusts(self, caller: str) -> bool:
        """Return whether a name is that of a caller of a trusted issuer."""
        return any(caller.startswith(f"{one.name}:") for one, _ in self._trusted)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Keep the keys of all issuers up to date."""
        async with keeping({one.name: keys for one, keys in self._trusted}):
            yield

    async def meet(self, credentials: Sequence[bytes]) -> None:
        """Fetch the keys that these credentials need, if they are tokens of an issuer and their keys are not known.

        ``principal`` then says what is wrong with a token, if anything is.
        """
        for credential in credentials:
            if not self._trusted or not identity_tokens.looks_like_one(credential):
                continue
            with suppress(Unauthenticated):
                one = identity_tokens.look(credential)
                _, keys = self._issuer_of(one)
                if not _has(keys, one):
                    await keys.renew()

    async def identify_login(self, name: str, token: bytes, nonce: str) -> Identity:
        """Return the identity that the ID token of a login at the issuer ``name`` proves.

        Raises ``Unauthenticated`` for a token that proves none, and ``Unavailable`` without the keys of its issuer.
        """
        trusted, keys = next(one for one in self._trusted if one[0].name == name)
        if not _has(keys, identity_tokens.look(token, identity_tokens.LARGEST_OF_LOGIN)):
            await keys.renew()
        return identity_tokens.verify_login(token, trusted, nonce, keys.keys, self._clock())

    def principal(self, token: bytes, admit: Admit) -> Principal:
        """Return the caller that a token proves.

        Raises ``Unauthenticated`` for a token that proves none, and ``Unavailable`` without the keys of its issuer.
        """
        digest = hashlib.sha256(token).digest()
        known = self._remembered.get(digest)
        if known is not None and known.proof is not None and known.proof.holds():
            return known
        trusted, keys = self._issuer_of(identity_tokens.look(token))
        identity = identity_tokens.verify(token, trusted, keys.keys, self._clock())
        proof = TokenProof(identity.expires, keys, keys.version, self._clock)
        principal = replace(admit(identity), proof=proof)
        if len(self._remembered) >= MOST_REMEMBERED:
            self._remembered.clear()
        self._remembered[digest] = principal
        return principal

    def _issuer_of(self, token: Unverified) -> tuple[TrustedIssuer, KeySet]:
        for trusted, keys in self._trusted:
            if trusted.issuer == token.issuer:
                return trusted, keys
        for trusted, keys in self._trusted:
            if trusted.issuer is None:
                return trusted, keys
        raise Unauthenticated(
            "The identity token is of an issuer that this gateway does not trust: its claim iss.",
            advice="Send a token of a configured issuer, or ask the operator of the gateway to configure this one.",
        )


def _has(keys: KeySet, token: Unverified) -> bool:
    try:
        return token.key_id is None or any(key.kid == token.key_id for key in keys.keys)
    except GatewayError:
        return False
