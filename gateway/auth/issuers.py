"""Trusted issuers: requests to their configured addresses, their keys, and the callers that their tokens prove.

Keys are kept, and fetched again when a token names another one. Proven tokens are remembered.
"""

import asyncio
import hashlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import TypeAlias
from urllib.parse import urlsplit

import httpx

from gateway.auth import identity_tokens
from gateway.auth.identity_tokens import Identity, Keys, TrustedIssuer, Unverified, read_keys, secret_key
from gateway.auth.principal import Principal, Proof
from gateway.background import Attempts, background_tasks, unreachable
from gateway.bounded import Bounded
from gateway.config.access import Issuer
from gateway.errors import GatewayError, Unauthenticated, Unavailable
from gateway.observe.events import KeysChanged, Observe, ServiceUnreachable
from gateway.observe.stages import asking


class IssuerFailed(Exception):
    """An issuer could not be asked, or its answer cannot be used. The text says why, and contains no secret."""


async def ask(
    method: str,
    url: str,
    observe: Observe,
    *,
    headers: Mapping[str, str],
    form: Mapping[str, str] | None = None,
    authorities: Path | None,
    seconds: float,
    largest: int,
) -> tuple[int, bytes]:
    """Return status and body of an answer. Raises ``IssuerFailed``, also if it takes longer than ``seconds`` in all.

    ``authorities``: a file with the certificates of which the address has to show one. ``largest``: bytes of a body.
    """
    sent = {"Accept": "application/json", "Accept-Encoding": "identity", **headers}
    content = b""
    try:
        context = ssl.create_default_context(cafile=authorities)
        # trust_env off: no proxy of the environment gets to choose keys, or sees a code. No redirect is followed.
        async with (
            asyncio.timeout(seconds),
            httpx.AsyncClient(verify=context, trust_env=False, follow_redirects=False, timeout=seconds) as client,
        ):
            with asking(observe, "issuer", method, "/") as exchange:
                async with client.stream(method, url, headers=sent, data=form) as answer:
                    exchange.status = answer.status_code
                    async for chunk in answer.aiter_raw():
                        content += chunk
                        if len(content) > largest:
                            raise ValueError("its answer is too long")
    except TimeoutError as error:
        raise IssuerFailed(f"it does not answer within {seconds:g} seconds") from error
    except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
        raise IssuerFailed(str(error) or type(error).__name__) from error
    return answer.status_code, content


TIMEOUT = 5.0
"""Seconds for one fetch."""
REFRESH = 300.0
"""Seconds between two fetches of known keys. A key that the issuer has withdrawn proves nothing after that."""
LONGEST_KEPT = 24 * 3600.0
"""Seconds for which keys are kept while the issuer cannot be asked."""
PAUSE = 10.0
"""Seconds after a fetch before a stranger causes the next one: by a token with an unknown key, or by a login."""

_LARGEST = 256 * 1024


def _age(moment: float) -> float:
    return asyncio.get_running_loop().time() - moment


class PacedFetch:
    """Fetches something from one issuer, and then not again within ``PAUSE``, whatever came of it."""

    def __init__(self, fetch: Callable[[], Awaitable[None]]) -> None:
        self._fetch = fetch
        self._ended = float("-inf")
        self._fetching = asyncio.Lock()

    @property
    def under_way(self) -> bool:
        return self._fetching.locked()

    async def make(self) -> None:
        """Fetch, unless that was done a moment ago. Callers at the same time wait for one fetch."""
        async with self._fetching:
            if _age(self._ended) >= PAUSE:
                await self._fetch()
                self._ended = asyncio.get_running_loop().time()


