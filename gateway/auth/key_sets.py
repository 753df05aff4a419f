"""The keys of issuers: fetched from configured addresses, kept, and fetched again when a token names another key."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

from gateway.auth.identity_tokens import Keys, read_keys, secret_key
from gateway.auth.issuer_requests import IssuerFailed, ask
from gateway.background import background_tasks
from gateway.errors import Unavailable
from gateway.observe.events import KeysChanged, Observe, ServiceUnreachable

TIMEOUT = 5.0
"""Seconds for one fetch."""
REFRESH = 300.0
"""Seconds between two fetches of known keys. A key that the issuer has withdrawn proves nothing after that."""
LONGEST_KEPT = 24 * 3600.0
"""Seconds for which keys are kept while the issuer cannot be asked."""
PAUSE = 10.0
"""Seconds after a fetch before tokens with unknown keys cause the next one. Any sender can make such tokens up."""

_LARGEST = 256 * 1024


@dataclass(frozen=True, slots=True)
class KeySource:
    """The source of an issuer's keys: one of an address, a file, and a shared secret.

    ``authorities``: the file with the certificates that the address has to show one of. ``token_file``: the file with
    the token that the address wants.
    """

    url: str | None = None
    path: Path | None = None
    secret: bytes | None = None
    authorities: Path | None = None
    token_file: Path | None = None


class KeySet:
    """The keys of one issuer. ``keys`` is None as long as none have been found."""

    def __init__(self, issuer: str, source: KeySource, observe: Observe) -> None:
        self._issuer, self._source, self._observe = issuer, source, observe
        self._keys: Keys | None = None if source.secret is None else secret_key(source.secret)
        self._found = self._asked = float("-inf")
        self._fetching = asyncio.Lock()
        self.version = 0
        """It changes with the keys."""

    @property
    def keys(self) -> Keys:
        """Return the keys. Raises ``Unavailable`` if there are none, or if they are too old."""
        if self._keys is None or (self._source.secret is None and self._age(self._found) > LONGEST_KEPT):
            raise Unavailable(f"The keys of the issuer {self._issuer} cannot be had at the moment.")
        return self._keys

    async def renew(self) -> None:
        """Fetch the keys, unless that was done a moment ago. Callers at the same time wait for one fetch."""
        if self._source.secret is not None:
            return
        async with self._fetching:
            if self._age(self._asked) >= PAUSE:
                await self._renew()
                self._asked = asyncio.get_running_loop().time()

    async def keep(self) -> None:
        """Renew the keys from time to time, without end."""
        while self._source.secret is None:
            await self.renew()
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
        if source.path is not None:
            return await asyncio.to_thread(source.path.read_bytes)
        assert source.url is not None
        # Kubernetes knows keys by the second name alone, and refuses requests that do not accept it.
        headers = {"Accept": "application/json, application/jwk-set+json"}
        if source.token_file is not None:
            token = await asyncio.to_thread(source.token_file.read_text)
            headers["Authorization"] = f"Bearer {token.strip()}"
        status, content = await ask(
            *("GET", source.url, self._observe),
            headers=headers,
            authorities=source.authorities,
            seconds=TIMEOUT,
            largest=_LARGEST,
        )
        if status != HTTPStatus.OK:
            raise ValueError(f"it answers with {status}")
        return content

    @staticmethod
    def _age(moment: float) -> float:
        return asyncio.get_running_loop().time() - moment


@asynccontextmanager
async def keeping(sets: Mapping[str, KeySet]) -> AsyncIterator[None]:
    """Keep the keys of all issuers up to date."""
    async with background_tasks(*(one.keep() for one in sets.values())):
        yield