class KeySet:
    """The keys of one issuer. ``keys`` is None as long as none have been found."""

    def __init__(self, source: Issuer, observe: Observe) -> None:
        self._issuer, self._source, self._observe = source.name, source, observe
        secret = None if source.secret is None else source.secret.get_secret_value().encode()
        self._keys: Keys | None = None if secret is None else secret_key(secret)
        self._found = float("-inf")
        self._fetch = PacedFetch(self._renew)
        self.version = 0
        """It changes with the keys."""

    def is_at(self, version: int) -> bool:
        return self.version == version

    @property
    def keys(self) -> Keys:
        """Return the keys. Raises ``Unavailable`` if there are none, or if they are too old."""
        if self._keys is None or (self._source.secret is None and _age(self._found) > LONGEST_KEPT):
            raise Unavailable(f"The keys of the issuer {self._issuer} cannot be had at the moment.")
        return self._keys

    async def renew(self) -> None:
        """Fetch the keys, unless that was done a moment ago. Callers at the same time wait for one fetch."""
        if self._source.secret is None:
            await self._fetch.make()

    async def keep(self) -> None:
        attempts = Attempts(self._observe, partial(unreachable, "issuer", self._issuer))
        while self._source.secret is None:
            await attempts.make(self.renew)
            await asyncio.sleep(REFRESH if self._keys is not None else PAUSE)

    async def _renew(self) -> None:
        try:
            async with asyncio.timeout(TIMEOUT):
                document = await self._document()
            keys = read_keys(document)
        except (IssuerFailed, OSError, ValueError, TimeoutError) as error:
            self._observe(ServiceUnreachable("issuer", f"{self._issuer}: {str(error) or type(error).__name__}"))
            return
        if self._keys is None or [key.as_dict() for key in keys] != [key.as_dict() for key in self._keys]:
            self._keys, self.version = keys, self.version + 1
            self._observe(KeysChanged(self._issuer, len(keys)))
        self._found = asyncio.get_running_loop().time()

    async def _document(self) -> bytes:
        source = self._source
        assert source.keys is not None
        if not urlsplit(source.keys).scheme:
            return await asyncio.to_thread(Path(source.keys).read_bytes)
        # Kubernetes knows keys by the second name alone, and refuses requests that do not accept it.
        headers = {"Accept": "application/json, application/jwk-set+json"}
        if source.token_path is not None:
            token = await asyncio.to_thread(source.token_path.read_text)
            headers["Authorization"] = f"Bearer {token.strip()}"
        status, content = await ask(
            *("GET", source.keys, self._observe),
            headers=headers,
            authorities=source.authorities,
            seconds=TIMEOUT,
            largest=_LARGEST,
        )
        if status != HTTPStatus.OK:
            raise ValueError(f"it answers with {status}")
        return content


@asynccontextmanager
async def keeping(sets: Mapping[str, KeySet]) -> AsyncIterator[None]:
    """Keep the keys of all issuers up to date."""
    async with background_tasks(*(one.keep() for one in sets.values())):
        yield


MOST_REMEMBERED = 4096

Admit: TypeAlias = Callable[[Identity], Principal]
"""Returns the caller of a proven identity, with its rights."""


class Issuers:
    """All trusted issuers. ``clock`` returns an aware moment."""

    def __init__(
        self,
        issuers: Iterable[Issuer],
        clock: Callable[[], datetime],
        observe: Observe,
    ) -> None:
        self._clock = clock
        self._trusted = [(_trusted(one), KeySet(one, observe)) for one in issuers]
        # A database has its own roles, so what it admitted is no other one's caller.
        self._remembered: Bounded[tuple[bytes, Admit], Principal] = Bounded(MOST_REMEMBERED)

    def __bool__(self) -> bool:
        return bool(self._trusted)

    def trusts(self, caller: str) -> bool:
        """Return whether a name is that of a caller of a trusted issuer."""
        return any(caller.startswith(f"{one.name}:") for one, _ in self._trusted)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
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
        remembered = hashlib.sha256(token).digest(), admit
        known = self._remembered.get(remembered)
        if known is not None and known.proof is not None and known.proof.holds():
            return known
        trusted, keys = self._issuer_of(identity_tokens.look(token))
        identity = identity_tokens.verify(token, trusted, keys.keys, self._clock())
        proof = Proof(identity.expires, self._clock, partial(keys.is_at, keys.version))
        return self._remembered.remember(remembered, replace(admit(identity), proof=proof))

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


def _trusted(issuer: Issuer) -> TrustedIssuer:
    return TrustedIssuer(
        *(issuer.name, issuer.issuer, issuer.audiences, issuer.caller_claim, issuer.groups_claim),
        login_client=None if issuer.login is None else issuer.login.client_id,
    )


def _has(keys: KeySet, token: Unverified) -> bool:
    try:
        return token.key_id is None or any(key.kid == token.key_id for key in keys.keys)
    except GatewayError:
        return False
